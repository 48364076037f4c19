package llmapi

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/llmgw/llmgw/modules/internal/catalog"
	"github.com/llmgw/llmgw/modules/internal/exchange"
	"github.com/llmgw/llmgw/modules/llmgw"
)

func init() {
	caddy.RegisterModule(new(Models))
	httpcaddyfile.RegisterHandlerDirective("llm_models", func(h httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
		m := new(Models)
		return m, m.UnmarshalCaddyfile(h.Dispenser)
	})
	httpcaddyfile.RegisterDirectiveOrder("llm_models", httpcaddyfile.Before, "reverse_proxy")
}

// Models answers `GET /v1/models` and `GET /v1/models/{id}` with the models
// that the caller's key may use, aliases included. It must come after
// `llm_keys`.
type Models struct {
	app *llmgw.App
}

// CaddyModule returns the Caddy module information.
func (*Models) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.handlers.llm_models",
		New: func() caddy.Module { return new(Models) },
	}
}

// Provision sets the handler up.
func (m *Models) Provision(ctx caddy.Context) (err error) {
	m.app, err = llmgw.From(ctx)
	return err
}

// started stands for the time at which a model was created, which nobody
// knows: it must not change between two answers.
var started = time.Now().Unix()

// modelObject is a model in OpenAI's shape. Root is the model that an alias
// stands for, as vLLM has it.
type modelObject struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	OwnedBy string `json:"owned_by"`
	Root    string `json:"root"`
}

// ServeHTTP implements caddyhttp.MiddlewareHandler.
func (m *Models) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	x := m.app.Join(r)
	if x.Route.Kind != exchange.KindModels {
		return next.ServeHTTP(w, r)
	}
	if err := x.Admitted(); err != nil {
		return err
	}
	c := x.Runtime().Catalog
	rest := strings.TrimPrefix(r.URL.EscapedPath(), exchange.ModelsPath)
	if id, err := url.PathUnescape(strings.TrimPrefix(rest, "/")); rest != "" && rest != "/" {
		x.Requested = id
		if err != nil {
			return exchange.Fail(exchange.ErrRequest, "the model's name in the path is not properly escaped")
		}
		if err := x.Resolve(); err != nil {
			return err
		}
		return reply(w, x, object(id, x.Model))
	}
	list := struct {
		Object string        `json:"object"`
		Data   []modelObject `json:"data"`
	}{"list", []modelObject{}}
	for _, model := range c.Models() {
		names := append([]string{model.Name}, model.Aliases...)
		if !x.Key.MayUse(names...) {
			continue
		}
		for _, name := range names {
			list.Data = append(list.Data, object(name, model))
		}
	}
	return reply(w, x, list)
}

func object(name string, m *catalog.Model) modelObject {
	return modelObject{ID: name, Object: "model", Created: started, OwnedBy: "llmgw", Root: m.Name}
}

func reply(w http.ResponseWriter, x *exchange.Exchange, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	x.Record(func(res *exchange.Result) { res.Status = http.StatusOK })
	_, err = w.Write(body)
	if err != nil {
		x.Finish(exchange.OutcomeCancelled)
	}
	return nil
}

// UnmarshalCaddyfile takes no options.
func (m *Models) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // llm_models
	if d.NextArg() {
		return d.ArgErr()
	}
	if d.NextBlock(0) {
		return d.Errf("unknown llm_models option %q", d.Val())
	}
	return nil
}

// Interface guards.
var (
	_ caddy.Provisioner           = (*Models)(nil)
	_ caddyhttp.MiddlewareHandler = (*Models)(nil)
	_ caddyfile.Unmarshaler       = (*Models)(nil)
)
