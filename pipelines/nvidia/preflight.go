package nvidia

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

const (
	mib = 1 << 20
	// slack is how much of a GPU's memory may be held without a word: a driver keeps a
	// little, and other programs breathe. The host executor allows the same.
	slack = 256 * mib
	// strange is how much may be held by nobody who can be seen. In a container, programs
	// of other containers cannot; older drivers count what they reserve themselves.
	strange = 1024 * mib
)

// ImageCUDA is what an image was made for: its CUDA_VERSION and NVIDIA_REQUIRE_CUDA.
type ImageCUDA struct {
	Version string // "12.9.1"; empty: made for no CUDA, or does not say
	Require string // "cuda>=12.9 brand=tesla,driver>=535,driver<536 …"
}

// Want is what a plan needs.
type Want struct {
	// Devices are indices, UUIDs of GPUs or of MIG devices, as they were asked for; empty:
	// all that are there.
	Devices []string
	// Count is how many GPUs the engine divides its work over; 0: not known.
	Count int
}

// Finding is one thing that stands against measuring, or that can move the numbers, with
// the command that mends it.
type Finding struct {
	Kind   string // stable word
	Refuse bool   // it cannot be measured like this; else it is a warning
	Text   string
}

// Preflight holds the GPUs against what the image and the plan want, before anything is
// started: whoever uses the GPUs now is somebody else.
func Preflight(r Report, image ImageCUDA, want Want) []Finding {
	gpus, findings := chosen(r, want)
	if len(gpus) == 0 {
		return findings
	}
	findings = append(findings, driver(r, gpus, image)...)
	for _, c := range []struct {
		kind   string
		refuse bool
		// say gives the fact, and the command that mends it for the GPUs "-i …" names;
		// equal facts of several GPUs become one finding.
		say func(g *GPU) (fact, mend string)
	}{
		{"gpu_needs_reset", true, func(g *GPU) (string, string) {
			if !yes(g.NeedsReset) {
				return "", ""
			}
			return "the driver wants a reset", "end what uses it, then: nvidia-smi -i %s --gpu-reset"
		}},
		{"gpu_prohibited", true, func(g *GPU) (string, string) {
			if g.ComputeMode != "Prohibited" {
				return "", ""
			}
			return "compute mode Prohibited lets nothing run", "nvidia-smi -i %s -c DEFAULT"
		}},
		{"gpu_mig", true, func(g *GPU) (string, string) {
			if !yes(g.MIG) || wantsMIG(want) {
				return "", ""
			}
			return fmt.Sprintf("MIG is on (%d devices), but a whole GPU was asked for", len(g.MIGDevices)), "ask for a MIG device by its UUID (nvidia-smi -L), or turn it off: nvidia-smi -i %s -mig 0"
		}},
		{"gpu_in_use", true, func(g *GPU) (string, string) {
			if held := g.foreign(true); held != "" {
				return held, "end it, or take another GPU; on the host: nvidia-smi -i %s"
			}
			return "", ""
		}},
		{"gpu_in_use", false, func(g *GPU) (string, string) {
			if held := g.foreign(false); held != "" {
				return held, "end it for numbers of an undisturbed GPU; on the host: nvidia-smi -i %s"
			}
			return "", ""
		}},
		{"gpu_memory_held", true, func(g *GPU) (string, string) { return g.unexplained(strange, 1<<62) }},
		{"gpu_memory_held", false, func(g *GPU) (string, string) { return g.unexplained(slack, strange) }},
		{"gpu_throttled", false, func(g *GPU) (string, string) {
			if g.Reasons == nil {
				return "", ""
			}
			names := append(reasonNames(*g.Reasons&^(reasonIdle|reasonPowerCap)), g.OtherReasons...)
			if len(names) == 0 {
				return "", ""
			}
			mend := "look at cooling and power supply: nvidia-smi -i %s -q -d PERFORMANCE,TEMPERATURE"
			switch {
			case throttled(*g.Reasons):
			case *g.Reasons&reasonApplication != 0:
				mend = "if that is not meant: nvidia-smi -i %s -rac (and -rgc)"
			default:
				mend = "nvidia-smi -i %s -q -d PERFORMANCE"
			}
			return "clocks are held down by " + strings.Join(names, ", "), mend
		}},
		{"gpu_power_limit", false, func(g *GPU) (string, string) {
			l, d := g.PowerLimitWatts, g.PowerDefaultWatts
			if l == nil || d == nil || *l > *d-0.5 {
				return "", ""
			}
			return fmt.Sprintf("power limit %s W, its default is %s W: a busy GPU will be slower than others of its kind", watts(*l), watts(*d)),
				fmt.Sprintf("nvidia-smi -i %%s -pl %s", watts(*d))
		}},
		{"gpu_persistence", false, func(g *GPU) (string, string) {
			if g.Persistence == nil || *g.Persistence {
				return "", ""
			}
			return "persistence mode is off: settings are lost and start-up takes longer whenever nothing uses it", "nvidia-smi -i %s -pm 1"
		}},
		{"gpu_ecc_errors", false, func(g *GPU) (string, string) {
			if n := g.ECCUncorrected; n != nil && *n > 0 {
				return fmt.Sprintf("%d memory errors that were not corrected since the driver was loaded", *n), "nvidia-smi -i %s -q -d ECC,ROW_REMAPPER, then reset it: nvidia-smi -i %[1]s --gpu-reset"
			}
			return "", ""
		}},
		{"gpu_row_remap", false, func(g *GPU) (string, string) {
			switch {
			case yes(g.RemapFailed):
				return "rows of its memory could not be replaced", "have it replaced: nvidia-smi -i %s -q -d ROW_REMAPPER"
			case yes(g.RemapPending):
				return "rows of its memory wait to be replaced", "end what uses it, then: nvidia-smi -i %s --gpu-reset"
			}
			return "", ""
		}},
	} {
		findings = append(findings, together(gpus, c.kind, c.refuse, c.say)...)
	}
	return findings
}

