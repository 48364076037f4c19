package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"time"
)

// requests sends requests at random times, whatever becomes of earlier ones, up
// to a number at the same time. It returns when all have ended.
func (s *soak) requests(ctx, over context.Context) {
	r := rand.New(rand.NewPCG(s.seed, 1))
	free := make(chan struct{}, s.most)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer kept.CloseIdleConnections()
	next := time.Now()
	for n := 0; ; n++ {
		q := newRequest(r, n)
		next = next.Add(time.Duration(r.ExpFloat64() / s.rate * float64(time.Second)))
		select {
		case <-over.Done():
			return
		case <-time.After(time.Until(next)):
		}
		select {
		case free <- struct{}{}:
		default:
			s.report.capped()
			continue
		}
		wg.Go(func() {
			s.serve(ctx, q)
			<-free
		})
	}
}

// hung is after which time a request has no excuse.
const hung = total + 15*time.Second

var (
	kept = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 20, DisableCompression: true}}
	// narrow has small buffers, so that a slow reader is felt at once.
	narrow = &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DisableCompression: true, DialContext: (&net.Dialer{
		Control: func(_, _ string, c syscall.RawConn) error {
			var err error
			if e := c.Control(func(fd uintptr) { err = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 4096) }); e != nil {
				return e
			}
			return err
		},
	}).DialContext}}
)

var (
	errLeft = errors.New("the client left")
	errHung = errors.New("the client waited in vain")
)

// serve sends a request and reports what became of it.
func (s *soak) serve(ctx context.Context, q *request) {
	began := time.Now()
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	after := hung
	if q.leaves > 0 {
		after = q.leaves
	}
	timer := time.AfterFunc(after, func() {
		if q.leaves > 0 {
			end(errLeft)
		} else {
			end(errHung)
		}
	})
	defer timer.Stop()
	out, id, _ := s.send(ctx, end, q)
	switch c := context.Cause(ctx); {
	case out.wrong != "":
	case errors.Is(c, errHung):
		out = wrong("no end within %v", hung)
	case errors.Is(c, errLeft):
		// What came of the answer was looked at; how it ended is the client's own doing.
		out = verdict{outcome: outcomeLeft}
	}
	s.report.ended(&ending{request: q, verdict: out, id: id, began: began, ended: time.Now()})
}

// send sends the request, reads the answer, and judges it. It returns the
// gateway's id of it, "" if no answer began, and the replica.
func (s *soak) send(ctx context.Context, end context.CancelCauseFunc, q *request) (v verdict, id, replica string) {
	var body io.Reader = strings.NewReader(q.body)
	if q.half {
		body = io.MultiReader(strings.NewReader(q.body[:len(q.body)/2]), leaver{end})
	}
	req, err := http.NewRequestWithContext(ctx, q.method, s.gateway.url(q.expect.path), body)
	if err != nil {
		return wrong("%v", err), "", ""
	}
	req.Header = q.header
	req.Header.Set("X-Request-Id", q.id)
	if q.half {
		req.ContentLength = int64(len(q.body))
	}
	client := fresh
	if q.kept {
		client = kept
	} else if q.slow {
		client = narrow
	}
	res, err := client.Do(req)
	if err != nil {
		return verdict{outcome: outcomeLost, reason: "no answer, " + q.connection() + ": " + plain(err)}, "", ""
	}
	defer res.Body.Close()
	id, replica = res.Header.Get("X-Request-Id"), res.Header.Get("X-Llmgw-Replica")
	if !strings.HasPrefix(id, "req_") {
		return wrong("an answer with the request id %q", id), id, replica
	}
	var from io.Reader = res.Body
	if q.slow {
		from = slowly{res.Body}
	}
	text, err := io.ReadAll(from)
	if err != nil && ctx.Err() != nil && res.StatusCode != http.StatusOK {
		return verdict{outcome: outcomeLeft}, id, replica
	}
	return s.texts.check(res.StatusCode, res.Header.Get("Content-Type"), text, err, &q.expect), id, replica
}

// connection says whether it may be one that the gateway closed meanwhile.
func (q *request) connection() string {
	if q.kept {
		return "kept connection"
	}
	return "new connection"
}

// plain is an error without what differs each time.
func plain(err error) string {
	switch {
	case errors.Is(err, syscall.ECONNRESET):
		return "connection reset"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection refused"
	case errors.Is(err, syscall.EPIPE):
		return "broken pipe"
	case errors.Is(err, io.EOF):
		return "EOF"
	case strings.Contains(err.Error(), "server closed idle connection"):
		return "server closed idle connection"
	}
	return fmt.Sprintf("%T %v", err, err)
}

// leaver ends the request in the middle of its body.
type leaver struct{ end context.CancelCauseFunc }

func (l leaver) Read([]byte) (int, error) {
	l.end(errLeft)
	return 0, errLeft
}

// slowly reads a little at a time: a whole answer in about a second, and a
// stream no faster than it comes.
type slowly struct{ r io.Reader }

func (s slowly) Read(p []byte) (int, error) {
	time.Sleep(10 * time.Millisecond)
	return s.r.Read(p[:min(len(p), 4096)])
}
