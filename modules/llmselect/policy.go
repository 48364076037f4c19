// Package llmselect is the scheduler as a selection policy over the static
// upstreams of a plain `reverse_proxy`.
package llmselect

import (
	"net/http"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"

	"github.com/llmgw/llmgw/modules/llmgw"
)

func init() {
	caddy.RegisterModule(new(Policy))
}

// Policy selects among static upstreams by their engines' queue and KV cache
// and by the requests that Caddy has on each. The upstreams are scraped like
// endpoints of the app. Nothing of a request's body is read, so every upstream
// must serve what is asked.
//
//	lb_policy llm [<routing profile>]
type Policy struct {
	// The routing profile. Default: the app's default_profile
	Profile string `json:"profile,omitempty"`

	app *llmgw.App
}

// CaddyModule returns the Caddy module information.
func (*Policy) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.reverse_proxy.selection_policies.llm",
		New: func() caddy.Module { return new(Policy) },
	}
}

// Provision sets the policy up.
func (p *Policy) Provision(ctx caddy.Context) (err error) {
	p.app, err = llmgw.From(ctx)
	if err == nil && p.Profile != "" && !p.app.HasProfile(p.Profile) {
		err = p.app.NoProfile(p.Profile)
	}
	return err
}

// Select implements reverseproxy.Selector.
func (p *Policy) Select(upstreams reverseproxy.UpstreamPool, r *http.Request, _ http.ResponseWriter) *reverseproxy.Upstream {
	available := make([]llmgw.Static, 0, len(upstreams))
	for i, u := range upstreams {
		if u.Available() {
			available = append(available, llmgw.Static{Address: u.Dial, Inflight: u.NumRequests(), Index: i})
		}
	}
	i := p.app.SelectStatic(p.Profile, r.Header, available)
	if i < 0 {
		return nil
	}
	return upstreams[i]
}

// UnmarshalCaddyfile reads the profile.
func (p *Policy) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // llm
	if d.NextArg() {
		p.Profile = d.Val()
	}
	if d.NextArg() {
		return d.ArgErr()
	}
	if d.NextBlock(0) {
		return d.Errf("unknown option %q of lb_policy llm", d.Val())
	}
	return nil
}

// Interface guards.
var (
	_ caddy.Provisioner     = (*Policy)(nil)
	_ reverseproxy.Selector = (*Policy)(nil)
	_ caddyfile.Unmarshaler = (*Policy)(nil)
)
