//go:build engines

package e2e

import (
	"bytes"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync"
)

// recorder stands between the gateway and an engine and keeps the last POST
// as the engine saw it, and what the engine answered, byte for byte. Asking
// the engine twice and comparing would not do: ids and times differ, and vLLM
// puts as many tokens into an event as came while it wrote the last one.
type recorder struct {
	url string

	mu              sync.Mutex
	request, answer bytes.Buffer
}

func newRecorder(engine string) *recorder {
	target, err := url.Parse(engine)
	if err != nil {
		panic(err) // the tests' own doing
	}
	rec := new(recorder)
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) },
		ModifyResponse: func(res *http.Response) error {
			if res.Request.Method == http.MethodPost {
				res.Body = readCloser{io.TeeReader(res.Body, rec.writer(&rec.answer)), res.Body}
			}
			return nil
		},
		FlushInterval: -1, // at once
		// While an engine starts, the gateway asks in vain; it tells of it.
		ErrorLog: log.New(io.Discard, "", 0),
		// Bytes as they are, and no connection that vLLM closes after five
		// idle seconds.
		Transport: &http.Transport{DisableCompression: true, DisableKeepAlives: true},
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			rec.mu.Lock()
			rec.request.Reset()
			rec.answer.Reset()
			rec.mu.Unlock()
			r.Body = readCloser{io.TeeReader(r.Body, rec.writer(&rec.request)), r.Body}
		}
		proxy.ServeHTTP(w, r)
	}))
	rec.url = server.URL
	return rec
}

// last returns the request's body and the answer's of the last POST, which
// must be over.
func (rec *recorder) last() (request, answer string) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	return rec.request.String(), rec.answer.String()
}

func (rec *recorder) writer(b *bytes.Buffer) io.Writer {
	return writerFunc(func(p []byte) (int, error) {
		rec.mu.Lock()
		defer rec.mu.Unlock()
		return b.Write(p)
	})
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

type readCloser struct {
	io.Reader
	io.Closer
}
