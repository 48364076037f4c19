package llmgw

import (
	"context"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/llmgw/llmgw/modules/internal/catalog"
	"github.com/llmgw/llmgw/modules/internal/exchange"
)

// exchangeVar is the request variable that holds the Exchange. Caddy's map of
// variables is there anyway; a context value would copy the request.
const exchangeVar = "llmgw.exchange"

// From returns the app of the config that is being provisioned.
func From(ctx caddy.Context) (*App, error) {
	app, err := ctx.App("llmgw")
	if err != nil {
		return nil, err
	}
	return app.(*App), nil
}

// HasProfile reports whether there is a routing profile of that name.
func (a *App) HasProfile(name string) bool { return a.runtime.Profiles[name] != nil }

// TLSSettings returns the TLS settings that the config's endpoints use.
func (a *App) TLSSettings() []catalog.TLS { return slices.Collect(maps.Keys(a.transport.clients)) }

// Exchange returns the exchange that an earlier handler opened for the
// request, or nil.
func Exchange(ctx context.Context) *exchange.Exchange {
	x, _ := caddyhttp.GetVar(ctx, exchangeVar).(*exchange.Exchange)
	return x
}

// Open begins an exchange for the request. The caller ends it.
func (a *App) Open(r *http.Request, route *exchange.Route) *exchange.Exchange {
	a.boundExit(r)
	x := exchange.Open(a.Runtime(), r, route)
	x.Anonymous = FromLoopback(r)
	caddyhttp.SetVar(r.Context(), exchangeVar, x)
	return x
}

// Join returns the request's exchange. In a route without `llm_api` it opens
// one that ends with the request.
func (a *App) Join(r *http.Request) *exchange.Exchange {
	if x := Exchange(r.Context()); x != nil {
		return x
	}
	route := exchange.FindRoute(r.URL.Path, nil)
	if route == nil || route.Kind == exchange.KindModels {
		route = &exchange.Route{Path: r.URL.Path, Method: r.Method}
	}
	x := a.Open(r, route)
	x.Anonymous = x.Anonymous && originallyLocal(r)
	context.AfterFunc(r.Context(), func() {
		if err := x.Err(); err != nil && x.Result().Outcome == "" {
			// Caddy answers for itself here, and knows nothing of the cause.
			x.Record(func(res *exchange.Result) { res.Status = http.StatusServiceUnavailable })
			x.Finish(exchange.OutcomeRejected)
			a.log.Warn("request refused", zap.String("request_id", x.ID),
				zap.String("model", x.ModelName()), zap.String("reason", exchange.Label(err)))
		}
		x.End()
	})
	return x
}

// Refuse keeps why the request goes no further, unless the exchange knows it
// better, and makes an error of it that has a status for routes without `llm_api`.
func Refuse(x *exchange.Exchange, err error) error {
	if cause := x.Err(); cause != nil {
		err = cause
	} else {
		x.Fail(err)
	}
	return caddyhttp.Error(exchange.Answer(err).Status, err)
}

// originallyLocal reports whether no header of the request as it came names a
// client elsewhere: Caddy's proxy has overwritten X-Forwarded-For by the time that
// it asks for an upstream.
func originallyLocal(r *http.Request) bool {
	repl, ok := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	if !ok {
		return true
	}
	for _, name := range forwardedHeaders {
		if v, _ := repl.GetString("http.request.header." + name); v != "" && !allLoopback(v) {
			return false
		}
	}
	return true
}

// forwardedHeaders name the client of a proxy.
var forwardedHeaders = []string{"X-Forwarded-For", "X-Real-Ip"}

// FromLoopback reports whether the request comes from this machine: its peer
// does, and so does every client that a proxy on the way names. A proxy on this
// machine would otherwise make all the world local, and of the names in
// X-Forwarded-For all but the last may be the client's own invention.
func FromLoopback(r *http.Request) bool {
	client, _ := caddyhttp.GetVar(r.Context(), caddyhttp.ClientIPVarKey).(string)
	if !isLoopback(r.RemoteAddr) || client != "" && !isLoopback(client) || r.Header["Forwarded"] != nil {
		return false
	}
	for _, name := range forwardedHeaders {
		if slices.ContainsFunc(r.Header[name], func(v string) bool { return !allLoopback(v) }) {
			return false
		}
	}
	return true
}

// allLoopback reports whether all addresses of a list are this machine's.
func allLoopback(list string) bool {
	for address := range strings.SplitSeq(list, ",") {
		if !isLoopback(strings.TrimSpace(address)) {
			return false
		}
	}
	return true
}

func isLoopback(address string) bool {
	if address == "@" { // the peer of a unix socket
		return true
	}
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		host = address
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}
