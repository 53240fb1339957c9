//go:build linux

package host

import (
	"net/url"
	"slices"
	"strings"
)

// The engine gets no environment of ours but what it needs to find things, and
// what people set to choose a device or reach a model. Everything that tunes the
// engine (VLLM_*, OMP_*, PYTHON*, LD_PRELOAD, …) comes from the plan alone, where it
// is seen.
var (
	passed = []string{"PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "LD_LIBRARY_PATH",
		"XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME",
		"SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE",
		"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy",
		"HUGGING_FACE_HUB_TOKEN"}
	passedPrefixes = []string{"LC_", "CUDA_", "NVIDIA_", "NCCL_", "HIP_", "ROCR_", "HF_"}
	buildPrefixes  = []string{"PIP_", "UV_"} // for whoever installs the wheels

	// recordedPrefixes name what can move a number and was not in the plan.
	recordedPrefixes = []string{"LD_LIBRARY_PATH", "CUDA_", "NVIDIA_", "NCCL_", "HIP_", "ROCR_", "HF_"}
	secretNames      = []string{"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}
)

func filterEnv(environ []string, prefixes ...string) []string {
	var out []string
	for _, kv := range environ {
		name, _, ok := strings.Cut(kv, "=")
		if ok && (slices.Contains(passed, name) || hasPrefix(name, prefixes)) {
			out = append(out, kv)
		}
	}
	return out
}

func engineEnv(environ []string) []string { return filterEnv(environ, passedPrefixes...) }

func buildEnv(environ []string) []string {
	return filterEnv(environ, slices.Concat(passedPrefixes, buildPrefixes)...)
}

func hasPrefix(name string, prefixes []string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) })
}

// envSecrets lists what must not be written of the environment that is passed on:
// tokens, and passwords in the URLs of proxies and indices.
func envSecrets(environ []string) []string {
	var out []string
	for _, kv := range buildEnv(environ) {
		name, value, _ := strings.Cut(kv, "=")
		if slices.Contains(secretNames, name) && value != "" {
			out = append(out, value)
		}
		for _, word := range strings.Fields(value) {
			if u, err := url.Parse(word); err == nil && u.User != nil {
				if password, ok := u.User.Password(); ok && password != "" {
					out = append(out, password)
				}
			}
		}
	}
	return out
}
