package h1

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

const patience = 10 * time.Second

// peer is the server's end of a connection.
type peer struct {
	*net.TCPConn
	br *bufio.Reader
}

// request reads one request and its body. It returns nil when the client closed
// the connection or sent no valid request.
func (p *peer) request() *http.Request {
	req, err := http.ReadRequest(p.br)
	if err != nil {
		return nil
	}
	if _, err := io.Copy(io.Discard, req.Body); err != nil {
		return nil
	}
	return req
}

func (p *peer) send(s string) { _, _ = io.WriteString(p, s) }

// gone waits until the client has closed the connection.
func (p *peer) gone() { _, _ = io.Copy(io.Discard, p.br) }

// reset closes the connection in a way that the client sees as an error.
func (p *peer) reset() {
	_ = p.SetLinger(0)
	p.Close()
}

type server struct {
	addr     string
	accepted atomic.Int32
}

// serve runs script for every connection to a new server, and closes the
// connection when it returns. Connections are numbered from 0.
func serve(t testing.TB, script func(n int, p *peer)) *server {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &server{addr: l.Addr().String()}
	var wg sync.WaitGroup
	var mu sync.Mutex
	open := map[net.Conn]bool{}
	wg.Go(func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			n := int(s.accepted.Add(1)) - 1
			mu.Lock()
			open[nc] = true
			mu.Unlock()
			wg.Go(func() {
				defer func() {
					nc.Close()
					mu.Lock()
					delete(open, nc)
					mu.Unlock()
				}()
				script(n, &peer{TCPConn: nc.(*net.TCPConn), br: bufio.NewReader(nc)})
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		for nc := range open {
			nc.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	return s
}

// always answers every request on a connection with the same bytes.
func always(answer string) func(int, *peer) {
	return func(_ int, p *peer) {
		for p.request() != nil {
			p.send(answer)
		}
	}
}

const okAnswer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

func newTransport(t testing.TB) *Transport {
	t.Helper()
	tr := &Transport{}
	t.Cleanup(tr.CloseIdleConnections)
	return tr
}

func newRequest(t testing.TB, method, addr, body string) *http.Request {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 6*patience) // a hang is to fail, and say where
	t.Cleanup(cancel)
	return newRequestContext(ctx, t, method, addr, body)
}

// newRequestContext makes a request as a proxy does: without GetBody.
func newRequestContext(ctx context.Context, t testing.TB, method, addr, body string) *http.Request {
	t.Helper()
	var r io.Reader
	if body != "" {
		r = strings.NewReader(body)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://"+addr+"/v1/models", r)
	if err != nil {
		t.Fatal(err)
	}
	req.GetBody = nil
	return req
}

// roundTrip returns the answer and its whole body.
func roundTrip(t testing.TB, rt http.RoundTripper, req *http.Request) (*http.Response, string, error) {
	t.Helper()
	res, err := rt.RoundTrip(req)
	if err != nil {
		return nil, "", err
	}
	b, err := io.ReadAll(res.Body)
	res.Body.Close()
	return res, string(b), err
}

// mustOK makes a round trip that has to give okAnswer.
func mustOK(t testing.TB, rt http.RoundTripper, req *http.Request) {
	t.Helper()
	res, body, err := roundTrip(t, rt, req)
	if err != nil || res.StatusCode != http.StatusOK || body != "ok" {
		t.Fatalf("%s: %+v, body %q, error %v", req.Method, res, body, err)
	}
}

// failure returns err as an *Error.
func failure(t testing.TB, err error) *Error {
	t.Helper()
	e, ok := errors.AsType[*Error](err)
	if !ok {
		t.Fatalf("error %v is a %T, want an *Error", err, err)
	}
	return e
}

// idleConns counts the unused connections of the pool.
func idleConns(tr *Transport) int {
	n := 0
	if hosts := tr.hosts.Load(); hosts != nil {
		for _, h := range *hosts {
			h.mu.Lock()
			n += len(h.conns)
			h.mu.Unlock()
		}
	}
	return n
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", patience, what)
		}
		time.Sleep(time.Millisecond)
	}
}

// recv receives from c, or fails.
func recv[T any](t testing.TB, what string, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		t.Fatalf("not within %v: %s", patience, what)
		panic("unreachable")
	}
}

// leakCheck returns a function that fails unless there are as many goroutines
// and sockets as there are now. Servers are to be started before.
func leakCheck(t testing.TB) func() {
	t.Helper()
	goroutines, before := runtime.NumGoroutine(), sockets(t)
	return func() {
		t.Helper()
		deadline := time.Now().Add(patience)
		for runtime.NumGoroutine() > goroutines || len(sockets(t)) > len(before) {
			if time.Now().After(deadline) {
				stacks := make([]byte, 64<<10)
				t.Fatalf("left over after %v: sockets %q, before %q; more than %d goroutines:\n%s",
					patience, sockets(t), before, goroutines, stacks[:runtime.Stack(stacks, true)])
			}
			time.Sleep(time.Millisecond)
		}
	}
}

// sockets returns the process's sockets, and nothing where there is no /proc.
// Other descriptors are not this package's: the runtime opens some when it first
// needs them.
func sockets(t testing.TB) []string {
	t.Helper()
	const dir = "/proc/self/fd/"
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	var found []string
	for _, e := range entries {
		// It fails for the descriptor that read the folder.
		if target, err := os.Readlink(dir + e.Name()); err == nil && strings.HasPrefix(target, "socket:") {
			found = append(found, target)
		}
	}
	return found
}
