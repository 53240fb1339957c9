package dagger

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	sdk "dagger.io/dagger"

	"speedmatrix/pipelines"
	"speedmatrix/pipelines/container"
	"speedmatrix/pipelines/nvidia"
	"speedmatrix/pipelines/supervise"
	"speedmatrix/results/record"
	"speedmatrix/runner"
)

// Executor carries out a plan on a Dagger engine.
type Executor struct {
	// Self is the path of a static build of this program for the engine's platform.
	Self string
	// Environ is our environment, NAME=value: it says where the engine is and holds the
	// values that a published command left out.
	Environ []string
	// GPUs that the engine gets: "all", "none", or indices and UUIDs with commas. Empty:
	// all if the experiment claims a GPU, else none.
	GPUs string
	// ColdCaches starts the engine with empty compile caches. Otherwise they are kept
	// between runs of one image.
	ColdCaches bool
	// Hub is where models come from.
	Hub string
	// Login, if not nil, gives the credentials for an image's registry.
	Login func(ctx context.Context, image string) (user, secret string, ok bool, err error)
	// StopWithin is what the engine's container has before it is killed; 0: 30 s.
	StopWithin time.Duration
	// Connect replaces the connection (tests only).
	Connect func(ctx context.Context, log io.Writer) (*sdk.Client, error)
}

var _ pipelines.Executor = Executor{}

const (
	enginePort  = 8000
	engineAlias = "engine"
	// engineGrace is what the engine has to end in good order before its supervisor kills it;
	// stopWithin is when the container is killed whatever its supervisor does.
	engineGrace = 15 * time.Second
	stopWithin  = 30 * time.Second
	// shmBytes is the size of /dev/shm: engines pass hundreds of megabytes through it, and
	// the default of containers is 64 MiB. It takes memory only as it is used.
	shmBytes = 8 << 30
)

// Execute carries out job's plan.
func (x Executor) Execute(ctx context.Context, pj pipelines.Job, sink runner.Sink) (err error) {
	if err := os.MkdirAll(pj.LogsDir, 0o755); err != nil {
		return err
	}
	j, err := x.newJob(ctx, pj, sink)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, j.secrets.remove()) }()
	// A wish to end early ends a start at once; once the engine is ready it is the
	// measuring step that drains.
	starting, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-j.Drain:
			cancel(runner.ErrDrained)
		case <-starting.Done():
		}
	}()
	err = j.execute(ctx, starting)
	if errors.Is(err, runner.ErrDrained) {
		return nil
	}
	return err
}

// job is one call of Execute.
type job struct {
	pipelines.Job
	x           Executor
	session     *session
	secrets     secretStore
	redact      *record.Redactor
	serve       pipelines.Serve
	launchID    string
	sink        *lockedSink
	tmp         string
	told        func() // the log held the last event
	allTold     <-chan struct{}
	nonce       string // of events that are ours, not an engine's
	settings    []record.Field
	gpus        []string // nil: none; empty: all
	gpuBefore   *nvidia.Report
	cacheLimits cacheLimits
	logins      map[string]string // user by registry
	secretWords []string          // variables of the command's words that hold secrets
}

// newJob prepares what needs no engine, and with it all that must stay secret: the
// session is started with it.
func (x Executor) newJob(ctx context.Context, pj pipelines.Job, sink runner.Sink, push ...string) (*job, error) {
	told := make(chan struct{})
	j := &job{Job: pj, told: sync.OnceFunc(func() { close(told) }), allTold: told, nonce: rand.Text(), x: x, sink: &lockedSink{sink: sink}, launchID: fmt.Sprintf("%s-%d-%s", pj.RunID, pj.Launch, rand.Text()[:8])}
	var err error
	claimed := pj.Plan.Text.Hardware["gpu"]
	if pj.Plan.Identity.Engine.Source == "simulator" {
		claimed = "" // whatever it claims is simulated too
	}
	if j.gpus, err = chooseGPUs(x.GPUs, claimed); err != nil {
		return nil, err
	}
	if err := staticBinary(x.Self, platform(pj.Plan)); err != nil {
		return nil, err
	}
	key := j.APIKey
	if key == "" {
		key = rand.Text()
	}
	values := map[string]string{secretKey: key}
	if j.serve, err = j.serveCommand(); err != nil {
		return nil, err
	}
	for name, value := range j.serve.SecretEnv {
		values[envSecret(name)] = value
	}
	if token := supervise.Getenv(x.Environ, tokenVariable); token != "" {
		values[secretToken] = token
	}
	if err := j.login(ctx, values, push); err != nil {
		return nil, err
	}
	for i, word := range j.serve.Args {
		// What differs from what may be shown holds a secret, and a query is no place for it.
		if word != j.serve.Shown[i] {
			at, variable := container.SecretWord(i)
			j.serve.Args[i], values[envSecret(variable)] = at, word
			j.secretWords = append(j.secretWords, variable)
		}
	}
	for _, kv := range x.Environ {
		if name, value, _ := strings.Cut(kv, "="); isInstaller(name) && holdsPassword(value) {
			values[envSecret(name)] = value
		}
	}
	all := slices.Concat(slices.Collect(maps.Values(values)), j.Secrets)
	list, err := json.Marshal(all)
	if err != nil {
		return nil, err
	}
	values[secretList] = string(list)
	j.redact = record.NewRedactor(all...)
	j.secrets, err = newSecrets(x.Environ, values)
	return j, err
}

// Names of secrets in the store.
const (
	secretKey     = "KEY"  // of the engine's API
	secretToken   = "HUB"  // of the hub of models
	secretList    = "LIST" // all of them, for those who redact
	tokenVariable = "HF_TOKEN"
)

// envSecret is the name of the secret that becomes an environment variable.
func envSecret(name string) string { return "ENV_" + name }

