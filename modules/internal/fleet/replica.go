package fleet

import (
	"math"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/llmgw/llmgw/modules/schedule"
)

// StatsMaxAge is how old scraped values may be and still count. Older ones are
// unknown, and own counts decide.
const StatsMaxAge = 5 * time.Second

// Replica is one live replica. Safe for concurrent use.
type Replica struct {
	// ID is host:port, with the scheme and path in front and behind where they
	// are not plain http and empty.
	ID string
	// URL is the base URL of its API.
	URL *url.URL
	// Serial tells it from all others, earlier ones at the same address too.
	Serial uint64

	// Health says whether it can be reached, Breaker whether it is let alone for
	// a while.
	Health  Health
	Breaker Breaker

	now      func() time.Time
	hash     uint64
	inflight atomic.Int64
	extra    atomic.Int64 // sequences of these beyond one for each
	pending  atomic.Int64
	reused   atomic.Int64 // of the pending tokens those that are not to be computed
	prefill  atomic.Int64 // uncached tokens of the prompts of those whose answer has not begun
	silent   atomic.Int64 // how many of the requests have waited for long
	progress atomic.Int64 // when it last said something to one of them, Unix ns
	// reserved counts requests that may go to it, in the low bits, and all that
	// ever could; reservedTokens are the tokens of the former. See Reserve.
	reserved       atomic.Uint64
	reservedTokens atomic.Int64
	// batch is the learnt batch capacity; 0 if it is not known. proven is the most
	// that it was seen to run at once, answering how many have had an answer begin.
	batch, proven, answering atomic.Int64
	ran                      atomic.Int64 // the most that it said it ran
	peak                     atomic.Int64 // the most that answering was since the last scrape
	draining                 atomic.Bool
	epoch                    atomic.Uint64
	loras                    loras
	full                     full
	many                     many
	page                     page
	stats                    atomic.Pointer[Stats]
	models                   atomic.Pointer[[]string]
	adapters                 atomic.Pointer[[]Adapter]
	drain                    drainRate
}

// serial is the one given last.
var serial atomic.Uint64

func newReplica(base *url.URL, now func() time.Time) *Replica {
	id := base.Host + base.Path
	if base.Scheme != "http" {
		id = base.Scheme + "://" + id
	}
	r := &Replica{ID: id, URL: base, Serial: serial.Add(1), hash: xxhash.Sum64String(id), now: now}
	r.Health.now = now
	return r
}

// Stats is what an engine said of itself in one scrape. A set of Stats is
// immutable once it is stored.
type Stats struct {
	// At is when the scrape ended; zero if there never was one.
	At time.Time
	// Waiting and Running are requests, summed over data-parallel ranks. Deferred is how many of
	// those that wait do so for an adapter's slot, or a transfer, and not for room; 0 if it does not say.
	Waiting, Running schedule.Gauge
	Deferred         float64
	// LoRAs are the adapters that its requests use now, of MaxLoRAs that it can have loaded at
	// once, 0 if it does not say.
	LoRAs    []string
	MaxLoRAs int
	// KVUsage is the share of KV blocks in use, 0 to 1: that of the fullest
	// data-parallel rank, since a request that lands there suffers it.
	KVUsage schedule.Gauge
	// Prompted is how many tokens of prompts it has read since it started, Started when that
	// was, in Unix s.
	Prompted, Started schedule.Gauge
	// BlockSize is in tokens, Blocks the number of KV blocks over all ranks;
	// both 0 if the engine does not say.
	BlockSize, Blocks int
	// Failed says why the last scrape after At gave nothing; "" if it did not
	// fail.
	Failed string
	// NoMetrics is true if the engine has no metrics page (404, 405 or 501), or none
	// for the gateway (401 or 403).
	NoMetrics bool
	// Missing are required fields that the page lacks.
	Missing []string
	// Frozen is true if the values stand still although the gateway's own requests
	// came or went: they do not count. It is for [Replica.SetStats] to say.
	Frozen bool

	// own and ownTokens are the sequences and tokens that the gateway had on the
	// replica at At, answering how many of its requests had had an answer begin.
	own, ownTokens, answering int64
}

// maxBatch bounds the batch capacity that an engine can claim.
const maxBatch = math.MaxInt32

// kvFull is the KV usage above which an engine may run as few requests as it does
// for want of memory.
const kvFull = 0.9

