//go:build linux

package host

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"speedmatrix/experiments/plan"
	"speedmatrix/experiments/servecmd"
	"speedmatrix/pipelines/supervise"
	"speedmatrix/pipelines/weights"
	"speedmatrix/results/record"
)

// snapshots sees to it that the engine loads the files that the plan was locked to, and
// returns the environment in which it finds nothing else. A folder must hold them. A
// model of a hub is taken from the person's own cache if that is the one and holds them,
// else it is fetched into ours: the names in the person's cache are not ours to move.
func (j *job) snapshots(ctx context.Context) (env []string, settings []record.Field, err error) {
	all := j.Plan.Identity.Model.Snapshots
	theirs, ours := hubCache(j.environ), filepath.Join(j.CacheDir, "hub")
	hub, allTheirs := false, true
	for _, s := range all {
		if s.Revision == "" {
			dir := s.ID
			if !filepath.IsAbs(dir) {
				dir = filepath.Join(j.dir, dir)
			}
			j.progress("build", "hashing the model "+s.ID)
			if err := weights.Check(ctx, dir, s, nil); err != nil {
				return nil, nil, err
			}
			settings = append(settings, record.Field{Label: "Model", Value: fmt.Sprintf("%s, %d files, %d bytes, as locked", s.ID, len(s.Files), s.Bytes)})
			continue
		}
		hub = true
		j.progress("build", "hashing the model "+s.ID)
		if weights.Cached(ctx, theirs, s, j.refs(s), nil) != nil {
			allTheirs = false
		}
	}
	if !hub {
		return nil, settings, nil
	}
	cache := theirs
	if !allTheirs {
		cache = ours
	}
	for _, s := range all {
		if s.Revision == "" {
			continue
		}
		if !allTheirs {
			err := weights.Fetch(ctx, weights.Options{
				Dir: filepath.Join(ours, weights.HubFolder(s.ID)), Snapshot: s, Refs: j.refs(s),
				Source: j.hub, Token: supervise.Getenv(j.environ, "HF_TOKEN"),
				Progress: func(done, total int64) {
					j.progress("build", fmt.Sprintf("%s: %.1f of %.1f GB", s.ID, float64(done)/1e9, float64(total)/1e9))
				},
			})
			if err != nil {
				return nil, nil, err
			}
		}
		settings = append(settings, record.Field{Label: "Model", Value: fmt.Sprintf("%s %s, %d files, %d bytes, as locked", s.ID, s.Revision, len(s.Files), s.Bytes)})
	}
	return []string{"HF_HUB_CACHE=" + cache, "HF_HUB_OFFLINE=1"}, settings, nil
}

// refs are the names by which the engine asks for a model's revision; the revision itself
// needs none.
func (j *job) refs(s plan.Snapshot) []string {
	var refs []string
	if s.ID == j.Plan.Identity.Model.ID {
		said, _ := servecmd.Flag(j.Plan.Identity.Engine.Argv, "--revision")
		refs = append(refs, cmp.Or(said, "main"))
	}
	// What the experiment calls a revision is not what the engine asks for; what the
	// command calls it is.
	for _, pin := range j.Plan.Pins {
		name, ref, _ := strings.Cut(pin.Asked, "@")
		if strings.HasPrefix(pin.Field, "engine.command: ") && name == s.ID && pin.Found == s.Revision {
			refs = append(refs, cmp.Or(ref, "main"))
		}
	}
	slices.Sort(refs)
	return slices.Compact(slices.DeleteFunc(refs, func(r string) bool { return r == s.Revision }))
}

// hubCache is where programs of this machine keep models of the hub.
func hubCache(environ []string) string {
	home := supervise.Getenv(environ, "HOME")
	base := cmp.Or(supervise.Getenv(environ, "HF_HOME"), filepath.Join(cmp.Or(supervise.Getenv(environ, "XDG_CACHE_HOME"), filepath.Join(home, ".cache")), "huggingface"))
	return cmp.Or(supervise.Getenv(environ, "HF_HUB_CACHE"), filepath.Join(base, "hub"))
}
