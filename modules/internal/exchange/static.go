package exchange

import (
	"github.com/cespare/xxhash/v2"

	"github.com/llmgw/llmgw/modules/internal/catalog"
	"github.com/llmgw/llmgw/modules/internal/fleet"
	"github.com/llmgw/llmgw/modules/internal/pipeline"
	"github.com/llmgw/llmgw/modules/schedule"
)

// Static is a candidate that somebody else proxies to, and counts.
type Static struct {
	// ID is its address.
	ID string
	// Inflight is how many requests are on it.
	Inflight int
	// Replica is what is known of it beyond that; nil if nothing is.
	Replica *fleet.Replica
}

// PickStatic returns the index of the candidate that the profile picks under
// the model's settings, or -1 if there is none. profile "" is the default one.
// Whether a candidate can be reached is for its proxy to know.
func (rt *Runtime) PickStatic(m *catalog.Model, profile, session string, sequence uint64, candidates []Static) int {
	req := rt.request(m, sequence, session, 0, 0)
	d := pipeline.NewDecision()
	defer d.Free()
	for _, s := range candidates {
		c := schedule.Replica{
			Waiting: schedule.Unknown, Running: schedule.Unknown, KVUsage: schedule.Unknown,
			BatchCapacity: schedule.Unknown, DrainRate: schedule.Unknown,
		}
		if s.Replica != nil {
			s.Replica.Fill(&c, req.Now, 0, 0)
		} else {
			c.Hash = xxhash.Sum64String(s.ID)
		}
		c.ID, c.Inflight, c.Weight = s.ID, s.Inflight, 1
		if c.State != schedule.Draining {
			c.State = schedule.Ready
		}
		d.Candidates = append(d.Candidates, c)
	}
	if !d.Decide(rt.profile(profile), &req) {
		return -1
	}
	return d.Pick
}
