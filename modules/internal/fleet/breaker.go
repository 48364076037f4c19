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
	// 429) of a single sequence by one that has nothing else to do opens it at once.
	failuresToOpen = 3
	// So do so many of the last 20 requests: one that fails now and then, and
	// fast, would else look idle and get more than its share.
	recentFailures = 10
	recentMask     = 1<<20 - 1
	// silentToOpen is how many requests must wait in vain at once, while the
	// replica says nothing to any other either: one or two may just be long.
	silentToOpen = 3
	// trialPatience is how long the one request that is let through keeps others
	// out: a long one must not decide for minutes.
	trialPatience = 5 * time.Second
)

// Breaker keeps a replica out of use for a while after it refused or failed
// requests. It is closed until then; open for a pause, in which the replica is
// [schedule.Cooling]; and half-open after it, when one request is let through:
// if that one succeeds it closes, else it opens for twice as long.
//
// The zero Breaker is closed. Safe for concurrent use.
type Breaker struct {
	until  atomic.Int64  // the end of the pause in Unix ns; 0 while closed
	trial  atomic.Int64  // when the one request was let through, Unix ns, which also tells it from others; 0 if none is under way
	recent atomic.Uint32 // the last requests while closed, a bit each, set for a failure

	mu       sync.Mutex // guards what follows, and all changes of what is above
	failures int        // in a row, while closed
	pause    time.Duration
	reason   string
	since    time.Time
	silent   bool // it opened because the replica said nothing
}

// State is Ready while a request may be sent, Cooling while none may.
func (b *Breaker) State(now time.Time) schedule.State {
	if until := b.until.Load(); until == 0 || b.free(until, now) {
		return schedule.Ready
	}
	return schedule.Cooling
}

// free reports whether one request may be let through now.
func (b *Breaker) free(until int64, now time.Time) bool {
	trial := b.trial.Load()
	return now.UnixNano() >= until && (trial == 0 || now.UnixNano()-trial >= int64(trialPatience))
}

// Reason says why the breaker is not closed and since when; "" while it is.
func (b *Breaker) Reason() (string, time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.reason, b.since
}

// claim takes the right to send a request. ok is false if there is none now;
// probe is not 0 if the request is one that a half-open breaker lets through,
// and names it: the breaker must be told of its outcome.
func (b *Breaker) claim(now func() time.Time) (probe int64, ok bool) {
	until := b.until.Load()
	if until == 0 {
		return 0, true
	}
	at, trial := now(), b.trial.Load()
	if !b.free(until, at) {
		return 0, false
	}
	ok = b.trial.CompareAndSwap(trial, at.UnixNano())
	return at.UnixNano(), ok
}

// Alive notes the first word of an answer. It ends the pause of a replica that
// was let alone for its silence, and lets others through beside the one request
// on trial, but says nothing of how the answer will end.
func (b *Breaker) Alive(probe int64) {
	if b.until.Load() == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	// Else requests that were under way when it opened say nothing of now.
	if probe != 0 || b.silent {
		b.close()
	}
}

// Succeeded notes a request that was answered well, or for whose failure its
// client is to blame.
func (b *Breaker) Succeeded(probe int64) {
	b.Alive(probe)
	if probe == 0 && b.recent.Load() == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if probe != 0 && b.until.Load() == 0 {
		b.pause = 0
	}
	b.failures = 0
	b.recent.Store(b.recent.Load() << 1 & recentMask)
}

// Refused notes an answer by which the replica asked for less, 503 or 429. The
// breaker opens for at least the time that the replica asked for, if it did,
// and the cooldown at most.
func (b *Breaker) Refused(now time.Time, reason string, probe int64, asked, cooldown time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.open(now, reason, probe, asked, cooldown)
}

// Failed notes a failure of the replica's: an error, a broken or a missing
// answer. It returns true if that opened the breaker.
func (b *Breaker) Failed(now time.Time, reason string, probe int64, cooldown time.Duration) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.until.Load() != 0 && probe == 0 {
		return false // it was under way when it opened
	}
	b.failures++
	recent := b.recent.Load()<<1&recentMask | 1
	b.recent.Store(recent)
	if b.failures < failuresToOpen && bits.OnesCount32(recent) < recentFailures && probe == 0 {
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
		b.open(now, reason, 0, 0, cooldown)
		b.silent = true
	}
}

// Abandoned notes that the one request ended without a verdict: its client
// left.
func (b *Breaker) Abandoned(probe int64) { b.trial.CompareAndSwap(probe, 0) }

// Reset closes the breaker: what it knew was of a process that is gone.
func (b *Breaker) Reset() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.close()
	b.pause = 0
}

// open needs mu.
func (b *Breaker) open(now time.Time, reason string, probe int64, asked, cooldown time.Duration) {
	if b.until.Load() != 0 && probe == 0 {
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
	b.trial.Store(0)
}

// close needs mu. The pause is kept: the request on trial may still fail.
func (b *Breaker) close() {
	b.reason, b.since, b.silent = "", time.Time{}, false
	b.failures = 0
	b.recent.Store(0)
	b.until.Store(0)
	b.trial.Store(0)
}
