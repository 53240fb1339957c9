package openai

import (
	"encoding/json"
	"strconv"
	"unicode/utf8"
)

// chunk is what one event says, as far as measuring needs it. Its byte slices
// point into the event's data.
type chunk struct {
	choices  int  // how many
	unended  bool // some choice has no finish_reason
	finish   text // the last finish_reason
	content  text // content, or text of /v1/completions
	thinking text // reasoning, or reasoning_content
	tools    bool // some choice has tool calls
	toolArgs text // their arguments

	// Usage; the has… say whether the number is there and is one.
	usage                          bool
	hasPrompt, hasTokens, hasCache bool
	prompt, tokens, cached         int64
	badUsage                       bool // there is one, with something else than a count of tokens

	failed bool // a top-level error that is not null
	fault  fault
}

// fault is what an error object says.
type fault struct {
	message string
	code    int // 0: none, or no number
}

// text is a piece of text: either plain, or the inside of a JSON string.
type text struct {
	b   []byte
	raw bool
}

func (t text) empty() bool { return len(t.b) == 0 }

// appendTo appends the plain text.
func (t text) appendTo(dst []byte) []byte {
	if !t.raw {
		return append(dst, t.b...)
	}
	if plainString(t.b) {
		return append(dst, t.b...)
	}
	quoted := make([]byte, 0, len(t.b)+2)
	quoted = append(append(append(quoted, '"'), t.b...), '"')
	var s string
	if json.Unmarshal(quoted, &s) != nil {
		return dst // cannot be: the string was checked when it was read
	}
	return append(dst, s...)
}

// plainString says whether the inside of a JSON string is its own value.
func plainString(b []byte) bool {
	for _, c := range b {
		if c == '\\' {
			return false
		}
	}
	return utf8.Valid(b)
}

// parseChunk reads one event into c. It reports false if the data is no JSON
// object.
func parseChunk(data []byte, c *chunk) bool {
	if parseUsual(data, c) {
		return true
	}
	return parseAny(data, c)
}

// parseAny is the rule: it reads every JSON object, and takes what is not of the
// type it should be as absent. [parseUsual] must agree with it wherever it answers.
func parseAny(data []byte, c *chunk) bool {
	*c = chunk{}
	top, ok := object(data)
	if !ok {
		return false
	}
	if e, ok := top["error"]; ok && string(e) != "null" {
		c.failed = true
		c.fault = readFault(e)
	}
	var choices []json.RawMessage
	if json.Unmarshal(top["choices"], &choices) == nil {
		c.choices = len(choices)
		for _, raw := range choices {
			c.addChoice(raw)
		}
	}
	if u, ok := object(top["usage"]); ok {
		c.usage = true
		c.prompt, c.hasPrompt = count(u["prompt_tokens"])
		c.tokens, c.hasTokens = count(u["completion_tokens"])
		c.badUsage = !c.hasPrompt && told(u["prompt_tokens"]) || !c.hasTokens && told(u["completion_tokens"])
		if d, ok := object(u["prompt_tokens_details"]); ok {
			c.cached, c.hasCache = count(d["cached_tokens"])
		}
	}
	return true
}

func (c *chunk) addChoice(raw json.RawMessage) {
	choice, _ := object(raw)
	if f := str(choice["finish_reason"]); f != "" {
		c.finish = text{b: []byte(f)}
	} else {
		c.unended = true
	}
	c.content.b = append(c.content.b, str(choice["text"])...)
	delta, _ := object(choice["delta"])
	c.content.b = append(c.content.b, str(delta["content"])...)
	// Newer and older name of one thing: the same text under both counts once.
	thinking := str(delta["reasoning"])
	if thinking == "" {
		thinking = str(delta["reasoning_content"])
	}
	c.thinking.b = append(c.thinking.b, thinking...)

	var calls []json.RawMessage
	if json.Unmarshal(delta["tool_calls"], &calls) != nil || len(calls) == 0 {
		return
	}
	c.tools = true
	for _, raw := range calls {
		call, _ := object(raw)
		fn, _ := object(call["function"])
		c.toolArgs.b = append(c.toolArgs.b, str(fn["arguments"])...)
	}
}

// readFault reads an error that may be an object or a string.
func readFault(raw json.RawMessage) fault {
	obj, ok := object(raw)
	if !ok {
		if s := str(raw); s != "" {
			return fault{message: s}
		}
		return fault{message: string(raw)}
	}
	f := fault{message: str(obj["message"])}
	if f.message == "" {
		f.message = string(raw)
	}
	if n, err := strconv.Atoi(string(obj["code"])); err == nil {
		f.code = n
	} else if s := str(obj["code"]); s != "" {
		// OpenAI's codes are words, and say more than the message.
		f.message += " (" + s + ")"
	}
	return f
}

// object, str and count read a value of one type, or say that it is not of it.

func object(raw json.RawMessage) (map[string]json.RawMessage, bool) {
	var m map[string]json.RawMessage
	err := json.Unmarshal(raw, &m)
	return m, err == nil && m != nil
}

func str(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) != nil {
		return ""
	}
	return s
}

// told says whether a value is there, and not null.
func told(raw json.RawMessage) bool { return len(raw) > 0 && string(raw) != "null" }

// count reads a number of tokens: a whole number that is not negative.
func count(raw json.RawMessage) (int64, bool) {
	n, err := strconv.ParseInt(string(raw), 10, 64)
	return n, err == nil && n >= 0
}
