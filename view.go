package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	tea "github.com/charmbracelet/bubbletea"

	"speedmatrix/experiments/plan"
	"speedmatrix/experiments/resolve"
	"speedmatrix/report/unit"
	"speedmatrix/results/metric"
	"speedmatrix/results/record"
	"speedmatrix/runner"
)

// view shows a run to whoever waits for it. Its methods are called one at a time,
// but for ending and end, which a signal brings beside the others.
type view interface {
	launched(record.Launch)
	trial(record.Cell)
	progress(runner.Progress)
	// ending says that the first signal came: the current cell is ended.
	ending()
	// end is called when nothing more is measured; again, it does nothing. Until then
	// nobody else may write to the terminal.
	end()
	// result prints where the page is, on standard output.
	result(path string, counts map[record.Status]int) error
}

func newView(p process, o runOptions, pl *plan.Plan) view {
	left := newRemaining(pl)
	switch {
	case o.json:
		return &jsonView{enc: json.NewEncoder(p.stdout), stderr: p.stderr}
	case p.terminal && !o.plain:
		return newLiveView(p, pl, left)
	default:
		return &plainView{stderr: p.stderr, stdout: p.stdout, left: left}
	}
}

// remaining estimates the time left: what finished cells of the same phase took on
// average, or what the plan asks for where none has finished.
type remaining struct {
	plan  *plan.Plan
	left  map[string]plan.Step
	took  map[string]time.Duration
	n     map[string]int
	since time.Time // zero: nothing is measured yet; what was kept took no time now
}

func newRemaining(p *plan.Plan) *remaining {
	r := &remaining{plan: p, left: map[string]plan.Step{}, took: map[string]time.Duration{}, n: map[string]int{}}
	for _, s := range p.Identity.Steps {
		if s.Skip == "" && p.Identity.Predict(p.Identity.Capacity, s).Fits {
			r.left[s.ID] = s
		}
	}
	return r
}

func (r *remaining) begin() { r.since = time.Now() }

func (r *remaining) done(c record.Cell) {
	if r.since.IsZero() {
		delete(r.left, c.StepID)
		return
	}
	now := time.Now()
	if _, ok := r.left[c.StepID]; ok && c.StartedAt != nil && c.Status != record.Skipped && c.Status != record.OverCapacity {
		r.took[c.Phase] += now.Sub(r.since)
		r.n[c.Phase]++
	}
	delete(r.left, c.StepID)
	r.since = now
}

func (r *remaining) String() string {
	var d time.Duration
	for _, s := range r.left {
		if n := r.n[s.Phase]; n > 0 {
			d += r.took[s.Phase] / time.Duration(n)
		} else {
			d += resolve.EstimateStep(&r.plan.Identity, s)
		}
	}
	about := "about " + d.Round(time.Second).String()
	if r.since.IsZero() {
		about += " once the engine is ready"
	}
	switch len(r.left) {
	case 0:
		return "last cell"
	case 1:
		return "1 cell left, " + about
	}
	return fmt.Sprintf("%d cells left, %s", len(r.left), about)
}

const endingNotice = "ending the current cell, then storing what there is; Ctrl-C again stops at once"

// cellLine is one cell as a line: the same words and number style as the page.
func cellLine(c *record.Cell) string {
	name := fmt.Sprintf("%s %s", strings.ToLower(record.PhaseWords(c.Phase)), c.ContextLabel)
	if c.Phase == record.PhaseDecode {
		name += fmt.Sprintf(" × %d", c.Concurrency)
	}
	if c.Repeat > 1 {
		name += fmt.Sprintf(" #%d", c.Repeat)
	}
	parts := []string{fmt.Sprintf("%-27s %-15s", name, c.Status.Words())}
	rate := metric.OutputTokensPerSecond
	if c.Phase == record.PhasePrefill {
		rate = metric.PrefillTokensPerSecond
	}
	if v, ok := c.Value(rate); ok {
		parts = append(parts, fmt.Sprintf("%9s tok/s", unit.Rate(v).Text))
	}
	if v, ok := c.Value(metric.TTFT); ok {
		parts = append(parts, unit.Milliseconds(v*1000).Text+" TTFT")
	}
	if v, ok := c.Value(metric.TPOT); ok {
		parts = append(parts, unit.FineMilliseconds(v*1000).Text+" between tokens")
	}
	if v, ok := c.Value(metric.ActiveRequests); ok && c.Phase == record.PhaseDecode {
		parts = append(parts, unit.Tenths(v).Text+" active")
	}
	why := c.Reason
	if c.Status == record.OverCapacity && len(c.Warnings) > 0 {
		why = c.Warnings[0] // the arithmetic
	}
	if why != "" {
		parts = append(parts, "("+oneLine(why, 200)+")")
	}
	return strings.Join(parts, "  ")
}

