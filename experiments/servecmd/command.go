// Package servecmd reads a serve command as people publish it into argv,
// environment and notes, and writes it back as a shell line that can be run.
//
// It does not know what an experiment is, starts nothing and expands nothing: no
// command ever goes through a shell.
//
// Flow of [Parse]:
//
//  1. words: quotes, escapes, continuation lines, comments, unquoted JSON (lex.go)
//  2. shape: assignments, env, export lines, docker run, compose (prefix.go,
//     docker.go, compose.go)
//  3. meaning: what the server's own flags say (meaning.go, flags.go)
//
// What it accepts:
//
//   - a shell line: comments, NAME=value words, with or without env, lines of
//     export NAME=value before it, a program and its words;
//   - docker run, podman run, nerdctl run: image, -e, -p, --entrypoint; argv is
//     what follows the image;
//   - docker compose: a file with one service, one named service, or the body of
//     a service; see parseCompose for the keys.
//
// Names of flags are compared as the server compares them: underscores equal
// dashes, --flag=value equals --flag value. Argv itself is kept as written.
//
// [Command.Shell] and [Command.Redacted] never show a secret: a value whose name
// says so (api-key, token, password, secret, HF_TOKEN, *_API_KEY, …), in flags,
// environment and JSON, becomes [Placeholder]. [Flag], [Without] and
// [Unbound] work on plain argv.
package servecmd

import (
	"encoding/json"
	"fmt"

	"speedmatrix/results/record"
)

// MaxSize is the length in bytes of the longest text that is read.
const MaxSize = 1 << 20

// Placeholder stands where a secret stood.
const Placeholder = record.Redacted

// Command is a serve command as published, read.
type Command struct {
	Comments   []string // without "# "
	Env        []EnvVar // in the order written
	Image      string   // docker and compose forms; empty otherwise
	Argv       []string // as written, nothing expanded; for images what follows the image
	Unexpanded []string // names of variables, and "~", that the text holds unexpanded
	Lenient    bool     // unquoted JSON was read as one word
	// Warnings: program_repeated (vllm serve after an image that starts it
	// already; dropped), image_not_pinned (no digest), env_file_not_read,
	// config_file_not_read (settings outside the text), compose_keys_ignored.
	Warnings []string

	// What argv means.
	Model            string
	ServedModelNames []string // the model, if the command gives none
	ServedNameGiven  bool     // the command has --served-model-name
	Host             string   // empty: not given
	Port             int      // 8000 if not given
	HostPort         int      // docker -p HOST:CONTAINER; 0 if not given
	MaxModelLen      int      // 0: not given
	MaxNumSeqs       int
	TensorParallel   int
	NumGPUBlocks     int // --num-gpu-blocks-override
	PrefixCaching    *bool
	JSONValues       map[string]json.RawMessage // flag → JSON value
	Placeholders     []string                   // flags whose value is <redacted>
	Secrets          []string                   // literal secret values, to be scrubbed everywhere

	// How argv and env were written, for Shell; argv[i] belongs to Argv[i] only as
	// long as their texts are equal, so that callers may change Argv.
	argv, env []word
	envIndex  map[string]int // name → index in Env, while reading
	// docker run's words before the image but for -e, and whether --entrypoint is
	// among them.
	container  []word
	entrypoint bool
	published  [][2]int // host port, container port
	outer      []EnvVar // of the docker program itself
}

// EnvVar is one NAME=value.
type EnvVar struct{ Name, Value string }

// Kinds of [Error].
const (
	UnsupportedShell  = "unsupported_shell"  // an operator, a substitution, a second command
	Unbalanced        = "unbalanced"         // a quote or brace is not closed
	BadJSONValue      = "bad_json_value"     // a flag's value must be JSON and is not
	BadValue          = "bad_value"          // a flag's value is missing or no number
	BadCharacter      = "bad_character"      // control characters, typographic quotes and dashes
	UnsupportedDocker = "unsupported_docker" // a docker command that is no docker run
	BadCompose        = "bad_compose"        // YAML that is no service
	Empty             = "empty"              // no program
	TooLong           = "too_long"           // longer than MaxSize
)

// Error is one mistake in a command. Its message never holds a value of the
// text, which could be a secret.
type Error struct {
	Kind         string
	Flag         string // canonical name, where the mistake is a flag's
	Line, Column int    // 1-based, in the text; columns count characters
	Message      string
}

func (e *Error) Error() string {
	if e.Flag != "" {
		return fmt.Sprintf("%d:%d: %s: %s", e.Line, e.Column, e.Flag, e.Message)
	}
	return fmt.Sprintf("%d:%d: %s", e.Line, e.Column, e.Message)
}

// Parse reads a command. The error is the first mistake, an [*Error]. Where only
// values of flags are wrong (bad_json_value, bad_value), the command is returned
// beside it.
func Parse(text string) (*Command, error) {
	c, mistakes := read(text)
	if len(mistakes) > 0 {
		return c, mistakes[0]
	}
	return c, nil
}

// Mistakes returns everything that is wrong with a command, in the order of the
// text; nil if nothing is.
func Mistakes(text string) []*Error {
	_, mistakes := read(text)
	return mistakes
}

// Check reports the mistakes of a command as plain values, for packages that do
// not know this one.
func Check(text string, report func(line, column int, message string)) {
	for _, e := range Mistakes(text) {
		message := e.Message
		if e.Flag != "" {
			message = e.Flag + ": " + message
		}
		report(e.Line, e.Column, message)
	}
}

func read(text string) (*Command, []*Error) {
	if len(text) > MaxSize {
		return nil, []*Error{{Kind: TooLong, Line: 1, Column: 1,
			Message: fmt.Sprintf("the command has %d bytes, at most %d are read", len(text), MaxSize)}}
	}
	c := new(Command)
	var err *Error
	if looksLikeCompose(text) {
		err = c.parseCompose(text)
	} else {
		err = c.parseShell(text)
	}
	if err != nil {
		return nil, []*Error{err}
	}
	c.Argv = texts(c.argv)
	return c, c.interpret()
}

func texts(words []word) []string {
	out := make([]string, len(words))
	for i, w := range words {
		out[i] = w.text
	}
	return out
}
