package store

import (
	"fmt"
	"regexp"
	"strings"
	"time"
)

// NewRunID makes the id of a run: UTC time, name, six hex digits.
func NewRunID(now time.Time, name string, random [3]byte) string {
	var b strings.Builder
	for _, r := range strings.ToLower(name) {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '.', r == '_':
			b.WriteRune(r)
		default:
			if s := b.String(); s != "" && !strings.HasSuffix(s, "-") {
				b.WriteByte('-')
			}
		}
	}
	clean := b.String()
	clean = strings.Trim(clean[:min(len(clean), 80)], "-._")
	if clean == "" {
		clean = "run"
	}
	return fmt.Sprintf("%s-%s-%x", now.UTC().Format("20060102T150405Z"), clean, random)
}

// validRunID says whether an id is safe as the name of a directory.
func validRunID(id string) bool {
	ok, _ := regexp.MatchString(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`, id)
	return ok && !strings.HasSuffix(id, partialSuffix)
}
