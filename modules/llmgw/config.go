package llmgw

import (
	"encoding/json"

	"github.com/caddyserver/caddy/v2"
)

// Model is one model that is served under a logical name.
type Model struct {
	// The name that clients ask for.
	Name string `json:"name"`

	// Other names for it.
	Aliases []string `json:"aliases,omitempty"`

	// The models that serve its requests while none of its own replicas can,
	// the first of them first, if the client's key may use them.
	Fallbacks []string `json:"fallbacks,omitempty"`

	// Its routing profile. Default: the app's default_profile
	Routing string `json:"routing,omitempty"`

	// Overrides the app's prefix settings for this model.
	Prefix *Prefix `json:"prefix,omitempty"`

	// Overrides the app's reliability settings for this model.
	Reliability *Reliability `json:"reliability,omitempty"`

	// Overrides the app's admission settings for this model.
	Admission *Admission `json:"admission,omitempty"`

	// LoRA adapters of the model, each a model of its own name with the settings (but
	// for fallbacks) and the replicas of this one. An engine that lacks one is asked to load it.
	Adapters []*Adapter `json:"adapters,omitempty"`

	// How long loading an adapter may take, from 1s to 10m. Default: 1m
	AdapterTimeout caddy.Duration `json:"adapter_timeout,omitempty"`

	// The replicas that serve it.
	Endpoints []*Endpoint `json:"endpoints,omitempty"`
}

// Adapter is a LoRA adapter.
type Adapter struct {
	// The name that clients ask for, and that engines get to know it by.
	Name string `json:"name"`

	// Where the engines find it: a directory, or what else they take for a path.
	Path string `json:"path"`
}

// Endpoint is one or several replicas with the same settings.
type Endpoint struct {
	// Where they are: `host:port`, or a URL with http or https. Placeholders
	// are expanded once, when the config is loaded.
	Addresses []string `json:"addresses"`

	// The pool that they belong to. Default: default
	Pool string `json:"pool,omitempty"`

	// The pool with the highest priority is filled first, and the next one
	// when it is saturated. Default: 100
	Priority *int `json:"priority,omitempty"`

	// How much load each should carry in relation to others, from 1 to
	// 10000. Default: 100
	Weight int `json:"weight,omitempty"`

	// How many requests each can run at once (vLLM's --max-num-seqs, llama.cpp's
	// --parallel), from 1 to 100000. Default: learnt from its metrics
	BatchCapacity int `json:"batch_capacity,omitempty"`

	// Says that the engine goes by the requests' priority field (vLLM's
	// --scheduling-policy priority), which others refuse: then the band's
	// engine_priority is put there. Default: false
	PriorityScheduling bool `json:"priority_scheduling,omitempty"`

	// The name by which the engine knows the model. Default: the model's name
	ServedModel string `json:"served_model,omitempty"`

	// The engine: vllm, sglang or llamacpp. Default: told from its metrics
	Engine string `json:"engine,omitempty"`

	// The key that the engine asks for. Placeholders are expanded once, when
	// the config is loaded. Default: none is sent
	APIKey string `json:"api_key,omitempty"`

	// Metric names that differ from the engine's usual ones, by field
	// (waiting, running, kv_usage).
	Metrics map[string]string `json:"metrics,omitempty"`

	// Where the engine publishes events of its KV cache, as tcp://host:port.
	// Default: it is asked, at /kv_event_sources
	KVEvents string `json:"kv_events,omitempty"`

	// Where it sends past events to who asks, as tcp://host:port. Default: as kv_events, or nowhere
	// if that is given
	KVReplay string `json:"kv_replay,omitempty"`

	// A PEM file with the certificate authorities to trust for https.
	// Default: the system's
	TLSCA string `json:"tls_ca,omitempty"`

	// The name that the replica's certificate must hold. Default: its host
	TLSServerName string `json:"tls_server_name,omitempty"`

	// Accepts any certificate: only for tests.
	TLSInsecureSkipVerify bool `json:"tls_insecure_skip_verify,omitempty"`
}

// Reliability is what happens when a replica fails.
type Reliability struct {
	// How many further replicas a request may be sent to, from 0 to 8.
	// Default: 2
	Retries *int `json:"retries,omitempty"`

	// Whether one of these may come after a request was sent and its connection
	// broke without a byte of an answer: the replica may have begun it, and
	// generates twice then. Default: true
	ResendAfterSend *bool `json:"resend_after_send,omitempty"`

	// How long a replica that keeps failing is left alone, at most: the pause
	// begins with 1s and doubles. Default: 15s
	Cooldown caddy.Duration `json:"cooldown,omitempty"`

	// How long making a connection may take. Only for all models together.
	// Default: 2s
	ConnectTimeout caddy.Duration `json:"connect_timeout,omitempty"`

	// How long the first token of a stream, or the answer to any other request,
	// may take. Default: 2m
	FirstTokenTimeout caddy.Duration `json:"first_token_timeout,omitempty"`

	// How long a replica may give nothing after that. Default: 1m
	IdleTokenTimeout caddy.Duration `json:"idle_token_timeout,omitempty"`

	// How long a request may take in all. Default: 30m
	TotalTimeout caddy.Duration `json:"total_timeout,omitempty"`
}

// Routing is a routing profile: scorers whose weighted sum values each
// replica, and a picker that chooses by it.
type Routing struct {
	// The scorers and their weights. For a shipped profile these are added to
	// its own; a weight of 0 takes a scorer away.
	Scorers []WeightedScorer `json:"scorers,omitempty"`

	// Filters that drop replicas before any scorer sees them.
	FiltersRaw []json.RawMessage `json:"filters,omitempty" caddy:"namespace=llmgw.filters inline_key=name"`

	// How one is chosen. Default: p2c, or the shipped profile's own
	PickerRaw json.RawMessage `json:"picker,omitempty" caddy:"namespace=llmgw.pickers inline_key=name"`
}

// WeightedScorer is a scorer and its weight.
type WeightedScorer struct {
	// The weight; 0 takes the scorer of this name away.
	Weight float64 `json:"weight"`

	// The scorer.
	ScorerRaw json.RawMessage `json:"scorer,omitempty" caddy:"namespace=llmgw.scorers inline_key=name"`
}
