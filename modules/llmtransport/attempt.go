package llmtransport

import (
	"context"
	"io"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"

	"github.com/llmgw/llmgw/modules/internal/catalog"
	"github.com/llmgw/llmgw/modules/internal/exchange"
	"github.com/llmgw/llmgw/modules/internal/h1"
	"github.com/llmgw/llmgw/modules/internal/openai"
)

// attempt is one request to one replica, from the round trip to the last byte
// of its answer, whose body it is for whoever copies that to the client.
type attempt struct {
	x     *exchange.Exchange
	watch exchange.Watch
	abort h1.Abort

	src    io.ReadCloser        // the answer, as the client is to get it
	tap    *openai.Tap          // src, if it is a stream of events
	result func() openai.Result // nil for what is neither events nor JSON
	err    error                // the first one of Read
	closed bool
}

// send makes the round trip on the fast path, or with Caddy's own transport
// what that does not take: TLS, HTTP/2, upgrades, bodies of unknown length.
func (a *attempt) send(t *Transport, r *http.Request) (*http.Response, error) {
	at := a.x.Sending()
	if h1.Supports(r) {
		a.x.Watch(&a.watch, at, a.abort.Do)
		res, err := t.fast.Do(r, &a.abort)
		if a.abort.Resent() {
			a.x.Resent()
		}
		return res, err
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	a.x.Watch(&a.watch, at, cancel)
	var settings catalog.TLS
	if e := a.x.Endpoint(); e != nil {
		settings = e.TLS
	}
	inner, err := t.over(settings)
	if err != nil {
		cancel(nil)
		return nil, unfitError{err} // no replica is to blame
	}
	var stage atomic.Int32
	traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GetConn: func(string) { stage.Store(connecting) }, // again, after a kept one was closed
		GotConn: func(httptrace.GotConnInfo) { stage.Store(connected) },
	})
	res, err := inner.RoundTrip(r.WithContext(traced))
	if err != nil {
		cancel(nil)
		switch stage.Load() {
		case unfit:
			err = unfitError{err}
		case connecting: // a handshake that failed is no connection either
			err = unconnected{err}
		}
		return nil, err
	}
	if res.StatusCode != http.StatusSwitchingProtocols { // whose body is a connection
		res.Body = &slowBody{ReadCloser: res.Body, watch: &a.watch, cancel: cancel}
	}
	return res, nil
}

// How far a round trip by Caddy's own transport has come.
const (
	unfit int32 = iota // it is not fit to be sent
	connecting
	connected
)

// unfitError is the error of a request that was not fit to be sent.
type unfitError struct{ error }

// Unwrap returns the cause.
func (e unfitError) Unwrap() error { return e.error }

// unconnected is the error of a round trip that got no connection.
type unconnected struct{ error }

// Unwrap returns the cause.
func (e unconnected) Unwrap() error { return e.error }

// slowBody is the body of an answer that came through Caddy's own transport.
type slowBody struct {
	io.ReadCloser
	watch  *exchange.Watch
	cancel context.CancelCauseFunc
}

// Read implements io.Reader. What a limit ended fails with it.
func (b *slowBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && err != io.EOF { //nolint:errorlint // io.Reader's contract
		if cause := b.watch.Cause(); cause != nil {
			err = cause
		}
	}
	return n, err
}

// Close implements io.Closer.
func (b *slowBody) Close() error {
	defer b.cancel(nil)
	return b.ReadCloser.Close()
}
