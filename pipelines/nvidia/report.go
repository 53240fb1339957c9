package nvidia

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"unicode"
)

// Bounds of a report: what a machine of many GPUs with many processes needs, and not
// what somebody could make us hold.
const (
	maxReport    = 8 << 20
	maxGPUs      = 1024
	maxProcesses = 4096 // a GPU
	maxWord      = 256  // bytes of a name
)

// Report is what nvidia-smi says of a machine, or of a container.
type Report struct {
	Driver string `json:"driver,omitempty"` // "550.54.14"
	// CUDA is the version of the user-mode driver that was loaded: in a container with
	// CUDA's compatibility package it is that package's.
	CUDA string `json:"cuda,omitempty"` // "12.4"
	GPUs []GPU  `json:"gpus,omitempty"`
}

// GPU is one attached GPU. Nil and empty: not told.
type GPU struct {
	Index        int    `json:"index"` // place in the report; containers number anew
	Name         string `json:"name,omitempty"`
	Brand        string `json:"brand,omitempty"`        // "NVIDIA", "Tesla", "GeForce"
	Architecture string `json:"architecture,omitempty"` // "Hopper"
	UUID         string `json:"uuid,omitempty"`
	Bus          string `json:"bus,omitempty"` // PCI, "00000000:4F:00.0": the same in and outside of containers

	Persistence *bool  `json:"persistence,omitempty"`
	ComputeMode string `json:"compute_mode,omitempty"` // "Default", "Exclusive_Process", "Prohibited"
	NeedsReset  *bool  `json:"needs_reset,omitempty"`

	MIG        *bool       `json:"mig,omitempty"` // nil: this GPU cannot
	MIGDevices []MIGDevice `json:"mig_devices,omitempty"`

	MemoryTotalBytes    *int64 `json:"memory_total_bytes,omitempty"`
	MemoryUsedBytes     *int64 `json:"memory_used_bytes,omitempty"`
	MemoryReservedBytes *int64 `json:"memory_reserved_bytes,omitempty"` // by the driver; part of used before driver 510

	PowerDrawWatts    *float64 `json:"power_draw_watts,omitempty"`
	PowerLimitWatts   *float64 `json:"power_limit_watts,omitempty"` // in force
	PowerDefaultWatts *float64 `json:"power_default_watts,omitempty"`
	PowerMaxWatts     *float64 `json:"power_max_watts,omitempty"`

	SMClockMHz         *float64 `json:"sm_clock_mhz,omitempty"`
	SMClockMaxMHz      *float64 `json:"sm_clock_max_mhz,omitempty"`
	MemClockMHz        *float64 `json:"mem_clock_mhz,omitempty"`
	MemClockMaxMHz     *float64 `json:"mem_clock_max_mhz,omitempty"`
	TemperatureCelsius *float64 `json:"temperature_celsius,omitempty"`

	// Reasons are what holds the clocks down now, as NVML's bits.
	Reasons *uint64 `json:"reasons,omitempty"`
	// OtherReasons are active ones that this package has no bit for.
	OtherReasons []string `json:"other_reasons,omitempty"`

	ECC *bool `json:"ecc,omitempty"`
	// ECCUncorrected counts since the driver was loaded.
	ECCUncorrected *int64 `json:"ecc_uncorrected,omitempty"`
	RemapPending   *bool  `json:"remap_pending,omitempty"` // rows of memory wait for a reset to be replaced
	RemapFailed    *bool  `json:"remap_failed,omitempty"`

	// Processes are those that can be seen: in a container, none of other containers.
	Processes []Process `json:"processes,omitempty"`
}

// MIGDevice is a slice of a GPU.
type MIGDevice struct {
	Index            int    `json:"index"`
	UUID             string `json:"uuid,omitempty"` // newer drivers only
	GPUInstance      *int64 `json:"gpu_instance,omitempty"`
	ComputeInstance  *int64 `json:"compute_instance,omitempty"`
	MemoryTotalBytes *int64 `json:"memory_total_bytes,omitempty"`
	MemoryUsedBytes  *int64 `json:"memory_used_bytes,omitempty"`
}

// Process holds memory of a GPU.
type Process struct {
	PID             int64  `json:"pid"`
	Name            string `json:"name,omitempty"`
	Type            string `json:"type,omitempty"` // "C" computes, "G" draws, "C+G" both
	MemoryUsedBytes *int64 `json:"memory_used_bytes,omitempty"`
}

