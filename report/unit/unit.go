// Package unit writes numbers the way the published pages do, each with its
// exact value beside it.
//
// It knows nothing of cells, metrics or pages. Texts do not depend on a locale.
// In rates K is 1,000; in context lengths, which are labels and not made here, K
// is 1,024. A value that is absent or not finite is an em dash.
package unit

import (
	"math"
	"strconv"
	"strings"
)

// Dash stands where there is no number.
const Dash = "—"

// Number is a number as it is shown, and as it is.
type Number struct {
	Text  string // for people: "32.7K", "250 ms"; Dash if absent
	Exact string // plain decimal in the unit of Text, without it: "32698.412"; empty if absent
}

// Known reports whether there is a number.
func (n Number) Known() bool { return n.Exact != "" }

// Format makes a Number of a value.
type Format func(float64) Number

// Absent is the number that is not there.
func Absent() Number { return Number{Text: Dash} }

// Rate writes tokens per second as the tables do: 203.9, 2,186.0, 32.7K.
func Rate(v float64) Number { return number(v, rateText(v, 1), "") }

// BarRate writes tokens per second as the bars do: 875.0, 2,186, 32.7K.
func BarRate(v float64) Number {
	if math.Abs(v) >= 999.95 {
		return number(v, rateText(v, 0), "")
	}
	return number(v, rateText(v, 1), "")
}

// Milliseconds writes whole milliseconds, 20,344 ms, and one decimal below ten
// where the value has one: 2.4 ms.
func Milliseconds(v float64) Number {
	if math.Abs(v) < 9.95 && v != math.Trunc(v) {
		return number(v, Decimal(v, 1), " ms")
	}
	return number(v, Decimal(v, 0), " ms")
}

// FineMilliseconds writes one decimal: 4.8 ms.
func FineMilliseconds(v float64) Number { return number(v, Decimal(v, 1), " ms") }

// Seconds writes one decimal: 30.0 s.
func Seconds(v float64) Number { return number(v, Decimal(v, 1), " s") }

// Count writes whole numbers in full: 6,116.
func Count(v float64) Number { return number(v, Decimal(v, 0), "") }

// Tenths writes one decimal: 127.4.
func Tenths(v float64) Number { return number(v, Decimal(v, 1), "") }

// Percent writes one decimal: 12.5 %.
func Percent(v float64) Number { return number(v, Decimal(v, 1), " %") }

// Ratio writes three significant digits: 0.0153, 1.2.
func Ratio(v float64) Number {
	return number(v, strconv.FormatFloat(v, 'g', 3, 64), "")
}

// Decimal writes v with thousands separators and the given number of decimals,
// rounded half away from zero as people do on paper.
func Decimal(v float64, decimals int) string {
	s := strconv.FormatFloat(math.Abs(v), 'f', decimals, 64)
	whole, frac, _ := strings.Cut(s, ".")
	var b strings.Builder
	if v < 0 && strings.Trim(s, "0.") != "" {
		b.WriteByte('-')
	}
	for i, digit := range whole {
		if i > 0 && (len(whole)-i)%3 == 0 {
			b.WriteByte(',')
		}
		b.WriteRune(digit)
	}
	if frac != "" {
		b.WriteByte('.')
		b.WriteString(frac)
	}
	return b.String()
}

// Compact writes a short number for an axis: 0, 250, 2,500, 10K, 12.5K, 1.5M.
func Compact(v float64) string {
	switch a := math.Abs(v); {
	case a >= 1e6:
		return trimZero(Decimal(v/1e6, 2)) + "M"
	case a >= 1e4:
		return trimZero(Decimal(v/1e3, 2)) + "K"
	case a >= 100 || v == math.Trunc(v):
		return Decimal(v, 0)
	default:
		return strconv.FormatFloat(v, 'g', 3, 64)
	}
}

// Plain writes the exact value as a plain decimal. Twelve significant digits
// are more than any clock here has, and hide the dust of binary arithmetic.
func Plain(v float64) string {
	if !finite(v) {
		return ""
	}
	short, err := strconv.ParseFloat(strconv.FormatFloat(v, 'g', 12, 64), 64)
	if err != nil {
		short = v
	}
	return strconv.FormatFloat(short, 'f', -1, 64)
}

func rateText(v float64, decimals int) string {
	if math.Abs(v) < 9999.95 {
		return Decimal(v, decimals)
	}
	if math.Abs(v) < 999_950 {
		return Decimal(v/1e3, 1) + "K"
	}
	return Decimal(v/1e6, 1) + "M"
}

func number(v float64, text, suffix string) Number {
	if !finite(v) {
		return Absent()
	}
	return Number{Text: text + suffix, Exact: Plain(v)}
}

func trimZero(s string) string {
	if !strings.Contains(s, ".") {
		return s
	}
	return strings.TrimRight(strings.TrimRight(s, "0"), ".")
}

func finite(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }
