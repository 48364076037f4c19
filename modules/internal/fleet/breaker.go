package fleet

import (
	"math/bits"
	"sync"
	"sync/atomic"
	"time"

	"github.com/llmgw/llmgw/modules/schedule"
)

// The numbers of the breaker.
const (
	// firstPause is how long a replica stays out at first. Each failure of the
	// one request that is let through then doubles it, up to the cooldown.
	firstPause = time.Second
	// failuresToOpen is how many failures in a row open it. A refusal (503 or
	// 429) opens it at once: the replica itself asked for less.
	failuresToOpen = 3
	// So do so many of the last 20 requests: one that fails now and then, and
	// fast, would else look idle and get more than its share.
	recentFailures = 10
	recentMask     = 1<<20 - 1
	// silentToOpen is how many requests must wait in vain at once, while the
	// replica says nothing to any other either: one or two may just be long.
	silentToOpen = 3
)

// Breaker keeps a replica out of use for a while after it refused or failed
// requests. It is closed until then; open for a pause, in which the replica is
// [schedule.Cooling]; and half-open after it, when one request is let through:
// if that one succeeds it closes, else it opens for twice as long.
//
// The zero Breaker is closed. Safe for concurrent use.
type Breaker struct {
	until   atomic.Int64  // the end of the pause in Unix ns; 0 while closed
	probing atomic.Bool   // the one request is under way
	recent  atomic.Uint32 // the last requests while closed, a bit each, set for a failure

	mu       sync.Mutex // guards what follows, and all changes of what is above
	failures int        // in a row, while closed
	pause    time.Duration
	reason   string
	since    time.Time
	silent   bool // it opened because the replica said nothing
}

// State is Ready while a request may be sent, Cooling while none may.
func (b *Breaker) State(now time.Time) schedule.State {
	until := b.until.Load()
	if until == 0 || now.UnixNano() >= until && !b.probing.Load() {
		return schedule.Ready
	}
	return schedule.Cooling
}

// Reason says why the breaker is not closed and since when; "" while it is.
func (b *Breaker) Reason() (string, time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.reason, b.since
}

// claim takes the right to send a request. ok is false if there is none now;
// probe is true if the request is the one that a half-open breaker lets
// through, whose outcome it must be told.
func (b *Breaker) claim(now func() time.Time) (probe, ok bool) {
	until := b.until.Load()
	switch {
	case until == 0:
		return false, true
	case now().UnixNano() < until:
		return false, false
	}
	ok = b.probing.CompareAndSwap(false, true)
	return ok, ok
}

// Alive notes the first word of an answer. It ends the pause of a replica that
// was let alone for its silence, and the trial of the one request, but says
// nothing of how the answer will end.
func (b *Breaker) Alive(probe bool) {
	if !probe && b.until.Load() == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	// Else requests that were under way when it opened say nothing of now.
	if probe || b.silent {
		b.close()
	}
}

// Succeeded notes a request that was answered well, or for whose failure its
// client is to blame.
func (b *Breaker) Succeeded(probe bool) {
	b.Alive(probe)
	if b.recent.Load() == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failures = 0
	b.recent.Store(b.recent.Load() << 1 & recentMask)
}

// Refused notes an answer by which the replica asked for less, 503 or 429. The
// breaker opens for at least the time that the replica asked for, if it did,
// and the cooldown at most.
func (b *Breaker) Refused(now time.Time, reason string, probe bool, asked, cooldown time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.open(now, reason, probe, asked, cooldown)
}

// Failed notes a failure of the replica's: an error, a broken or a missing
// answer. It returns true if that opened the breaker.
func (b *Breaker) Failed(now time.Time, reason string, probe bool, cooldown time.Duration) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.until.Load() != 0 && !probe {
		return false // it was under way when it opened
	}
	b.failures++
	recent := b.recent.Load()<<1&recentMask | 1
	b.recent.Store(recent)
	if b.failures < failuresToOpen && bits.OnesCount32(recent) < recentFailures && !probe {
		return false
	}
	b.open(now, reason, probe, 0, cooldown)
	return true
}

// Silent notes that the replica, healthy or not, gives nothing to any of the
// many requests that it has.
func (b *Breaker) Silent(now time.Time, reason string, cooldown time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.until.Load() == 0 {
		b.open(now, reason, false, 0, cooldown)
		b.silent = true
	}
}

// Abandoned notes that the one request ended without a verdict: its client
// left.
func (b *Breaker) Abandoned() { b.probing.Store(false) }

// Reset closes the breaker: what it knew was of a process that is gone.
func (b *Breaker) Reset() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.close()
}

// open needs mu.
func (b *Breaker) open(now time.Time, reason string, probe bool, asked, cooldown time.Duration) {
	if b.until.Load() != 0 && !probe {
		return // requests that were under way when it opened
	}
	b.pause = min(max(firstPause, 2*b.pause), cooldown)
	if b.reason == "" {
		b.since = now
	}
	b.reason, b.silent = reason, false
	b.failures = 0
	b.recent.Store(0)
	b.until.Store(now.Add(min(max(b.pause, asked), cooldown)).UnixNano())
	b.probing.Store(false)
}

// close needs mu.
func (b *Breaker) close() {
	b.pause, b.reason, b.since, b.silent = 0, "", time.Time{}, false
	b.failures = 0
	b.recent.Store(0)
	b.until.Store(0)
	b.probing.Store(false)
}
