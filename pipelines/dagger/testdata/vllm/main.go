// Vllm is a vllm program for the images of tests: the embedded engine behind vLLM's
// command line. It looks for its model as vLLM does, so a model that was not brought is
// noticed.
//
//	vllm serve MODEL …
//	vllm version                makes $VERSION the version of its package (for Dockerfiles)
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"speedmatrix/pipelines/simulator"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 1 && args[0] == "version" {
		const packages = "/usr/local/lib/python3.12/site-packages"
		if err := os.RemoveAll(packages); err != nil {
			return err
		}
		dir := filepath.Join(packages, "vllm-"+os.Getenv("VERSION")+".dist-info")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(dir, "METADATA"), []byte("Metadata-Version: 2.1\nName: vllm\nVersion: "+os.Getenv("VERSION")+"\n"), 0o644)
	}
	cfg, err := simulator.FromServeArgs(args, os.Getenv)
	if err != nil {
		return err
	}
	if len(args) > 1 {
		if err := findModel(args[1]); err != nil {
			return err
		}
	}
	cfg.Profile.APIKey = os.Getenv("VLLM_API_KEY")
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	return simulator.Serve(ctx, cfg, os.Stdout)
}

// findModel looks for config.json: in the folder, or in the hub's cache under refs/main.
func findModel(model string) error {
	if strings.HasPrefix(model, ".") || strings.HasPrefix(model, "/") {
		_, err := os.Stat(filepath.Join(model, "config.json"))
		return err
	}
	hub := os.Getenv("HF_HUB_CACHE")
	if hub == "" {
		return nil // a name that nothing has to stand for
	}
	if os.Getenv("HF_HUB_OFFLINE") != "1" {
		return errors.New("the hub could be asked for another revision")
	}
	dir := filepath.Join(hub, "models--"+strings.ReplaceAll(model, "/", "--"))
	ref, err := os.ReadFile(filepath.Join(dir, "refs", "main"))
	if err != nil {
		return err
	}
	_, err = os.Stat(filepath.Join(dir, "snapshots", string(ref), "config.json"))
	return err
}
