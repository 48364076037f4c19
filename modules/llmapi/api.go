// Package llmapi is the front door of the gateway: it gives each request an id
// and an Exchange, removes headers that only the gateway may set, and answers
// every failure of the handlers below in OpenAI's shape.
package llmapi

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/llmgw/llmgw/modules/internal/exchange"
	"github.com/llmgw/llmgw/modules/internal/openai"
	"github.com/llmgw/llmgw/modules/llmgw"
)

func init() {
	caddy.RegisterModule(new(Handler))
	httpcaddyfile.RegisterHandlerDirective("llm_api", parseHandler)
	httpcaddyfile.RegisterDirectiveOrder("llm_api", httpcaddyfile.Before, "reverse_proxy")
}

// Handler opens a request's Exchange and ends it. It must come before the
// other llm handlers of its route.
//
// Only the paths of the OpenAI API and of known engine endpoints are served;
// others are 404, and another method than theirs 405.
type Handler struct {
	// The largest request body, in bytes. Default: 33554432 (32 MiB)
	BodyLimit int64 `json:"body_limit,omitempty"`

	// Whether the engine is asked for the usage of streams whose client did
	// not ask; the extra chunk is withheld. Default: true
	InjectUsage *bool `json:"inject_usage,omitempty"`

	// Lets clients without a key pin a replica (x-llmgw-replica) and choose a
	// routing profile (x-llmgw-profile). Default: false
	DebugHeaders bool `json:"debug_headers,omitempty"`

	// Serves clients without a key that are not on this machine. Default:
	// false
	Open bool `json:"open,omitempty"`

	// Further paths of engines to serve: POST with a JSON object that has a
	// model in it.
	Paths []string `json:"paths,omitempty"`

	app     *llmgw.App
	options exchange.Options
}

// CaddyModule returns the Caddy module information.
func (*Handler) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.handlers.llm_api",
		New: func() caddy.Module { return new(Handler) },
	}
}

// Provision sets the handler up.
func (h *Handler) Provision(ctx caddy.Context) (err error) {
	h.options = exchange.DefaultOptions
	if h.BodyLimit != 0 {
		h.options.BodyLimit = h.BodyLimit
	}
	if h.InjectUsage != nil {
		h.options.InjectUsage = *h.InjectUsage
	}
	h.options.DebugHeaders = h.DebugHeaders
	h.app, err = llmgw.From(ctx)
	return err
}

// Validate checks the config.
func (h *Handler) Validate() error {
	if h.BodyLimit < 0 {
		return errors.New("body_limit must be above 0")
	}
	for _, p := range h.Paths {
		if !strings.HasPrefix(p, "/") {
			return errors.New("paths: " + p + " must begin with a slash")
		}
	}
	return nil
}

// unknown is the route of requests to no endpoint.
var unknown = &exchange.Route{}

// ServeHTTP implements caddyhttp.MiddlewareHandler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	route := exchange.FindRoute(r.URL.Path, h.Paths)
	if route == nil {
		route = unknown
	}
	x := h.app.Open(r, route)
	defer h.end(x, r)
	x.Options = h.options
	x.Anonymous = x.Anonymous || h.Open
	x.Answer = w.Header()
	x.Answer["X-Request-Id"] = []string{x.ID}
	x.ClientID = exchange.CleanID(r.Header.Get("X-Request-Id"))
	var err error
	if x.Wishes, err = exchange.TakeWishes(r.Header); err == nil {
		err = check(route, r)
	}
	if err == nil {
		err = next.ServeHTTP(w, r)
	}
	if err != nil {
		h.answer(x, w, r, err)
	}
	return nil
}

