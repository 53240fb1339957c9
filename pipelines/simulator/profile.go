package simulator

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// Usage modes of a profile: what the server tells about tokens in a stream.
const (
	UsageRunning = "running" // in every chunk, if the request asks for it
	UsageFinal   = "final"   // once, at the end
	UsageAbsent  = "absent"  // never
)

// Profile says how the simulated engine behaves. The zero value is not valid; see
// [ParseProfile] and [DefaultProfile].
type Profile struct {
	// Models are the names that requests may use; the first is the main one.
	Models []string `yaml:"models"`
	// APIKey, if not empty, must come as bearer token on /v1/*.
	APIKey string `yaml:"api_key,omitempty"`

	MaxModelLen   int  `yaml:"max_model_len"` // tokens of prompt and output of one request
	Slots         int  `yaml:"slots"`         // most requests that run at once (max_num_seqs)
	KVTokens      int  `yaml:"kv_tokens"`     // size of the KV cache
	BlockTokens   int  `yaml:"block_tokens"`  // tokens of one KV block; 16 if absent
	PrefixCaching bool `yaml:"prefix_caching"`

	// TokensPerChunk is how many tokens one decode step gives each request: more
	// than one with speculative decoding. 1 if absent.
	TokensPerChunk int `yaml:"tokens_per_chunk"`
	// Acceptance, if not empty, is how many tokens successive steps give a request, over
	// and over, each request beginning one further: speculation whose drafts are not
	// always taken. A step then takes as long as its mean.
	Acceptance []int `yaml:"acceptance,omitempty"`
	// ReasoningTokens of each chat answer come as reasoning before the content.
	ReasoningTokens int `yaml:"reasoning_first_tokens"`
	// ToolCalls: chat answers are the arguments of a tool call, after the reasoning.
	ToolCalls bool `yaml:"tool_calls,omitempty"`
	// EOSAfterTokens ends answers that do not ignore the end of sequence; 0: never.
	EOSAfterTokens int `yaml:"eos_after_tokens"`
	// Loop makes the text repeat two words for ever.
	Loop bool `yaml:"loop,omitempty"`
	// Usage is running (default), final or absent.
	Usage string `yaml:"usage"`

	// BaseTTFTMs passes between a request's prefill and its first token, without
	// keeping the next one from its prefill.
	BaseTTFTMs float64 `yaml:"base_ttft_ms"`
	// Admission is what each request costs the prefill stage besides its uncached
	// tokens, by prompt length: requests launched together pay it one after another.
	Admission []AdmissionPoint `yaml:"admission,omitempty"`
	// Prefill is the rate over a whole uncached prompt, by its length.
	Prefill []PrefillPoint `yaml:"prefill"`
	// Decode is the time between the tokens of one request.
	Decode DecodeTable `yaml:"decode"`
}

// AdmissionPoint is one point of a line; between points it is interpolated, beyond
// them the nearest holds.
type AdmissionPoint struct {
	Context int     `yaml:"context"` // tokens
	Ms      float64 `yaml:"ms"`
}

// PrefillPoint is one point of a line, like [AdmissionPoint].
type PrefillPoint struct {
	Context         int     `yaml:"context"` // tokens
	TokensPerSecond float64 `yaml:"tokens_per_second"`
}

// DecodeTable gives milliseconds between tokens by prompt length (rows) and running
// requests (columns), interpolated linearly in both, the nearest value beyond.
type DecodeTable struct {
	Active []int       `yaml:"active"`
	Rows   []DecodeRow `yaml:"rows"`
}

// DecodeRow has one value for each column of its table. A null is a cell that
// nobody measured; it takes the value before it in its row.
type DecodeRow struct {
	Context int        `yaml:"context"` // tokens
	Ms      []*float64 `yaml:"ms"`
}

// maxProfileBytes bounds a profile file; real ones have a few KiB.
const maxProfileBytes = 64 << 10

