package schedule

import "math"

// Queue scores 1 - min(1, waiting/target_waiting).
type Queue struct{}

// Score implements [Scorer].
func (Queue) Score(req *Request, replicas []*Replica, scores []float64) {
	for i, r := range replicas {
		scores[i] = 1 - min(1, float64(r.Waiting)/(r.Weight*req.TargetWaiting))
	}
	fillUnknown(scores)
}

// KV scores 1 - kv_usage, and [Penalty] above the ceiling: a full cache evicts
// running requests, which costs far more than a longer queue.
type KV struct{}

// Score implements [Scorer].
func (KV) Score(req *Request, replicas []*Replica, scores []float64) {
	for i, r := range replicas {
		scores[i] = 1 - float64(r.KVUsage)
		if float64(r.KVUsage) > req.KVCeiling {
			scores[i] = Penalty
		}
	}
	fillUnknown(scores)
}

// Load scores 1 - norm(running/drain_rate): how long the replica needs for
// what it runs. It finds a slow replica, which queue and in-flight do not.
// Where running is unknown, the own in-flight stands in for it.
type Load struct{}

// Score implements [Scorer].
func (Load) Score(_ *Request, replicas []*Replica, scores []float64) {
	for i, r := range replicas {
		running := r.Running.Or(float64(r.Inflight))
		if running == 0 {
			scores[i] = 0
			continue
		}
		scores[i] = running / float64(r.DrainRate) / r.Weight
	}
	normalize(scores)
}

// Pending scores 1 - norm(own in-flight uncached prompt tokens + expected
// output tokens): requests are not equal units.
type Pending struct{}

// Score implements [Scorer].
func (Pending) Score(_ *Request, replicas []*Replica, scores []float64) {
	for i, r := range replicas {
		scores[i] = float64(r.PendingTokens) / r.Weight
	}
	normalize(scores)
}

// TTFT scores 1 - norm(prompt tokens to compute before the request's first token): its own that are
// not cached, and those of llmgw's streams there that have not begun. What has begun
// costs little of a first token, and what has much to read costs much, however few that are: so
// requests come one by one where they would else go in crowds to whoever has just become idle.
//
// Where nobody knows what is cached, a session says more of that than a guess: then all score 0 for a
// request that has one.
type TTFT struct{}

// Score implements [Scorer].
func (TTFT) Score(req *Request, replicas []*Replica, scores []float64) {
	known, spread := false, req.Spread && crowdOf(replicas).spreads(req, replicas)
	for i, r := range replicas {
		own := float64(req.PromptTokens)
		if !spread { // else what is cached is not to keep it there
			own *= 1 - r.Cached.Or(0)
		}
		scores[i] = (float64(r.PrefillTokens) + own) / r.Weight
		known = known || r.Cached.Known()
	}
	if req.HasSession && !known {
		clear(scores)
		return
	}
	normalize(scores)
}

// Inflight scores 1 - norm(own in-flight): it is exact where scraped values
// lag, and so repairs them.
type Inflight struct{}

// Score implements [Scorer].
func (Inflight) Score(_ *Request, replicas []*Replica, scores []float64) {
	for i, r := range replicas {
		scores[i] = float64(r.Inflight) / r.Weight
	}
	normalize(scores)
}

// PoolPriority scores the priority, scaled so that the highest among the
// candidates is 1 and the lowest 0. All equal score 1.
type PoolPriority struct{}

// Score implements [Scorer].
func (PoolPriority) Score(_ *Request, replicas []*Replica, scores []float64) {
	lo, hi := replicas[0].Priority, replicas[0].Priority
	for _, r := range replicas {
		lo, hi = min(lo, r.Priority), max(hi, r.Priority)
	}
	for i, r := range replicas {
		scores[i] = 1
		if hi > lo {
			scores[i] = (float64(r.Priority) - float64(lo)) / (float64(hi) - float64(lo))
		}
	}
}

// Session scores 1 for the replica that the request's session hashes to, and 0
// for all others and for requests without a session. Where it is known what the replicas
// hold of the prompt it scores a third: that says more than a hash does.
//
// The hash is rendezvous hashing (Thaler and Ravishankar, 1998): each session
// ranks all replicas, and a replica that leaves or joins moves only its own
// sessions. Load is bounded as in consistent hashing with bounded loads
// (Mirrokni, Thorup and Zadimoghaddam, 2016): a replica whose in-flight would
// pass SessionLoad times its fair share is passed over for the next in rank.
type Session struct{}

// Score implements [Scorer].
func (Session) Score(req *Request, replicas []*Replica, scores []float64) {
	clear(scores)
	if !req.HasSession {
		return
	}
	inflight, weights := 1.0, 0.0
	for _, r := range replicas {
		inflight += float64(r.Inflight)
		weights += r.Weight
	}
	best, bestRank := -1, uint64(0)
	for i, r := range replicas {
		bound := math.Ceil(req.SessionLoad * inflight * r.Weight / weights)
		if float64(r.Inflight+1) > bound {
			continue
		}
		if rank := mix(req.Session ^ r.Hash); best < 0 || rank > bestRank {
			best, bestRank = i, rank
		}
	}
	// The bounds sum to more than all requests, so one replica is below its
	// own; only a SessionLoad below 1, which config refuses, leaves none.
	if best >= 0 {
		scores[best] = 1
		if replicas[best].Cached.Known() {
			scores[best] = 1.0 / 3
		}
	}
}

// normalize turns loads (0 or more, NaN unknown) into scores: 1 - load/max, so
// that an idle replica scores 1 and the most loaded one 0.
func normalize(loads []float64) {
	hi := 0.0
	for i, l := range loads {
		if l > math.MaxFloat64 {
			loads[i] = math.MaxFloat64 // infinity over infinity has no value
		}
		if l > hi {
			hi = loads[i]
		}
	}
	for i, l := range loads {
		switch {
		case l != l: // stays unknown
		case hi == 0:
			loads[i] = 1
		default:
			loads[i] = 1 - l/hi
		}
	}
	fillUnknown(loads)
}

// neutral is the score where no candidate's value is known.
const neutral = 0.5

// fillUnknown gives every replica without a value the worst of the known
// ones: it must not be preferred for what nobody knows, yet the scorers that do
// know something of it, own in-flight first, still decide.
func fillUnknown(scores []float64) {
	worst, unknown, known := math.Inf(1), false, false
	for _, s := range scores {
		if s != s {
			unknown = true
			continue
		}
		known = true
		worst = min(worst, s)
	}
	if !unknown {
		return
	}
	if !known {
		worst = neutral
	}
	// A penalty is about what is known of another replica, not about this one.
	worst = max(worst, 0)
	for i, s := range scores {
		if s != s {
			scores[i] = worst
		}
	}
}

// mix is the finalizer of splitmix64 (Steele, Lea and Flood, 2014).
func mix(z uint64) uint64 {
	z += 0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}
