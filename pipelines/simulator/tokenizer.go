package simulator

import (
	"unicode/utf8"
)

// The tokenizer is our own: exact, deterministic, fast, and no model's. A token is
//
//   - an optional single space followed by one to eight ASCII letters, or by one to
//     three digits; longer runs are cut into further tokens without the space;
//   - or one other character, invalid bytes one by one.
//
// So every word of the answers (words.go) is one token, text that was generated
// counts as what usage said, and appending a word to a prompt adds one token.

// tokenLen returns the length in bytes of the first token of a non-empty text.
func tokenLen(s string) int {
	i := 0
	if s[0] == ' ' && len(s) > 1 {
		i = 1
	}
	switch c := s[i]; {
	case isLetter(c):
		return i + run(s[i:], 8, isLetter)
	case isDigit(c):
		return i + run(s[i:], 3, isDigit)
	case i == 1:
		return 1 // a space before anything else stands alone
	case c < utf8.RuneSelf:
		return 1
	}
	_, n := utf8.DecodeRuneInString(s)
	return n
}

func run(s string, most int, in func(byte) bool) int {
	n := 0
	for n < len(s) && n < most && in(s[n]) {
		n++
	}
	return n
}

func isLetter(c byte) bool { return 'a' <= c|0x20 && c|0x20 <= 'z' }
func isDigit(c byte) bool  { return '0' <= c && c <= '9' }

// prompt is a counted prompt: its length in tokens and, for each full KV block, a
// hash over everything up to that block's end, so that equal hashes are equal
// prefixes.
type prompt struct {
	tokens int
	blocks []uint64
	ids    []int // only if asked for
}

// counter builds a prompt piece by piece.
type counter struct {
	prompt
	blockTokens int
	hash        uint64
	wantIDs     bool
}

const (
	fnvOffset = 14695981039346656037
	fnvPrime  = 1099511628211

	// vocabulary is the size of an imagined vocabulary. Ids below firstWordID are
	// the template's.
	vocabulary  = 151936
	firstWordID = 16
)

func newCounter(blockTokens int, wantIDs bool) *counter {
	return &counter{blockTokens: blockTokens, hash: fnvOffset, wantIDs: wantIDs}
}

// text adds the tokens of a text.
func (c *counter) text(s string) {
	for len(s) > 0 {
		n := tokenLen(s)
		var own uint64 = fnvOffset
		for i := range n {
			own = (own ^ uint64(s[i])) * fnvPrime
		}
		c.add(own, firstWordID+int(own%(vocabulary-firstWordID)))
		s = s[n:]
	}
}

// special adds one token of the chat template.
func (c *counter) special(id int) { c.add(uint64(id)*fnvPrime, id) }

// id adds a token that came as a number.
func (c *counter) id(id int) { c.add(uint64(id)*fnvPrime, id) }

func (c *counter) add(token uint64, id int) {
	c.hash = (c.hash ^ token) * fnvPrime
	c.hash ^= c.hash >> 29
	c.tokens++
	if c.tokens%c.blockTokens == 0 {
		c.blocks = append(c.blocks, c.hash)
	}
	if c.wantIDs {
		c.ids = append(c.ids, id)
	}
}

// Ids of the template's tokens.
const (
	idStart = 1 + iota
	idEnd
	idNewline
)

// message adds one message as the chat template writes it:
// <start>role newline content <end> newline.
func (c *counter) message(role, content string) {
	c.special(idStart)
	c.text(role)
	c.special(idNewline)
	c.text(content)
	c.special(idEnd)
	c.special(idNewline)
}

// generation adds what the template puts before the answer.
func (c *counter) generation() {
	c.special(idStart)
	c.text("assistant")
	c.special(idNewline)
}
