package integration

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/quic-go/quic-go/http3"
)

// front is a way in which clients speak with the gateway.
type front struct {
	g      *gateway
	major  int
	client http.RoundTripper
}

// post sends a body and returns with the answer's headers.
func (f *front) post(t *testing.T, ctx context.Context, body string) (*http.Response, error) {
	t.Helper()
	res, err := f.client.RoundTrip(f.g.request(t, ctx, http.MethodPost, "/v1/chat/completions", body))
	if err == nil && res.ProtoMajor != f.major {
		t.Errorf("the answer is %s", res.Proto)
	}
	return res, err
}

// fronts starts a gateway before the engines with this site, that listens for
// every protocol, and returns how to reach it. global are global options.
func fronts(t *testing.T, option, site, global string) map[string]*front {
	t.Helper()
	g, secure, quiet := newGateway(t), freePort(t), freePort(t)
	text := g.caddyfile(option, site)
	text = strings.Replace(text, "\tauto_https off", "\tauto_https off\n"+global, 1)
	// Not `tls internal`: Caddy has a data race while it starts and issues one.
	cert, key := certificate(t)
	text += fmt.Sprintf("\nhttps://%s {\n\ttls %s %s\n%s\n}\n", secure, cert, key, site)
	// Without anything that has to see each write, streams go another way.
	text += fmt.Sprintf("\nhttp://%s {\n%s\n}\n", quiet, strings.ReplaceAll(site, "\tencode gzip\n", ""))
	g.run(t, text)
	tlsConfig := &tls.Config{InsecureSkipVerify: true, ServerName: "127.0.0.1"}
	h2c := new(http.Protocols)
	h2c.SetUnencryptedHTTP2(true)
	quic := &http3.Transport{TLSClientConfig: tlsConfig}
	over, unlogged := *g, *g
	over.URL, unlogged.URL = "https://"+secure, "http://"+quiet
	all := map[string]*front{
		"HTTP/1.1":     {g, 1, &http.Transport{}},
		"not logged":   {&unlogged, 1, &http.Transport{}},
		"HTTP/1.1 TLS": {&over, 1, &http.Transport{TLSClientConfig: tlsConfig}},
		"HTTP/2":       {&over, 2, &http.Transport{TLSClientConfig: tlsConfig.Clone(), ForceAttemptHTTP2: true}},
		"h2c":          {g, 2, &http.Transport{Protocols: h2c}},
		"HTTP/3":       {&over, 3, quic},
	}
	t.Cleanup(func() {
		quic.Close()
		for _, f := range all {
			if c, ok := f.client.(*http.Transport); ok {
				c.CloseIdleConnections()
			}
		}
	})
	return all
}

// certificate returns files with a certificate for 127.0.0.1 and its key.
func certificate(t *testing.T) (cert, key string) {
	t.Helper()
	s := httptest.NewTLSServer(http.NotFoundHandler())
	defer s.Close()
	pair := s.TLS.Certificates[0]
	der, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	return writePEM(t, "CERTIFICATE", pair.Certificate[0]), writePEM(t, "PRIVATE KEY", der)
}

// writePEM returns a file of its own for the test.
func writePEM(t *testing.T, kind string, der []byte) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "x.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// everyProtocol is the global option that turns h2c on.
const everyProtocol = "\tservers {\n\t\tprotocols h1 h2 h2c h3\n\t}"

// TestS12_EventByEvent: the engine sends the headers, and then each next event,
// only after the client has what it sent before.
func TestS12_EventByEvent(t *testing.T) {
	step := make(chan struct{})
	e := newEngine(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		w.WriteHeader(http.StatusOK)
		for i := range 5 {
			http.NewResponseController(w).Flush()
			select {
			case <-step:
			case <-r.Context().Done():
				return
			}
			fmt.Fprintf(w, "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"%d\"}}]}\n\n", i)
		}
		io.WriteString(w, "data: [DONE]\n\n")
	})
	for name, f := range fronts(t, one(e), "\tencode gzip\n\tllm", everyProtocol) {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), deadline)
			defer cancel()
			res, err := f.post(t, ctx, streamRequest)
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			if res.Header.Get("Content-Encoding") != "" || res.Header.Get("Content-Length") != "" {
				t.Errorf("headers %v", res.Header)
			}
			lines := bufio.NewReader(res.Body)
			for i := range 5 {
				step <- struct{}{}
				line, err := lines.ReadString('\n')
				if err != nil || !strings.Contains(line, fmt.Sprintf(`"content":"%d"`, i)) {
					t.Fatalf("event %d: %q, %v", i, line, err)
				}
				lines.ReadString('\n')
			}
			if rest, err := io.ReadAll(lines); err != nil || string(rest) != "data: [DONE]\n\n" {
				t.Errorf("the stream ended with %q, %v", rest, err)
			}
		})
	}
}

