package servecmd

import (
	"encoding/json"
	"math"
	"regexp"
	"strconv"
	"strings"
)

// jsonFlag says whether the server reads the flag's value as a JSON object.
func jsonFlag(name string) bool {
	switch name {
	case "--speculative-config", "--compilation-config", "--kv-transfer-config", "--kv-events-config",
		"--ec-transfer-config", "--hf-overrides", "--override-generation-config", "--override-pooler-config",
		"--pooler-config", "--rope-scaling", "--additional-config", "--mm-processor-kwargs", "--media-io-kwargs",
		"--default-chat-template-kwargs", "--model-loader-extra-config", "--structured-outputs-config",
		"--attention-config", "--kernel-config", "--profiler-config", "--reasoning-config", "--weight-transfer-config":
		return true
	}
	return false
}

// interpret fills the fields that say what argv means.
func (c *Command) interpret() []*Error {
	var mistakes []*Error
	wrong := func(u flagUse, kind, message string) {
		w := c.argv[min(u.at, len(c.argv)-1)]
		mistakes = append(mistakes, &Error{Kind: kind, Flag: u.name, Line: w.line, Column: w.column, Message: message})
	}
	number := func(u flagUse, to *int, lo, hi int) {
		if len(u.values) == 0 {
			wrong(u, BadValue, "needs a value")
			return
		}
		if v := u.values[0]; v == Placeholder || strings.ContainsRune(v, '$') && c.isLive(u) {
			return // known when it is expanded
		}
		n, ok := humanInt(u.values[0])
		if !ok || n < lo || n > hi {
			wrong(u, BadValue, "expected a whole number from "+strconv.Itoa(lo)+" to "+strconv.Itoa(hi))
			return
		}
		*to = n
	}
	c.Port = 8000
	const most = math.MaxInt32
	for _, u := range scan(c.Argv) {
		value := ""
		if len(u.values) > 0 {
			value = u.values[0]
		}
		if value == Placeholder {
			c.Placeholders = append(c.Placeholders, u.name)
		}
		switch u.name {
		case "--model", "--model-path":
			if c.Model = value; value == "" {
				wrong(u, BadValue, "needs a value")
			}
		case "--served-model-name":
			if len(u.values) == 0 || value == "" {
				wrong(u, BadValue, "needs a name")
			} else {
				c.ServedModelNames, c.ServedNameGiven = append([]string(nil), u.values...), true
			}
		case "--host":
			c.Host = value
		case "--port":
			number(u, &c.Port, 1, 65535)
		case "--max-model-len":
			if value == "auto" || value == "-1" {
				c.MaxModelLen = 0
			} else {
				number(u, &c.MaxModelLen, 1, most)
			}
		case "--max-num-seqs":
			number(u, &c.MaxNumSeqs, 1, most)
		case "--tensor-parallel-size":
			number(u, &c.TensorParallel, 1, most)
		case "--num-gpu-blocks-override":
			number(u, &c.NumGPUBlocks, 1, most)
		case "--enable-prefix-caching", "--no-enable-prefix-caching":
			on := u.name == "--enable-prefix-caching" && !strings.EqualFold(value, "false")
			c.PrefixCaching = &on
		case "--config":
			c.warn("config_file_not_read")
		}
		switch {
		case jsonFlag(u.name):
			c.jsonValue(u, wrong)
		case len(value) > 0 && value[0] == '{' && json.Valid([]byte(value)):
			c.keepJSON(u.name, value)
		}
	}
	c.Placeholders, c.Unexpanded = unique(c.Placeholders), unique(c.Unexpanded)
	c.positionalModel()
	if c.ServedModelNames == nil && c.Model != "" {
		c.ServedModelNames = []string{c.Model}
	}
	for _, p := range c.published {
		if p[1] == c.Port {
			c.HostPort = p[0]
			break
		}
	}
	_, _, c.Secrets = c.redactedWords()
	_, more := c.redactedContainer()
	c.Secrets = append(c.Secrets, more...)
	for _, v := range c.outer {
		if secretName(v.Name) && v.Value != "" && v.Value != Placeholder && v.Value[0] != '$' {
			c.Secrets = append(c.Secrets, v.Value)
		}
	}
	c.Secrets = unique(c.Secrets)
	return mistakes
}

func (c *Command) isLive(u flagUse) bool {
	return u.at < len(c.argv) && len(c.argv[u.at].live) > 0
}

func (c *Command) jsonValue(u flagUse, wrong func(flagUse, string, string)) {
	const quotes = `; a shell strips the quotes of JSON that is not quoted: write '{"key":"value"}' in single quotes`
	switch {
	case len(u.values) == 0:
		wrong(u, BadJSONValue, "needs a JSON value")
		return
	case u.values[0] == Placeholder, c.isLive(u) && u.values[0][0] == '$':
		return
	case u.name == "--compilation-config" && strings.Trim(u.values[0], "0123456789") == "" && u.values[0] != "":
		c.keepJSON(u.name, u.values[0]) // a level
		return
	case !json.Valid([]byte(u.values[0])):
		wrong(u, BadJSONValue, "the value is no JSON"+quotes)
		return
	case strings.TrimLeft(u.values[0], " \t\n\r")[0] != '{':
		wrong(u, BadJSONValue, "the value is no JSON object"+quotes)
		return
	}
	c.keepJSON(u.name, u.values[0])
}

func (c *Command) keepJSON(name, value string) {
	if c.JSONValues == nil {
		c.JSONValues = map[string]json.RawMessage{}
	}
	c.JSONValues[name] = json.RawMessage(value)
}

// positionalModel finds the model behind serve, or behind an image; it rules over
// --model, as in the server.
func (c *Command) positionalModel() {
	start := argsStart(c.Argv)
	if start == 0 && c.Image == "" {
		return // a program that we do not know: only --model says
	}
	end := start
	for _, u := range scan(c.Argv) {
		if u.from > end {
			break
		}
		end = u.to
	}
	if end < len(c.Argv) && c.Argv[end] == "--" {
		end++
	}
	if end < len(c.Argv) {
		c.Model = c.Argv[end]
	}
}

var humanNumber = regexp.MustCompile(`^([0-9]{1,15})(\.[0-9]{1,9})?([kKmMgG])?$`)

// humanInt reads a number as the server does: k, m, g are powers of 1,000 and may
// follow decimals, K, M, G powers of 1,024.
func humanInt(s string) (int, bool) {
	m := humanNumber.FindStringSubmatch(s)
	if m == nil || m[2] != "" && !strings.Contains("kmg", m[3]) || m[2] != "" && m[3] == "" {
		return 0, false
	}
	scale := 1.0
	switch m[3] {
	case "k":
		scale = 1e3
	case "m":
		scale = 1e6
	case "g":
		scale = 1e9
	case "K":
		scale = 1 << 10
	case "M":
		scale = 1 << 20
	case "G":
		scale = 1 << 30
	}
	f, err := strconv.ParseFloat(m[1]+m[2], 64)
	if err != nil || f*scale > math.MaxInt32 {
		return 0, false
	}
	return int(math.Round(f * scale)), true
}
