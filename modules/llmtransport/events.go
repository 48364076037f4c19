package llmtransport

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// maxDirect is the largest piece that is written to the connection itself: what
// a few tokens take. It bounds what a stream keeps for it.
const maxDirect = 4 << 10

// events writes an answer of unknown length to the client piece by piece, an
// event stream as a rule, and flushes what it has written.
//
// Most pieces it writes as chunks (RFC 9112, section 7.1) to an HTTP/1.1
// client's connection itself: the response's writer makes the same bytes of
// them, but by way of two buffers and fmt, which costs more than half as much
// as all else that the gateway does with a token. Once a second a piece goes the
// long way, by which Caddy moves the write deadline. Both may be mixed, since
// nothing is left in the buffers after a flush.
type events struct {
	through http.ResponseWriter
	control *http.ResponseController // of through
	// conn is the client's connection, nil if something in between has to see
	// each write.
	conn  net.Conn
	moved time.Time // when the write deadline was moved
	chunk []byte    // as it goes over the connection
}

// newEvents returns a writer for the answer to r. Its status and its header have
// been written.
func newEvents(w http.ResponseWriter, r *http.Request, status int) *events {
	e := &events{through: w, control: http.NewResponseController(w)}
	idle := coarseDeadlines(r)
	if idle == nil || w != http.ResponseWriter(idle) || idle.Deadline.MinRate != 0 {
		return e
	}
	beneath := idle.ResponseWriter
	if u, ok := beneath.(interface{ Unwrap() http.ResponseWriter }); ok { // what limits the reading
		beneath = u.Unwrap()
	}
	if _, plain := beneath.(http.Hijacker); plain && chunks(r, status, w.Header()) {
		e.conn, _ = r.Context().Value(connKey{}).(net.Conn)
	}
	return e
}

// chunks reports whether net/http sends an answer in the chunked encoding that
// is flushed before its end.
func chunks(r *http.Request, status int, h http.Header) bool {
	return r.ProtoMajor == 1 && r.ProtoMinor >= 1 && r.Method != http.MethodHead &&
		status >= 200 && status != http.StatusNoContent && status != http.StatusNotModified &&
		len(h["Content-Length"]) == 0 && len(h["Transfer-Encoding"]) == 0
}

// Write implements io.Writer.
func (e *events) Write(p []byte) (int, error) {
	if e.conn != nil && len(p) > 0 && len(p) <= maxDirect && time.Since(e.moved) < coarse {
		return len(p), e.direct(p)
	}
	e.moved = time.Now()
	n, err := e.through.Write(p)
	if err == nil {
		err = e.flush()
	}
	return n, err
}

// direct writes p as a chunk.
func (e *events) direct(p []byte) error {
	c := strconv.AppendUint(e.chunk[:0], uint64(len(p)), 16)
	c = append(c, "\r\n"...)
	c = append(c, p...)
	c = append(c, "\r\n"...)
	e.chunk = c
	_, err := e.conn.Write(c)
	return err
}

// flush sends what has been written. After an error a part of it may have gone
// out, so there must be no other write.
func (e *events) flush() error {
	if err := e.control.Flush(); !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return nil
}

// connKey is where a request's context has the connection that it came over.
type connKey struct{}

// keepConns lets the requests of the server that is being provisioned have
// their connections.
func keepConns(ctx caddy.Context) {
	server, ok := ctx.Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
	if !ok {
		return
	}
	server.RegisterConnContext(func(ctx context.Context, c net.Conn) context.Context {
		if ctx.Value(connKey{}) != nil { // for another handler of the server
			return ctx
		}
		return context.WithValue(ctx, connKey{}, c)
	})
}
