package exchange

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"slices"

	"github.com/cespare/xxhash/v2"

	"github.com/llmgw/llmgw/modules/internal/catalog"
	"github.com/llmgw/llmgw/modules/internal/fleet"
	"github.com/llmgw/llmgw/modules/internal/kvevents"
	"github.com/llmgw/llmgw/modules/internal/openai"
	"github.com/llmgw/llmgw/modules/schedule"
)

// tokenizable are the endpoints whose requests an engine's /tokenize takes as they are.
var tokenizable = []string{"/v1/chat/completions", "/v1/completions"}

// promptEnd is how many bytes at the end of a prompt are not in one that goes on: the bracket of the
// list of messages, or the quote of a text, and the end of the part.
const promptEnd = 2

// tokenize finds the tokens of the request's prompt, if the model's replicas are known by their events
// and there is time. Without tokens the prompt is known by its text.
func (x *Exchange) tokenize(ctx context.Context, b *beginning) {
	m := x.Serving()
	if x.tokenized || m == nil || !slices.Contains(tokenizable, x.Route.Path) {
		return
	}
	x.tokenized = true
	x.mu.Lock()
	b.read(x.rt, m, x.prompt())
	x.mu.Unlock()
	tokens, err := x.rt.promptTokens(ctx, b, false)
	switch {
	case err == nil && len(tokens.List) > 0:
		x.tokens, x.tokensOf = tokens, m
	case err != nil && x.rt.NoTokens != nil:
		x.rt.NoTokens(x, err)
	}
}

// tokensAs returns the tokens of the prompt as a model has them, none if they are not known.
func (x *Exchange) tokensAs(m *catalog.Model) kvevents.Tokens {
	if x.tokensOf != m {
		return kvevents.Tokens{}
	}
	return x.tokens
}

// promptTokens returns the tokens of a prompt, or most of them unless all are wanted, none if the model's
// replicas are not known by their events.
func (rt *Runtime) promptTokens(ctx context.Context, b *beginning, all bool) (kvevents.Tokens, error) {
	m, p := b.of, b.prompt
	if !b.known || !m.Prefix.Events || rt.Tokens == nil {
		return kvevents.Tokens{}, nil
	}
	at := rt.tokenizer(m)
	if at == nil {
		return kvevents.Tokens{}, nil
	}
	b.look(rt)
	text := kvevents.Text{Bytes: b.chain.Bytes, End: promptEnd, Common: b.popular, Hash: func(n int) uint64 { return hashTo(p, n) }}
	for _, block := range b.chain.Blocks {
		text.Blocks = append(text.Blocks, block.Hash)
	}
	ctx, cancel := context.WithTimeout(ctx, m.Prefix.TokenBudget)
	defer cancel()
	return rt.Tokens.Tokens(ctx, text, all, func(ctx context.Context) (*http.Response, error) {
		return rt.askTokens(ctx, m, at, p)
	})
}

// hashTo returns a hash of the first n bytes of a prompt.
func hashTo(p prompt, n int) uint64 {
	var d xxhash.Digest
	d.Reset()
	p.fields.Prefix(p.body, func(b []byte) {
		part := b[:min(len(b), n)]
		n -= len(part)
		_, _ = d.Write(part)
	})
	return d.Sum64()
}

// tokenizer returns the replica to ask for tokens: one that works, with the fewest requests.
func (rt *Runtime) tokenizer(m *catalog.Model) (best *catalog.Endpoint) {
	for _, e := range m.Endpoints {
		if e.Replica.State() == schedule.Ready && len(rt.KV.Ranks(e.Replica)) > 0 &&
			(best == nil || e.Replica.Inflight() < best.Replica.Inflight()) {
			best = e
		}
	}
	return best
}

// askTokens sends a request's own body to an engine's /tokenize, which takes of it what makes the
// prompt.
func (rt *Runtime) askTokens(ctx context.Context, m *catalog.Model, e *catalog.Endpoint, p prompt) (*http.Response, error) {
	var room [openai.MaxEdits]openai.Edit
	spliced, err := openai.Splice(p.body, p.fields.Edits(room[:0], p.body, openai.Rewrite{Model: base(m, e)}))
	if err != nil {
		return nil, err
	}
	u := *e.Replica.URL
	u.Path += "/tokenize"
	body, err := io.ReadAll(spliced.NewReader()) // the request may end before it is sent
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, u.String(), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	if e.APIKey != "" {
		req.Header.Set("Authorization", "Bearer "+e.APIKey)
	}
	return rt.Client(e).Do(req)
}

// exactly looks for what events say that replicas hold of the prompt, which has these tokens.
func (b *beginning) exactly(rt *Runtime, tokens kvevents.Tokens) {
	m := b.of
	replicas, sent := make([]*fleet.Replica, len(m.Endpoints)), make([]float64, len(m.Endpoints))
	b.exact = make([]float64, len(m.Endpoints))
	lora := ""
	for i, e := range m.Endpoints {
		replicas[i], sent[i] = e.Replica, b.sent(i)
		if name, _, ok := adapter(m, e); ok && lora == "" {
			lora = name
		}
	}
	rt.KV.Match(&kvevents.Prompt{Tokens: tokens, LoRA: lora, Salt: b.salt, Sent: sent}, replicas, b.exact)
	for i, r := range replicas {
		if lora != "" && r.Replaced(lora) { // whose blocks these are the events do not say
			b.exact[i] = -1
		}
	}
}

// base is the name to ask an endpoint's engine by for the tokens of a prompt, which are those of the
// model that an adapter belongs to: that need not be loaded yet.
func base(m *catalog.Model, e *catalog.Endpoint) string {
	if e.Adapter != nil {
		return e.Adapter.Base
	}
	return e.Served(m)
}
