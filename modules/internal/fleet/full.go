package fleet

import (
	"math"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// fullFor is how long a replica that has refused work as full is given no more
	// than it had then.
	fullFor = time.Second
	// settling is how long after a refusal others may still come that were under way.
	settling = 100 * time.Millisecond
)

// full is what a replica has said of how much it takes: it refused a request
// while it had others. That is no fault of its, and no reason to let it alone
// until a pause is over: as soon as one of the others ends, there is room again.
// After a while it is tried with one more, and with twice as many more in each
// second that follows; if it refuses again without having answered any request
// meanwhile, the while is twice as long.
//
// The zero full says nothing. Safe for concurrent use.
type full struct {
	until atomic.Int64 // when to try it with more, Unix ns; 0 if it has refused nothing
	limit atomic.Int64 // how many requests it had when it refused one

	mu       sync.Mutex // guards what follows, and all changes of what is above
	since    time.Time
	marked   time.Time
	pause    time.Duration
	answered bool // it has answered a request well since it refused one
	reason   string
}

// mark notes a refusal while the replica had so many other requests, by which it
// asked for so much time.
func (f *full) mark(now time.Time, reason string, others int64, asked, cooldown time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	known := f.until.Load() != 0
	switch {
	case known && now.Sub(f.marked) < settling:
		others = min(others, f.limit.Load())
	case known && !f.answered:
		f.pause = min(2*f.pause, cooldown)
	default:
		f.pause = fullFor
	}
	if !known {
		f.since = now
	}
	if asked > 0 {
		others = 0 // it wants none at all
	}
	f.reason, f.marked, f.answered = reason, now, false
	f.limit.Store(others)
	f.until.Store(now.Add(max(f.pause, min(asked, cooldown))).UnixNano())
}

// at reports whether a replica with so many requests takes no more.
func (f *full) at(now time.Time, inflight int64) bool {
	until := f.until.Load()
	if until == 0 {
		return false
	}
	limit := f.limit.Load()
	if over := now.UnixNano() - until; over >= 0 {
		limit += int64(math.Exp2(min(30, float64(over/int64(time.Second)))))
	}
	return inflight >= limit
}

// settled reports whether a refusal is still counted with, and all those that came
// with it are in.
func (f *full) settled(now time.Time) bool {
	until := f.until.Load()
	if until == 0 || now.UnixNano() >= until {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return now.Sub(f.marked) >= settling
}

// good notes that the replica has answered a request well.
func (f *full) good() {
	if f.until.Load() == 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answered = true
}

// Reason says what the replica has refused with and since when it is full; "" if
// it takes more than so many requests.
func (f *full) why(now time.Time, inflight int64) (string, time.Time) {
	if !f.at(now, inflight) {
		return "", time.Time{}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.reason, f.since
}

func (f *full) reset() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.until.Store(0)
}
