package simulator

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Faults are what a real engine does on bad days. The zero value has none.
type Faults struct {
	ExitAfter       time.Duration // the engine dies this long after its start
	ExitAfterTokens int64         // or when it has generated this many tokens in all
	HangAfter       time.Duration // tokens stop, /health stays 200
	HangAfterTokens int64

	StartupDelay     time.Duration // 503 everywhere until then
	UnavailableEvery int64         // each k-th completion is answered 503

	TruncateAfterTokens int // streams end without finish_reason and [DONE]
	ErrorAfterTokens    int // streams end with an error object, status 200
	RoleEarly           bool
	CRLF                bool // events end as on a line printer, which SSE allows
	Gzip                bool // streams are compressed if the client accepts that
	ClumpBytes          int  // streams are written in lumps of this size

	MetricsDelay  time.Duration
	MetricsStatus int // /metrics answers with this status and a proxy's page
}

// faultField binds a fault's name in [ParseFaults] to what reads its value.
type faultField struct {
	name string
	set  func(*Faults, string) error
}

func faultFields() []faultField {
	dur := func(p func(*Faults) *time.Duration) func(*Faults, string) error {
		return func(f *Faults, v string) (err error) {
			*p(f), err = time.ParseDuration(v)
			if err == nil && *p(f) < 0 {
				err = fmt.Errorf("%s is negative", v)
			}
			return err
		}
	}
	num := func(set func(*Faults, int64)) func(*Faults, string) error {
		return func(f *Faults, v string) error {
			n, err := strconv.ParseInt(v, 10, 32)
			if err != nil || n < 1 {
				return fmt.Errorf("%q is not a whole number from 1", v)
			}
			set(f, n)
			return nil
		}
	}
	flag := func(p func(*Faults) *bool) func(*Faults, string) error {
		return func(f *Faults, v string) (err error) {
			*p(f) = true
			if v != "" {
				*p(f), err = strconv.ParseBool(v)
			}
			return err
		}
	}
	return []faultField{
		{"clump-bytes", num(func(f *Faults, n int64) { f.ClumpBytes = int(n) })},
		{"crlf", flag(func(f *Faults) *bool { return &f.CRLF })},
		{"error-after-tokens", num(func(f *Faults, n int64) { f.ErrorAfterTokens = int(n) })},
		{"exit-after", dur(func(f *Faults) *time.Duration { return &f.ExitAfter })},
		{"exit-after-tokens", num(func(f *Faults, n int64) { f.ExitAfterTokens = n })},
		{"gzip", flag(func(f *Faults) *bool { return &f.Gzip })},
		{"hang-after", dur(func(f *Faults) *time.Duration { return &f.HangAfter })},
		{"hang-after-tokens", num(func(f *Faults, n int64) { f.HangAfterTokens = n })},
		{"metrics-delay", dur(func(f *Faults) *time.Duration { return &f.MetricsDelay })},
		{"metrics-status", num(func(f *Faults, n int64) { f.MetricsStatus = int(n) })},
		{"role-early", flag(func(f *Faults) *bool { return &f.RoleEarly })},
		{"startup-delay", dur(func(f *Faults) *time.Duration { return &f.StartupDelay })},
		{"truncate-after-tokens", num(func(f *Faults, n int64) { f.TruncateAfterTokens = int(n) })},
		{"unavailable-every", num(func(f *Faults, n int64) { f.UnavailableEvery = n })},
	}
}

// ParseFaults reads "name=value,name=value", the form of a flag or a variable.
func ParseFaults(s string) (Faults, error) {
	var f Faults
	fields := faultFields()
	for part := range strings.SplitSeq(s, ",") {
		part = strings.TrimSpace(part)
		if part == "" {
			continue
		}
		name, value, _ := strings.Cut(part, "=")
		i := slices.IndexFunc(fields, func(x faultField) bool { return x.name == name })
		if i < 0 {
			var names []string
			for _, x := range fields {
				names = append(names, x.name)
			}
			return Faults{}, fmt.Errorf("faults: %q is none; there are %s", name, strings.Join(names, ", "))
		}
		if err := fields[i].set(&f, value); err != nil {
			return Faults{}, fmt.Errorf("faults: %s: %w", name, err)
		}
	}
	if f.MetricsStatus != 0 && (f.MetricsStatus < 400 || f.MetricsStatus > 599) {
		return Faults{}, fmt.Errorf("faults: metrics-status: %d is no error status", f.MetricsStatus)
	}
	return f, nil
}
