//go:build unix

package sim

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// cpu is the processor time that this process used so far.
func cpu(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkStreams serves 64 streams of 256 tokens at a time, clients in the
// same process included, and shows tokens per processor second.
func BenchmarkStreams(b *testing.B) {
	const streams, tokens = 64, 256
	e, err := New(Config{MaxNumSeqs: streams, Decode: time.Millisecond})
	if err != nil {
		b.Fatal(err)
	}
	srv := httptest.NewServer(e.Handler())
	defer srv.Close()
	defer e.Close()
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: streams}}
	body := `{"messages":[{"role":"user","content":"go"}],"max_tokens":256,"ignore_eos":true,"stream":true}`
	b.ReportAllocs()
	used := cpu(b)
	for b.Loop() {
		var wg sync.WaitGroup
		for range streams {
			wg.Go(func() {
				res, err := client.Post(srv.URL+"/v1/chat/completions", "application/json", strings.NewReader(body))
				if err != nil {
					b.Error(err)
					return
				}
				defer res.Body.Close()
				if _, err := io.Copy(io.Discard, res.Body); err != nil {
					b.Error(err)
				}
			})
		}
		wg.Wait()
	}
	b.ReportMetric(float64(b.N*streams*tokens)/(cpu(b)-used).Seconds(), "tokens/cpu-s")
}

// sink takes a response and forgets it.
type sink struct{ header http.Header }

func (s *sink) Header() http.Header         { return s.header }
func (s *sink) Write(p []byte) (int, error) { return len(p), nil }
func (s *sink) WriteHeader(int)             {}
func (s *sink) Flush()                      {}

// BenchmarkHandler serves one stream of 256 tokens without a network.
func BenchmarkHandler(b *testing.B) {
	e, err := New(Config{})
	if err != nil {
		b.Fatal(err)
	}
	defer e.Close()
	body := `{"messages":[{"role":"user","content":"go"}],"max_tokens":256,"ignore_eos":true,"stream":true}`
	b.ReportAllocs()
	for b.Loop() {
		r := httptest.NewRequestWithContext(b.Context(), "POST", "/v1/chat/completions", strings.NewReader(body))
		r.Header.Set("Content-Type", "application/json")
		e.Handler().ServeHTTP(&sink{make(http.Header)}, r)
	}
	b.ReportMetric(float64(256*b.N)/b.Elapsed().Seconds(), "tokens/s")
}

// BenchmarkMetricsPage writes the page of eight ranks.
func BenchmarkMetricsPage(b *testing.B) {
	e, err := New(Config{DataParallel: 8})
	if err != nil {
		b.Fatal(err)
	}
	defer e.Close()
	x := &call{e: e, core: e.core.Load()}
	b.ReportAllocs()
	for b.Loop() {
		x.page()
	}
}
