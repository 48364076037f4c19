// Package llmupstreams answers "where?": it is the source of dynamic upstreams
// that gives Caddy's reverse proxy the one replica that the scheduler picked,
// and another one on each retry.
package llmupstreams

import (
	"net/http"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"

	"github.com/llmgw/llmgw/modules/llmgw"
)

func init() {
	caddy.RegisterModule(new(Source))
}

// Source picks a replica for the request's model: by queue, KV cache and the
// gateway's own in-flight count, as the routing profile has it.
//
// It works best behind `llm_api` and with `transport llm`. Alone it reads the
// model from the body by itself; the replica then counts the request until its
// response ends.
type Source struct {
	app *llmgw.App
}

// CaddyModule returns the Caddy module information.
func (*Source) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.reverse_proxy.upstreams.llm",
		New: func() caddy.Module { return new(Source) },
	}
}

// Provision sets the source up.
func (s *Source) Provision(ctx caddy.Context) (err error) {
	s.app, err = llmgw.From(ctx)
	return err
}

// GetUpstreams implements reverseproxy.UpstreamSource. It never returns an
// error, which Caddy would log for every request and answer with its static
// upstreams: without a replica it returns none, and the exchange keeps why.
func (s *Source) GetUpstreams(r *http.Request) ([]*reverseproxy.Upstream, error) {
	x := s.app.Join(r)
	if x.Read(r) != nil || x.Resolve() != nil {
		return nil, nil //nolint:nilerr // the exchange keeps the error
	}
	e := x.PickOrWait(r.Context())
	if e == nil || !x.Direct(r) {
		return nil, nil
	}
	// Caddy writes into what it gets, so each attempt needs a value of its own.
	return []*reverseproxy.Upstream{{Dial: e.Replica.URL.Host}}, nil
}

// UnmarshalCaddyfile takes no options:
//
//	dynamic llm
func (s *Source) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // llm
	if d.NextArg() {
		return d.ArgErr()
	}
	if d.NextBlock(0) {
		return d.Errf("unknown option %q of dynamic llm", d.Val())
	}
	return nil
}

// Interface guards.
var (
	_ caddy.Provisioner           = (*Source)(nil)
	_ reverseproxy.UpstreamSource = (*Source)(nil)
	_ caddyfile.Unmarshaler       = (*Source)(nil)
)
