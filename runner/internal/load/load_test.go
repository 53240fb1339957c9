package load

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func clock() func() int64 {
	start := time.Now()
	return func() int64 { return int64(time.Since(start)) }
}

// All streams are due at one instant, successors at the end of their
// predecessors, and every arrival has one record.
func TestWave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const streams = 256
		now := clock()
		var mu sync.Mutex
		got := map[Arrival]int64{} // to when it was sent
		w := Start(t.Context(), streams, now, func(ctx context.Context, a Arrival) bool {
			mu.Lock()
			got[a] = now()
			mu.Unlock()
			select {
			case <-time.After(time.Second):
				return true
			case <-ctx.Done():
				return true
			}
		})
		<-time.After(time.Minute) // in the bubble: nothing is sent before the release
		if len(got) != 0 {
			t.Fatalf("%d requests before the release", len(got))
		}
		due := w.Release()
		<-time.After(3500 * time.Millisecond)
		stop := errors.New("end of window")
		w.Stop(stop)
		if len(got) != 4*streams {
			t.Fatalf("%d arrivals, want %d", len(got), 4*streams)
		}
		for a, at := range got {
			if want := due + int64(a.Generation)*int64(time.Second); a.DueNs != want || at != want {
				t.Errorf("%+v sent at %d, want %d", a, at, want)
			}
		}
	})
}

func TestStreamsEndByThemselves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var calls atomic.Int32
		w := Start(t.Context(), 3, clock(), func(context.Context, Arrival) bool { return calls.Add(1) > 100 })
		w.Release()
		<-w.Done()
		w.Stop(nil)
		if calls.Load() != 3 {
			t.Errorf("%d calls", calls.Load())
		}
	})
}

// A wave that is never released ends too, and the cause reaches the requests.
func TestStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := Start(t.Context(), 3, clock(), func(context.Context, Arrival) bool { t.Error("sent"); return false })
		w.Stop(errors.New("never"))

		cause := errors.New("cause")
		got := make(chan error, 1)
		w = Start(t.Context(), 1, clock(), func(ctx context.Context, _ Arrival) bool {
			<-ctx.Done()
			got <- context.Cause(ctx)
			return true
		})
		w.Release()
		w.Stop(cause)
		if err := <-got; err != cause {
			t.Errorf("cause is %v", err)
		}
	})
}
