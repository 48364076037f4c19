package integration

import (
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
)

// TestRefusalsArrive: a client that is refused while it is still sending its
// body finds out why.
func TestRefusalsArrive(t *testing.T) {
	g := start(t, one(newEngine(t, answer)), "\tllm {\n\t\tkey k\n\t\tbody_limit 1KiB\n\t}")
	for _, c := range []struct {
		name, path, key string
		status          int
	}{
		{"too large", "/v1/chat/completions", "k", http.StatusRequestEntityTooLarge},
		{"no key", "/v1/chat/completions", "wrong", http.StatusUnauthorized},
		{"no such path", "/v1/none", "k", http.StatusNotFound},
		{"wrong method", "/v1/models", "k", http.StatusMethodNotAllowed},
	} {
		for _, size := range []int{10 << 10, 300 << 10, 4 << 20} {
			for _, chunked := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, %d bytes, chunked %v", c.name, size, chunked), func(t *testing.T) {
					// One answer in ten was lost.
					var wg sync.WaitGroup
					for range 20 {
						wg.Go(func() {
							status, text, err := g.upload(c.path, c.key, size, chunked)
							if err != nil || status != c.status || !strings.Contains(text, `"error"`) {
								t.Errorf("%d %s, %v", status, text, err)
							}
						})
					}
					wg.Wait()
				})
			}
		}
	}
}

// upload posts a body over a connection of its own.
func (g *gateway) upload(path, key string, size int, chunked bool) (status int, text string, err error) {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: deadline}
	req, err := http.NewRequest(http.MethodPost, g.URL+path, strings.NewReader(strings.Repeat("x", size)))
	if err != nil {
		return 0, "", err
	}
	if chunked {
		req.ContentLength = -1
	}
	req.Header.Set("Authorization", "Bearer "+key)
	res, err := client.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return res.StatusCode, string(b), err
}

// TestCompressedErrors: what cannot be read is not shown.
func TestCompressedErrors(t *testing.T) {
	e := newEngine(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		w.WriteHeader(http.StatusBadRequest)
		z := gzip.NewWriter(w)
		io.WriteString(z, `{"error":{"message":"the prompt is too long"}}`)
		z.Close()
	})
	g := start(t, one(e), "\tllm")
	res, text := g.post(t, "/v1/chat/completions", request)
	isError(t, res, text, http.StatusBadRequest)
	if !strings.Contains(text, "no message") {
		t.Errorf("the client reads %q", text)
	}
}
