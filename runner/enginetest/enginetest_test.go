package enginetest_test

import (
	"flag"
	"os"
	"strings"
	"testing"

	"speedmatrix/runner/enginetest"
)

var (
	engineURL   = flag.String("engine-url", "", "base URL of a running engine to examine")
	engineModel = flag.String("engine-model", "", "its model (default: the first it lists)")
	engineSlots = flag.Int("engine-slots", 0, "how many requests it runs at once (--max-num-seqs)")
	engineKey   = flag.String("engine-key-file", "", "file with its API key")
)

// TestEngine examines the engine that the flags name: real vLLM, where there is
// one. The simulator is examined by its own tests.
func TestEngine(t *testing.T) {
	if *engineURL == "" {
		t.Skip("no engine to examine: give -engine-url http://HOST:PORT")
	}
	e := enginetest.Engine{BaseURL: strings.TrimRight(*engineURL, "/"), Model: *engineModel, Slots: *engineSlots}
	if *engineKey != "" {
		b, err := os.ReadFile(*engineKey)
		if err != nil {
			t.Fatal(err)
		}
		e.APIKey = strings.TrimSpace(string(b))
	}
	enginetest.Test(t, e)
}
