package kvevents

import (
	"github.com/llmgw/llmgw/modules/internal/fleet"
)

// Prompt is what the blocks of a request's prompt depend on.
type Prompt struct {
	Tokens []uint32
	// LoRA is the adapter's name, Salt the cache_salt, "" for none.
	LoRA, Salt string
}

// Match writes into shares, for each replica, the share of the prompt's tokens that its caches have and
// that it need not compute, from 0 to 1, and below 0 where that is not known now: the last one it
// computes always. Of several ranks nobody knows to which the
// request goes: it is their mean.
func (m *Manager) Match(p *Prompt, replicas []*fleet.Replica, shares []float64) {
	type part struct {
		replica int
		size    int
	}
	var views []*View
	var parts []part
	sizes := make(map[int][]uint64)
	for i, r := range replicas {
		ranks := m.Ranks(r)
		shares[i] = 0
		for _, f := range ranks {
			v := f.View()
			if v == nil {
				shares[i] = -1
				break
			}
			views, parts = append(views, v), append(parts, part{i, f.BlockSize()})
		}
		if len(ranks) == 0 {
			shares[i] = -1
		}
	}
	for _, p := range parts {
		if p.size > 0 {
			sizes[p.size] = nil
		}
	}
	if len(p.Tokens) == 0 {
		return
	}
	credits := make([]float64, len(views))
	for size := range sizes {
		only := make([]*View, len(views))
		for i, v := range views {
			if parts[i].size == size {
				only[i] = v
			}
		}
		m.index.Match(Keys(nil, p.Tokens[:len(p.Tokens)-1], size, p.LoRA, p.Salt), only, credits)
		for i, c := range credits {
			if r := parts[i].replica; only[i] != nil && shares[r] >= 0 {
				shares[r] += c * float64(size) / float64(len(p.Tokens)) / float64(len(m.Ranks(replicas[r])))
			}
		}
	}
}
