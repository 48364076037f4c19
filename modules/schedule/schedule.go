// Package schedule holds the contracts of llmgw's scheduler and the plugins
// that ship with it: filters drop replicas, scorers give each of the others a
// value, weights sum these, and a picker chooses one.
//
// Everything here decides on a snapshot and is pure: no clock, no lock, no
// I/O, no randomness of its own. What a decision needs of these comes in with
// the [Request]. Plugins of other people import this package, implement one of
// the interfaces on a Caddy module and register it under `llmgw.scorers.*`,
// `llmgw.filters.*` or `llmgw.pickers.*`.
//
// The shape (filter, score, pick over an immutable snapshot) is the one that
// the Kubernetes gateway API inference extension and llm-d settled on.
package schedule

import (
	"math"
	"slices"
	"time"
)

// Gauge is a value that may be unknown. Unknown is a value of its own, never 0:
// a replica whose KV usage nobody knows is not an empty one.
type Gauge float64

// Unknown is the Gauge that nobody knows. Compare with [Gauge.Known], since NaN
// differs from itself.
var Unknown = Gauge(math.NaN())

// Known reports whether the value is known.
func (g Gauge) Known() bool { return !math.IsNaN(float64(g)) }

// Or returns the value, or other if it is unknown.
func (g Gauge) Or(other float64) float64 {
	if g.Known() {
		return float64(g)
	}
	return other
}

// State says whether a replica may be given work.
type State uint8

// The states of a replica.
const (
	// Ready replicas take work.
	Ready State = iota
	// Draining replicas take no new work and finish what they have.
	Draining
	// Down replicas cannot be reached, or failed too often; they are probed.
	Down
	// Cooling replicas refused work a moment ago; one request is let through
	// at the end of the pause.
	Cooling
	// Full replicas have refused a request while they had others; they take more
	// when one of these ends, or after a moment.
	Full
)

// String returns the state in lower case, as metrics and the admin API show it.
func (s State) String() string {
	switch s {
	case Ready:
		return "ready"
	case Draining:
		return "draining"
	case Down:
		return "down"
	case Cooling:
		return "cooling"
	case Full:
		return "full"
	}
	return "unknown"
}

// Room says how a replica would take a request.
type Room uint8

// From the best to the worst.
const (
	// RoomNow is one that can run it at once, as far as anybody knows.
	RoomNow Room = iota
	// RoomQueue is one that lets it wait.
	RoomQueue
	// RoomNone is one that is fuller with it than the request's band may make it, or
	// whose room the band leaves to others.
	RoomNone
)

// Adapter says how a replica stands to the LoRA adapter that a request is for.
type Adapter uint8

// From the best to the worst.
const (
	// AdapterNone is for requests that are for none.
	AdapterNone Adapter = iota
	// AdapterLoaded is one that it has in a slot, as far as anybody knows.
	AdapterLoaded
	// AdapterRoom is one for which it has a slot free.
	AdapterRoom
	// AdapterUnknown is one of which nobody knows.
	AdapterUnknown
	// AdapterNoRoom is one that would wait for a slot, or take another's.
	AdapterNoRoom
	// AdapterFailed is one that it lacks, and could not load a moment ago. It is dropped.
	AdapterFailed
)

// Replica is one candidate as it stood when the snapshot was taken. Plugins
// must not change it.
type Replica struct {
	// ID names the replica: for a static endpoint its host:port.
	ID string
	// Hash is a well-mixed hash of ID, for consistent hashing.
	Hash uint64
	// Pool is the unit of placement that the replica belongs to.
	Pool string
	// Priority is the pool's priority; the highest is filled first.
	Priority int
	// Weight scales how much load the replica should carry, 1 is normal,
	// always above 0.
	Weight float64
	// State says whether it may be given work.
	State State
	// Tried is true if this request was sent to it before and failed.
	Tried bool
	// Room says how it would take the request. Replicas with less than another in the
	// same pool are dropped before scoring.
	Room Room
	// Stale is true if the last scrape failed; the values are then those of
	// the scrape before it, until they are too old and become Unknown.
	Stale bool

	// Waiting is how many requests wait in the engine, as last scraped and moved on
	// by what llmgw has sent and got back since; Running is how many it runs, as last
	// scraped.
	Waiting, Running Gauge
	// KVUsage is the share of KV blocks in use, 0 to 1, as last scraped.
	KVUsage Gauge
	// BatchCapacity is how many it can run at once: what config says, or else the
	// highest Running seen once requests waited that did not wait for memory. Unknown
	// until then.
	BatchCapacity Gauge
	// DrainRate is how many requests a second it completed over the last 30 s
	// as llmgw saw it; Unknown if it completed none.
	DrainRate Gauge

	// Inflight is how many of llmgw's own requests are on it now.
	Inflight int
	// PendingTokens are the uncached prompt tokens and expected output tokens
	// of these requests.
	PendingTokens int64
	// PrefillTokens are the uncached prompt tokens of those, of streams, whose answers have not begun:
	// as much as that the engine has to compute before it can begin with another.
	PrefillTokens int64

	// Adapter says how it stands to the adapter that the request is for. Absent says that the
	// adapter would have to be brought to it first. Those that have it are preferred before scoring.
	Adapter Adapter
	Absent  bool
	// Cached is the share of the request's prompt that its KV cache is taken to hold, from 0
	// to 1; Unknown where nobody keeps count.
	Cached Gauge
	// Held is how many bytes of all prompts the cache is taken to hold.
	Held int64
	// Shares says that it was sent all that the prompt has in common with others.
	Shares bool
}

