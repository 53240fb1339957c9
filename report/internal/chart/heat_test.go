package chart

import "testing"

func TestShadesCanBeRead(t *testing.T) {
	shades := Shades(32)
	last := -1.0
	for i, s := range shades {
		if s.Contrast < 4.5 {
			t.Errorf("shade %d: %s on %s has contrast %.2f, less than 4.5", i, s.Text, s.Background, s.Contrast)
		}
		var r, g, b uint8
		for j, p := range []*uint8{&r, &g, &b} {
			for _, d := range []byte(s.Background[1+2*j : 3+2*j]) {
				n := d - '0'
				if d >= 'a' {
					n = d - 'a' + 10
				}
				*p = *p<<4 | n
			}
		}
		l := luminance(r, g, b)
		if l <= last {
			t.Errorf("shade %d is not brighter than the one before", i)
		}
		last = l
	}
	if got := contrast(luminance(0, 0, 0), luminance(255, 255, 255)); got < 20.99 || got > 21.01 {
		t.Errorf("black on white is %.2f, want 21", got)
	}
}
