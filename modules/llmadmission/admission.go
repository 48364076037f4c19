// Package llmadmission answers "now?": it lets a request go on when the replicas
// of its model have room for its band, and makes it wait until then.
package llmadmission

import (
	"net/http"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/llmgw/llmgw/modules/internal/exchange"
	"github.com/llmgw/llmgw/modules/llmgw"
)

func init() {
	caddy.RegisterModule(new(Handler))
	httpcaddyfile.RegisterHandlerDirective("llm_admission", parseHandler)
	httpcaddyfile.RegisterDirectiveOrder("llm_admission", httpcaddyfile.Before, "reverse_proxy")
}

// Handler makes requests wait while the replicas of their model are fuller than
// their band may make them, the highest band first, tenants by turns. It must come
// after `llm_keys` and before what sends the request.
//
// A request that cannot wait is answered with 503, 504 or 429 and a Retry-After;
// one whose client leaves is dropped.
type Handler struct {
	// The band of the requests: a name, or placeholders such as
	// {http.request.header.X-Band}, which trust whoever sets that header. Where it
	// is empty, or no band, the key's counts. Default: the key's, or silver
	Band string `json:"band,omitempty"`

	// Who takes turns with others in the band: a name, or placeholders. Default: the
	// name of the key
	Tenant string `json:"tenant,omitempty"`

	app *llmgw.App
}

// CaddyModule returns the Caddy module information.
func (*Handler) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.handlers.llm_admission",
		New: func() caddy.Module { return new(Handler) },
	}
}

// Provision checks the band.
func (h *Handler) Provision(ctx caddy.Context) (err error) {
	if h.app, err = llmgw.From(ctx); err != nil {
		return err
	}
	if h.Band != "" && !llmgw.HasPlaceholder(h.Band) && !h.app.HasBand(h.Band) {
		return h.app.ErrNoBand(h.Band)
	}
	return nil
}

// ServeHTTP implements caddyhttp.MiddlewareHandler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	x := h.app.Join(r)
	if err := h.admit(x, r); err != nil {
		return llmgw.Refuse(x, err)
	}
	return next.ServeHTTP(w, r)
}

func (h *Handler) admit(x *exchange.Exchange, r *http.Request) error {
	if x.Route.Kind == exchange.KindModels {
		return nil
	}
	if err := x.Read(r); err != nil { // unless llm_keys has done so
		return err
	}
	if err := x.Resolve(); err != nil {
		return err
	}
	return x.Admit(r.Context(), h.class(x, r))
}

// maxTenant bounds what a header says of a tenant.
const maxTenant = 128

// class says who the request counts as.
func (h *Handler) class(x *exchange.Exchange, r *http.Request) (c exchange.Class) {
	if x.Key != nil {
		c = exchange.Class{Band: x.Key.Band, Tenant: x.Key.Name, Weight: x.Key.Weight}
	}
	if h.Band == "" && h.Tenant == "" {
		return c
	}
	repl := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	if band := repl.ReplaceAll(h.Band, ""); h.app.HasBand(band) {
		c.Band = band
	}
	if tenant := repl.ReplaceAll(h.Tenant, ""); tenant != "" {
		c.Tenant = tenant[:min(len(tenant), maxTenant)]
	}
	return c
}

// UnmarshalCaddyfile reads the handler's directive:
//
//	llm_admission {
//		band <name or placeholder>
//		tenant <name or placeholder>
//	}
func (h *Handler) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // llm_admission
	if d.NextArg() {
		return d.ArgErr()
	}
	for d.NextBlock(0) {
		into := map[string]*string{"band": &h.Band, "tenant": &h.Tenant}[d.Val()]
		if into == nil {
			return d.Errf("unknown llm_admission option %q: use band or tenant", d.Val())
		}
		if !d.AllArgs(into) {
			return d.ArgErr()
		}
	}
	return nil
}

func parseHandler(h httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
	handler := new(Handler)
	if err := llmgw.CheckBandNames(h); err != nil {
		return nil, err
	}
	return handler, handler.UnmarshalCaddyfile(h.Dispenser)
}

// Interface guards.
var (
	_ caddy.Provisioner           = (*Handler)(nil)
	_ caddyhttp.MiddlewareHandler = (*Handler)(nil)
	_ caddyfile.Unmarshaler       = (*Handler)(nil)
)
