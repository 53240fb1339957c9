package servecmd

import (
	"path"
	"strconv"
	"strings"
)

func isContainerTool(s string) bool {
	switch path.Base(s) {
	case "docker", "podman", "nerdctl":
		return true
	}
	return false
}

// dockerSwitch says whether a long option of docker run takes no value.
func dockerSwitch(name string) bool {
	switch name {
	case "rm", "detach", "interactive", "tty", "privileged", "init", "no-healthcheck", "read-only",
		"oom-kill-disable", "publish-all", "disable-content-trust", "quiet", "sig-proxy", "help", "replace", "tls-verify":
		return true
	}
	return false
}

// parseDocker reads docker run; words[tool] is the program.
func (c *Command) parseDocker(words []word, tool int) *Error {
	outer, outerWords, outerIndex := c.Env, c.env, c.envIndex // of the docker program itself; -e NAME passes them on
	c.Env, c.env, c.envIndex, c.outer = nil, nil, nil, outer
	i := tool + 1
	if i < len(words) && words[i].text == "container" {
		i++
	}
	if i >= len(words) || words[i].text != "run" {
		return fail(words[tool], UnsupportedDocker, "expected %s run", path.Base(words[tool].text))
	}
	i++
	c.container = append(c.container, words[:i]...)
	// option notes one option; w holds its value.
	option := func(name string, w word) *Error {
		switch name {
		case "e", "env":
			if at := strings.IndexByte(w.text, '='); at > 0 {
				c.setEnv(w, at)
				return nil
			}
			if !isName(w.text) {
				return fail(w, UnsupportedDocker, "-e takes NAME or NAME=value")
			}
			if k, ok := outerIndex[w.text]; ok {
				c.setEnvValue(outer[k], outerWords[k])
				return nil
			}
			c.passEnv(w)
		case "p", "publish":
			c.publish(w.text)
		case "env-file":
			c.warn("env_file_not_read")
		case "entrypoint":
			c.entrypoint = true
			if w.text != "" {
				return checkProgram([]word{w})
			}
		}
		return nil
	}
	for i < len(words) && len(words[i].text) > 1 && words[i].text[0] == '-' {
		w := words[i]
		i++
		if w.text == "--" {
			break
		}
		var name string
		var value word
		needs, from := true, 0
		if long, ok := strings.CutPrefix(w.text, "--"); ok {
			name, _, ok = strings.Cut(long, "=")
			if ok {
				from = len("--") + len(name) + 1
			} else {
				needs = !dockerSwitch(name)
			}
		} else {
			// Short options may be joined; the first that takes a value takes the rest.
			at := 1
			for at < len(w.text) && strings.IndexByte("ditPq", w.text[at]) >= 0 {
				at++
			}
			if needs = at < len(w.text); needs {
				name = w.text[at : at+1]
				if at+1 < len(w.text) {
					from = at + 1
					if w.text[from] == '=' {
						from++
					}
				}
			}
		}
		written := []word{w}
		if needs {
			switch {
			case from > 0:
				value = w.from(from)
			case i < len(words):
				value = words[i]
				written = append(written, value)
				i++
			default:
				return fail(w, UnsupportedDocker, "the option needs a value")
			}
			if err := option(name, value); err != nil {
				return err
			}
		}
		if name != "e" && name != "env" {
			c.container = append(c.container, written...)
		}
	}
	if i >= len(words) {
		return fail(words[len(words)-1], UnsupportedDocker, "no image: expected docker run [options] IMAGE [words]")
	}
	if words[i].text == "" || words[i].text[0] == '-' {
		return fail(words[i], UnsupportedDocker, "no image has this name")
	}
	c.Image = words[i].text
	c.container = append(c.container, words[i])
	return c.afterImage(words[i+1:])
}

// passEnv notes a variable that the container gets from who starts it.
func (c *Command) passEnv(w word) {
	text := "$" + w.text
	c.setEnvValue(EnvVar{w.text, text}, word{text: text, live: []span{{0, len(text)}}, line: w.line, column: w.column})
	c.Unexpanded = append(c.Unexpanded, w.text)
}

func (c *Command) setEnvValue(v EnvVar, w word) {
	whole := word{text: v.Name + "=" + v.Value, line: w.line, column: w.column}
	for _, s := range w.live {
		whole.live = append(whole.live, span{s.from + len(v.Name) + 1, s.to + len(v.Name) + 1})
	}
	c.setEnv(whole, len(v.Name))
}

func (c *Command) warn(w string) { c.Warnings = unique(append(c.Warnings, w)) }

// publish reads -p HOST:CONTAINER; the first mapping to the server's port counts
// (interpret drops it if it is another's).
func (c *Command) publish(text string) {
	text = strings.TrimSuffix(text, "/tcp")
	i := strings.LastIndexByte(text, ':')
	if i < 0 {
		return
	}
	host, container := text[:i], text[i+1:]
	if j := strings.LastIndexByte(host, ':'); j >= 0 {
		host = host[j+1:]
	}
	h, err1 := strconv.Atoi(host)
	p, err2 := strconv.Atoi(container)
	if err1 == nil && err2 == nil && h > 0 && h < 65536 && p > 0 && p < 65536 {
		c.published = append(c.published, [2]int{h, p})
	}
}

// afterImage takes what follows an image. Images of the vLLM project start vllm
// serve themselves; people add it again and the server would get it as words.
func (c *Command) afterImage(words []word) *Error {
	if len(words) >= 2 && !c.entrypoint && startsVLLM(c.Image) && path.Base(words[0].text) == "vllm" && words[1].text == "serve" {
		words = words[2:]
		c.warn("program_repeated")
	}
	if c.ImageDigest() == "" {
		c.warn("image_not_pinned")
	}
	c.argv = words
	if len(words) > 0 && words[0].text != "" && words[0].text[0] != '-' {
		return checkProgram(words)
	}
	return nil
}

// startsVLLM says whether an image's ENTRYPOINT is known to start the server.
func startsVLLM(image string) bool {
	name, _, _ := strings.Cut(image, "@")
	name = path.Base(name)
	name, _, _ = strings.Cut(name, ":")
	return strings.HasPrefix(name, "vllm-openai") || strings.HasPrefix(name, "vllm-cpu")
}

// ImageDigest returns sha256:… if the image is pinned; empty otherwise.
func (c *Command) ImageDigest() string {
	_, digest, ok := strings.Cut(c.Image, "@sha256:")
	if !ok || len(digest) != 64 || strings.Trim(digest, "0123456789abcdef") != "" {
		return ""
	}
	return "sha256:" + digest
}
