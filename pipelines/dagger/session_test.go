package dagger

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"dagger.io/dagger/engineconn"
)

// The test binary plays the dagger CLI.
func TestMain(m *testing.M) {
	if how := os.Getenv("FAKE_DAGGER"); how != "" && len(os.Args) > 1 {
		os.Exit(fakeCLI(how))
	}
	os.Exit(m.Run())
}

// fakeCLI is a dagger CLI whose engine has a version, or that cannot start one.
func fakeCLI(how string) int {
	if os.Args[1] == "version" {
		fmt.Println("dagger v" + how + " (unix:///engine.sock) linux/amd64")
		return 0
	}
	if how == "dead" {
		fmt.Fprintln(os.Stderr, "start engine: no container runtime found")
		return 1
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 2
	}
	go http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if token, _, _ := r.BasicAuth(); token != "t0ken" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		b, _ := io.ReadAll(r.Body)
		fmt.Fprintf(os.Stderr, "query %s\n", b)
		json.NewEncoder(w).Encode(map[string]any{"data": map[string]any{"version": "v" + how}})
	}))
	json.NewEncoder(os.Stdout).Encode(engineconn.ConnectParams{Port: l.Addr().(*net.TCPAddr).Port, SessionToken: "t0ken"})
	fmt.Fprintf(os.Stderr, "group %d of %d, %s, %s, %s\n", syscall.Getpgrp(), os.Getpid(), os.Getenv("DO_NOT_TRACK"), os.Getenv("DAGGER_LEAVE_OLD_ENGINE"), os.Getenv(secretPrefix+"KEY"))
	_, _ = io.Copy(io.Discard, os.Stdin)
	fmt.Fprintln(os.Stderr, "session ended")
	return 0
}

func fakeEnviron(t *testing.T, how string) []string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return []string{"PATH=/none", CLIVariable + "=" + self, "FAKE_DAGGER=" + how}
}

func TestConnect(t *testing.T) {
	var log strings.Builder
	s, err := connect(t.Context(), fakeEnviron(t, SDKVersion), secretStore{values: map[string]string{"KEY": "hunter22"}}, &log)
	if err != nil {
		t.Fatal(err)
	}
	if s.version != "v"+SDKVersion {
		t.Errorf("version %s", s.version)
	}
	if err := s.close(); err != nil {
		t.Error(err)
	}
	var group, pid int
	var rest string
	for line := range strings.Lines(log.String()) {
		if _, err := fmt.Sscanf(line, "group %d of %d, %s", &group, &pid, &rest); err == nil {
			rest = line
			break
		}
	}
	// In a group of its own, or the terminal's Ctrl-C would end the session first.
	if group == 0 || group != pid || group == syscall.Getpgrp() {
		t.Errorf("the session's group is %d, ours %d", group, syscall.Getpgrp())
	}
	// Nothing is reported to anybody, other engines stay, and a secret comes by the environment.
	if !strings.HasSuffix(strings.TrimSpace(rest), ", 1, 1, hunter22") {
		t.Errorf("environment: %s", rest)
	}
	if !strings.Contains(log.String(), "session ended") {
		t.Errorf("the session was not ended in order: %s", log.String())
	}
	for line := range strings.Lines(log.String()) {
		if strings.HasPrefix(line, "query") && strings.Contains(line, "hunter22") {
			t.Errorf("a secret in a query: %s", line)
		}
	}
}

func TestConnectFails(t *testing.T) {
	none := filepath.Join(t.TempDir(), "none")
	for _, tt := range []struct {
		name    string
		environ []string
		want    []string
	}{
		{"no CLI", []string{"PATH=/none"}, []string{"there is no dagger CLI here", "install version " + SDKVersion}},
		{"a CLI that is not there", []string{CLIVariable + "=" + none}, []string{CLIVariable, none}},
		{"no engine", fakeEnviron(t, "dead"), []string{"no Dagger engine answers", "no container runtime found", "docs/dagger.md"}},
		{"a named engine that is not there", append(fakeEnviron(t, "dead"), RunnerVariable+"=unix:///none.sock"), []string{"no Dagger engine answers", "unix:///none.sock", SDKVersion}},
		{"another version", fakeEnviron(t, "0.18.12"), []string{"the Dagger engine is version v0.18.12", SDKVersion, "install version"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := connect(t.Context(), tt.environ, secretStore{}, io.Discard)
			if err == nil {
				t.Fatal("no error")
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q is not in: %v", want, err)
				}
			}
		})
	}
}

func TestLook(t *testing.T) {
	h := Look(t.Context(), "", fakeEnviron(t, SDKVersion))
	if h.CLIVersion != SDKVersion || h.CLIError != nil || h.Engine != "" {
		t.Errorf("%+v", h) // none is named, and none is started
	}
	h = Look(t.Context(), "", append(fakeEnviron(t, SDKVersion), RunnerVariable+"=tcp://127.0.0.1:1"))
	if h.Engine != "v"+SDKVersion || h.EngineError != nil {
		t.Errorf("%+v", h)
	}
	if h := Look(t.Context(), "", fakeEnviron(t, "0.18.12")); h.CLIError == nil || !strings.Contains(h.CLIError.Error(), "it is version 0.18.12") {
		t.Errorf("%+v", h)
	}
}

func TestSameMinor(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		want bool
	}{{"v0.21.9", "0.21.9", true}, {"v0.21.8", "0.21.9", true}, {"v0.21.9-260801-dev", "0.21.9", true}, {"v0.22.0", "0.21.9", false}, {"v1.0.0-beta.1", "0.21.9", false}, {"", "0.21.9", false}} {
		if got := sameMinor(tt.a, tt.b); got != tt.want {
			t.Errorf("%q, %q: %v", tt.a, tt.b, got)
		}
	}
}

func TestCacheLimits(t *testing.T) {
	l := cacheLimits{free: 50 << 30}
	if w := l.warning(252<<30, 49<<30); !strings.Contains(w, "49 GiB free") || !strings.Contains(w, "below 50 GiB") {
		t.Errorf("got %q", w)
	}
	for _, ok := range []string{l.warning(252<<30, 51<<30), l.warning(0, 0), cacheLimits{}.warning(252<<30, 1<<30)} {
		if ok != "" {
			t.Errorf("got %q", ok)
		}
	}
}
