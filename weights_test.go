package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"speedmatrix/experiments/plan"
)

func TestWeights(t *testing.T) {
	const text = "some weights"
	sum := sha256.Sum256([]byte(text))
	s := plan.Snapshot{ID: "org/name", Revision: strings.Repeat("ab", 20), Files: []plan.File{{Path: "a.safetensors", Bytes: int64(len(text)), SHA256: hex.EncodeToString(sum[:])}}}
	hub := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Header.Get("Authorization") != "Bearer hf_secret":
			w.WriteHeader(http.StatusUnauthorized)
		case r.URL.Path != "/org/name/resolve/"+s.Revision+"/a.safetensors":
			http.NotFound(w, r)
		default:
			w.Write([]byte(text))
		}
	}))
	defer hub.Close()
	dir := t.TempDir()
	b, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	file, to := filepath.Join(dir, "snapshot.json"), filepath.Join(dir, "models--org--name")
	if err := os.WriteFile(file, b, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		args   []string
		want   int
		stderr string
	}{
		{nil, exitUsage, "give --snapshot, --dir and --source"},
		{[]string{"--snapshot", file, "--dir", to, "--source", hub.URL, "--token-env", "UNSET"}, exitUsage, "is not set or empty"},
		{[]string{"--snapshot", file, "--dir", to, "--source", hub.URL}, exitWrong, "set HF_TOKEN"},
		{[]string{"--snapshot", file, "--dir", to, "--source", hub.URL, "--token-env", "MY_TOKEN", "--ref", "main"}, exitOK, "org/name: 0.0 of 0.0 MB\n"},
		{[]string{"--snapshot", file, "--dir", to, "--source", "http://127.0.0.1:1"}, exitOK, "org/name: 0.0 of 0.0 MB\n"},
	} {
		var stderr bytes.Buffer
		got := run(t.Context(), process{
			args:   append([]string{"weights"}, tt.args...),
			stdin:  strings.NewReader(""),
			stdout: &stderr,
			stderr: &stderr,
			getenv: func(name string) string {
				if name == "MY_TOKEN" {
					return "hf_secret"
				}
				return ""
			},
			environ: func() []string { return nil },
			leave:   func() {},
		})
		if got != tt.want || !strings.Contains(stderr.String(), tt.stderr) || strings.Contains(stderr.String(), "hf_secret") {
			t.Errorf("%q: status %d, want %d; %s", tt.args, got, tt.want, stderr.String())
		}
	}
	for name, want := range map[string]string{"refs/main": s.Revision, "snapshots/" + s.Revision + "/a.safetensors": text} {
		if got, err := os.ReadFile(filepath.Join(to, name)); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}
