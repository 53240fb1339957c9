package store

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestKilled kills a process that stores trials, for real, and goes on with what
// it left: all that it was told is stored is there, once.
func TestKilled(t *testing.T) {
	const rootVar = "STORE_TEST_ROOT"
	trials := testTrials(seeded(), 30)
	if root := os.Getenv(rootVar); root != "" { // the process that is killed
		p, err := Create(root, testRun(testID), []byte("{}"), []byte("x: 1\n"))
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; ; i++ {
			tr := trials[i%len(trials)]
			tr.StepID = fmt.Sprintf("step-%d", i)
			if err := p.PutTrial(tr); err != nil {
				t.Fatal(err)
			}
			fmt.Println("stored", tr.StepID)
		}
	}

	root := t.TempDir()
	cmd := exec.Command(os.Args[0], "-test.run=^TestKilled$")
	cmd.Env = append(os.Environ(), rootVar+"="+root)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var stored []string
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if step, ok := strings.CutPrefix(lines.Text(), "stored "); ok {
			stored = append(stored, step)
		}
		if len(stored) == 7 {
			if err := cmd.Process.Kill(); err != nil { // it is in the middle of the next one
				t.Fatal(err)
			}
		}
	}
	_ = cmd.Wait()
	if len(stored) < 7 {
		t.Fatalf("the process stored %d trials: %v", len(stored), lines.Err())
	}

	p, err := Resume(filepath.Join(root, testID))
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range stored {
		if !p.Done(step) {
			t.Errorf("%s was stored and is lost", step)
		}
	}
	kept := len(collect(t, p.Trials()))
	if kept != len(stored) && kept != len(stored)+1 { // killed before it could say so
		t.Errorf("%d trials are there, %d were stored", kept, len(stored))
	}
	path, err := p.Finish(p.Run(), nil)
	if err != nil {
		t.Fatal(err)
	}
	s, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(collect(t, s.Trials())); n != kept {
		t.Errorf("%d trials in the run, want %d", n, kept)
	}
}

// TestRealDiskFull fills a real file system while the run is stored.
func TestRealDiskFull(t *testing.T) {
	root := t.TempDir()
	if err := mountTmpfs(root, "size=3m"); err != nil {
		t.Skip("needs to mount a tmpfs: ", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(root, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	trials := testTrials(seeded(), 100)
	p, err := Create(root, testRun(testID), []byte("{}"), []byte("x: 1\n"))
	if err != nil {
		t.Fatal(err)
	}
	for _, tr := range trials {
		if err := p.PutTrial(tr); err != nil {
			t.Fatal(err)
		}
	}
	// Leave two pages: the files get their names, and the rows do not fit.
	filler := filepath.Join(root, "filler")
	f, err := os.Create(filler)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	size := int64(0)
	page := make([]byte, 4096)
	for {
		n, err := f.Write(page)
		if size += int64(n); err != nil {
			break
		}
	}
	if err := f.Truncate(size - 2*4096); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Finish(p.Run(), nil); !errors.Is(err, unix.ENOSPC) && (err == nil || !strings.Contains(err.Error(), unix.ENOSPC.Error())) {
		t.Fatalf("finish on a full disk: %v", err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	f.Close()
	if p, err = Resume(p.Dir()); err != nil {
		t.Fatal(err)
	}
	path, err := p.Finish(p.Run(), nil)
	if err != nil {
		t.Fatal(err)
	}
	s, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(collect(t, s.Trials())); n != len(trials) {
		t.Errorf("%d trials, want %d", n, len(trials))
	}
	if errs := s.Verify(); len(errs) > 0 {
		t.Error(errs)
	}
}

func mountTmpfs(dir, options string) error {
	if runtime.GOOS != "linux" {
		return errors.New("not on " + runtime.GOOS)
	}
	return unix.Mount("tmpfs", dir, "tmpfs", 0, options)
}