// ParseProfile reads a profile in strict YAML: unknown keys are mistakes, and all
// mistakes of the values are reported together. What is absent has the default of
// [DefaultProfile] only where the field says so.
func ParseProfile(b []byte) (Profile, error) {
	if len(b) > maxProfileBytes {
		return Profile{}, fmt.Errorf("profile: %d bytes, at most %d are read", len(b), maxProfileBytes)
	}
	p := Profile{PrefixCaching: true}
	if err := p.decode(b); err != nil {
		return Profile{}, fmt.Errorf("profile: %w", err)
	}
	if err := p.complete(); err != nil {
		return Profile{}, err
	}
	return p, nil
}

func (p *Profile) decode(b []byte) (err error) {
	// The library panics on some texts that are no YAML; to a person that is a
	// mistake in the file like any other.
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("this is no YAML that can be read: %v", r)
		}
	}()
	file, err := parser.ParseBytes(b, 0)
	if err != nil {
		return err
	}
	if len(file.Docs) != 1 || file.Docs[0].Body == nil {
		return fmt.Errorf("%d documents, one with keys is needed", len(file.Docs))
	}
	var plain plainYAML
	ast.Walk(&plain, file.Docs[0].Body)
	if plain.err != nil {
		return plain.err
	}
	return yaml.NodeToValue(file.Docs[0].Body, p, yaml.Strict())
}

// plainYAML finds what no profile needs and a decoder can be led astray by: tags
// ("! " before a list makes the library fail), anchors and what refers to them.
type plainYAML struct{ err error }

// Visit is called for each node.
func (v *plainYAML) Visit(n ast.Node) ast.Visitor {
	switch n.(type) {
	case *ast.TagNode, *ast.AnchorNode, *ast.AliasNode, *ast.MergeKeyNode:
		v.err = fmt.Errorf("line %d: tags, anchors and aliases are not read here", n.GetToken().Position.Line)
		return nil
	}
	return v
}

