package registry

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strconv"
)

// Git's framing: four hex digits of length, themselves included, and the payload.
// Lengths below four are marks without payload.
const (
	pktFlush = 0
	pktDelim = 1
	pktEnd   = 2
	pktData  = 4     // from here on it is a line
	pktMax   = 65520 // longest line
	pktNone  = -1    // nothing was read
)

// pktReader reads pkt-lines.
type pktReader struct{ r *bufio.Reader }

// next returns a payload without its line break, or a mark with a nil payload. At the
// end the error is io.EOF.
func (p pktReader) next() (payload []byte, mark int, err error) {
	var head [4]byte
	if _, err := io.ReadFull(p.r, head[:]); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) {
			err = errors.New("the answer ends within a line")
		}
		return nil, pktNone, err
	}
	n, err := strconv.ParseUint(string(head[:]), 16, 16)
	switch {
	case err != nil || head[0] == '+' || n == 3 || n > pktMax:
		return nil, pktNone, fmt.Errorf("%q is no length of a line", head)
	case n < pktData:
		return nil, int(n), nil
	}
	payload = make([]byte, n-4)
	if _, err := io.ReadFull(p.r, payload); err != nil {
		return nil, pktNone, errors.New("the answer ends within a line")
	}
	if l := len(payload); l > 0 && payload[l-1] == '\n' {
		payload = payload[:l-1]
	}
	return payload, pktData, nil
}

func pktLine(s string) string { return fmt.Sprintf("%04x%s", len(s)+4, s) }