// plainView prints one line per event; for logs and pipes.
type plainView struct {
	stderr, stdout io.Writer
	left           *remaining
	stage, text    string // told last
}

func (v *plainView) launched(l record.Launch) {
	if l.EndedAt != nil || l.ExitStatus != "" {
		return
	}
	v.left.begin()
	fmt.Fprintln(v.stderr, launchLine(l))
}

func launchLine(l record.Launch) string {
	s := fmt.Sprintf("engine ready (launch %d, %s)", l.Number, l.Executor)
	if l.Version != "" {
		s += ", version " + l.Version
	}
	if l.ReadySeconds != nil {
		s += fmt.Sprintf(", after %.1f s", *l.ReadySeconds)
	}
	if l.KVCapacityTokens != nil {
		s += fmt.Sprintf(", KV cache %s tokens (%s)", grouped(*l.KVCapacityTokens), l.KVCapacitySource)
	} else {
		s += ", KV capacity unknown"
	}
	if !l.MetricsAvailable {
		s += ", no /metrics"
	}
	return oneLine(s, 400)
}

func (v *plainView) trial(c record.Cell) {
	v.left.done(c)
	fmt.Fprintf(v.stderr, "%s  [%s]\n", cellLine(&c), v.left)
}

func (v *plainView) progress(p runner.Progress) {
	// Inside a cell a log wants nothing; before the first one it wants to know why
	// it waits.
	if p.StepID != "" || p.Text == "" || (p.Stage == v.stage && p.Text == v.text) {
		return
	}
	v.stage, v.text = p.Stage, p.Text
	fmt.Fprintf(v.stderr, "%s: %s\n", p.Stage, oneLine(p.Text, 300))
}

func (v *plainView) ending() { fmt.Fprintln(v.stderr, "\n"+endingNotice) }
func (v *plainView) end()    {}

func (v *plainView) result(path string, counts map[record.Status]int) error {
	return printResult(v.stdout, v.stderr, path, counts)
}

// printResult ends the views for people: the page's path is all that standard
// output gets.
func printResult(stdout, stderr io.Writer, path string, counts map[record.Status]int) error {
	var parts []string
	for _, s := range record.Statuses {
		if n := counts[s]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, s))
		}
	}
	fmt.Fprintln(stderr, strings.Join(parts, ", "))
	_, err := fmt.Fprintln(stdout, pagePath(path))
	return err
}

// jsonView prints one object per line on standard output. The format is
// documented in results/FORMAT.md.
type jsonView struct {
	stderr io.Writer
	mu     sync.Mutex
	enc    *json.Encoder
	err    error // the first that writing gave: nobody reads on
}

func (v *jsonView) put(event string, key string, value any) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.err = cmp.Or(v.err, v.enc.Encode(map[string]any{"event": event, "time": time.Now().UTC(), key: value}))
}

func (v *jsonView) launched(l record.Launch) { v.put("launch", "launch", l) }

// trial leaves out seq, which no cell has before the run is stored.
func (v *jsonView) trial(c record.Cell) {
	v.put("cell", "cell", struct {
		record.Cell
		Seq *int `json:"seq,omitempty"`
	}{Cell: c})
}
func (v *jsonView) progress(p runner.Progress) {
	v.put("progress", "progress", struct {
		Stage          string  `json:"stage"`
		StepID         string  `json:"step_id,omitempty"`
		Text           string  `json:"text,omitempty"`
		ElapsedSeconds float64 `json:"elapsed_seconds"`
		TotalSeconds   float64 `json:"total_seconds"`
		Tokens         int64   `json:"tokens"`
		Active         int     `json:"active"`
	}{p.Stage, p.StepID, p.Text, p.Elapsed.Seconds(), p.Total.Seconds(), p.Tokens, p.Active})
}
func (v *jsonView) ending() { fmt.Fprintln(v.stderr, "\n"+endingNotice) }
func (v *jsonView) end()    {}
func (v *jsonView) result(path string, counts map[record.Status]int) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	return cmp.Or(v.err, v.enc.Encode(map[string]any{"event": "done", "time": time.Now().UTC(), "run": path, "page": pagePath(path), "statuses": counts}))
}

