package llmtransport

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	_ "github.com/caddyserver/caddy/v2/modules/standard"
)

// writer is a handler that answers as an engine's stream would come, through
// events.
type writer struct{}

// pieces are what it writes.
var pieces = []string{"a", strings.Repeat("b", 300), strings.Repeat("c", maxDirect), strings.Repeat("d", maxDirect+1), strings.Repeat("e", 100<<10), "f", "\r\n0\r\n\r\n", "g"}

// direct says whether the last answer went to the connection itself.
var direct atomic.Bool

// gone says that the client of an endless answer has gone.
var gone = make(chan struct{}, 1)

func init() { caddy.RegisterModule(writer{}) }

func (writer) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.test_events", New: func() caddy.Module { return new(writer) }}
}

func (writer) Provision(ctx caddy.Context) error {
	keepConns(ctx)
	return nil
}

func (writer) ServeHTTP(w http.ResponseWriter, r *http.Request, _ caddyhttp.Handler) error {
	if r.URL.Path == "/known" {
		w.Header().Set("Content-Length", fmt.Sprint(len(strings.Join(pieces, ""))))
	}
	if r.URL.Path == "/identity" {
		w.Header().Set("Transfer-Encoding", "identity")
	}
	w.WriteHeader(http.StatusOK)
	e := newEvents(w, r, http.StatusOK)
	direct.Store(e.conn != nil)
	if r.URL.Path == "/endless" {
		e.moved = time.Now().Add(time.Hour) // all of it to the connection itself
		for {
			if _, err := e.Write([]byte(pieces[1])); err != nil {
				gone <- struct{}{}
				panic(http.ErrAbortHandler)
			}
		}
	}
	for _, p := range pieces {
		if p == "g" {
			e.moved = time.Time{} // the deadline is due
		}
		if _, err := e.Write([]byte(p)); err != nil {
			panic(http.ErrAbortHandler)
		}
	}
	return nil
}

// TestEvents_WrittenPastTheServer: a client gets what the server itself would
// have sent, and can go on with the connection.
func TestEvents_WrittenPastTheServer(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", dir)
	t.Setenv("XDG_DATA_HOME", dir)
	plain, logged, limited := dir+"/plain", dir+"/logged", dir+"/limited"
	server := `"%s": {"listen": ["unix/%s"], "protocols": ["h1", "h2c"], %s "routes": [{"handle": [{"handler": "test_events"}, {"handler": "test_events"}]}]}`
	config := fmt.Sprintf(`{"admin": {"disabled": true}, "logging": {"logs": {"default": {"level": "ERROR"}}}, "apps": {"http": {"servers": {`+
		server+","+server+","+server+`}}}}`,
		"plain", plain, "", "logged", logged, `"logs": {},`, "limited", limited, `"write_min_rate": 1,`)
	if err := caddy.Load([]byte(config), true); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := caddy.Stop(); err != nil {
			t.Error(err)
		}
	})
	want := strings.Join(pieces, "")
	for _, c := range []struct {
		name, socket, request string
		direct, again         bool
	}{
		{"HTTP/1.1", plain, "GET / HTTP/1.1\r\nHost: a\r\n\r\n", true, true},
		{"last request", plain, "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", true, false},
		{"HTTP/1.0", plain, "GET / HTTP/1.0\r\nHost: a\r\n\r\n", false, false},
		{"HEAD", plain, "HEAD / HTTP/1.1\r\nHost: a\r\n\r\n", false, true},
		{"known length", plain, "GET /known HTTP/1.1\r\nHost: a\r\n\r\n", false, true},
		{"identity", plain, "GET /identity HTTP/1.1\r\nHost: a\r\n\r\n", false, false},
		{"access log", logged, "GET / HTTP/1.1\r\nHost: a\r\n\r\n", false, true},
		{"least rate", limited, "GET / HTTP/1.1\r\nHost: a\r\n\r\n", false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			conn, err := net.Dial("unix", c.socket)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
				t.Fatal(err)
			}
			from := bufio.NewReader(conn)
			method, _, _ := strings.Cut(c.request, " ")
			for range 2 {
				if _, err := io.WriteString(conn, c.request); err != nil {
					t.Fatal(err)
				}
				res, err := http.ReadResponse(from, &http.Request{Method: method})
				if err != nil {
					t.Fatal(err)
				}
				got, err := io.ReadAll(res.Body)
				if err != nil || string(got) != want && method != http.MethodHead {
					t.Fatalf("got %d bytes, want %d: %v", len(got), len(want), err)
				}
				if direct.Load() != c.direct {
					t.Errorf("written to the connection itself: %v", direct.Load())
				}
				if !c.again {
					if _, err := from.ReadByte(); err != io.EOF {
						t.Errorf("behind the end: %v", err)
					}
					return
				}
			}
		})
	}
	t.Run("HTTP/2", func(t *testing.T) {
		h2c := new(http.Protocols)
		h2c.SetUnencryptedHTTP2(true)
		client := &http.Transport{Protocols: h2c, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", plain)
		}}
		defer client.CloseIdleConnections()
		res, err := (&http.Client{Transport: client}).Get("http://a/")
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		got, err := io.ReadAll(res.Body)
		if err != nil || string(got) != want || res.ProtoMajor != 2 || direct.Load() {
			t.Errorf("%s: got %d bytes, want %d: %v", res.Proto, len(got), len(want), err)
		}
	})
	t.Run("client gone", func(t *testing.T) {
		conn, err := net.Dial("unix", plain)
		if err != nil {
			t.Fatal(err)
		}
		_, err = io.WriteString(conn, "GET /endless HTTP/1.1\r\nHost: a\r\n\r\n")
		if err == nil {
			_, err = conn.Read(make([]byte, 1))
		}
		conn.Close()
		if err != nil {
			t.Fatal(err)
		}
		select {
		case <-gone:
		case <-time.After(time.Minute):
			t.Error("it writes on")
		}
	})
}
