package schedule

// PrefixRules say when it counts where a prompt's beginning is held.
type PrefixRules struct {
	// Threshold is the least share of a prompt that is worth going there for, from 0 to 1.
	Threshold float64
	// BalanceAbs and BalanceRel bound how unequal in-flight may be: if the most that a
	// replica has is above the least by more than the one, and by more than the other times it,
	// what is held where does not count.
	BalanceAbs int
	BalanceRel float64
}

// Imbalanced reports whether the in-flight of these replicas, by their weights, is too unequal
// for anything to count but load. A busy replica must not get more because it has much that others
// have not.
func Imbalanced(req *Request, replicas []*Replica) bool {
	lo, hi := float64(replicas[0].Inflight)/replicas[0].Weight, 0.0
	for _, r := range replicas {
		n := float64(r.Inflight) / r.Weight
		lo, hi = min(lo, n), max(hi, n)
	}
	return hi-lo > float64(req.Prefix.BalanceAbs) && hi > req.Prefix.BalanceRel*lo
}

// Prefix scores the share of the prompt that the replica's KV cache is taken to hold, if that is
// worth it, see [PrefixRules], and 0 otherwise.
//
// What many prompts have in common, such as a system prompt, is worth nothing on a replica that is
// crowded: with much more in flight than the mean, or with a cache that has much more in it. There
// it costs others more than it saves, and another replica soon has it as well: so hot prefixes
// spread before a queue forms, and the caches of a fleet hold about as much as one of their size.
type Prefix struct{}

// Score implements [Scorer].
func (Prefix) Score(req *Request, replicas []*Replica, scores []float64) {
	if Imbalanced(req, replicas) {
		clear(scores)
		return
	}
	mean := meanOf(replicas)
	for i, r := range replicas {
		scores[i] = mean.credit(req, r)
	}
}

// crowd is the mean load of some replicas, by weight.
type crowd struct{ inflight, held float64 }

func meanOf(replicas []*Replica) (c crowd) {
	weights := 0.0
	for _, r := range replicas {
		c.inflight += float64(r.Inflight)
		c.held += float64(r.Held)
		weights += r.Weight
	}
	c.inflight /= weights
	c.held /= weights
	return c
}

// What makes a replica crowded; they came out best in a simulation of chats on 4 and 16
// replicas, with caches for all of them and for half.
const (
	crowdedInflight = 1.5
	crowdedHeld     = 1.1
)

// credit is the value of what a replica holds of the prompt.
func (c crowd) credit(req *Request, r *Replica) float64 {
	cached := r.Cached.Or(0)
	if cached < req.Prefix.Threshold {
		return 0
	}
	if cached <= req.Shared && (float64(r.Inflight) > crowdedInflight*c.inflight*r.Weight+1 ||
		float64(r.Held) > crowdedHeld*c.held*r.Weight+float64(req.PromptBytes)) {
		return 0
	}
	return cached
}

// CacheDecision says what became of the wish to go where the prompt's beginning is held. It is the
// value of a metric's label.
type CacheDecision string

// The decisions.
const (
	// CacheHit is a replica that holds enough of the prompt.
	CacheHit CacheDecision = "cache_hit"
	// CacheMiss is a prompt of which no replica holds enough: it goes by load.
	CacheMiss CacheDecision = "cache_miss_min_load"
	// CacheOverride is a prompt of which a replica holds enough, which has too much load.
	CacheOverride CacheDecision = "load_balance_override"
	// CacheStale is one that was matched by text alone, since what the engines say of their
	// caches is not known now.
	CacheStale CacheDecision = "stale"
	// CacheNoTree is a request for which nobody keeps count: the model has it off, or the
	// request has no prompt.
	CacheNoTree CacheDecision = "no_tree"
	// CacheNoWorker is a request for which there was no replica.
	CacheNoWorker CacheDecision = "no_healthy_worker"
)

// CacheDecisions are all of them.
var CacheDecisions = []CacheDecision{CacheHit, CacheMiss, CacheOverride, CacheStale, CacheNoTree, CacheNoWorker}

// DecideCache says what became of it, for a request that goes to a replica which is taken to hold
// this share of the prompt, where the most that one holds is best.
func DecideCache(req *Request, cached, best Gauge) CacheDecision {
	switch enough := max(req.Prefix.Threshold, leastCached); {
	case !best.Known():
		return CacheNoTree
	case cached.Or(0) >= enough:
		return CacheHit
	case best.Or(0) >= enough:
		return CacheOverride
	default:
		return CacheMiss
	}
}

// leastCached is the share below which nothing is a hit, even with a threshold of 0.
const leastCached = 1e-9

// Cost scores 1 - norm(uncached prompt + output, in tokens): how much there is to do for this
// request. In-flight work is not in it: it goes together with pending, or queue.
type Cost struct{}

// Score implements [Scorer].
func (Cost) Score(req *Request, replicas []*Replica, scores []float64) {
	mean, imbalanced := meanOf(replicas), Imbalanced(req, replicas)
	for i, r := range replicas {
		cached := 0.0
		if !imbalanced {
			cached = mean.credit(req, r)
		}
		scores[i] = (float64(req.PromptTokens)*(1-cached) + float64(req.OutputTokens)) / r.Weight
	}
	normalize(scores)
}
