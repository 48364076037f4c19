package admit

import (
	"cmp"
	"slices"
	"time"

	"github.com/llmgw/llmgw/modules/internal/catalog"
	"github.com/llmgw/llmgw/modules/schedule"
)

// newWaiter returns a request that does not wait yet. It needs mu.
func (g *Gate) newWaiter(r *Request, now time.Time) *waiter {
	band, s := g.band(r.Band), g.set(r.Model, now)
	w := &waiter{
		model: r.Model, name: g.bands[band].Name, band: band, tenant: r.Tenant, weight: r.Weight, fallbacks: r.Fallbacks,
		alone: r.Alone, needs: s.needs(r), least: r.Least, asked: r.Deadline, bytes: r.Bytes, since: now.Add(-r.Waited), set: s,
	}
	if !(w.weight > 0) {
		w.weight = 1
	}
	return w
}

// prospect is what becomes of a request that comes now: it is refused, or else waits for
// a reason, or else goes.
type prospect struct {
	refused Reason
	reason  string
	view    view
	// How long it would wait, 0 if it would not or that is not known.
	wait time.Duration
}

// judge looks for what becomes of a request, and sets its deadline if it is to wait. It
// needs mu.
func (g *Gate) judge(w *waiter, now time.Time) (p prospect) {
	s, b := w.set, &g.bands[w.band]
	p.view, p.reason, _ = s.mayGo(b, w.band, w, now)
	switch {
	case p.view.ready > 0 && float64(w.least) > p.view.room:
		p.refused = ReasonTooLarge
		return p
	case w.elsewhere(p.reason):
		p.refused = ReasonNoReplica
		return p
	case p.reason == "" && s.before(b, w.band):
		p.reason = WaitTurn
	}
	if p.reason == "" {
		return p
	}
	w.setDeadline(b.Deadline, p.reason)
	p.wait, _ = s.wait(w, b, now)
	switch _, ok := g.room(w); {
	case p.wait > 0 && p.wait > w.deadline.Sub(now) && p.reason != WaitReplica:
		p.refused = ReasonDeadline
	case !ok:
		p.refused = ReasonFull
	}
	return p
}

// elsewhere reports whether it is not to begin to wait for this reason, since none is to or
// since a fallback can serve it.
func (w *waiter) elsewhere(reason string) bool {
	switch reason {
	case WaitReplica:
		return w.model.Admission.ReplicaWait == 0
	case WaitFull:
		return w.fallback(nil) != nil
	}
	return false
}

// fallback returns the first that has a replica that takes work, or nil. serves remembers
// what was found of models; nil does not.
func (w *waiter) fallback(serves map[*catalog.Model]bool) *catalog.Model {
	for _, m := range w.fallbacks {
		found, known := serves[m]
		if !known {
			found = slices.ContainsFunc(m.Endpoints, func(e *catalog.Endpoint) bool { return e.Replica.State() == schedule.Ready })
			if serves != nil {
				serves[m] = found
			}
		}
		if found {
			return m
		}
	}
	return nil
}

// setDeadline bounds the wait for this reason: by the queue's limit, and by what the
// request asks for, or else its band.
func (w *waiter) setDeadline(band time.Duration, reason string) {
	ttl := w.model.Admission.QueueTTL
	if reason == WaitReplica {
		ttl = w.model.Admission.ReplicaWait
	}
	limit := cmp.Or(w.asked, band)
	if w.byTTL = limit <= 0 || limit >= ttl; w.byTTL {
		limit = ttl
	}
	w.deadline = w.since.Add(limit)
}
