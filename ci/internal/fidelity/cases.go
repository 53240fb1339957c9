package main

import (
	"cmp"
	"fmt"
	"strings"

	"speedmatrix/results/record"
)

// A load is one case: what the engine does, and what is asked of it.
type load struct {
	name    string // of the behaviour; the table's first column
	streams int

	// Of the engine.
	chunk      int    // tokens of a decode step
	acceptance string // of successive steps, as in a profile
	usage      string
	reasoning  int // tokens
	tools      bool
	faults     string
	slots      int // requests that run at once; 0: enough

	// Of the requests.
	context  string // empty: a short fixed request
	output   int    // tokens asked; the requests end inside the window where it is small
	distinct bool

	// want, if not empty, is the status that the cell must have instead of valid.
	want record.Status
}

const (
	perSecond  = 50 // tokens of each stream
	ttftMs     = 50
	windowMs   = 3000
	settleMs   = 300
	endless    = 4096 // tokens: more than a trial takes
	endsInside = 100  // tokens: each stream has two or three requests in a window
)

// loads are all cases, in the order of the table.
func loads() []load {
	var all []load
	counts := []int{1, 16, 64, 128, 256, 512, 1000}
	for _, n := range counts {
		all = append(all, load{name: "1 token a chunk", streams: n})
	}
	for _, n := range counts {
		all = append(all, load{name: "4 tokens a chunk", streams: n, chunk: 4})
	}
	for _, n := range []int{1, 64, 256} {
		all = append(all, load{name: "1 to 6 tokens a chunk", streams: n, chunk: 6, acceptance: "[1, 6, 2, 1, 4, 3, 1, 5]"})
	}
	ends := "requests end and are replaced, "
	for _, n := range []int{1, 64, 256} {
		all = append(all, load{name: ends + "usage running", streams: n, output: endsInside})
	}
	for _, n := range []int{1, 64, 256} {
		all = append(all, load{name: ends + "usage at the end", streams: n, output: endsInside, usage: "final"})
	}
	return append(all,
		load{name: ends + "usage at the end, 4 tokens a chunk", streams: 64, output: endsInside, usage: "final", chunk: 4},
		load{name: ends + "no usage", streams: 64, output: endsInside, usage: "absent"},
		load{name: "usage at the end, which nobody sees", streams: 64, usage: "final"},
		load{name: "no usage", streams: 64, usage: "absent"},
		load{name: "no usage, 1 to 6 tokens a chunk", streams: 64, usage: "absent", chunk: 6, acceptance: "[1, 6, 2, 1, 4, 3, 1, 5]"},
		load{name: "reasoning first", streams: 64, reasoning: 40, output: endsInside},
		load{name: "role chunk early", streams: 64, faults: "role-early"},
		load{name: "role chunk early, reasoning first", streams: 64, faults: "role-early", reasoning: 40, output: endsInside},
		load{name: "tool calls", streams: 64, tools: true, output: endsInside},
		load{name: "tool calls, reasoning first, usage at the end", streams: 64, tools: true, reasoning: 20, output: endsInside, usage: "final"},
		load{name: "CRLF", streams: 64, faults: "crlf"},
		load{name: "CRLF, requests end, usage at the end", streams: 64, faults: "crlf", usage: "final", output: endsInside},
		load{name: "prompts of 250K tokens, shared", streams: 8, context: "250K"},
		load{name: "prompts of 250K tokens, one each", streams: 8, context: "250K", distinct: true},
		load{name: "48 slots", streams: 64, slots: 48, want: record.Queued},
		load{name: "48 slots, requests end", streams: 64, slots: 48, output: endsInside, want: record.Queued},
		load{name: "a proxy holds back 16 KiB", streams: 16, faults: "clump-bytes=16384", want: record.ClientLimited},
	)
}

func (l load) String() string { return fmt.Sprintf("%s × %d", l.name, l.streams) }

// profile is the engine's speed: a step gives each stream its tokens at the same
// rate whatever the number of tokens, and prompts cost next to nothing.
func (l load) profile() string {
	var b strings.Builder
	fmt.Fprintf(&b, "models: [simulated]\nmax_model_len: 300000\nslots: %d\nkv_tokens: 16777216\nprefix_caching: true\n", cmp.Or(l.slots, 1024))
	fmt.Fprintf(&b, "base_ttft_ms: %d\nprefill: [{context: 0, tokens_per_second: 1000000000}]\n", ttftMs)
	fmt.Fprintf(&b, "decode: {active: [1], rows: [{context: 0, ms: [%g]}]}\n", 1000.0/perSecond)
	fmt.Fprintf(&b, "tokens_per_chunk: %d\nreasoning_first_tokens: %d\ntool_calls: %v\n", max(1, l.chunk), l.reasoning, l.tools)
	if l.acceptance != "" {
		fmt.Fprintf(&b, "acceptance: %s\n", l.acceptance)
	}
	if l.usage != "" {
		fmt.Fprintf(&b, "usage: %s\n", l.usage)
	}
	return b.String()
}

func (l load) experiment() string {
	context, prompts, output := "0", "shared", endless
	if l.context != "" {
		context = l.context
	}
	if l.distinct {
		prompts = "distinct"
	}
	if l.output > 0 {
		output = l.output
	}
	return fmt.Sprintf(`name: fidelity
engine: {source: {attach: "http://127.0.0.1:1"}}
matrix: {contexts: [%s], concurrency: [%d], duration: %dms, settle: %dms, max_output: %d}
prompts: %s
`, context, l.streams, windowMs, settleMs, output, prompts)
}
