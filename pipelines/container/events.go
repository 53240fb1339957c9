package container

import (
	"bytes"
	"encoding/json"
	"io"
	"regexp"
	"strings"
	"sync"
)

// eventWriter writes events, one a line.
type eventWriter struct {
	out   io.Writer
	nonce string
}

func (w eventWriter) write(e Event) error {
	e.Nonce = w.nonce
	b, err := json.Marshal(e)
	if err != nil {
		return err
	}
	// One call, so that two events do not mix. That nobody reads them is no reason to end:
	// what is measured is in the volume.
	_, _ = w.out.Write(append(append([]byte(EventPrefix), b...), '\n'))
	return nil
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

// escapes are what colours a terminal.
var escapes = regexp.MustCompile(`\x1b\[[0-9;?]*[ -/]*[@-~]|\r`)

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
	_, text, ok := bytes.Cut(b, []byte(EventPrefix))
	if !ok {
		s := strings.ToValidUTF8(string(b[:min(len(b), maxShown)]), "")
		if s = strings.TrimSpace(escapes.ReplaceAllString(s, "")); s != "" && r.onLine != nil {
			r.onLine(s)
		}
		return
	}
	// What follows the object (an escape sequence, a mark of the log) is not ours.
	var e Event
	if json.NewDecoder(bytes.NewReader(text)).Decode(&e) == nil && r.onEvent != nil {
		r.onEvent(e)
	}
}
