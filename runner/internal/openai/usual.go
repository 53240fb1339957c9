package openai

// parseUsual reads events of the shape that servers send for nearly every token,
// without allocating:
//
//	{"id":…,"choices":[{"index":0,"delta":{"content":"x"},…,"finish_reason":null}],"usage":{…}}
//
// It reports false for everything else: what is no JSON, and what is rare (several
// choices, tool calls, errors, keys twice, values of another type, deep nesting).
// Then [parseAny] decides. Where it reports true, both give the same; a fuzz test
// holds them together.
func parseUsual(data []byte, c *chunk) bool {
	*c = chunk{}
	s := scanner{b: data}
	s.space()
	if !s.top(c) {
		return false
	}
	s.space()
	return s.i == len(s.b)
}

// scanner is a strict JSON reader: it gives up at the first byte that encoding/json
// would refuse.
type scanner struct {
	b []byte
	i int
}

// maxDepth is more than any chunk has; encoding/json allows 10,000.
const maxDepth = 32

// Each of the following steps over one value and reports false where the other
// reader must decide.

func (s *scanner) top(c *chunk) bool {
	var seen uint8
	for n := 0; ; n++ {
		key, more, ok := s.key(n)
		if !more {
			return ok
		}
		switch string(key) {
		case "error":
			ok = once(&seen, 1) && s.null()
		case "choices":
			ok = once(&seen, 2) && s.choices(c)
		case "usage":
			ok = once(&seen, 4) && (s.null() || s.usage(c))
		default:
			ok = s.value(1)
		}
		if !ok {
			return false
		}
	}
}

// choices takes null or a list of at most one choice.
func (s *scanner) choices(c *chunk) bool {
	if s.null() {
		return true
	}
	if !s.byte('[') {
		return false
	}
	s.space()
	if s.byte(']') {
		return true
	}
	c.choices = 1
	if !s.choice(c) {
		return false
	}
	s.space()
	return s.byte(']')
}

func (s *scanner) choice(c *chunk) bool {
	var seen uint8
	c.unended = true
	for n := 0; ; n++ {
		key, more, ok := s.key(n)
		if !more {
			return ok
		}
		switch string(key) {
		case "delta":
			ok = once(&seen, 1) && s.delta(c)
		case "text":
			ok = once(&seen, 2) && s.text(&c.content)
		case "finish_reason":
			ok = once(&seen, 4) && s.text(&c.finish)
			c.unended = c.finish.empty()
		default:
			ok = s.value(3)
		}
		// Both a delta with content and a text: nobody sends that.
		if !ok || seen&3 == 3 {
			return false
		}
	}
}

func (s *scanner) delta(c *chunk) bool {
	var seen uint8
	var older text
	for n := 0; ; n++ {
		key, more, ok := s.key(n)
		if !more {
			if c.thinking.empty() {
				c.thinking = older
			}
			return ok
		}
		switch string(key) {
		case "content":
			ok = once(&seen, 1) && s.text(&c.content)
		case "reasoning":
			ok = once(&seen, 2) && s.text(&c.thinking)
		case "reasoning_content":
			ok = once(&seen, 4) && s.text(&older)
		case "tool_calls":
			ok = once(&seen, 8) && (s.null() || s.empty())
		default:
			ok = s.value(4)
		}
		if !ok {
			return false
		}
	}
}

func (s *scanner) usage(c *chunk) bool {
	var seen uint8
	c.usage = true
	for n := 0; ; n++ {
		key, more, ok := s.key(n)
		if !more {
			return ok
		}
		switch string(key) {
		case "prompt_tokens":
			ok = once(&seen, 1) && s.count(&c.prompt, &c.hasPrompt)
		case "completion_tokens":
			ok = once(&seen, 2) && s.count(&c.tokens, &c.hasTokens)
		case "prompt_tokens_details":
			ok = once(&seen, 4) && (s.null() || s.details(c))
		default:
			ok = s.value(2)
		}
		if !ok {
			return false
		}
	}
}

func (s *scanner) details(c *chunk) bool {
	var seen uint8
	for n := 0; ; n++ {
		key, more, ok := s.key(n)
		if !more {
			return ok
		}
		if string(key) == "cached_tokens" {
			ok = once(&seen, 1) && s.count(&c.cached, &c.hasCache)
		} else {
			ok = s.value(3)
		}
		if !ok {
			return false
		}
	}
}

// once reports false when a key comes again.
func once(seen *uint8, bit uint8) bool {
	was := *seen & bit
	*seen |= bit
	return was == 0
}

