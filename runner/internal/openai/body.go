package openai

import (
	"encoding/json"
	"strconv"
)

// Text is a text as a JSON string: escaped once, however many bodies it goes into.
// A prompt can be a megabyte.
type Text struct{ quoted []byte }

// Quote escapes s.
func Quote(s string) Text {
	b, err := json.Marshal(s)
	if err != nil {
		// Marshalling a string cannot fail; bytes that are no UTF-8 are replaced.
		b = []byte(`""`)
	}
	return Text{quoted: b}
}

// Message of a chat.
type Message struct {
	Role    string // "user", "system", "assistant"
	Content Text
}

// Options of a request's body. Nil: the field is not sent, and the server's default
// rules.
type Options struct {
	Model       string
	MaxTokens   int
	Temperature *float64
	TopP        *float64
	Seed        *int64
	// IgnoreEOS asks vLLM to go on to MaxTokens. Other servers ignore or refuse it,
	// so it is sent only if true.
	IgnoreEOS bool
}

// ChatPath is where the bodies go.
const ChatPath = "/v1/chat/completions"

// ChatBody makes the body of a streaming chat completion. It is never modified, so
// all streams that send the same prompt share it.
//
// Note: the limit is sent as max_tokens. Its successor max_completion_tokens is
// refused by some servers; if this one is, the 400 names it. There is no second
// try under the other name.
func ChatBody(o Options, messages ...Message) []byte {
	size := 0
	for _, m := range messages {
		size += len(m.Content.quoted) + 64
	}
	return appendMessages(o.head(size), messages)
}

// appendMessages ends an object with its messages.
func appendMessages(b []byte, messages []Message) []byte {
	b = append(b, `,"messages":[`...)
	for i, m := range messages {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"role":`...)
		b = append(b, Quote(m.Role).quoted...)
		b = append(b, `,"content":`...)
		b = append(b, m.Content.quoted...)
		b = append(b, '}')
	}
	return append(b, "]}"...)
}

// head writes the options, and leaves room for size bytes more.
func (o Options) head(size int) []byte {
	b := make([]byte, 0, size+len(o.Model)+384)
	b = append(b, `{"model":`...)
	b = append(b, Quote(o.Model).quoted...)
	b = append(b, `,"max_tokens":`...)
	b = strconv.AppendInt(b, int64(o.MaxTokens), 10)
	b = appendFloat(b, `,"temperature":`, o.Temperature)
	b = appendFloat(b, `,"top_p":`, o.TopP)
	if o.Seed != nil {
		b = append(b, `,"seed":`...)
		b = strconv.AppendInt(b, *o.Seed, 10)
	}
	if o.IgnoreEOS {
		b = append(b, `,"ignore_eos":true`...)
	}
	b = append(b, `,"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}`...)
	return b
}

func appendFloat(b []byte, key string, f *float64) []byte {
	if f == nil {
		return b
	}
	v, err := json.Marshal(*f)
	if err != nil {
		return b // NaN and infinities are no values of these
	}
	b = append(b, key...)
	return append(b, v...)
}
