package integration

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestHTTPSEndpoints: the authority that is trusted decides, for requests and
// for scrapes.
func TestHTTPSEndpoints(t *testing.T) {
	keys := make(chan string, 100)
	e := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/metrics":
			fmt.Fprint(w, page(0, 1, 0.5))
		case "/v1/models":
			fmt.Fprint(w, `{"data":[{"id":"m"}]}`)
		case "/v1/chat/completions":
			keys <- r.Header.Get("Authorization")
			answer(w, r)
		}
	}))
	defer e.Close()
	ca := writePEM(t, "CERTIFICATE", e.Certificate().Raw)
	option := func(extra string) string {
		return fmt.Sprintf("\t\tmodel m {\n\t\t\tendpoint %s {\n\t\t\t\tapi_key engine-secret\n\t\t\t\t%s\n\t\t\t}\n\t\t}", e.URL, extra)
	}
	for name, c := range map[string]struct {
		option string
		status int
	}{
		"trusted":      {"tls_ca " + ca, http.StatusOK},
		"another name": {"tls_ca " + ca + "\n\t\t\t\ttls_server_name example.com", http.StatusOK},
		"wrong name":   {"tls_ca " + ca + "\n\t\t\t\ttls_server_name other.test", http.StatusBadGateway},
		"not trusted":  {"", http.StatusBadGateway},
		"not verified": {"tls_insecure_skip_verify", http.StatusOK},
	} {
		t.Run(name, func(t *testing.T) {
			g := start(t, option(c.option), "\tllm")
			res, text := g.post(t, "/v1/chat/completions", request)
			if c.status != http.StatusOK {
				// The scrape may have taken it out before.
				if res.StatusCode != c.status && res.StatusCode != http.StatusServiceUnavailable {
					t.Errorf("%s %s", res.Status, text)
				}
				if len(keys) != 0 {
					t.Error("the key was sent")
				}
				return
			}
			if res.StatusCode != c.status {
				t.Fatalf("%s %s", res.Status, text)
			}
			if key := <-keys; key != "Bearer engine-secret" {
				t.Errorf("the engine got %q", key)
			}
			eventually(t, "the metrics are read", func() bool {
				return g.replicas(t)[e.URL].Metrics == "ok"
			})
			if r := res.Header.Get("X-Llmgw-Replica"); !strings.HasPrefix(r, "https://") {
				t.Errorf("replica %q", r)
			}
		})
	}
}

// TestFailedHandshake: a TLS handshake that fails, or never ends, is a connection
// that was not made: the request goes elsewhere.
func TestFailedHandshake(t *testing.T) {
	good := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/v1/chat") {
			answer(w, r)
		}
	}))
	defer good.Close()
	silent, err := net.Listen("tcp", "127.0.0.1:0") // it accepts by itself, and says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	plain := newEngine(t, answer)
	for name, bad := range map[string]string{"no TLS": plain.Address, "silence": silent.Addr().String()} {
		t.Run(name, func(t *testing.T) {
			bothPaths(t, func(t *testing.T, site string) {
				option := fmt.Sprintf("\t\tmodel m {\n\t\t\tendpoint https://%s {\n\t\t\t\tpool first\n\t\t\t\tpriority 200\n\t\t\t}\n\t\t\tendpoint %s {\n\t\t\t\ttls_insecure_skip_verify\n\t\t\t}\n\t\t}", bad, good.URL)
				g := start(t, option, site)
				res, text := g.post(t, "/v1/chat/completions", request)
				if res.StatusCode != http.StatusOK {
					t.Errorf("%s %s", res.Status, text)
				}
				if r := g.replicas(t)["https://"+bad]; r.State != "down" {
					t.Errorf("it is %s: %s", r.State, r.Reason)
				}
			})
		})
	}
}
