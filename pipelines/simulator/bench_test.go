package simulator

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// nowhereWriter takes a stream as a socket would, for nothing.
type nowhereWriter struct{ h http.Header }

func (w nowhereWriter) Header() http.Header         { return w.h }
func (w nowhereWriter) WriteHeader(int)             {}
func (w nowhereWriter) Write(b []byte) (int, error) { return len(b), nil }
func (w nowhereWriter) Flush()                      {}

// Tokens of 256 streams as fast as they can be made, without sockets: what the
// engine itself costs. ns/op is wall time over all cores for one token.
func BenchmarkTokens256(b *testing.B) {
	const streams = 256
	p := quick()
	p.Slots, p.MaxModelLen, p.KVTokens = streams, 1<<24, 1<<30
	p.Decode.Rows[0].Ms = Millis(1e-6) // always due
	s, err := New(p, Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	each := b.N/streams + 1
	done := make(chan struct{})
	b.ReportAllocs()
	b.ResetTimer()
	for range streams {
		go func() {
			defer func() { done <- struct{}{} }()
			body := fmt.Sprintf(`{"prompt":"x","max_tokens":%d,%s}`, each, running)
			r, err := http.NewRequestWithContext(b.Context(), http.MethodPost, "/v1/completions", strings.NewReader(body))
			if err != nil {
				panic(err)
			}
			s.Handler().ServeHTTP(nowhereWriter{http.Header{}}, r)
		}()
	}
	for range streams {
		<-done
	}
}

// The same over loopback at 50 tokens/s a stream, with a client that only reads:
// one op is one second of 256 streams. CPU time for both ends is in the report.
func BenchmarkLoopback256(b *testing.B) {
	const streams, rate = 256, 50
	p := quick()
	p.Slots, p.MaxModelLen, p.KVTokens = streams, 1<<24, 1<<30
	p.Decode.Rows[0].Ms = Millis(1000 / rate)
	s, err := New(p, Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	url, err := s.Start(b.Context(), "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	client := http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: streams}}
	defer client.CloseIdleConnections()
	done := make(chan error)
	cpu, start := cpuTime(b), time.Now()
	b.ResetTimer()
	for range streams {
		go func() {
			body := fmt.Sprintf(`{"prompt":"x","max_tokens":%d,%s}`, rate*b.N, running)
			resp, err := client.Post(url+"/v1/completions", "application/json", strings.NewReader(body))
			if err == nil {
				_, err = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
			done <- err
		}()
	}
	for range streams {
		if err := <-done; err != nil {
			b.Error(err)
		}
	}
	tokens := float64(streams * rate * b.N)
	b.ReportMetric(float64((cpuTime(b)-cpu).Nanoseconds())/tokens, "cpu-ns/token")
	b.ReportMetric(tokens/time.Since(start).Seconds(), "tokens/s")
}

// A chat of 1 MB with one token of answer: reading, counting, hashing, admitting.
func BenchmarkRequest1MB(b *testing.B) {
	p := quick()
	p.MaxModelLen, p.KVTokens = 1<<20, 1<<20
	s, err := New(p, Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	body := `{"messages":[{"role":"user","content":"` + strings.Repeat(" some words", 1<<20/11) + `"}],"max_tokens":1,` + running + `}`
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		r, err := http.NewRequestWithContext(b.Context(), http.MethodPost, "/v1/chat/completions", strings.NewReader(body))
		if err != nil {
			b.Fatal(err)
		}
		s.Handler().ServeHTTP(nowhereWriter{http.Header{}}, r)
	}
}

func BenchmarkTokenize1MB(b *testing.B) {
	text := strings.Repeat(" some words", 1<<20/11)
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		newCounter(16, false).text(text)
	}
}
