package sse

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"
)

// decode feeds the stream in pieces of the given sizes, the last one again and
// again, and returns copies of the events.
func decode(stream []byte, sizes ...int) ([]string, error) {
	var d Decoder
	var events []string
	for i := 0; len(stream) > 0; i++ {
		n := min(len(stream), max(1, sizes[min(i, len(sizes)-1)]))
		n = copy(d.Buffer(), stream[:n])
		stream = stream[n:]
		d.Commit(n)
		for {
			data, err := d.Next()
			if err != nil {
				return events, err
			}
			if data == nil {
				break
			}
			events = append(events, string(data))
		}
	}
	return events, nil
}

func TestEvents(t *testing.T) {
	for name, c := range map[string]struct {
		stream string
		want   []string
	}{
		"one":                     {"data: a\n\n", []string{"a"}},
		"without a blank":         {"data:a\n\n", []string{"a"}},
		"one blank only":          {"data:  a \n\n", []string{" a "}},
		"CRLF":                    {"data: a\r\n\r\ndata: b\r\n\r\n", []string{"a", "b"}},
		"CR":                      {"data: a\r\rdata: b\r\r", []string{"a", "b"}},
		"mixed ends":              {"data: a\r\ndata: b\n\r\ndata: c\r\n\n", []string{"a\nb", "c"}},
		"several lines":           {"data: a\ndata: b\ndata:\ndata: c\n\n", []string{"a\nb\n\nc"}},
		"lines apart":             {"data: a\n: ping\nid: 7\ndata: b\n\n", []string{"a\nb"}},
		"byte order mark":         {"\xef\xbb\xbfdata: a\n\n", []string{"a"}},
		"half a mark":             {"\xef\xbbdata: a\n\n", nil},
		"mark later is text":      {"data: \xef\xbb\xbfa\n\n", []string{"\xef\xbb\xbfa"}},
		"comments":                {": hi\n\n:\n\n::\n\ndata: a\n: ping\n\n", []string{"a"}},
		"other fields":            {"event: ping\nretry: 3\n\nid: 1\nevent: e\ndata: a\n\n", []string{"a"}},
		"empty data":              {"data:\n\ndata: \n\ndata\n\n", nil},
		"name alone":              {"data\ndata\n\n", []string{"\n"}},
		"longer name":             {"database: a\n\ndata : b\n\nDATA: c\n\n", nil},
		"blank lines":             {"\n\n\ndata: a\n\n\n\ndata: b\n\n", []string{"a", "b"}},
		"no blank line, no event": {"data: a\n\ndata: b\n", []string{"a"}},
		"cut":                     {"data: a\n\ndata: {\"b", []string{"a"}},
		"line separators":         {"data: a\u2028b\u2029c\u0085d\v\f\n\n", []string{"a\u2028b\u2029c\u0085d\v\f"}},
		"NUL":                     {"data: a\x00b\n\n", []string{"a\x00b"}},
		"colons":                  {"data: a: b\n\n", []string{"a: b"}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, size := range []int{1, 2, 3, 7, 64, 1 << 20} {
				got, err := decode([]byte(c.stream), size)
				if err != nil || !slices.Equal(got, c.want) {
					t.Errorf("in reads of %d: got %q (%v), want %q", size, got, err, c.want)
				}
			}
		})
	}
}

// TestAtOnce: an event is there with its last byte, also where a CR could be half a
// line end.
func TestAtOnce(t *testing.T) {
	for _, stream := range []string{"data: a\n\n", "data: a\r\r", "data: a\r\n\r"} {
		if got, _ := decode([]byte(stream), 1); len(got) != 1 {
			t.Errorf("%q: %d events", stream, len(got))
		}
	}
}

