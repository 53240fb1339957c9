package container

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"speedmatrix/results/record"
	"speedmatrix/runner"
)

// readAll gives what a reader finds in a log that comes in pieces of n bytes.
func readAll(t *testing.T, log string, n int) (events []Event, lines []string) {
	t.Helper()
	r := NewEventReader(func(e Event) { events = append(events, e) }, func(s string) { lines = append(lines, s) })
	for rest := log; rest != ""; {
		piece := rest[:min(n, len(rest))]
		if wrote, err := io.WriteString(r, piece); err != nil || wrote != len(piece) {
			t.Fatalf("it took %d of %d bytes: %v", wrote, len(piece), err)
		}
		rest = rest[len(piece):]
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	return events, lines
}

func TestEventReader(t *testing.T) {
	t.Parallel()
	const event = eventPrefix + `{"nonce":"n","progress":{"Stage":"window","Text":"a \u001b[1m b"}}`
	window := Event{Nonce: "n", Progress: &runner.Progress{Stage: "window", Text: "a \x1b[1m b"}}
	long := strings.Repeat("x", maxEventLine)
	for name, tt := range map[string]struct {
		log    string
		events []Event
		lines  []string
	}{
		"plain":               {event + "\n", []Event{window}, nil},
		"no end of line":      {event, []Event{window}, nil},
		"carriage return":     {event + "\r\n", []Event{window}, nil},
		"marks of the log":    {"12 : [3.2s] | " + event + "\n", []Event{window}, nil},
		"colours":             {"\x1b[2m12 : \x1b[0m" + event + "\x1b[0m  \n", []Event{window}, nil},
		"other lines":         {"pulling image\n" + event + "\n\n  done \n", []Event{window}, []string{"pulling image", "done"}},
		"other lines' colour": {"\x1b[31mred\x1b[0m\x1b]0;title\x07 \x1b]8;;http://x\x1b\\link\x1b[K\r\a\u009b\n", nil, []string{"red link"}},
		"no text":             {"\x1b[0m\n\xff\xfe\n", nil, nil},
		"cut":                 {event[:60] + "\n" + event + "\n", []Event{window}, nil},
		"behind one cut":      {event[:60] + event + "\n", []Event{window}, nil},
		"behind the prefix":   {eventPrefix + eventPrefix + event + "\n", []Event{window}, nil},
		"no JSON":             {eventPrefix + "of the sort\n", nil, nil},
		"wrong type":          {eventPrefix + `{"nonce":1}` + "\n" + eventPrefix + "[]\n", nil, nil},
		"prefix in a text": {eventPrefix + `{"nonce":"n","end":{"error":"speedmatrix-event {}"}}` + "\n",
			[]Event{{Nonce: "n", End: &End{Error: "speedmatrix-event {}"}}}, nil},
		"long":         {long + "\n", nil, []string{strings.Repeat("x", maxShown)}},
		"too long":     {long + "x\n" + event + "\n", []Event{window}, nil},
		"far too long": {strings.Repeat(long, 3) + event + "\nshort\n", nil, []string{"short"}},
		"cut in a rune": {strings.Repeat("x", maxShown-1) + "é\n", nil,
			[]string{strings.Repeat("x", maxShown-1)}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, n := range []int{1, 7, 4096, 1 << 30} {
				if n == 1 && len(tt.log) > 1<<20 {
					continue
				}
				events, lines := readAll(t, tt.log, n)
				if diff := cmp.Diff(tt.events, events); diff != "" {
					t.Errorf("in pieces of %d: %s", n, diff)
				}
				if diff := cmp.Diff(tt.lines, lines); diff != "" {
					t.Errorf("in pieces of %d: %s", n, diff)
				}
			}
		})
	}
}

// Nobody need be there for what is found.
func TestEventReaderNobody(t *testing.T) {
	t.Parallel()
	if _, err := io.WriteString(NewEventReader(nil, nil), eventPrefix+"{}\nline\n"); err != nil {
		t.Error(err)
	}
}

