package fleet

import (
	"sync"
	"sync/atomic"
	"time"
)

// many is what a replica has said of requests of many sequences: it has refused one although
// it had nothing else. That may be too much for it, which is no fault of its, and tells nothing of
// smaller ones. So those of as many sequences are kept from it for a pause, which doubles
// when one is refused again.
//
// The zero many says nothing. Safe for concurrent use.
type many struct {
	least atomic.Int64 // how many sequences are too many; 0 if it has refused none
	until atomic.Int64 // the end of the pause, Unix ns

	mu    sync.Mutex // guards what follows, and all changes of what is above
	pause time.Duration
}

// takes reports whether one of n sequences may be sent there.
func (m *many) takes(now time.Time, n int64) bool {
	least := m.least.Load()
	return least == 0 || n < least || now.UnixNano() >= m.until.Load()
}

// refused notes that one of n was, by which the replica asked for so much time.
func (m *many) refused(now time.Time, n int64, asked, cooldown time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	least := m.least.Load()
	switch {
	case least == 0:
		m.pause, least = firstPause, n
	case now.UnixNano() < m.until.Load() && n >= least: // it was under way
		return
	default:
		m.pause, least = 2*m.pause, min(least, n)
	}
	m.pause = min(m.pause, cooldown)
	m.until.Store(now.Add(min(max(m.pause, asked), cooldown)).UnixNano())
	m.least.Store(least)
}

// good notes that one of n was answered well.
func (m *many) good(n int64) {
	if least := m.least.Load(); least == 0 || n < least {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.least.Store(0)
}

// TakesMany reports whether a request of n sequences may be sent to the replica as far as their
// number is concerned: it has not refused as many of late when it had nothing else.
func (r *Replica) TakesMany(now time.Time, n int64) bool { return n <= 1 || r.many.takes(now, n) }
