package h1

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestIdleTimeout is that traffic may stop for good: connections, descriptors,
// timers and the host's entry go without another request.
func TestIdleTimeout(t *testing.T) {
	gone := make(chan struct{}, 3)
	s := serve(t, func(_ int, p *peer) {
		always(okAnswer)(0, p)
		gone <- struct{}{}
	})
	check := leakCheck(t)
	tr := newTransport(t)
	tr.IdleTimeout = 20 * time.Millisecond
	var answers []*http.Response
	for range cap(gone) {
		res, err := tr.RoundTrip(newRequest(t, http.MethodGet, s.addr, ""))
		if err != nil {
			t.Fatal(err)
		}
		answers = append(answers, res)
	}
	for _, res := range answers {
		if _, err := io.Copy(io.Discard, res.Body); err != nil {
			t.Fatal(err)
		}
	}
	for range cap(gone) {
		recv(t, "an unused connection is closed", gone)
	}
	eventually(t, "the host is forgotten", func() bool { return len(*tr.hosts.Load()) == 0 })
	check()
	mustOK(t, tr, newRequest(t, http.MethodGet, s.addr, ""))
}

// TestExpiredConnectionIsNotUsed: the sweep may be late.
func TestExpiredConnectionIsNotUsed(t *testing.T) {
	s := serve(t, always(okAnswer))
	tr := newTransport(t)
	mustOK(t, tr, newRequest(t, http.MethodGet, s.addr, ""))
	h := (*tr.hosts.Load())[s.addr]
	h.mu.Lock()
	h.conns[0].since = time.Now().Add(-DefaultIdleTimeout)
	h.mu.Unlock()
	mustOK(t, tr, newRequest(t, http.MethodGet, s.addr, ""))
	if n := s.accepted.Load(); n != 2 {
		t.Fatalf("%d connections, want 2", n)
	}
}

func TestSweepKeepsTheYoung(t *testing.T) {
	tr := newTransport(t)
	h := tr.host("a:1")
	closed := make(map[int]bool)
	add := func(i int) {
		if !h.push(&conn{key: "a:1", shut: func() { closed[i] = true }}) {
			t.Fatal("not taken")
		}
	}
	add(0)
	add(1)
	h.timer.Stop()
	h.conns[0].since = time.Now().Add(-DefaultIdleTimeout)
	h.sweep()
	if !closed[0] || closed[1] || len(h.conns) != 1 || tr.host("a:1") != h {
		t.Fatalf("closed %v, %d left", closed, len(h.conns))
	}
	h.conns[0].since = time.Now().Add(-DefaultIdleTimeout)
	h.sweep()
	if !closed[1] || tr.host("a:1") == h || h.push(&conn{}) {
		t.Fatalf("closed %v: an empty host stays", closed)
	}
}

// TestCancelledConnectionIsNotKept: a watch that could not be stopped closes the
// connection sooner or later.
func TestCancelledConnectionIsNotKept(t *testing.T) {
	for stopped, want := range map[bool]int{true: 1, false: 0} {
		tr := newTransport(t)
		c := &conn{key: "a:1", br: bufio.NewReader(strings.NewReader("")), shut: func() {}}
		x := &trip{t: tr, c: c, keep: true, stop: func() bool { return stopped }}
		x.release(true)
		if n := idleConns(tr); n != want {
			t.Errorf("stopped is %v: %d connections are kept, want %d", stopped, n, want)
		}
	}
}

func TestPoolIsLastInFirstOut(t *testing.T) {
	tr := newTransport(t)
	tr.MaxIdlePerHost = 2
	idle := func() bool { return true }
	closed := 0
	conns := make([]*conn, 3)
	for i := range conns {
		conns[i] = &conn{key: "a:1", idle: idle, shut: func() { closed++ }}
		tr.put(conns[i])
	}
	if closed != 1 || idleConns(tr) != 2 {
		t.Fatalf("%d closed, %d kept, want 1 and 2", closed, idleConns(tr))
	}
	if c := tr.take("a:1"); c != conns[1] || !c.reused {
		t.Fatal("the last one comes first")
	}
	if tr.take("b:1") != nil {
		t.Fatal("a connection to another host")
	}
	tr.CloseIdleConnections()
	if closed != 2 || tr.take("a:1") != nil {
		t.Fatalf("%d closed after CloseIdleConnections", closed)
	}
}

// TestWithoutPeek uses connections that cannot be peeked at.
func TestWithoutPeek(t *testing.T) {
	tr := newTransport(t)
	dialled := 0
	far := make(chan net.Conn, 3)
	tr.dial = func(context.Context, string) (net.Conn, error) {
		dialled++
		near, peer := net.Pipe()
		if _, ok := near.(syscall.Conn); ok {
			t.Error("a pipe has a descriptor")
		}
		far <- peer
		go func() {
			br := bufio.NewReader(peer)
			for {
				if _, err := http.ReadRequest(br); err != nil {
					return
				}
				_, _ = io.WriteString(peer, okAnswer)
			}
		}()
		return near, nil
	}
	for range 3 {
		mustOK(t, tr, newRequest(t, http.MethodGet, "a:1", ""))
	}
	if dialled != 1 {
		t.Fatalf("%d connections, want 1", dialled)
	}
	(<-far).Close()
	mustOK(t, tr, newRequest(t, http.MethodGet, "a:1", ""))
	if dialled != 2 {
		t.Fatalf("%d connections, want 2", dialled)
	}
	peer := <-far
	go func() { _, _ = io.WriteString(peer, "x") }() // blocks until it is read
	c := tr.take("a:1")
	for deadline := time.Now().Add(patience); c != nil && time.Now().Before(deadline); c = tr.take("a:1") {
		tr.put(c)
	}
	if c != nil {
		t.Fatal("a connection with unsolicited bytes is used")
	}
	peer.Close()
}

func TestDialFailure(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	tr := newTransport(t)
	_, _, err = roundTrip(t, tr, newRequest(t, http.MethodPost, addr, "{}"))
	if e := failure(t, err); e.Op != OpDial || e.Sent || e.Answered || e.Reused || e.Addr != addr || !errors.Is(err, syscall.ECONNREFUSED) {
		t.Fatalf("%+v", e)
	}
}

func TestDialTimeout(t *testing.T) {
	tr := newTransport(t)
	tr.DialTimeout = time.Nanosecond
	_, _, err := roundTrip(t, tr, newRequest(t, http.MethodGet, "127.0.0.1:1", ""))
	if e := failure(t, err); e.Op != OpDial || !e.Timeout() {
		t.Fatalf("%+v", e)
	}
}

// TestDialAddress: the port is 80 unless the URL has one.
func TestDialAddress(t *testing.T) {
	for host, want := range map[string]string{
		"a": "a:80", "a:8000": "a:8000", "[::1]": "[::1]:80", "[::1]:8000": "[::1]:8000", "[fe80::1%25eth0]:1": "[fe80::1%eth0]:1",
	} {
		var got string
		tr := newTransport(t)
		tr.dial = func(_ context.Context, addr string) (net.Conn, error) {
			got = addr
			return nil, errors.New("no network")
		}
		_, err := tr.RoundTrip(newRequest(t, http.MethodGet, host, ""))
		if failure(t, err).Op != OpDial || got != want {
			t.Errorf("%s: dialled %q, want %q (%v)", host, got, want, err)
		}
	}
}
