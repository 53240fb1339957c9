package openai

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"speedmatrix/results/record"
	"speedmatrix/runner/internal/sse"
)

// plain makes two chunks comparable: texts as they read.
type plain struct {
	usual                              chunk
	finish, content, thinking, toolArg string
}

func plainOf(c chunk) plain {
	p := plain{
		finish:   string(c.finish.appendTo(nil)),
		content:  string(c.content.appendTo(nil)),
		thinking: string(c.thinking.appendTo(nil)),
		toolArg:  string(c.toolArgs.appendTo(nil)),
	}
	c.finish, c.content, c.thinking, c.toolArgs = text{}, text{}, text{}, text{}
	p.usual = c
	return p
}

func (p plain) equal(o plain) bool {
	return p.finish == o.finish && p.content == o.content && p.thinking == o.thinking && p.toolArg == o.toolArg &&
		p.usual.choices == o.usual.choices && p.usual.unended == o.usual.unended && p.usual.tools == o.usual.tools &&
		p.usual.usage == o.usual.usage && p.usual.hasPrompt == o.usual.hasPrompt && p.usual.hasTokens == o.usual.hasTokens &&
		p.usual.hasCache == o.usual.hasCache && p.usual.prompt == o.usual.prompt && p.usual.tokens == o.usual.tokens &&
		p.usual.cached == o.usual.cached && p.usual.failed == o.usual.failed && p.usual.fault == o.usual.fault
}

// both reads data both ways and says whether the quick one answered.
func both(t *testing.T, data []byte) (usual bool) {
	t.Helper()
	var quick, slow chunk
	usual = parseUsual(data, &quick)
	ok := parseAny(data, &slow)
	if !usual {
		return false
	}
	if !ok {
		t.Fatalf("%q: only the quick reader takes it", data)
	}
	if q, s := plainOf(quick), plainOf(slow); !q.equal(s) {
		t.Fatalf("%q:\nquick %+v\nslow  %+v", data, q, s)
	}
	return true
}

// events gives the data of all sample streams.
func events(t testing.TB) [][]byte {
	t.Helper()
	names, err := filepath.Glob("testdata/sse/*.sse")
	if err != nil || len(names) == 0 {
		t.Fatal("no samples", err)
	}
	names = append(names, "testdata/speculative-ngram.sse")
	var out [][]byte
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		var d sse.Decoder
		for len(b) > 0 {
			n := copy(d.Buffer(), b)
			b = b[n:]
			d.Commit(n)
			for {
				data, err := d.Next()
				if err != nil {
					t.Fatal(err)
				}
				if data == nil {
					break
				}
				out = append(out, bytes.Clone(data))
			}
		}
	}
	return out
}

// TestUsualIsUsual: the quick reader answers for nearly all that servers send, and
// as the slow one would.
func TestUsualIsUsual(t *testing.T) {
	all := events(t)
	slow := 0
	for _, data := range all {
		if !both(t, data) {
			slow++
			if s := string(data); s[0] == '{' && !strings.Contains(s, "tool_calls") && !strings.Contains(s, `"error"`) {
				t.Errorf("not read quickly: %s", s)
			}
		}
	}
	t.Logf("%d of %d events read slowly", slow, len(all))
}

