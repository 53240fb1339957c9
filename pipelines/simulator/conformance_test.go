package simulator

import (
	"testing"

	"speedmatrix/runner/enginetest"
)

// The simulator passes the suite that real vLLM passes.
func TestConformance(t *testing.T) {
	for _, c := range []struct {
		name string
		with func(*Profile)
	}{
		{"default", func(*Profile) {}},
		{"key", func(p *Profile) { p.APIKey = "sesame" }},
		{"speculation", func(p *Profile) { p.TokensPerChunk = 5 }},
		{"irregular speculation", func(p *Profile) { p.TokensPerChunk, p.Acceptance = 4, []int{1, 4, 2, 1, 3} }},
		{"reasoning", func(p *Profile) { p.ReasoningTokens = 10 }},
		{"no prefix cache", func(p *Profile) { p.PrefixCaching = false }},
		{"final usage", func(p *Profile) { p.Usage = UsageFinal }},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := DefaultProfile()
			// Quick, but not so quick that a stream ends before it is looked at.
			p.BaseTTFTMs = 1
			p.Prefill = []PrefillPoint{{0, 1e6}}
			p.Decode = DecodeTable{Active: []int{1}, Rows: []DecodeRow{{0, Millis(1)}}}
			c.with(&p)
			_, url := serve(t, p, Options{})
			enginetest.Test(t, enginetest.Engine{BaseURL: url, APIKey: p.APIKey, Model: "simulated", Slots: p.Slots, NoRunningUsage: p.Usage != UsageRunning})
		})
	}
}
