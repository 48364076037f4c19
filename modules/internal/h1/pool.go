package h1

import (
	"maps"
	"slices"
	"sync"
	"time"
)

// host keeps the unused connections to one host:port.
type host struct {
	t   *Transport
	key string

	mu    sync.Mutex
	conns []*conn     // longest unused first
	timer *time.Timer // runs until the host is gone
	gone  bool        // it is not in the transport's map any more
}

// take returns an unused connection on which the server has been silent, the
// last used one first, or nil. A look at it costs a system call, and cannot be
// saved: bytes that came unasked would be the answer to the next request.
func (t *Transport) take(key string) *conn {
	hosts := t.hosts.Load()
	if hosts == nil {
		return nil
	}
	h := (*hosts)[key]
	if h == nil {
		return nil
	}
	now, keep := time.Now(), or(t.IdleTimeout, DefaultIdleTimeout)
	for c := h.pop(); c != nil; c = h.pop() {
		if now.Sub(c.since) < keep && c.idle() {
			c.reused, c.since = true, now
			return c
		}
		c.shut()
	}
	return nil
}

// put keeps c for the next request, or closes it if there are enough.
func (t *Transport) put(c *conn) {
	for !t.host(c.key).push(c) {
		// Its host left the map a moment ago, so there will be another one.
	}
}

// host returns the host of the key, a new one if need be.
func (t *Transport) host(key string) *host {
	if hosts := t.hosts.Load(); hosts != nil && (*hosts)[key] != nil {
		return (*hosts)[key]
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	hosts := make(map[string]*host)
	if old := t.hosts.Load(); old != nil {
		if h := (*old)[key]; h != nil {
			return h
		}
		maps.Copy(hosts, *old)
	}
	h := &host{t: t, key: key}
	hosts[key] = h
	t.hosts.Store(&hosts)
	return h
}

// forget takes h, which is locked, out of the map.
func (t *Transport) forget(h *host) {
	t.mu.Lock()
	defer t.mu.Unlock()
	hosts := maps.Clone(*t.hosts.Load())
	delete(hosts, h.key)
	t.hosts.Store(&hosts)
	h.gone = true
}

func (h *host) pop() *conn {
	h.mu.Lock()
	defer h.mu.Unlock()
	last := len(h.conns) - 1
	if last < 0 {
		return nil
	}
	c := h.conns[last]
	h.conns[last] = nil
	h.conns = h.conns[:last]
	return c
}

// push reports whether h took care of c.
func (h *host) push(c *conn) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.gone {
		return false
	}
	if len(h.conns) >= or(h.t.MaxIdlePerHost, DefaultMaxIdlePerHost) {
		c.shut()
		return true
	}
	c.since = time.Now()
	h.conns = append(h.conns, c)
	if h.timer == nil {
		h.timer = time.AfterFunc(or(h.t.IdleTimeout, DefaultIdleTimeout), h.sweep)
	}
	return true
}

func (h *host) takeAll() []*conn {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := h.conns
	h.conns = nil
	return all
}

// sweep closes the connections that have been unused for too long, and leaves
// the map once there are none: hosts come and go.
func (h *host) sweep() {
	keep := or(h.t.IdleTimeout, DefaultIdleTimeout)
	h.mu.Lock()
	now := time.Now()
	n := 0
	for n < len(h.conns) && now.Sub(h.conns[n].since) >= keep {
		n++
	}
	old := slices.Clone(h.conns[:n])
	h.conns = slices.Delete(h.conns, 0, n)
	if len(h.conns) > 0 {
		h.timer.Reset(keep - now.Sub(h.conns[0].since))
	} else {
		h.t.forget(h)
	}
	h.mu.Unlock()
	for _, c := range old {
		c.shut()
	}
}
