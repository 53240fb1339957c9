package container

import (
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"speedmatrix/experiments/plan"
	"speedmatrix/results/record"
)

// randomTrial is a decode trial of so many streams with so many tokens each.
func randomTrial(step string, streams, tokens int) record.Trial {
	const every = 20 * time.Millisecond
	random := rand.New(rand.NewPCG(1, 2))
	t := record.Trial{
		StepID: step, Point: record.Point{Phase: record.PhaseDecode, ContextLabel: "0", Concurrency: streams}, Repeat: 1, Launch: 1,
		Status: record.Valid, StartedAt: time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC), EndNs: int64(tokens) * int64(every), MaxOutput: 8192,
	}
	for s := range streams {
		r := record.Request{Index: s, Stream: s, Role: record.RoleMeasured, Outcome: record.OutcomeCancelled, HTTPStatus: 200, RunningUsage: true}
		for i := range tokens {
			r.Chunks = append(r.Chunks, record.Chunk{
				AtNs:   int64(i+1)*int64(every) + random.Int64N(int64(5*time.Millisecond)),
				Tokens: int64(i + 1), HasTokens: true, Output: true, Channel: record.ChannelContent, ReadEvents: 1,
			})
		}
		t.Requests = append(t.Requests, r)
	}
	return t
}

func stepOf(t record.Trial) plan.Step {
	return plan.Step{ID: t.StepID, Phase: t.Phase, ContextTokens: t.ContextTokens, ContextLabel: t.ContextLabel, Concurrency: t.Concurrency, Repeat: t.Repeat}
}

// keep writes the files of trials, and tells nobody.
func keep(t testing.TB, j *journal, trials ...record.Trial) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(j.dir, trialsDir), 0o755); err != nil {
		t.Fatal(err)
	}
	quiet := &journal{dir: j.dir, events: newEventWriter(io.Discard, "n")}
	defer quiet.events.close()
	for _, trial := range trials {
		if err := quiet.Trial(trial); err != nil {
			t.Fatal(err)
		}
	}
}

// writeTrial writes something in place of a trial.
func writeTrial(t *testing.T, path string, text string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	z := gzip.NewWriter(f)
	_, err = io.WriteString(z, text)
	if err := errors.Join(err, z.Close(), f.Close()); err != nil {
		t.Fatal(err)
	}
}

