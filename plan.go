package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"speedmatrix/experiments/plan"
	"speedmatrix/experiments/resolve"
	"speedmatrix/experiments/spec"
	"speedmatrix/pipelines/attach"
	"speedmatrix/pipelines/vllm"
	"speedmatrix/results/record"
)

func planCmd(p process) *cobra.Command {
	var f experimentFlags
	var l lockFlags
	var asJSON bool
	c := &cobra.Command{
		Use:   "plan EXPERIMENT",
		Short: "Print every cell, what cannot fit, what is unpinned and the time needed",
		Long: `Plan resolves an experiment without starting anything. Cells that would exceed
the KV cache are predicted where its capacity is known: from --kv-capacity, from
the experiment, or from the metrics of the server that is measured with --attach
or source attach.

With --lock every name becomes what it means now: an image's tag the digest of its
manifest for one platform, a branch or tag a full commit, a model its revision with
the size and hash of each file. The locked plan is written to a file that plan and
run take in the experiment's place; from then on nothing is resolved anew. Only
--lock asks registries, repositories and hubs.`,
		Example: `  speedmatrix plan experiments/quickstart.yaml
  speedmatrix plan experiments/qwen3.5-4b-fp8-rtx-3060.yaml --json
  speedmatrix plan experiments/quickstart.yaml --kv-capacity 20000
  speedmatrix plan --lock experiments/qwen3.5-4b-fp8-rtx-3060.yaml
  speedmatrix plan --lock experiments/ours.yaml -o ours.json --platform linux/arm64
  speedmatrix plan --lock experiments/ours.yaml --hub http://127.0.0.1:8090 --hub-token-env HF_TOKEN
  speedmatrix run experiments/qwen3.5-4b-fp8-rtx-3060.plan.json`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			r, err := l.load(c, p, args[0], f)
			if err != nil {
				return err
			}
			capacity := r.Plan.Identity.Capacity
			if capacity.KVTokens == 0 && r.Source.Attach != "" {
				if capacity, err = askCapacity(c.Context(), r.Source.Attach, capacity); err != nil {
					fmt.Fprintf(p.stderr, "KV capacity unknown: %s\n", printable(err.Error()))
				}
			}
			if asJSON {
				return planJSON(p.stdout, r, capacity)
			}
			return planText(p.stdout, r, capacity)
		},
	}
	addExperimentFlags(c, &f)
	l.add(c)
	c.Flags().BoolVar(&asJSON, "json", false, "print the plan and its predictions as JSON")
	return c
}

// wouldFit says what to change where no cell fits.
func wouldFit(id *plan.Identity, c plan.Capacity) string {
	room := int64(0) // for the output of the cell that needs least
	for _, s := range id.Steps {
		if s.Phase != record.PhaseDecode {
			continue
		}
		each := int64(math.MaxInt64)
		if c.MaxModelLen > 0 {
			each = c.MaxModelLen
		}
		if c.Rule != "try" && c.KVTokens > 0 {
			each = min(each, c.KVTokens/int64(s.Concurrency))
		}
		if c.Rule != "try" && c.PerEngine > 0 {
			each = min(each, c.PerEngine)
		}
		room = max(room, each-int64(s.ContextTokens))
	}
	if room < 1 || room >= int64(id.MaxOutput) {
		return "no prompt fits; give shorter matrix.contexts or matrix.prefill"
	}
	standard := ""
	if id.MaxOutput == spec.New().Matrix.MaxOutput {
		standard = ", the default"
	}
	return fmt.Sprintf("a request is counted at full length; lower matrix.max_output (%d%s): from %d down a cell fits", id.MaxOutput, standard, room)
}

