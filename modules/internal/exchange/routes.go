package exchange

import (
	"net/http"
	"strings"
)

// Kind says how an endpoint's request is read.
type Kind uint8

// The kinds of endpoints.
const (
	// KindJSON has a JSON object as body, with the model in it.
	KindJSON Kind = iota
	// KindForm has a multipart form as body, with the model as a field.
	KindForm
	// KindUpgrade has no body: the model is in the query.
	KindUpgrade
	// KindModels is the list of models, which the gateway answers itself.
	KindModels
)

// Work is what a request makes an engine do.
type Work uint8

// The kinds of work.
const (
	// WorkGenerate puts tokens to a prompt, and holds all of them in the KV cache.
	WorkGenerate Work = iota
	// WorkRead reads what it is given, in one pass for each of maybe many inputs.
	WorkRead
	// WorkNone needs no accelerator: it never waits for others.
	WorkNone
)

// ModelsPath is the path of the list of models; that of one model is below it.
const ModelsPath = "/v1/models"

// modelsRoute is the endpoint at and below [ModelsPath].
var modelsRoute = &Route{Path: ModelsPath, Method: http.MethodGet, Kind: KindModels}

// Route is one endpoint of the API.
type Route struct {
	// Path is the path below the site's root.
	Path string
	// Method is the one that it takes.
	Method string
	// Kind says how its request is read.
	Kind Kind
	// Usage is true if a stream's usage can be asked for with
	// stream_options.include_usage.
	Usage bool
	// Events is true if its streams are of typed or named events, the last of
	// which is known.
	Events bool
	// Work is what it makes an engine do.
	Work Work
	// Anthropic is true if its clients expect errors in Anthropic's shape.
	Anthropic bool
}

// routes are the engine endpoints with a model in their request. Sources:
// OpenAI's API reference, and the routes of vLLM 0.32, SGLang 0.5 and
// llama.cpp's server. What administers an engine (adapters, weights, caches)
// is left out on purpose: it is for operators, not for clients.
var routes = func() map[string]*Route {
	list := []Route{
		{Path: "/v1/chat/completions", Usage: true},
		{Path: "/v1/completions", Usage: true},
		{Path: "/v1/messages", Anthropic: true, Events: true},
		{Path: "/v1/messages/count_tokens", Anthropic: true, Work: WorkNone},
		{Path: "/v1/responses", Events: true},
		{Path: "/v1/audio/transcriptions", Kind: KindForm, Events: true},
		{Path: "/v1/audio/translations", Kind: KindForm, Events: true},
		{Path: "/v1/realtime", Kind: KindUpgrade, Method: http.MethodGet},
	}
	for work, paths := range map[Work][]string{
		WorkGenerate: {"/v1/audio/speech", "/v1/images/generations"},
		WorkRead: {
			"/v1/embeddings", "/v1/moderations", "/v1/rerank", "/v2/rerank", "/rerank", "/v1/score", "/score",
			"/v1/classify", "/classify", "/pooling", "/v1/pooling", "/v2/embed",
		},
		WorkNone: {
			"/v1/chat/completions/render", "/v1/completions/render",
			"/tokenize", "/detokenize", "/v1/tokenize", "/v1/detokenize",
		},
	} {
		for _, p := range paths {
			list = append(list, Route{Path: p, Work: work})
		}
	}
	m := make(map[string]*Route, len(list))
	for _, e := range list {
		if e.Method == "" {
			e.Method = http.MethodPost
		}
		m[e.Path] = &e
	}
	return m
}()

// FindRoute returns the endpoint at a path, or nil. extra are further paths
// that take a POST with a JSON object.
func FindRoute(path string, extra []string) *Route {
	if e := routes[path]; e != nil {
		return e
	}
	if rest, ok := strings.CutPrefix(path, ModelsPath); ok && (rest == "" || rest[0] == '/') {
		return modelsRoute
	}
	for _, p := range extra {
		if p == path {
			return &Route{Path: path, Method: http.MethodPost}
		}
	}
	return nil
}

// IsUpgrade reports whether the request asks to switch protocols.
func IsUpgrade(h http.Header) bool {
	if h.Get("Upgrade") == "" {
		return false
	}
	for _, v := range h["Connection"] {
		for token := range strings.SplitSeq(v, ",") {
			if strings.EqualFold(strings.TrimSpace(token), "upgrade") {
				return true
			}
		}
	}
	return false
}
