package fleet

import (
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
	// forgotten is how many seconds after the time a refusal limits nothing any more.
	forgotten = 20
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
	until    atomic.Int64 // when to try it with more, Unix ns; 0 if it has refused nothing
	limit    atomic.Int64 // how many requests it had when it refused one, each sequence as one
	marked   atomic.Int64 // when that was, Unix ns
	answered atomic.Bool  // it has answered a request well since

	mu     sync.Mutex // guards what follows, and what mark changes of the above
	since  time.Time
	pause  time.Duration
	reason string
}

// mark notes a refusal while the replica had so many other requests, by which it
// asked for so much time.
func (f *full) mark(now time.Time, reason string, others int64, asked, cooldown time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case !f.known(now):
		f.since, f.pause = now, fullFor
	case !f.settled(now):
		others = min(others, f.limit.Load())
	case f.answered.Load():
		f.pause = fullFor
	default:
		f.pause = min(2*f.pause, cooldown)
	}
	if asked > 0 {
		others = 0 // it wants none at all
	}
	f.reason = reason
	f.answered.Store(false)
	f.limit.Store(others)
	f.marked.Store(now.UnixNano())
	f.until.Store(now.Add(max(f.pause, min(asked, cooldown))).UnixNano())
}

// more is how many requests more than it had the replica is to be tried with:
// below 0 while it is not.
func (f *full) more(now time.Time) int64 {
	over := now.UnixNano() - f.until.Load()
	if over < 0 {
		return -1
	}
	return 1 << min(over/int64(time.Second), forgotten)
}

// known reports whether a refusal still limits what the replica is given.
func (f *full) known(now time.Time) bool {
	return f.until.Load() != 0 && f.more(now) < 1<<forgotten
}

// at reports whether a replica with so many requests takes no more.
func (f *full) at(now time.Time, has int64) bool {
	if f.until.Load() == 0 {
		return false
	}
	more := f.more(now)
	return more < 1<<forgotten && has >= f.limit.Load()+max(0, more)
}

// settled reports whether those refusals are in that came with the last one.
func (f *full) settled(now time.Time) bool { return now.UnixNano()-f.marked.Load() >= int64(settling) }

// roomy reports whether a request that is sent now is one that the replica said it
// has room for.
func (f *full) roomy(now func() time.Time) bool {
	if f.until.Load() == 0 {
		return false
	}
	at := now()
	return f.more(at) < 0 && f.settled(at)
}

// good notes that the replica has answered a request well.
func (f *full) good() {
	if f.until.Load() != 0 && !f.answered.Load() {
		f.answered.Store(true)
	}
}

// why says what the replica has refused with and since when it is full; "" if it
// takes more than so many requests.
func (f *full) why(now time.Time, has int64) (string, time.Time) {
	if !f.at(now, has) {
		return "", time.Time{}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.reason, f.since
}

func (f *full) reset() { f.until.Store(0) }
