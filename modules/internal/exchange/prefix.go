package exchange

import (
	"crypto/sha256"
	"encoding/hex"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/llmgw/llmgw/modules/internal/catalog"
	"github.com/llmgw/llmgw/modules/internal/fleet"
	"github.com/llmgw/llmgw/modules/internal/kvevents"
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

// beginning is what is known of where a request's prompt is held: scratch space for the picks of a
// request until one succeeds, in which the prompt is read once for each model.
type beginning struct {
	of     *catalog.Model // whose prompt it was read as, nil before
	known  bool           // somebody keeps count, and there is a prompt
	prompt prompt
	salt   string
	chain  prefix.Chain

	exact  []float64 // what events say of each replica, below 0 where that is not known; nil for all
	keys   []prefix.Key
	held   []prefix.Held
	shared int
	// common is what of the prompt others are known to begin with, in bytes, popular as many whole blocks of
	// it as there are, atMost what it may be.
	common  int
	popular kvevents.Beginning
	atMost  int
	model   uint64 // a hash of its name
}

var beginnings = sync.Pool{New: func() any { return new(beginning) }}

func newBeginning() *beginning {
	b := beginnings.Get().(*beginning)
	b.of = nil
	return b
}

func (b *beginning) free() {
	b.prompt = prompt{}
	b.chain.Reset(0) // it holds the index
	beginnings.Put(b)
}

// prompt is what the cached state of a request's prompt depends on. key and tenant, which a header may
// name, are whose it is: where tenants are separated it shares a cache with theirs alone.
type prompt struct {
	fields      *openai.Fields
	body        []byte
	key, tenant string
}

func (x *Exchange) prompt() prompt {
	if x.Route.Work != WorkGenerate || x.Route.Kind != KindJSON {
		return prompt{}
	}
	return x.promptOf(x.body)
}

func (x *Exchange) promptOf(body []byte) prompt {
	p := prompt{fields: &x.Fields, body: body, tenant: x.class.Tenant}
	if x.Key != nil {
		p.key = x.Key.Name
	}
	return p
}

// read reads the prompt of a request for a model, if that remembers prompts.
func (b *beginning) read(rt *Runtime, m *catalog.Model, p prompt) {
	if b.of == m {
		return
	}
	b.of, b.known, b.prompt, b.salt = m, false, p, ""
	if !m.Prefix.Tree || rt.Prefix == nil || len(p.body) == 0 {
		return
	}
	b.salt = salt(m, p)
	b.chain.Reset(rt.Prefix.Seed())
	b.chain.Tag(m.Name)
	b.model = xxhash.Sum64String(m.Name)
	if len(m.Endpoints) > 0 && m.Endpoints[0].Adapter != nil {
		b.chain.Tag(m.Endpoints[0].Adapter.Path) // from elsewhere it is another
	}
	b.chain.Tag(b.salt)
	p.fields.Prefix(p.body, b.chain.Add)
	b.known = b.chain.Bytes > 0
}

// look looks for where the text that was read was sent, if anybody knows.
func (b *beginning) look(rt *Runtime) {
	if !b.known {
		return
	}
	b.keys = b.keys[:0]
	for _, e := range b.of.Endpoints {
		b.keys = append(b.keys, keyOf(e.Replica))
	}
	b.held = append(b.held[:0], make([]prefix.Held, len(b.keys))...)
	b.common = rt.Prefix.Match(&b.chain, b.keys, b.held)
	b.boundary()
}

// find looks for who holds the beginning of the prompt that was read, of which these are the tokens, if
// anybody knows.
func (b *beginning) find(rt *Runtime, tokens kvevents.Tokens) {
	b.exact = nil
	b.look(rt)
	b.shared = b.common
	if b.known && len(tokens.List) > 0 {
		b.exactly(rt, tokens)
		b.shared = b.atMost
	}
}

// count notes the request in what prompts have in common.
func (b *beginning) count(rt *Runtime, now time.Time) {
	if b.known {
		rt.Prefix.Popular.Note(b.model, b.popular.Block, now)
	}
}

// spread says whether what the prompt shares with others is on too few of the replicas: on a smaller part of
// them than that of the requests that begin like this, by half a replica.
func (b *beginning) spread(rt *Runtime, d *pipeline.Decision, req *schedule.Request) {
	req.Spread = false
	holders, all := 0.0, 0.0
	for i := range d.Candidates {
		c := &d.Candidates[i]
		if c.Shares = b.common > 0 && b.held[i].Matched >= b.common; c.State != schedule.Ready {
			continue
		}
		if all += c.Weight; c.Shares {
			holders += c.Weight
		}
	}
	if b.common > 0 && holders > 0 && holders < all {
		share := rt.Prefix.Popular.Share(b.model, b.popular.Block, req.Now)
		req.Spread = share*all >= holders+all/float64(2*len(d.Candidates))
	}
}

// boundary finds where the prompt parts from others: the last block before that, none if there is none, and
// how many bytes others may begin with at most: where they part is known to a block, and what events say is not
// to pass for the prompt's own for less than that.
func (b *beginning) boundary() {
	b.popular, b.atMost = kvevents.Beginning{}, 0
	if b.common == 0 {
		return
	}
	for _, block := range b.chain.Blocks {
		if b.atMost += int(block.Bytes); b.atMost > b.common {
			return
		}
		b.popular = kvevents.Beginning{Block: block.Hash, Bytes: b.atMost}
	}
	b.atMost = b.chain.Bytes
}

// matched returns the share of the prompt that the replica of that index is taken to hold.
func (b *beginning) matched(i int) float64 {
	if b.exact != nil && b.exact[i] >= 0 {
		return b.exact[i]
	}
	return b.sent(i)
}

// sent returns the share of the prompt that was sent to the replica of that index, and that it may still hold.
func (b *beginning) sent(i int) float64 { return float64(b.held[i].Matched) / float64(b.chain.Bytes) }

// decided says what became of the wish: what is known by text alone where events are to say is stale.
func (b *beginning) decided(d *pipeline.Decision, req *schedule.Request) schedule.CacheDecision {
	if b.of.Prefix.Events && b.known && d.Pick >= 0 && (b.exact == nil || b.exact[d.Pick] < 0) {
		return schedule.CacheStale
	}
	return d.Cache(req)
}

func keyOf(r *fleet.Replica) prefix.Key { return prefix.Key{Replica: r.Serial, Epoch: r.Epoch()} }

// fill tells a decision what was found.
func (b *beginning) fill(rt *Runtime, d *pipeline.Decision, req *schedule.Request) {
	if !b.known {
		for i := range d.Candidates {
			d.Candidates[i].Cached, d.Candidates[i].Held, d.Candidates[i].Shares = schedule.Unknown, 0, false
		}
		return
	}
	total := float64(b.chain.Bytes)
	req.Prefix = b.of.Prefix.Rules
	req.PromptBytes, req.Shared = b.chain.Bytes, float64(b.shared)/total
	for i := range d.Candidates {
		d.Candidates[i].Cached, d.Candidates[i].Held = schedule.Gauge(b.matched(i)), b.held[i].Bytes
		if len(b.chain.Blocks) == 0 { // it displaces nothing, and is not to go for ever where least is held
			d.Candidates[i].Held = 0
		}
	}
	b.spread(rt, d, req)
}

// cached returns how many of so many tokens of prompt a replica, of that index, has computed
// already.
func (b *beginning) cached(i, tokens int) int {
	if !b.known {
		return 0
	}
	return int(float64(tokens) * b.matched(i))
}

// reads returns of how many tokens it is known when they have been read: of a stream alone, by its
// first one. For any other answer they would count while it is generated.
func (x *Exchange) reads(tokens int64) int64 {
	if x.Fields.Stream {
		return tokens
	}
	return 0
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
	// No other owner's is the same, whatever its clients send, and a client that sends one of its
	// own is separate from the rest.
	h := sha256.Sum256([]byte("llmgw cache_salt\x00" + p.key + "\x00" + p.tenant + "\x00" + own))
	return hex.EncodeToString(h[:16])
}
