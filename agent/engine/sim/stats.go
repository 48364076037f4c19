package sim

import (
	"slices"
	"time"
)

// histogram counts observations in cumulative-on-write-out buckets.
type histogram struct {
	bounds []float64 // upper bounds, ascending; one more bucket is above them
	counts []uint64
	sum    float64
	n      uint64
}

func newHistogram(bounds []float64) *histogram {
	return &histogram{bounds: bounds, counts: make([]uint64, len(bounds)+1)}
}

func (h *histogram) observe(v float64) {
	i, _ := slices.BinarySearch(h.bounds, v) // a bound belongs to its bucket
	h.counts[i]++
	h.sum += v
	h.n++
}

// The buckets of vLLM's latency histograms, in seconds.
var (
	firstTokenBuckets = []float64{0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560}
	interTokenBuckets = []float64{0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80}
	requestBuckets    = []float64{0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680}
)

// finishReasons are the labels of vllm:request_success_total in vLLM's order.
var finishReasons = [...]string{"stop", "length", "abort", "error", "repetition"}

// stats is what one rank has counted since it started or was reset.
type stats struct {
	created                         time.Time
	queries, hits                   float64 // tokens
	prompt, promptCached, generated float64 // tokens
	preemptions                     float64
	success                         [len(finishReasons)]float64
	firstToken, interToken, whole   *histogram
	queueTime                       *histogram
	loras                           map[loraSet]time.Time
}

func newStats() stats {
	return stats{
		created:    time.Now(),
		firstToken: newHistogram(firstTokenBuckets),
		interToken: newHistogram(interTokenBuckets),
		whole:      newHistogram(requestBuckets),
		queueTime:  newHistogram(requestBuckets),
		loras:      make(map[loraSet]time.Time),
	}
}

// token counts the next token of s, before it is added.
func (st *stats) token(s *sequence, now time.Time) {
	if s.produced > 0 {
		st.interToken.observe(now.Sub(s.last).Seconds())
		return
	}
	st.firstToken.observe(now.Sub(s.arrived).Seconds())
	st.prompt += float64(len(s.prompt))
	st.promptCached += float64(s.cached)
}

// finished counts the end of s.
func (st *stats) finished(s *sequence, now time.Time) {
	st.whole.observe(now.Sub(s.arrived).Seconds())
	if i := slices.Index(finishReasons[:], s.out.finish); i >= 0 {
		st.success[i]++
	}
}