// Parse reads the report of "nvidia-smi -q -x".
func Parse(text []byte) (Report, error) {
	if len(text) > maxReport {
		return Report{}, fmt.Errorf("nvidia-smi: its report has %d bytes, more than %d: no report of nvidia-smi -q -x", len(text), maxReport)
	}
	// Warnings of the driver may stand before the document.
	start := bytes.Index(text, []byte("<?xml"))
	if start < 0 {
		start = bytes.Index(text, []byte("<nvidia_smi_log"))
	}
	if start < 0 {
		said, _, _ := strings.Cut(strings.TrimSpace(string(text[:min(len(text), 1<<10)])), "\n")
		if said = word(said); said == "" {
			said = "nothing"
		}
		return Report{}, fmt.Errorf("nvidia-smi: no report, it said: %s", said)
	}
	root, err := document(text[start:])
	if err != nil {
		return Report{}, fmt.Errorf("nvidia-smi: its report cannot be read: %w", err)
	}
	r := Report{Driver: known(root.text("driver_version")), CUDA: known(root.text("cuda_version"))}
	for i := range root.Nodes {
		n := &root.Nodes[i]
		if n.XMLName.Local != "gpu" {
			continue
		}
		if len(r.GPUs) == maxGPUs {
			return Report{}, fmt.Errorf("nvidia-smi: its report has more than %d GPUs", maxGPUs)
		}
		r.GPUs = append(r.GPUs, gpu(n, len(r.GPUs)))
	}
	return r, nil
}

func gpu(n *node, index int) GPU {
	power := func(names ...string) *float64 {
		for _, name := range names {
			// Two names of one element: before driver 535, and after.
			for _, group := range []string{"gpu_power_readings/", "power_readings/"} {
				if w := quantity(n.text(group+name), "W"); w != nil && *w >= 0 {
					return w
				}
			}
		}
		return nil
	}
	g := GPU{
		Index:        index,
		Name:         known(n.text("product_name")),
		Brand:        known(n.text("product_brand")),
		Architecture: known(n.text("product_architecture")),
		UUID:         known(n.text("uuid")),
		Bus:          known(n.text("pci/pci_bus_id")),
		Persistence:  flag(n.text("persistence_mode")),
		ComputeMode:  known(n.text("compute_mode")),
		NeedsReset:   flag(n.text("gpu_reset_status/reset_required")),
		MIG:          flag(n.text("mig_mode/current_mig")),

		MemoryTotalBytes:    amount(n.text("fb_memory_usage/total")),
		MemoryUsedBytes:     amount(n.text("fb_memory_usage/used")),
		MemoryReservedBytes: amount(n.text("fb_memory_usage/reserved")),

		PowerDrawWatts:    power("instant_power_draw", "power_draw", "average_power_draw"),
		PowerLimitWatts:   power("current_power_limit", "enforced_power_limit", "power_limit"),
		PowerDefaultWatts: power("default_power_limit"),
		PowerMaxWatts:     power("max_power_limit"),

		SMClockMHz:         quantity(n.text("clocks/sm_clock"), "MHz"),
		SMClockMaxMHz:      quantity(n.text("max_clocks/sm_clock"), "MHz"),
		MemClockMHz:        quantity(n.text("clocks/mem_clock"), "MHz"),
		MemClockMaxMHz:     quantity(n.text("max_clocks/mem_clock"), "MHz"),
		TemperatureCelsius: quantity(n.text("temperature/gpu_temp"), "C"),

		ECC:            flag(n.text("ecc_mode/current_ecc")),
		ECCUncorrected: uncorrected(n.find("ecc_errors/volatile")),
		RemapPending:   flag(n.text("remapped_rows/remapped_row_pending")),
		RemapFailed:    flag(n.text("remapped_rows/remapped_row_failure")),
	}
	if g.Bus == "" {
		g.Bus = known(n.ID)
	}
	for _, name := range []string{"clocks_event_reasons", "clocks_throttle_reasons"} {
		if r := n.find(name); r != nil {
			g.Reasons, g.OtherReasons = reasons(r)
			break
		}
	}
	if m := n.find("mig_devices"); m != nil {
		for i := range m.Nodes {
			d := &m.Nodes[i]
			if d.XMLName.Local != "mig_device" || len(g.MIGDevices) == maxGPUs {
				continue
			}
			g.MIGDevices = append(g.MIGDevices, MIGDevice{
				Index:            len(g.MIGDevices),
				UUID:             known(d.text("uuid")),
				GPUInstance:      count(d.text("gpu_instance_id")),
				ComputeInstance:  count(d.text("compute_instance_id")),
				MemoryTotalBytes: amount(d.text("fb_memory_usage/total")),
				MemoryUsedBytes:  amount(d.text("fb_memory_usage/used")),
			})
		}
	}
	if ps := n.find("processes"); ps != nil {
		for i := range ps.Nodes {
			p := &ps.Nodes[i]
			pid := count(p.text("pid"))
			if pid == nil || len(g.Processes) == maxProcesses {
				continue
			}
			g.Processes = append(g.Processes, Process{*pid, known(p.text("process_name")), known(p.text("type")), amount(p.text("used_memory"))})
		}
	}
	return g
}

