//go:build unix

package h1

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// reply answers every request on a connection with the same bytes and spends as
// little as it can: the server's share of the time is in every figure.
func reply(answer []byte) func(int, *peer) {
	return func(_ int, p *peer) {
		const prefix = "Content-Length: "
		for {
			length := 0
			for {
				line, err := p.br.ReadSlice('\n')
				if err != nil {
					return
				}
				if len(line) == 2 {
					break
				}
				if len(line) > len(prefix) && string(line[:len(prefix)]) == prefix {
					if length, err = strconv.Atoi(string(bytes.TrimSpace(line[len(prefix):]))); err != nil {
						return
					}
				}
			}
			if _, err := p.br.Discard(length); err != nil {
				return
			}
			if _, err := p.Write(answer); err != nil {
				return
			}
		}
	}
}

// cpu returns the process's CPU time so far.
func cpu(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// measure reports CPU time beside the usual figures.
func measure(b *testing.B, run func()) {
	b.Helper()
	b.ReportAllocs()
	b.ResetTimer()
	before := cpu(b)
	run()
	b.ReportMetric(float64(cpu(b)-before)/float64(b.N), "cpu-ns/op")
}

const benchBody = `{"model":"m","messages":[{"role":"user","content":"hello"}],"max_tokens":1}`

func benchHeader() http.Header {
	return http.Header{
		"Content-Type": {"application/json"}, "Accept": {"*/*"}, "User-Agent": {"bench/1"},
		"Authorization": {"Bearer secret"}, "X-Request-Id": {"0123456789abcdef"},
	}
}

func benchmarkSmall(b *testing.B, rt http.RoundTripper) {
	answer := `{"id":"1","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"hi"}}]}`
	s := serve(b, reply([]byte("HTTP/1.1 200 OK\r\nDate: Thu, 01 Jan 2026 00:00:00 GMT\r\nServer: uvicorn\r\nContent-Type: application/json\r\n"+
		"Content-Length: "+strconv.Itoa(len(answer))+"\r\n\r\n"+answer)))
	template := newRequest(b, http.MethodPost, s.addr, benchBody)
	template.Header = benchHeader()
	b.SetParallelism(32) // times GOMAXPROCS
	measure(b, func() {
		b.RunParallel(func(pb *testing.PB) {
			buf := make([]byte, 32<<10)
			for pb.Next() {
				req := *template
				req.Body = io.NopCloser(strings.NewReader(benchBody))
				res, err := rt.RoundTrip(&req)
				if err != nil {
					b.Error(err)
					return
				}
				for err == nil {
					_, err = res.Body.Read(buf)
				}
				if !errors.Is(err, io.EOF) {
					b.Error(err)
				}
				res.Body.Close()
			}
		})
	})
}

func BenchmarkRoundTrip(b *testing.B) { benchmarkSmall(b, newTransport(b)) }

func BenchmarkHTTPTransport(b *testing.B) { benchmarkSmall(b, standard(b)) }

// BenchmarkFloor is what the same bytes cost without any HTTP: a write, a read
// and the server.
func BenchmarkFloor(b *testing.B) {
	answer := []byte(okAnswer + strings.Repeat(" ", 200))
	s := serve(b, reply(answer))
	req := newRequest(b, http.MethodPost, s.addr, benchBody)
	req.Header = benchHeader()
	head, err := appendHead(nil, req)
	if err != nil {
		b.Fatal(err)
	}
	head = append(head, benchBody...)
	tr := newTransport(b)
	b.SetParallelism(32)
	measure(b, func() {
		b.RunParallel(func(pb *testing.PB) {
			c, err := tr.connect(b.Context(), req.URL)
			if err != nil {
				b.Error(err)
				return
			}
			defer c.shut()
			buf := make([]byte, len(answer))
			for pb.Next() {
				if _, err := c.nc.Write(head); err != nil {
					b.Error(err)
					return
				}
				if _, err := io.ReadFull(c.nc, buf); err != nil {
					b.Error(err)
					return
				}
			}
		})
	})
}

func standard(b *testing.B) *http.Transport {
	b.Helper()
	tr := &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: DefaultMaxIdlePerHost, IdleConnTimeout: DefaultIdleTimeout}
	b.Cleanup(tr.CloseIdleConnections)
	return tr
}

// benchmarkStream takes b.N chunks of 200 bytes, each written by itself when the
// one before has been read, so that none shares a system call with another.
func benchmarkStream(b *testing.B, rt http.RoundTripper) {
	chunk := []byte("c8\r\n" + strings.Repeat("x", 198) + "\n\n\r\n")
	next := make(chan struct{}, 1)
	s := serve(b, func(_ int, p *peer) {
		p.request()
		p.send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
		for range next {
			if _, err := p.Write(chunk); err != nil {
				return
			}
		}
		p.send("0\r\n\r\n")
	})
	res, err := rt.RoundTrip(newRequest(b, http.MethodPost, s.addr, benchBody))
	if err != nil {
		close(next)
		b.Fatal(err)
	}
	buf := make([]byte, 32<<10)
	measure(b, func() {
		for range b.N {
			next <- struct{}{}
			for got := 0; got < 200; {
				n, err := res.Body.Read(buf)
				if err != nil {
					b.Error(err)
					break
				}
				got += n
			}
		}
	})
	close(next)
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		b.Fatal(err)
	}
}

func BenchmarkStream(b *testing.B) { benchmarkStream(b, newTransport(b)) }

func BenchmarkHTTPTransportStream(b *testing.B) { benchmarkStream(b, standard(b)) }

// BenchmarkIdleCheck is the cost of looking at a connection before its reuse.
func BenchmarkIdleCheck(b *testing.B) {
	s := serve(b, always(okAnswer))
	tr := newTransport(b)
	mustOK(b, tr, newRequest(b, http.MethodGet, s.addr, ""))
	c := tr.take(s.addr)
	measure(b, func() {
		for range b.N {
			if !c.idle() {
				b.Fatal("not idle")
			}
		}
	})
	tr.put(c)
}

// BenchmarkEarlyClose is the time from closing a stream to the server's notice.
func BenchmarkEarlyClose(b *testing.B) {
	gone := make(chan time.Time, 1)
	s := serve(b, func(_ int, p *peer) {
		p.request()
		p.send(framings["chunked"])
		p.gone()
		gone <- time.Now()
	})
	tr := newTransport(b)
	var total, worst time.Duration
	for range b.N {
		res, err := tr.RoundTrip(newRequest(b, http.MethodPost, s.addr, benchBody))
		if err != nil {
			b.Fatal(err)
		}
		begin := time.Now()
		res.Body.Close()
		took := recv(b, "the server notices", gone).Sub(begin)
		total, worst = total+took, max(worst, took)
	}
	b.ReportMetric(float64(total)/float64(b.N), "notice-ns/op")
	b.ReportMetric(float64(worst), "worst-ns")
}