// secretValues are all that may not be written.
func (j *job) secretValues() []string {
	return slices.Concat(slices.Collect(maps.Values(j.secrets.values)), j.Secrets)
}

func (j *job) progress(stage, format string, a ...any) {
	j.sink.Progress(runner.Progress{Stage: stage, Text: fmt.Sprintf(format, a...)})
}

// note records a fact of this launch.
func (j *job) note(label, format string, a ...any) {
	j.settings = append(j.settings, record.Field{Label: label, Value: j.redact.Redact(fmt.Sprintf(format, a...))})
}

// inSession connects, does f, and ends the session.
func (j *job) inSession(ctx context.Context, f func() error) (err error) {
	if j.tmp, err = os.MkdirTemp("", "speedmatrix-"); err != nil {
		return err
	}
	defer os.RemoveAll(j.tmp)
	log, err := os.OpenFile(filepath.Join(j.LogsDir, fmt.Sprintf("dagger-%d.log", j.Launch)), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	stream := j.newStream(log)
	defer func() { err = errors.Join(err, stream.Close()) }()

	j.progress("build", "connecting to the Dagger engine")
	if j.session, err = j.connect(ctx, stream); err != nil {
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		return err
	}
	defer func() {
		j.progress("drain", "ending the Dagger session")
		if j.session.lost {
			j.session.kill()
			return
		}
		err = errors.Join(err, j.session.close())
	}()
	j.note("Dagger engine", "%s", j.session.version)
	// An engine that does not tell its limits is no reason not to measure.
	j.cacheLimits, _ = j.session.cacheLimits(ctx)
	return f()
}

// execute prepares in starting, which a drain ends, and measures in ctx.
func (j *job) execute(ctx, starting context.Context) error {
	return j.inSession(starting, func() error { return j.carryOut(ctx, starting) })
}

func (j *job) carryOut(ctx, starting context.Context) error {
	if j.Resumed {
		if err := j.takeOver(starting); err != nil {
			return err
		}
		if !j.left() {
			return nil
		}
	}
	img, err := j.image(starting)
	if err != nil {
		return err
	}
	if err := j.inspect(starting, img); err != nil {
		return err
	}
	models, err := j.models(starting, img)
	if err != nil {
		return err
	}
	return j.launch(ctx, starting, img, models)
}

func (j *job) connect(ctx context.Context, log io.Writer) (*session, error) {
	if j.x.Connect == nil {
		return connect(ctx, j.x.Environ, j.secrets, log)
	}
	client, err := j.x.Connect(ctx, log)
	if err != nil {
		return nil, err
	}
	return checked(ctx, client, j.secrets, client.Close, func() {})
}

// left says whether a step is still to be done.
func (j *job) left() bool {
	for _, s := range j.Plan.Identity.Steps {
		if !j.isDone(s.ID) {
			return true
		}
	}
	return false
}

// launch starts the engine, measures it and ends it.
func (j *job) launch(ctx, starting context.Context, img *image, models []modelVolume) (err error) {
	if err := j.gpuPreflight(starting, img); err != nil {
		return err
	}
	if err := j.prepareVolume(starting); err != nil {
		return err
	}
	service, err := j.service(img, models)
	if err != nil {
		return err
	}
	begin := time.Now()
	j.progress("start", "starting the engine")
	if service, err = service.Start(starting); err != nil {
		return j.engineFailed(starting, "start the engine's container", err)
	}
	measured := j.measure(ctx, service, record.Launch{
		Number: j.Launch, Executor: "dagger", StartedAt: begin.UTC(),
		Argv: j.redacted(j.serve.Shown), Env: j.redacted(j.shownEnv()), Settings: j.settings,
	})
	j.settings = nil // they are in the launch's file; see ended
	if ctx.Err() != nil {
		// The second Ctrl-C: closing the session ends everything at once. What was measured
		// is in the volume.
		return context.Cause(ctx)
	}
	if isLost(measured.err) {
		// Nothing can be asked of it any more. Its volumes outlive it.
		j.session.lost = true
		return fmt.Errorf("the Dagger engine is gone: %s", j.words(measured.err))
	}
	// From here on a drain changes nothing: what was measured has to be fetched.
	j.progress("drain", "stopping the engine")
	stopped := j.stop(ctx, service)
	return errors.Join(j.fetch(ctx, measured), stopped, j.gpuAfter(ctx, img))
}

// shownEnv is what the command sets and what we add, as it may be recorded.
func (j *job) shownEnv() []string {
	out := append(slices.Clone(j.serve.ShownEnv), pipelines.KeyVariable+"="+record.Redacted)
	slices.Sort(out)
	return out
}

func (j *job) redacted(words []string) []string {
	out := make([]string, len(words))
	for i, w := range words {
		out[i] = j.redact.Redact(w)
	}
	return out
}

// lockedSink lets the reader of a log and the flow speak to one sink.
type lockedSink struct {
	mu   sync.Mutex
	sink runner.Sink
}

func (s *lockedSink) Launched(l record.Launch) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sink.Launched(l)
}

func (s *lockedSink) Trial(t record.Trial) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sink.Trial(t)
}

func (s *lockedSink) Progress(p runner.Progress) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sink.Progress(p)
}

// isDone says whether a step has its trial at home. It is asked from two sides: the log
// brings trials while the flow goes on.
func (j *job) isDone(step string) bool {
	j.sink.mu.Lock()
	defer j.sink.mu.Unlock()
	return j.Done(step)
}

// Preview shows a cell whose trial is still in the volume, if the sink can.
func (s *lockedSink) Preview(c record.Cell) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p, ok := s.sink.(pipelines.Previewer); ok {
		p.Preview(c)
	}
}
