package record

import (
	"cmp"
	"regexp"
	"slices"
	"strings"
)

// Redacted stands where a secret was, in everything that is stored or shown.
const Redacted = "<redacted>"

// shortSecret is the length below which a secret may well be a word or number that
// stands elsewhere too: --api-key vllm, HF_TOKEN=1.
const shortSecret = 8

// secretShapes are values that are secrets wherever they stand: credentials in an
// address or a header, and keys of known issuers. The first group is the secret.
var secretShapes = []*regexp.Regexp{
	regexp.MustCompile(`://[^/\s:@"']*:([^/\s@"']+)@`),
	regexp.MustCompile(`(?i)authorization["'\\]*\s*[:=]\s*["'\\]*(?:bearer|basic|token)\s+([A-Za-z0-9._~+/=-]{6,})`),
	regexp.MustCompile(`(?i)\bbearer\s+([A-Za-z0-9._~+/=-]{16,})`), // longer than the words that follow it in prose
	regexp.MustCompile(`\b(hf_[A-Za-z0-9]{30,})`),
	regexp.MustCompile(`\b(sk-[A-Za-z0-9_-]{20,})`),
	regexp.MustCompile(`\b(gh[pousr]_[A-Za-z0-9]{30,})`),
}

// Redactor takes secrets out of texts, by one rule for the whole program: a secret is
// replaced wherever it stands, and so is whatever has the shape of one. A short secret
// is replaced only as a word of its own that follows the name of a secret.
type Redactor struct {
	long  []string // longest first
	short []*regexp.Regexp
	reach int
}

// NewRedactor returns a redactor of these secrets; empty ones are none. The nil
// Redactor knows the shapes.
func NewRedactor(secrets ...string) *Redactor {
	r := &Redactor{}
	for _, s := range secrets {
		switch {
		case s == "" || s == Redacted:
		case len(s) >= shortSecret:
			r.long = append(r.long, s)
		default:
			r.short = append(r.short, regexp.MustCompile(`(?i)(?:key|keys|token|passw(?:or)?d|passphrase|secrets?|credentials?|authorization|bearer)[0-9_]*["'\\]*[=:\s]+["'\\]*(`+regexp.QuoteMeta(s)+`)(?:$|[\s"',;}\]\\])`))
		}
		r.reach = max(r.reach, len(s))
	}
	slices.SortFunc(r.long, func(a, b string) int { return cmp.Compare(len(b), len(a)) })
	return r
}

// Redact returns the text without secrets.
func (r *Redactor) Redact(text string) string {
	var b strings.Builder
	at := 0
	for _, s := range r.find(text) {
		// What overlaps is one secret.
		if s.from >= at {
			b.WriteString(text[at:s.from])
			b.WriteString(Redacted)
		}
		at = max(at, s.to)
	}
	if at == 0 {
		return text
	}
	b.WriteString(text[at:])
	return b.String()
}

// Reach is how many bytes of text must follow a place before [Redactor.Cut] can
// tell whether a secret stands there.
func (r *Redactor) Reach() int { return 256 + r.reach }

// Cut returns the last place at or before at where a text that goes on can be cut so
// that no secret, and no name that makes a word one, is cut in two: 0 if there is
// none. The text must go on for Reach beyond at.
func (r *Redactor) Cut(text string, at int) int {
	found := r.find(text)
	for {
		i := slices.IndexFunc(found, func(s secret) bool { return s.begin < at && at < s.end })
		if i < 0 {
			return at
		}
		at = found[i].begin
	}
}

// secret is where one stands, and where the text begins and ends that shows it.
type secret struct{ from, to, begin, end int }

// find returns all of them in order, those that begin at one place longest first.
func (r *Redactor) find(text string) []secret {
	var found []secret
	match := func(re *regexp.Regexp) {
		for _, m := range re.FindAllStringSubmatchIndex(text, -1) {
			if text[m[2]:m[3]] != Redacted {
				found = append(found, secret{m[2], m[3], m[0], m[1]})
			}
		}
	}
	if r != nil {
		for _, s := range r.long {
			for from := 0; ; {
				i := strings.Index(text[from:], s)
				if i < 0 {
					break
				}
				i += from
				found = append(found, secret{i, i + len(s), i, i + len(s)})
				from = i + len(s)
			}
		}
		for _, re := range r.short {
			match(re)
		}
	}
	for _, re := range secretShapes {
		match(re)
	}
	slices.SortFunc(found, func(a, b secret) int {
		return cmp.Or(cmp.Compare(a.from, b.from), cmp.Compare(b.to, a.to))
	})
	return found
}

// SecretShapes returns where in a text stands what is a secret by its shape alone, in
// order, as pairs of begin and end.
func SecretShapes(text string) (spans [][2]int) {
	for _, s := range (*Redactor)(nil).find(text) {
		spans = append(spans, [2]int{s.from, s.to})
	}
	return spans
}
