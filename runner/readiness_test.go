package runner

import (
	"testing"
	"time"
)

func TestReadiness(t *testing.T) {
	const s = int64(time.Second)
	// A story says what is to be seen at each moment.
	type story struct {
		first   func(at int64) int
		outputs func(at int64) int64
		reading func(at int64) int64 // nil: every half second
		waiting func(at int64) float64
	}
	flow := func(at int64) int64 { return at / int64(time.Millisecond) }
	const never = int64(1000)
	half := func(at int64) int64 { return at - at%(s/2) }
	for _, c := range []struct {
		name  string
		hold  time.Duration
		story story
		want  verdict
		// in seconds from the launch, give or take a reading
		at int64
	}{
		{"all run at once", 3 * time.Second, story{
			first: func(int64) int { return 8 }, outputs: flow, waiting: func(int64) float64 { return 0 }}, ready, 3},
		{"one is late", 3 * time.Second, story{
			first: func(at int64) int {
				if at < 10*s {
					return 7
				}
				return 8
			}, outputs: flow, waiting: func(int64) float64 { return 0 }}, ready, 13},
		{"a queue that goes away", 3 * time.Second, story{
			first: func(int64) int { return 8 }, outputs: flow,
			waiting: func(at int64) float64 {
				if at < 2*s {
					return 3
				}
				return 0
			}}, ready, 5},
		{"a queue comes back within the hold", 3 * time.Second, story{
			first: func(int64) int { return 8 }, outputs: flow,
			waiting: func(at int64) float64 {
				if at > 2*s && at < 3*s {
					return 1
				}
				return 0
			}}, ready, 6},
		{"no metrics", 3 * time.Second, story{
			first: func(int64) int { return 8 }, outputs: flow, reading: func(int64) int64 { return 0 }}, ready, 3},
		{"no metrics, half of the streams", 3 * time.Second, story{
			first: func(int64) int { return 4 }, outputs: flow, reading: func(int64) int64 { return 0 }}, wait, never},
		{"no reading since all ran", 3 * time.Second, story{
			first: func(int64) int { return 8 }, outputs: flow, reading: func(int64) int64 { return s },
			waiting: func(int64) float64 { return 0 }}, wait, never},
		{"four slots for eight", 3 * time.Second, story{
			first: func(int64) int { return 4 }, outputs: flow, waiting: func(int64) float64 { return 4 }}, saturated, 3},
		// Each prompt takes two seconds: the queue moves, the server is not full.
		{"prompts one after another", 3 * time.Second, story{
			first: func(at int64) int { return min(8, int(at/(2*s))) }, outputs: flow,
			waiting: func(at int64) float64 { return float64(8 - min(8, at/(2*s))) }}, ready, 19},
		{"a slow prompt is no full server", 15 * time.Second, story{
			first: func(at int64) int { return min(8, int(at/(4*s))) }, outputs: flow,
			waiting: func(at int64) float64 { return float64(8 - min(8, at/(4*s))) }}, ready, 35},
		{"all had their turn and still wait", 3 * time.Second, story{
			first: func(at int64) int { return min(8, 4+4*int(at/(2*s))) }, outputs: flow,
			waiting: func(int64) float64 { return 4 }}, saturated, 5},
		{"a queue and no output", 3 * time.Second, story{
			first: func(int64) int { return 4 }, outputs: func(int64) int64 { return 9 },
			waiting: func(int64) float64 { return 4 }}, wait, never},
		{"all run and no output", 3 * time.Second, story{
			first: func(int64) int { return 8 }, outputs: func(int64) int64 { return 9 },
			waiting: func(int64) float64 { return 0 }}, wait, never},
		{"the queue comes and goes", 3 * time.Second, story{
			first: func(int64) int { return 8 }, outputs: flow,
			waiting: func(at int64) float64 { return float64(at / s % 2) }}, wait, never},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := readiness{streams: 8, settle: 3 * time.Second, hold: c.hold}
			if c.story.reading == nil {
				c.story.reading = half
			}
			var got verdict
			var at int64
			for at = s / 10; at < 60*s && got == wait; at += s / 20 {
				l := look{atNs: at, first: c.story.first(at), outputs: c.story.outputs(at), reading: c.story.reading(at)}
				if c.story.waiting != nil {
					l.waiting = c.story.waiting(l.reading)
				}
				got = r.see(l)
			}
			if got != c.want {
				t.Fatalf("verdict %d at %v, want %d", got, time.Duration(at), c.want)
			}
			if d := at - c.at*s; got != wait && (d < 0 || d > s) {
				t.Errorf("at %v, want about %d s", time.Duration(at), c.at)
			}
		})
	}
}
