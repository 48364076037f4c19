package sim

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// core is one life of the engine: its ranks and what they count. A crash ends
// it; a restart makes a new one.
type core struct {
	cfg      Config
	start    time.Time
	ranks    []*rank
	adapters *adapters
	done     chan struct{} // closed when the ranks stop
	stop     sync.Once
	loops    sync.WaitGroup
	inflight atomic.Int64 // unfinished sequences of all ranks
	rejected atomic.Int64 // requests that found the queue full
	draining atomic.Bool  // new requests are refused, those in flight go on
	crashed  atomic.Bool  // the ranks ended as dead
	factor   atomic.Uint64
}

func newCore(cfg Config) (*core, error) {
	c := &core{cfg: cfg, start: time.Now(), adapters: newAdapters(&cfg), done: make(chan struct{})}
	c.slow(1)
	for i := range cfg.DataParallel {
		var events *kvEvents
		if cfg.KVEvents != "" {
			var err error
			if events, err = newKVEvents(&cfg, i); err != nil {
				c.close(endDead)
				return nil, fmt.Errorf("simulator: KV events: %w", err)
			}
		}
		r := newRank(c, events)
		c.ranks = append(c.ranks, r)
		c.loops.Go(r.loop)
	}
	return c, nil
}

// slow multiplies the time of all coming steps.
func (c *core) slow(factor float64) { c.factor.Store(math.Float64bits(factor)) }

func (c *core) slowed(d time.Duration) time.Duration {
	return time.Duration(float64(d) * math.Float64frombits(c.factor.Load()))
}

// close ends all sequences as end says, and the ranks with them. Only the first
// call counts; all return when the ranks have stopped.
func (c *core) close(end int32) {
	c.stop.Do(func() {
		c.crashed.Store(end == endDead)
		for _, r := range c.ranks {
			r.close(end)
		}
		close(c.done)
		for _, r := range c.ranks {
			r.events.close()
		}
	})
	c.loops.Wait()
}

// submit gives j to the rank with the fewest sequences, as vLLM's balancer
// does, which counts a waiting one as four; pin names a rank instead where it
// is not negative.
func (c *core) submit(j *job, pin int) *apiError {
	n := int64(len(j.seqs))
	if c.draining.Load() {
		return errShutdown
	}
	if total := c.inflight.Add(n); c.cfg.MaxQueued > 0 && total > int64(c.cfg.MaxQueued) {
		c.inflight.Add(-n)
		c.rejected.Add(1)
		return errQueueFull
	}
	target := c.ranks[0]
	switch {
	case pin >= 0:
		target = c.ranks[pin]
	case len(c.ranks) > 1:
		best := math.MaxInt
		for _, r := range c.ranks {
			r.mu.Lock()
			load := 4*len(r.waiting) + len(r.running)
			r.mu.Unlock()
			if load < best {
				best, target = load, r
			}
		}
	}
	switch target.submit(j) {
	case endNone:
		return nil
	case endDead:
		c.inflight.Add(-n)
		return errDead
	default:
		c.inflight.Add(-n)
		return errShutdown
	}
}

// reset forgets cached blocks and counters; sequences in flight go on.
func (c *core) reset() {
	c.rejected.Store(0)
	for _, r := range c.ranks {
		r.mu.Lock()
		r.blocks.clear()
		r.events.cleared()
		r.stats = newStats()
		r.mu.Unlock()
	}
}
