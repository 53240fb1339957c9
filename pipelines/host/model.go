//go:build linux

package host

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"speedmatrix/pipelines/supervise"
)

// maxScript bounds the script that makes a model.
const maxScript = 1 << 20

// ensureModel returns the folder in which the relative path that the serve command
// names the model by leads to the model's files. The engine is started in that
// folder, so its command line stays word for word what the plan says.
//
// The script is run with the virtual environment's interpreter and one argument,
// the folder to write. Its bytes and the lock decide what it writes, so their hash
// names the result.
func (j *job) ensureModel(ctx context.Context, v *venv, name string) (string, error) {
	if name == "" || !filepath.IsLocal(name) {
		return "", fmt.Errorf("engine.command: the model is %q; with engine.source.wheel.model it must be a relative path, where the script's result will lie", name)
	}
	script, err := os.ReadFile(j.Wheel.ModelScript)
	if err != nil {
		return "", fmt.Errorf("engine.source.wheel.model: %w", err)
	}
	if len(script) > maxScript {
		return "", fmt.Errorf("engine.source.wheel.model: %s is larger than %d MiB", j.Wheel.ModelScript, maxScript>>20)
	}
	if want, got := j.Plan.Identity.Model.Files, "sha256:"+sumOf(script); want != "" && want != got {
		return "", fmt.Errorf("engine.source.wheel.model: %s changed since the plan was made", j.Wheel.ModelScript)
	}
	key := sumOf([]byte(v.Lock), []byte(v.Python), []byte(name), script)[:32]
	dir := filepath.Join(j.CacheDir, "models", key)
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return "", err
	}
	unlock, err := j.lockFile(ctx, dir+".lock", "another run is making the same model")
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	// Made beside and renamed: what is in the cache is complete. An interrupted try
	// may have left something.
	beside := dir + ".partial"
	if err := errors.Join(os.RemoveAll(beside), os.Mkdir(beside, 0o755)); err != nil {
		return "", err
	}
	defer os.RemoveAll(beside)
	copied := filepath.Join(beside, "make_model.py")
	if err := os.WriteFile(copied, script, 0o644); err != nil {
		return "", err
	}
	tmp, out := filepath.Join(beside, "tmp"), filepath.Join(beside, "out")
	if err := errors.Join(os.Mkdir(tmp, 0o700), os.MkdirAll(filepath.Dir(filepath.Join(out, name)), 0o755)); err != nil {
		return "", err
	}
	log, err := os.OpenFile(filepath.Join(j.LogsDir, "model.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return "", err
	}
	defer log.Close()
	j.progress("build", "making the model "+name)
	w := supervise.NewLog(log, j.secrets, j.chatter("build"))
	err = supervise.Run(ctx, j.self, supervise.Command{
		Program: v.bin("python"),
		Args:    []string{"-I", copied, filepath.Join(out, name)},
		Env:     supervise.Setenv(engineEnv(j.environ), "TMPDIR", tmp),
		Dir:     tmp,
		Grace:   time.Second,
		Log:     w,
	})
	if err := errors.Join(err, w.Close()); err != nil {
		return "", fmt.Errorf("make the model with %s: %w", j.Wheel.ModelScript, err)
	}
	if _, err := os.Stat(filepath.Join(out, name, "config.json")); err != nil {
		return "", fmt.Errorf("make the model with %s: it wrote no config.json into the folder that it was given", j.Wheel.ModelScript)
	}
	return dir, os.Rename(out, dir)
}

// sumOf is the hex SHA-256 over parts, each with its length in front.
func sumOf(parts ...[]byte) string {
	h := sha256.New()
	if len(parts) == 1 {
		h.Write(parts[0])
		return hex.EncodeToString(h.Sum(nil))
	}
	for _, p := range parts {
		fmt.Fprintf(h, "%d\n", len(p))
		h.Write(p)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// hashFiles is a hash over the names and contents of all files below dir, in the
// order of their names, as `find | sort | sha256sum | sha256sum` would give it.
func hashFiles(dir string) (string, error) {
	h := sha256.New()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		if strings.ContainsRune(name, '\n') {
			return fmt.Errorf("%q: a file name with a line break", name)
		}
		fmt.Fprintf(h, "%s  %s\n", sumOf(b), filepath.ToSlash(name))
		return nil
	})
	if err != nil {
		return "", err
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil)), nil
}
