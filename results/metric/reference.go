package metric

import "speedmatrix/results/record"

// The formulas of llm-inference-bench 0.7.7 to 0.8.0, faults included: the usage
// is credited when it arrives, the divisor ends with its last growth, and
// latencies are over everything since launch. A run is held against a published
// page with these and never with our own. Its last fallback, the server's token
// counter, is left out: it was dropped on the way to 0.8.

// isText says whether the tool sees an event as text: content or reasoning, not
// tool arguments.
func isText(c *record.Chunk) bool {
	return c.Channel == record.ChannelContent || c.Channel == record.ChannelReasoning
}

// texts returns the stamps of the first and last text and how many there were.
func texts(r *record.Request) (first, last int64, n int) {
	for i := range r.Chunks {
		if c := &r.Chunks[i]; isText(c) {
			if n == 0 {
				first = c.AtNs
			}
			last = c.AtNs
			n++
		}
	}
	return first, last, n
}

func (l *look) refTTFT(s *scoredRequest) (float64, bool) {
	first, _, n := texts(s.Request)
	if n == 0 || s.SentNs == nil || first <= *s.SentNs {
		return 0, false
	}
	return float64(first-*s.SentNs) / second, true
}

func (l *look) refTTFTs() []float64 {
	var out []float64
	for i := range l.scored {
		if v, ok := l.refTTFT(&l.scored[i]); ok {
			out = append(out, v)
		}
	}
	return out
}

func (l *look) refITLs() []float64 {
	var out []float64
	for i := range l.scored {
		s := &l.scored[i]
		first, last, chunks := texts(s.Request)
		n := int64(chunks)
		if s.CompletionTokens != nil {
			n = *s.CompletionTokens
		}
		if n >= 2 && last > first {
			out = append(out, float64(last-first)/second/float64(n-1))
		}
	}
	return out
}

func (l *look) refRates() []float64 { return inverse(l.refITLs()) }

func (l *look) refPrefillRates() []float64 {
	var out []float64
	for i := range l.scored {
		s := &l.scored[i]
		prompt := float64(l.t.ContextTokens)
		if s.PromptTokens != nil {
			prompt = float64(*s.PromptTokens)
		}
		if v, ok := l.refTTFT(s); ok && prompt > 0 {
			out = append(out, prompt/v)
		}
	}
	return out
}

func (l *look) refCompleted() (float64, bool) {
	n := 0
	for i := range l.scored {
		if l.scored[i].Outcome == record.OutcomeCompleted {
			n++
		}
	}
	return float64(n), len(l.scored) > 0
}

// refCount returns the growth of the usages inside the window, or the text
// chunks if there was none, and the stamp of the last one counted.
func (l *look) refCount() (tokens, last int64) {
	var chunks, lastText int64
	for i := range l.scored {
		s := &l.scored[i]
		var counted int64
		for j := range s.Chunks {
			c := &s.Chunks[j]
			inside := c.AtNs >= l.from && c.AtNs < l.to
			if c.HasTokens && c.Tokens > counted {
				if inside {
					tokens += c.Tokens - counted
					last = max(last, c.AtNs)
				}
				counted = c.Tokens
			}
			if inside && isText(c) {
				chunks++
				lastText = max(lastText, c.AtNs)
			}
		}
	}
	if tokens > 0 {
		return tokens, last
	}
	return chunks, lastText
}

func (l *look) refOutputTokens() (float64, bool) {
	if !l.windowed {
		return 0, false
	}
	tokens, _ := l.refCount()
	return float64(tokens), true
}

func (l *look) refWindowSeconds() (float64, bool) {
	if !l.windowed {
		return 0, false
	}
	tokens, last := l.refCount()
	if tokens == 0 {
		last = l.to
	}
	return float64(last-l.from) / second, last > l.from
}

func (l *look) refThroughput() (float64, bool) {
	tokens, ok1 := l.refOutputTokens()
	seconds, ok2 := l.refWindowSeconds()
	return tokens / seconds, ok1 && ok2
}
