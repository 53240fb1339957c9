//go:build linux

package host

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
)

const (
	maxLog      = 32 << 20 // bytes of a log that are kept
	maxLine     = 16 << 10 // bytes of a line before it is cut into several
	tailLines   = 40       // lines kept for an error
	maxTailLine = 1 << 10  // bytes of each of them
	redacted    = "<redacted>"
)

// logWriter takes what a program prints: it removes secrets, keeps the log within
// its limit, remembers the last lines, and shows each line to who asked.
//
// It works on whole lines, so a secret is found wherever the chunks of the pipe
// end. A line that never ends is passed on in pieces; the last bytes of a piece,
// in which a secret could have begun, wait for the next.
type logWriter struct {
	secrets []string // longest first
	hold    int      // bytes that a secret could have begun in
	maxLine int      // see the constant
	onLine  func(string)

	mu      sync.Mutex
	out     io.Writer
	left    int // bytes that may still be written
	err     error
	pending []byte
	tail    []string
}

func newLogWriter(out io.Writer, secrets []string, onLine func(string)) *logWriter {
	w := &logWriter{out: out, left: maxLog, maxLine: maxLine, onLine: onLine}
	for _, s := range secrets {
		if s != "" {
			w.secrets = append(w.secrets, s)
			w.hold = max(w.hold, len(s)-1)
		}
	}
	slices.SortFunc(w.secrets, func(a, b string) int { return len(b) - len(a) })
	return w
}

// Write never fails: a full disk must not end the engine. See Close.
func (w *logWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for rest := p; ; {
		i := bytes.IndexByte(rest, '\n')
		if i < 0 {
			w.pending = append(w.pending, rest...)
			break
		}
		w.line(w.scrub(append(w.pending, rest[:i]...)), "\n")
		w.pending, rest = w.pending[:0], rest[i+1:]
	}
	if len(w.pending) > w.maxLine+w.hold {
		clean := w.scrub(w.pending)
		cut := max(0, len(clean)-w.hold)
		w.line(clean[:cut], "")
		w.pending = []byte(clean[cut:])
	}
	return len(p), nil
}

// Close writes what is pending and returns the first error of writing.
func (w *logWriter) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.pending) > 0 {
		w.line(w.scrub(w.pending), "\n")
		w.pending = nil
	}
	return w.err
}

// Tail returns the last lines, oldest first.
func (w *logWriter) Tail() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.tail)
}

func (w *logWriter) scrub(b []byte) string {
	s := string(b)
	for _, secret := range w.secrets {
		s = strings.ReplaceAll(s, secret, redacted)
	}
	return s
}

func (w *logWriter) line(s, end string) {
	if w.left > 0 && w.err == nil {
		text := s + end
		if len(text) > w.left {
			text = fmt.Sprintf("\n[the log is cut here: it is over %d MiB]\n", maxLog>>20)
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