// check refuses requests to no endpoint.
func check(route *exchange.Route, r *http.Request) error {
	method := r.Method
	if method == http.MethodHead {
		method = http.MethodGet
	}
	switch {
	case route == unknown:
		return exchange.Fail(exchange.ErrPath, "there is no such endpoint: is the base URL right? OpenAI clients' base URL ends in /v1, Anthropic's does not")
	case route.Kind == exchange.KindUpgrade && !exchange.IsUpgrade(r.Header):
		return exchange.Fail(exchange.ErrRequest, "this endpoint needs a WebSocket: send `Connection: Upgrade` and `Upgrade: websocket`")
	case method != route.Method:
		return exchange.Fail(exchange.ErrMethod, "this endpoint takes %s", route.Method)
	case route.Kind != exchange.KindUpgrade && exchange.IsUpgrade(r.Header):
		return exchange.Fail(exchange.ErrUpgrade, "this endpoint does not take WebSockets: use /v1/realtime")
	}
	return nil
}

// answer tells the client of a failure. No byte of an answer was sent before:
// whatever breaks later than that panics instead of returning.
func (h *Handler) answer(x *exchange.Exchange, w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() != nil {
		w.WriteHeader(statusClientClosed) // for the log: nobody is there to read it
		return
	}
	// The cause that the exchange keeps says more than what Caddy made of it.
	if cause := x.Err(); cause != nil {
		err = cause
	} else {
		if he, ok := errors.AsType[caddyhttp.HandlerError](err); ok {
			err = fromCaddy(he)
		}
		x.Fail(err)
	}
	e := exchange.Answer(err)
	if x.Route.Method != "" && errors.Is(err, exchange.ErrMethod) {
		w.Header().Set("Allow", x.Route.Method)
	}
	if r.ProtoMajor == 1 && r.ContentLength != 0 { // it is 0 once the body was read
		linger(w)
	}
	e.Write(w, x.Route.Anthropic)
	x.Record(func(res *exchange.Result) { res.Status = e.Status })
	late := errors.Is(err, exchange.ErrTimeout) && !exchange.IsTotal(err)
	if late || errors.Is(err, exchange.ErrReplica) || exchange.Refused(err) {
		x.Finish(exchange.OutcomeEngineError)
	}
	x.Finish(exchange.OutcomeRejected)
}

// fromCaddy gives a failure inside Caddy's own handlers its class.
func fromCaddy(he caddyhttp.HandlerError) error {
	if he.StatusCode >= 400 && he.StatusCode < 500 {
		return openai.NewError(he.StatusCode, "", "", http.StatusText(he.StatusCode)).WithCause(he)
	}
	if he.StatusCode == http.StatusBadGateway || he.StatusCode == http.StatusGatewayTimeout {
		return exchange.FailWith(exchange.ErrReplica, he, "the replica did not answer")
	}
	return fmt.Errorf("%w: %w", exchange.ErrInternal, he)
}

// end closes the exchange, also when a handler below panics to abort the
// connection.
func (h *Handler) end(x *exchange.Exchange, r *http.Request) {
	if r.Context().Err() != nil {
		x.Finish(exchange.OutcomeCancelled)
		x.Record(func(res *exchange.Result) {
			if res.Status == 0 {
				res.Status = statusClientClosed
			}
		})
	}
	x.Finish(exchange.OutcomeOK)
	logFields(x, r)
	x.End()
}

// statusClientClosed is what nginx and Caddy log for a client that left.
const statusClientClosed = 499

// UnmarshalCaddyfile reads the handler's directive:
//
//	llm_api {
//		body_limit <size>
//		inject_usage on|off
//		debug_headers on|off
//		open
//		path <path...>
//	}
func (h *Handler) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // llm_api
	if d.NextArg() {
		return d.ArgErr()
	}
	for d.NextBlock(0) {
		known, err := h.option(d)
		if err != nil {
			return err
		}
		if !known {
			return d.Errf("unknown llm_api option %q: use body_limit, inject_usage, debug_headers, open or path", d.Val())
		}
	}
	return nil
}

func parseHandler(h httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
	handler := new(Handler)
	return handler, handler.UnmarshalCaddyfile(h.Dispenser)
}

// Interface guards.
var (
	_ caddy.Provisioner           = (*Handler)(nil)
	_ caddy.Validator             = (*Handler)(nil)
	_ caddyhttp.MiddlewareHandler = (*Handler)(nil)
	_ caddyfile.Unmarshaler       = (*Handler)(nil)
)
