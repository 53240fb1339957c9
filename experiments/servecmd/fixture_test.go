package servecmd

import (
	"encoding/json"
	"errors"
	"os"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

type fixture struct {
	ID, Raw string
	Want    map[string]json.RawMessage
}

func fixtures(t testing.TB) []fixture {
	t.Helper()
	b, err := os.ReadFile("testdata/serve-commands.json")
	if err != nil {
		t.Fatal(err)
	}
	var f struct{ Commands []fixture }
	if err := json.Unmarshal(b, &f); err != nil {
		t.Fatal(err)
	}
	return f.Commands
}

// TestFixtures compares every field of every wanted reading; a field that the
// test does not know fails it.
func TestFixtures(t *testing.T) {
	all := fixtures(t)
	if len(all) != 19 {
		t.Fatalf("%d commands, want 19", len(all))
	}
	for _, f := range all {
		t.Run(f.ID, func(t *testing.T) {
			c, err := Parse(f.Raw)
			if c == nil {
				c = new(Command)
			}
			for field, raw := range f.Want {
				check(t, c, err, field, raw)
			}
		})
	}
}

func check(t *testing.T, c *Command, err error, field string, raw json.RawMessage) {
	t.Helper()
	equal := func(got, want any) {
		t.Helper()
		if reflect.ValueOf(want).Kind() == reflect.Slice && reflect.ValueOf(want).Len() == 0 && reflect.ValueOf(got).Len() == 0 {
			return
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", field, d)
		}
	}
	decode := func(to any) {
		t.Helper()
		if err := json.Unmarshal(raw, to); err != nil {
			t.Fatalf("%s: %v", field, err)
		}
	}
	list := func(got []string) {
		t.Helper()
		var want []string
		decode(&want)
		equal(got, want)
	}
	number := func(got int) {
		t.Helper()
		var want int
		decode(&want)
		equal(got, want)
	}
	text := func(got string) { // null is the empty text
		t.Helper()
		var want string
		decode(&want)
		equal(got, want)
	}
	env := func(vars []EnvVar) map[string]string {
		m := map[string]string{}
		for _, v := range vars {
			m[v.Name] = v.Value
		}
		return m
	}
	redactedEnv, redactedArgv := c.Redacted()
	switch field {
	case "notes":
	case "error":
		var want *struct{ Kind, Flag, Contains string }
		decode(&want)
		if want == nil {
			if err != nil {
				t.Errorf("error %v", err)
			}
			return
		}
		var got *Error
		if !errors.As(err, &got) {
			t.Fatalf("error %v, want kind %s", err, want.Kind)
		}
		equal(got.Kind, want.Kind)
		equal(got.Flag, want.Flag)
		if !strings.Contains(got.Error(), want.Contains) {
			t.Errorf("error %q does not contain %q", got, want.Contains)
		}
		if got.Line < 1 || got.Column < 1 {
			t.Errorf("error %q has no position", got)
		}
	case "comments":
		list(c.Comments)
	case "env":
		var want map[string]string
		decode(&want)
		equal(env(c.Env), want)
	case "image":
		text(c.Image)
	case "image_digest":
		text(c.ImageDigest())
	case "unexpanded":
		list(c.Unexpanded)
	case "lenient":
		var want bool
		decode(&want)
		equal(c.Lenient, want)
	case "warnings":
		list(c.Warnings)
	case "argv":
		list(c.Argv)
	case "model":
		text(c.Model)
	case "served_model_names":
		list(c.ServedModelNames)
	case "host":
		text(c.Host)
	case "port":
		number(c.Port)
	case "host_port":
		number(c.HostPort)
	case "max_model_len":
		number(c.MaxModelLen)
	case "max_num_seqs":
		number(c.MaxNumSeqs)
	case "tensor_parallel_size":
		number(c.TensorParallel)
	case "prefix_caching":
		var want *bool
		decode(&want)
		equal(c.PrefixCaching, want)
	case "json_values":
		var want map[string]any
		decode(&want)
		got := map[string]any{}
		for k, v := range c.JSONValues {
			var x any
			if err := json.Unmarshal(v, &x); err != nil {
				t.Fatal(err)
			}
			got[k] = x
		}
		equal(got, want)
	case "placeholders":
		list(c.Placeholders)
	case "secrets":
		list(c.Secrets)
	case "redacted_env":
		var want map[string]string
		decode(&want)
		equal(env(redactedEnv), want)
	case "redacted_argv_changes":
		var want map[string]string
		decode(&want)
		got := map[string]string{}
		for i := range redactedArgv {
			if redactedArgv[i] != c.Argv[i] {
				got[strconv.Itoa(i)] = redactedArgv[i]
			}
		}
		equal(got, want)
	default:
		t.Errorf("field %s of the fixture is not compared", field)
	}
}