func TestDone(t *testing.T) {
	t.Parallel()
	good := randomTrial("good", 2, 3)
	type step struct {
		spoil func(t *testing.T, path string)
		trial record.Trial // what is kept first
		done  bool
		warn  string // what is said of one that is set aside
	}
	with := func(id string, change func(*record.Trial)) record.Trial {
		trial := randomTrial(id, 2, 3)
		change(&trial)
		return trial
	}
	same := func(*record.Trial) {}
	asJSON := func(trial record.Trial) string {
		b, err := json.Marshal(trial)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	rename := func(t *testing.T, from, to string) {
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
	}
	cut := func(by int64) func(*testing.T, string) {
		return func(t *testing.T, path string) {
			fi, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.Truncate(path, fi.Size()-by); err != nil {
				t.Fatal(err)
			}
		}
	}
	steps := map[string]step{
		"valid":       {trial: with("valid", same), done: true},
		"failed":      {trial: with("failed", func(t *record.Trial) { t.Status = record.Failed }), done: true},
		"interrupted": {trial: with("interrupted", func(t *record.Trial) { t.Status = record.Interrupted })},
		"absent":      {trial: with("absent", same), spoil: func(t *testing.T, path string) { rename(t, path, path+".elsewhere") }},
		"told":        {trial: with("told", same), spoil: func(t *testing.T, path string) { rename(t, path, path+".elsewhere") }, done: true},
		"torn":        {trial: with("torn", same), spoil: cut(20), warn: "unexpected EOF"},
		"sum":         {trial: with("sum", same), spoil: cut(1), warn: "unexpected EOF"},
		"empty":       {trial: with("empty", same), spoil: func(t *testing.T, path string) { cut(0)(t, path); _ = os.Truncate(path, 0) }, warn: "EOF"},
		"not-gzip":    {trial: with("not-gzip", same), spoil: func(t *testing.T, path string) { _ = os.WriteFile(path, []byte("{}"), 0o600) }, warn: "EOF"},
		"not-json":    {trial: with("not-json", same), spoil: func(t *testing.T, path string) { writeTrial(t, path, "no") }, warn: "invalid character"},
		"twice":       {trial: with("twice", same), spoil: func(t *testing.T, path string) { writeTrial(t, path, asJSON(with("twice", same))+"{}") }, warn: "something follows"},
		"field":       {trial: with("field", same), spoil: func(t *testing.T, path string) { writeTrial(t, path, `{"step_id":"field","speed":1}`) }, warn: `unknown field "speed"`},
		"other":       {trial: with("other", same), spoil: func(t *testing.T, path string) { writeTrial(t, path, asJSON(good)) }, warn: `it holds the trial "good"`},
		"cell":        {trial: with("cell", func(t *record.Trial) { t.Concurrency = 3 }), warn: "not the plan's"},
		"repeat":      {trial: with("repeat", func(t *record.Trial) { t.Repeat = 2 }), warn: "not the plan's"},
		"status":      {trial: with("status", func(t *record.Trial) { t.Status = "splendid" }), warn: `no status "splendid"`},
	}
	var names []string
	j := &journal{dir: t.TempDir()}
	p := &plan.Plan{}
	for name, s := range steps {
		names = append(names, name)
		keep(t, j, s.trial)
		p.Identity.Steps = append(p.Identity.Steps, stepOf(with(name, same)))
		if s.spoil != nil {
			s.spoil(t, j.trialPath(name))
		}
	}
	left := filepath.Join(j.dir, trialsDir, ".killed.json.gz.123")
	if err := os.WriteFile(left, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	var warn strings.Builder
	done, err := j.done(p, []string{"told"}, &warn)
	if err != nil {
		t.Fatal(err)
	}
	said := map[string]string{}
	for line := range strings.Lines(warn.String()) {
		base := filepath.Base(strings.Fields(line)[1])
		said[strings.TrimSuffix(base, trialEnd+":")] = line
	}
	for _, name := range names {
		s := steps[name]
		if done[name] != s.done {
			t.Errorf("%s: done %v", name, done[name])
		}
		if line := said[name]; (line == "") != (s.warn == "") || !strings.Contains(line, s.warn) {
			t.Errorf("%s: it said %q", name, line)
		}
		_, err := os.Stat(j.trialPath(name) + ".bad")
		if (err == nil) != (s.warn != "") {
			t.Errorf("%s: set aside: %v", name, err)
		}
	}
	if _, err := os.Stat(left); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what was being written is still there: %v", err)
	}

	// What was set aside is no trial for anybody outside either.
	out := filepath.Join(t.TempDir(), "out")
	if err := Collect(j.dir, out); err != nil {
		t.Fatal(err)
	}
	c, err := Open(out, p)
	if err != nil {
		t.Fatal(err)
	}
	if got := len(trialsOf(t, c)); got != 3 {
		t.Errorf("%d trials are left", got)
	}
}

// Outside, one trial that cannot be read leaves the others.
func TestOpenHostile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	j := &journal{dir: dir}
	a, b := randomTrial("a", 1, 3), randomTrial("b", 1, 3)
	keep(t, j, a, b, randomTrial("not-in-the-plan", 1, 3))
	if err := os.WriteFile(j.trialPath("a"), []byte("torn"), 0o600); err != nil {
		t.Fatal(err)
	}
	for n, text := range map[int]string{
		1:    `{"number": 1, "executor": "dagger"}`,
		2:    `{"number": 1}`,
		3:    `{"number": 3, "version": "` + strings.Repeat("x", maxState) + `"}`,
		5:    `{"number": 5}`,
		1001: `{"number": 1001}`,
	} {
		if err := os.MkdirAll(LaunchDir(dir, n), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(LaunchDir(dir, n), launchFile), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	nowhere := stepOf(a)
	nowhere.ID = "../launch-1/launch"
	c, err := Open(dir, &plan.Plan{Identity: plan.Identity{Steps: []plan.Step{stepOf(a), nowhere, stepOf(b)}}})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for trial, err := range c.Trials() {
		if err != nil {
			got = append(got, "bad")
			continue
		}
		got = append(got, trial.StepID)
	}
	if diff := cmp.Diff([]string{"bad", "b"}, got); diff != "" {
		t.Error(diff)
	}
	for range c.Trials() { // one who has seen enough
		break
	}
	var numbers []int
	for _, l := range c.Launches() {
		numbers = append(numbers, l.Number)
	}
	if diff := cmp.Diff([]int{1, 5}, numbers); diff != "" {
		t.Error(diff)
	}
	if _, ok := c.Engine(1); ok {
		t.Error("an engine without a state")
	}
	if _, ok := c.End(1); ok {
		t.Error("an end without a file")
	}
	if _, err := Open(filepath.Join(dir, "nowhere"), &plan.Plan{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a folder that is not there: %v", err)
	}
}

func FuzzDecodeTrial(f *testing.F) {
	b, err := json.Marshal(randomTrial("a", 1, 2))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b, false)
	f.Add([]byte(`{"step_id":"a","status":"valid"}`), false)
	f.Add([]byte("\x1f\x8b\x08"), true)
	f.Fuzz(func(t *testing.T, b []byte, raw bool) {
		r := strings.NewReader(string(b))
		if !raw {
			var z strings.Builder
			w := gzip.NewWriter(&z)
			if _, err := w.Write(b); err != nil || w.Close() != nil {
				t.Fatal(err)
			}
			r = strings.NewReader(z.String())
		}
		trial, err := decodeTrial(r, "here", "a")
		if err == nil && (trial.StepID != "a" || trial.Status.Words() == string(trial.Status)) {
			t.Errorf("it took %+v", trial)
		}
	})
}

// BenchmarkTrial keeps and reads a window of 30 s with 64 streams of 50 tokens a second.
func BenchmarkTrial(b *testing.B) {
	trial := randomTrial("a", 64, 30*50)
	j := &journal{dir: b.TempDir()}
	b.Run("keep", func(b *testing.B) {
		for b.Loop() {
			keep(b, j, trial)
		}
		fi, err := os.Stat(j.trialPath("a"))
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(fi.Size()), "file-bytes")
	})
	keep(b, j, trial)
	b.Run("read", func(b *testing.B) {
		for b.Loop() {
			if _, err := readTrial(j.trialPath("a"), stepOf(trial)); err != nil {
				b.Fatal(err)
			}
		}
	})
}
