package h1

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestConnectionIsReused(t *testing.T) {
	s := serve(t, always(okAnswer))
	tr := newTransport(t)
	for range 10 {
		mustOK(t, tr, newRequest(t, http.MethodPost, s.addr, "{}"))
	}
	if n := s.accepted.Load(); n != 1 {
		t.Fatalf("%d connections, want 1", n)
	}
}

func TestRequestThatClosesIsNotPooled(t *testing.T) {
	s := serve(t, always(okAnswer))
	tr := newTransport(t)
	for _, set := range []func(*http.Request){
		func(r *http.Request) { r.Close = true },
		func(r *http.Request) { r.Header.Set("Connection", "close") },
	} {
		req := newRequest(t, http.MethodGet, s.addr, "")
		set(req)
		mustOK(t, tr, req)
		if n := idleConns(tr); n != 0 {
			t.Fatalf("%d connections are kept", n)
		}
	}
}

// TestClosedConnectionIsFoundBeforeReuse is what vLLM does after 5 s of
// idling. The requests could not be sent twice.
func TestClosedConnectionIsFoundBeforeReuse(t *testing.T) {
	for name, end := range map[string]func(*peer){
		"end":         func(p *peer) { p.Close() },
		"reset":       (*peer).reset,
		"unsolicited": func(p *peer) { p.send("HTTP/1.1 408 Request Timeout\r\nConnection: close\r\n\r\n"); p.gone() },
	} {
		t.Run(name, func(t *testing.T) {
			pooled := make(chan struct{})
			release := sync.OnceFunc(func() { close(pooled) })
			defer release()
			s := serve(t, func(n int, p *peer) {
				p.request()
				p.send(okAnswer)
				if n == 0 {
					<-pooled
					end(p)
					return
				}
				p.gone()
			})
			tr := newTransport(t)
			mustOK(t, tr, newRequest(t, http.MethodPost, s.addr, "{}"))
			c := (*tr.hosts.Load())[s.addr].conns[0]
			release()
			eventually(t, "the client's kernel knows", func() bool { return !c.idle() })
			mustOK(t, tr, newRequest(t, http.MethodPost, s.addr, "{}"))
			if n := s.accepted.Load(); n != 2 {
				t.Fatalf("%d connections, want 2", n)
			}
		})
	}
}

// stale answers the first request of connection 0 and treats the second one with
// end. Later connections answer.
func stale(t *testing.T, end func(*peer)) *server {
	return serve(t, func(n int, p *peer) {
		for i := 0; p.request() != nil; i++ {
			if n == 0 && i == 1 {
				end(p)
				return
			}
			p.send(okAnswer)
		}
	})
}

func TestLostRaceIsSentAgain(t *testing.T) {
	ends := map[string]func(*peer){"end": func(p *peer) { p.Close() }, "reset": (*peer).reset}
	bodies := map[string]string{"small": "{}", "large": strings.Repeat("x", 1<<20)}
	for endName, end := range ends {
		for bodyName, body := range bodies {
			t.Run(endName+" "+bodyName, func(t *testing.T) {
				s := stale(t, end)
				tr := newTransport(t)
				mustOK(t, tr, newRequest(t, http.MethodGet, s.addr, ""))
				req := newRequest(t, http.MethodPost, s.addr, body)
				asked := 0
				req.GetBody = func() (io.ReadCloser, error) {
					asked++
					return io.NopCloser(strings.NewReader(body)), nil
				}
				mustOK(t, tr, req)
				if asked != 1 || s.accepted.Load() != 2 {
					t.Fatalf("GetBody was called %d times, %d connections", asked, s.accepted.Load())
				}
			})
		}
	}
	t.Run("GET", func(t *testing.T) {
		s := stale(t, (*peer).reset)
		tr := newTransport(t)
		mustOK(t, tr, newRequest(t, http.MethodGet, s.addr, ""))
		mustOK(t, tr, newRequest(t, http.MethodGet, s.addr, ""))
	})
}

