package fleet

import (
	"sync/atomic"
	"time"
)

// fullFor is how long a replica that has refused work as full is taken at its
// word, if it did not say how long itself.
const fullFor = time.Second

// full is what a replica has said of how much it takes: it refused a request
// while it had others. That is no fault of its, and no reason to let it alone
// until a pause is over: as soon as one of the others ends, there is room again.
// The zero full says nothing. Safe for concurrent use.
type full struct {
	limit atomic.Int64 // how many requests it had when it refused one
	until atomic.Int64 // when to try again with more, Unix ns; 0 if it never refused any
}

// mark notes a refusal while the replica had so many other requests.
func (f *full) mark(now time.Time, others int64, asked, cooldown time.Duration) {
	f.limit.Store(others)
	f.until.Store(now.Add(max(fullFor, min(asked, cooldown))).UnixNano())
}

// known reports whether a refusal still counts.
func (f *full) known(now time.Time) bool {
	until := f.until.Load()
	return until != 0 && now.UnixNano() < until
}

// at reports whether a replica with so many requests takes no more.
func (f *full) at(now time.Time, inflight int64) bool {
	return f.known(now) && inflight >= f.limit.Load()
}

func (f *full) reset() { f.until.Store(0) }
