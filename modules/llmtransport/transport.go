// Package llmtransport makes the round trip to a replica: it sends the
// exchange's bytes, tells what a failure means for the replica and for a
// retry, and watches the answer go by.
package llmtransport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"

	"github.com/llmgw/llmgw/modules/internal/catalog"
	"github.com/llmgw/llmgw/modules/internal/exchange"
	"github.com/llmgw/llmgw/modules/internal/h1"
	"github.com/llmgw/llmgw/modules/llmgw"
)

func init() {
	caddy.RegisterModule(new(Transport))
}

// Transport speaks HTTP with replicas. It understands their streams: it reads
// usage, the first token and errors in them without changing a byte, withholds
// the usage chunk that the client did not ask for, and turns the errors of
// every engine into OpenAI's shape.
type Transport struct {
	// fast speaks plain HTTP/1.1; what it does not take goes to one of byTLS.
	fast *h1.Transport
	// byTLS holds one of Caddy's transports per set of TLS settings in the
	// config: the one without any under the zero key.
	byTLS map[catalog.TLS]*reverseproxy.HTTPTransport
}

// CaddyModule returns the Caddy module information.
func (*Transport) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.reverse_proxy.transport.llm",
		New: func() caddy.Module { return new(Transport) },
	}
}

const (
	// idleConnTimeout is below the 5 s after which vLLM and llama.cpp close an
	// idle connection: a request sent into one that they are about to close is
	// lost.
	idleConnTimeout = 4 * time.Second
	maxIdlePerHost  = 512
)

// Provision makes the transports that the app's endpoints need.
func (t *Transport) Provision(ctx caddy.Context) error {
	app, err := llmgw.From(ctx)
	if err != nil {
		return err
	}
	t.fast = &h1.Transport{DialTimeout: app.ConnectTimeout(), IdleTimeout: idleConnTimeout, MaxIdlePerHost: maxIdlePerHost}
	t.byTLS = make(map[catalog.TLS]*reverseproxy.HTTPTransport)
	for _, settings := range append(app.TLSSettings(), catalog.TLS{}) {
		if t.byTLS[settings] != nil {
			continue
		}
		off := false
		inner := &reverseproxy.HTTPTransport{
			DialTimeout: caddy.Duration(app.ConnectTimeout()),
			Compression: &off,
			KeepAlive: &reverseproxy.KeepAlive{
				IdleConnTimeout:     caddy.Duration(idleConnTimeout),
				MaxIdleConnsPerHost: maxIdlePerHost,
			},
		}
		if err := inner.Provision(ctx); err != nil {
			return err
		}
		config, err := llmgw.TLSConfig(settings)
		if err != nil {
			return err
		}
		inner.Transport.TLSClientConfig = config
		inner.Transport.TLSHandshakeTimeout = app.ConnectTimeout()
		t.byTLS[settings] = inner
	}
	return nil
}

// Cleanup closes idle connections.
func (t *Transport) Cleanup() error {
	if t.fast != nil {
		t.fast.CloseIdleConnections()
	}
	for _, h := range t.byTLS {
		if err := h.Cleanup(); err != nil {
			return err
		}
	}
	return nil
}

// RoundTrip implements http.RoundTripper for Caddy's reverse proxy. An error
// that may be retried on another replica is a reverseproxy.DialError.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	x := llmgw.Exchange(r.Context())
	if x == nil {
		// A static upstream, picked by lb_policy: there is nothing to watch for.
		return t.byTLS[catalog.TLS{}].RoundTrip(r)
	}
	// Header operations of a hand-written route, if there are any, make Caddy copy
	// the client's headers anew for each attempt, so this comes last.
	x.Authorize(r.Header)
	res, retry, err := t.attempt(x, r)
	if retry {
		err = reverseproxy.NewDialError(err)
	}
	return res, err
}

