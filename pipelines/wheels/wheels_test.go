package wheels

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestRead(t *testing.T) {
	const h = "--hash=sha256:00"
	tests := []struct {
		name, lock, err string
		want            Lock
	}{
		{"one", "a==1 " + h + "\n", "", Lock{Packages: 1}},
		{"continued", "# c\n--only-binary :all:\na==1 ; python_version < '3' \\\n    " + h + " \\\n    " + h + "\nb_c.d==2+cpu \\\n " + h, "", Lock{Packages: 2}},
		{"provides", "# provides: vllm==0.32.0+cpu\na==1 " + h, "", Lock{1, []Distribution{{"vllm", "0.32.0+cpu"}}}},
		{"no hash", "\na==1\nb==2 " + h, "lock:2: a==1 has no --hash", Lock{Packages: 1}},
		{"no pin", "a>=1 " + h, `lock:1: "a>=1 `, Lock{}},
		{"other index", "--index-url x\na==1 " + h, `lock:1: option "--index-url"`, Lock{Packages: 1}},
		{"other file", "-r x", `lock:1: option "-r"`, Lock{}},
		{"url", "a @ file:///x " + h, "lock:1:", Lock{}},
		{"empty", "# nothing\n", "names no package", Lock{}},
		{"provides a path", "# provides: ../x==1\na==1 " + h, "lock:1: provides", Lock{Packages: 1}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Read([]byte(tt.lock))
			if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("error %v, want %q", err, tt.err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte("# provides: a==1\nb==2 \\\n --hash=sha256:0\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := Read(b)
		if err == nil && l.Packages == 0 {
			t.Error("an empty lock is a lock")
		}
		for _, d := range l.Provides {
			if strings.ContainsAny(d.Name+d.Version, "/\n\\") {
				t.Errorf("%q would leave its folder", d)
			}
		}
	})
}

// The lock of the experiment that everybody runs holds the promise.
func TestExperimentLock(t *testing.T) {
	b, err := os.ReadFile("../../experiments/vllm-cpu-tiny/lock.txt")
	if err != nil {
		t.Fatal(err)
	}
	l, err := Read(b)
	if err != nil {
		t.Fatal(err)
	}
	if l.Packages < 150 || len(l.Provides) != 1 {
		t.Errorf("%+v", l)
	}
	for _, word := range []string{"http:", "https:", "--index", "--find-links"} {
		if strings.Contains(string(b), word) {
			t.Errorf("the lock names where packages are: %q", word)
		}
	}
}

func TestProvide(t *testing.T) {
	site := t.TempDir()
	d := Distribution{"some-name", "1.0+cpu"}
	if err := Provide(site, d); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(site, "some_name-1.0+cpu.dist-info", "METADATA"))
	if err != nil || !strings.HasPrefix(string(b), "Metadata-Version: 2.1\nName: some-name\nVersion: 1.0+cpu\n") {
		t.Errorf("%q, %v", b, err)
	}
	if err := Provide(site, d); err == nil || !strings.Contains(err.Error(), "already") {
		t.Errorf("a second time: %v", err)
	}
}