// SetStats stores the values of a scrape and learns the batch capacity from it, the
// most that the engine was seen to run. Only one in which requests wait runs as many as
// it can: one that is merely not asked for more must not look full at that. What was
// learnt while the prompts of a burst were read is too low: when the engine runs more and
// none wait, it is unknown again. Values that are stored again, since a later scrape
// failed, teach nothing. The caller must not change s afterwards. It returns whether the engine
// has lost what it knew since the scrape before, though nobody saw it down.
func (r *Replica) SetStats(s *Stats) (reset bool) {
	if last := r.Stats(); s.Failed != "" {
		s.own, s.ownTokens, s.answering, s.Frozen = last.own, last.ownTokens, last.answering, last.Frozen
		r.stats.Store(s)
		return false
	}
	last := r.Stats()
	if s.Started.Known() && last.Started.Known() && s.Started != last.Started {
		r.newProcess()
	}
	reset = s.Prompted < last.Prompted
	s.own, s.ownTokens = r.inflight.Load()+r.extra.Load(), r.pending.Load()
	s.answering = r.answering.Load()
	s.Frozen = r.page.frozen(s)
	r.peak.Store(s.answering)
	r.stats.Store(s)
	if !s.Running.Known() || s.Frozen {
		return reset
	}
	running := int64(min(float64(s.Running), maxBatch))
	raise(&r.proven, running)
	r.ran.Store(max(r.ran.Load(), running))
	switch seen := r.batch.Load(); {
	case seen == 0 && running > 0 && s.full():
		r.batch.Store(r.ran.Load())
	case seen > 0 && running > seen && s.queued() > 0:
		r.batch.Store(running)
	case seen > 0 && running > seen:
		r.batch.Store(0)
	}
	return reset
}

// queues reports whether requests wait in the engine. One or two of many wait for its
// next step alone.
func (s *Stats) queues() bool { return float64(s.queued()) >= max(2, float64(s.Running)/8) }

// queued is how many requests wait for room.
func (s *Stats) queued() schedule.Gauge { return max(0, s.Waiting-schedule.Gauge(s.Deferred)) }

// full reports whether the engine runs as many requests as it can. Others may wait for
// memory.
func (s *Stats) full() bool { return s.queues() && !(s.KVUsage > kvFull) }

// begun notes that the answer to one more request has begun.
func (r *Replica) begun() {
	n := r.answering.Add(1)
	raise(&r.proven, n)
	raise(&r.peak, n)
}

// runs returns the most that the engine is known to have run at once since it said s: what it said, and
// those more whose answers have begun.
func (r *Replica) runs(s *Stats) schedule.Gauge {
	return s.Running + schedule.Gauge(max(0, r.peak.Load()-s.answering))
}

// raise makes a number at least as high as another.
func raise(n *atomic.Int64, to int64) {
	for {
		seen := n.Load()
		if to <= seen || n.CompareAndSwap(seen, to) {
			return
		}
	}
}

// Stats returns what the engine said last; never nil.
func (r *Replica) Stats() *Stats {
	if s := r.stats.Load(); s != nil {
		return s
	}
	return &neverScraped
}

// counts reports whether the values still say how the engine is.
func (s *Stats) counts(now time.Time) bool { return now.Sub(s.At) <= StatsMaxAge && !s.Frozen }

var neverScraped = Stats{
	Waiting: schedule.Unknown, Running: schedule.Unknown, KVUsage: schedule.Unknown,
	Prompted: schedule.Unknown, Started: schedule.Unknown,
}

// Epoch tells the process that runs from those that ran before at the same place.
func (r *Replica) Epoch() uint64 { return r.epoch.Load() }

// newProcess forgets what the process that ran before had in its memory.
func (r *Replica) newProcess() {
	r.epoch.Add(1)
	r.loras.mu.Lock()
	defer r.loras.mu.Unlock()
	r.adapters.Store(nil)
	r.loras.reset()
}

// Restarted forgets what held for the process that ran before: statistics, the
// batch capacity, what it refused.
func (r *Replica) Restarted() {
	r.newProcess()
	r.stats.Store(nil)
	r.batch.Store(0)
	r.proven.Store(0)
	r.ran.Store(0)
	r.full.reset()
	r.many.least.Store(0)
	r.page.reset()
	r.Breaker.Reset()
}

// SetModels stores the names that the engine serves, as /v1/models lists them.
// It returns whether they differ from the last ones.
func (r *Replica) SetModels(names []string) bool {
	old := r.models.Swap(&names)
	if old == nil || len(*old) != len(names) {
		return true
	}
	for i, n := range names {
		if (*old)[i] != n {
			return true
		}
	}
	return false
}

// Models returns the names that the engine lists, and whether it was ever
// asked with success.
func (r *Replica) Models() ([]string, bool) {
	if m := r.models.Load(); m != nil {
		return *m, true
	}
	return nil, false
}

// SetDraining starts or ends a drain: a draining replica takes no new work and
// finishes what it has.
func (r *Replica) SetDraining(on bool) { r.draining.Store(on) }

// Draining reports whether the replica is draining.
func (r *Replica) Draining() bool { return r.draining.Load() }