// complete sets defaults, orders the tables and checks everything.
func (p *Profile) complete() error {
	if p.BlockTokens == 0 {
		p.BlockTokens = 16
	}
	if p.TokensPerChunk == 0 {
		p.TokensPerChunk = 1
	}
	if p.Usage == "" {
		p.Usage = UsageRunning
	}
	// The tables are ordered in copies: the caller's stay as they are.
	p.Models = slices.Clone(p.Models)
	p.Acceptance = slices.Clone(p.Acceptance)
	p.Admission = slices.Clone(p.Admission)
	p.Prefill = slices.Clone(p.Prefill)
	p.Decode.Rows = slices.Clone(p.Decode.Rows)
	slices.SortFunc(p.Admission, func(a, b AdmissionPoint) int { return cmp.Compare(a.Context, b.Context) })
	slices.SortFunc(p.Prefill, func(a, b PrefillPoint) int { return cmp.Compare(a.Context, b.Context) })
	slices.SortFunc(p.Decode.Rows, func(a, b DecodeRow) int { return cmp.Compare(a.Context, b.Context) })

	var errs []error
	bad := func(format string, a ...any) { errs = append(errs, fmt.Errorf("profile: "+format, a...)) }
	if len(p.Models) == 0 {
		bad("models: at least one name is needed")
	}
	for i, m := range p.Models {
		if m == "" || len(m) > 256 || slices.Index(p.Models, m) < i {
			bad("models: name %d is empty, longer than 256 bytes or twice there", i+1)
		}
	}
	inRange := func(name string, v, lo, hi int) {
		if v < lo || v > hi {
			bad("%s: %d is not from %d to %d", name, v, lo, hi)
		}
	}
	inRange("max_model_len", p.MaxModelLen, 1, 1<<24)
	inRange("slots", p.Slots, 1, 1<<16)
	inRange("kv_tokens", p.KVTokens, 1, 1<<30)
	inRange("block_tokens", p.BlockTokens, 1, 1<<16)
	inRange("tokens_per_chunk", p.TokensPerChunk, 1, 64)
	if len(p.Acceptance) > 64 {
		bad("acceptance: %d steps, at most 64 are repeated", len(p.Acceptance))
	}
	for _, n := range p.Acceptance {
		inRange("acceptance", n, 1, p.TokensPerChunk)
	}
	inRange("reasoning_first_tokens", p.ReasoningTokens, 0, 1<<24)
	inRange("eos_after_tokens", p.EOSAfterTokens, 0, 1<<24)
	if p.KVTokens < p.MaxModelLen {
		bad("kv_tokens: %d cannot hold one request of max_model_len %d", p.KVTokens, p.MaxModelLen)
	} else if p.BlockTokens >= 1 && p.KVTokens/p.BlockTokens < (p.MaxModelLen+p.BlockTokens-1)/p.BlockTokens {
		bad("kv_tokens: %d tokens in whole blocks of %d cannot hold one request of max_model_len %d", p.KVTokens, p.BlockTokens, p.MaxModelLen)
	}
	switch p.Usage {
	case UsageRunning, UsageFinal, UsageAbsent:
	default:
		bad("usage: %q is not running, final or absent", p.Usage)
	}
	millis := func(where string, v float64) {
		if !(v >= 0 && v <= 1e6) { // also NaN
			bad("%s: %v ms is not from 0 to 1,000,000", where, v)
		}
	}
	millis("base_ttft_ms", p.BaseTTFTMs)
	context := func(where string, i, c, before int) {
		if c < 0 || c > 1<<24 {
			bad("%s: context %d is out of range", where, c)
		}
		if i > 0 && c == before {
			bad("%s: context %d is there twice", where, c)
		}
	}
	for i, a := range p.Admission {
		context("admission", i, a.Context, p.Admission[max(0, i-1)].Context)
		millis(fmt.Sprintf("admission at %d", a.Context), a.Ms)
	}
	if len(p.Prefill) == 0 {
		bad("prefill: at least one point is needed")
	}
	for i, a := range p.Prefill {
		context("prefill", i, a.Context, p.Prefill[max(0, i-1)].Context)
		if !(a.TokensPerSecond > 0 && a.TokensPerSecond <= 1e9) {
			bad("prefill at %d: tokens_per_second %v is not above 0 and at most 1e9", a.Context, a.TokensPerSecond)
		}
	}
	d := &p.Decode
	if len(d.Active) == 0 || len(d.Rows) == 0 {
		bad("decode: active and rows need at least one entry each")
	}
	for i, a := range d.Active {
		if a < 1 || i > 0 && a <= d.Active[i-1] {
			bad("decode.active: %d does not rise from 1", a)
		}
	}
	for i, r := range d.Rows {
		context("decode", i, r.Context, d.Rows[max(0, i-1)].Context)
		if len(r.Ms) != len(d.Active) {
			bad("decode at %d: %d values for %d columns", r.Context, len(r.Ms), len(d.Active))
		} else if len(r.Ms) > 0 && r.Ms[0] == nil {
			bad("decode at %d: the first value is null", r.Context)
		}
		for _, v := range r.Ms {
			if v != nil && !(*v > 0 && *v <= 1e6) {
				bad("decode at %d: %v ms is not above 0 and at most 1,000,000", r.Context, *v)
			}
		}
	}
	return errors.Join(errs...)
}

// YAML writes the profile as [ParseProfile] reads it, under a comment.
func (p Profile) YAML(comment string) ([]byte, error) {
	b, err := yaml.MarshalWithOptions(p, yaml.Flow(false), yaml.UseSingleQuote(false))
	if err != nil {
		return nil, fmt.Errorf("profile: %w", err)
	}
	var head strings.Builder
	for line := range strings.Lines(comment) {
		head.WriteString(strings.TrimRight("# "+strings.TrimRight(line, "\n"), " ") + "\n")
	}
	return append([]byte(head.String()), b...), nil
}