// together makes one finding of the GPUs that have the same fact.
func together(gpus []*GPU, kind string, refuse bool, say func(*GPU) (fact, mend string)) []Finding {
	type said struct{ fact, mend string }
	var order []said
	who := map[said][]*GPU{}
	for _, g := range gpus {
		var s said
		if s.fact, s.mend = say(g); s.fact == "" {
			continue
		}
		if who[s] == nil {
			order = append(order, s)
		}
		who[s] = append(who[s], g)
	}
	var out []Finding
	for _, s := range order {
		var indices, names []string
		for _, g := range who[s] {
			indices = append(indices, strconv.Itoa(g.Index))
			// The bus is the same on the host, where the command is to be given.
			names = append(names, cmp.Or(g.Bus, g.UUID, strconv.Itoa(g.Index)))
		}
		label := "GPU "
		if len(indices) > 1 {
			label = "GPUs "
		}
		out = append(out, Finding{kind, refuse, fmt.Sprintf("%s%s: %s; %s", label, strings.Join(indices, ", "), s.fact, fmt.Sprintf(s.mend, strings.Join(names, ",")))})
	}
	return out
}

// chosen gives the GPUs that are wanted, and what is missing.
func chosen(r Report, want Want) ([]*GPU, []Finding) {
	var all, named []*GPU
	for i := range r.GPUs {
		all = append(all, &r.GPUs[i])
	}
	if len(all) == 0 {
		return nil, []Finding{{"gpu_missing", true, "nvidia-smi sees no GPU: give the container one (--gpus), and see on the host: nvidia-smi -L"}}
	}
	var findings []Finding
	byName := false
	for _, d := range want.Devices {
		if !strings.HasPrefix(d, "GPU-") && !strings.HasPrefix(d, "MIG-") {
			continue // an index of the host says nothing in a container, which numbers anew
		}
		byName = true
		found := false
		for _, g := range all {
			here := strings.HasPrefix(g.UUID, d) || slices.ContainsFunc(g.MIGDevices, func(m MIGDevice) bool { return strings.HasPrefix(m.UUID, d) })
			// Older drivers do not say the UUIDs of MIG devices.
			here = here || strings.HasPrefix(d, "MIG-") && yes(g.MIG) && !slices.ContainsFunc(g.MIGDevices, func(m MIGDevice) bool { return m.UUID != "" })
			if here {
				found = true
				if !slices.Contains(named, g) {
					named = append(named, g)
				}
			}
		}
		if !found {
			findings = append(findings, Finding{"gpu_missing", true, fmt.Sprintf("%s was asked for and is not there; those that are: nvidia-smi -L", word(d))})
		}
	}
	if byName && len(named) == len(want.Devices) {
		all = named
	}
	seen, need := len(all), max(want.Count, len(want.Devices))
	if wantsMIG(want) {
		seen = 0 // one device each, however many share a GPU
		for _, g := range all {
			seen += max(1, len(g.MIGDevices))
		}
	}
	if seen < need && len(findings) == 0 {
		findings = append(findings, Finding{"gpu_missing", true, fmt.Sprintf("%d GPUs are needed, %d are there; ask for as many (--gpus), or divide the engine over fewer (--tensor-parallel-size)", need, seen)})
	}
	return all, findings
}

