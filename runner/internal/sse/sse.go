// Package sse decodes a text/event-stream that arrives in pieces of any size.
//
// It knows lines, fields and events, and nothing of what the data means, of HTTP
// or of time. A [Decoder] owns its buffer, so that an event that lies in it whole
// is handed out without a copy:
//
//  1. the caller reads from the socket into [Decoder.Buffer],
//  2. says with [Decoder.Commit] how much that was,
//  3. takes events with [Decoder.Next] until there are no more.
//
// LF, CRLF and CR end a line, and nothing else does (U+2028 and its like are
// text). An event ends at a blank line; its data lines are joined with a newline;
// one blank after the colon is dropped. Comments, the other fields, and events
// whose data is empty are no events. What stands after the last blank line of a
// stream that ended is no event either.
package sse

import (
	"bytes"
	"fmt"
)

// MaxEvent is the largest event in bytes, as it stands on the wire. A larger one
// is an error of that stream: somebody sends something that is no event stream.
// It is the only limit; lines have none of their own.
const MaxEvent = 16 << 20

const (
	firstSize = 16 << 10 // of the buffer; events of one token are about 300 bytes
	minRead   = 4 << 10  // least free space that Buffer gives
)

// ErrTooLarge is returned for an event larger than [MaxEvent].
var ErrTooLarge = fmt.Errorf("event is larger than %d MiB", MaxEvent>>20)

// Decoder decodes one stream. The zero value is ready. It is for one goroutine.
type Decoder struct {
	buf []byte // buf[start:end] is kept: the pending event and what follows it
	end int

	start int // of the pending event, or of the next line if none is pending
	next  int // of the next line; start ≤ next ≤ scan ≤ end
	scan  int // no line end in buf[next:scan]

	begun  bool // the place for a byte order mark is behind us
	skipLF bool // the last line ended with CR; an LF that follows belongs to it

	// Data of the pending event: none, one line inside buf, or joined.
	lines          int
	dataLo, dataHi int    // of the only line
	joined         []byte // of more than one

	err error
}

// Buffer returns free space to read into, at least 4 KiB. It may move what is
// kept, so data handed out earlier is no longer valid.
func (d *Decoder) Buffer() []byte {
	if d.start > 0 {
		// What is kept is nearly always nothing, or the beginning of one event.
		copy(d.buf, d.buf[d.start:d.end])
		d.end -= d.start
		d.next -= d.start
		d.scan -= d.start
		d.dataLo -= d.start
		d.dataHi -= d.start
		d.start = 0
	}
	if len(d.buf)-d.end < minRead {
		grown := make([]byte, max(firstSize, 2*len(d.buf)))
		copy(grown, d.buf[:d.end])
		d.buf = grown
	}
	return d.buf[d.end:]
}

// Commit says that n bytes were read into the space that [Decoder.Buffer] gave.
func (d *Decoder) Commit(n int) { d.end += n }

// Next returns the data of the next event, or nil if more bytes are needed. The
// data is never empty and is valid until the next call of Next or Buffer. After an
// error the decoder gives nothing more.
func (d *Decoder) Next() ([]byte, error) {
	if d.err != nil {
		return nil, d.err
	}
	if !d.begun && !d.skipMark() {
		return nil, nil
	}
	for {
		lo, hi, ok := d.line()
		if !ok {
			if d.end-d.start > MaxEvent {
				d.err = ErrTooLarge
			}
			return nil, d.err
		}
		if lo == hi {
			data := d.take()
			if len(data) > 0 {
				return data, nil
			}
			continue
		}
		d.field(lo, hi)
		if d.lines == 0 {
			d.start = d.next // nothing pending: comments pile up nowhere
		} else if d.next-d.start > MaxEvent {
			d.err = ErrTooLarge
			return nil, d.err
		}
	}
}

// skipMark drops a byte order mark at the very beginning; false: too few bytes to
// tell.
func (d *Decoder) skipMark() bool {
	const mark = "\xef\xbb\xbf"
	head := d.buf[:min(d.end, len(mark))]
	if string(head) == mark {
		d.start, d.next, d.scan = len(mark), len(mark), len(mark)
	} else if string(head) == mark[:len(head)] {
		return false
	}
	d.begun = true
	return true
}

// line returns the place of the next whole line, without its end, and steps over
// it.
func (d *Decoder) line() (lo, hi int, ok bool) {
	if d.skipLF && d.next < d.end {
		d.skipLF = false
		if d.buf[d.next] == '\n' {
			d.next++
			d.scan = max(d.scan, d.next)
			if d.lines == 0 {
				d.start = d.next
			}
		}
	}
	rest := d.buf[d.scan:d.end]
	at := bytes.IndexByte(rest, '\n') // vectorised, as is the next
	if at >= 0 {
		rest = rest[:at]
	}
	if cr := bytes.IndexByte(rest, '\r'); cr >= 0 {
		// Ends the line here and now: waiting for the LF that may follow would hold
		// an event back until the next one comes.
		at = cr
		d.skipLF = true
	}
	if at < 0 {
		d.scan = d.end
		return 0, 0, false
	}
	lo, hi = d.next, d.scan+at
	d.next, d.scan = hi+1, hi+1
	return lo, hi, true
}

// field takes one line that is not blank.
func (d *Decoder) field(lo, hi int) {
	line := d.buf[lo:hi]
	const name = "data"
	if len(line) < len(name) || string(line[:len(name)]) != name {
		return // a comment or another field
	}
	switch {
	case len(line) == len(name): // a name alone has an empty value
		lo = hi
	case line[len(name)] != ':':
		return // "database: …"
	case len(line) > len(name)+1 && line[len(name)+1] == ' ':
		lo += len(name) + 2
	default:
		lo += len(name) + 1
	}
	switch d.lines {
	case 0:
		d.dataLo, d.dataHi = lo, hi
	case 1:
		d.joined = append(d.joined[:0], d.buf[d.dataLo:d.dataHi]...)
		fallthrough
	default:
		d.joined = append(d.joined, '\n')
		d.joined = append(d.joined, d.buf[lo:hi]...)
	}
	d.lines++
}

// take ends the pending event and returns its data.
func (d *Decoder) take() []byte {
	var data []byte
	switch d.lines {
	case 0:
	case 1:
		data = d.buf[d.dataLo:d.dataHi]
	default:
		data = d.joined
	}
	d.lines = 0
	d.start = d.next
	return data
}