// DefaultProfile is a small invented engine: quick, four decode curves, eight
// slots, so that everything a page can show happens within seconds.
func DefaultProfile() Profile {
	p := Profile{
		Models: []string{"simulated"}, MaxModelLen: 32768, Slots: 8, KVTokens: 131072,
		PrefixCaching: true, BaseTTFTMs: 15,
		Prefill: []PrefillPoint{{1024, 60000}, {8192, 55000}, {32768, 40000}},
		Decode: DecodeTable{
			Active: []int{1, 2, 4, 8},
			Rows: []DecodeRow{
				{1024, Millis(8, 8.3, 9, 11)},
				{8192, Millis(9, 9.5, 10.8, 14)},
				{32768, Millis(12, 13.5, 17, 26)},
			},
		},
	}
	if err := p.complete(); err != nil {
		panic("simulator: the default profile is not valid: " + err.Error())
	}
	return p
}

// Millis makes the values of a [DecodeRow]. A value of 0 or less is a cell that
// nobody measured.
func Millis(v ...float64) []*float64 {
	out := make([]*float64, len(v))
	for i := range v {
		if v[i] > 0 {
			out[i] = &v[i]
		}
	}
	return out
}

// place finds x in rising keys: the indices around it and how far x is from the
// first towards the second. Outside, both are the nearest.
func place(n int, key func(int) float64, x float64) (i, j int, f float64) {
	for j < n && key(j) < x {
		j++
	}
	switch j {
	case 0:
		return 0, 0, 0
	case n:
		return n - 1, n - 1, 0
	}
	i = j - 1
	return i, j, (x - key(i)) / (key(j) - key(i))
}

func mix(a, b, f float64) float64 { return a + (b-a)*f }

// cell is a value of the table; a null takes the one before it in its row.
func (d *DecodeTable) cell(row, col int) float64 {
	ms := d.Rows[row].Ms
	for col > 0 && ms[col] == nil {
		col--
	}
	return *ms[col]
}

// step returns the time of one decode step.
func (p *Profile) step(context float64, active int) time.Duration {
	d := &p.Decode
	r0, r1, rf := place(len(d.Rows), func(i int) float64 { return float64(d.Rows[i].Context) }, context)
	c0, c1, cf := place(len(d.Active), func(i int) float64 { return float64(d.Active[i]) }, float64(active))
	ms := mix(mix(d.cell(r0, c0), d.cell(r0, c1), cf), mix(d.cell(r1, c0), d.cell(r1, c1), cf), rf)
	return millis(ms * p.perStep())
}

// perStep is how many tokens a step gives each request on average.
func (p *Profile) perStep() float64 {
	if len(p.Acceptance) == 0 {
		return float64(p.TokensPerChunk)
	}
	sum := 0
	for _, n := range p.Acceptance {
		sum += n
	}
	return float64(sum) / float64(len(p.Acceptance))
}

// accepted is how many tokens the i-th step of a request gives it.
func (p *Profile) accepted(i int) int {
	if len(p.Acceptance) == 0 {
		return p.TokensPerChunk
	}
	return p.Acceptance[i%len(p.Acceptance)]
}

// prefill returns the time for tokens from..to of a prompt. Later tokens cost more
// where the rate falls with the length.
func (p *Profile) prefill(from, to int) time.Duration {
	s := p.prefillSeconds(to) - p.prefillSeconds(from)
	return time.Duration(max(0, s) * float64(time.Second))
}

func (p *Profile) prefillSeconds(n int) float64 {
	t := p.Prefill
	i, j, f := place(len(t), func(i int) float64 { return float64(t[i].Context) }, float64(n))
	return float64(n) / mix(t[i].TokensPerSecond, t[j].TokensPerSecond, f)
}

func (p *Profile) admission(context int) time.Duration {
	t := p.Admission
	if len(t) == 0 {
		return 0
	}
	i, j, f := place(len(t), func(i int) float64 { return float64(t[i].Context) }, float64(context))
	return millis(mix(t[i].Ms, t[j].Ms, f))
}

func millis(ms float64) time.Duration {
	return time.Duration(math.Round(ms * float64(time.Millisecond)))
}
