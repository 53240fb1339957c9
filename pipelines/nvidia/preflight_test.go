package nvidia

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// found writes findings as the tests say them.
func found(fs []Finding) []string {
	var out []string
	for _, f := range fs {
		severity := "warn"
		if f.Refuse {
			severity = "refuse"
		}
		out = append(out, severity+" "+f.Kind+": "+f.Text)
	}
	return out
}

func TestPreflight(t *testing.T) {
	tests := map[string]struct {
		file  string
		image ImageCUDA
		want  Want
		found []string
	}{
		"nothing to say": {"550-h100.xml", ImageCUDA{Version: "12.4.1"}, Want{Count: 2}, nil},
		"too few": {"550-h100.xml", ImageCUDA{}, Want{Count: 8}, []string{
			"refuse gpu_missing: 8 GPUs are needed, 2 are there; ask for as many (--gpus), or divide the engine over fewer (--tensor-parallel-size)",
		}},
		"an index of the host": {"550-h100.xml", ImageCUDA{}, Want{Devices: []string{"6", "7"}}, nil},
		"one that is not there": {"550-h100.xml", ImageCUDA{}, Want{Devices: []string{"GPU-9"}}, []string{
			"refuse gpu_missing: GPU-9 was asked for and is not there; those that are: nvidia-smi -L",
		}},
		"old names, limited, faulty": {"470-p100.xml", ImageCUDA{}, Want{}, []string{
			"warn gpu_power_limit: GPU 0: power limit 200 W, its default is 250 W: a busy GPU will be slower than others of its kind; nvidia-smi -i 00000000:3B:00.0 -pl 250",
			"warn gpu_persistence: GPU 0: persistence mode is off: settings are lost and start-up takes longer whenever nothing uses it; nvidia-smi -i 00000000:3B:00.0 -pm 1",
			"warn gpu_ecc_errors: GPU 0: 3 memory errors that were not corrected since the driver was loaded; nvidia-smi -i 00000000:3B:00.0 -q -d ECC,ROW_REMAPPER, then reset it: nvidia-smi -i 00000000:3B:00.0 --gpu-reset",
		}},
		"MIG, hot, used": {"535-a100-mig.xml", ImageCUDA{}, Want{}, []string{
			"refuse gpu_mig: GPU 0: MIG is on (2 devices), but a whole GPU was asked for; ask for a MIG device by its UUID (nvidia-smi -L), or turn it off: nvidia-smi -i 00000000:17:00.0 -mig 0",
			"refuse gpu_in_use: GPU 1: process 41231 (/opt/venv/bin/python3 -m train --name a&b) holds 30120 MiB; end it, or take another GPU; on the host: nvidia-smi -i 00000000:31:00.0",
			"warn gpu_in_use: GPU 1: process 2201 (/usr/lib/xorg/Xorg) holds 41 MiB; end it for numbers of an undisturbed GPU; on the host: nvidia-smi -i 00000000:31:00.0",
			"warn gpu_throttled: GPU 1: clocks are held down by hw_slowdown, hw_thermal; look at cooling and power supply: nvidia-smi -i 00000000:31:00.0 -q -d PERFORMANCE,TEMPERATURE",
			"warn gpu_row_remap: GPU 1: rows of its memory wait to be replaced; end what uses it, then: nvidia-smi -i 00000000:31:00.0 --gpu-reset",
		}},
		"only the MIG device counts": {"535-a100-mig.xml", ImageCUDA{}, Want{Devices: []string{"MIG-7"}}, nil},
		"a desktop": {"580-geforce.xml", ImageCUDA{Version: "13.0.1"}, Want{Count: 1}, []string{
			"warn gpu_in_use: GPU 0: process 2544 (/usr/bin/gnome-shell) holds 312 MiB, process 3790 (/usr/bin/nautilus) holds 20 MiB; end it for numbers of an undisturbed GPU; on the host: nvidia-smi -i 00000000:01:00.0",
			"warn gpu_memory_held: GPU 0: 280 MiB of its memory are held by no process that can be seen from here; another container may have it; on the host: nvidia-smi -i 00000000:01:00.0",
			"warn gpu_persistence: GPU 0: persistence mode is off: settings are lost and start-up takes longer whenever nothing uses it; nvidia-smi -i 00000000:01:00.0 -pm 1",
		}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.found, found(Preflight(report(t, tt.file), tt.image, tt.want))); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	if got := found(Preflight(Report{}, ImageCUDA{}, Want{})); len(got) != 1 || !strings.HasPrefix(got[0], "refuse gpu_missing: nvidia-smi sees no GPU") {
		t.Errorf("no GPU: %q", got)
	}
}

func TestPreflightGPU(t *testing.T) {
	bus := "<pci><pci_bus_id>B</pci_bus_id></pci>"
	for xml, want := range map[string][]string{
		"<compute_mode>Prohibited</compute_mode>":                                        {"refuse gpu_prohibited: GPU 0: compute mode Prohibited lets nothing run; nvidia-smi -i B -c DEFAULT"},
		"<gpu_reset_status><reset_required>Yes</reset_required></gpu_reset_status>":      {"refuse gpu_needs_reset: GPU 0: the driver wants a reset; end what uses it, then: nvidia-smi -i B --gpu-reset"},
		"<fb_memory_usage><used>20000 MiB</used></fb_memory_usage>":                      {"refuse gpu_memory_held: GPU 0: 20000 MiB of its memory are held by no process that can be seen from here; another container may have it; on the host: nvidia-smi -i B"},
		"<fb_memory_usage><used>256 MiB</used></fb_memory_usage>":                        nil,
		"<processes><process_info><pid>7</pid><type>C</type></process_info></processes>": {"refuse gpu_in_use: GPU 0: process 7 (name unknown) holds an unknown amount; end it, or take another GPU; on the host: nvidia-smi -i B"},
		"<clocks_event_reasons><clocks_event_reason_applications_clocks_setting>Active</clocks_event_reason_applications_clocks_setting></clocks_event_reasons>": {
			"warn gpu_throttled: GPU 0: clocks are held down by applications_clocks_setting; if that is not meant: nvidia-smi -i B -rac (and -rgc)"},
		"<clocks_event_reasons><clocks_event_reason_sw_power_cap>Active</clocks_event_reason_sw_power_cap></clocks_event_reasons>": nil,
		"<remapped_rows><remapped_row_failure>Yes</remapped_row_failure></remapped_rows>":                                          {"warn gpu_row_remap: GPU 0: rows of its memory could not be replaced; have it replaced: nvidia-smi -i B -q -d ROW_REMAPPER"},
	} {
		if diff := cmp.Diff(want, found(Preflight(one(bus+xml), ImageCUDA{}, Want{}))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", xml, diff)
		}
	}
	two, err := Parse([]byte("<nvidia_smi_log>" + strings.Repeat(`<gpu><persistence_mode>Disabled</persistence_mode></gpu>`, 2) + "</nvidia_smi_log>"))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"warn gpu_persistence: GPUs 0, 1: persistence mode is off: settings are lost and start-up takes longer whenever nothing uses it; nvidia-smi -i 0,1 -pm 1"}
	if diff := cmp.Diff(want, found(Preflight(two, ImageCUDA{}, Want{}))); diff != "" {
		t.Errorf("two alike (-want +got):\n%s", diff)
	}
}

