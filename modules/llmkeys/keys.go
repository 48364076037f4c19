// Package llmkeys tells who a client is, from the headers of its request
// alone, and what it may do.
package llmkeys

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/llmgw/llmgw/modules/internal/exchange"
	"github.com/llmgw/llmgw/modules/internal/tenant"
	"github.com/llmgw/llmgw/modules/llmgw"
)

func init() {
	caddy.RegisterModule(new(Handler))
	httpcaddyfile.RegisterHandlerDirective("llm_keys", func(h httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
		k := new(Handler)
		return k, k.UnmarshalCaddyfile(h.Dispenser)
	})
	httpcaddyfile.RegisterDirectiveOrder("llm_keys", httpcaddyfile.Before, "reverse_proxy")
}

// Handler checks API keys. A client sends its key as `Authorization: Bearer
// KEY`, `x-api-key` (Anthropic's clients), `api-key` (Azure's) or, for a WebSocket,
// as the subprotocol `openai-insecure-api-key.KEY` (OpenAI's in browsers); it is
// removed before the request goes on. Then the request's body is read and its model
// looked up.
//
// While no keys are configured, `llm_api` decides who is served.
type Handler struct {
	// The keys.
	Keys []Key `json:"keys,omitempty"`

	app  *llmgw.App
	ring *tenant.Keyring
}

// Key is one API key.
type Key struct {
	// The key itself. Placeholders such as {env.LLMGW_KEY} are expanded once,
	// when the config is loaded; one that expands to nothing is an error.
	Key string `json:"key"`

	// What the key is called in logs. Default: key-1, key-2, ...
	Name string `json:"name,omitempty"`

	// The models and aliases that it may use. Default: all
	Models []string `json:"models,omitempty"`

	// Its routing profile. Default: the model's
	Routing string `json:"routing,omitempty"`

	// The routing profiles that it may choose by x-llmgw-profile.
	Profiles []string `json:"profiles,omitempty"`

	// The band of its requests. Default: silver
	Band string `json:"band,omitempty"`

	// How much of its band it gets beside other keys, from 0.01 to 100: in each of
	// the band's turns so many times as many tokens. Default: 1
	Weight float64 `json:"weight,omitempty"`

	// Lets it pin a replica (x-llmgw-replica) and choose any routing profile.
	Debug bool `json:"debug,omitempty"`
}

// The bounds of a key's weight.
const (
	minWeight = 0.01
	maxWeight = 100
)

// CaddyModule returns the Caddy module information.
func (*Handler) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.handlers.llm_keys",
		New: func() caddy.Module { return new(Handler) },
	}
}

// Provision expands and checks the keys.
func (h *Handler) Provision(ctx caddy.Context) error {
	app, err := llmgw.From(ctx)
	if err != nil {
		return err
	}
	h.app = app
	app.WarnOfNoModels()
	repl := caddy.NewReplacer()
	var keys []*tenant.Key
	names := make(map[string]bool)
	for i, k := range h.Keys {
		if k.Name == "" {
			k.Name = "key-" + strconv.Itoa(i+1)
		}
		if names[k.Name] {
			return fmt.Errorf("two keys have the name %q: logs could not tell them apart", k.Name)
		}
		names[k.Name] = true
		for _, profile := range append(k.Profiles, k.Routing) {
			if profile != "" && !app.HasProfile(profile) {
				return fmt.Errorf("key %q: %w", k.Name, app.NoProfile(profile))
			}
		}
		if k.Band != "" && !app.HasBand(k.Band) {
			return fmt.Errorf("key %q: %w", k.Name, app.ErrNoBand(k.Band))
		}
		if k.Weight != 0 && !(k.Weight >= minWeight && k.Weight <= maxWeight) {
			return fmt.Errorf("key %q: weight %v: must be from %v to %v", k.Name, k.Weight, minWeight, maxWeight)
		}
		// An unknown placeholder must not become a key that reads like one.
		secret, err := repl.ReplaceOrErr(k.Key, false, true)
		if err != nil {
			return fmt.Errorf("key %q: a placeholder in it is unknown", k.Name)
		}
		key, err := tenant.NewKey(tenant.Key{
			Name: k.Name, Models: k.Models, Profile: k.Routing, Profiles: k.Profiles, Debug: k.Debug, Band: k.Band, Weight: k.Weight,
		}, secret)
		if err != nil {
			return fmt.Errorf("key %q: %w", k.Name, err)
		}
		keys = append(keys, key)
	}
	if len(keys) == 0 {
		ctx.Logger().Info("no API keys: only clients that come over loopback (127.0.0.1, ::1) are served, unless `llm` says open")
	}
	h.ring, err = tenant.NewKeyring(keys)
	return err
}

// ServeHTTP implements caddyhttp.MiddlewareHandler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	x := h.app.Join(r)
	if err := h.check(x, r); err != nil {
		return llmgw.Refuse(x, err)
	}
	return next.ServeHTTP(w, r)
}

// check tells who the client is, and what model it asks for.
func (h *Handler) check(x *exchange.Exchange, r *http.Request) error {
	secret := presented(r.Header)
	exchange.StripCredentials(r.Header)
	if h.ring.Len() > 0 {
		x.Anonymous = false
		if secret == "" {
			return exchange.Fail(exchange.ErrDenied, "no API key was given: send one as `Authorization: Bearer KEY`")
		}
		if x.Key = h.ring.Find(secret); x.Key == nil {
			return exchange.Fail(exchange.ErrDenied, "the API key is not valid")
		}
	}
	if x.Route.Kind == exchange.KindModels {
		return nil
	}
	if err := x.Read(r); err != nil {
		return err
	}
	return x.Resolve()
}

// presented returns the key that the client sent, or "".
func presented(h http.Header) string {
	if scheme, token, ok := strings.Cut(h.Get("Authorization"), " "); ok && strings.EqualFold(scheme, "bearer") {
		return strings.TrimSpace(token)
	}
	for _, name := range []string{"X-Api-Key", "Api-Key"} {
		if v := h.Get(name); v != "" {
			return v
		}
	}
	return exchange.SubprotocolKey(h)
}

// Interface guards.
var (
	_ caddy.Provisioner           = (*Handler)(nil)
	_ caddyhttp.MiddlewareHandler = (*Handler)(nil)
	_ caddyfile.Unmarshaler       = (*Handler)(nil)
)
