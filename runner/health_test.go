package runner

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"speedmatrix/results/record"
)

// TestStandstillAtTheEnd: a machine that stands still over the end of the window wakes
// up with the end and the overdue ticks at once; whichever is looked at first, the
// lateness is noted.
func TestStandstillAtTheEnd(t *testing.T) {
	for range 20 {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			h := &health{cancel: cancel, begun: time.Now().Add(-time.Second)} // nothing was noted for a second
			cancel(errors.New("the window ends"))
			h.done.Go(func() { h.tick(ctx) })
			var got record.ClientHealth
			h.stop(&got)
			if got.LagP99Ns == nil || *got.LagP99Ns < int64(900*time.Millisecond) {
				t.Fatalf("lag %v", got.LagP99Ns)
			}
		})
	}
}
