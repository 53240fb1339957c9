// Package spec is what a person asked for: one strict YAML file, all its mistakes
// at once.
//
// It does not know how a serve command is read (the caller gives
// [Options.CheckCommand]), what becomes of an experiment (resolve) or what a
// machine can do, opens no file, and imports nothing of this module.
//
// Flow of [Parse]:
//
//  1. the YAML text becomes nodes with their places; anchors, aliases and tags are
//     refused, size, keys and depth are bounded (tree.go)
//  2. each --set changes the nodes
//  3. the nodes are read through the table of keys (keys.go), every value by its
//     kind (value.go)
//  4. what no single key can tell is checked: one source, a matrix that is not
//     empty, a command where one is needed (parse.go)
//
// A mistake is an [Error] with its line and column; Parse returns all of them as
// an [ErrorList]. [Marshal] writes canonical YAML, [Schema] the JSON Schema; both
// come from the same table of keys, as do the tables of FORMAT.md.
package spec

import (
	"strings"
	"time"
)

// Experiment is one YAML file under experiments/.
type Experiment struct {
	Name     string
	Title    string
	Notes    string // Markdown
	Author   string
	Engine   Engine
	Model    Model
	Hardware Hardware
	Matrix   Matrix
	Prompts  string // shared (default) or distinct
	Sampling Sampling
	Limits   Limits
	Loop     string // guard (default) or off: what exact repetition does to a trial
	Expect   Expect

	// File and Raw are the source; Overrides the --set values that were applied.
	File      string
	Raw       []byte
	Overrides []string
}

// Engine says where the server under test comes from and how it is started.
type Engine struct {
	Source           Source
	Command          string // verbatim, as published
	KVCapacityTokens int64  // 0: not given
	Version          string // as claimed: "0.32.0"
	Engine           string // "vllm" by default
	Quantization     string
	Backend          string
	Repository       string
	Build            string
	Commit           string
}

// Source has exactly one field set.
type Source struct {
	Image     string // repo:tag, repo@sha256:…, or oci-archive:PATH
	Commit    string // 40 hex, branch or tag of Repo
	Repo      string // of Commit; default github.com/vllm-project/vllm
	Build     *Build // of Commit; nil: the defaults
	Wheel     *Wheel
	Host      string // path of a vllm program that exists
	Attach    string // URL
	Simulator string // "default", or path of a profile relative to the experiment's file
}

// Kind returns the word of the field that is set: image, commit, wheel, host,
// attach, simulator; empty if none.
func (s Source) Kind() string {
	switch {
	case s.Image != "":
		return "image"
	case s.Commit != "":
		return "commit"
	case s.Wheel != nil:
		return "wheel"
	case s.Host != "":
		return "host"
	case s.Attach != "":
		return "attach"
	case s.Simulator != "":
		return "simulator"
	}
	return ""
}

// Build says how the image of a commit is made.
type Build struct {
	Way        string   // auto (default), nightly, wheel, dockerfile
	Image      string   // nightly: repository, or a name with CommitMark in its tag; see ImageOf
	Base       string   // wheel: image that the commit's wheel is installed into
	Wheels     string   // wheel: address of an index with one folder per commit; see WheelsOf
	Dockerfile string   // dockerfile: path in the repository
	Target     string   // dockerfile: stage; empty: the last one
	Args       []string // dockerfile: NAME=value
	Patches    []string // dockerfile: paths relative to the experiment's file, in order
}

// ArchivePrefix begins an image that is a file: oci-archive:PATH.
const ArchivePrefix = "oci-archive:"

// CommitMark stands for the commit in Build.Image and Build.Wheels.
const CommitMark = "{commit}"

// ImageOf is the name under which the image of a commit is published.
func (b *Build) ImageOf(commit string) string { return ofCommit(b.Image, ":nightly-", commit) }

// WheelsOf is the address of the folder that holds the wheels of a commit.
func (b *Build) WheelsOf(commit string) string {
	return ofCommit(strings.TrimRight(b.Wheels, "/"), "/", commit)
}

// ofCommit puts a commit where the text has its mark, else behind it.
func ofCommit(text, before, commit string) string {
	if !strings.Contains(text, CommitMark) {
		text += before + CommitMark
	}
	return strings.ReplaceAll(text, CommitMark, commit)
}

// Wheel is a virtual environment made of pinned wheels.
type Wheel struct {
	Lock   string // path of the lock with hashes, relative to the experiment's file
	Python string // "3.12"
	Model  string // optional: path of a script that makes the model, relative to the experiment's file
	Base   string // optional: image with Python and pip, for running it in a container
}

// Model under test.
type Model struct {
	ID           string
	Revision     string
	Quantization string
}

// Hardware as claimed; what is found is recorded beside it.
type Hardware struct {
	Type, GPU, VRAM, CPU, RAM, OS string
}

// Matrix is what to measure.
type Matrix struct {
	Contexts    []Context
	Concurrency []int
	Prefill     []Context
	Duration    time.Duration // of the window; default 30s
	Settle      time.Duration // how long readiness must hold; default 3s
	MaxOutput   int           // default 8192
	Repeats     int           // default 1
	Capacity    string        // worst_case (default) or try
	Order       string        // plan (default) or seeded
	OrderSeed   int64
}

// Context is a length in tokens and the text it was written as.
type Context struct {
	Tokens int
	Label  string // "8K", "0"; K = 1,024
}

// Sampling is sent with every request; nil: not sent.
type Sampling struct {
	Temperature *float64
	TopP        *float64
	Seed        *int64
	IgnoreEOS   *bool // default true
}

// Limits; zero: default (Start 30m, Stall 60s, Idle 60s) or derived (Scout, Ready).
type Limits struct {
	Start, Scout, Ready, Stall, Idle time.Duration
}

// Expect is what verify and compare hold a rerun to.
type Expect struct {
	RelTol float64 // ratio: 0.05 for 5%; 0: not given
}
