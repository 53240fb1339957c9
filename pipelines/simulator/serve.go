package simulator

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Config is a server of its own.
type Config struct {
	Addr    string // host:port
	Profile Profile
	Truth   io.Writer // see [Options.Truth]
	Faults  Faults
	// Listening, if not nil, is told the URL as soon as requests are taken.
	Listening func(url string) error
	// LikeVLLM, if not nil, makes [Serve] print what vLLM prints when it starts:
	// the served command, for programs that read an engine's log.
	LikeVLLM *ServeArgs
}

// ServeArgs is a vLLM command line as [FromServeArgs] understood it.
type ServeArgs struct {
	Model          string
	Served         []string
	MaxModelLen    int
	MaxNumSeqs     int
	Blocks         int // --num-gpu-blocks-override; 0: not given
	Host           string
	Port           int
	PrefixCaching  bool
	IgnoredOptions []string
}

// ErrDied is what [Serve] returns when a fault ended the engine.
var ErrDied = errors.New("simulator: the engine died, as its fault says")

// Serve runs an engine until ctx ends, which is no error, or a fault ends it. It
// tells out where it listens.
func Serve(ctx context.Context, cfg Config, out io.Writer) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	logf := func(format string, a ...any) { fmt.Fprintf(out, "simulator: "+format+"\n", a...) }
	if cfg.LikeVLLM != nil {
		// vLLM listens when its model is loaded, not before.
		pid := os.Getpid()
		logf = func(format string, a ...any) {
			fmt.Fprintf(out, "(EngineCore pid=%d) ERROR %s [core.py:1] %s\n", pid, time.Now().Format("01-02 15:04:05"), fmt.Sprintf(format, a...))
		}
		cfg.LikeVLLM.printStart(out, pid, &cfg.Profile)
		d, exit := cfg.Faults.StartupDelay, cfg.Faults.ExitAfter
		early := exit > 0 && exit <= d
		if early {
			d = exit
		}
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
			return nil
		}
		if early {
			logf("EngineCore failed to start")
			return ErrDied
		}
		// Both count from the program's start.
		cfg.Faults.StartupDelay, cfg.Faults.ExitAfter = 0, max(0, exit-d)
	}
	s, err := New(cfg.Profile, Options{Truth: cfg.Truth, Faults: cfg.Faults, Logf: logf})
	if err != nil {
		return err
	}
	defer s.Close()
	url, err := s.Start(ctx, cfg.Addr)
	if err != nil {
		return err
	}
	if cfg.Listening != nil {
		if err := cfg.Listening(url); err != nil {
			return err
		}
	}
	if cfg.LikeVLLM != nil {
		cfg.LikeVLLM.printReady(out, url)
	} else {
		fmt.Fprintf(out, "simulated engine on %s, model %s; what is measured here is a simulation\n", url, s.profile.Models[0])
	}
	select {
	case <-ctx.Done():
		return nil
	case <-s.Exited():
		return ErrDied
	}
}

