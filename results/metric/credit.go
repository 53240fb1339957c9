package metric

import "speedmatrix/results/record"

// credits says how many tokens each output event of a request stands for.
type credits struct {
	at       []int64   // stamps of the output events, ascending
	tokens   []float64 // credited to each; all zero where source is unknown
	source   string    // a record.Tokens… constant
	last     int64     // where the server's count ended
	unplaced float64   // counted by the server, but there was no output event to credit
}

// first returns the stamp of the first output event.
func (c *credits) first() (int64, bool) {
	if len(c.at) == 0 {
		return 0, false
	}
	return c.at[0], true
}

func (c *credits) sum() (total float64) {
	for _, n := range c.tokens {
		total += n
	}
	return total
}

// credit spreads each growth of the server's count over the output events since
// the growth before it.
//
// With running usage on every chunk that is the event itself; a server that
// sends its count every tenth chunk, repeats a stale one, or sends one at the
// end falls out of the same rule. A growth that comes after the last output event
// (the usage-only chunk before [DONE]) belongs to the events before it.
func credit(r *record.Request) credits {
	c := credits{source: record.TokensUnknown}
	var (
		counted int64 // the server's count so far
		told    bool  // there was a count
		growths int
		since   int // output events since the last growth begin here
		stretch int // most output events between two growths
		place   = func(n int64) {
			if since == len(c.at) { // no event since: the last one carried them
				if len(c.at) == 0 {
					return // wait for the first event
				}
				c.tokens[len(c.at)-1] += float64(n - counted)
			} else {
				events := c.tokens[since:]
				for i := range events {
					events[i] = float64(n-counted) / float64(len(events))
				}
				stretch = max(stretch, len(events))
				since = len(c.at)
			}
			growths++
			counted = n
		}
	)
	for i := range r.Chunks {
		ch := &r.Chunks[i]
		if ch.Output {
			c.at = append(c.at, ch.AtNs)
			c.tokens = append(c.tokens, 0)
		}
		if ch.HasTokens {
			told = true
			c.last = ch.Tokens
			switch {
			case ch.Tokens > counted:
				place(ch.Tokens)
			case ch.Tokens < counted:
				// It went back. What was credited stays, and the cell's self-check sees that
				// the sum is more than the count at the end.
				counted = ch.Tokens
			}
		}
	}
	if n := r.CompletionTokens; n != nil {
		told = true
		c.last = *n
		if *n > counted {
			place(*n)
		}
	}
	if told && c.last > counted {
		c.unplaced = float64(c.last - counted)
	}

	tail := len(c.at) - since // events after the last growth
	switch {
	case told && (r.Outcome == record.OutcomeCompleted || tail <= stretch):
		// The count is final, or it kept up until the stream was cut.
		c.source = record.TokensFinal
		if r.RunningUsage && (growths > 1 || stretch <= 1) {
			c.source = record.TokensRunning
		}
	case r.RetokenisedTokens != nil:
		c.source, c.last = record.TokensRetokenise, *r.RetokenisedTokens
		for i := range c.tokens {
			c.tokens[i] = float64(c.last) / float64(len(c.tokens))
		}
	default:
		clear(c.tokens)
		c.unplaced = 0
	}
	return c
}

// worse returns the worse of two token sources; empty is better than any.
func worse(a, b string) string {
	rank := func(s string) int {
		switch s {
		case "":
			return 0
		case record.TokensRunning:
			return 1
		case record.TokensFinal:
			return 2
		case record.TokensRetokenise:
			return 3
		}
		return 4
	}
	if rank(b) > rank(a) {
		return b
	}
	return a
}
