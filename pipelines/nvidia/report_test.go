package nvidia

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func report(t testing.TB, name string) Report {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	r, err := Parse(b)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestParse(t *testing.T) {
	const m = int64(1 << 20)
	for name, want := range map[string]Report{
		"470-p100.xml": {Driver: "470.199.02", CUDA: "11.4", GPUs: []GPU{{
			Name: "Tesla P100-PCIE-16GB", Brand: "Tesla", Architecture: "Pascal",
			UUID: "GPU-10000000-aaaa-bbbb-cccc-000000000001", Bus: "00000000:3B:00.0",
			Persistence: new(false), ComputeMode: "Default",
			MemoryTotalBytes: new(16280 * m), MemoryUsedBytes: new(2 * m),
			PowerDrawWatts: new(26.31), PowerLimitWatts: new(200.), PowerDefaultWatts: new(250.), PowerMaxWatts: new(250.),
			SMClockMHz: new(1189.), SMClockMaxMHz: new(1328.), MemClockMHz: new(715.), MemClockMaxMHz: new(715.),
			TemperatureCelsius: new(31.), Reasons: new(uint64(4)), ECC: new(true), ECCUncorrected: new(int64(3)),
		}}},
		"535-a100-mig.xml": {Driver: "535.183.01", CUDA: "12.2", GPUs: []GPU{{
			Name: "NVIDIA A100-SXM4-40GB", Brand: "NVIDIA", Architecture: "Ampere",
			UUID: "GPU-20000000-aaaa-bbbb-cccc-000000000001", Bus: "00000000:17:00.0",
			Persistence: new(true), ComputeMode: "Default", MIG: new(true),
			MIGDevices: []MIGDevice{
				{GPUInstance: new(int64(1)), ComputeInstance: new(int64(0)), MemoryTotalBytes: new(20096 * m), MemoryUsedBytes: new(37 * m)},
				{Index: 1, GPUInstance: new(int64(5)), ComputeInstance: new(int64(0)), MemoryTotalBytes: new(9984 * m)},
			},
			MemoryTotalBytes: new(40960 * m), MemoryUsedBytes: new(37 * m), MemoryReservedBytes: new(503 * m),
			PowerDrawWatts: new(47.02), PowerLimitWatts: new(400.), PowerDefaultWatts: new(400.), PowerMaxWatts: new(400.),
			SMClockMHz: new(210.), SMClockMaxMHz: new(1410.), MemClockMHz: new(1215.), MemClockMaxMHz: new(1215.),
			TemperatureCelsius: new(31.), Reasons: new(uint64(1)), ECC: new(true), ECCUncorrected: new(int64(0)),
		}, {
			Index: 1, Name: "NVIDIA A100-SXM4-40GB", Brand: "NVIDIA", Architecture: "Ampere",
			UUID: "GPU-20000000-aaaa-bbbb-cccc-000000000002", Bus: "00000000:31:00.0",
			Persistence: new(true), ComputeMode: "Default", MIG: new(false),
			MemoryTotalBytes: new(40960 * m), MemoryUsedBytes: new(30211 * m), MemoryReservedBytes: new(503 * m),
			PowerDrawWatts: new(243.55), PowerLimitWatts: new(400.), PowerDefaultWatts: new(400.), PowerMaxWatts: new(400.),
			SMClockMHz: new(705.), SMClockMaxMHz: new(1410.), MemClockMHz: new(1215.), MemClockMaxMHz: new(1215.),
			TemperatureCelsius: new(88.), Reasons: new(uint64(0x48)), ECC: new(true), ECCUncorrected: new(int64(0)),
			RemapPending: new(true), RemapFailed: new(false),
			Processes: []Process{
				{41231, "/opt/venv/bin/python3 -m train --name a&b", "C", new(30120 * m)},
				{2201, "/usr/lib/xorg/Xorg", "G", new(41 * m)},
			},
		}}},
		"580-geforce.xml": {Driver: "580.95.05", CUDA: "13.0", GPUs: []GPU{{
			Name: "NVIDIA GeForce RTX 3060", Brand: "GeForce", Architecture: "Ampere",
			UUID: "GPU-40000000-aaaa-bbbb-cccc-000000000001", Bus: "00000000:01:00.0",
			Persistence: new(false), ComputeMode: "Default",
			MemoryTotalBytes: new(12288 * m), MemoryUsedBytes: new(612 * m), MemoryReservedBytes: new(334 * m),
			PowerDrawWatts: new(15.25), PowerLimitWatts: new(170.), PowerDefaultWatts: new(170.),
			SMClockMHz: new(210.), SMClockMaxMHz: new(2130.), MemClockMaxMHz: new(7501.),
			TemperatureCelsius: new(31.), Reasons: new(uint64(1)),
			Processes: []Process{{2544, "/usr/bin/gnome-shell", "G", new(312 * m)}, {3790, "/usr/bin/nautilus", "C+G", new(20 * m)}},
		}}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(want, report(t, name)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func one(inside string) Report {
	r, err := Parse([]byte("<nvidia_smi_log><gpu>" + inside + "</gpu></nvidia_smi_log>"))
	if err != nil {
		panic(err)
	}
	return r
}

func TestUnknownIsNoNumber(t *testing.T) {
	for _, word := range []string{"", "N/A", "[N/A]", "[Not Supported]", "Requested functionality has been deprecated",
		"[Requested functionality has been deprecated]", "ERR!", "[Unknown Error]", "GPU is lost", "NaN W", "Inf W", "0x10 MiB", "1e3 W", "12 parsec"} {
		g := one("<product_name>" + word + "</product_name><fb_memory_usage><total>" + word + "</total><used>" + word + "</used></fb_memory_usage>" +
			"<gpu_power_readings><power_draw>" + word + "</power_draw></gpu_power_readings><clocks><sm_clock>" + word + "</sm_clock></clocks>" +
			"<temperature><gpu_temp>" + word + "</gpu_temp></temperature><persistence_mode>" + word + "</persistence_mode>" +
			"<clocks_event_reasons><clocks_event_reason_gpu_idle>" + word + "</clocks_event_reason_gpu_idle></clocks_event_reasons>" +
			"<ecc_errors><volatile><dram_uncorrectable>" + word + "</dram_uncorrectable></volatile></ecc_errors>").GPUs[0]
		g.Name = ""
		if diff := cmp.Diff(GPU{}, g); diff != "" {
			t.Errorf("%q (-want +got):\n%s", word, diff)
		}
	}
}

func TestParseNames(t *testing.T) {
	tests := map[string]struct {
		xml  string
		want func(GPU) bool
	}{
		"power_readings of 525":        {"<power_readings><power_draw>31.5 W</power_draw><enforced_power_limit>70.00 W</enforced_power_limit></power_readings>", func(g GPU) bool { return *g.PowerDrawWatts == 31.5 && *g.PowerLimitWatts == 70 }},
		"instant before average":       {"<gpu_power_readings><average_power_draw>10 W</average_power_draw><instant_power_draw>12 W</instant_power_draw></gpu_power_readings>", func(g GPU) bool { return *g.PowerDrawWatts == 12 }},
		"average where instant is not": {"<gpu_power_readings><average_power_draw>10 W</average_power_draw><instant_power_draw>N/A</instant_power_draw></gpu_power_readings>", func(g GPU) bool { return *g.PowerDrawWatts == 10 }},
		"a reason of tomorrow":         {"<clocks_event_reasons><clocks_event_reason_moon>Active</clocks_event_reason_moon></clocks_event_reasons>", func(g GPU) bool { return *g.Reasons == 0 && g.OtherReasons[0] == "moon" }},
		"every reason":                 {"<clocks_throttle_reasons><clocks_throttle_reason_display_clock_setting>Active</clocks_throttle_reason_display_clock_setting><clocks_throttle_reason_hw_power_brake_slowdown>Active</clocks_throttle_reason_hw_power_brake_slowdown></clocks_throttle_reasons>", func(g GPU) bool { return *g.Reasons == 0x180 }},
		"a MIG device with its UUID":   {"<mig_devices><mig_device><uuid>MIG-1</uuid></mig_device></mig_devices>", func(g GPU) bool { return g.MIGDevices[0].UUID == "MIG-1" }},
		"controls in a name":           {"<product_name>NVIDIA\u202e \u0085 X</product_name>", func(g GPU) bool { return g.Name == "NVIDIA X" }},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if g := one(tt.xml).GPUs[0]; !tt.want(g) {
				t.Errorf("got %+v", g)
			}
		})
	}
}

func TestParseErrors(t *testing.T) {
	for text, want := range map[string]string{
		"": "it said: nothing",
		"NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\nMore": "it said: NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.",
		"<?xml version='1.0'?><x/>":      "it is no nvidia_smi_log",
		"<nvidia_smi_log><gpu>":          "unexpected EOF",
		strings.Repeat(" ", maxReport+1): "bytes, more than",
	} {
		if _, err := Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: %v, want %q", text, err, want)
		}
	}
	if r, err := Parse([]byte("WARNING: infoROM is corrupted\n<?xml version=\"1.0\" ?><nvidia_smi_log><driver_version>550.1</driver_version></nvidia_smi_log>")); err != nil || r.Driver != "550.1" {
		t.Errorf("with words before: %+v, %v", r, err)
	}
}

func FuzzParse(f *testing.F) {
	names, _ := filepath.Glob("testdata/*.xml")
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte("<nvidia_smi_log><gpu><fb_memory_usage><used>9223372036854775807 TiB</used></fb_memory_usage></gpu></nvidia_smi_log>"))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := Parse(b)
		if err != nil {
			return
		}
		for _, g := range r.GPUs {
			for _, n := range []*int64{g.MemoryTotalBytes, g.MemoryUsedBytes, g.ECCUncorrected} {
				if n != nil && *n < 0 {
					t.Errorf("a negative number: %d", *n)
				}
			}
		}
		for _, finding := range Preflight(r, ImageCUDA{"12.9.1", "cuda>=12.9 brand=tesla,driver>=535,driver<536"}, Want{Count: 1}) {
			if strings.Contains(finding.Text, "%!") {
				t.Errorf("%q", finding.Text)
			}
		}
		MemoryHeld(r, r)
	})
}
