package h1

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// sized returns a POST with the body r and a given Content-Length.
func sized(t *testing.T, addr string, r io.Reader, length int64) *http.Request {
	t.Helper()
	req := newRequest(t, http.MethodPost, addr, "")
	req.Body, req.ContentLength = io.NopCloser(r), length
	return req
}

// TestBodySizes sends bodies around the limits at which the way of sending
// changes, with and without WriteTo, and reads them back.
func TestBodySizes(t *testing.T) {
	s := serve(t, func(_ int, p *peer) {
		for {
			req, err := http.ReadRequest(p.br)
			if err != nil {
				return
			}
			b, err := io.ReadAll(req.Body)
			if err != nil {
				return
			}
			p.send("HTTP/1.1 200 OK\r\nContent-Length: " + strconv.Itoa(len(b)) + "\r\n\r\n")
			_, _ = p.Write(b)
		}
	})
	tr := newTransport(t)
	for _, size := range []int{1, smallBody - 1, smallBody, smallBody + 1, 3 << 20} {
		want := bytes.Repeat([]byte("0123456789abcdef"), size/16+1)[:size]
		for name, r := range map[string]io.Reader{
			"WriterTo": bytes.NewReader(want),
			"Reader":   io.LimitReader(bytes.NewReader(want), int64(size)+1),
		} {
			res, body, err := roundTrip(t, tr, sized(t, s.addr, r, int64(size)))
			if err != nil || res.StatusCode != http.StatusOK || body != string(want) {
				t.Fatalf("%d bytes, %s: %d bytes came back, error %v", size, name, len(body), err)
			}
		}
	}
}

// TestConnectionIsReusedAfterLargeBody: an answer may overtake the news that the
// body is through, which costs the connection, but not every time.
func TestConnectionIsReusedAfterLargeBody(t *testing.T) {
	const rounds = 50
	s := serve(t, always(okAnswer))
	tr := newTransport(t)
	for range rounds {
		mustOK(t, tr, sized(t, s.addr, bytes.NewReader(make([]byte, 4*smallBody)), 4*smallBody))
	}
	if n := s.accepted.Load(); n >= rounds {
		t.Fatalf("%d connections for %d requests", n, rounds)
	}
}

// TestEarlyAnswer: the server refuses the request at its head and reads no more.
// The body has no end that a quick server could see.
func TestEarlyAnswer(t *testing.T) {
	refusal := "HTTP/1.1 413 Content Too Large\r\nContent-Length: 2\r\n\r\nno"
	for name, end := range map[string]func(*peer, chan struct{}){
		"stays open":      func(_ *peer, seen chan struct{}) { <-seen },
		"closes at once":  func(*peer, chan struct{}) {},
		"half closes":     func(p *peer, seen chan struct{}) { _ = p.CloseWrite(); <-seen },
		"reads the rest":  func(p *peer, _ chan struct{}) { p.gone() },
		"closes for good": func(p *peer, _ chan struct{}) { _ = p.CloseWrite(); p.gone() },
	} {
		t.Run(name, func(t *testing.T) {
			seen := make(chan struct{})
			s := serve(t, func(_ int, p *peer) {
				if _, err := http.ReadRequest(p.br); err != nil {
					return
				}
				p.send(refusal)
				end(p, seen)
			})
			defer close(seen)
			check := leakCheck(t)
			tr := newTransport(t)
			res, body, err := roundTrip(t, tr, sized(t, s.addr, &endless{}, 1<<50))
			if err != nil || res.StatusCode != http.StatusRequestEntityTooLarge || body != "no" {
				t.Fatalf("answer %+v, body %q, error %v", res, body, err)
			}
			if n := idleConns(tr); n != 0 {
				t.Fatalf("%d connections are kept", n)
			}
			if name != "stays open" && name != "half closes" {
				check()
			}
		})
	}
}

// TestRefusedBodyIsStopped: after a refusal the server may wait for the rest,
// and must not get it while the caller has not yet read the answer.
func TestRefusedBodyIsStopped(t *testing.T) {
	src := &endless{}
	s := serve(t, func(_ int, p *peer) {
		if _, err := http.ReadRequest(p.br); err == nil {
			p.send("HTTP/1.1 400 Bad Request\r\nContent-Length: 2\r\n\r\nno")
			p.gone()
		}
	})
	tr := newTransport(t)
	closed := make(chan struct{})
	req := sized(t, s.addr, nil, 1<<50)
	req.Body = &closeNotifier{Reader: src, closed: closed}
	res, err := tr.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	recv(t, "the body is closed", closed)
	if b, err := io.ReadAll(res.Body); string(b) != "no" || err != nil {
		t.Fatalf("body %q, error %v", b, err)
	}
}