// TestS13_CancelOverEveryProtocol: a client that leaves ends the engine's work,
// before the headers and in mid-stream.
func TestS13_CancelOverEveryProtocol(t *testing.T) {
	arrived, gone := make(chan struct{}, 1), make(chan struct{}, 1)
	e := newEngine(t, func(w http.ResponseWriter, r *http.Request) {
		if body, _ := io.ReadAll(r.Body); strings.Contains(string(body), `"stream":true`) {
			w.Header().Set("Content-Type", "text/event-stream")
			io.WriteString(w, tokenEvent)
			http.NewResponseController(w).Flush()
		}
		arrived <- struct{}{}
		<-r.Context().Done()
		gone <- struct{}{}
	})
	for name, f := range fronts(t, one(e), "\tllm", everyProtocol) {
		for phase, body := range map[string]string{"before headers": request, "in the stream": streamRequest} {
			t.Run(name+" "+phase, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				ended := make(chan error, 1)
				begun := make(chan struct{}, 1)
				go func() {
					res, err := f.post(t, ctx, body)
					if err == nil {
						io.ReadFull(res.Body, make([]byte, len(tokenEvent)))
						begun <- struct{}{}
						_, err = io.ReadAll(res.Body)
						res.Body.Close()
					}
					ended <- err
				}()
				within(t, "the request arrives", arrived)
				if body == streamRequest {
					within(t, "the stream begins", begun)
				}
				cancel()
				within(t, "the engine sees the client leave", gone)
				if err := <-ended; err == nil {
					t.Error("the client saw a clean end")
				}
				eventually(t, "the slot is released", func() bool { return f.g.replicas(t)[e.Address].Inflight == 0 })
			})
		}
	}
}

// within waits for a signal.
func within(t *testing.T, what string, signal <-chan struct{}) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	select {
	case <-signal:
	case <-ctx.Done():
		t.Fatalf("not within %v: %s", deadline, what)
	}
}

// TestS08_ABreakOverEveryProtocol: a stream that breaks off never ends as if it
// were whole.
func TestS08_ABreakOverEveryProtocol(t *testing.T) {
	e := newEngine(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, tokenEvent+tokenEvent)
		cut(w)
	})
	for name, f := range fronts(t, one(e)+"\n\t\treliability {\n\t\t\tcooldown 1ms\n\t\t}", "\tllm", everyProtocol) {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), deadline)
			defer cancel()
			var res *http.Response
			var err error
			// Breaks open the replica's breaker for a moment.
			eventually(t, "the replica is used", func() bool {
				res, err = f.post(t, ctx, streamRequest)
				if err == nil && res.StatusCode == http.StatusServiceUnavailable {
					res.Body.Close()
					return false
				}
				return true
			})
			if err != nil && f.major == 3 {
				return // QUIC drops what was on its way when a stream is reset
			}
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			text, err := io.ReadAll(res.Body)
			if err == nil || strings.Contains(string(text), "[DONE]") {
				t.Errorf("the stream ended as if it were whole: %q", text)
			}
			if f.major < 3 && (!strings.HasPrefix(string(text), tokenEvent+tokenEvent) || !strings.Contains(string(text), `"code":"stream_broken"`)) {
				t.Errorf("got %q, %v", text, err)
			}
		})
	}
}

// silence tests a gateway with these options of its servers, whose engine is
// silent for so long: before the headers, before the first token, and between
// two tokens.
func silence(t *testing.T, server string, d time.Duration) {
	t.Helper()
	e := newEngine(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		pause := func(when string) {
			if !strings.Contains(string(body), when) {
				return
			}
			select {
			case <-time.After(d):
			case <-r.Context().Done():
				t.Errorf("%s: the request was cut", body)
			}
		}
		pause("before headers")
		w.Header().Set("Content-Type", "text/event-stream")
		w.WriteHeader(http.StatusOK)
		http.NewResponseController(w).Flush()
		pause("before the first token")
		io.WriteString(w, tokenEvent)
		http.NewResponseController(w).Flush()
		pause("between tokens")
		io.WriteString(w, tokenEvent+"data: [DONE]\n\n")
	})
	option := one(e) + "\n\t\treliability {\n\t\t\tidle_token_timeout 10m\n\t\t}"
	ask := func(f *front, body string, sized bool) error {
		ctx, cancel := context.WithTimeout(t.Context(), d+deadline)
		defer cancel()
		req := f.g.request(t, ctx, http.MethodPost, "/v1/chat/completions", body)
		if !sized {
			req.ContentLength = -1
		}
		res, err := f.client.RoundTrip(req)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		if want := tokenEvent + tokenEvent + "data: [DONE]\n\n"; err != nil || string(text) != want {
			return fmt.Errorf("%s %q, %w", res.Status, text, err)
		}
		return nil
	}
	var wg sync.WaitGroup // not parallel tests, of which few run at once
	for name, f := range fronts(t, option, "\tllm", strings.Replace(everyProtocol, "{\n", "{\n"+server, 1)) {
		for _, when := range []string{"before headers", "before the first token", "between tokens"} {
			for _, sized := range []bool{true, false} {
				wg.Go(func() {
					body := fmt.Sprintf(`{"model":"m","stream":true,"x":%q}`, when)
					if err := ask(f, body, sized); err != nil {
						t.Errorf("%s, silent %s, a body of known size %t: %v", name, when, sized, err)
					}
				})
			}
		}
	}
	wg.Wait()
}

// TestSilentEngines: Caddy's idle timeouts are for what it reads and writes
// itself. They must not cut a request whose engine works in silence, however
// long the prompt takes.
func TestSilentEngines(t *testing.T) {
	silence(t, "\t\ttimeouts {\n\t\t\tread_body_idle 500ms\n\t\t\twrite_idle 500ms\n\t\t}\n", 1500*time.Millisecond)
}

// TestSilentEnginesWithDefaults does so with what is shipped. It takes 70 s.
func TestSilentEnginesWithDefaults(t *testing.T) {
	if os.Getenv("LLMGW_SLOW") != "1" {
		t.Skip("LLMGW_SLOW=1 runs it")
	}
	silence(t, "", 70*time.Second)
}
