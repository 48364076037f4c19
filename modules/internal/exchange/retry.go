package exchange

import (
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/llmgw/llmgw/modules/internal/catalog"
)

// The retry budget: a fifth of the requests may be retries, and ten a second
// besides, so that a quiet gateway can retry at all. The shape is Finagle's.
const (
	retryShare   = 0.2
	retryFloor   = 10
	retrySavings = 100
)

// RetryBudget keeps retries from multiplying an outage: when everything fails,
// each request would otherwise become several. Safe for concurrent use.
type RetryBudget struct {
	saved atomic.Int64 // in thousandths of a retry
	floor *rate.Limiter
}

// NewRetryBudget returns a budget with nothing saved.
func NewRetryBudget() *RetryBudget {
	return &RetryBudget{floor: rate.NewLimiter(retryFloor, retryFloor)}
}

// Deposit notes a request.
func (b *RetryBudget) Deposit() {
	if b.saved.Load() < retrySavings*1000 {
		b.saved.Add(retryShare * 1000)
	}
}

// Give gives one back that was not needed.
func (b *RetryBudget) Give() { b.saved.Add(1000) }

// Take takes one retry, or returns false if there is none.
func (b *RetryBudget) Take(now time.Time) bool {
	for {
		saved := b.saved.Load()
		if saved < 1000 {
			return b.floor.AllowN(now, 1)
		}
		if b.saved.CompareAndSwap(saved, saved-1000) {
			return true
		}
	}
}

// MayRetry takes the right to send the request to another replica, if it has
// not been sent to as many as it may, or another model may serve it, and the
// budget allows it.
func (x *Exchange) MayRetry() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.retries = (x.tries <= x.serving.Reliability.Retries || x.fallback() != nil) && x.rt.Retry.Take(x.rt.Now())
	return x.retries
}

// mayWait reports whether the request may wait until a replica takes it.
func (x *Exchange) mayWait() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.full()
}

// MayResend does so for a request whose connection broke without an answer: that
// is allowed once, and only where the config does not forbid it.
func (x *Exchange) MayResend() bool {
	x.mu.Lock()
	allowed := x.resends()
	x.resent = x.resent || allowed
	x.mu.Unlock()
	return allowed && x.MayRetry()
}

// resends reports whether the one resend is allowed and still to be had. It needs
// mu.
func (x *Exchange) resends() bool { return x.serving.Reliability.ResendAfterSend && !x.resent }

// elsewhere reports whether there is another replica of the model to send the
// request to. It needs mu.
func (x *Exchange) elsewhere() bool {
	return x.tries <= x.serving.Reliability.Retries && slices.ContainsFunc(x.serving.Endpoints, func(e *catalog.Endpoint) bool {
		return e != x.endpoint && fit(e) && !slices.Contains(x.tried, e.Replica)
	})
}

// Alive notes the first word of the current replica's answer.
func (x *Exchange) Alive() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.slot.Alive()
	if x.lease.Alone() { // others may go there, too
		x.slot.Sequences(x.lease.Sequences())
	}
}

// Resent notes that the request was sent anew to the current replica, over
// another connection, by the transport itself: that is the one time.
func (x *Exchange) Resent() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.resent = true
}

// Succeeded notes that the current replica answered well, or with an error that
// the client is to blame for.
func (x *Exchange) Succeeded() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.slot.Succeeded()
}

// Refused notes that the current replica asked for less work, for so long if it
// said how long. busy says that it may have had too much to do for this request.
func (x *Exchange) Refused(reason string, asked time.Duration, busy bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	cooldown := x.serving.Reliability.Cooldown
	if n := x.sequences(); busy && n > 1 { // its own number may be what is too many
		if !x.slot.TooMany(n, asked, cooldown) && x.lease.Alone() {
			x.joined++
		}
		x.alone = true
	} else {
		x.slot.Refused(reason, asked, cooldown)
	}
	if x.endpoint != nil {
		x.turnedAway = append(x.turnedAway, x.endpoint.Replica)
	}
}

// silent notes that the request has waited for so long without a word from the
// current replica.
func (x *Exchange) silent(waited time.Duration) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.slot.Silent(waited, x.serving.Reliability.Cooldown)
}

// ReplicaFailed notes that the current replica failed.
func (x *Exchange) ReplicaFailed(reason string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.slot.Failed(reason, x.serving.Reliability.Cooldown)
}