// TestFailureIsNotSentAgain has the cases in which the request might be worked on
// twice, or cannot be repeated.
func TestFailureIsNotSentAgain(t *testing.T) {
	withBody := func(r *http.Request) {
		r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader("{}")), nil }
	}
	tests := []struct {
		name     string
		warm     bool // the request goes into a kept connection
		end      func(*peer)
		set      func(*http.Request)
		answered bool
	}{
		{name: "no GetBody", warm: true, end: (*peer).reset, set: func(*http.Request) {}},
		{name: "GetBody fails", warm: true, end: (*peer).reset, set: func(r *http.Request) {
			r.GetBody = func() (io.ReadCloser, error) { return nil, errors.New("gone") }
		}},
		{name: "new connection", end: (*peer).reset, set: withBody},
		{name: "one byte of answer", warm: true, end: func(p *peer) { p.send("H"); p.Close() }, set: withBody, answered: true},
		{name: "interim answer", warm: true, end: func(p *peer) { p.send("HTTP/1.1 102 Processing\r\n\r\n"); p.Close() }, set: withBody, answered: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := serve(t, func(_ int, p *peer) {
				if tt.warm {
					p.request()
					p.send(okAnswer)
				}
				p.request()
				tt.end(p)
			})
			tr := newTransport(t)
			if tt.warm {
				mustOK(t, tr, newRequest(t, http.MethodGet, s.addr, ""))
			}
			req := newRequest(t, http.MethodPost, s.addr, "{}")
			tt.set(req)
			_, _, err := roundTrip(t, tr, req)
			if e := failure(t, err); e.Op != OpRead || !e.Sent || e.Reused != tt.warm || e.Answered != tt.answered {
				t.Fatalf("%+v", e)
			}
			if n := s.accepted.Load(); n != 1 {
				t.Fatalf("%d connections, want 1", n)
			}
		})
	}
}

// TestLateFailureIsNotStale: an engine that worked for long and then died did
// not close an idle connection.
func TestLateFailureIsNotStale(t *testing.T) {
	for age, want := range map[time.Duration]bool{0: true, 2 * staleWithin: false} {
		x := &trip{
			c:    &conn{reused: true, since: time.Now().Add(-age), shut: func() {}},
			ctx:  t.Context(),
			stop: func() bool { return true },
		}
		if e := x.fail(true, nil, io.ErrUnexpectedEOF); e.Stale != want {
			t.Errorf("after %v: stale is %v, want %v", age, e.Stale, want)
		}
	}
}

// TestConcurrentUse mixes kept and closed connections, streams and early closes
// under the race detector.
func TestConcurrentUse(t *testing.T) {
	check := leakCheck(t)
	t.Run("load", func(t *testing.T) {
		s := serve(t, func(n int, p *peer) {
			for i := 0; p.request() != nil; i++ {
				if (n+i)%7 == 6 {
					p.send("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok")
					return
				}
				p.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\no\r\n1\r\nk\r\n0\r\n\r\n")
			}
		})
		tr := newTransport(t)
		tr.MaxIdlePerHost = 4
		var wg sync.WaitGroup
		for g := range 16 {
			wg.Go(func() {
				for i := range 50 {
					req := newRequest(t, http.MethodPost, s.addr, "{}")
					req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader("{}")), nil }
					res, err := tr.RoundTrip(req)
					if err != nil {
						t.Error(err)
						return
					}
					if (g+i)%5 == 0 {
						res.Body.Close()
						continue
					}
					if b, err := io.ReadAll(res.Body); string(b) != "ok" || err != nil {
						t.Errorf("body %q, error %v", b, err)
					}
				}
			})
		}
		wg.Wait()
		if n := idleConns(tr); n > 4 {
			t.Errorf("%d connections are kept, want at most 4", n)
		}
	})
	check()
}

// TestSentBeforeItWasRefused: the engine gets all of a request over a kept
// connection, dies of it, and refuses the next connection. Whoever decides on
// another attempt must know that it was sent, and only once.
func TestSentBeforeItWasRefused(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		nc, err := l.Accept()
		if err != nil {
			return
		}
		p := &peer{TCPConn: nc.(*net.TCPConn), br: bufio.NewReader(nc)}
		p.request()
		p.send(okAnswer)
		p.request()
		l.Close()
		p.reset()
	}()
	tr := newTransport(t)
	mustOK(t, tr, newRequest(t, http.MethodPost, l.Addr().String(), "{}"))
	req := newRequest(t, http.MethodPost, l.Addr().String(), "{}")
	req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader("{}")), nil }
	var abort Abort
	_, err = tr.Do(req, &abort)
	if e := failure(t, err); e.Op != OpDial || !e.Sent || abort.Resent() {
		t.Errorf("%+v, resent %v", e, abort.Resent())
	}
}

// TestLateDial: a time limit that is noticed late says nothing of the server.
func TestLateDial(t *testing.T) {
	for after, want := range map[time.Duration]bool{time.Second: false, time.Second + 2*late: true} {
		synctest.Test(t, func(t *testing.T) {
			tr := &Transport{DialTimeout: time.Second, dial: func(context.Context, string) (net.Conn, error) {
				time.Sleep(after)
				return nil, os.ErrDeadlineExceeded
			}}
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://gpu1:8000/", http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			_, err = tr.Do(req, new(Abort))
			e, ok := errors.AsType[*Error](err)
			if !ok || e.Op != OpDial || !e.Timeout() || e.Late != want {
				t.Errorf("after %v: %#v, %v", after, e, err)
			}
		})
	}
}
