package record

import "time"

// Kind says where the numbers of a run come from.
type Kind string

const (
	Measured  Kind = "measured"
	Simulated Kind = "simulated" // the embedded engine: every number says so
	Published Kind = "published" // read from somebody's page
)

// Run is run.json.
type Run struct {
	SchemaVersion int    `json:"schema_version"`
	ID            string `json:"id"` // 20261130T201947Z-name-1a2b3c
	Kind          Kind   `json:"kind"`
	Name          string `json:"name"`
	Title         string `json:"title"`
	Notes         string `json:"notes,omitempty"`  // Markdown, untrusted
	Author        string `json:"author,omitempty"` // as claimed

	StartedAt   time.Time  `json:"started_at"`
	FinishedAt  *time.Time `json:"finished_at,omitempty"` // nil while partial
	Interrupted bool       `json:"interrupted,omitempty"`
	ResumedFrom string     `json:"resumed_from,omitempty"` // run id whose trials were taken over
	RerunOf     string     `json:"rerun_of,omitempty"`     // run id whose plan was carried out again
	Executor    string     `json:"executor,omitempty"`     // who carries the plan out: dagger, host, …

	PlanDigest    string   `json:"plan_digest"`
	MethodVersion string   `json:"method_version"`
	Unpinned      []string `json:"unpinned,omitempty"`  // sentences: what a rerun could not fix
	Overrides     []string `json:"overrides,omitempty"` // --set key=value, as given

	Tool     Tool     `json:"tool"`
	Hardware Hardware `json:"hardware"` // as claimed by the experiment or the page
	Engine   Engine   `json:"engine"`   // as claimed
	Load     Load     `json:"load"`     // the page's Run block
	Command  Command  `json:"command"`

	Found    []Field   `json:"found,omitempty"` // what was found on this machine
	Launches []Launch  `json:"launches,omitempty"`
	Findings []Finding `json:"findings,omitempty"` // what does not add up, or limits the numbers
	Plan     []Field   `json:"plan,omitempty"`     // plan and method, for the page

	Again  string `json:"again,omitempty"`  // the command that makes this run again
	Attach string `json:"attach,omitempty"` // URL of a server that was there already
	// ExperimentDir is the folder that the experiment's relative paths start from, as
	// given on the command line.
	ExperimentDir string `json:"experiment_dir,omitempty"`
	Source        string `json:"source,omitempty"` // of a published run: file name or URL
	Files         []File `json:"files,omitempty"`
}

// Field is one line of a list on a page.
type Field struct {
	Label string `json:"label"`
	Value string `json:"value"`
}

// Tool is the program that measured.
type Tool struct {
	Name    string `json:"name"`
	Version string `json:"version,omitempty"`
	Commit  string `json:"commit,omitempty"`
	Dirty   bool   `json:"dirty,omitempty"`
	Go      string `json:"go,omitempty"`
}

// Hardware as claimed, in the order of the pages.
type Hardware struct {
	Type string `json:"type,omitempty"`
	GPU  string `json:"gpu,omitempty"`
	VRAM string `json:"vram,omitempty"` // as written: "96 GB"
	CPU  string `json:"cpu,omitempty"`
	RAM  string `json:"ram,omitempty"`
	OS   string `json:"os,omitempty"`
}

// Engine as claimed, in the order of the pages.
type Engine struct {
	Engine       string `json:"engine,omitempty"`
	Version      string `json:"version,omitempty"`
	Quantization string `json:"quantization,omitempty"`
	Backend      string `json:"backend,omitempty"`
	Repository   string `json:"repository,omitempty"`
	Build        string `json:"build,omitempty"` // CUDA label or image tag, as written
	Commit       string `json:"commit,omitempty"`
}

// Load is the Run block of the pages, in their order.
type Load struct {
	ServedModel    string `json:"served_model,omitempty"`
	Model          string `json:"model,omitempty"` // id given to vllm serve; ours, not on the seeds
	Revision       string `json:"revision,omitempty"`
	BenchmarkTool  string `json:"benchmark_tool,omitempty"`
	DecodeTest     string `json:"decode_test,omitempty"`
	PrefillMode    string `json:"prefill_mode,omitempty"`
	TimePerMeasure string `json:"time_per_measurement,omitempty"` // "30 s"
	MaxOutput      string `json:"max_output,omitempty"`           // "4,096 tokens"
}

// Command is the launch command as published: secrets replaced.
type Command struct {
	Text     string   `json:"text,omitempty"` // shell lines, runnable, redacted
	Argv     []string `json:"argv,omitempty"` // redacted
	Comments []string `json:"comments,omitempty"`
}

// Launch is one start of the engine.
type Launch struct {
	Number       int        `json:"number"` // 1-based within the run
	Executor     string     `json:"executor"`
	StartedAt    time.Time  `json:"started_at"`
	ReadySeconds *float64   `json:"ready_seconds,omitempty"` // start to the first real completion
	EndedAt      *time.Time `json:"ended_at,omitempty"`
	ExitStatus   string     `json:"exit_status,omitempty"` // "exit status 1", "signal: killed"; empty if we stopped it
	Argv         []string   `json:"argv,omitempty"`        // as executed, redacted
	Env          []string   `json:"env,omitempty"`         // NAME=value, redacted
	LogTail      []string   `json:"log_tail,omitempty"`    // last lines, when it died

	Version             string   `json:"version,omitempty"` // /version
	Models              []string `json:"models,omitempty"`  // /v1/models
	MaxModelLen         *int64   `json:"max_model_len,omitempty"`
	MetricsAvailable    bool     `json:"metrics_available"`
	Engines             int      `json:"engines,omitempty"` // data-parallel engines seen
	KVCapacityTokens    *int64   `json:"kv_capacity_tokens,omitempty"`
	KVCapacityPerEngine []int64  `json:"kv_capacity_per_engine,omitempty"`
	KVCapacitySource    string   `json:"kv_capacity_source,omitempty"` // label, blocks, log, experiment, option, unknown
	Settings            []Field  `json:"settings,omitempty"`           // from the start-up log
}

// Finding is one thing that does not add up, or that limits the numbers, with
// its arithmetic.
type Finding struct {
	Kind   string `json:"kind"`            // stable word: "total_vs_tokens", "unpinned", …
	Where  string `json:"where,omitempty"` // "decode 128K × 1", "line 88", …
	Text   string `json:"text"`            // a sentence with the numbers
	StepID string `json:"step_id,omitempty"`
}

// File of a run directory.
type File struct {
	Path   string `json:"path"` // slash-separated, relative to the run directory
	SHA256 string `json:"sha256"`
	Bytes  int64  `json:"bytes"`
}
