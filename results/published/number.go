package published

import (
	"math"
	"strconv"
	"strings"
)

// number is a printed number.
type number struct {
	text  string  // as printed, with its unit
	value float64 // in the base unit: tokens per second, seconds, tokens, requests
	half  float64 // half a unit of the last printed place; 0 if the value is exact
}

// dash is what pages print for an absent number.
const dash = "—"

// quantity says how a column's numbers are printed.
type quantity int

const (
	rate    quantity = iota // 2,777.1 or 32.7K; K is 1,000
	seconds                 // 4.8 ms, 30.0 s
	mean                    // 127.4
	count                   // 83,240
)

// maxDigits bounds a number's text; a float64 holds no more.
const maxDigits = 17

// parseNumber reads one printed number with its unit. It accepts any number of
// decimals; the stricter grammar of glued text is in glue.go.
func parseNumber(s string, q quantity) (number, bool) {
	t, exp := s, 0
	switch q {
	case rate:
		if r, ok := strings.CutSuffix(t, "K"); ok {
			t, exp = r, 3
		} else if r, ok := strings.CutSuffix(t, "M"); ok {
			t, exp = r, 6
		}
	case seconds:
		if r, ok := strings.CutSuffix(t, "ms"); ok {
			t, exp = strings.TrimSpace(r), -3
		} else if r, ok := strings.CutSuffix(t, "s"); ok {
			t = strings.TrimSpace(r)
		} else {
			return number{}, false
		}
	}
	whole, frac, dot := strings.Cut(t, ".")
	if whole == "" || dot && (frac == "" || !allDigits(frac) || q == count) || groupedLen(whole) != len(whole) && !plainInt(whole) {
		return number{}, false
	}
	digits := strings.ReplaceAll(whole, ",", "") + frac
	if len(digits) > maxDigits {
		return number{}, false
	}
	// The decimal point moves within the text, so 56 ms is the float64 nearest
	// to 0.056 and not 56 divided by 1000.
	e := exp - len(frac)
	v, err := strconv.ParseFloat(digits+"e"+strconv.Itoa(e), 64)
	if err != nil {
		return number{}, false
	}
	n := number{text: s, value: v}
	if q != count {
		n.half = 0.5 * math.Pow10(e)
	}
	return n, true
}

// groupedLen is the length of the longest prefix of s that is an integer with
// thousands commas: 0, 512, 83,240. It is 0 if there is none.
func groupedLen(s string) int {
	ends := groupedEnds(s)
	if len(ends) == 0 {
		return 0
	}
	return ends[len(ends)-1]
}

// groupedEnds lists every length at which a prefix of s is such an integer,
// ascending: all readings of a number that is followed by another one.
func groupedEnds(s string) []int {
	var ends []int
	n := 0
	for n < len(s) && n < 3 && isDigit(s[n]) {
		n++
		ends = append(ends, n)
		if s[0] == '0' {
			return ends
		}
	}
	// A first group of one, two or three digits may each be followed by a comma;
	// only the longest can be, since the comma comes after the last digit.
	for n > 0 && n+4 <= len(s) && s[n] == ',' && allDigits(s[n+1:n+4]) && n <= maxDigits {
		n += 4
		ends = append(ends, n)
	}
	return ends
}

// plainInt accepts integers without commas, which programs print.
func plainInt(s string) bool {
	return s != "" && allDigits(s) && (s == "0" || s[0] != '0')
}

func allDigits(s string) bool {
	for i := range len(s) {
		if !isDigit(s[i]) {
			return false
		}
	}
	return true
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

// same says whether two printed numbers can be one number, printed twice: equal
// at the same precision, and else one a rounding of the other. Note: intervals
// that touch are not enough, 56 ms and 57 ms are not the same.
func same(a, b number) bool {
	slack := 1e-9 * max(math.Abs(a.value), math.Abs(b.value))
	return math.Abs(a.value-b.value) <= max(a.half, b.half)+slack
}

// interval returns the lowest and highest number that prints like n.
func (n number) interval() (lo, hi float64) { return n.value - n.half, n.value + n.half }

// maxContext bounds a context label; no engine is near it.
const maxContext = 1 << 30

// parseContext reads a context label: 0, 512, 8K, 1M. K is 1,024.
func parseContext(s string) (tokens int, ok bool) {
	mult := 1
	if r, k := strings.CutSuffix(s, "K"); k {
		s, mult = r, 1<<10
	} else if r, m := strings.CutSuffix(s, "M"); m {
		s, mult = r, 1<<20
	}
	if !plainInt(s) || len(s) > 10 || s == "0" && mult != 1 {
		return 0, false
	}
	n, err := strconv.Atoi(s)
	if err != nil || n > maxContext/mult {
		return 0, false
	}
	return n * mult, true
}

// contextLabel writes a context as the pages do.
func contextLabel(tokens int) string {
	if tokens > 0 && tokens%1024 == 0 {
		return strconv.Itoa(tokens/1024) + "K"
	}
	return strconv.Itoa(tokens)
}

// maxRequests bounds a concurrency.
const maxRequests = 1 << 20

func parseRequests(s string) (int, bool) {
	if !plainInt(s) || s == "0" || len(s) > 7 {
		return 0, false
	}
	n, err := strconv.Atoi(s)
	return n, err == nil && n <= maxRequests
}