// Inflight returns how many of llmgw's requests are on it now.
func (r *Replica) Inflight() int { return int(r.inflight.Load()) }

// PendingTokens returns the estimated tokens of these requests, less those that are cached.
func (r *Replica) PendingTokens() int64 { return r.pending.Load() - r.reused.Load() }

// Progressed notes that a part of an answer has come.
func (r *Replica) Progressed(now time.Time) {
	// To the second is enough, and so streams do not fight for it.
	if at := now.UnixNano(); at-r.progress.Load() > int64(time.Second) {
		r.progress.Store(at)
	}
}

// Completed notes that it answered a request to the end, for the drain rate.
func (r *Replica) Completed() { r.drain.add(r.now()) }

// State returns whether it may be given work, and why not.
func (r *Replica) State() schedule.State { return r.state(r.now(), r.sequences()) }

// Full says why and since when it takes no more than it has; "" if it does.
func (r *Replica) Full() (reason string, since time.Time) {
	return r.full.why(r.now(), r.sequences())
}

// sequences returns how many llmgw's requests are to the engine.
func (r *Replica) sequences() int64 { return r.inflight.Load() + r.extra.Load() }

func (r *Replica) state(now time.Time, sequences int64) schedule.State {
	if r.draining.Load() {
		return schedule.Draining
	}
	if s := r.Health.State(); s != schedule.Ready {
		return s
	}
	if s := r.Breaker.State(now); s != schedule.Ready {
		return s
	}
	if r.full.at(now, sequences) {
		return schedule.Full
	}
	return schedule.Ready
}

// Fill writes the replica's facts into a candidate, leaving Pool, Priority and
// Weight, which are config, and Tried and Room, which are the request's. slots is as for
// [Replica.Load]; own is how many sequences the request has reserved there itself. It
// returns the load without these.
func (r *Replica) Fill(c *schedule.Replica, now time.Time, slots int, own int64) Load {
	s := r.Stats()
	c.ID, c.Hash = r.ID, r.hash
	inflight := r.inflight.Load() // once: Take must see what the state was made from
	c.State = r.state(now, inflight+r.extra.Load())
	c.Stale = s.Failed != ""
	c.Waiting, c.Running, c.KVUsage = s.Waiting, s.Running, s.KVUsage
	if !s.counts(now) {
		c.Waiting, c.Running, c.KVUsage = schedule.Unknown, schedule.Unknown, schedule.Unknown
	}
	l := r.Load(now, slots).Plus(-float64(own))
	c.BatchCapacity = l.Slots
	if c.Waiting.Known() {
		c.Waiting = schedule.Gauge(l.Queued)
	}
	c.DrainRate = r.drain.rate(now)
	c.Adapter = schedule.AdapterNone
	c.Inflight = int(inflight)
	c.PendingTokens, c.PrefillTokens = r.PendingTokens(), r.prefill.Load()
	return l
}

// drainWindow is the span over which completions are counted, in seconds.
const drainWindow = 30

// drainRate counts completions in a ring of one-second buckets. It is written
// once per request and read once per candidate and decision, so the reading is
// cached for the rest of its second.
type drainRate struct {
	buckets [drainWindow]atomic.Uint64 // second<<24 | count
	first   atomic.Int64               // the second of the first completion
	cached  atomic.Uint64              // second<<32 | float32 bits
}

const countBits = 24

func (d *drainRate) add(now time.Time) {
	sec := now.Unix()
	d.first.CompareAndSwap(0, sec)
	b := &d.buckets[sec%drainWindow]
	for {
		old := b.Load()
		next := uint64(sec)<<countBits | 1
		if old>>countBits == uint64(sec) {
			next = old + 1
		}
		if b.CompareAndSwap(old, next) {
			return
		}
	}
}

// rate returns completions a second over the window, or over the time since
// the first one if that is shorter.
func (d *drainRate) rate(now time.Time) schedule.Gauge {
	sec := now.Unix()
	if c := d.cached.Load(); c>>32 == uint64(sec)&math.MaxUint32 {
		return schedule.Gauge(math.Float32frombits(uint32(c)))
	}
	count := uint64(0)
	for i := range d.buckets {
		b := d.buckets[i].Load()
		if age := sec - int64(b>>countBits); age >= 0 && age < drainWindow {
			count += b & (1<<countBits - 1)
		}
	}
	rate := float32(math.NaN())
	if count > 0 {
		// At least 1: the clock may have been set back since the first one.
		span := min(drainWindow, max(1, sec-d.first.Load()+1))
		rate = float32(count) / float32(span)
	}
	d.cached.Store(uint64(sec)<<32 | uint64(math.Float32bits(rate)))
	return schedule.Gauge(rate)
}
