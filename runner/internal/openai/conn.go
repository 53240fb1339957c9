package openai

import (
	"context"
	"net"
	"sync/atomic"
)

// stampConn stamps each read straight after the socket gave the bytes. Reads of a
// reply's head, and of what came with it, are made by a goroutine of the HTTP
// transport; a stamp taken where the body is read would have that hand-over in it.
//
// It stamps each write before the socket takes the bytes. A stamp taken after it,
// as httptrace's WroteRequest would be, can be later than that of the reply.
type stampConn struct {
	net.Conn
	clock atomic.Pointer[func() int64] // of the call that uses the connection
	at    atomic.Int64                 // stamp of the last read that gave bytes
	reads atomic.Int64                 // how many there were
	sent  atomic.Int64                 // stamp of the call's last write; none: -1
}

// use makes the connection the call's.
func (c *stampConn) use(clock *func() int64) {
	c.sent.Store(-1)
	c.clock.Store(clock)
}

func (c *stampConn) Write(p []byte) (int, error) {
	if clock := c.clock.Load(); clock != nil {
		c.sent.Store((*clock)())
	}
	return c.Conn.Write(p)
}

func (c *stampConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 {
		if clock := c.clock.Load(); clock != nil {
			c.at.Store((*clock)())
		}
		c.reads.Add(1)
	}
	return n, err
}

func stampDial(dial func(ctx context.Context, network, addr string) (net.Conn, error)) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &stampConn{Conn: c}, nil
	}
}

// stamped returns the stamping connection under c, or nil where a transport that
// is not ours made it.
func stamped(c net.Conn) *stampConn {
	if tls, ok := c.(interface{ NetConn() net.Conn }); ok {
		c = tls.NetConn()
	}
	s, _ := c.(*stampConn)
	return s
}
