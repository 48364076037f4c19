// Package llmtransport makes the round trip to a replica: it sends the
// exchange's bytes, tells what a failure means for the replica and for a
// retry, and watches the answer go by.
package llmtransport

import (
	"net/http"
	"sync"
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

	mu             sync.RWMutex // guards byTLS
	ctx            caddy.Context
	connectTimeout time.Duration
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
	t.ctx, t.connectTimeout = ctx, app.ConnectTimeout()
	t.byTLS = make(map[catalog.TLS]*reverseproxy.HTTPTransport)
	for _, settings := range append(app.TLSSettings(), catalog.TLS{}) {
		if _, err := t.over(settings); err != nil {
			return err
		}
	}
	return nil
}

// over returns the transport for these TLS settings. Those that the config lacks are a
// later one's, to whose replicas a request may go that has waited.
func (t *Transport) over(settings catalog.TLS) (*reverseproxy.HTTPTransport, error) {
	t.mu.RLock()
	inner := t.byTLS[settings]
	t.mu.RUnlock()
	if inner != nil {
		return inner, nil
	}
	off := false
	inner = &reverseproxy.HTTPTransport{
		DialTimeout: caddy.Duration(t.connectTimeout),
		Compression: &off,
		KeepAlive: &reverseproxy.KeepAlive{
			IdleConnTimeout:     caddy.Duration(idleConnTimeout),
			MaxIdleConnsPerHost: maxIdlePerHost,
		},
	}
	if err := inner.Provision(t.ctx); err != nil {
		return nil, err
	}
	config, err := llmgw.TLSConfig(settings)
	if err != nil {
		return nil, err
	}
	inner.Transport.TLSClientConfig = config
	inner.Transport.TLSHandshakeTimeout = t.connectTimeout
	t.mu.Lock()
	defer t.mu.Unlock()
	if other := t.byTLS[settings]; other != nil { // made meanwhile
		return other, nil
	}
	t.byTLS[settings] = inner
	return inner, nil
}

// Cleanup closes idle connections.
func (t *Transport) Cleanup() error {
	if t.fast != nil {
		t.fast.CloseIdleConnections()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
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
		inner, err := t.over(catalog.TLS{})
		if err != nil {
			return nil, err
		}
		return inner.RoundTrip(r)
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
	if err := x.LoadAdapter(r.Context()); err != nil {
		return notLoaded(r.Context(), x, err)
	}
	a := &attempt{x: x}
	if res, err = a.send(t, r); err != nil {
		a.watch.Stop()
		return failed(r.Context(), x, a.watch.Cause(), err)
	}
	return a.answered(res)
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
