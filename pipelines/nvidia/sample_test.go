package nvidia

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"speedmatrix/results/record"
)

func TestParseSample(t *testing.T) {
	const full = "1790000000000000000, 2026/09/21 14:13:20.123, 1, GPU-3, 1980, 2619, 431.27, 61, 97, 71234, 0x0000000000000004"
	want := Sample{At: time.Unix(0, 1790000000000000000), Index: 1, UUID: "GPU-3", SMClockMHz: new(1980.), MemClockMHz: new(2619.), PowerWatts: new(431.27),
		TemperatureCelsius: new(61.), UtilizationRatio: new(0.97), MemoryUsedBytes: new(int64(71234 << 20)), Reasons: new(uint64(4))}
	for line, want := range map[string]*Sample{
		full: &want,
		"1790000000000000000, 2026/09/21 14:13:20.123, 1, GPU-3, 1980 MHz, 2619 MHz, 431.27 W, 61, 97 %, 71234 MiB, 0x4": &want,
		"5, t, 0, [N/A], [N/A], [Not Supported], ERR!, [Unknown Error], [N/A], [N/A], [N/A]":                             {At: time.Unix(0, 5)},
		"5, t, 0, , , , , , 101, -1, 0xffffffffffffffff":                                                                 {At: time.Unix(0, 5)},
		"":              nil,
		"0" + full[19:]: nil,
		strings.TrimSuffix(full, ", 0x0000000000000004"): nil,
		full + ", 1":              nil,
		"-" + full:                nil,
		"5, t, x, , , , , , , , ": nil,
		"5, t, 0, , , , , , , , " + strings.Repeat(" ", maxLine): nil,
	} {
		got, err := ParseSample(line)
		if (err == nil) != (want != nil) {
			t.Errorf("%q: %v", line, err)
			continue
		}
		if want != nil {
			if diff := cmp.Diff(*want, got); diff != "" {
				t.Errorf("%q (-want +got):\n%s", line, diff)
			}
		}
	}
}

func TestRecordSamples(t *testing.T) {
	var samples []Sample
	for _, line := range []string{
		"1000000000, t, 0, GPU-a, 210, , , , , , ",
		"1000000000, t, 1, GPU-b, , , , , 0, , ",
		"2000000000, t, 0, GPU-a, 1980, , 400.5, 60, 90, 100, 0x48",
		"3000000001, t, 0, GPU-a, 1, , , , , , ",
	} {
		s, err := ParseSample(line)
		if err != nil {
			t.Fatal(err)
		}
		samples = append(samples, s)
	}
	at := func(ns int64, name string, v float64) record.Sample {
		return record.Sample{AtNs: ns, Source: "gpu", Name: name, Value: v}
	}
	want := []record.Sample{
		at(0, `gpu_sm_clock_mhz{gpu="0"}`, 210),
		at(0, `gpu_utilization_ratio{gpu="1"}`, 0),
		at(1e9, `gpu_sm_clock_mhz{gpu="0"}`, 1980),
		at(1e9, `gpu_power_watts{gpu="0"}`, 400.5),
		at(1e9, `gpu_temperature_celsius{gpu="0"}`, 60),
		at(1e9, `gpu_utilization_ratio{gpu="0"}`, 0.9),
		at(1e9, `gpu_memory_used_bytes{gpu="0"}`, 100<<20),
		at(1e9, `gpu_throttle_reasons_bitmask{gpu="0"}`, 0x48),
	}
	if diff := cmp.Diff(want, RecordSamples(samples, time.Unix(1, 0), 2*time.Second)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := RecordSamples(samples, time.Unix(9, 0), time.Second); got != nil {
		t.Errorf("after all: %v", got)
	}
	if got := RecordSamples(samples, time.Unix(2, 0), -time.Hour); got != nil {
		t.Errorf("a negative time: %v", got)
	}
}

func TestReasons(t *testing.T) {
	if diff := cmp.Diff([]string{"gpu_idle", "applications_clocks_setting", "sw_power_cap", "hw_slowdown", "sync_boost", "sw_thermal", "hw_thermal", "hw_power_brake", "display", "0x200"}, reasonNames(0x3ff)); diff != "" {
		t.Error(diff)
	}
	for bits, want := range map[uint64]bool{0: false, 1: false, 2: false, 4: false, 8: true, 0x10: false, 0x20: true, 0x40: true, 0x80: true, 0x100: false, math.MaxUint64: true} {
		if throttled(bits) != want {
			t.Errorf("%#x: %v", bits, !want)
		}
	}
}

func FuzzParseSample(f *testing.F) {
	f.Add("1790000000000000000, 2026/09/21 14:13:20.123, 1, GPU-3, 1980, 2619, 431.27, 61, 97, 71234, 0x0000000000000004")
	f.Add("5, t, 0, [N/A], [N/A], [Not Supported], ERR!, [Unknown Error], [N/A], [N/A], [N/A]")
	f.Fuzz(func(t *testing.T, line string) {
		s, err := ParseSample(line)
		if err != nil {
			return
		}
		for _, r := range RecordSamples([]Sample{s}, s.At, 0) {
			if math.IsNaN(r.Value) || math.IsInf(r.Value, 0) || r.AtNs != 0 {
				t.Errorf("%q: %+v", line, r)
			}
		}
	})
}