func wantsMIG(w Want) bool {
	return slices.ContainsFunc(w.Devices, func(d string) bool { return strings.HasPrefix(d, "MIG-") })
}

// driver holds the driver against the image's CUDA.
func driver(r Report, gpus []*GPU, image ImageCUDA) []Finding {
	version := image.Version
	if version == "" {
		version = required(image.Require)
	}
	needs, ok := numbers(version)
	if !ok || len(needs) < 2 {
		return nil
	}
	needs = needs[:2]
	cuda := fmt.Sprintf("%d.%d", needs[0], needs[1])
	has, ok := numbers(r.CUDA)
	if !ok || len(has) < 2 {
		return []Finding{{"gpu_driver", false, fmt.Sprintf("the driver does not say which CUDA it is for; the image needs CUDA %s: nvidia-smi must show it", cuda)}}
	}
	have := fmt.Sprintf("driver %s is for CUDA %s", cmp.Or(r.Driver, "(unknown)"), r.CUDA)
	newer := "install " + driverFor(needs)
	allowed := !slices.ContainsFunc(gpus, func(g *GPU) bool { return !admits(image.Require, r, g) })
	dataCenter := !slices.ContainsFunc(gpus, func(g *GPU) bool { return !slices.Contains([]string{"tesla", "nvidia", "nvidiartx"}, brand(g)) })
	switch {
	case slices.Compare(has[:2], needs) >= 0:
		return nil
	case has[0] == needs[0] && needs[0] >= 11:
		text := fmt.Sprintf("%s, the image for %s: within one major version that runs, but code that is compiled at run time (PTX) may fail and new functions are missing; install the driver that came with CUDA %s", have, cuda, cuda)
		if image.Require != "" && !allowed {
			text += "; the image's NVIDIA_REQUIRE_CUDA does not admit this driver, so that other container engines may refuse it"
		}
		return []Finding{{"gpu_driver", false, text}}
	case allowed && dataCenter:
		return []Finding{{"gpu_driver", false, fmt.Sprintf("%s, the image for %s: it runs by CUDA's compatibility package only, if the image has it; better %s", have, cuda, newer)}}
	}
	return []Finding{{"gpu_driver", true, fmt.Sprintf("%s, the image needs %s: %s, or take an image for CUDA %d", have, cuda, newer, has[0])}}
}

// driverFor says which driver is the oldest for a version of CUDA.
func driverFor(version []int) string {
	switch version[0] {
	case 11:
		return "driver 450 or newer"
	case 12:
		return "driver 525 or newer"
	case 13:
		return "driver 580 or newer"
	}
	return fmt.Sprintf("the driver that came with CUDA %d.%d or a newer one", version[0], version[1])
}

// required is the version in "cuda>=12.9 …", where an image has no CUDA_VERSION.
func required(require string) string {
	for alternative := range strings.FieldsSeq(require) {
		for c := range strings.SplitSeq(alternative, ",") {
			if v, ok := strings.CutPrefix(c, "cuda>="); ok {
				return v
			}
		}
	}
	return ""
}

// admits evaluates NVIDIA_REQUIRE_CUDA: alternatives with spaces between them, each of
// conditions with commas between them that must all hold. What we cannot evaluate does not
// hold.
func admits(require string, r Report, g *GPU) bool {
	for alternative := range strings.FieldsSeq(require) {
		holds := true
		for c := range strings.SplitSeq(alternative, ",") {
			holds = holds && condition(c, r, g)
		}
		if holds {
			return true
		}
	}
	return false
}

