package simulator

import (
	"slices"
	"time"
)

// scheduler is continuous batching in miniature. It has no clock, no goroutine and
// no lock: times are durations since the server's start, and [scheduler.advance]
// does whatever is due by a given time.
type scheduler struct {
	profile *Profile
	kv      *pool
	// emit is called for each request that got n tokens at time at. The request's
	// generated count includes them.
	emit func(r *request, n int, at time.Duration)

	waiting   []*request // not admitted, in order of arrival, preempted ones first
	prefill   *request   // the one whose prompt is being computed
	prefillAt time.Duration
	landing   []*request // prefill done, first token due at request.due
	decoding  []*request // in order of admission
	batch     []*request // scratch of endStep
	stepping  bool
	stepAt    time.Duration // when the current step ends
	stepNo    int
	submitted int // requests so far

	stats counters
}

// counters are totals since the start.
type counters struct {
	promptTokens, cachedTokens, generatedTokens int64
	queriedTokens                               int64 // asked of the prefix cache, at each admission
	hitTokens                                   int64
	preemptions                                 int64
	steps                                       int64
	drafts, accepted                            int64
}

// request is one completion inside the engine.
type request struct {
	prompt prompt
	max    int  // output tokens
	stops  bool // they end by the end of sequence, not by the limit
	stream *stream

	no        int // of the request, where its acceptance begins
	step      int // decode steps that gave it tokens
	generated int
	cached    int // prompt tokens that the first admission found in the cache
	kv        holding

	arrived  time.Duration
	admitted time.Duration // first time; 0 until then
	due      time.Duration // while landing
	first    time.Duration // first token
	fromStep int           // first decode step that counts this request
	preempts int
	place    whereabouts // the list it is in
}

// whereabouts of a request.
type whereabouts uint8

const (
	nowhere whereabouts = iota // finished, cancelled or not yet submitted
	inWaiting
	inPrefill
	inLanding
	inDecoding
)

func (r *request) length() int { return r.prompt.tokens + r.generated }

func newScheduler(p *Profile, emit func(*request, int, time.Duration)) *scheduler {
	return &scheduler{profile: p, kv: newPool(p.KVTokens / p.BlockTokens), emit: emit}
}

func (s *scheduler) running() int {
	n := len(s.landing) + len(s.decoding)
	if s.prefill != nil {
		n++
	}
	return n
}

// submit queues a request at time now.
func (s *scheduler) submit(r *request, now time.Duration) {
	r.arrived, r.place, r.no = now, inWaiting, s.submitted
	s.submitted++
	s.waiting = append(s.waiting, r)
	s.admit(now)
}

// cancel takes a request out, wherever it is.
func (s *scheduler) cancel(r *request, now time.Duration) {
	if r.place == nowhere {
		return
	}
	s.remove(r)
	s.admit(now)
}

// remove takes r out of the engine and frees what it holds.
func (s *scheduler) remove(r *request) {
	drop := func(list []*request) []*request {
		i := slices.Index(list, r)
		return slices.Delete(list, i, i+1)
	}
	switch r.place {
	case inWaiting:
		s.waiting = drop(s.waiting)
	case inPrefill:
		s.prefill = nil
	case inLanding:
		s.landing = drop(s.landing)
	case inDecoding:
		s.decoding = drop(s.decoding)
		s.stepping = s.stepping && len(s.decoding) > 0
	}
	r.place = nowhere
	s.kv.release(&r.kv)
}

// advance does everything that is due by now, each thing at its own time, and
// returns when to come back; ok is false if nothing is under way.
func (s *scheduler) advance(now time.Duration) (next time.Duration, ok bool) {
	for {
		at, what := s.next()
		switch {
		case what == nothing:
			return 0, false
		case at > now:
			return at, true
		case what == stepEnds:
			s.endStep(at)
		case what == requestLands:
			s.land(at)
		case what == prefillEnds:
			s.endPrefill(at)
		}
	}
}

// event is what is due next.
type event uint8

const (
	nothing event = iota
	stepEnds
	requestLands
	prefillEnds
)

// next returns the earliest event. Of events at one time a step goes first: its
// tokens were computed before anything else could start.
func (s *scheduler) next() (at time.Duration, what event) {
	if s.stepping {
		at, what = s.stepAt, stepEnds
	}
	if len(s.landing) > 0 && (what == nothing || s.landing[0].due < at) {
		at, what = s.landing[0].due, requestLands
	}
	if s.prefill != nil && (what == nothing || s.prefillAt < at) {
		at, what = s.prefillAt, prefillEnds
	}
	return at, what
}

