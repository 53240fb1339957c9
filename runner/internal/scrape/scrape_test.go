package scrape

import (
	"context"
	"errors"
	"math"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func clock() func() int64 {
	start := time.Now()
	return func() int64 { return int64(time.Since(start)) }
}

func TestScraper(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0.0
		s := Start(t.Context(), time.Second, time.Second, clock(), func(context.Context) ([]Value, error) {
			n++
			return []Value{{"a", n}, {"nan", math.NaN()}, {"inf", math.Inf(1)}}, nil
		})
		<-time.After(3500 * time.Millisecond)
		r, ok := s.Last()
		if v, told := r.Get("a"); !ok || !told || v != 4 || r.AtNs != int64(3*time.Second) {
			t.Errorf("last is %+v, %v", r, ok)
		}
		if _, told := r.Get("nan"); told {
			t.Error("a value that is no number was kept")
		}
		if got := s.Stop(); len(got) != 4 || got[0].Name != "a" || got[0].Source != "metrics" {
			t.Errorf("samples: %+v", got)
		}
		s.Stop()
	})
}

// A reading that hangs is given up at its deadline, and Stop does not wait for it.
func TestSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var begun atomic.Int32
		s := Start(t.Context(), time.Second, 5*time.Second, clock(), func(ctx context.Context) ([]Value, error) {
			begun.Add(1)
			<-ctx.Done()
			return nil, context.Cause(ctx)
		})
		<-time.After(12 * time.Second)
		if n := begun.Load(); n != 3 {
			t.Errorf("%d readings begun", n)
		}
		at := time.Now()
		if got := s.Stop(); len(got) != 0 || time.Since(at) != 0 {
			t.Errorf("stop took %v and gave %v", time.Since(at), got)
		}
	})
}

// After failures in a row what was read last is no longer news; one success mends it.
func TestLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		s := Start(t.Context(), time.Second, time.Second, clock(), func(context.Context) ([]Value, error) {
			if n++; n > 1 && n < 6 {
				return nil, errors.New("502")
			}
			return []Value{{"a", 1}}, nil
		})
		defer s.Stop()
		for i, want := range []bool{true, true, true, false, false, true} {
			<-time.After(100 * time.Millisecond)
			if _, ok := s.Last(); ok != want {
				t.Errorf("after reading %d: %v", i+1, ok)
			}
			<-time.After(900 * time.Millisecond)
		}
	})
}
