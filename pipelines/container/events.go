package container

import (
	"bytes"
	"encoding/json"
	"io"
	"regexp"
	"strings"
	"sync"
	"time"
)

// deafAfter is how long a reader may take nothing before events are no longer kept for
// it: what is measured is in the volume, and must not wait for a log.
const deafAfter = 10 * time.Second

// eventWriter writes events, one a line, on a goroutine of its own.
type eventWriter struct {
	nonce string
	lines chan []byte
	done  chan struct{} // closed when all is written
	deaf  bool          // nobody took an event in time; see write
}

func newEventWriter(out io.Writer, nonce string) *eventWriter {
	w := &eventWriter{nonce: nonce, lines: make(chan []byte, 64), done: make(chan struct{})}
	go func() {
		defer close(w.done)
		for b := range w.lines {
			_, _ = out.Write(b) // one call, so that nothing comes between
		}
	}()
	return w
}

func (w *eventWriter) encode(e Event) ([]byte, error) {
	e.Nonce = w.nonce
	b, err := json.Marshal(e)
	return append(append([]byte(eventPrefix), b...), '\n'), err
}

// write tells of something, in order. It is called on one goroutine.
func (w *eventWriter) write(e Event) error {
	b, err := w.encode(e)
	if err != nil {
		return err
	}
	select {
	case w.lines <- b:
		w.deaf = false
		return nil
	default:
	}
	if w.deaf {
		return nil
	}
	late := time.NewTimer(deafAfter)
	defer late.Stop()
	select {
	case w.lines <- b:
	case <-late.C:
		w.deaf = true
	}
	return nil
}

// hint tells of something unless the reader is behind. It never waits.
func (w *eventWriter) hint(e Event) {
	b, err := w.encode(e)
	if err != nil {
		return
	}
	select {
	case w.lines <- b:
	default:
	}
}

// close waits until all is written, or nobody reads it. Nothing may be told any more.
func (w *eventWriter) close() {
	close(w.lines)
	late := time.NewTimer(deafAfter)
	defer late.Stop()
	select {
	case <-w.done:
	case <-late.C:
	}
}

// maxEventLine bounds a line that is waited for.
const maxEventLine = 1 << 20

// EventReader finds events in the log of a container engine, which mixes them with lines
// of its own. It is an io.Writer and takes the log in any pieces.
type EventReader struct {
	onEvent func(Event)
	onLine  func(string)

	mu      sync.Mutex
	pending []byte
	skip    bool // the rest of a line that is too long
}

// maxShown is how much of a line that is no event is passed on.
const maxShown = 4 << 10

// escapes are what colours a terminal, sets its title, or moves its cursor.
var escapes = regexp.MustCompile(`\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|[\x00-\x08\x0b-\x1f\x7f-\x9f]`)

// NewEventReader calls onEvent for each event and onLine for each other line, without
// its colours.
func NewEventReader(onEvent func(Event), onLine func(string)) *EventReader {
	return &EventReader{onEvent: onEvent, onLine: onLine}
}

// Write never fails.
func (r *EventReader) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for rest := p; len(rest) > 0; {
		line, after, whole := bytes.Cut(rest, []byte("\n"))
		if !r.skip {
			r.pending = append(r.pending, line...)
		}
		if len(r.pending) > maxEventLine {
			r.pending, r.skip = r.pending[:0], true
		}
		if !whole {
			break
		}
		if !r.skip {
			r.line(r.pending)
		}
		r.pending, r.skip, rest = r.pending[:0], false, after
	}
	return len(p), nil
}

// Close reads what has no end of line.
func (r *EventReader) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.pending) > 0 && !r.skip {
		r.line(r.pending)
	}
	r.pending = nil
	return nil
}

func (r *EventReader) line(b []byte) {
	begun := false
	for rest := b; ; {
		_, text, ok := bytes.Cut(rest, []byte(eventPrefix))
		if !ok {
			break
		}
		// What follows the object (an escape sequence, a mark of the log) is not ours. What
		// goes before may look like ours, and be cut.
		var e Event
		if json.NewDecoder(bytes.NewReader(text)).Decode(&e) == nil {
			if r.onEvent != nil {
				r.onEvent(e)
			}
			return
		}
		begun, rest = true, text
	}
	if begun { // an event that was cut: nothing for people
		return
	}
	s := strings.ToValidUTF8(string(b[:min(len(b), maxShown)]), "")
	if s = strings.TrimSpace(escapes.ReplaceAllString(s, "")); s != "" && r.onLine != nil {
		r.onLine(s)
	}
}
