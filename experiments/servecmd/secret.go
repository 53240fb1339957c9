package servecmd

import (
	"encoding/json"
	"slices"
	"strings"

	"speedmatrix/results/record"
)

// SecretName says whether a name is that of a secret.
func SecretName(name string) bool { return secretName(name) }

// secretName says whether a name (of a flag, a variable, a JSON key) is that of a
// secret, by its parts: --api-key, HF_TOKEN, ssl_keyfile_password, apiKey. Names
// of files and of special tokens (eos_token) are none.
func secretName(name string) bool {
	parts := nameParts(name)
	for len(parts) > 1 && strings.Trim(parts[len(parts)-1], "0123456789") == "" {
		parts = parts[:len(parts)-1] // HF_TOKEN_2
	}
	if len(parts) == 0 {
		return false
	}
	last, before := parts[len(parts)-1], ""
	if len(parts) > 1 {
		before = parts[len(parts)-2]
	}
	switch last {
	case "file", "path", "dir", "env", "name", "type", "url":
		return false
	case "password", "passwd", "passphrase", "secret", "secrets", "credential", "credentials", "authorization", "bearer":
		return true
	case "token":
		switch before {
		case "bos", "eos", "pad", "unk", "sep", "cls", "mask", "image", "video", "audio", "think", "start", "end", "stop",
			"special", "per", "max", "min", "num", "first", "last", "next", "bot", "eot":
			return false
		}
		return true
	}
	for i, p := range parts {
		switch {
		case strings.HasSuffix(p, "apikey"), p == "secret", p == "password":
			return true
		case i > 0 && (p == "key" || p == "keys"):
			switch parts[i-1] {
			case "api", "access", "private", "auth", "encryption", "signing", "account", "license", "admin", "master":
				return true
			}
		}
	}
	return false
}

// nameParts splits a name at - _ . and where a capital follows a small letter.
func nameParts(name string) []string {
	var parts []string
	from := 0
	cut := func(to int) {
		if to > from {
			parts = append(parts, strings.ToLower(name[from:to]))
		}
	}
	for i := 0; i < len(name); i++ {
		switch c := name[i]; {
		case c == '-' || c == '_' || c == '.' || c == ' ':
			cut(i)
			from = i + 1
		case i > from && c >= 'A' && c <= 'Z' && name[i-1] >= 'a' && name[i-1] <= 'z':
			cut(i)
			from = i
		}
	}
	cut(len(name))
	return parts
}

// secretSpans finds the secrets in text[from:], sorted and apart: all of it if
// the name of the value says so, else those within it.
func secretSpans(w word, from int, secret bool) []span {
	text := w.text[from:]
	if text == "" || text == Placeholder {
		return nil
	}
	if secret {
		if w.from(from).isReference() {
			return nil
		}
		return []span{{from, len(w.text)}}
	}
	var spans []span
	for _, s := range record.SecretShapes(text) {
		spans = append(spans, span{from + s[0], from + s[1]})
	}
	if text[0] == '{' || text[0] == '[' {
		for _, s := range jsonSecrets(text) {
			spans = append(spans, span{from + s.from, from + s.to})
		}
	}
	slices.SortFunc(spans, func(a, b span) int {
		if a.from != b.from {
			return a.from - b.from
		}
		return b.to - a.to
	})
	kept := spans[:0]
	for _, s := range spans {
		if len(kept) == 0 || s.from >= kept[len(kept)-1].to {
			kept = append(kept, s)
		}
	}
	return kept
}

// jsonSecrets finds the string values, without their quotes, whose key is that of
// a secret, at any depth.
func jsonSecrets(text string) []span {
	if !json.Valid([]byte(text)) {
		return nil
	}
	var spans []span
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	type frame struct {
		object, key, secret bool
	}
	stack := []frame{{}}
	for {
		before := d.InputOffset()
		t, err := d.Token()
		if err != nil {
			return spans
		}
		top := &stack[len(stack)-1]
		switch t := t.(type) {
		case json.Delim:
			if t == '}' || t == ']' {
				stack = stack[:len(stack)-1]
				continue
			}
			child := frame{object: t == '{', key: t == '{'}
			child.secret = top.secret && t == '['
			if top.object {
				top.key = true
			}
			stack = append(stack, child)
			continue
		case string:
			if top.object && top.key {
				top.key, top.secret = false, secretName(t)
				continue
			}
			to := int(d.InputOffset()) - 1
			from := int(before) + strings.IndexByte(text[before:], '"') + 1
			if top.secret && t != "" && t != Placeholder {
				spans = append(spans, span{from, to})
			}
		}
		if top.object {
			top.key = true
		}
	}
}