// admit starts the prefill of the request that has waited longest, if a slot and
// the memory for its prompt are free. First come, first served: a short request
// never overtakes a long one that does not fit.
func (s *scheduler) admit(at time.Duration) {
	if s.prefill != nil || len(s.waiting) == 0 || s.running() >= s.profile.Slots {
		return
	}
	r := s.waiting[0]
	bt := s.profile.BlockTokens
	hashes, share := r.prompt.blocks, 0
	if s.profile.PrefixCaching {
		share = (r.length() - 1) / bt // something is left to compute, as in vLLM
	}
	if !s.kv.admit(&r.kv, hashes, share, blocksFor(r.length(), bt)) {
		return
	}
	s.waiting = slices.Delete(s.waiting, 0, 1)
	hit := len(r.kv.shared) * bt
	if s.profile.PrefixCaching {
		s.stats.queriedTokens += int64(r.length())
		s.stats.hitTokens += int64(hit)
	}
	if r.preempts == 0 {
		r.admitted, r.cached = at, hit
		s.stats.promptTokens += int64(r.prompt.tokens)
		s.stats.cachedTokens += int64(hit)
	}
	s.prefill, r.place = r, inPrefill
	s.prefillAt = at + s.profile.admission(r.prompt.tokens) + s.profile.prefill(hit, r.length())
}

func blocksFor(tokens, blockTokens int) int { return (tokens + blockTokens - 1) / blockTokens }

func (s *scheduler) endPrefill(at time.Duration) {
	r := s.prefill
	s.prefill = nil
	if s.profile.PrefixCaching {
		s.kv.remember(&r.kv, r.prompt.blocks)
	}
	r.due = at + millis(s.profile.BaseTTFTMs)
	r.place = inLanding
	s.landing = append(s.landing, r)
	s.admit(at)
}

// land gives a request the token that its prefill computed and puts it into the
// batch.
func (s *scheduler) land(at time.Duration) {
	r := s.landing[0]
	s.landing = slices.Delete(s.landing, 0, 1)
	r.fromStep, r.place = s.stepNo+1, inDecoding
	s.decoding = append(s.decoding, r)
	if r.generated == 0 {
		r.first = at
	}
	s.give(r, 1, at)
	if !s.stepping {
		s.startStep(at)
	}
	s.admit(at)
}

// give credits tokens and ends a request that has them all.
func (s *scheduler) give(r *request, n int, at time.Duration) {
	r.generated += n
	s.stats.generatedTokens += int64(n)
	if r.generated >= r.max {
		s.remove(r)
	}
	s.emit(r, n, at)
}

func (s *scheduler) startStep(at time.Duration) {
	s.stepping = len(s.decoding) > 0
	if !s.stepping {
		return
	}
	sum := 0
	for _, r := range s.decoding {
		sum += r.prompt.tokens
	}
	n := len(s.decoding)
	s.stepNo++
	s.stepAt = at + s.profile.step(float64(sum)/float64(n), n)
}

func (s *scheduler) endStep(at time.Duration) {
	s.stats.steps++
	k := s.profile.TokensPerChunk
	// Subtle: give takes finished requests out of the list, and reserve may take
	// out any that are younger than r, so this walks a copy and looks where each
	// request is by then.
	s.batch = append(s.batch[:0], s.decoding...)
	for _, r := range s.batch {
		if r.place != inDecoding || r.fromStep > s.stepNo {
			continue
		}
		n := min(s.profile.accepted(r.no+r.step), r.max-r.generated)
		if !s.reserve(r, n) {
			continue
		}
		r.step++
		if k > 1 {
			s.stats.drafts++
			s.stats.accepted += int64(n - 1)
		}
		s.give(r, n, at)
	}
	s.startStep(at)
	s.admit(at)
}

// reserve makes room for n more tokens of r, preempting the youngest requests as
// long as that is needed. It reports false if r itself had to go. The last token of
// a request takes no room yet: its keys are computed when it is the input of the
// step after.
func (s *scheduler) reserve(r *request, n int) bool {
	need := blocksFor(r.length()+n-1, s.profile.BlockTokens) - r.kv.blocks()
	for need > 0 && !s.kv.grow(&r.kv, need) {
		victim := s.youngest()
		s.remove(victim)
		victim.preempts++
		s.stats.preemptions++
		victim.place = inWaiting
		s.waiting = slices.Insert(s.waiting, 0, victim)
		if victim == r {
			return false
		}
	}
	return true
}

func (s *scheduler) youngest() *request {
	switch {
	case s.prefill != nil:
		return s.prefill
	case len(s.landing) > 0:
		return s.landing[len(s.landing)-1]
	}
	return s.decoding[len(s.decoding)-1]
}
