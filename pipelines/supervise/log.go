package supervise

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"speedmatrix/results/record"
)

const (
	// MaxLog is how many bytes of a log are kept.
	MaxLog      = 32 << 20
	maxLine     = 16 << 10 // bytes of a line before it is cut into several
	tailLines   = 40       // lines kept for an error
	maxTailLine = 1 << 10  // bytes of each of them
)

// Log takes what a program prints: it removes secrets, keeps the log within
// its limit, remembers the last lines, and shows each line to who asked.
//
// It works on whole lines, so a secret is found wherever the chunks of the pipe
// end. A line that never ends is passed on in pieces, and a piece ends where no secret
// stands; what could be the begin of one waits for the next.
type Log struct {
	secrets *record.Redactor
	maxLine int // see the constant
	onLine  func(string)

	mu      sync.Mutex
	out     io.Writer
	left    int // bytes that may still be written
	err     error
	pending []byte
	skip    bool // the rest of the line
	tail    []string
}

func NewLog(out io.Writer, secrets []string, onLine func(string)) *Log {
	return &Log{out: out, left: MaxLog, maxLine: maxLine, onLine: onLine, secrets: record.NewRedactor(secrets...)}
}

// Write never fails: a full disk must not end the engine. See Close.
func (w *Log) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for rest := p; ; {
		i := bytes.IndexByte(rest, '\n')
		text := rest
		if i >= 0 {
			text = rest[:i]
		}
		if !w.skip {
			w.pending = append(w.pending, text...)
		}
		if i < 0 {
			break
		}
		w.line(w.scrub(w.pending), "\n")
		w.pending, w.skip, rest = w.pending[:0], false, rest[i+1:]
	}
	for len(w.pending) > w.maxLine+w.secrets.Reach() {
		cut := w.secrets.Cut(string(w.pending), w.maxLine)
		if cut == 0 {
			// A secret that does not end: nobody can say where the rest of the line is fit to
			// be kept again.
			w.line(record.Redacted, "")
			w.pending, w.skip = w.pending[:0], true
			break
		}
		w.line(w.scrub(w.pending[:cut]), "")
		w.pending = append(w.pending[:0], w.pending[cut:]...)
	}
	return len(p), nil
}

// Close writes what is pending and returns the first error of writing.
func (w *Log) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.pending) > 0 {
		w.line(w.scrub(w.pending), "\n")
		w.pending = nil
	}
	return w.err
}

// Tail returns the last lines, oldest first.
func (w *Log) Tail() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.tail)
}

func (w *Log) scrub(b []byte) string { return w.secrets.Redact(string(b)) }

func (w *Log) line(s, end string) {
	if w.left > 0 && w.err == nil {
		text := s + end
		if len(text) > w.left {
			text = fmt.Sprintf("\n[the log is cut here: it is over %d MiB]\n", MaxLog>>20)
			w.left = 0
		}
		w.left -= len(text)
		_, w.err = io.WriteString(w.out, text)
	}
	s = strings.TrimRight(s, "\r")
	if strings.TrimSpace(s) == "" {
		return
	}
	short := s
	if len(short) > maxTailLine {
		short = strings.ToValidUTF8(short[:maxTailLine], "") + "…"
	}
	if len(w.tail) == tailLines {
		w.tail = append(w.tail[:0], w.tail[1:]...)
	}
	w.tail = append(w.tail, short)
	if w.onLine != nil {
		w.onLine(s)
	}
}

// Quote renders the last n lines of a log for an error.
func Quote(tail []string, n int) string {
	if len(tail) == 0 {
		return "; it printed nothing"
	}
	return "; it printed last:\n    " + strings.Join(tail[max(0, len(tail)-n):], "\n    ")
}