// liveView is the matrix that fills in cell by cell on a terminal. While it runs,
// the terminal is its own: it echoes nothing.
type liveView struct {
	program        *tea.Program
	ended          chan struct{}
	stderr, stdout io.Writer
}

func newLiveView(p process, pl *plan.Plan, left *remaining) *liveView {
	v := &liveView{ended: make(chan struct{}), stderr: p.stderr, stdout: p.stdout}
	v.program = tea.NewProgram(newLiveModel(pl, left), tea.WithOutput(p.stderr), tea.WithInput(nil), tea.WithoutSignalHandler())
	restore := func() {}
	if f, ok := p.stderr.(*os.File); ok {
		restore = silence(f)
	}
	go func() {
		defer close(v.ended)
		_, err := v.program.Run()
		restore()
		if err != nil {
			fmt.Fprintf(v.stderr, "live view: %v\n", err)
		}
	}()
	return v
}

type endingMsg struct{}
type endMsg struct{}

func (v *liveView) launched(l record.Launch)   { v.program.Send(l) }
func (v *liveView) trial(c record.Cell)        { v.program.Send(c) }
func (v *liveView) progress(p runner.Progress) { v.program.Send(p) }
func (v *liveView) ending()                    { v.program.Send(endingMsg{}) }
func (v *liveView) end() {
	v.program.Send(endMsg{})
	<-v.ended
}
func (v *liveView) result(path string, counts map[record.Status]int) error {
	return printResult(v.stdout, v.stderr, path, counts)
}

// liveModel is the state of the live matrix; pure but for the clock in remaining.
type liveModel struct {
	plan     *plan.Plan
	left     *remaining
	contexts []string // rows of the decode matrix
	columns  []int
	prefill  []string
	cells    map[string]record.Cell // by StepID, last repeat wins
	now      runner.Progress
	launch   string
	width    int
	ending   bool
	over     bool
}

func newLiveModel(pl *plan.Plan, left *remaining) *liveModel {
	m := &liveModel{plan: pl, left: left, cells: map[string]record.Cell{}, width: 100}
	for _, s := range pl.Identity.Steps {
		if s.Phase == record.PhasePrefill {
			m.prefill = appendNew(m.prefill, s.ContextLabel)
			continue
		}
		m.contexts, m.columns = appendNew(m.contexts, s.ContextLabel), appendNew(m.columns, s.Concurrency)
	}
	slices.Sort(m.columns)
	return m
}

func appendNew[T comparable](s []T, v T) []T {
	if slices.Contains(s, v) {
		return s
	}
	return append(s, v)
}

func (m *liveModel) Init() tea.Cmd { return nil }

func (m *liveModel) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		if msg.Width > 0 { // 0: the terminal does not know
			m.width = msg.Width
		}
	case record.Launch:
		if msg.EndedAt == nil {
			m.launch = launchLine(msg)
			m.left.begin()
		}
	case record.Cell:
		m.left.done(msg)
		if msg.StepID == m.now.StepID {
			m.now = runner.Progress{}
		}
		m.cells[cellKey(msg.Phase, msg.ContextLabel, msg.Concurrency)] = msg
	case runner.Progress:
		m.now = msg
	case endingMsg:
		m.ending = true
	case endMsg:
		m.over = true
		m.now = runner.Progress{}
		// A size makes the renderer draw every line anew, whatever stands there; height
		// 0 has it draw those too that had no room while it ran.
		whole := tea.WindowSizeMsg{Width: m.width}
		return m, tea.Sequence(func() tea.Msg { return whole }, tea.Quit)
	}
	return m, nil
}

func cellKey(phase, label string, concurrency int) string {
	return fmt.Sprintf("%s/%s/%d", phase, label, concurrency)
}

