package main

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"sync"

	"github.com/spf13/cobra"

	"speedmatrix/pipelines/simulator"
)

func simulateCmd(p process, drain <-chan struct{}) *cobra.Command {
	var addr, profile, urlFile, truth, faults string
	c := &cobra.Command{
		Use:   "simulate",
		Short: "Serve the embedded engine: vLLM's API with the speed of a profile",
		Long: `Simulate serves the engine that source simulator measures, until it is
interrupted. Whatever is measured against it is a simulation.`,
		Example: `  speedmatrix simulate --addr 127.0.0.1:8000
  speedmatrix simulate --profile experiments/profiles/quickstart.yaml`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, args []string) error {
			cfg := simulator.Config{Addr: addr, Profile: simulator.DefaultProfile()}
			if profile != "" {
				data, err := readFile(profile)
				if err != nil {
					return err
				}
				if cfg.Profile, err = simulator.ParseProfile(data); err != nil {
					return usageError{err: err}
				}
			}
			var err error
			if cfg.Faults, err = simulator.ParseFaults(faults); err != nil {
				return usageError{err: err}
			}
			if urlFile != "" {
				cfg.Listening = func(url string) error { return os.WriteFile(urlFile, []byte(url+"\n"), 0o644) }
			}
			if truth == "" {
				return serve(c, p, drain, cfg)
			}
			log, err := createTruth(truth)
			if err != nil {
				return err
			}
			cfg.Truth = log
			return errors.Join(serve(c, p, drain, cfg), log.Close())
		},
	}
	c.Flags().StringVar(&addr, "addr", "127.0.0.1:8000", "address to listen on")
	c.Flags().StringVar(&profile, "profile", "", "YAML file with the engine's speed (default: the built-in one)")
	c.Flags().StringVar(&urlFile, "url-file", "", "write the URL to this file when the engine listens (for scripts, with --addr 127.0.0.1:0)")
	c.Flags().StringVar(&truth, "truth", "", "write every request and every write of tokens, with its time, to this file")
	c.Flags().StringVar(&faults, "faults", "", "what goes wrong, such as role-early,crlf,clump-bytes=16384")
	return c
}

// truthFile is the log of the simulator's truth. A handler whose client is slow can
// outlive the server; what it still has to say after the end is not kept.
type truthFile struct {
	mu     sync.Mutex
	buf    *bufio.Writer
	file   io.Closer
	closed bool
}

func createTruth(path string) (*truthFile, error) {
	f, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	return &truthFile{buf: bufio.NewWriterSize(f, 1<<20), file: f}, nil
}

func (t *truthFile) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return len(b), nil
	}
	return t.buf.Write(b)
}

// Close writes what is left.
func (t *truthFile) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	return errors.Join(t.buf.Flush(), t.file.Close())
}

// serve runs the simulator until the first signal.
func serve(c *cobra.Command, p process, drain <-chan struct{}, cfg simulator.Config) error {
	ctx, cancel := context.WithCancelCause(c.Context())
	defer cancel(nil)
	go func() {
		select {
		case <-drain:
			cancel(errInterrupted)
		case <-ctx.Done():
		}
	}()
	return simulator.Serve(ctx, cfg, p.stderr)
}