// attempt sends a request that [exchange.Exchange.Direct] has prepared to the
// exchange's replica. Without an answer it returns whether to pick another one.
func (t *Transport) attempt(x *exchange.Exchange, r *http.Request) (res *http.Response, retry bool, err error) {
	a := &attempt{x: x}
	if res, err = a.send(t, r); err != nil {
		a.watch.Stop()
		return failed(r.Context(), x, a.watch.Cause(), err)
	}
	return a.answered(res)
}

// failed notes what a round trip without an answer means; limit is the time
// limit that ended it, or nil.
func failed(ctx context.Context, x *exchange.Exchange, limit, err error) (_ *http.Response, retry bool, _ error) {
	if ctx.Err() != nil {
		x.Finish(exchange.OutcomeCancelled)
		return nil, false, context.Canceled
	}
	switch {
	case limit != nil:
		retry = x.GaveUp(limit)
	case isShortage(err):
		x.Fail(exchange.FailWith(exchange.ErrBusy, err, "the gateway has no connection to spare: try again in a moment"))
	case isOwn(err):
		x.Fail(fmt.Errorf("%w: %w", exchange.ErrInternal, err))
	case isDial(err):
		retry = x.ConnectFailed(err, !isLate(err))
	case isRefusal(err):
		// It had been sent before: the replica died with it.
		x.Unreachable(err)
		retry = x.BrokeOff(err, true)
	case isStale(err):
		retry = x.Stale(err)
	default:
		retry = x.BrokeOff(err, isBreak(err))
	}
	// Caddy must not take it for a DialError, whatever it was.
	return nil, retry, fmt.Errorf("%w: %v", exchange.ErrReplica, err) //nolint:errorlint // its kind is what is hidden
}

// isShortage reports whether this machine, not the replica, is the reason.
func isShortage(err error) bool {
	for _, errno := range []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.EADDRNOTAVAIL, syscall.ENOBUFS, syscall.ENOMEM} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}

// isOwn reports whether the request was not fit to be sent, which no replica is
// to blame for.
func isOwn(err error) bool {
	if _, ok := errors.AsType[unfitError](err); ok {
		return true
	}
	fast, ok := errors.AsType[*h1.Error](err)
	return ok && (fast.Op == h1.OpRequest || fast.Op == h1.OpBody)
}

// isBreak reports whether the connection ended without a byte of an answer.
func isBreak(err error) bool {
	if fast, ok := errors.AsType[*h1.Error](err); ok {
		return fast.Sent && !fast.Answered
	}
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) ||
		strings.Contains(err.Error(), "server closed idle connection") // net/http has no name for it
}

// isStale reports whether the request met a kept connection that was closed.
func isStale(err error) bool {
	fast, ok := errors.AsType[*h1.Error](err)
	return ok && fast.Stale
}

// isRefusal reports whether a request that was to be sent anew found no
// connection.
func isRefusal(err error) bool {
	fast, ok := errors.AsType[*h1.Error](err)
	return ok && fast.Op == h1.OpDial && fast.Sent
}

// isLate reports whether it was this process that was too slow to connect.
func isLate(err error) bool {
	fast, ok := errors.AsType[*h1.Error](err)
	return ok && fast.Late
}

// isDial reports whether no connection was made, so that nothing was sent.
func isDial(err error) bool {
	if fast, ok := errors.AsType[*h1.Error](err); ok {
		return fast.Op == h1.OpDial && !fast.Sent
	}
	_, ok := errors.AsType[unconnected](err)
	return ok
}

// UnmarshalCaddyfile takes no options:
//
//	transport llm
func (t *Transport) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // llm
	if d.NextArg() {
		return d.ArgErr()
	}
	if d.NextBlock(0) {
		return d.Errf("unknown option %q of transport llm", d.Val())
	}
	return nil
}

// Interface guards.
var (
	_ caddy.Provisioner     = (*Transport)(nil)
	_ caddy.CleanerUpper    = (*Transport)(nil)
	_ http.RoundTripper     = (*Transport)(nil)
	_ caddyfile.Unmarshaler = (*Transport)(nil)
)
