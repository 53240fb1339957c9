package nvidia

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"speedmatrix/results/record"
)

// SampleQuery is what to ask nvidia-smi for (--query-gpu, --format=csv,noheader,nounits),
// so that its lines, each with the time of its arrival in front, are what [ParseSample]
// reads. OldSampleQuery is the same for drivers before 535.
const (
	SampleQuery    = "timestamp,index,uuid,clocks.sm,clocks.mem,power.draw,temperature.gpu,utilization.gpu,memory.used,clocks_event_reasons.active"
	OldSampleQuery = "timestamp,index,uuid,clocks.sm,clocks.mem,power.draw,temperature.gpu,utilization.gpu,memory.used,clocks_throttle_reasons.active"
)

const (
	sampleFields = 11
	maxLine      = 1 << 10
)

// Sample is one reading of one GPU. Nil: not told.
type Sample struct {
	At    time.Time // when the line arrived
	Index int       // as nvidia-smi numbers the GPUs where it ran
	UUID  string

	SMClockMHz         *float64
	MemClockMHz        *float64
	PowerWatts         *float64
	TemperatureCelsius *float64
	UtilizationRatio   *float64
	MemoryUsedBytes    *int64
	Reasons            *uint64 // bits, see reasonNames
}

// ParseSample reads one line:
//
//	<unix ns>, <timestamp>, <index>, <uuid>, <sm MHz>, <memory MHz>, <W>, <°C>, <%>, <MiB>, <reasons>
//
// with or without units.
func ParseSample(line string) (Sample, error) {
	if len(line) > maxLine {
		return Sample{}, fmt.Errorf("a line of %d bytes is no reading of a GPU", len(line))
	}
	f := strings.Split(line, ",")
	if len(f) != sampleFields {
		return Sample{}, fmt.Errorf("%d fields, want %d", len(f), sampleFields)
	}
	for i := range f {
		f[i] = strings.TrimSpace(f[i])
	}
	at := count(f[0])
	if at == nil || *at == 0 {
		return Sample{}, fmt.Errorf("field 1: %q is no time in nanoseconds", f[0])
	}
	index := count(f[2])
	if index == nil || *index >= maxGPUs {
		return Sample{}, fmt.Errorf("field 3: %q is no number of a GPU", f[2])
	}
	s := Sample{
		At:                 time.Unix(0, *at),
		Index:              int(*index),
		UUID:               known(f[3]),
		SMClockMHz:         quantity(f[4], "MHz"),
		MemClockMHz:        quantity(f[5], "MHz"),
		PowerWatts:         quantity(f[6], "W"),
		TemperatureCelsius: quantity(f[7], "C"),
		MemoryUsedBytes:    amount(f[9]),
	}
	if u := quantity(f[8], "%"); u != nil && *u >= 0 && *u <= 100 {
		s.UtilizationRatio = new(*u / 100)
	}
	if bits, ok := strings.CutPrefix(f[10], "0x"); ok {
		// Bits above 2^53 would not survive being stored as a number; there are none yet.
		if v, err := strconv.ParseUint(bits, 16, 64); err == nil && v < 1<<53 {
			s.Reasons = &v
		}
	}
	return s, nil
}

// RecordSamples gives the readings of one trial: those from its start to its end.
// samples are in order of time.
func RecordSamples(samples []Sample, start time.Time, length time.Duration) []record.Sample {
	byTime := func(s Sample, t time.Time) int { return s.At.Compare(t) }
	from, _ := slices.BinarySearchFunc(samples, start, byTime)
	to, _ := slices.BinarySearchFunc(samples, start.Add(length+1), byTime)
	var out []record.Sample
	for _, s := range samples[from:max(from, to)] {
		add := func(name string, v *float64) {
			if v != nil {
				out = append(out, record.Sample{AtNs: s.At.Sub(start).Nanoseconds(), Source: record.SourceGPU, Name: record.GPUSample(name, s.Index), Value: *v})
			}
		}
		add(record.SampleGPUSMClock, s.SMClockMHz)
		add(record.SampleGPUMemClock, s.MemClockMHz)
		add(record.SampleGPUPower, s.PowerWatts)
		add(record.SampleGPUTemperature, s.TemperatureCelsius)
		add(record.SampleGPUUtilization, s.UtilizationRatio)
		if m := s.MemoryUsedBytes; m != nil {
			add(record.SampleGPUMemoryUsed, new(float64(*m)))
		}
		if r := s.Reasons; r != nil {
			add(record.SampleGPUReasons, new(float64(*r)))
		}
	}
	return out
}

// Bits of NVML that say why clocks are below what they could be.
const (
	reasonIdle          = 1 << iota
	reasonApplication   // clocks that somebody set
	reasonPowerCap      // at the power limit: the usual state of a busy GPU
	reasonHW            // slowed by hardware: one of the last three, or a fault
	reasonSyncBoost     // waits for the slowest of its group
	reasonSWThermal     //
	reasonHWThermal     //
	reasonHWPowerBrake  // the power supply asks for it
	reasonDisplayClocks //

	throttling = reasonHW | reasonSWThermal | reasonHWThermal | reasonHWPowerBrake
)

func reasonTable() []string {
	return []string{"gpu_idle", "applications_clocks_setting", "sw_power_cap", "hw_slowdown", "sync_boost", "sw_thermal", "hw_thermal", "hw_power_brake", "display"}
}

// reasonNames names the bits in their order; one without a name is given as "0x200".
func reasonNames(bits uint64) []string {
	var out []string
	names := reasonTable()
	for i := range 64 {
		switch bit := uint64(1) << i; {
		case bits&bit == 0:
		case i < len(names):
			out = append(out, names[i])
		default:
			out = append(out, fmt.Sprintf("%#x", bit))
		}
	}
	return out
}

// throttled says whether heat, the power supply or a fault slows the GPU. That a GPU is at
// its power limit or idle is not meant.
func throttled(bits uint64) bool { return bits&throttling != 0 }

// bitOf finds a reason by its stem.
func bitOf(name string) uint64 {
	for i, n := range reasonTable() {
		if stem(n) == name {
			return 1 << i
		}
	}
	return 0
}

// stem is the name of a reason without its ending, which drivers spell differently.
func stem(name string) string {
	for _, ending := range []string{"_slowdown", "_clocks_setting", "_clock_setting"} {
		name = strings.TrimSuffix(name, ending)
	}
	return name
}