func condition(c string, r Report, g *GPU) bool {
	i := strings.IndexAny(c, "<>=!")
	if i < 0 {
		return false
	}
	name, rest := c[:i], c[i:]
	op := rest[:len(rest)-len(strings.TrimLeft(rest, "<>=!"))]
	value := rest[len(op):]
	var is string
	switch name {
	case "brand":
		return op == "=" && brand(g) == value || op == "!=" && brand(g) != value
	case "cuda":
		is = r.CUDA
	case "driver":
		is = r.Driver
	}
	a, ok := numbers(is)
	b, ok2 := numbers(value)
	if !ok || !ok2 {
		return false
	}
	switch order := slices.Compare(a, b); op {
	case ">=":
		return order >= 0
	case ">":
		return order > 0
	case "<=":
		return order <= 0
	case "<":
		return order < 0
	case "=":
		return order == 0
	case "!=":
		return order != 0
	}
	return false
}

// brand is the word that NVIDIA_REQUIRE_CUDA has for a GPU's brand: "nvidiartx".
func brand(g *GPU) string {
	b := strings.ReplaceAll(strings.ToLower(g.Brand), " ", "")
	switch b {
	case "":
		return "unknown"
	case "nvidiavirtualapplications":
		return "vapps"
	case "nvidiavirtualpc":
		return "vpc"
	case "nvidiavirtualcomputeserver":
		return "vcs"
	case "nvidiartxvirtualworkstation":
		return "vws"
	case "nvidiacloudgaming":
		return "cloudgaming"
	}
	return b
}

// numbers reads "535.129.03".
func numbers(s string) ([]int, bool) {
	var out []int
	for part := range strings.SplitSeq(strings.TrimSpace(s), ".") {
		n, err := strconv.ParseUint(part, 10, 31)
		if err != nil || len(out) == 8 {
			return nil, false
		}
		out = append(out, int(n))
	}
	return out, true
}

// foreign lists the processes that hold memory: those that compute with more than the
// slack, or else the others.
func (g *GPU) foreign(serious bool) string {
	var held []string
	more := 0
	for _, p := range g.Processes {
		big := p.MemoryUsedBytes == nil || *p.MemoryUsedBytes > slack
		if serious != (p.Type == "C" && big) {
			continue
		}
		if len(held) == 8 {
			more++
			continue
		}
		memory := "an unknown amount"
		if p.MemoryUsedBytes != nil {
			memory = fmt.Sprintf("%d MiB", *p.MemoryUsedBytes/mib)
		}
		held = append(held, fmt.Sprintf("process %d (%s) holds %s", p.PID, cmp.Or(p.Name, "name unknown"), memory))
	}
	if more > 0 {
		held = append(held, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(held, ", ")
}

// unexplained says how much memory is held by nobody who can be seen, if that is more than
// from and at most to.
func (g *GPU) unexplained(from, to int64) (fact, mend string) {
	if g.MemoryUsedBytes == nil {
		return "", ""
	}
	held := *g.MemoryUsedBytes
	for _, p := range g.Processes {
		if p.MemoryUsedBytes == nil {
			return "", "" // it may explain all
		}
		held -= min(*p.MemoryUsedBytes, held)
	}
	if held <= from || held > to {
		return "", ""
	}
	return fmt.Sprintf("%d MiB of its memory are held by no process that can be seen from here", held/mib), "another container may have it; on the host: nvidia-smi -i %s"
}

// MemoryHeld says on which GPU more memory is in use than before; empty if on none.
// Where either report does not tell, nothing is said.
func MemoryHeld(before, after Report) string {
	key := func(g *GPU) string { return cmp.Or(g.UUID, g.Bus, strconv.Itoa(g.Index)) }
	was := map[string]*GPU{}
	for i := range before.GPUs {
		was[key(&before.GPUs[i])] = &before.GPUs[i]
	}
	var out []string
	for i := range after.GPUs {
		g := &after.GPUs[i]
		b := was[key(g)]
		if b == nil {
			continue
		}
		say := func(name string, now, then *int64) {
			if now != nil && then != nil && *now-slack > *then {
				out = append(out, fmt.Sprintf("%s has %d MiB in use, %d before the start", name, *now/mib, *then/mib))
			}
		}
		say(fmt.Sprintf("GPU %d", g.Index), g.MemoryUsedBytes, b.MemoryUsedBytes)
		for j := range min(len(g.MIGDevices), len(b.MIGDevices)) {
			say(fmt.Sprintf("MIG device %d of GPU %d", j, g.Index), g.MIGDevices[j].MemoryUsedBytes, b.MIGDevices[j].MemoryUsedBytes)
		}
	}
	return strings.Join(out, ", ")
}

func yes(b *bool) bool { return b != nil && *b }

func watts(w float64) string { return strconv.FormatFloat(w, 'f', -1, 64) }
