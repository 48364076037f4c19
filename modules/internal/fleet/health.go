package fleet

import (
	"errors"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/llmgw/llmgw/modules/schedule"
)

// The numbers of reachability.
const (
	// ProbeInterval is how often a replica that is down is probed.
	ProbeInterval = 500 * time.Millisecond
	// probesToRecover is how many probes in a row bring it back.
	probesToRecover = 2
	// scrapesToTrip is how many failed scrapes in a row take it out.
	scrapesToTrip = 3
)

// Health is whether a replica can be reached: up until a connection to it
// fails or three scrapes in a row do, then down until two probes in a row
// succeed. The zero Health is up. Safe for concurrent use.
type Health struct {
	now func() time.Time

	down atomic.Bool // read on the hot path; the rest is under mu

	mu      sync.Mutex
	reason  string
	since   time.Time
	probes  int // good ones in a row while down
	scrapes int // failed ones in a row while up
	wake    chan struct{}

	failing atomic.Bool  // scrapes is above 0
	refused atomic.Int64 // since when nothing but refusals came of dialling it, Unix ns; 0 if never
}

// State is Ready or Down.
func (h *Health) State() schedule.State {
	if h.down.Load() {
		return schedule.Down
	}
	return schedule.Ready
}

// Reason says why the replica is down and since when; "" while it is up.
func (h *Health) Reason() (string, time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.reason, h.since
}

// ConnectFailed takes the replica out: a request could not reach it. reason
// must hold no secret, since the admin API shows it.
func (h *Health) ConnectFailed(reason string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.trip(reason)
}

// Dialled notes how an attempt to connect ended, whoever made it; nil is a
// success.
func (h *Health) Dialled(err error) {
	if !errors.Is(err, syscall.ECONNREFUSED) {
		if h.refused.Load() != 0 {
			h.refused.Store(0)
		}
		return
	}
	h.refused.CompareAndSwap(0, h.now().UnixNano())
}

// RefusedFor returns for how long nobody has listened at the replica's address:
// 0 if somebody does, or if it is not known.
func (h *Health) RefusedFor() time.Duration {
	since := h.refused.Load()
	if since == 0 {
		return 0
	}
	return h.now().Sub(time.Unix(0, since))
}

// ScrapeFailed notes a failed scrape; the third in a row takes the replica
// out. It returns true if it did.
func (h *Health) ScrapeFailed(reason string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.scrapes++
	h.failing.Store(true)
	if h.scrapes < scrapesToTrip || h.down.Load() {
		return false
	}
	h.trip(reason)
	return true
}

// ScrapeOK notes that the metrics page, or its honest absence, was read.
func (h *Health) ScrapeOK() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.scrapes = 0
	h.failing.Store(false)
}

// Answered notes that the replica has answered a request: then it is there, and
// scrapes that failed are a matter of load, the gateway's own perhaps.
func (h *Health) Answered() {
	if h.failing.Load() {
		h.ScrapeOK()
	}
}

// Probed notes the outcome of a probe of a replica that is down; reason is ""
// if it succeeded. It returns true if this brought the replica back.
func (h *Health) Probed(reason string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.down.Load() {
		return false
	}
	if reason != "" {
		h.probes, h.reason = 0, reason
		return false
	}
	h.probes++
	if h.probes < probesToRecover {
		return false
	}
	h.down.Store(false)
	h.failing.Store(false)
	h.reason, h.since, h.probes, h.scrapes = "", time.Time{}, 0, 0
	return true
}

// Tripped returns a channel that receives when the replica goes down, so that
// its prober need not poll. There is one such channel; it holds one signal.
func (h *Health) Tripped() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.signal()
}

func (h *Health) signal() chan struct{} {
	if h.wake == nil {
		h.wake = make(chan struct{}, 1)
	}
	return h.wake
}

// trip needs mu.
func (h *Health) trip(reason string) {
	h.probes = 0
	if h.down.Load() {
		return
	}
	h.down.Store(true)
	h.reason, h.since = reason, h.now()
	select {
	case h.signal() <- struct{}{}:
	default:
	}
}