func FuzzEventReader(f *testing.F) {
	f.Add(eventPrefix+`{"nonce":"n","end":{}}`+"\nline\r\n", uint8(1))
	f.Add("12 : [3.2s] | "+eventPrefix+`{"part":{"step":"a","data":"AAAA"}}`+"\x1b[0m\n", uint8(9))
	f.Add("\x1b]0;x\x07\xff\x1b[\n"+eventPrefix+eventPrefix+"{}", uint8(3))
	f.Add(strings.Repeat("x", maxShown)+"é\n\x1b", uint8(200))
	f.Fuzz(func(t *testing.T, log string, n uint8) {
		events, lines := readAll(t, log, int(n)+1)
		wholeEvents, wholeLines := readAll(t, log, len(log)+1)
		if diff := cmp.Diff(wholeLines, lines); diff != "" {
			t.Errorf("pieces change what is read: %s", diff)
		}
		if diff := cmp.Diff(wholeEvents, events); diff != "" {
			t.Errorf("pieces change what is read: %s", diff)
		}
		if len(events) > strings.Count(log, eventPrefix) || len(events)+len(lines) > strings.Count(log, "\n")+1 {
			t.Errorf("%d events, %d lines", len(events), len(lines))
		}
		for _, s := range lines {
			if s == "" || len(s) > maxShown || !utf8.ValidString(s) || strings.ContainsFunc(s, func(r rune) bool { return unicode.IsControl(r) && r != '\t' }) {
				t.Errorf("the line %q", s)
			}
		}
	})
}

// gate is a reader of a log that takes nothing until it is opened.
type gate struct {
	open chan struct{}
	strings.Builder
}

func (g *gate) Write(p []byte) (int, error) {
	<-g.open
	return g.Builder.Write(p)
}

// What is measured waits for nobody who should read the log, but once.
func TestEventWriterDeafReader(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := &gate{open: make(chan struct{})}
		w := newEventWriter(g, "n")
		began := time.Now()
		tell := func(n int) {
			for i := range n {
				if err := w.write(Event{End: &End{Error: fmt.Sprint(i)}}); err != nil {
					t.Fatal(err)
				}
				w.hint(Event{Progress: &runner.Progress{}})
			}
		}
		tell(500)
		if took := time.Since(began); took != deafAfter {
			t.Errorf("a reader who takes nothing costs %v", took)
		}
		close(g.open)
		synctest.Wait()
		text := g.String()
		tell(20) // there is room again
		w.close()
		events, lines := readAll(t, strings.TrimPrefix(g.String(), text), 1<<20)
		if len(lines) > 0 || len(events) < 20 || events[0].End.Error != "0" || time.Since(began) != deafAfter {
			t.Errorf("afterwards %d events, %q", len(events), lines)
		}
	})
}

func TestEventWriterCloseDeafReader(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := &gate{open: make(chan struct{})}
		w := newEventWriter(g, "n")
		w.hint(Event{End: &End{}})
		began := time.Now()
		w.close()
		if took := time.Since(began); took != deafAfter {
			t.Errorf("it waited %v", took)
		}
		close(g.open)
	})
}

func TestProgress(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		w := newEventWriter(&out, "n")
		j := &journal{events: w, redact: record.NewRedactor(theSecret)}
		text := strings.Repeat("x", maxText-5) + theSecret // cut first, half of it would be left
		for _, p := range []runner.Progress{
			{Stage: "start", Text: "one\ntwo\x1b[1m"},
			{Stage: "start", Text: "too soon"},
			{Stage: "window", StepID: "a", Text: text},
			{Stage: "window", StepID: "b", Text: strings.Repeat("é", maxText)},
			{Stage: "window", StepID: "b", Text: "too soon"},
		} {
			j.Progress(p)
		}
		time.Sleep(progressEvery) // of the bubble's own clock
		j.Progress(runner.Progress{Stage: "window", StepID: "b", Tokens: 7})
		w.close()
		events, _ := readAll(t, out.String(), 1<<20)
		var got []string
		for _, e := range events {
			if len(e.Progress.Text) > maxText+len("…") || !utf8.ValidString(e.Progress.Text) {
				t.Errorf("a text of %d bytes", len(e.Progress.Text))
			}
			got = append(got, fmt.Sprintf("%s %s %.8s %d", e.Progress.Stage, e.Progress.StepID, e.Progress.Text, e.Progress.Tokens))
		}
		if diff := cmp.Diff([]string{"start  one two 0", "window a xxxxxxxx 0", "window b éééééééé 0", "window b  7"}, got); diff != "" {
			t.Error(diff)
		}
		if strings.Contains(out.String(), `a-\"s`) {
			t.Errorf("half a secret is in %q", out.String())
		}
	})
}

