package exchange

import (
	"crypto/sha256"
	"encoding/hex"
	"sync"

	"github.com/llmgw/llmgw/modules/internal/catalog"
	"github.com/llmgw/llmgw/modules/internal/fleet"
	"github.com/llmgw/llmgw/modules/internal/openai"
	"github.com/llmgw/llmgw/modules/internal/pipeline"
	"github.com/llmgw/llmgw/modules/internal/prefix"
	"github.com/llmgw/llmgw/modules/schedule"
)

// CacheDecision says what became of the wish to go where the prompt's beginning is held, at the
// last pick.
func (x *Exchange) CacheDecision() schedule.CacheDecision {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.cache
}

// Matched returns the share of the prompt, from 0 to 1, that the last replica was taken to hold;
// Unknown if nobody keeps count.
func (x *Exchange) Matched() schedule.Gauge {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.matched
}

// beginning is what is known of where a request's prompt is held: scratch space for one pick, in
// which the chain and what the replicas hold of it are found once.
type beginning struct {
	known  bool
	exact  []float64 // what events say of each replica, below 0 where that is not known; nil for all
	chain  prefix.Chain
	keys   []prefix.Key
	held   []prefix.Held
	shared int
}

var beginnings = sync.Pool{New: func() any { return new(beginning) }}

// prompt is what the cached state of a request's prompt depends on.
type prompt struct {
	fields *openai.Fields
	body   []byte
	owner  string
}

func (x *Exchange) prompt() prompt {
	if x.Route.Work != WorkGenerate || x.Route.Kind != KindJSON {
		return prompt{}
	}
	return prompt{&x.Fields, x.body, x.owner()}
}

// owner names whose prompts a request's may share a cache with, where tenants are separated: those of
// one key and one tenant, which a header may name.
func (x *Exchange) owner() string {
	if x.Key == nil {
		return owner("", x.class.Tenant)
	}
	return owner(x.Key.Name, x.class.Tenant)
}

func owner(key, tenant string) string { return key + "\x00" + tenant }

// find looks for who holds the beginning of a prompt, if the model has that on and there is one.
func (b *beginning) find(rt *Runtime, m *catalog.Model, p prompt) {
	b.known, b.exact = false, nil
	if !m.Prefix.Tree || rt.Prefix == nil || len(p.body) == 0 {
		return
	}
	b.chain.Reset(rt.Prefix.Seed())
	b.chain.Tag(m.Name)
	b.chain.Tag(salt(m, p))
	p.fields.Prefix(p.body, b.chain.Add)
	if b.known = b.chain.Bytes > 0; !b.known {
		return
	}
	b.keys = b.keys[:0]
	for _, e := range m.Endpoints {
		b.keys = append(b.keys, keyOf(e.Replica))
	}
	b.held = append(b.held[:0], make([]prefix.Held, len(b.keys))...)
	b.shared = rt.Prefix.Match(&b.chain, b.keys, b.held)
}

// matched returns the share of the prompt that the replica of that index is taken to hold.
func (b *beginning) matched(i int) float64 {
	if b.exact != nil && b.exact[i] >= 0 {
		return b.exact[i]
	}
	return float64(b.held[i].Matched) / float64(b.chain.Bytes)
}

// decided says what became of the wish, for a pick of that index: what is known by text alone where
// events are to say is stale.
func (b *beginning) decided(m *catalog.Model, d *pipeline.Decision, req *schedule.Request) schedule.CacheDecision {
	c := d.Cache(req)
	if m.Prefix.Events && b.known && d.Pick >= 0 && (b.exact == nil || b.exact[d.Pick] < 0) {
		return schedule.CacheStale
	}
	return c
}

func keyOf(r *fleet.Replica) prefix.Key { return prefix.Key{Replica: r.Serial, Epoch: r.Epoch()} }

// fill tells a decision what was found.
func (b *beginning) fill(d *pipeline.Decision, m *catalog.Model, req *schedule.Request) {
	if !b.known {
		for i := range d.Candidates {
			d.Candidates[i].Cached, d.Candidates[i].Held = schedule.Unknown, 0
		}
		return
	}
	total := float64(b.chain.Bytes)
	req.Prefix = m.Prefix.Rules
	req.PromptBytes, req.Shared = b.chain.Bytes, float64(b.shared)/total
	for i := range d.Candidates {
		d.Candidates[i].Cached, d.Candidates[i].Held = schedule.Gauge(b.matched(i)), b.held[i].Bytes
	}
}

// cached returns how many of so many tokens of prompt a replica, of that index, has computed
// already.
func (b *beginning) cached(i, tokens int) int {
	if !b.known {
		return 0
	}
	return int(float64(tokens) * b.matched(i))
}

// went notes that the prompt goes to an endpoint.
func (b *beginning) went(rt *Runtime, e *catalog.Endpoint) {
	if b.known {
		rt.Prefix.Insert(&b.chain, keyOf(e.Replica), capacity(e.Replica))
	}
}

// capacity returns how many bytes of prompts a replica's KV cache holds, 0 if nobody knows.
func capacity(r *fleet.Replica) int64 {
	s := r.Stats()
	return int64(s.BlockSize) * int64(s.Blocks) * bytesPerToken
}

// salt is what separates the prompts of tenants that share a model, and of clients that ask for
// that: the value of cache_salt, as the client sent it or as the gateway sets it.
func salt(m *catalog.Model, p prompt) string {
	own := p.fields.Salt(p.body)
	if !m.Prefix.Isolation {
		return own
	}
	return isolation(p.owner, own)
}

// isolation is the cache_salt of an owner's requests: no other's is the same, whatever its
// clients send, and a client that sends one of its own is separate from the rest.
func isolation(owner, own string) string {
	h := sha256.New()
	_, _ = h.Write([]byte("llmgw cache_salt\x00" + owner + "\x00" + own))
	return hex.EncodeToString(h.Sum(nil)[:16])
}
