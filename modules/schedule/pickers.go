package schedule

import "math"

// MaxScore picks the best total; of equals one at random, so that an idle
// fleet does not send everything to its first replica.
type MaxScore struct{}

// Pick implements [Picker].
func (MaxScore) Pick(req *Request, _ []*Replica, totals []float64) int {
	best, ties := 0, uint64(1)
	for i := 1; i < len(totals); i++ {
		switch {
		case totals[i] > totals[best]:
			best, ties = i, 1
		case totals[i] == totals[best]:
			ties++
		}
	}
	skip := req.Random % ties
	for i := best; ; i++ {
		if totals[i] != totals[best] {
			continue
		}
		if skip == 0 {
			return i
		}
		skip--
	}
}

// P2C takes two at random of the replicas within 5 % of the best total, and of
// these the one with fewer requests in flight for its weight. It spreads a
// burst of equal scores, where always taking the best would pile it up.
type P2C struct{}

// p2cWindow is how far below the best a replica may be and still be drawn.
const p2cWindow = 0.05

// Pick implements [Picker].
func (P2C) Pick(req *Request, replicas []*Replica, totals []float64) int {
	best := totals[0]
	for _, t := range totals[1:] {
		best = max(best, t)
	}
	floor := best - p2cWindow*math.Abs(best)
	n := uint64(0)
	for _, t := range totals {
		if t >= floor {
			n++
		}
	}
	first := req.Random % n
	if n == 1 {
		return nth(totals, floor, first)
	}
	// The second is drawn from the n-1 others.
	second := mix(req.Random) % (n - 1)
	if second >= first {
		second++
	}
	a, b := nth(totals, floor, first), nth(totals, floor, second)
	loadA := float64(replicas[a].Inflight) / replicas[a].Weight
	loadB := float64(replicas[b].Inflight) / replicas[b].Weight
	if loadB < loadA {
		return b
	}
	return a
}

// nth returns the index of the k-th total that is at least floor.
func nth(totals []float64, floor float64, k uint64) int {
	for i, t := range totals {
		if t < floor {
			continue
		}
		if k == 0 {
			return i
		}
		k--
	}
	return len(totals) - 1
}

// Softmax picks at random with probability proportional to
// exp(total/Temperature). Temperature 0 is argmax; a high one is uniform.
type Softmax struct {
	// Temperature is 0 or more, in units of the total score.
	Temperature float64
}

// Pick implements [Picker].
func (s Softmax) Pick(req *Request, replicas []*Replica, totals []float64) int {
	if s.Temperature <= 0 {
		return MaxScore{}.Pick(req, replicas, totals)
	}
	best := totals[0]
	for _, t := range totals[1:] {
		best = max(best, t)
	}
	sum := 0.0
	for _, t := range totals {
		sum += math.Exp((t - best) / s.Temperature)
	}
	// The top 53 bits are a uniform float in [0, 1).
	x := float64(req.Random>>11) / (1 << 53) * sum
	for i, t := range totals {
		x -= math.Exp((t - best) / s.Temperature)
		if x < 0 {
			return i
		}
	}
	// Rounding has left a rest, less than any replica's share.
	return MaxScore{}.Pick(req, replicas, totals)
}

// RoundRobin takes the candidates in turn, whatever their score.
type RoundRobin struct{}

// Pick implements [Picker].
func (RoundRobin) Pick(req *Request, replicas []*Replica, _ []float64) int {
	return int(req.Sequence % uint64(len(replicas)))
}

// Random takes any candidate with equal probability, whatever its score.
type Random struct{}

// Pick implements [Picker].
func (Random) Pick(req *Request, replicas []*Replica, _ []float64) int {
	return int(req.Random % uint64(len(replicas)))
}

// Interface guards.
var (
	_ Scorer = Queue{}
	_ Scorer = KV{}
	_ Scorer = Load{}
	_ Scorer = Pending{}
	_ Scorer = Inflight{}
	_ Scorer = PoolPriority{}
	_ Scorer = Session{}

	_ Picker = MaxScore{}
	_ Picker = P2C{}
	_ Picker = Softmax{}
	_ Picker = RoundRobin{}
	_ Picker = Random{}
)
