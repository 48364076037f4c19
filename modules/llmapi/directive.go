package llmapi

import (
	"encoding/json"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/llmgw/llmgw/modules/llmgw"
)

func init() {
	httpcaddyfile.RegisterDirective("llm", parseLLM)
	httpcaddyfile.RegisterDirectiveOrder("llm", httpcaddyfile.Before, "reverse_proxy")
}

// attempts is the ceiling on how often Caddy's proxy asks for another replica;
// how often a request is really sent again is the app's to say.
const attempts = 10

// streamCloseDelay is how long WebSockets of a replaced config go on.
const streamCloseDelay = 30 * time.Minute

// parseLLM reads the directive `llm`, the whole gateway in one word:
//
//	llm [<matcher>] {
//		key <key> [{
//			name <name>
//			models <model...>
//			routing <profile>
//			profiles <profile...>
//			band <band>
//			weight <number>
//			debug
//		}]
//		band <name or placeholder>
//		tenant <name or placeholder>
//		body_limit <size>
//		inject_usage on|off
//		debug_headers on|off
//		open
//		path <path...>
//	}
//
// It is a shortcut for this route, which can also be written by hand:
//
//	route {
//		llm_api { ... }
//		llm_keys { ... }
//		llm_models
//		llm_admission { ... }
//		llm_proxy
//		reverse_proxy { # for WebSockets
//			dynamic llm
//			transport llm
//			lb_policy first
//			lb_retries 10
//			stream_close_delay 30m
//		}
//	}
func parseLLM(h httpcaddyfile.Helper) ([]httpcaddyfile.ConfigValue, error) {
	h.Next() // llm
	matcher, err := h.ExtractMatcherSet()
	if err != nil {
		return nil, err
	}
	h.Next() // llm, again: the matcher token is gone
	if h.NextArg() {
		return nil, h.ArgErr()
	}
	if err := llmgw.CheckBandNames(h); err != nil {
		return nil, err
	}
	api, keys, admission := new(Handler), newBlock(h, "llm_keys"), newBlock(h, "llm_admission")
	others := map[string]*block{"key": keys, "band": admission, "tenant": admission}
	for h.NextBlock(0) {
		if b := others[h.Val()]; b != nil {
			b.tokens = append(b.tokens, h.NextSegment()...)
			continue
		}
		known, err := api.option(h.Dispenser)
		if err != nil {
			return nil, err
		}
		if !known {
			return nil, h.Errf("unknown llm option %q: use key, band, tenant, body_limit, inject_usage, debug_headers, open or path", h.Val())
		}
	}
	keysHandler, err := keys.handler(h)
	if err != nil {
		return nil, err
	}
	admissionHandler, err := admission.handler(h)
	if err != nil {
		return nil, err
	}
	proxy := map[string]any{
		"dynamic_upstreams": map[string]string{"source": "llm"},
		"transport":         map[string]string{"protocol": "llm"},
		// The one upstream that comes is the one that was picked.
		"load_balancing": map[string]any{"retries": attempts, "selection_policy": map[string]string{"policy": "first"}},
		// Without it a reload would close WebSockets, which it does to nothing else.
		"stream_close_delay": caddy.Duration(streamCloseDelay),
	}
	route := caddyhttp.Route{HandlersRaw: []json.RawMessage{
		caddyconfig.JSONModuleObject(api, "handler", "llm_api", nil),
		caddyconfig.JSONModuleObject(keysHandler, "handler", "llm_keys", nil),
		caddyconfig.JSONModuleObject(struct{}{}, "handler", "llm_models", nil),
		caddyconfig.JSONModuleObject(admissionHandler, "handler", "llm_admission", nil),
		caddyconfig.JSONModuleObject(struct{}{}, "handler", "llm_proxy", nil),
		caddyconfig.JSONModuleObject(proxy, "handler", "reverse_proxy", nil),
	}}
	if matcher != nil {
		route.MatcherSetsRaw = append(route.MatcherSetsRaw, matcher)
	}
	return []httpcaddyfile.ConfigValue{{Class: "route", Value: route}}, nil
}

// block is the block of a handler's own directive, made of what is for it in `llm`.
type block struct {
	name   string
	tokens []caddyfile.Token
}

func newBlock(h httpcaddyfile.Helper, name string) *block {
	return &block{name, []caddyfile.Token{{File: h.File(), Line: h.Line(), Text: name}, {File: h.File(), Line: h.Line(), Text: "{"}}}
}

// handler ends the block and returns the handler that it configures.
func (b *block) handler(h httpcaddyfile.Helper) (caddyfile.Unmarshaler, error) {
	d := caddyfile.NewDispenser(append(b.tokens, caddyfile.Token{File: h.File(), Line: h.Line() + 1, Text: "}"}))
	d.Next() // as the reader of a module expects
	return caddyfile.UnmarshalModule(d, "http.handlers."+b.name)
}