// key opens an object before its first key (n = 0), or steps on to the next: to
// the place before the value. At the end of the object more is false.
func (s *scanner) key(n int) (key []byte, more, ok bool) {
	if n == 0 {
		if !s.byte('{') {
			return nil, false, false
		}
		s.space()
		if s.byte('}') {
			return nil, false, true
		}
	} else {
		s.space()
		if s.byte('}') {
			return nil, false, true
		}
		if !s.byte(',') {
			return nil, false, false
		}
		s.space()
	}
	key, plain, ok := s.str()
	if !ok || !plain {
		return nil, false, false // an escaped key may spell any other
	}
	s.space()
	if !s.byte(':') {
		return nil, false, false
	}
	s.space()
	return key, true, true
}

// text takes a string or null.
func (s *scanner) text(t *text) bool {
	if s.null() {
		return true
	}
	b, _, ok := s.str()
	*t = text{b: b, raw: true}
	return ok
}

// count takes a whole number that is not negative, or null.
func (s *scanner) count(n *int64, has *bool) bool {
	if s.null() {
		return true
	}
	from := s.i
	for s.i < len(s.b) && '0' <= s.b[s.i] && s.b[s.i] <= '9' {
		*n = *n*10 + int64(s.b[s.i]-'0')
		s.i++
	}
	digits := s.i - from
	*has = true
	// A leading zero is no JSON; a sign, fraction or exponent stops at what must be
	// a comma.
	return digits > 0 && digits <= 18 && (digits == 1 || s.b[from] != '0')
}

// empty takes an empty list.
func (s *scanner) empty() bool {
	if !s.byte('[') {
		return false
	}
	s.space()
	return s.byte(']')
}

// value steps over any value.
func (s *scanner) value(depth int) bool {
	if s.i >= len(s.b) || depth > maxDepth {
		return false
	}
	switch s.b[s.i] {
	case '"':
		_, _, ok := s.str()
		return ok
	case '{':
		for n := 0; ; n++ {
			_, more, ok := s.key(n)
			if !more {
				return ok
			}
			if !s.value(depth + 1) {
				return false
			}
		}
	case '[':
		s.i++
		s.space()
		if s.byte(']') {
			return true
		}
		for {
			if !s.value(depth + 1) {
				return false
			}
			s.space()
			if s.byte(']') {
				return true
			}
			if !s.byte(',') {
				return false
			}
			s.space()
		}
	case 'n':
		return s.word("null")
	case 't':
		return s.word("true")
	case 'f':
		return s.word("false")
	}
	return s.number()
}

// str takes a string and returns its inside; plain: it has no escapes.
func (s *scanner) str() (inside []byte, plain, ok bool) {
	if !s.byte('"') {
		return nil, false, false
	}
	from := s.i
	plain = true
	for s.i < len(s.b) {
		switch ch := s.b[s.i]; {
		case ch == '"':
			inside = s.b[from:s.i]
			s.i++
			return inside, plain, true
		case ch == '\\':
			plain = false
			if !s.escape() {
				return nil, false, false
			}
		case ch < ' ':
			return nil, false, false
		default:
			s.i++
		}
	}
	return nil, false, false
}

func (s *scanner) escape() bool {
	s.i++
	if s.i >= len(s.b) {
		return false
	}
	ch := s.b[s.i]
	s.i++
	switch ch {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return true
	case 'u':
		for range 4 {
			if s.i >= len(s.b) || !isHex(s.b[s.i]) {
				return false
			}
			s.i++
		}
		return true
	}
	return false
}

func isHex(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
}

func (s *scanner) number() bool {
	s.byte('-')
	if !s.byte('0') && !s.digits() {
		return false
	}
	if s.byte('.') && !s.digits() {
		return false
	}
	if s.byte('e') || s.byte('E') {
		if !s.byte('+') {
			s.byte('-')
		}
		return s.digits()
	}
	return true
}

func (s *scanner) digits() bool {
	from := s.i
	for s.i < len(s.b) && '0' <= s.b[s.i] && s.b[s.i] <= '9' {
		s.i++
	}
	return s.i > from
}

func (s *scanner) null() bool { return s.word("null") }

func (s *scanner) word(w string) bool {
	if len(s.b)-s.i < len(w) || string(s.b[s.i:s.i+len(w)]) != w {
		return false
	}
	s.i += len(w)
	return true
}

func (s *scanner) byte(c byte) bool {
	if s.i < len(s.b) && s.b[s.i] == c {
		s.i++
		return true
	}
	return false
}

func (s *scanner) space() {
	for s.i < len(s.b) {
		switch s.b[s.i] {
		case ' ', '\t', '\n', '\r':
			s.i++
		default:
			return
		}
	}
}