// reasons reads elements like clocks_event_reason_hw_slowdown. Nil: none was told.
func reasons(n *node) (*uint64, []string) {
	var bits uint64
	var others []string
	told := false
	for i := range n.Nodes {
		name := n.Nodes[i].XMLName.Local
		for _, prefix := range []string{"clocks_event_reasons_", "clocks_event_reason_", "clocks_throttle_reason_"} {
			name = strings.TrimPrefix(name, prefix)
		}
		active := strings.TrimSpace(n.Nodes[i].Text)
		if active != "Active" && active != "Not Active" {
			continue
		}
		told = true
		if active != "Active" {
			continue
		}
		if bit := bitOf(stem(name)); bit != 0 {
			bits |= bit
		} else {
			others = append(others, word(name))
		}
	}
	if !told {
		return nil, nil
	}
	return &bits, others
}

// uncorrected adds up the counters of errors that were not corrected: by place of memory
// ("dram_uncorrectable"), or in older GPUs by width ("double_bit/total").
func uncorrected(n *node) *int64 {
	if n == nil {
		return nil
	}
	var sum *int64
	for i := range n.Nodes {
		c := &n.Nodes[i]
		name, text := c.XMLName.Local, c.Text
		if name == "double_bit" {
			text = c.text("total")
		} else if !strings.Contains(name, "uncorrectable") {
			continue
		}
		v := count(text)
		if v == nil {
			continue
		}
		if sum != nil && *sum <= math.MaxInt64-*v {
			*v += *sum
		}
		sum = v
	}
	return sum
}

// node is any element. The report's elements come, go and are renamed from driver to
// driver, so that they are looked up by name and not declared.
type node struct {
	XMLName xml.Name
	ID      string `xml:"id,attr"`
	Text    string `xml:",chardata"`
	Nodes   []node `xml:",any"`
}

func document(text []byte) (*node, error) {
	d := xml.NewDecoder(bytes.NewReader(bytes.ToValidUTF8(text, []byte("\uFFFD"))))
	d.Strict = false // names of processes are not always escaped
	d.CharsetReader = func(_ string, r io.Reader) (io.Reader, error) { return r, nil }
	var root node
	if err := d.Decode(&root); err != nil {
		return nil, err
	}
	if root.XMLName.Local != "nvidia_smi_log" {
		return nil, errors.New("it is no nvidia_smi_log")
	}
	return &root, nil
}

func (n *node) find(path string) *node {
	for name := range strings.SplitSeq(path, "/") {
		var next *node
		for i := range n.Nodes {
			if n.Nodes[i].XMLName.Local == name {
				next = &n.Nodes[i]
				break
			}
		}
		if next == nil {
			return nil
		}
		n = next
	}
	return n
}

func (n *node) text(path string) string {
	if n = n.find(path); n == nil {
		return ""
	}
	return n.Text
}

// known is a name, or empty for the words by which nvidia-smi says that it does not know.
func known(s string) string {
	s = word(s)
	switch bare := strings.ToLower(strings.Trim(s, "[]")); {
	case bare == "n/a", bare == "err!", bare == "unknown", bare == "not supported", bare == "unknown error",
		bare == "not found", bare == "gpu is lost", bare == "gpu requires reset", bare == "insufficient permissions",
		strings.Contains(bare, "functionality has been deprecated"):
		return ""
	}
	return s
}

// word is one printable line of at most maxWord bytes.
func word(s string) string {
	if len(s) > 4*maxWord {
		s = s[:4*maxWord]
	}
	s = strings.Join(strings.Fields(strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case !unicode.IsPrint(r):
			return -1
		}
		return r
	}, s)), " ")
	if len(s) > maxWord {
		s = strings.ToValidUTF8(s[:maxWord], "")
	}
	return s
}

func flag(s string) *bool {
	switch known(s) {
	case "Enabled", "Yes", "On":
		return new(true)
	case "Disabled", "No", "Off":
		return new(false)
	}
	return nil
}

func count(s string) *int64 {
	v, err := strconv.ParseInt(strings.TrimSpace(s), 10, 64)
	if err != nil || v < 0 {
		return nil
	}
	return &v
}

// quantity reads "1980 MHz"; a number without a unit has the one that was asked.
func quantity(s, unit string) *float64 {
	number, got, _ := strings.Cut(strings.TrimSpace(s), " ")
	if got = strings.TrimSpace(got); got != "" && got != unit {
		return nil
	}
	// Plain decimals only: nvidia-smi writes neither exponents nor names for numbers.
	if strings.Trim(number, "+-.0123456789") != "" {
		return nil
	}
	v, err := strconv.ParseFloat(number, 64)
	if err != nil || math.IsInf(v, 0) || math.Abs(v) > 1e12 {
		return nil
	}
	return &v
}

// amount reads "81559 MiB" as bytes; a number without a unit is in MiB.
func amount(s string) *int64 {
	number, unit, _ := strings.Cut(strings.TrimSpace(s), " ")
	shift := map[string]uint{"": 20, "B": 0, "KiB": 10, "MiB": 20, "GiB": 30, "TiB": 40}
	by, ok := shift[strings.TrimSpace(unit)]
	v := count(number)
	if !ok || v == nil || *v > math.MaxInt64>>by {
		return nil
	}
	return new(*v << by)
}