func TestDriver(t *testing.T) {
	const require = "cuda>=12.9 brand=unknown,driver>=535,driver<536 brand=tesla,driver>=535,driver<536 brand=nvidia,driver>=535,driver<536 brand=geforce,driver>=535,driver<536"
	tests := []struct {
		driver, cuda, brand string
		image               ImageCUDA
		want                string // how the finding begins; empty: none
	}{
		{"580.95.05", "13.0", "NVIDIA", ImageCUDA{"12.9.1", require}, ""},
		{"575.57.08", "12.9", "GeForce", ImageCUDA{"12.9.1", require}, ""},
		{"550.54.14", "12.4", "NVIDIA", ImageCUDA{"12.9.1", require}, "warn gpu_driver: driver 550.54.14 is for CUDA 12.4, the image for 12.9: within one major version that runs, but"},
		{"550.54.14", "12.4", "NVIDIA", ImageCUDA{"", require}, "warn gpu_driver: driver 550.54.14 is for CUDA 12.4, the image for 12.9"},
		{"535.183.01", "12.2", "NVIDIA", ImageCUDA{"13.0.1", strings.ReplaceAll(require, "12.9", "13.0")}, "warn gpu_driver: driver 535.183.01 is for CUDA 12.2, the image for 13.0: it runs by CUDA's compatibility package only"},
		{"535.183.01", "12.2", "GeForce", ImageCUDA{"13.0.1", strings.ReplaceAll(require, "12.9", "13.0")}, "refuse gpu_driver: driver 535.183.01 is for CUDA 12.2, the image needs 13.0: install driver 580 or newer, or take an image for CUDA 12"},
		{"550.54.14", "12.4", "NVIDIA", ImageCUDA{"13.0.1", strings.ReplaceAll(require, "12.9", "13.0")}, "refuse gpu_driver: "},
		{"470.199.02", "11.4", "Tesla", ImageCUDA{Version: "12.1.1"}, "refuse gpu_driver: driver 470.199.02 is for CUDA 11.4, the image needs 12.1: install driver 525 or newer, or take an image for CUDA 11"},
		{"390.1", "9.1", "Tesla", ImageCUDA{Version: "10.0"}, "refuse gpu_driver: "},
		{"580.1", "13.0", "Tesla", ImageCUDA{Version: "14.1"}, "refuse gpu_driver: driver 580.1 is for CUDA 13.0, the image needs 14.1: install the driver that came with CUDA 14.1 or a newer one"},
		{"550.1", "", "NVIDIA", ImageCUDA{Version: "12.9"}, "warn gpu_driver: the driver does not say which CUDA it is for"},
		{"550.1", "12.4", "NVIDIA", ImageCUDA{}, ""},
		{"550.1", "12.4", "NVIDIA", ImageCUDA{Version: "nonsense"}, ""},
	}
	for _, tt := range tests {
		r := Report{Driver: tt.driver, CUDA: tt.cuda, GPUs: []GPU{{Brand: tt.brand}}}
		got := strings.Join(found(Preflight(r, tt.image, Want{})), "\n")
		if tt.want == "" && got != "" || !strings.HasPrefix(got, tt.want) {
			t.Errorf("driver %s (%s) on %s, image %s:\n got %s\nwant %s", tt.driver, tt.cuda, tt.brand, tt.image.Version, got, tt.want)
		}
	}
}

