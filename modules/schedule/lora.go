package schedule

// LoRA scores 1 for a replica that has the request's adapter loaded, 0.5 for one with a slot free for it,
// and 0 for one without; of one that nobody knows it is 0.25. Loading an adapter takes time, and a
// slot from another.
//
// A replica that has much more in flight than others scores as though the adapter were not loaded, if that is
// better than nothing elsewhere: so a hot adapter spreads over several. For a request without an adapter
// all score 0.
type LoRA struct{}

// bringSlack is how many requests more than others a replica may have before its adapter is brought to
// another one: fewer are done before that is.
const bringSlack = 4

// Crowded reports whether all of the replicas that have the request's adapter are so busy that it is
// worth bringing it to another.
func Crowded(replicas []*Replica) bool {
	c := crowdOf(replicas)
	for _, r := range replicas {
		if !r.Absent && !c.busy(r, bringSlack) && !(full(r) && c.room) {
			return false
		}
	}
	return true
}

// Score implements [Scorer].
func (LoRA) Score(req *Request, replicas []*Replica, scores []float64) {
	c, imbalanced := crowdOf(replicas), Imbalanced(req, replicas)
	for i, r := range replicas {
		switch r.Adapter {
		case AdapterNone, AdapterNoRoom, AdapterFailed:
			scores[i] = 0
		case AdapterLoaded:
			scores[i] = 1
			if imbalanced || c.overloaded(r) {
				scores[i] = 0.5
			}
		case AdapterRoom:
			scores[i] = 0.5
		case AdapterUnknown:
			scores[i] = 0.25
		}
	}
}
