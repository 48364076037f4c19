// Package h1 makes plain HTTP/1.1 round trips on the hot path for less than
// [http.Transport] does: the caller's goroutine writes the request and reads the
// answer itself on a pooled connection, so a round trip starts no goroutine
// unless its body is large. Framing of answers is left to [http.ReadResponse].
package h1

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// What a zero field of a [Transport] means.
const (
	DefaultDialTimeout       = 2 * time.Second
	DefaultIdleTimeout       = 4 * time.Second
	DefaultMaxIdlePerHost    = 512
	DefaultMaxResponseHeader = 64 << 10
	DefaultReadBuffer        = 4 << 10
)

// smallBody is the size in bytes up to which a body is copied behind the head
// and both are sent by one write.
const smallBody = 32 << 10

// staleWithin is how soon a request fails that met a connection closed by its
// peer: within a round trip. What fails later was most likely being worked on.
const staleWithin = time.Second

// Transport is an [http.RoundTripper] for plain HTTP/1.1 requests whose body has
// a known length. Its zero value is ready to use. It is safe for concurrent use
// and must not be copied; its fields must not change after the first request. A
// zero or negative field means its default.
type Transport struct {
	// DialTimeout bounds making a connection, name resolution included.
	DialTimeout time.Duration
	// IdleTimeout is how long an unused connection is kept. It should be below
	// the server's own: uvicorn closes after 5 s, and a request sent into a
	// connection that is being closed has to be sent again.
	IdleTimeout time.Duration
	// MaxIdlePerHost is how many unused connections are kept per host:port.
	MaxIdlePerHost int
	// MaxResponseHeader bounds, in bytes, the head of an answer together with
	// all interim (1xx) answers before it.
	MaxResponseHeader int64
	// ReadBuffer is the size in bytes of each connection's read buffer. A read
	// of a body into a buffer at least that large goes past it. Trailers must
	// fit into it.
	ReadBuffer int

	mu    sync.Mutex                       // serializes changes of hosts
	hosts atomic.Pointer[map[string]*host] // copied on change, so that readers take no lock

	// dial stands in for the network in tests.
	dial func(ctx context.Context, addr string) (net.Conn, error)
}

// RoundTrip sends req and returns the head of the answer, as
// [http.RoundTripper] asks. The answer's body must be read to its end or closed.
//
// It fails with [ErrUnsupported] before it has done anything, so that another
// transport can take the request with its body untouched: for another scheme
// than http, CONNECT, upgrades, request trailers, and bodies of unknown length.
// Every other failure before the head of the answer is an [*Error].
//
// A request whose pooled connection turns out to be closed is sent once more,
// on a new connection, if it failed within a second and without one byte of
// answer, and if req.GetBody is there to give the body again (or there is no
// body and the method is GET, HEAD or OPTIONS). A caller forbids that by leaving
// GetBody nil.
//
// It adds no header fields but Host, Content-Length and, for req.Close,
// Connection; it sends the body at once whatever Expect says, so it leaves that
// field out together with the hop-by-hop ones. Answers are not decompressed. Of
// an [httptrace.ClientTrace] only Got1xxResponse is called.
//
// An answer may arrive while a large body is still being sent: it is returned at
// once. The rest of the body is then sent only if its status is below 300.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	if !Supports(req) {
		return nil, ErrUnsupported
	}
	return t.Do(req, nil)
}

// Do is RoundTrip for a request that [Supports] has found fit, with an Abort,
// which may be nil.
func (t *Transport) Do(req *http.Request, abort *Abort) (*http.Response, error) {
	res, err := t.try(req, req.Body, false, abort)
	if err == nil || !err.Stale || !repeatable(req) {
		return result(res, err)
	}
	var body io.ReadCloser
	if req.GetBody != nil {
		again, bodyErr := req.GetBody()
		if bodyErr != nil {
			return nil, err
		}
		body = again
	}
	res, second := t.try(req, body, true, abort)
	if second == nil || second.Sent {
		abort.again()
	}
	if second != nil {
		second.Sent = true // by the first try, if not by this one
	}
	return result(res, second)
}

// result keeps a nil *Error from becoming an error that is not nil.
func result(res *http.Response, err *Error) (*http.Response, error) {
	if err != nil {
		return nil, err
	}
	return res, nil
}

