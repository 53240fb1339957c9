package simulator

import (
	"strconv"
	"time"
)

// The truth log says what really happened, for whoever holds a measurement against
// it. Its first line has the time at which the server started,
//
//	{"start_ns":1764540000000000000}
//
// and each further line one event of one request:
//
//	{"t_ns":…,"request":"chatcmpl-…","event":"read"}
//	{"t_ns":…,"request":"chatcmpl-…","event":"write","tokens":1,"events":1}
//	{"t_ns":…,"request":"chatcmpl-…","event":"write","tokens":4,"events":1,"last":true}
//	{"t_ns":…,"request":"chatcmpl-…","event":"gone"}
//
// read: its last byte was read; write: the moment before tokens are handed to the
// socket, with the number of output events they are in; last: the answer is complete
// with it; gone: the client closed it before that. A role chunk is no write. Times
// are Unix nanoseconds: start_ns, and from there the monotonic clock, so that no
// step of the wall clock comes between two of them.
const (
	truthRead  = "read"
	truthWrite = "write"
	truthGone  = "gone"
)

type truthLine struct {
	at             time.Duration // since the start
	request, event string
	tokens, events int
	last           bool
}

func (s *Server) truthStart() {
	if s.opts.Truth != nil {
		line := strconv.AppendInt([]byte(`{"start_ns":`), s.start.UnixNano(), 10)
		s.truthWrite(append(line, "}\n"...))
	}
}

func (s *Server) truth(l truthLine) {
	if s.opts.Truth == nil {
		return
	}
	b := make([]byte, 0, 160)
	b = append(b, `{"t_ns":`...)
	b = strconv.AppendInt(b, s.start.UnixNano()+int64(l.at), 10)
	b = append(b, `,"request":"`...)
	b = append(b, l.request...)
	b = append(b, `","event":"`...)
	b = append(b, l.event...)
	b = append(b, '"')
	if l.event == truthWrite {
		b = append(b, `,"tokens":`...)
		b = strconv.AppendInt(b, int64(l.tokens), 10)
		b = append(b, `,"events":`...)
		b = strconv.AppendInt(b, int64(l.events), 10)
		if l.last {
			b = append(b, `,"last":true`...)
		}
	}
	s.truthWrite(append(b, "}\n"...))
}

func (s *Server) truthWrite(line []byte) {
	s.truthMu.Lock()
	defer s.truthMu.Unlock()
	if _, err := s.opts.Truth.Write(line); err != nil {
		s.opts.Logf("truth log: %v", err)
	}
}
