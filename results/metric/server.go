package metric

import "speedmatrix/results/record"

// span is where the server's readings count: the window; in prefill, from the
// first measured request sent to the last one ended.
func (l *look) span() (from, to int64, ok bool) {
	if !l.prefill {
		return l.from, l.to, l.windowed
	}
	for i := range l.scored {
		s := &l.scored[i]
		if s.SentNs == nil || s.EndNs == nil {
			continue
		}
		if !ok {
			from, to, ok = *s.SentNs, *s.EndNs, true
		}
		from, to = min(from, *s.SentNs), max(to, *s.EndNs)
	}
	return from, to, ok
}

// readings returns the server's readings of one name in [from, to).
func (l *look) readings(name string, from, to int64) []record.Sample {
	var out []record.Sample
	for _, s := range l.t.Samples {
		if s.Source == record.SourceMetrics && s.Name == name && s.AtNs >= from && s.AtNs < to {
			out = append(out, s)
		}
	}
	return out
}

func (l *look) spanReadings(name string) []record.Sample {
	from, to, ok := l.span()
	if !ok {
		return nil
	}
	return l.readings(name, from, to)
}

func gaugeMax(name string) func(*look) (float64, bool) {
	return func(l *look) (float64, bool) {
		var most float64
		rs := l.spanReadings(name)
		for i, r := range rs {
			if i == 0 || r.Value > most {
				most = r.Value
			}
		}
		return most, len(rs) > 0
	}
}

func gaugeMean(name string) func(*look) (float64, bool) {
	return func(l *look) (float64, bool) {
		var sum float64
		rs := l.spanReadings(name)
		for _, r := range rs {
			sum += r.Value
		}
		return sum / float64(len(rs)), len(rs) > 0
	}
}

func (l *look) waitingRatio() (float64, bool) {
	n := 0
	rs := l.spanReadings(record.SampleWaiting)
	for _, r := range rs {
		if r.Value > 0 {
			n++
		}
	}
	return float64(n) / float64(len(rs)), len(rs) > 0
}

// growth of a counter over [from, to): from the last reading at or before the
// start (else the first after it) to the last one before the end. In prefill,
// where a request can fall between two readings, to the first reading at or after
// the end. A counter that fell was reset: unknown.
func (l *look) growth(name string, from, to int64) (float64, bool) {
	var base, end *record.Sample
	for i := range l.t.Samples {
		s := &l.t.Samples[i]
		if s.Source != record.SourceMetrics || s.Name != name {
			continue
		}
		if base == nil || s.AtNs <= from {
			base = s
		}
		if s.AtNs < to || l.prefill && (end == nil || end.AtNs < to) {
			end = s
		}
	}
	if base == nil || end == nil || end.AtNs <= base.AtNs || end.Value < base.Value {
		return 0, false
	}
	return end.Value - base.Value, true
}

func (l *look) spanGrowth(name string) (float64, bool) {
	from, to, ok := l.span()
	if !ok {
		return 0, false
	}
	return l.growth(name, from, to)
}

func (l *look) preemptions() (float64, bool) { return l.spanGrowth(record.SamplePreemptions) }

func (l *look) specAccepted() (float64, bool) {
	accepted, ok1 := l.spanGrowth(record.SampleSpecAccepted)
	drafts, ok2 := l.spanGrowth(record.SampleSpecDrafts)
	return accepted / drafts, ok1 && ok2 && drafts > 0
}

func (l *look) prefixHitRatio() (float64, bool) {
	from, to, ok := l.span()
	if ok && !l.prefill && l.t.LaunchNs != nil {
		from = *l.t.LaunchNs
	}
	if ok {
		hits, ok1 := l.growth(record.SamplePrefixHits, from, to)
		queries, ok2 := l.growth(record.SamplePrefixQueries, from, to)
		if ok1 && ok2 && queries > 0 {
			return hits / queries, true
		}
	}
	var cached, prompt int64
	for i := range l.scored {
		if s := &l.scored[i]; s.CachedTokens != nil && s.PromptTokens != nil {
			cached, prompt = cached+*s.CachedTokens, prompt+*s.PromptTokens
		}
	}
	return float64(cached) / float64(prompt), prompt > 0
}

func (l *look) serverRate() (float64, bool) {
	rs := l.spanReadings(record.SampleGeneration)
	if len(rs) < 2 {
		return 0, false
	}
	a, b := rs[0], rs[len(rs)-1]
	if b.AtNs <= a.AtNs || b.Value < a.Value {
		return 0, false
	}
	return (b.Value - a.Value) / (float64(b.AtNs-a.AtNs) / second), true
}
