package main

import (
	"errors"
	"fmt"
	"strings"
)

// Exit statuses. Scripts may rely on them; an unknown one must be read as a
// failure.
const (
	exitOK            = 0
	exitWrong         = 1   // it went wrong
	exitUsage         = 2   // wrong use, or mistakes in an experiment
	exitRegression    = 3   // a regression was found
	exitNotComparable = 4   // not enough data, or not comparable
	exitCellsFailed   = 5   // done, but cells failed
	exitInterrupted   = 130 // ended by a signal
)

const exitStatusHelp = `
EXIT STATUS
  0    done
  1    it went wrong
  2    wrong use, or mistakes in an experiment
  3    a regression was found (for verbs to come)
  4    not enough data, or not comparable (for verbs to come)
  5    done, but cells failed
  130  interrupted
`

var (
	errInterrupted = errors.New("interrupted")
	// errCellsFailed is returned after everything was said.
	errCellsFailed = errors.New("cells failed")
)

// usageError is a mistake of the person who called; it names the help to read.
type usageError struct {
	err  error
	help string // command path; empty: no hint
}

func (e usageError) Error() string {
	if e.help == "" {
		return e.err.Error()
	}
	return e.err.Error() + "\nsee " + e.help + " --help"
}

func (e usageError) Unwrap() error { return e.err }

// exitStatus is a status that was decided elsewhere.
type exitStatus int

func (e exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

// quiet says that err was told to the person already.
func quiet(err error) bool {
	var status exitStatus
	return errors.Is(err, errCellsFailed) || errors.As(err, &status)
}

// exitCode is the only place where errors become exit statuses.
func exitCode(err error) int {
	var usage usageError
	var status exitStatus
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, errInterrupted):
		return exitInterrupted
	case errors.Is(err, errCellsFailed):
		return exitCellsFailed
	case errors.As(err, &status):
		return int(status)
	case errors.As(err, &usage), strings.HasPrefix(err.Error(), "unknown command"):
		return exitUsage
	default:
		return exitWrong
	}
}
