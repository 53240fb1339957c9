package runner

import (
	"context"
	"math"
	"runtime"
	"runtime/metrics"
	"slices"
	"sync"
	"time"

	"speedmatrix/results/record"
)

// tickEvery is the period of the ticker whose lateness is the client's lag: short
// against any time between tokens that is worth measuring, and 200 wake-ups a
// second cost nothing.
const tickEvery = 5 * time.Millisecond

// cpuAtLeast: kernels account CPU time in steps of up to 10 ms, so over less than
// this its share is not known.
const cpuAtLeast = 250 * time.Millisecond

// health watches this process while it measures: a client that is late writes its
// own lateness into every latency.
type health struct {
	cancel context.CancelCauseFunc
	done   sync.WaitGroup
	late   []int64 // of each tick, ns

	begun   time.Time
	cpu     time.Duration
	cpuOK   bool
	latency []uint64 // counts of the scheduler's histogram at the begin
}

func watchHealth(ctx context.Context, expected time.Duration) *health {
	ctx, cancel := context.WithCancelCause(ctx)
	h := &health{cancel: cancel, begun: time.Now()}
	h.late = make([]int64, 0, min(int64(expected), int64(time.Hour))>>22+16) // 2^22 ns: a little below tickEvery
	h.cpu, h.cpuOK = cpuTime()
	if counts := schedLatencies(); counts != nil {
		h.latency = slices.Clone(counts.Counts)
	}
	h.done.Go(func() { h.tick(ctx) })
	return h
}

// tick sleeps until the next multiple of tickEvery and notes how late it woke up.
// Ticks that lie in the past by then are noted as well, each with its own
// lateness: a second of standstill is 200 late ticks, not one.
func (h *health) tick(ctx context.Context) {
	timer := time.NewTimer(tickEvery)
	defer timer.Stop()
	due := tickEvery
	for stopped := false; !stopped; {
		select {
		case <-ctx.Done():
			// After a standstill over the end of the window both are ready: what is overdue
			// is noted all the same.
			stopped = true
		case <-timer.C:
		}
		now := time.Since(h.begun)
		for due <= now {
			h.late = append(h.late, int64(now-due))
			due += tickEvery
		}
		timer.Reset(due - now)
	}
}

// stop ends the watch and writes down what was seen. The CPU ratio is the one
// quotient that is stored, since neither of its parts means anything without the
// other.
func (h *health) stop(into *record.ClientHealth) {
	h.cancel(nil)
	h.done.Wait()
	wall := time.Since(h.begun)
	if len(h.late) > 0 {
		slices.Sort(h.late)
		into.LagP99Ns = ptr(h.late[rank99(len(h.late))])
		into.LagMaxNs = ptr(h.late[len(h.late)-1])
	}
	if cpu, ok := cpuTime(); ok && h.cpuOK && wall >= cpuAtLeast {
		into.CPURatio = ptr((cpu - h.cpu).Seconds() / wall.Seconds() / float64(runtime.GOMAXPROCS(0)))
	}
	if now := schedLatencies(); now != nil && len(now.Counts) == len(h.latency) {
		into.SchedP99Ns = schedP99(now, h.latency)
	}
}

// rank99 is the index of the smallest of n sorted values that 99 % do not exceed.
func rank99(n int) int {
	i := 0
	for (i+1)*100 < n*99 {
		i++
	}
	return i
}

// schedLatencies is the time goroutines waited to run, since the program started.
func schedLatencies() *metrics.Float64Histogram {
	s := []metrics.Sample{{Name: "/sched/latencies:seconds"}}
	metrics.Read(s)
	if s[0].Value.Kind() != metrics.KindFloat64Histogram {
		return nil
	}
	return s[0].Value.Float64Histogram()
}

// schedP99 is the upper edge of the bucket in which the 99th percentile of what was
// added since lies; nil if nothing was, or if that bucket has no edge.
func schedP99(h *metrics.Float64Histogram, before []uint64) *int64 {
	var total uint64
	for i, c := range h.Counts {
		total += c - before[i]
	}
	if total == 0 {
		return nil
	}
	var sum uint64
	for i, c := range h.Counts {
		sum += c - before[i]
		if sum*100 >= total*99 {
			edge := h.Buckets[i+1]
			if math.IsInf(edge, 0) {
				edge = h.Buckets[i]
			}
			if math.IsInf(edge, 0) {
				return nil
			}
			return ptr(int64(edge * float64(time.Second)))
		}
	}
	return nil
}

func ptr[T any](v T) *T { return &v }
