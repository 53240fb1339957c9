package main

import (
	"context"
	"os"

	"github.com/spf13/cobra"

	"speedmatrix/pipelines/simulator"
)

func simulateCmd(p process, drain <-chan struct{}) *cobra.Command {
	var addr, profile, urlFile string
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
			if urlFile != "" {
				cfg.Listening = func(url string) error { return os.WriteFile(urlFile, []byte(url+"\n"), 0o644) }
			}
			return serve(c, p, drain, cfg)
		},
	}
	c.Flags().StringVar(&addr, "addr", "127.0.0.1:8000", "address to listen on")
	c.Flags().StringVar(&profile, "profile", "", "YAML file with the engine's speed (default: the built-in one)")
	c.Flags().StringVar(&urlFile, "url-file", "", "write the URL to this file when the engine listens (for scripts, with --addr 127.0.0.1:0)")
	return c
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
