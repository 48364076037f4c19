package admit

import "container/heap"

// crowd is the tenants whose requests of one band wait for one model, so that a full
// queue knows who has most in it, by his weight. Adding and removing a request is
// O(log tenants).
type crowd struct {
	tenants map[string]*share
	most    heaped[*share]
}

// share is what one of them has.
type share struct {
	tenant string
	weight float64 // of its newest request
	list   list    // by arrival
	index  int     // in most
}

// size is how many requests it has by its weight.
func (s *share) size() float64 { return float64(s.list.n) / s.weight }

func (s *share) at() *int { return &s.index }

func (s *share) before(o *share) bool { return s.size() > o.size() }

func (c *crowd) add(w *waiter) {
	if c.tenants == nil {
		c.tenants = make(map[string]*share)
	}
	s := c.tenants[w.tenant]
	if s == nil {
		s = &share{tenant: w.tenant, index: -1}
		c.tenants[w.tenant] = s
	}
	s.list.add(&w.inShare)
	s.weight, w.share = w.weight, s
	if s.index < 0 {
		heap.Push(&c.most, s)
		return
	}
	heap.Fix(&c.most, s.index)
}

func (c *crowd) remove(w *waiter) {
	s := w.share
	s.list.remove(&w.inShare)
	w.share = nil
	if s.list.n > 0 {
		heap.Fix(&c.most, s.index)
		return
	}
	heap.Remove(&c.most, s.index)
	delete(c.tenants, s.tenant)
}

// longest returns the newest request of the tenant that has most, other than w's, if he
// has more than w's tenant would have with w. Otherwise it returns nil.
func (c *crowd) longest(w *waiter) *waiter {
	own := 1.0
	if s := c.tenants[w.tenant]; s != nil {
		own += float64(s.list.n)
	}
	var most *share
	for _, s := range c.most[:min(len(c.most), 3)] { // the first, or one of the two below it
		if s.tenant != w.tenant && (most == nil || s.size() > most.size()) {
			most = s
		}
	}
	if most == nil || most.size() <= own/w.weight {
		return nil
	}
	return most.list.last.w
}