// CloseIdleConnections closes the connections that are not in use. Those in use
// return to the pool and end after IdleTimeout.
func (t *Transport) CloseIdleConnections() {
	hosts := t.hosts.Load()
	if hosts == nil {
		return
	}
	for _, h := range *hosts {
		for _, c := range h.takeAll() {
			c.shut()
		}
	}
}

// try makes one attempt. It closes body, whatever happens.
func (t *Transport) try(req *http.Request, body io.ReadCloser, fresh bool, abort *Abort) (*http.Response, *Error) {
	if body == nil {
		body = http.NoBody
	}
	ctx, key, out := req.Context(), req.URL.Host, buffers.Get().(*[]byte)
	fail := func(op string, err error) (*http.Response, *Error) {
		freeBuffer(out)
		body.Close()
		if ended := ended(ctx, abort); ended != nil {
			err = ended
		}
		_, late := errors.AsType[*lateError](err)
		return nil, &Error{Op: op, Addr: key, Late: late, err: err}
	}
	if err := ended(ctx, abort); err != nil {
		return fail(OpDial, err)
	}
	var err error
	if *out, err = appendHead(*out, req); err != nil {
		return fail(OpRequest, err)
	}
	large := req.ContentLength > smallBody
	if !large && req.ContentLength > 0 {
		if *out, err = appendBody(*out, body, req.ContentLength); err != nil {
			return fail(OpBody, err)
		}
	}
	var c *conn
	if !fresh {
		c = t.take(key)
	}
	if c == nil {
		dialing, cancel := context.WithCancel(ctx)
		abort.bind(cancel)
		c, err = t.connect(dialing, req.URL)
		abort.release()
		cancel()
		if err != nil {
			return fail(OpDial, err)
		}
	}
	x := &trip{t: t, c: c, ctx: ctx, abort: abort, keep: !asksToClose(req)}
	x.stop = context.AfterFunc(ctx, c.shut)
	abort.bind(c.shut)
	n, writeErr := c.nc.Write(*out)
	freeBuffer(out) // the wait for the answer may be long
	if writeErr == nil && large {
		x.upload = startUpload(c.nc, body, req.ContentLength)
	} else {
		body.Close()
	}
	// Even after a failed write: the server may have answered before it closed.
	res, err := t.readHead(c, req)
	if err != nil {
		return nil, x.fail(n > 0, writeErr, err)
	}
	res.Request = nil // whose body it would keep for as long as the answer lasts
	x.keep = x.keep && writeErr == nil
	x.answer(res)
	return res, nil
}

// ended returns why the request was ended from outside, or nil.
func ended(ctx context.Context, abort *Abort) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return abort.Err()
}

// readHead reads up to the head of the final answer.
func (t *Transport) readHead(c *conn, req *http.Request) (*http.Response, error) {
	c.answered, c.left = false, or(t.MaxResponseHeader, DefaultMaxResponseHeader)
	for {
		res, err := http.ReadResponse(c.br, req)
		if err != nil {
			return nil, c.headError(err)
		}
		switch {
		case res.StatusCode >= 200:
			c.left = unlimited
			return res, nil
		case res.StatusCode < 100:
			return nil, fmt.Errorf("malformed status code %d", res.StatusCode)
		case res.StatusCode == http.StatusSwitchingProtocols:
			return nil, errors.New("the server switched protocols, which nobody asked it for")
		}
		// Their number is bounded by the limit on the head.
		if trace := httptrace.ContextClientTrace(req.Context()); trace != nil && trace.Got1xxResponse != nil {
			if err := trace.Got1xxResponse(res.StatusCode, textproto.MIMEHeader(res.Header)); err != nil {
				return nil, err
			}
		}
	}
}

// headError says why the head of an answer could not be read. The bytes of the
// answer, which http.ReadResponse quotes, may be a model's text and any number,
// so they are left out.
func (c *conn) headError(err error) error {
	switch {
	case errors.Is(c.readErr, io.EOF):
		return io.ErrUnexpectedEOF
	case c.readErr != nil:
		return c.readErr
	}
	what, _, _ := strings.Cut(err.Error(), `"`)
	return errors.New(strings.TrimRight(what, " :;["))
}

// or returns v, or its default if v is not positive.
func or[T int | int64 | time.Duration](v, fallback T) T {
	if v > 0 {
		return v
	}
	return fallback
}
