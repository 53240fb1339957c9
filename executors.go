package main

import (
	"fmt"

	"speedmatrix/pipelines"
	"speedmatrix/pipelines/attach"
	"speedmatrix/pipelines/host"
	"speedmatrix/pipelines/simulator"
)

// executor lists who can carry out a plan, by the source of its engine.
func executor(source string, p process) (pipelines.Executor, error) {
	switch source {
	case "simulator":
		return simulator.Executor{}, nil
	case "attach":
		return attach.Executor{}, nil
	case "host", "wheel":
		return host.Executor{Self: p.self, Environ: p.environ()}, nil
	case "image", "commit":
		return nil, usageError{err: fmt.Errorf("engine.source.%s needs a container engine, which this version cannot drive yet\nstart the server yourself and measure it with --attach URL, or give the experiment source host or wheel", source)}
	}
	return nil, usageError{err: fmt.Errorf("engine.source: %q is none of simulator, attach, host, wheel, image, commit", source)}
}