// TestAnswerBesideUpload: a server may answer with success before it has read
// everything, and the answer may depend on the rest.
func TestAnswerBesideUpload(t *testing.T) {
	const size = 8 << 20
	s := serve(t, func(_ int, p *peer) {
		req, err := http.ReadRequest(p.br)
		if err != nil {
			return
		}
		p.send("HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n")
		n, _ := io.Copy(io.Discard, req.Body)
		p.send(strconv.FormatInt(n, 10))
	})
	tr := newTransport(t)
	_, body, err := roundTrip(t, tr, sized(t, s.addr, bytes.NewReader(make([]byte, size)), size))
	if err != nil || body != strconv.Itoa(size) {
		t.Fatalf("body %q, error %v", body, err)
	}
}

// TestUnfinishedUploadIsNotReused: the next request would be read as a part of
// this one's body.
func TestUnfinishedUploadIsNotReused(t *testing.T) {
	s := serve(t, func(_ int, p *peer) {
		if _, err := http.ReadRequest(p.br); err == nil {
			p.send(okAnswer)
			p.gone()
		}
	})
	check := leakCheck(t)
	tr := newTransport(t)
	mustOK(t, tr, sized(t, s.addr, &endless{}, 1<<50))
	if n := idleConns(tr); n != 0 {
		t.Fatalf("%d connections are kept", n)
	}
	check()
}

// TestBodyOfAnotherLength: a request must never be framed otherwise than its
// Content-Length says.
func TestBodyOfAnotherLength(t *testing.T) {
	broken := errors.New("broken")
	for _, length := range []int{100, 4 * smallBody} {
		data := strings.Repeat("x", length)
		for name, tt := range map[string]struct {
			r    io.Reader
			want error
		}{
			"short":  {strings.NewReader(data[1:]), errShortBody},
			"long":   {strings.NewReader(data + "GET / HTTP/1.1\r\n\r\n"), errLongBody},
			"broken": {io.MultiReader(strings.NewReader(data[1:]), &failing{broken}), broken},
		} {
			t.Run(strconv.Itoa(length)+" "+name, func(t *testing.T) {
				got := make(chan int64, 1)
				s := serve(t, func(_ int, p *peer) {
					req, err := http.ReadRequest(p.br)
					if err != nil {
						return
					}
					n, _ := io.Copy(io.Discard, req.Body)
					rest, _ := io.Copy(io.Discard, p.br)
					got <- n + rest
				})
				check := leakCheck(t)
				tr := newTransport(t)
				_, _, err := roundTrip(t, tr, sized(t, s.addr, tt.r, int64(length)))
				e := failure(t, err)
				if e.Op != OpBody || !errors.Is(err, tt.want) || e.Answered || e.Sent != (length > smallBody) {
					t.Fatalf("%+v", e)
				}
				if length > smallBody {
					if n := recv(t, "the server sees the end", got); n > int64(length) {
						t.Fatalf("%d bytes came, %d were announced", n, length)
					}
				}
				check()
			})
		}
	}
}

// TestAnswerAfterFailedWrite: a server may answer, close, and so let the write
// fail. Its answer counts, if there is one.
func TestAnswerAfterFailedWrite(t *testing.T) {
	for _, size := range []int{10, 8 << 20} {
		for _, answer := range []string{"HTTP/1.1 400 Bad Request\r\nContent-Length: 2\r\n\r\nno", ""} {
			s := serve(t, func(_ int, p *peer) {
				_, _ = http.ReadRequest(p.br)
				p.send(answer)
				_ = p.CloseWrite()
				p.gone()
			})
			tr := newTransport(t)
			tr.dial = func(ctx context.Context, addr string) (net.Conn, error) {
				nc, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
				return &brokenPipe{nc}, err
			}
			res, body, err := roundTrip(t, tr, sized(t, s.addr, bytes.NewReader(make([]byte, size)), int64(size)))
			if answer == "" {
				if e := failure(t, err); e.Op != OpWrite || !errors.Is(err, syscall.EPIPE) || !e.Sent || e.Answered {
					t.Fatalf("%+v", e)
				}
			} else if err != nil || res.StatusCode != http.StatusBadRequest || body != "no" {
				t.Fatalf("answer %+v, body %q, error %v", res, body, err)
			}
			if n := idleConns(tr); n != 0 {
				t.Fatalf("%d connections are kept", n)
			}
		}
	}
}

// brokenPipe fails after each write.
type brokenPipe struct{ net.Conn }

func (b *brokenPipe) Write(p []byte) (int, error) {
	n, _ := b.Conn.Write(p)
	return n, syscall.EPIPE
}

type endless struct{}

func (*endless) Read(p []byte) (int, error) { return len(p), nil }

type failing struct{ err error }

func (f *failing) Read([]byte) (int, error) { return 0, f.err }

type closeNotifier struct {
	io.Reader
	closed chan struct{}
}

func (c *closeNotifier) Close() error {
	close(c.closed)
	return nil
}
