package simulator

import (
	"sync/atomic"
	"time"
)

// stream is where the engine leaves tokens for the handler of a request. The
// engine only raises a number and rings; the handler writes, so that a client that
// does not read holds up nobody else.
type stream struct {
	tokens atomic.Int64
	wake   chan struct{} // one slot
}

func newStream() *stream { return &stream{wake: make(chan struct{}, 1)} }

// emit is the scheduler's way out; it is called with mu held.
func (s *Server) emit(r *request, n int, at time.Duration) {
	r.stream.tokens.Add(int64(n))
	select {
	case r.stream.wake <- struct{}{}:
	default:
	}
	s.done.token(r, n, at)
	total := s.sched.stats.generatedTokens
	if f := &s.opts.Faults; f.HangAfterTokens > 0 && total >= f.HangAfterTokens {
		s.hung = true
	} else if f.ExitAfterTokens > 0 && total >= f.ExitAfterTokens {
		s.die("after the tokens that the fault gives it")
	}
}

// pace is the one goroutine that lets time pass in the engine.
func (s *Server) pace() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var exit, hang <-chan time.Time
	if d := s.opts.Faults.ExitAfter; d > 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		exit = t.C
	}
	if d := s.opts.Faults.HangAfter; d > 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		hang = t.C
	}
	for {
		s.mu.Lock()
		var next time.Duration
		ok := false
		if !s.hung {
			next, ok = s.sched.advance(s.now())
		}
		s.mu.Unlock()
		if ok {
			timer.Reset(next - s.now())
		} else {
			timer.Stop()
		}
		select {
		case <-timer.C:
		case <-s.kick:
		case <-hang:
			s.mu.Lock()
			s.hung = true
			s.mu.Unlock()
			s.opts.Logf("engine hangs")
		case <-exit:
			s.die("after the time that the fault gives it")
		case <-s.died:
			return
		case <-s.closing:
			return
		}
	}
}

func (s *Server) submit(r *request) {
	s.mu.Lock()
	s.sched.submit(r, s.now())
	s.mu.Unlock()
	s.ring()
}

// cancel frees what a request holds; it is harmless for one that has finished.
func (s *Server) cancel(r *request) {
	s.mu.Lock()
	if r.place != nowhere {
		s.done.abort++
	}
	s.sched.cancel(r, s.now())
	s.mu.Unlock()
	s.ring()
}

func (s *Server) ring() {
	select {
	case s.kick <- struct{}{}:
	default:
	}
}
