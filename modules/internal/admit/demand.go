package admit

import (
	"math"
	"time"
)

// demand follows how many slots the requests of higher bands need at once, so
// that lower bands can leave as many free: with no slot free even a request that
// nobody stands before waits for one to end.
//
// It is a bucket that each arrival fills and that runs out as fast as slots are freed:
// how full it is after an arrival is how many free slots it took for that one not to
// wait. Where requests are short beside those of lower bands, they free slots for each
// other, faster than the bucket runs out: so what they had of slots at once, themselves
// included, bounds what those that run and what is free have to be. The headroom is what
// was enough for all but one in a hundred of the arrivals of late.
type demand struct {
	level float64   // in slots
	at    time.Time // when level was right; the last arrival
	free  levels    // of the bucket
	used  levels    // how many slots they had
	size  average   // of the requests, in tokens that they hold in each slot
}

// levels are how often each level was seen of late: in the last windows, of which the one that
// goes on is the latest. That a level was seen once is forgotten when its window is, however
// few come after it.
type levels struct {
	windows [windows]window
	number  int64 // of the latest
	sum     window
}

// window is how often each level was seen in one span of time.
type window struct {
	counts [maxHeadroom + 1]uint32
	total  uint32
}

// note notes a level.
func (l *levels) note(level float64, now time.Time) {
	l.move(now)
	h := int(min(math.Ceil(level), maxHeadroom))
	w := &l.windows[l.number%windows]
	w.counts[h]++
	w.total++
	l.sum.counts[h]++
	l.sum.total++
}

// move forgets the windows that are over for long.
func (l *levels) move(now time.Time) {
	number := max(0, now.UnixNano()/int64(decay/(windows-1)))
	for n := max(l.number+1, number-windows+1); n <= number; n++ {
		w := &l.windows[n%windows]
		for h, c := range w.counts {
			l.sum.counts[h] -= c
		}
		l.sum.total -= w.total
		*w = window{}
	}
	l.number = max(l.number, number)
}

// enough returns the level that all but such a share were at or below.
func (l *levels) enough(misses float64, now time.Time) int64 {
	l.move(now)
	beyond := uint32(0)
	for h := maxHeadroom; h > 0; h-- {
		if beyond += l.sum.counts[h]; float64(beyond) > misses*float64(l.sum.total) {
			return int64(h)
		}
	}
	return 0
}

const (
	// maxHeadroom bounds what is told apart.
	maxHeadroom = 127
	// decay is for how long an arrival counts, in full windows; for as long after the last one
	// headroom is kept at all.
	decay   = 30 * time.Second
	windows = 4
	// fastest bounds the rate at which slots are freed.
	fastest = 1e6
	// misses is the share of arrivals for which what was free by the first bound may be too
	// little, and rarely the share by the second: who misses either waits, so with both at
	// one in a hundred it would be one in fifty.
	misses, rarely = 0.01, 0.002
)

// arrive notes a request that takes so many slots, used with those that run, and will
// hold so many tokens; rate is how many slots are freed a second while all are taken, 0
// if that is not known.
func (d *demand) arrive(now time.Time, rate float64, slots, used, tokens int64) {
	d.size.add(float64(tokens)/float64(slots), recent)
	if d.at.IsZero() {
		d.at = now
	}
	dt := max(0, now.Sub(d.at).Seconds())
	d.at = now
	d.level = min(max(0, d.level-min(rate, fastest)*dt)+float64(slots), maxHeadroom)
	d.free.note(d.level, now)
	d.used.note(float64(used), now)
}

// of reports whether requests have come of late.
func (d *demand) of(now time.Time) bool { return !d.at.IsZero() && now.Sub(d.at) <= decay }

// headroom returns how many slots to leave free while the requests run on so many.
func (d *demand) headroom(running int64, now time.Time) int64 {
	if !d.of(now) {
		return 0
	}
	free, used := d.free.enough(misses, now), d.used.enough(rarely, now)
	if used == maxHeadroom { // it is not told apart
		return free
	}
	return max(0, min(free, used-running))
}

// average is an exponentially weighted mean of what it was told.
type average struct {
	value float64
	known bool
}

// add tells it one more; the last so many count for two thirds.
func (a *average) add(v, n float64) {
	if !a.known {
		*a = average{v, true}
		return
	}
	a.value += (v - a.value) / n
}

// drained counts the tokens of requests of one band that have ended, in a ring of
// one-second buckets.
type drained [drainWindow]bucket

type bucket struct{ second, requests, tokens int64 }

const (
	// drainWindow is the span over which the drain rate is measured, in seconds.
	drainWindow = 30
	// drainLeast is how many requests must have ended for a rate to mean something.
	drainLeast = 4
)

// add notes the end of a request.
func (d *drained) add(now time.Time, tokens int64) {
	b := &d[uint64(now.Unix())%drainWindow]
	if b.second != now.Unix() {
		*b = bucket{second: now.Unix()}
	}
	b.requests++
	b.tokens += tokens
}

// rate returns how many tokens a second have ended of a band and of those below it,
// since requests began to wait, or over the window. As long as some wait, that is as
// many as the replicas can do: for them, beside what they do for higher bands. ok is
// false while it is too early to say.
func (s *set) rate(band int, now time.Time) (tokens float64, ok bool) {
	c := &s.busy
	if c.since.IsZero() {
		return 0, false
	}
	// The bucket of the second that is over next is in use again.
	start := now.Add(-(drainWindow - 1) * time.Second).Truncate(time.Second)
	// What ended in the second in which they began to wait may have ended before.
	began := c.since.Add(time.Second - 1).Truncate(time.Second)
	if began.After(start) {
		start = began
	}
	span := now.Sub(start).Seconds()
	// Until most of those have ended that ran when requests began to wait, what ended
	// were the short ones.
	if span < 1 || c.left > c.before/10 && began.Equal(start) {
		return 0, false
	}
	first := start.Unix()
	var sum bucket
	for i := range s.drained[band:] {
		for _, b := range s.drained[band+i] {
			if b.second >= first && b.second <= now.Unix() {
				sum.requests += b.requests
				sum.tokens += b.tokens
			}
		}
	}
	return float64(sum.tokens) / span, sum.requests >= drainLeast && sum.tokens > 0
}
