package main

import (
	"math"
	"strings"
	"testing"
	"time"

	"speedmatrix/results/record"
)

const ms1 = int64(time.Millisecond)

// A scout, a stream that ends inside the window [1000 ms, 2000 ms), and one that
// begins before it and is cut after it.
const small = `{"start_ns":1}
{"t_ns":100000000,"request":"scout","event":"read"}
{"t_ns":110000000,"request":"scout","event":"write","tokens":1,"events":1,"last":true}
{"t_ns":900000000,"request":"a","event":"read"}
{"t_ns":901000000,"request":"b","event":"read"}
{"t_ns":950000000,"request":"a","event":"write","tokens":1,"events":1}
{"t_ns":961000000,"request":"b","event":"write","tokens":1,"events":1}
{"t_ns":1100000000,"request":"a","event":"write","tokens":4,"events":1}
{"t_ns":1200000000,"request":"b","event":"write","tokens":2,"events":1}
{"t_ns":1300000000,"request":"a","event":"write","tokens":8,"events":2,"last":true}
{"t_ns":1999000000,"request":"b","event":"write","tokens":2,"events":1}
{"t_ns":1990000000,"request":"c","event":"read"}
{"t_ns":2100000000,"request":"b","event":"write","tokens":2,"events":1}
{"t_ns":2200000000,"request":"b","event":"gone"}
{"t_ns":2200000000,"request":"c","event":"gone"}
`

func TestLook(t *testing.T) {
	all, err := readLog(strings.NewReader(small))
	if err != nil {
		t.Fatal(err)
	}
	got, err := look(all, 800*ms1, 1000*ms1, 2000*ms1)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name      string
		got, want float64
	}{
		{"requests", float64(got.requests), 3},
		{"tokens", got.tokens, 16}, // 4 + 2 + 8 + 2
		{"least", got.least, 14},   // the one at 1,999 ms may be read too late
		{"most", got.most, 16},
		{"rate", got.rate, 16},
		{"ttft", got.ttft, 0.055},                // of 50 and 60 ms
		{"tpot", got.tpot, (0.025 + 0.3995) / 2}, // 200 ms ÷ 8 and 799 ms ÷ 2
		{"active", got.active, 0.3 + 1},
		{"completed", got.completed, 1},
		{"mute", got.leastMute, 1},
		{"events", float64(got.events), 5},
		{"sent", float64(len(got.sent)), 8},
	} {
		if math.Abs(c.got-c.want) > 1e-9 {
			t.Errorf("%s: %v, want %v", c.name, c.got, c.want)
		}
	}
	if !math.IsNaN(got.gap) {
		t.Errorf("a 99th percentile of %d gaps: %v", got.events, got.gap)
	}
	if _, err := look(all, 0, 5, 5); err == nil {
		t.Error("figures without a window")
	}
}

func TestBadLogs(t *testing.T) {
	for _, log := range []string{
		"no JSON\n",
		`{"t_ns":1,"request":"x","event":"write","tokens":1}` + "\n",
		`{"t_ns":1,"request":"x","event":"read"}` + "\n" + `{"t_ns":1,"request":"x","event":"sold"}` + "\n",
	} {
		if _, err := readLog(strings.NewReader(log)); err == nil {
			t.Errorf("no error for %q", log)
		}
	}
}

func TestBetween(t *testing.T) {
	w := between([]int64{0, 10 * ms1, 20 * ms1, 30 * ms1}, []int64{1 * ms1, 12 * ms1, 23 * ms1})
	if w.least != 0.001 || w.median != 0.002 {
		t.Errorf("%+v", w)
	}
}

func TestJudge(t *testing.T) {
	good := func() outcome {
		f := figures{tokens: 1000, rate: 1000, ttft: 0.05, tpot: 0.02, active: 20, completed: 3}
		o := outcome{status: record.Valid, ours: f, sent: 0.051}
		o.truth = truth{figures: f, least: 980, most: 1000, leastEnded: 3, mostEnded: 3}
		return o
	}
	for _, c := range []struct {
		name  string
		with  func(*outcome)
		wrong bool
	}{
		{"the same", func(*outcome) {}, false},
		{"at the edge", func(o *outcome) { o.ours.tokens = 971 }, false},
		{"too few tokens", func(o *outcome) { o.ours.tokens = 969 }, true},
		{"too many tokens", func(o *outcome) { o.ours.tokens = 1011 }, true},
		{"no tokens known", func(o *outcome) { o.ours.tokens = math.NaN() }, true},
		{"TTFT of the way there", func(o *outcome) { o.ours.ttft = 0.0534 }, false},
		{"late TTFT", func(o *outcome) { o.ours.ttft = 0.0537 }, true},
		{"TTFT of a role chunk", func(o *outcome) { o.ours.ttft = 0.002 }, true},
		{"slow tokens", func(o *outcome) { o.ours.tpot = 0.0205 }, true},
		{"idle streams", func(o *outcome) { o.ours.active = 19 }, true},
		{"one not completed", func(o *outcome) { o.ours.completed = 2 }, true},
		{"one dropped from view", func(o *outcome) { o.truth.leastMute = 1 }, true},
		{"clocks apart", func(o *outcome) { o.back.least = -0.001 }, true},
		{"client limited and off", func(o *outcome) { o.status, o.ours.tokens = record.ClientLimited, 500 }, false},
		{"queued", func(o *outcome) { o.status = record.Queued }, true},
		{"valid behind a proxy", func(o *outcome) { o.want = record.ClientLimited }, true},
		{"limited behind a proxy", func(o *outcome) { o.want, o.status = record.ClientLimited, record.ClientLimited }, false},
	} {
		o := good()
		c.with(&o)
		if o.judge(); (len(o.wrong) > 0) != c.wrong {
			t.Errorf("%s: %q", c.name, o.wrong)
		}
	}
}
