package unit

import (
	"math"
	"testing"
)

// The texts are those of the published pages.
func TestTexts(t *testing.T) {
	tests := []struct {
		name  string
		f     Format
		v     float64
		text  string
		exact string
	}{
		{"rate from 10K", Rate, 32_698.4123, "32.7K", "32698.4123"},
		{"rate exactly 10K", Rate, 10_000, "10.0K", "10000"},
		{"rate that rounds to 10K", Rate, 9_999.96, "10.0K", "9999.96"},
		{"rate below 10K", Rate, 9_999.94, "9,999.9", "9999.94"},
		{"rate with separator", Rate, 2186, "2,186.0", "2186"},
		{"rate", Rate, 203.9, "203.9", "203.9"},
		{"small rate", Rate, 2.3, "2.3", "2.3"},
		{"no rate", Rate, 0, "0.0", "0"},
		{"large rate", Rate, 1_234_567, "1.2M", "1234567"},
		{"rate that rounds to 1M", Rate, 999_960, "1.0M", "999960"},
		{"bar from 10K", BarRate, 32_651, "32.7K", "32651"},
		{"bar with separator", BarRate, 2186, "2,186", "2186"},
		{"bar below a thousand", BarRate, 875, "875.0", "875"},
		{"bar that rounds to a thousand", BarRate, 999.96, "1,000", "999.96"},
		{"ms", Milliseconds, 250, "250 ms", "250"},
		{"ms with separator", Milliseconds, 244_675, "244,675 ms", "244675"},
		{"ms of binary seconds", Milliseconds, 0.0561 * 1000, "56 ms", "56.1"},
		{"short ms", Milliseconds, 2.44, "2.4 ms", "2.44"},
		{"short whole ms", Milliseconds, 5, "5 ms", "5"},
		{"fine ms", FineMilliseconds, 4.8, "4.8 ms", "4.8"},
		{"fine ms with separator", FineMilliseconds, 1224, "1,224.0 ms", "1224"},
		{"seconds", Seconds, 29.9, "29.9 s", "29.9"},
		{"count", Count, 83_240, "83,240", "83240"},
		{"tenths", Tenths, 127.4, "127.4", "127.4"},
		{"ratio", Ratio, 0.015349, "0.0153", "0.015349"},
		{"negative", Tenths, -1234.56, "-1,234.6", "-1234.56"},
		{"negative that rounds to zero", Tenths, -0.01, "0.0", "-0.01"},
		{"not a number", Rate, math.NaN(), Dash, ""},
		{"infinite", Milliseconds, math.Inf(1), Dash, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := tt.f(tt.v)
			if want := (Number{Text: tt.text, Exact: tt.exact}); got != want {
				t.Errorf("%v gives %+v, want %+v", tt.v, got, want)
			}
			if got.Known() != (tt.exact != "") {
				t.Errorf("Known is %v for %+v", got.Known(), got)
			}
		})
	}
}

func TestCompact(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0", 0.25: "0.25", 7: "7", 12.5: "12.5", 250: "250", 2500: "2,500", 10_000: "10K",
		12_500: "12.5K", 250_000: "250K", 1_500_000: "1.5M",
	} {
		if got := Compact(v); got != want {
			t.Errorf("Compact(%v) = %q, want %q", v, got, want)
		}
	}
}