// FromServeArgs understands "serve MODEL --option value …" as vLLM does, as far as
// the simulator has an equivalent; what else is written is accepted and listed, so
// that the commands of real experiments run. getenv gives what is no option of
// vLLM's: SIMULATOR_PROFILE (YAML), SIMULATOR_FAULTS (see [ParseFaults]).
func FromServeArgs(argv []string, getenv func(string) string) (Config, error) {
	cfg := Config{Profile: DefaultProfile()}
	if y := getenv("SIMULATOR_PROFILE"); y != "" {
		var err error
		if cfg.Profile, err = ParseProfile([]byte(y)); err != nil {
			return Config{}, fmt.Errorf("SIMULATOR_PROFILE: %w", err)
		}
	}
	p := &cfg.Profile
	var err error
	if cfg.Faults, err = ParseFaults(getenv("SIMULATOR_FAULTS")); err != nil {
		return Config{}, fmt.Errorf("SIMULATOR_FAULTS: %w", err)
	}
	a := &ServeArgs{Port: 8000, PrefixCaching: p.PrefixCaching}
	if len(argv) == 0 || argv[0] != "serve" {
		return Config{}, errors.New("the only command is: serve MODEL [options]")
	}
	rest := argv[1:]
	isValue := func(i int) bool { return i < len(rest) && !strings.HasPrefix(rest[i], "--") }
	for i := 0; i < len(rest); i++ {
		word := rest[i]
		if !strings.HasPrefix(word, "-") {
			if a.Model != "" {
				return Config{}, fmt.Errorf("serve: unrecognized arguments: %s", word)
			}
			a.Model = word
			continue
		}
		name, value, has := strings.Cut(word, "=")
		take := func() (string, error) {
			if has {
				return value, nil
			}
			if !isValue(i + 1) {
				return "", fmt.Errorf("serve: argument %s: expected one argument", name)
			}
			i++
			return rest[i], nil
		}
		number := func(to *int, least int) error {
			v, err := take()
			if err != nil {
				return err
			}
			n, err := strconv.Atoi(v)
			if err != nil || n < least {
				return fmt.Errorf("serve: argument %s: invalid value: %q", name, v)
			}
			*to = n
			return nil
		}
		switch strings.ReplaceAll(name, "_", "-") {
		case "--model":
			a.Model, err = take()
		case "--served-model-name":
			if has {
				a.Served = append(a.Served, value)
			}
			for isValue(i + 1) {
				i++
				a.Served = append(a.Served, rest[i])
			}
			if len(a.Served) == 0 {
				err = fmt.Errorf("serve: argument %s: expected at least one argument", name)
			}
		case "--host":
			a.Host, err = take()
		case "--port":
			err = number(&a.Port, 0)
		case "--max-model-len":
			err = number(&p.MaxModelLen, 1)
		case "--max-num-seqs":
			err = number(&p.Slots, 1)
		case "--num-gpu-blocks-override":
			err = number(&a.Blocks, 1)
		case "--block-size":
			err = number(&p.BlockTokens, 1)
		case "--api-key":
			p.APIKey, err = take()
		case "--enable-prefix-caching":
			p.PrefixCaching = true
		case "--no-enable-prefix-caching":
			p.PrefixCaching = false
		default:
			a.IgnoredOptions = append(a.IgnoredOptions, name)
			for !has && isValue(i+1) && a.Model != "" {
				i++
			}
		}
		if err != nil {
			return Config{}, err
		}
	}
	if a.Model == "" {
		return Config{}, errors.New("serve: needs a model")
	}
	if a.Served == nil {
		a.Served = []string{a.Model}
	}
	p.Models = slices.Clone(a.Served)
	if a.Blocks > 0 {
		p.KVTokens = a.Blocks * p.BlockTokens
	} else {
		// Without the override a real engine takes what memory there is.
		p.KVTokens = max(p.KVTokens, blocksFor(p.MaxModelLen, p.BlockTokens)*p.BlockTokens)
	}
	if p.KVTokens < p.MaxModelLen {
		return Config{}, fmt.Errorf("ValueError: To serve at least one request with the models's max seq len (%d), more KV cache is needed than the %d tokens available. Try increasing num_gpu_blocks_override or decreasing max_model_len", p.MaxModelLen, p.KVTokens)
	}
	if err := p.complete(); err != nil {
		return Config{}, err
	}
	a.MaxModelLen, a.MaxNumSeqs, a.PrefixCaching = p.MaxModelLen, p.Slots, p.PrefixCaching
	cfg.LikeVLLM = a
	host := a.Host
	if host == "" {
		host = "0.0.0.0"
	}
	cfg.Addr = net.JoinHostPort(host, strconv.Itoa(a.Port))
	return cfg, nil
}

// printStart writes the lines of vLLM's start-up log that state what it settled
// on, in their shapes.
func (a *ServeArgs) printStart(out io.Writer, pid int, p *Profile) {
	at := time.Now().Format("01-02 15:04:05")
	api := func(where, format string, v ...any) {
		fmt.Fprintf(out, "(APIServer pid=%d) INFO %s [%s] %s\n", pid, at, where, fmt.Sprintf(format, v...))
	}
	core := func(where, format string, v ...any) {
		fmt.Fprintf(out, "(EngineCore pid=%d) INFO %s [%s] %s\n", pid, at, where, fmt.Sprintf(format, v...))
	}
	served := make([]string, len(a.Served))
	for i, n := range a.Served {
		served[i] = pyString(n)
	}
	api("api_utils.py:286", "non-default args: {'model_tag': %s, 'host': %s, 'port': %d, 'model': %s, 'max_model_len': %d, 'served_model_name': [%s], 'max_num_seqs': %d}",
		pyString(a.Model), pyString(a.Host), a.Port, pyString(a.Model), a.MaxModelLen, strings.Join(served, ", "), a.MaxNumSeqs)
	api("model.py:2152", "Using max model len %d", a.MaxModelLen)
	caching := "False"
	if a.PrefixCaching {
		caching = "True"
	}
	core("core.py:133", "Initializing a V1 LLM engine (v%s) with config: model=%s, speculative_config=None, tokenizer=%s, dtype=simulated, max_seq_len=%d, tensor_parallel_size=1, enable_prefix_caching=%s",
		Version, pyString(a.Model), pyString(a.Model), a.MaxModelLen, caching)
	size := p.KVTokens / p.BlockTokens * p.BlockTokens
	core("kv_cache_utils.py:2327", "GPU KV cache size: %s tokens, Maximum concurrency for %s tokens per request: %.2fx",
		thousands(size), thousands(p.MaxModelLen), float64(size)/float64(p.MaxModelLen))
	core("core.py:402", "init engine (profile, create kv cache, warmup model) took 0.00 s")
}

func (a *ServeArgs) printReady(out io.Writer, url string) {
	fmt.Fprintf(out, "(APIServer pid=%d) INFO %s [entry.py:140] Starting vLLM server on %s\nINFO:     Application startup complete.\n",
		os.Getpid(), time.Now().Format("01-02 15:04:05"), url)
}

// pyString quotes as Python's repr does, closely enough for a log line.
func pyString(s string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`, "\n", `\n`).Replace(s) + "'"
}

func thousands(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