// redact puts the placeholder in the place of the spans.
func (w word) redact(spans []span) word {
	if len(spans) == 0 {
		return w
	}
	out := word{line: w.line, column: w.column}
	var b strings.Builder
	at, k := 0, 0
	copyTo := func(to int) {
		shift := b.Len() - at
		for ; k < len(w.live) && w.live[k].to <= to; k++ {
			if w.live[k].from >= at {
				out.live = append(out.live, span{w.live[k].from + shift, w.live[k].to + shift})
			}
		}
		b.WriteString(w.text[at:to])
	}
	for _, s := range spans {
		copyTo(s.from)
		b.WriteString(Placeholder)
		at = s.to
		for k < len(w.live) && w.live[k].from < at {
			k++
		}
	}
	copyTo(len(w.text))
	out.text = b.String()
	return out
}

// redactedWords returns argv and the values of env without their secrets, and
// the secrets. Words of argv that a caller changed count as written plainly.
func (c *Command) redactedWords() (env, argv []word, secrets []string) {
	take := func(w word, spans []span) word {
		for _, s := range spans {
			secrets = append(secrets, w.text[s.from:s.to])
		}
		return w.redact(spans)
	}
	for i, v := range c.Env {
		w := word{text: v.Value}
		if i < len(c.env) && c.env[i].text == v.Value {
			w = c.env[i]
		}
		env = append(env, take(w, secretSpans(w, 0, secretName(v.Name))))
	}
	from := make([]int, len(c.Argv))    // where the value starts
	secret := make([]bool, len(c.Argv)) // whether its name is that of a secret
	for _, u := range scan(c.Argv) {
		if !secretName(u.name) {
			continue
		}
		for k := range u.values {
			secret[u.at+k] = true
		}
		if u.joined {
			from[u.from] = strings.IndexByte(c.Argv[u.from], '=') + 1
		}
	}
	for i, text := range c.Argv {
		w := word{text: text}
		if i < len(c.argv) && c.argv[i].text == text {
			w = c.argv[i]
		}
		if !secret[i] && isFlag(text) {
			from[i] = strings.IndexByte(text, '=') + 1
		}
		argv = append(argv, take(w, secretSpans(w, from[i], secret[i])))
	}
	return env, argv, secrets
}

// redactedContainer returns the words before the image without their secrets, such
// as --label token=…, and the secrets.
func (c *Command) redactedContainer() (words []word, secrets []string) {
	if len(c.container) == 0 {
		return nil, nil
	}
	for _, w := range c.container[:len(c.container)-1] {
		from, secret := 0, false
		for !secret {
			name, _, ok := strings.Cut(w.text[from:], "=")
			if !ok {
				break
			}
			secret = secretName(name)
			from += len(name) + 1
		}
		if !secret {
			from = 0
		}
		spans := secretSpans(w, from, secret)
		for _, s := range spans {
			secrets = append(secrets, w.text[s.from:s.to])
		}
		words = append(words, w.redact(spans))
	}
	return words, secrets
}

// Redacted returns env and argv without their secrets, for everything that is
// stored or shown.
func (c *Command) Redacted() (env []EnvVar, argv []string) {
	e, a, _ := c.redactedWords()
	for i, w := range e {
		env = append(env, EnvVar{c.Env[i].Name, w.text})
	}
	return env, texts(a)
}

// scrub replaces secrets in texts for people.
func (c *Command) scrub(lines []string) []string {
	out := make([]string, len(lines))
	r := record.NewRedactor(c.Secrets...)
	for i, line := range lines {
		out[i] = r.Redact(line)
	}
	return out
}
