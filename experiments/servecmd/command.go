// Package servecmd reads a published shell line into argv, environment and notes, and writes it back.
package servecmd

import "encoding/json"

// Command is a serve command as published, read.
type Command struct {
	Comments   []string // without "# "
	Env        []EnvVar // in the order written
	Image      string   // docker and compose forms; empty otherwise
	Argv       []string // as written, nothing expanded; for images what follows the image
	Unexpanded []string // names of variables, and "~", that argv holds unexpanded
	Lenient    bool     // unquoted JSON was read as one word
	Warnings   []string // program_repeated, image_not_pinned

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
}

// EnvVar is one NAME=value.
type EnvVar struct{ Name, Value string }
