package pipelines

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"speedmatrix/experiments/servecmd"
)

// KeyVariable is where vLLM takes an API key from that is not on its command line,
// where every user of the machine could read it.
const KeyVariable = "VLLM_API_KEY"

// Bind says what a serve command is bound to: everything else of it stays word for word.
type Bind struct {
	Host string
	Port int
	// Getenv looks up what a published command left out.
	Getenv func(name string) string
}

// Serve is a plan's serve command for one launch.
type Serve struct {
	Args []string // with the program, as the plan has it; may hold secrets
	// Shown is Args as it may be recorded.
	Shown []string
	// Env is what the plan sets. SecretEnv are those of its values that may not be shown.
	Env, SecretEnv map[string]string
	// ShownEnv is what the plan sets as it may be recorded, NAME=value, sorted.
	ShownEnv []string
}

// ServeCommand binds the plan's command to where the engine will listen.
func ServeCommand(job *Job, b Bind) (Serve, error) {
	real, shown := job.Argv, job.Plan.Identity.Engine.Argv
	if real == nil {
		real = shown
	}
	if len(real) == 0 || len(shown) == 0 {
		return Serve{}, fmt.Errorf("engine.command: there is none; source %s needs the serve command", job.Plan.Identity.Engine.Source)
	}
	for i, word := range real {
		switch {
		case i > 0 && unexpanded.MatchString(word):
			return Serve{}, fmt.Errorf("engine.command: %q: no shell runs here that could expand it; write the value out", word)
		case strings.Contains(word, servecmd.Placeholder):
			return Serve{}, fmt.Errorf("engine.command: %s: the value was redacted when the command was published; write your own, or leave the option out", flagBefore(real, i))
		}
	}
	s := Serve{Args: b.bind(real), Shown: b.bind(shown), Env: map[string]string{}, SecretEnv: map[string]string{}}
	planned := job.Env
	if planned == nil {
		planned = job.Plan.Identity.Engine.Env
	}
	for _, name := range slices.Sorted(maps.Keys(planned)) {
		value := planned[name]
		switch {
		case name == KeyVariable:
			continue // whoever starts the engine has a key of its own for it
		case unexpanded.MatchString(value):
			return Serve{}, fmt.Errorf("engine.command: %s=%s: no shell runs here that could expand it; write the value out", name, value)
		case value == servecmd.Placeholder:
			if value = b.Getenv(name); value == "" {
				return Serve{}, fmt.Errorf("engine.command: %s was redacted when the command was published; set it in your environment, or leave it out", name)
			}
		}
		shownValue, ok := job.Plan.Identity.Engine.Env[name]
		if !ok {
			shownValue = value
		}
		if shownValue == value {
			s.Env[name] = value
		} else {
			s.SecretEnv[name] = value
		}
		s.ShownEnv = append(s.ShownEnv, name+"="+shownValue)
	}
	return s, nil
}

func (b Bind) bind(argv []string) []string {
	return append(servecmd.Unbound(argv), "--host", b.Host, "--port", strconv.Itoa(b.Port))
}

// unexpanded finds what a shell would have replaced at the start of a word or of
// the value in it. A variable further inside stays: JSON may hold one on purpose.
var unexpanded = regexp.MustCompile(`^(--[A-Za-z0-9_-]+=)?(~(/|$)|\$[A-Za-z_{])`)

func flagBefore(argv []string, i int) string {
	if i > 0 && !strings.HasPrefix(argv[i], "-") {
		return argv[i-1]
	}
	flag, _, _ := strings.Cut(argv[i], "=")
	return flag
}

// ModelArgument is how a serve command names the model.
func ModelArgument(argv []string) string {
	if i := slices.Index(argv, "serve"); i >= 0 && i+1 < len(argv) && !strings.HasPrefix(argv[i+1], "-") {
		return argv[i+1]
	}
	model, _ := servecmd.Flag(argv, "--model")
	if model == "" && len(argv) > 0 && !strings.HasPrefix(argv[0], "-") && !isProgram(argv[0]) {
		model = argv[0] // what follows an image
	}
	return model
}

const serverModule = "vllm.entrypoints.openai.api_server"

// WithEntrypoint makes a command for an image out of a published one, so that there is
// exactly one program in it. Note says what was replaced; empty: nothing. Each published
// form stands:
//
//	vllm serve MODEL …          the entrypoint is left out; a path of the program too
//	serve MODEL …               "vllm" is put in front
//	python3 -m MODULE …         the entrypoint is left out
//	-m MODULE …                 what follows docker run --entrypoint python3 IMAGE:
//	                            "python3" is put in front
//	MODEL … or --model MODEL …  what follows the image in docker run: the entrypoint is
//	                            put in front
func WithEntrypoint(entrypoint, argv []string) (out []string, note string, err error) {
	if len(argv) == 0 {
		return nil, "", errors.New("engine.command: it is empty")
	}
	program := path.Base(argv[0])
	switch {
	case isProgram(program):
		if argv[0] != program {
			note = fmt.Sprintf("the command names %s, which is of another machine: the image's own %s was started", argv[0], program)
		}
		return append([]string{program}, argv[1:]...), note, nil
	case argv[0] == "serve":
		return append([]string{"vllm"}, argv...), "", nil
	case argv[0] == "-m":
		return append([]string{"python3"}, argv...), "", nil
	case unexpanded.MatchString(argv[0]):
		return nil, "", fmt.Errorf("engine.command: %q: no shell runs here that could expand it; write the value out", argv[0])
	case len(argv) > 1 && argv[1] == "serve":
		return nil, "", fmt.Errorf("engine.command: it begins with %q; in a container it must begin with vllm (or python3 -m …), or with what follows the image in docker run", argv[0])
	}
	switch {
	case slices.Contains(entrypoint, serverModule):
		if !strings.HasPrefix(argv[0], "-") { // the module takes the model by its option only
			argv = append([]string{"--model"}, argv...)
		}
		return append(slices.Clone(entrypoint), argv...), "", nil
	case len(entrypoint) > 0 && entrypoint[len(entrypoint)-1] == "serve":
		return append(slices.Clone(entrypoint), argv...), "", nil
	case len(entrypoint) > 0 && path.Base(entrypoint[len(entrypoint)-1]) == "vllm":
		return slices.Concat(entrypoint, []string{"serve"}, argv), "", nil
	case len(entrypoint) > 0:
		note = fmt.Sprintf("the image's entrypoint %s starts no server: vllm serve was started", strings.Join(entrypoint, " "))
	default:
		note = "the image has no entrypoint: vllm serve was started"
	}
	return append([]string{"vllm", "serve"}, argv...), note, nil
}

// isProgram says whether a word can only be the program of a serve command, not a model.
func isProgram(word string) bool {
	name := path.Base(word)
	return name == "vllm" || name == "python" || strings.HasPrefix(name, "python3")
}