// The pieces of a trial make it whole, or nothing.
func TestAssembler(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	w := newEventWriter(&out, "n")
	j := &journal{dir: t.TempDir(), events: w}
	keep(t, j, randomTrial("a", 1, 2000), randomTrial("b", 1, 2000))
	for _, step := range []string{"a", "b"} {
		if err := j.send(step); err != nil {
			t.Fatal(err)
		}
	}
	w.close()
	events, _ := readAll(t, out.String(), 1<<20)
	var a, b []Part
	for _, e := range events {
		if len(e.Part.Data) > partBytes {
			t.Errorf("a part of %d bytes", len(e.Part.Data))
		}
		if e.Part.Step == "a" {
			a = append(a, *e.Part)
		} else {
			b = append(b, *e.Part)
		}
	}
	if len(a) < 3 || len(b) < 3 {
		t.Fatalf("%d and %d parts", len(a), len(b))
	}
	flip := func(p Part) Part {
		p.Data = append([]byte{p.Data[0] ^ 1}, p.Data[1:]...)
		return p
	}
	last := len(a) - 1
	other := a[last]
	other.SHA256 = b[0].SHA256
	huge := Part{Step: "h", Count: 2, SHA256: "s", Data: make([]byte, maxSent)}
	hugeNext := huge
	hugeNext.Index = 1
	for name, tt := range map[string]struct {
		parts [][]Part
		want  string
		err   string
	}{
		"in order":        {[][]Part{a, b}, "a b", ""},
		"twice":           {[][]Part{a, a}, "a a", ""},
		"begun again":     {[][]Part{a[:2], a}, "a", ""},
		"one missing":     {[][]Part{a[:1], a[2:], b}, "b", ""},
		"the first":       {[][]Part{a[1:], b}, "b", ""},
		"the last":        {[][]Part{a[:last], b}, "b", ""},
		"mixed":           {[][]Part{a[:1], b[:1], a[1:]}, "", ""},
		"another sum":     {[][]Part{a[:last], {other}}, "", ""},
		"other bytes":     {[][]Part{{flip(a[0])}, a[1:]}, "", ""},
		"too much":        {[][]Part{{huge, hugeNext}, a}, "a", ""},
		"nothing":         {[][]Part{{Part{}}}, "", ""},
		"no trial":        {[][]Part{{{Step: "a", Count: 1, SHA256: "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad", Data: []byte("abc")}}}, "", "EOF"},
		"a count below 0": {[][]Part{{{Step: "a", Count: -1, Index: 0, SHA256: "x"}}}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var as Assembler
			var got []string
			failed := ""
			for _, parts := range tt.parts {
				for _, p := range parts {
					trial, err := as.Add(p)
					if err != nil {
						failed = err.Error()
					} else if trial != nil {
						got = append(got, trial.StepID)
					}
				}
			}
			if strings.Join(got, " ") != tt.want || (failed == "") != (tt.err == "") || !strings.Contains(failed, tt.err) {
				t.Errorf("trials %q, error %q", got, failed)
			}
		})
	}
}

// What an event holds comes back as it was.
func TestEventForm(t *testing.T) {
	t.Parallel()
	want := Event{Nonce: "n", End: &End{Engine: &runner.EngineError{Kind: record.FailEngineExit, Reason: "exit status 1\n  | boom"}, Error: "e", Drained: true}}
	b, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(b), "\n") {
		t.Errorf("more than one line: %q", b)
	}
	events, _ := readAll(t, eventPrefix+string(b)+"\n", 5)
	if diff := cmp.Diff([]Event{want}, events); diff != "" {
		t.Error(diff)
	}
}