// Request is what a decision knows of the request that it is made for.
type Request struct {
	// Model is the logical name, aliases resolved.
	Model string
	// Session is a hash of the session's identity; meaningless unless
	// HasSession.
	Session    uint64
	HasSession bool
	// SessionLoad bounds how far above the mean load a session may push its
	// replica, 1.25 is 25 % above.
	SessionLoad float64
	// PromptTokens and OutputTokens are estimates.
	PromptTokens, OutputTokens int
	// PromptBytes is the length of what a cache can hold of the prompt, and Shared the share
	// of it, from 0 to 1, up to which other prompts are like it.
	PromptBytes int
	Shared      float64
	// Spread says that what is shared is on fewer replicas than its share of the requests makes up, so
	// that one more is to get it.
	Spread bool
	// Prefix says what that is worth.
	Prefix PrefixRules
	// TargetWaiting is how many waiting requests fill a replica; above 0.
	TargetWaiting float64
	// KVCeiling is the KV usage that fills a replica, in (0, 1].
	KVCeiling float64
	// P90 says how the saturations of a pool's replicas make one, see [Aggregate].
	P90 bool
	// Now is the time of the decision.
	Now time.Time
	// Random is drawn anew for each decision, uniform over all uint64.
	Random uint64
	// Sequence rises by one with each decision for this model.
	Sequence uint64
}

// Filter drops replicas that must not get this request.
//
// Implementations are called from many goroutines at once, once per replica
// and attempt, and must neither block nor keep their arguments.
type Filter interface {
	// Filter returns "" to keep the replica, or a short constant reason in
	// snake_case ("wrong_zone") that the admin API, logs and metrics show.
	Filter(req *Request, r *Replica) (reason string)
}

// Penalty is the score of a replica that should be chosen only where every
// other one is worse. It is the one value below 0 that a scorer may give.
const Penalty = -1.0

// Scorer gives each replica a value.
//
// Implementations are called from many goroutines at once and must neither
// block, allocate nor keep their arguments.
type Scorer interface {
	// Score writes one value per replica into scores, which has the length of
	// replicas, at least 1, and unspecified contents: from 0 (worst) to 1
	// (best), or [Penalty]. What is not a number counts as 0, and what lies
	// beyond these bounds as the nearest of them. All replicas passed every
	// filter and belong to pools of one priority.
	Score(req *Request, replicas []*Replica, scores []float64)
}

// Picker chooses one replica by its total score.
//
// Implementations are called from many goroutines at once and must neither
// block nor keep their arguments.
type Picker interface {
	// Pick returns an index into replicas. totals are the weighted sums, all
	// of them finite, and have the length of replicas, which is at least 1.
	Pick(req *Request, replicas []*Replica, totals []float64) int
}

// Saturation says how full a replica is: 1 is full, values above are over it.
// It is max(waiting/target, kv/ceiling). What is surely queued but not scraped
// yet is the own in-flight above the batch capacity, and counts as waiting if
// it is more than the engine said. With nothing known it is 0.
func Saturation(req *Request, r *Replica) float64 {
	waiting := r.Waiting.Or(0)
	if r.BatchCapacity.Known() {
		waiting = max(waiting, float64(r.Inflight)-float64(r.BatchCapacity))
	}
	return max(waiting/(req.TargetWaiting*r.Weight), r.KVUsage.Or(0)/req.KVCeiling)
}

// Aggregate makes one saturation of those of several replicas: their mean, or with p90
// that of the fullest but a tenth of them, for which it puts them in order. It is 0 for none.
func Aggregate(saturations []float64, p90 bool) float64 {
	if len(saturations) == 0 {
		return 0
	}
	if p90 {
		slices.Sort(saturations)
		return saturations[(9*len(saturations)-1)/10]
	}
	sum := 0.0
	for _, v := range saturations {
		sum += v
	}
	return sum / float64(len(saturations))
}
