package h1

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"testing"
	"time"
)

// cancelled makes a round trip that is cancelled when ready is, and checks that
// it fails by that, closes the connection and leaves nothing behind.
func cancelled(t *testing.T, tr *Transport, ready <-chan struct{}, newReq func(context.Context) *http.Request) *Error {
	t.Helper()
	check := leakCheck(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req := newReq(ctx)
	failed := make(chan error, 1)
	go func() {
		_, err := tr.RoundTrip(req)
		failed <- err
	}()
	recv(t, "the round trip is where it is to be cancelled", ready)
	cancel()
	err := recv(t, "RoundTrip returns", failed)
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("error %v", err)
	}
	check()
	return failure(t, err)
}

func TestCancelWhileDialling(t *testing.T) {
	tr := newTransport(t)
	ready := make(chan struct{})
	tr.dial = func(ctx context.Context, _ string) (net.Conn, error) {
		close(ready)
		<-ctx.Done()
		return nil, errors.New("the operation was cancelled")
	}
	e := cancelled(t, tr, ready, func(ctx context.Context) *http.Request {
		return newRequestContext(ctx, t, http.MethodPost, "a:1", "{}")
	})
	if e.Op != OpDial || e.Sent {
		t.Fatalf("%+v", e)
	}
}

func TestCancelBefore(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	tr := newTransport(t)
	tr.dial = func(context.Context, string) (net.Conn, error) {
		t.Error("dialled")
		return nil, errors.New("dialled")
	}
	_, err := tr.RoundTrip(newRequestContext(ctx, t, http.MethodPost, "a:1", "{}"))
	if e := failure(t, err); e.Op != OpDial || e.Sent || !errors.Is(err, context.Canceled) {
		t.Fatalf("%+v", e)
	}
}

func TestCancelWhileWriting(t *testing.T) {
	ready := make(chan struct{})
	gone := make(chan struct{})
	s := serve(t, func(_ int, p *peer) {
		_, _ = http.ReadRequest(p.br)
		close(ready)
		p.gone()
		close(gone)
	})
	tr := newTransport(t)
	e := cancelled(t, tr, ready, func(ctx context.Context) *http.Request {
		req := newRequestContext(ctx, t, http.MethodPost, s.addr, "")
		req.Body, req.ContentLength = io.NopCloser(&endless{}), 1<<50
		return req
	})
	if !e.Sent || e.Answered {
		t.Fatalf("%+v", e)
	}
	recv(t, "the server sees the end", gone)
}

func TestCancelWhileWaiting(t *testing.T) {
	for _, sent := range []string{"", "HTTP/1.1 200 OK\r\nContent-", "HTTP/1.1 100 Continue\r\n\r\n"} {
		ready := make(chan struct{})
		gone := make(chan struct{})
		s := serve(t, func(_ int, p *peer) {
			p.request()
			p.send(sent)
			close(ready)
			p.gone()
			close(gone)
		})
		e := cancelled(t, newTransport(t), ready, func(ctx context.Context) *http.Request {
			return newRequestContext(ctx, t, http.MethodPost, s.addr, "{}")
		})
		if e.Op != OpRead || !e.Sent {
			t.Fatalf("%+v", e)
		}
		recv(t, "the server sees the end", gone)
	}
}

// streams starts a stream of one chunk and reads it.
func streams(ctx context.Context, t *testing.T, tr *Transport, head string) (res *http.Response, gone chan struct{}) {
	t.Helper()
	gone = make(chan struct{})
	s := serve(t, func(_ int, p *peer) {
		p.request()
		p.send(head)
		p.gone()
		close(gone)
	})
	res, err := tr.RoundTrip(newRequestContext(ctx, t, http.MethodPost, s.addr, "{}"))
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 2)
	if n, err := res.Body.Read(b); string(b[:n]) != "ok" || err != nil {
		t.Fatalf("read %q, error %v", b[:n], err)
	}
	return res, gone
}

// framings are the ways in which a stream may be framed, begun and not ended.
var framings = map[string]string{
	"chunked":       "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n",
	"length":        "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nok",
	"until the end": "HTTP/1.1 200 OK\r\n\r\nok",
}

