// Package load decides when requests are sent: C streams at once, each followed
// by its successor, until it is told to stop.
//
// It does not know what a request is: it calls a function with an [Arrival] and
// waits for it to return.
//
// The flow:
//
//  1. [Start] starts one goroutine for each stream and returns when all of them
//     wait at the gate, so that starting them is no part of what is measured;
//  2. [Wave.Release] stamps one instant, which is the due time of every first
//     request, and opens the gate;
//  3. when a request ends and its stream goes on, the successor is due at that
//     same moment;
//  4. [Wave.Stop] cancels what runs and returns when every stream has ended.
//
// Every arrival is one call of the function, so arrivals and records can be
// counted against each other.
package load

import (
	"context"
	"sync"
)

// Arrival is one request that is due.
type Arrival struct {
	Stream     int // 0-based
	Generation int // 0: of the wave; n: n-th successor
	DueNs      int64
}

// Wave is a closed loop of streams.
type Wave struct {
	clock  func() int64
	due    int64 // written before gate is closed
	gate   chan struct{}
	cancel context.CancelCauseFunc
	ended  sync.WaitGroup
	done   chan struct{}
}

// Start makes streams goroutines ready. Send is called on them, once for each
// arrival, and returns when that request has ended; it reports whether the
// stream goes on with a successor. The context given to send is cancelled by
// Stop, with Stop's cause, or with its parent.
func Start(ctx context.Context, streams int, clock func() int64, send func(context.Context, Arrival) bool) *Wave {
	ctx, cancel := context.WithCancelCause(ctx)
	w := &Wave{clock: clock, gate: make(chan struct{}), cancel: cancel, done: make(chan struct{})}
	var ready sync.WaitGroup
	ready.Add(streams)
	for i := range streams {
		w.ended.Go(func() {
			ready.Done()
			select {
			case <-w.gate:
			case <-ctx.Done():
				return
			}
			a := Arrival{Stream: i, DueNs: w.due}
			for send(ctx, a) && ctx.Err() == nil {
				a.Generation++
				a.DueNs = clock()
			}
		})
	}
	go func() {
		w.ended.Wait()
		close(w.done)
	}()
	ready.Wait()
	return w
}

// Release lets all streams go and returns the instant at which they were due. It
// is called once.
func (w *Wave) Release() int64 {
	w.due = w.clock()
	close(w.gate)
	return w.due
}

// Done is closed when no stream goes on.
func (w *Wave) Done() <-chan struct{} { return w.done }

// Stop cancels all streams for the given reason and waits until they ended.
func (w *Wave) Stop(cause error) {
	w.cancel(cause)
	<-w.done
}
