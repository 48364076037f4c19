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
// crowded: with much more in flight than others or no place in its batch, or with a cache that has
// much more in it. There it costs others more than it saves, and another replica soon has it as
// well. And what a fourth of the requests begin with is worth having on a fourth of the replicas: until
// it is, those that lack it score as if they had it. So hot prefixes spread before a queue forms, and the
// caches of a fleet hold about as much as one of their size.
type Prefix struct{}

// Score implements [Scorer].
func (Prefix) Score(req *Request, replicas []*Replica, scores []float64) {
	if Imbalanced(req, replicas) {
		clear(scores)
		return
	}
	c := crowdOf(replicas)
	spread := c.spreads(req, replicas)
	for i, r := range replicas {
		switch {
		case !spread:
			scores[i] = c.credit(req, r)
		case c.takes(r):
			scores[i] = req.Shared
		default:
			scores[i] = 0
		}
	}
}

// spreads reports whether the request is one by which what it shares with others is to get to one more
// replica: nobody holds more of it than that, and somebody without it has the time.
func (c crowd) spreads(req *Request, replicas []*Replica) bool {
	if !req.Spread || req.Shared < req.Prefix.Threshold {
		return false
	}
	some := false
	for _, r := range replicas {
		if r.Cached.Or(0) > req.Shared {
			return false
		}
		some = some || c.takes(r)
	}
	return some
}

// takes reports whether a replica may get what is shared.
func (c crowd) takes(r *Replica) bool { return !r.Shares && !(r.Waiting >= 1) && !c.busy(r, 1) }

// Spread scores 1 - norm(bytes of prompts that the replica's KV cache is taken to hold): so what is new
// goes where it displaces least, and the caches of a fleet fill alike. A replica that is busier than
// others, or has a queue, scores 0: an empty cache must not attract what waits.
type Spread struct{}

// Score implements [Scorer].
func (Spread) Score(req *Request, replicas []*Replica, scores []float64) {
	clear(scores)
	if Imbalanced(req, replicas) {
		return
	}
	c, most := crowdOf(replicas), 0.0
	for _, r := range replicas {
		most = max(most, float64(r.Held)/r.Weight)
	}
	for i, r := range replicas {
		if most > 0 && r.Cached.Known() && !(r.Waiting >= 1) && !c.busy(r, 1) {
			scores[i] = 1 - float64(r.Held)/r.Weight/most
		}
	}
}

// crowd is the load of some replicas.
type crowd struct {
	requests, held, weights float64
	room                    bool // one of them has a place in its batch
}

func crowdOf(replicas []*Replica) (c crowd) {
	for _, r := range replicas {
		c.requests += float64(r.Inflight)
		c.held += float64(r.Held)
		c.weights += r.Weight
		c.room = c.room || !full(r)
	}
	return c
}

func full(r *Replica) bool { return float64(r.Inflight) >= float64(r.BatchCapacity) }

func (c crowd) inflight(r *Replica) float64 { return float64(r.Inflight) / r.Weight }

// others is what the others have in flight, on average.
func (c crowd) others(r *Replica) float64 {
	if c.weights <= r.Weight {
		return c.inflight(r)
	}
	return (c.requests - float64(r.Inflight)) / (c.weights - r.Weight)
}

// What makes a replica busy, and what makes it crowded; they came out best in a simulation of the
// workloads of bench -routing, and of chats, on 2, 4 and 16 replicas.
const (
	busy            = 1.5
	crowdedInflight = 3
	crowdedHeld     = 1.1
)

// busy reports whether a replica has more to do than others, by more than so many requests.
func (c crowd) busy(r *Replica, slack float64) bool { return c.inflight(r) > busy*c.others(r)+slack }

// overloaded reports whether a replica has much more to do than others.
func (c crowd) overloaded(r *Replica) bool {
	return c.inflight(r) > crowdedInflight*c.others(r)+2 || full(r) && c.room
}

// crowded reports whether a replica has so much to do, or so much in its cache, that it is not to get
// prompts for what many have in common.
func (c crowd) crowded(req *Request, r *Replica) bool {
	return c.overloaded(r) ||
		float64(r.Held) > crowdedHeld*c.held/c.weights*r.Weight+float64(req.PromptBytes)
}

// credit is the value of what a replica holds of the prompt.
func (c crowd) credit(req *Request, r *Replica) float64 {
	cached := r.Cached.Or(0)
	if cached < req.Prefix.Threshold || cached <= req.Shared && c.crowded(req, r) {
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
	c := crowdOf(replicas)
	all := Imbalanced(req, replicas) || c.spreads(req, replicas) // of the prompt is to do, wherever it goes
	for i, r := range replicas {
		cached := 0.0
		if !all {
			cached = c.credit(req, r)
		}
		scores[i] = (float64(req.PromptTokens)*(1-cached) + float64(req.OutputTokens)) / r.Weight
	}
	normalize(scores)
}