func TestCancelInBody(t *testing.T) {
	for name, head := range framings {
		t.Run(name, func(t *testing.T) {
			tr := newTransport(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			res, gone := streams(ctx, t, tr, head)
			read := make(chan error, 1)
			go func() {
				_, err := io.ReadAll(res.Body)
				read <- err
			}()
			cancel()
			if err := recv(t, "Read returns", read); err != context.Canceled { //nolint:errorlint // as it is
				t.Fatalf("error %v", err)
			}
			recv(t, "the server sees the end", gone)
			if _, err := res.Body.Read(make([]byte, 1)); !errors.Is(err, context.Canceled) {
				t.Fatalf("a second read: %v", err)
			}
			if err := res.Body.Close(); err != nil || idleConns(tr) != 0 {
				t.Fatalf("close: %v, %d connections are kept", err, idleConns(tr))
			}
		})
	}
}

// TestCancelAfterBody: what was read whole was read whole, and a context that
// ends afterwards closes nobody else's connection.
func TestCancelAfterBody(t *testing.T) {
	s := serve(t, always(okAnswer))
	tr := newTransport(t)
	for range 100 {
		ctx, cancel := context.WithCancel(t.Context())
		mustOK(t, tr, newRequestContext(ctx, t, http.MethodPost, s.addr, "{}"))
		cancel()
	}
	if n := s.accepted.Load(); n != 1 {
		t.Fatalf("%d connections, want 1", n)
	}
}

// TestCancelAtTheEnd lets the context end while the last bytes are read. A
// connection that was closed by that must not be served to the next request.
func TestCancelAtTheEnd(t *testing.T) {
	s := serve(t, always(okAnswer))
	tr := newTransport(t)
	for range 300 {
		ctx, cancel := context.WithCancel(t.Context())
		res, err := tr.RoundTrip(newRequestContext(ctx, t, http.MethodPost, s.addr, "{}"))
		if err != nil {
			t.Fatal(err)
		}
		go cancel()
		b, err := io.ReadAll(res.Body)
		if err == nil && string(b) != "ok" || err != nil && !errors.Is(err, context.Canceled) {
			t.Fatalf("body %q, error %v", b, err)
		}
		mustOK(t, tr, newRequest(t, http.MethodPost, s.addr, "{}"))
	}
}

func TestCloseInBody(t *testing.T) {
	for name, head := range framings {
		t.Run(name, func(t *testing.T) {
			more := "more"
			if name == "chunked" {
				more = "4\r\nmore\r\n"
			}
			tr := newTransport(t)
			// What lies in the buffer is not to be read after Close either.
			res, gone := streams(t.Context(), t, tr, head+more)
			if err := res.Body.Close(); err != nil {
				t.Fatal(err)
			}
			recv(t, "the server sees the end", gone)
			if _, err := res.Body.Read(make([]byte, 1)); !errors.Is(err, http.ErrBodyReadAfterClose) {
				t.Fatalf("read after close: %v", err)
			}
			if err := res.Body.Close(); err != nil || idleConns(tr) != 0 {
				t.Fatalf("second close: %v, %d connections are kept", err, idleConns(tr))
			}
		})
	}
}

// TestCloseWhileReading: a watchdog closes the body under a reader.
func TestCloseWhileReading(t *testing.T) {
	for name, head := range framings {
		t.Run(name, func(t *testing.T) {
			reading := make(chan struct{}, 100)
			tr := newTransport(t)
			tr.dial = func(ctx context.Context, addr string) (net.Conn, error) {
				nc, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
				return &announcer{nc, reading}, err
			}
			res, gone := streams(t.Context(), t, tr, head)
			for len(reading) > 0 {
				<-reading
			}
			read := make(chan error, 1)
			go func() {
				_, err := res.Body.Read(make([]byte, 1))
				read <- err
			}()
			recv(t, "Read reads from the connection", reading)
			res.Body.Close()
			if err := recv(t, "Read returns", read); !errors.Is(err, http.ErrBodyReadAfterClose) {
				t.Fatalf("error %v", err)
			}
			recv(t, "the server sees the end", gone)
		})
	}
}

// announcer tells when a read begins.
type announcer struct {
	net.Conn
	reading chan struct{}
}

func (a *announcer) Read(p []byte) (int, error) {
	a.reading <- struct{}{}
	return a.Conn.Read(p)
}

// TestDeadline: the context's own error tells a timeout from a cancelled client.
func TestDeadline(t *testing.T) {
	s := serve(t, func(_ int, p *peer) {
		p.request()
		p.gone()
	})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err := newTransport(t).RoundTrip(newRequestContext(ctx, t, http.MethodPost, s.addr, "{}"))
	if !errors.Is(err, context.DeadlineExceeded) || !failure(t, err).Timeout() {
		t.Fatalf("error %v", err)
	}
}

// TestChunksComeAtOnce: a token is read when it was sent, not when more come.
func TestChunksComeAtOnce(t *testing.T) {
	next := make(chan struct{})
	s := serve(t, func(_ int, p *peer) {
		p.request()
		p.send("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
		for range next {
			p.send("8\r\ndata: 1\n\r\n")
		}
		p.send("0\r\n\r\n")
	})
	tr := newTransport(t)
	res, err := tr.RoundTrip(newRequest(t, http.MethodPost, s.addr, "{}"))
	if err != nil {
		close(next)
		t.Fatal(err)
	}
	b := make([]byte, 32<<10)
	for range 20 {
		next <- struct{}{}
		if n, err := io.ReadAtLeast(res.Body, b, 8); err != nil || !bytes.Equal(b[:n], []byte("data: 1\n")) {
			t.Errorf("read %q, error %v", b[:n], err)
		}
	}
	close(next)
	if n, err := res.Body.Read(b); n != 0 || err != io.EOF {
		t.Errorf("read %q, error %v", b[:n], err)
	}
	if idleConns(tr) != 1 {
		t.Error("the connection is not kept")
	}
}