// askCapacity reads the KV capacity from a running server's metrics.
func askCapacity(ctx context.Context, url string, c plan.Capacity) (plan.Capacity, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, 10*time.Second, errors.New("no answer within 10 s"))
	defer cancel()
	url, err := attach.BaseURL(url)
	if err != nil {
		return c, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/metrics", nil)
	if err != nil {
		return c, err
	}
	// As when measuring: no proxy of the environment, no detour.
	resp, err := (&http.Transport{}).RoundTrip(req)
	if err != nil {
		return c, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return c, fmt.Errorf("%s/metrics answers %s", url, resp.Status)
	}
	const most = 8 << 20
	body, err := io.ReadAll(io.LimitReader(resp.Body, most+1))
	if err != nil {
		return c, err
	}
	if len(body) > most {
		return c, fmt.Errorf("%s/metrics is larger than %d MiB", url, most>>20)
	}
	m := vllm.Parse(body, nil)
	if m.KVCapacityTokens == nil {
		return c, fmt.Errorf("%s/metrics does not tell it", url)
	}
	return c.Told(*m.KVCapacityTokens, m.KVCapacityPerEngine, "metrics"), nil
}

type plannedStep struct {
	plan.Step
	Status string `json:"status"` // run, over_capacity or skipped
	Reason string `json:"reason,omitempty"`
	Why    string `json:"why,omitempty"`
}

func predict(id *plan.Identity, c plan.Capacity) []plannedStep {
	out := make([]plannedStep, 0, len(id.Steps))
	for _, s := range id.Steps {
		ps := plannedStep{Step: s, Status: "run"}
		switch v := id.Predict(c, s); {
		case s.Skip != "":
			ps.Status, ps.Reason = "skipped", s.Skip
		case !v.Fits:
			ps.Status, ps.Reason, ps.Why = v.Status, v.Reason, v.Why
		}
		out = append(out, ps)
	}
	return out
}

func planJSON(w io.Writer, r *resolve.Resolved, c plan.Capacity) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(struct {
		*plan.Plan
		Capacity          plan.Capacity `json:"capacity"`
		Predicted         []plannedStep `json:"predicted"`
		AtLeastSeconds    float64       `json:"at_least_seconds"`
		EstimateLeavesOut string        `json:"estimate_leaves_out"`
	}{r.Plan, c, predict(&r.Plan.Identity, c), resolve.Estimate(&r.Plan.Identity, c).Seconds(), estimateLeavesOut})
}

const estimateLeavesOut = "starting the engine and reading the prompts"

func planText(w io.Writer, r *resolve.Resolved, c plan.Capacity) error {
	id := &r.Plan.Identity
	fmt.Fprintf(w, "%s\n%s\n\n", oneLine(cmp.Or(r.Plan.Text.Title, r.Plan.Text.Name), 200), r.Plan.Digest)
	steps := predict(id, c)
	run := 0
	for _, s := range steps {
		word := "run"
		switch s.Status {
		case "run":
			run++
		case "over_capacity":
			word = "over capacity: " + s.Why
		default:
			word = "skipped: " + s.Reason
			if s.Why != "" {
				word = "skipped: " + s.Why
			}
		}
		fmt.Fprintf(w, "  %-26s %s\n", printable(s.ID), printable(word))
	}
	if run > 0 {
		fmt.Fprintf(w, "\n%d cells, %d to run, at least %s without %s\n", len(steps), run, resolve.Estimate(id, c).Round(time.Second), estimateLeavesOut)
	} else {
		fmt.Fprintf(w, "\n%d cells, nothing would be measured: %s\n", len(steps), wouldFit(id, c))
	}
	if c.KVTokens > 0 {
		fmt.Fprintf(w, "KV capacity %s tokens (%s)\n", grouped(c.KVTokens), c.Source)
	} else {
		fmt.Fprintln(w, "KV capacity unknown until the engine tells it: nothing is predicted to be over capacity (--kv-capacity gives it)")
	}
	if len(r.Plan.Unpinned) == 0 {
		fmt.Fprintln(w, "everything is pinned")
	}
	for _, pin := range r.Plan.Pins {
		fmt.Fprintf(w, "pinned: %s: %s is %s\n", pin.Field, printable(pin.Asked), pin.Found)
	}
	if locked := r.Plan.Identity.Engine.Locked; locked != nil {
		fmt.Fprintf(w, "the image is for %s\n", locked.Platform)
	}
	if len(r.Plan.Pins) > 0 {
		fmt.Fprintln(w, "locked: nothing is resolved anew")
	}
	for _, u := range r.Plan.Unpinned {
		fmt.Fprintf(w, "unpinned: %s\n", printable(u))
	}
	return nil
}
