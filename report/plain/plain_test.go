package plain

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestLine(t *testing.T) {
	tests := []struct{ name, in, want string }{
		{"plain", "RTX 3060", "RTX 3060"},
		{"lines", "a\r\n\tb\u2028c  d ", "a b c d"},
		{"terminal escape", "\x1b[31mred\x1b[0m\x07", "[31mred[0m"},
		{"C1 control", "a\u009b31mb", "a31mb"},
		{"direction override", "abc\u202egnp.exe", "abcgnp.exe"},
		{"byte order mark", "\ufeffx", "x"},
		{"not UTF-8", "a\xffb", "a\uFFFDb"},
		{"other scripts stay", "速度テスト ±5 %", "速度テスト ±5 %"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := Line(tt.in); got != tt.want {
				t.Errorf("Line(%q) = %q, want %q", tt.in, got, tt.want)
			}
		})
	}
}

func TestBlock(t *testing.T) {
	if got, want := Block("\n# a\r\n  b\tc\x1b[0m\n\n"), "# a\n  b\tc[0m"; got != want {
		t.Errorf("Block = %q, want %q", got, want)
	}
}

func TestBounds(t *testing.T) {
	got := Line(strings.Repeat("é", MaxLine))
	if len(got) > MaxLine || !utf8.ValidString(got) || !strings.HasSuffix(got, " …") {
		t.Errorf("a long line becomes %d bytes, valid %v, end %q", len(got), utf8.ValidString(got), got[len(got)-6:])
	}
	if got := Block(strings.Repeat("x", MaxBlock+1)); len(got) > MaxBlock {
		t.Errorf("a long block becomes %d bytes", len(got))
	}
}