var odd = []string{
	``, `{}`, `{`, `{}x`, `[]`, `null`, `1`, `"x"`, ` { } `, `{"choices":null}`, `{"choices":{}}`, `{"choices":[null]}`,
	`{"choices":[{}]}`, `{"choices":[{},{}]}`, `{"choices":[{"delta":null}]}`, `{"choices":[{"delta":{"content":7}}]}`,
	`{"choices":[{"delta":{"content":"a","content":"b"}}]}`, `{"choices":[{"delta":{"cont\u0065nt":"a"}}]}`,
	`{"choices":[{"delta":{"content":"\ud83c\udf0d \n\u00e9\ud800"}}]}`, "{\"choices\":[{\"delta\":{\"content\":\"\xff\"}}]}",
	"{\"choices\":[{\"delta\":{\"content\":\"a\tb\"}}]}", `{"choices":[{"delta":{"content":"\x"}}]}`,
	`{"choices":[{"delta":{"reasoning":"a","reasoning_content":"a"}}]}`, `{"choices":[{"delta":{"reasoning":"","reasoning_content":"a"}}]}`,
	`{"choices":[{"text":"a","delta":{"content":"b"}}]}`, `{"choices":[{"finish_reason":""}]}`, `{"choices":[{"finish_reason":"stop"}]}`,
	`{"choices":[{"delta":{"tool_calls":[]}}]}`, `{"choices":[{"delta":{"tool_calls":[null]}}]}`, `{"choices":[{"delta":{"tool_calls":{}}}]}`,
	`{"usage":{"completion_tokens":-1}}`, `{"usage":{"completion_tokens":1.0}}`, `{"usage":{"completion_tokens":1e2}}`,
	`{"usage":{"completion_tokens":01}}`, `{"usage":{"completion_tokens":"3"}}`, `{"usage":{"completion_tokens":null}}`,
	`{"usage":{"completion_tokens":99999999999999999999}}`, `{"usage":{"prompt_tokens":0,"prompt_tokens_details":{"cached_tokens":5}}}`,
	`{"usage":{"prompt_tokens_details":null}}`, `{"usage":[]}`, `{"error":null}`, `{"error":false}`, `{"error":"x"}`, `{"error":{"code":"c","message":"m"}}`,
	`{"a":[1,-0,0.5,1e+9,1E-9,{"b":[]}],"c":true,"d":false}`, `{"a":00}`, `{"a":-}`, `{"a":1.}`, `{"a":1e}`, `{"a":nul}`, `{"a":[1,]}`, `{"a":1,}`,
	`{"a" : 1 , "choices" : [ { } ] }`, `{"a":` + strings.Repeat("[", 40) + strings.Repeat("]", 40) + `}`, `{"Choices":[{"delta":{"content":"x"}}]}`,
}

func TestOddChunks(t *testing.T) {
	for _, s := range odd {
		both(t, []byte(s))
	}
}

// FuzzChunk holds the two readers together.
func FuzzChunk(f *testing.F) {
	for _, data := range events(f) {
		if len(data) < 4096 {
			f.Add(data)
		}
	}
	for _, s := range odd {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) { both(t, data) })
}

const usualEvent = `{"id":"chatcmpl-9216588574cdda05","object":"chat.completion.chunk","created":1796064681,"model":"tiny","choices":[{"index":0,"delta":{"content":" set"},"logprobs":null,"finish_reason":null,"token_ids":null}],"usage":{"prompt_tokens":24,"total_tokens":26,"completion_tokens":2,"completion_tokens_details":null}}`

func BenchmarkChunk(b *testing.B) {
	data := []byte(usualEvent)
	for name, parse := range map[string]func([]byte, *chunk) bool{"by hand": parseUsual, "encoding-json": parseAny} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(data)))
			b.ReportAllocs()
			var c chunk
			for b.Loop() {
				parse(data, &c)
			}
		})
	}
}

// repeat gives a piece of a stream again and again: one read, n events.
type repeat struct {
	piece []byte
	reads int
}

func (r *repeat) Read(p []byte) (int, error) {
	if r.reads == 0 {
		return copy(p, "data: [DONE]\n\n"), nil
	}
	r.reads--
	return copy(p, r.piece), nil
}

// BenchmarkStream is the whole path of an event behind the socket: decoding,
// parsing, deciding, keeping.
func BenchmarkStream(b *testing.B) {
	for name, perRead := range map[string]int{"1 a read": 1, "8 a read": 8} {
		b.Run(name, func(b *testing.B) {
			piece := []byte(strings.Repeat("data: "+usualEvent+"\n\n", perRead))
			b.ReportAllocs()
			b.SetBytes(int64(len(piece) / perRead))
			s := newSeen()
			s.st.call.OnText, s.st.observe = nil, nil
			// A stream has some thousand events; its record is reused to see what the
			// events themselves cost.
			const most = 4096
			s.st.rec.Chunks = make([]record.Chunk, 0, most)
			for n := 0; n < b.N; {
				k := min(b.N-n, most)
				n += k
				s.st.done, s.st.rec.Chunks = false, s.st.rec.Chunks[:0]
				s.st.read(&repeat{piece, (k + perRead - 1) / perRead}, nil, func(error) {})
			}
		})
	}
}

// TestEventAllocations: an event costs no allocation.
func TestEventAllocations(t *testing.T) {
	s := newSeen()
	s.st.call.OnText, s.st.observe = nil, nil
	s.st.rec.Chunks = make([]record.Chunk, 0, 1<<12)
	piece := []byte("data: " + usualEvent + "\n\n")
	s.st.read(&repeat{piece, 2}, nil, func(error) {}) // makes the buffer
	allocs := testing.AllocsPerRun(10, func() {
		s.st.done = false
		s.st.read(&repeat{piece, 100}, nil, func(error) {})
	})
	// The reader and what a call of read itself needs.
	if allocs > 5 {
		t.Errorf("%v allocations for 100 events", allocs)
	}
}