func TestAdmits(t *testing.T) {
	r := Report{Driver: "535.129.03", CUDA: "12.2"}
	g := &GPU{Brand: "NVIDIA RTX"}
	for require, want := range map[string]bool{
		"":                                       false,
		"cuda>=12.2":                             true,
		"cuda>=12.9 brand=nvidiartx,driver>=535": true,
		"brand=nvidiartx,driver>=535,driver<535": false,
		"driver<536":                             true,
		"driver!=535.129.03":                     false,
		"driver=535.129.03":                      true,
		"driver<=535.129.03,driver>535":          true,
		"brand!=tesla":                           true,
		"arch>=7.5":                              false, // the report does not say
		"driver":                                 false,
		"driver=>5":                              false,
		"cuda>=x":                                false,
	} {
		if got := admits(require, r, g); got != want {
			t.Errorf("%q: %v", require, got)
		}
	}
}

func TestMemoryHeld(t *testing.T) {
	with := func(uuid string, used *int64) Report { return Report{GPUs: []GPU{{UUID: uuid, MemoryUsedBytes: used}}} }
	before := with("GPU-a", new(int64(4<<20)))
	for _, tt := range []struct {
		after Report
		want  string
	}{
		{with("GPU-a", new(int64(260<<20))), ""},
		{with("GPU-a", new(int64(261<<20))), "GPU 0 has 261 MiB in use, 4 before the start"},
		{with("GPU-a", nil), ""},
		{with("GPU-b", new(int64(9999<<20))), ""},
	} {
		if got := MemoryHeld(before, tt.after); got != tt.want {
			t.Errorf("got %q, want %q", got, tt.want)
		}
	}
	mig := func(used int64) Report {
		return Report{GPUs: []GPU{{MIGDevices: []MIGDevice{{MemoryUsedBytes: &used}}}}}
	}
	if got := MemoryHeld(mig(0), mig(1<<30)); got != "MIG device 0 of GPU 0 has 1024 MiB in use, 0 before the start" {
		t.Errorf("MIG: %q", got)
	}
}
