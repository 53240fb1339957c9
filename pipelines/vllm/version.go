package vllm

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Kinds of version texts.
const (
	KindVersion = "version" // 0.30.1rc1.dev452+g73a583112
	KindTag     = "tag"     // of an image: v0.32.0-x86_64, nightly
	KindImage   = "image"   // repository with a digest or a tag
	KindCommit  = "commit"  // 40 hex digits
)

// Version is what a version, image tag or image text says. Empty: it does not say.
type Version struct {
	Text string
	Kind string

	Release string // "0.30.1"
	Pre     string // "rc1"
	Post    *int
	Dev     *int
	// Commit is as long as the text has it; see [SameCommit].
	Commit    string
	DirtyDate string // "20241225": built from a changed tree, which Commit does not describe
	Variant   string // "cu129", or another local part
	Arch      string // "x86_64"
	Digest    string // "sha256:…"
	// Moving: the name means something else tomorrow.
	Moving bool
	// Pinned: the text alone is enough to get the same program again: a digest, or the
	// commit of an unchanged tree. A tag that names a commit is not pinned: such tags
	// get removed.
	Pinned bool

	epoch   int
	release []int
	preKind int // a, b, rc: 1, 2, 3
	preNum  int
	local   []string
}

var (
	reVersion = regexp.MustCompile(`(?i)^v?(?:(\d{1,9})!)?(\d{1,9}(?:\.\d{1,9}){0,7})` + // epoch, release
		`(?:[._-]?(alpha|beta|preview|pre|a|b|c|rc)[._-]?(\d{0,9}))?` +
		`(?:[._-]?(post|rev|r)[._-]?(\d{0,9}))?` +
		`(?:[._-]?(dev)[._-]?(\d{0,9}))?` +
		`(?:\+([a-z0-9]+(?:[._-][a-z0-9]+)*))?$`)
	reHex    = regexp.MustCompile(`^[0-9a-f]{7,40}$`)
	reCommit = regexp.MustCompile(`^[0-9a-f]{40}$`)
	reDate   = regexp.MustCompile(`^d(\d{8})$`)
	reDigest = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
	reTag    = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$`) // what a registry allows
)

// ParseVersion reads a version as Python writes it, the tag of a vLLM image, or an
// image. An error says that the text is none of them.
func ParseVersion(text string) (Version, error) {
	v := Version{Text: text}
	s := strings.TrimSpace(text)
	switch {
	case len(s) > 512:
		return v, fmt.Errorf("version of %d bytes: not a version, tag or image", len(s))
	case reCommit.MatchString(s):
		v.Kind, v.Commit, v.Pinned = KindCommit, s, true
		return v, nil
	case strings.ContainsAny(s, "/@") || strings.Contains(s, ":"):
		return v, v.image(s)
	case v.version(s):
		v.Kind = KindVersion
		v.Pinned = v.Commit != "" && v.DirtyDate == ""
		return v, nil
	}
	return v, v.tag(s)
}

func (v *Version) image(s string) error {
	v.Kind = KindImage
	name, digest, hasDigest := strings.Cut(s, "@")
	if hasDigest {
		if !reDigest.MatchString(digest) {
			return fmt.Errorf("image %q: the digest is not sha256 and 64 hex digits", s)
		}
		v.Digest = digest
	}
	// A colon before the last slash is a port.
	if at := strings.LastIndexByte(name, ':'); at > strings.LastIndexByte(name, '/') {
		if err := v.tag(name[at+1:]); err != nil {
			return fmt.Errorf("image %q: %w", s, err)
		}
		v.Kind = KindImage
		name = name[:at]
	} else if !hasDigest {
		v.Moving = true // no tag means latest
	}
	if name == "" {
		return fmt.Errorf("image %q: no repository", s)
	}
	if hasDigest {
		v.Pinned, v.Moving = true, false
	}
	return nil
}

// tag reads v0.32.0-x86_64, nightly-<commit>, cu129-nightly and the like. A word it
// does not know leaves the tag what it is: a name that can be moved.
func (v *Version) tag(s string) error {
	if !reTag.MatchString(s) {
		return fmt.Errorf("%q is no version and no image tag", s)
	}
	v.Kind = KindTag
	v.Moving = true
	parts := strings.Split(s, "-")
	for i, part := range parts {
		switch {
		case part == "x86_64" || part == "amd64" || part == "aarch64" || part == "arm64":
			v.Arch = part
		case reHex.MatchString(part) && (len(part) == 40 || i > 0 && parts[i-1] == "nightly"):
			v.Commit, v.Moving = part, false
		case v.release == nil && v.version(part):
			v.Moving = false // a release's tag is not meant to move, yet it can
		case strings.HasPrefix(part, "cu") || strings.HasPrefix(part, "rocm") || part == "cpu" || part == "xpu":
			v.Variant = part
		}
	}
	return nil
}

// version reads a PEP 440 version into v, or leaves v as it is.
func (v *Version) version(s string) bool {
	m := reVersion.FindStringSubmatch(s)
	if m == nil {
		return false
	}
	v.epoch, _ = strconv.Atoi(m[1])
	v.Release = m[2]
	for part := range strings.SplitSeq(m[2], ".") {
		n, _ := strconv.Atoi(part) // at most nine digits
		v.release = append(v.release, n)
	}
	if m[3] != "" {
		v.preNum, _ = strconv.Atoi(m[4])
		word := ""
		switch strings.ToLower(m[3]) {
		case "a", "alpha":
			v.preKind, word = 1, "a"
		case "b", "beta":
			v.preKind, word = 2, "b"
		default:
			v.preKind, word = 3, "rc"
		}
		v.Pre = word + strconv.Itoa(v.preNum)
	}
	v.Post = number(m[5], m[6])
	v.Dev = number(m[7], m[8])
	if m[9] == "" {
		return true
	}
	var rest []string
	v.local = strings.FieldsFunc(strings.ToLower(m[9]), func(r rune) bool { return r == '.' || r == '_' || r == '-' })
	for _, part := range v.local {
		switch {
		case part[0] == 'g' && reHex.MatchString(part[1:]):
			v.Commit = part[1:]
		case reDate.MatchString(part):
			v.DirtyDate = part[1:]
		default:
			rest = append(rest, part)
		}
	}
	v.Variant = strings.Join(rest, ".")
	return true
}

// number is nil if the word is not there; the word alone means 0.
func number(word, digits string) *int {
	if word == "" {
		return nil
	}
	n, _ := strconv.Atoi(digits)
	return &n
}

// Compare orders versions as PEP 440 does: -1, 0 or 1. Texts without a release
// (nightly, a digest) have no order: ok is false.
func (v Version) Compare(o Version) (c int, ok bool) {
	if v.release == nil || o.release == nil {
		return 0, false
	}
	n := max(len(v.release), len(o.release))
	for i := -1; i < n && c == 0; i++ {
		if i < 0 {
			c = cmp.Compare(v.epoch, o.epoch)
		} else {
			c = cmp.Compare(at(v.release, i), at(o.release, i))
		}
	}
	return cmp.Or(c,
		slices.Compare(v.preKey(), o.preKey()),
		cmp.Compare(orElse(v.Post, -1), orElse(o.Post, -1)),
		cmp.Compare(orElse(v.Dev, noDev), orElse(o.Dev, noDev)),
		slices.CompareFunc(v.local, o.local, compareLocal)), true
}

const noDev = int(^uint(0) >> 1) // a version is after its own dev versions

// preKey orders: dev of the release itself, a, b, rc, the release.
func (v Version) preKey() []int {
	switch {
	case v.preKind > 0:
		return []int{v.preKind, v.preNum}
	case v.Dev != nil && v.Post == nil:
		return []int{0, 0}
	}
	return []int{4, 0}
}

// compareLocal: numbers are after words, and compared as numbers.
func compareLocal(a, b string) int {
	na, errA := strconv.ParseUint(a, 10, 64)
	nb, errB := strconv.ParseUint(b, 10, 64)
	switch {
	case errA == nil && errB == nil:
		return cmp.Compare(na, nb)
	case errA == nil:
		return 1
	case errB == nil:
		return -1
	}
	return strings.Compare(a, b)
}

func at(list []int, i int) int {
	if i < len(list) {
		return list[i]
	}
	return 0
}

func orElse(p *int, or int) int {
	if p == nil {
		return or
	}
	return *p
}

// SameCommit says whether two hashes name the same commit: one begins with the
// other, and at least seven digits agree.
func SameCommit(a, b string) bool {
	a, b = strings.ToLower(a), strings.ToLower(b)
	if len(a) > len(b) {
		a, b = b, a
	}
	return reHex.MatchString(a) && reHex.MatchString(b) && strings.HasPrefix(b, a)
}
