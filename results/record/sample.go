package record

import "fmt"

// Sources of a [Sample].
const (
	SourceMetrics = "metrics" // the server's /metrics
	SourceClient  = "client"  // this program, of itself
	SourceGPU     = "gpu"
	SourceCPU     = "cpu"
)

// Names of the samples of SourceMetrics that package metric reads. Over several
// engines of one server they are sums, KV usage the largest. A name is absent at
// a time when the server did not tell it.
const (
	SampleRunning       = "requests_running"
	SampleWaiting       = "requests_waiting"
	SampleKVUsage       = "kv_usage_ratio"                    // 0 to 1
	SamplePreemptions   = "preemptions_total"                 // counter
	SamplePrefixQueries = "prefix_cache_queries_total"        // counter, tokens
	SamplePrefixHits    = "prefix_cache_hits_total"           // counter, tokens
	SampleGeneration    = "generation_tokens_total"           // counter
	SampleSpecDrafts    = "spec_decode_drafts_total"          // counter
	SampleSpecAccepted  = "spec_decode_accepted_tokens_total" // counter
)

// Names of the samples of SourceClient.
const (
	SampleOpen   = "open_streams"   // begun and not ended
	SampleActive = "active_streams" // of those, the ones that had a first token
)

// Names of the samples of SourceGPU; which GPU is said by [GPUSample].
const (
	SampleGPUSMClock     = "gpu_sm_clock_mhz"
	SampleGPUMemClock    = "gpu_mem_clock_mhz"
	SampleGPUPower       = "gpu_power_watts"
	SampleGPUTemperature = "gpu_temperature_celsius"
	SampleGPUUtilization = "gpu_utilization_ratio" // 0 to 1
	SampleGPUMemoryUsed  = "gpu_memory_used_bytes"
	SampleGPUReasons     = "gpu_throttle_reasons_bitmask" // NVML's bits
)

// GPUSample is the stored name of a GPU's sample: gpu_power_watts{gpu="0"}. The number
// is the one that the engine saw it by.
func GPUSample(name string, gpu int) string { return fmt.Sprintf(`%s{gpu="%d"}`, name, gpu) }
