// Package llmtransport makes the round trip to a replica: it sends the
// exchange's bytes, tells what a failure means for the replica and for a
// retry, and watches the answer go by.
package llmtransport

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"

	"github.com/llmgw/llmgw/modules/internal/catalog"
	"github.com/llmgw/llmgw/modules/internal/exchange"
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
	app *llmgw.App
	// byTLS holds one transport per set of TLS settings in the config: the
	// plain one under the zero key.
	byTLS map[catalog.TLS]http.RoundTripper
}

// CaddyModule returns the Caddy module information.
func (*Transport) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.reverse_proxy.transport.llm",
		New: func() caddy.Module { return new(Transport) },
	}
}

const (
	connectTimeout = 2 * time.Second
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
	t.app = app
	t.byTLS = make(map[catalog.TLS]http.RoundTripper)
	for _, settings := range append(app.TLSSettings(), catalog.TLS{}) {
		if t.byTLS[settings] != nil {
			continue
		}
		off := false
		inner := &reverseproxy.HTTPTransport{
			DialTimeout: caddy.Duration(connectTimeout),
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
		t.byTLS[settings] = inner
	}
	return nil
}

// Cleanup closes idle connections.
func (t *Transport) Cleanup() error {
	for _, rt := range t.byTLS {
		if h, ok := rt.(*reverseproxy.HTTPTransport); ok {
			_ = h.Cleanup()
		}
	}
	return nil
}

// RoundTrip implements http.RoundTripper. An error that Caddy may retry on
// another replica is a reverseproxy.DialError.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	x := llmgw.Exchange(r.Context())
	if x == nil {
		// A static upstream, picked by lb_policy: there is nothing to watch for.
		return t.byTLS[catalog.TLS{}].RoundTrip(r)
	}
	rt := t.byTLS[catalog.TLS{}]
	if e := x.Endpoint(); e != nil {
		if own := t.byTLS[e.TLS]; own != nil {
			rt = own
		}
	}
	// Header operations of the route, if there are any, make Caddy copy the
	// client's headers anew for each attempt, so this comes last.
	x.Authorize(r.Header)
	now := x.Runtime().Now
	sent := now()
	x.Record(func(res *exchange.Result) { res.Sent = sent })
	res, err := rt.RoundTrip(r)
	if err != nil {
		return nil, failed(r.Context(), x, err)
	}
	return answered(x, res), nil
}

// failed notes what a round trip without an answer means.
func failed(ctx context.Context, x *exchange.Exchange, err error) error {
	if ctx.Err() != nil {
		x.Finish(exchange.OutcomeCancelled)
		return context.Canceled
	}
	e := x.Endpoint()
	if dial, ok := errors.AsType[reverseproxy.DialError](err); ok && e != nil {
		e.Replica.Health.ConnectFailed("connect: " + dial.Error())
		x.Fail(exchange.Fail(exchange.ErrReplica, "the replica could not be reached"))
		return err
	}
	x.Fail(exchange.Fail(exchange.ErrReplica, "the replica closed the connection before it answered"))
	x.Finish(exchange.OutcomeEngineError)
	return err
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
