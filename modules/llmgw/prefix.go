package llmgw

import (
	"errors"
	"fmt"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/llmgw/llmgw/modules/internal/catalog"
	"github.com/llmgw/llmgw/modules/schedule"
)

// Prefix is how requests find replicas that know their beginning.
type Prefix struct {
	// Session affinity.
	Session *Session `json:"session,omitempty"`

	// Memory of which prompts went where.
	Tree *Tree `json:"tree,omitempty"`

	// What engines say of their caches themselves.
	Events *Events `json:"events,omitempty"`

	// Separates the cached prompts of tenants, in the engines too, by a cache_salt
	// that the gateway sets. Default: false
	Isolation *bool `json:"isolation,omitempty"`
}

// Session is session affinity: requests of one session go to one replica as
// long as that keeps the load in bounds.
type Session struct {
	// The request header that identifies a session; without it OpenAI's `user`
	// does. Default: x-session-id
	Header string `json:"header,omitempty"`

	// How far above the mean load sessions may push a replica: 1.25 is 25 %.
	// At least 1. Default: 1.25
	Load float64 `json:"load,omitempty"`

	// Turns session affinity off.
	Off bool `json:"off,omitempty"`
}

// Tree is the gateway's memory of which prompts it has sent where: requests go where most of their
// prompt is in the KV cache.
type Tree struct {
	// The least share of a prompt, from 0 to 1, that is worth going to a replica for.
	// Default: 0.3
	Threshold *float64 `json:"threshold,omitempty"`

	// What is held where does not count while the replica with the most requests of the
	// gateway in flight has more than so many above the one with the fewest, and more
	// than balance_rel times as many. Default: 16 and 1.5
	BalanceAbs *int    `json:"balance_abs,omitempty"`
	BalanceRel float64 `json:"balance_rel,omitempty"`

	// How many bytes the memory takes at most. Only for all models together.
	// Default: 536870912 (512 MiB)
	Memory int64 `json:"memory,omitempty"`

	// Turns it off.
	Off bool `json:"off,omitempty"`
}

// Events is prefix awareness by what engines say of their KV caches, block by block. The tokens of
// prompts, which that takes, are asked of the engines.
type Events struct {
	// Turns it on.
	On bool `json:"on,omitempty"`

	// How long a request may wait for its tokens. After that it goes by where prompts were
	// sent. Default: 50ms
	TokenBudget caddy.Duration `json:"token_budget,omitempty"`
}

// defaultPrefix is how requests find replicas, unless config says otherwise.
var defaultPrefix = catalog.Prefix{
	Tree: true, Rules: schedule.PrefixRules{Threshold: 0.3, BalanceAbs: 16, BalanceRel: 1.5},
	TokenBudget: 50 * time.Millisecond,
}

// The bounds of the memory: below the least one there is no room for anything.
const (
	defaultTreeMemory = 512 << 20
	minTreeMemory     = 1 << 20
	maxTreeMemory     = 1 << 40
)

// apply checks the settings and puts those that are set into m. It takes a nil receiver, which
// sets none.
func (c *Prefix) apply(m *catalog.Model) error {
	if c == nil {
		return nil
	}
	if c.Isolation != nil {
		m.Prefix.Isolation = *c.Isolation
	}
	if err := errors.Join(c.Session.apply(m), c.Tree.apply(&m.Prefix), c.Events.apply(&m.Prefix)); err != nil {
		return err
	}
	if m.Prefix.Events && !m.Prefix.Tree {
		return errors.New("events on needs the tree, which serves where the events of a replica are not known")
	}
	return nil
}

func (e *Events) apply(p *catalog.Prefix) error {
	if e == nil {
		return nil
	}
	p.Events = e.On
	if e.TokenBudget != 0 {
		p.TokenBudget = time.Duration(e.TokenBudget)
	}
	if p.TokenBudget < time.Millisecond || p.TokenBudget > maxTokenBudget {
		return fmt.Errorf("events: a token budget of %v: must be from 1ms to %v", p.TokenBudget, maxTokenBudget)
	}
	return nil
}

// maxTokenBudget is the longest wait for tokens: with more, what is saved is lost.
const maxTokenBudget = 5 * time.Second

func (s *Session) apply(m *catalog.Model) error {
	if s == nil {
		return nil
	}
	if m.SessionLoad == 0 { // turned off above, and on again here
		m.SessionLoad = defaultSessionLoad
	}
	if s.Header != "" {
		m.SessionHeader = s.Header
	}
	if s.Load != 0 {
		m.SessionLoad = s.Load
	}
	if err := checkLoad(m.SessionLoad); err != nil {
		return err
	}
	if s.Off {
		m.SessionLoad = 0
	}
	return nil
}

func checkLoad(load float64) error {
	if !(load >= 1 && load <= 100) {
		return fmt.Errorf("session load %v: must be from 1 to 100; 1.25 lets sessions push a replica 25 %% above the mean", load)
	}
	return nil
}

func (t *Tree) apply(p *catalog.Prefix) error {
	if t == nil {
		return nil
	}
	p.Tree = !t.Off
	if t.Threshold != nil {
		p.Rules.Threshold = *t.Threshold
	}
	if t.BalanceAbs != nil {
		p.Rules.BalanceAbs = *t.BalanceAbs
	}
	if t.BalanceRel != 0 {
		p.Rules.BalanceRel = t.BalanceRel
	}
	return t.check()
}

// check returns what is wrong with what is set.
func (t *Tree) check() error {
	switch {
	case t.Threshold != nil && !(*t.Threshold >= 0 && *t.Threshold <= 1):
		return fmt.Errorf("tree threshold %v: must be from 0 to 1, a share of the prompt", *t.Threshold)
	case t.BalanceAbs != nil && !(*t.BalanceAbs >= 0 && *t.BalanceAbs <= maxBatch):
		return fmt.Errorf("tree balance %d: must be from 0 to %d requests", *t.BalanceAbs, maxBatch)
	case t.BalanceRel != 0 && !(t.BalanceRel >= 1 && t.BalanceRel <= 1000):
		return fmt.Errorf("tree balance %v: must be from 1 to 1000 times as many", t.BalanceRel)
	case t.Memory != 0 && !(t.Memory >= minTreeMemory && t.Memory <= maxTreeMemory):
		return fmt.Errorf("tree memory of %d bytes: must be from 1MiB to 1TiB", t.Memory)
	}
	return nil
}

// treeMemory is how many bytes the memory of all models takes.
func (a *App) treeMemory() int64 {
	if a.Prefix != nil && a.Prefix.Tree != nil && a.Prefix.Tree.Memory != 0 {
		return a.Prefix.Tree.Memory
	}
	return defaultTreeMemory
}
