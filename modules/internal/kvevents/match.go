package kvevents

import (
	"slices"

	"github.com/llmgw/llmgw/modules/internal/fleet"
)

// Prompt is what the blocks of a request's prompt depend on.
type Prompt struct {
	Tokens []uint32
	// LoRA is the adapter's name, Salt the cache_salt, "" for none.
	LoRA, Salt string
}

// Match writes into shares, for each replica, the share of the prompt's tokens that its caches have and
// that it need not compute, from 0 to 1, and below 0 where that is not known now. The last token it
// computes always. Of several ranks nobody knows to which the request goes: it is their mean.
func (m *Manager) Match(p *Prompt, replicas []*fleet.Replica, shares []float64) {
	var views []*View
	var weights []float64 // of a block in the share of its replica
	var owners, sizes []int
	for i, r := range replicas {
		ranks := m.Ranks(r)
		known := len(ranks) > 0
		shares[i] = 0
		for _, f := range ranks {
			v, size := f.View(), f.BlockSize()
			known = known && v != nil
			views, owners, sizes = append(views, v), append(owners, i), append(sizes, size)
			weights = append(weights, float64(size)/float64(len(p.Tokens)*len(ranks)))
		}
		if !known {
			shares[i] = -1
		}
	}
	if len(p.Tokens) == 0 {
		return
	}
	credits, only := make([]float64, len(views)), make([]*View, len(views))
	for i, size := range sizes {
		if size == 0 || slices.Contains(sizes[:i], size) {
			continue
		}
		for k, v := range views {
			only[k] = nil
			if sizes[k] == size && shares[owners[k]] >= 0 {
				only[k] = v
			}
		}
		m.index.Match(Keys(nil, p.Tokens[:len(p.Tokens)-1], size, p.LoRA, p.Salt), only, credits)
		for k, c := range credits { // 0 for those of another size
			if only[k] != nil {
				shares[owners[k]] += c * weights[k]
			}
		}
	}
}