func TestLimit(t *testing.T) {
	long := func(n int) string { return "data: " + strings.Repeat("x", n) + "\n\n" }
	if got, err := decode([]byte(long(MaxEvent-100)), 1<<20); err != nil || len(got) != 1 || len(got[0]) != MaxEvent-100 {
		t.Errorf("just below: %d events, %v", len(got), err)
	}
	for name, stream := range map[string]string{
		"one line":             long(MaxEvent + 1),
		"a line without end":   "data: " + strings.Repeat("x", MaxEvent+1),
		"many lines":           strings.Repeat("data: "+strings.Repeat("x", 1<<20)+"\n", 18),
		"comments in an event": "data: x\n" + strings.Repeat(": "+strings.Repeat("x", 1<<20)+"\n", 18),
	} {
		if _, err := decode([]byte(stream), 1<<20); !errors.Is(err, ErrTooLarge) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Between events anything may stand, for ever.
	noise := strings.Repeat(": "+strings.Repeat("x", 1<<20)+"\n", 18)
	if got, err := decode([]byte(noise+"data: a\n\n"), 1<<20); err != nil || len(got) != 1 {
		t.Errorf("comments between events: %q, %v", got, err)
	}
}

func TestErrorStays(t *testing.T) {
	var d Decoder
	for range MaxEvent/(1<<10) + 2 {
		d.Commit(copy(d.Buffer(), bytes.Repeat([]byte("x"), 1<<10)))
		d.Next()
	}
	d.Commit(copy(d.Buffer(), "\n\ndata: a\n\n"))
	if data, err := d.Next(); data != nil || err == nil {
		t.Errorf("%q, %v", data, err)
	}
}

// TestNoCopy: an event of one line that lies in the buffer is handed out as it lies
// there, without an allocation.
func TestNoCopy(t *testing.T) {
	var d Decoder
	stream := []byte(strings.Repeat("data: {\"a\":1}\n\n", 20))
	d.Buffer()
	events := 0
	allocs := testing.AllocsPerRun(100, func() {
		d.Commit(copy(d.Buffer(), stream))
		for {
			data, err := d.Next()
			if data == nil || err != nil {
				break
			}
			events++
		}
	})
	if allocs != 0 || events != 101*20 {
		t.Errorf("%v allocations, %d events", allocs, events)
	}
}

// plainDecode is the standard's algorithm word by word over the whole stream.
func plainDecode(stream string) (events []string) {
	stream = strings.TrimPrefix(stream, "\xef\xbb\xbf")
	stream = strings.ReplaceAll(stream, "\r\n", "\n")
	stream = strings.ReplaceAll(stream, "\r", "\n")
	lines := strings.Split(stream, "\n")
	var data []string
	for _, line := range lines[:len(lines)-1] { // the last has no end
		if line == "" {
			if joined := strings.Join(data, "\n"); joined != "" {
				events = append(events, joined)
			}
			data = nil
			continue
		}
		name, value, _ := strings.Cut(line, ":")
		if name == "data" {
			data = append(data, strings.TrimPrefix(value, " "))
		}
	}
	return events
}

// FuzzSplit: feeding in any split gives the events of the standard's algorithm.
func FuzzSplit(f *testing.F) {
	for _, s := range []string{
		"data: a\n\n", "data:a\r\n\r\ndata: b\r\rdata\n\n", "\xef\xbb\xbfdata: a\ndata: b\n\n",
		": c\r\n\r\ndata: a\r\n: c\r\ndata: b\r\n\r\n", "\xef\xbbdata: a\n\n", "data: a\n\r\ndata: b\n\n\r",
	} {
		f.Add([]byte(s), uint8(1), uint8(3))
	}
	f.Fuzz(func(t *testing.T, stream []byte, a, b uint8) {
		want := plainDecode(string(stream))
		for _, sizes := range [][]int{{1}, {int(a), int(b)}, {int(b), int(a), 1, 2}, {1 << 20}} {
			got, err := decode(stream, sizes...)
			if err != nil || !slices.Equal(got, want) {
				t.Fatalf("%q in pieces of %v: got %q (%v), want %q", stream, sizes, got, err, want)
			}
		}
	})
}

func BenchmarkNext(b *testing.B) {
	event := "data: " + strings.Repeat("x", 280) + "\n\n"
	for name, perRead := range map[string]int{"1 a read": 1, "32 a read": 32} {
		b.Run(name, func(b *testing.B) {
			var d Decoder
			read := []byte(strings.Repeat(event, perRead))
			b.SetBytes(int64(len(event)))
			b.ReportAllocs()
			for n := 0; n < b.N; n += perRead {
				d.Commit(copy(d.Buffer(), read))
				for {
					if data, _ := d.Next(); data == nil {
						break
					}
				}
			}
		})
	}
}