func (m *liveModel) View() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", oneLine(cmp.Or(m.plan.Text.Title, m.plan.Text.Name), m.width))
	if m.launch != "" {
		fmt.Fprintf(&b, "%s\n", oneLine(m.launch, m.width-1))
	}
	running := ""
	for _, s := range m.plan.Identity.Steps {
		if s.ID == m.now.StepID {
			running = cellKey(s.Phase, s.ContextLabel, s.Concurrency)
		}
	}
	if len(m.prefill) > 0 {
		b.WriteString("\nprefill, tok/s\n")
		for _, l := range m.prefill {
			fmt.Fprintf(&b, "  %-8s %s\n", printable(l), m.cell(record.PhasePrefill, l, 1, running, metric.PrefillTokensPerSecond))
		}
	}
	if len(m.contexts) > 0 {
		b.WriteString("\ndecode, tok/s  (rows: context, columns: simultaneous requests)\n")
		// As many columns beside each other as there is room for.
		for columns := range slices.Chunk(m.columns, max(1, (m.width-11)/11)) {
			fmt.Fprintf(&b, "  %-8s", "")
			for _, c := range columns {
				fmt.Fprintf(&b, " %10d", c)
			}
			b.WriteByte('\n')
			for _, l := range m.contexts {
				fmt.Fprintf(&b, "  %-8s", printable(l))
				for _, c := range columns {
					fmt.Fprintf(&b, " %10s", m.cell(record.PhaseDecode, l, c, running, metric.OutputTokensPerSecond))
				}
				b.WriteByte('\n')
			}
		}
	}
	if legend := m.legend(); legend != "" {
		fmt.Fprintf(&b, "\n%s\n", oneLine(legend, m.width-1))
	}
	b.WriteByte('\n')
	if m.over {
		return b.String()
	}
	now := m.now.Stage
	if m.now.StepID != "" {
		now = m.now.StepID + " · " + now
	}
	if m.now.Total > 0 {
		now += fmt.Sprintf(" %.1f s of %.1f s", m.now.Elapsed.Seconds(), m.now.Total.Seconds())
	}
	if m.now.Tokens > 0 {
		now += fmt.Sprintf(" · %d active · %s tokens", m.now.Active, grouped(m.now.Tokens))
	}
	if m.now.Text != "" {
		now += " · " + m.now.Text
	}
	last := m.left.String() + " · Ctrl-C ends and keeps what was measured"
	if m.ending {
		last = endingNotice
	}
	fmt.Fprintf(&b, "%s\n%s\n", oneLine(now, m.width-1), oneLine(last, m.width-1))
	return b.String()
}

// legend explains the marks that stand in the matrix.
func (m *liveModel) legend() string {
	marks := []struct{ end, text string }{
		{" q", "q queued"},
		{" !", "! read the status on the page"},
		{"over", "over = over capacity"},
		{"cut", "cut = ended early"},
	}
	occurs := make([]bool, len(marks))
	for _, c := range m.cells {
		rate := metric.OutputTokensPerSecond
		if c.Phase == record.PhasePrefill {
			rate = metric.PrefillTokensPerSecond
		}
		text := finished(&c, rate)
		for i, mark := range marks {
			occurs[i] = occurs[i] || strings.HasSuffix(text, mark.end)
		}
	}
	var parts []string
	for i, mark := range marks {
		if occurs[i] {
			parts = append(parts, mark.text)
		}
	}
	return strings.Join(parts, " · ")
}

// cell is the text of one cell of the matrix.
func (m *liveModel) cell(phase, label string, concurrency int, running, name string) string {
	key := cellKey(phase, label, concurrency)
	c, ok := m.cells[key]
	if key == running {
		return "▸ …"
	}
	if !ok {
		return "·"
	}
	return finished(&c, name)
}

// finished is a cell's number, a mark with the number where the status is not
// Valid, or a word; it has at most ten characters.
func finished(c *record.Cell, name string) string {
	v, known := c.Value(name)
	switch {
	case c.Status == record.Interrupted:
		return "cut"
	case known && c.Status == record.Valid:
		return unit.Rate(v).Text
	case known && c.Status == record.Queued:
		return unit.Rate(v).Text + " q"
	case known:
		return unit.Rate(v).Text + " !"
	}
	switch c.Status {
	case record.OverCapacity:
		return "over"
	case record.NotReady:
		return "not ready"
	case record.Underfilled:
		return "underfill"
	case record.ClientLimited:
		return "client"
	}
	return string(c.Status) // failed, skipped, loop, and what has no number though it should
}
