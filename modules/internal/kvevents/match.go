package kvevents

import (
	"math"
	"slices"

	"github.com/llmgw/llmgw/modules/internal/fleet"
)

// Prompt is what the blocks of a request's prompt depend on.
type Prompt struct {
	Tokens
	// LoRA is the adapter's name, Salt the cache_salt, "" for none.
	LoRA, Salt string
	// Sent is for each replica the share of the prompt that it was sent before. That counts for what the
	// tokens are not known of, where all those are cached that are.
	Sent []float64
}

// Match writes into shares, for each replica, the share of the prompt's tokens that its caches have and
// that it need not compute, from 0 to 1, and below 0 where that is not known now. The last token it
// computes always. Of several ranks nobody knows to which the request goes: it is their mean.
func (m *Manager) Match(p *Prompt, replicas []*fleet.Replica, shares []float64) {
	list := p.List
	tokens := float64(len(list)) / p.Share // of the whole prompt
	if p.Share == 1 && len(list) > 0 {
		list = list[:len(list)-1]
	}
	var views []*View
	var weights []float64 // of a block in the share of its replica
	var owners, sizes []int
	whole := make([]float64, len(replicas)) // the share of all blocks
	for i, r := range replicas {
		ranks := m.Ranks(r)
		known := len(ranks) > 0
		shares[i] = 0
		for _, f := range ranks {
			v, size := f.View(), f.BlockSize()
			known = known && v != nil
			views, owners, sizes = append(views, v), append(owners, i), append(sizes, size)
			weight := float64(size) / (tokens * float64(len(ranks)))
			weights = append(weights, weight)
			if size > 0 {
				whole[i] += weight * float64(len(list)/size)
			} else {
				whole[i] = math.Inf(1) // it has never had a block
			}
		}
		if !known {
			shares[i] = -1
		}
	}
	if len(list) == 0 {
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
		m.index.Match(Keys(nil, list, size, p.LoRA, p.Salt), only, credits)
		for k, c := range credits { // 0 for those of another size
			if only[k] != nil {
				shares[owners[k]] += c * weights[k]
			}
		}
	}
	if p.Share == 1 {
		return
	}
	for i, sent := range p.Sent {
		if whole[i] > 0 && shares[i] >= whole[i]-1e-9 {
			shares[i] = max(shares[i], sent)
		}
	}
}
