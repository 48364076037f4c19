package sim

import (
	"runtime"
	"slices"
	"sync"
	"time"
)

// rank is one data-parallel rank: a queue, a batch and its KV memory, driven by
// one goroutine that steps while there is work and sleeps otherwise. It follows
// vLLM V1's scheduler: running sequences first, then the queue in order, within
// one token budget; a sequence that finds no block makes the youngest one give
// up its blocks and wait again.
type rank struct {
	core *core
	cfg  *Config
	wake chan struct{} // capacity 1

	mu      sync.Mutex
	closed  int32 // how the rank ended, endNone while it lives
	blocks  *blockStore
	waiting []*sequence
	running []*sequence
	batch   []share
	slots   []string // adapters in memory, least recently used first
	stats   stats
	events  *kvEvents // nil if nobody is told of cached blocks
}

// share is a sequence's part of one step.
type share struct {
	seq    *sequence
	tokens int
}

func newRank(c *core, events *kvEvents) *rank {
	r := &rank{
		core: c, cfg: &c.cfg, wake: make(chan struct{}, 1),
		blocks: newBlockStore(c.cfg.KVBlocks), stats: newStats(), events: events,
	}
	r.blocks.removed = events.removed
	return r
}

// submit queues the sequences of j, or returns how the rank ended.
func (r *rank) submit(j *job) int32 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed != endNone {
		return r.closed
	}
	now := time.Now()
	j.rank = r
	for _, s := range j.seqs {
		s.arrived = now
		r.waiting = append(r.waiting, s)
	}
	select {
	case r.wake <- struct{}{}:
	default:
	}
	return endNone
}

// loop steps until the rank is closed.
func (r *rank) loop() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		start := time.Now()
		r.mu.Lock()
		took := r.schedule(start)
		idle := len(r.batch) == 0
		closed := r.closed != endNone
		r.mu.Unlock()
		switch {
		case closed:
			return
		case idle:
			select {
			case <-r.wake:
			case <-r.core.done:
			}
			continue
		}
		if left := took - time.Since(start); left > 0 {
			timer.Reset(left)
			select {
			case <-timer.C:
			case <-r.core.done:
				continue
			}
		} else {
			runtime.Gosched() // requests get their turn on a single core too
		}
		r.mu.Lock()
		r.commit(time.Now())
		r.mu.Unlock()
	}
}

// schedule fills the batch of the next step and returns how long it takes.
func (r *rank) schedule(now time.Time) time.Duration {
	r.batch = r.batch[:0]
	budget := r.cfg.MaxBatchedTokens
	preempted := false
	for i := 0; i < len(r.running) && budget > 0; i++ {
		s := r.running[i]
		n := min(s.known()-s.computed, budget)
		if !r.grow(s, s.computed+n) {
			preempted = true
			if s.state != seqRunning {
				break // it was the youngest itself
			}
		}
		r.fill(s, s.computed+n)
		r.batch = append(r.batch, share{s, n})
		budget -= n
	}
	loads := 0
	if !preempted {
		loads = r.admit(now, &budget)
	}
	if r.cfg.hasLoRAs() {
		r.noteLoRAs(now)
	}
	r.events.flush(now)
	return r.stepTime(loads)
}

// grow gets s the blocks for its first upto tokens. It reports false where
// others, or s itself, had to give theirs up.
func (r *rank) grow(s *sequence, upto int) bool {
	need := (upto+r.cfg.BlockSize-1)/r.cfg.BlockSize - len(s.blocks)
	calm := true
	for need > r.blocks.free {
		calm = false
		victim := r.running[len(r.running)-1]
		r.running = r.running[:len(r.running)-1]
		r.drop(victim)
		victim.state = seqWaiting
		r.waiting = slices.Insert(r.waiting, 0, victim)
		r.stats.preemptions++
		if victim == s {
			return false
		}
	}
	s.blocks = r.blocks.alloc(s.blocks, max(need, 0))
	return calm
}

// drop takes all KV memory from s.
func (r *rank) drop(s *sequence) {
	r.blocks.release(s.blocks)
	s.blocks, s.computed, s.filled = nil, 0, 0
}

// fill gives the blocks among the first upto tokens of s their hashes. As in
// vLLM that happens before they are computed, so that requests of the same step
// already share them.
func (r *rank) fill(s *sequence, upto int) {
	s.extend(upto, r.cfg.BlockSize)
	from := s.filled
	defer func() { r.events.stored(s, from, s.filled, r.cfg.BlockSize) }()
	for ; (s.filled+1)*r.cfg.BlockSize <= upto; s.filled++ {
		r.blocks.fill(s.blocks[s.filled], s.hashes[s.filled])
	}
}

// admit moves sequences from the queue into the batch in order, passing over
// those whose adapter finds no slot, and returns how many adapters it loaded.
func (r *rank) admit(now time.Time, budget *int) (loads int) {
	for i := 0; i < len(r.waiting) && len(r.running) < r.cfg.MaxNumSeqs && *budget > 0; {
		s := r.waiting[i]
		if !r.slotFor(s.lora) {
			i++
			continue
		}
		known, size := s.known(), r.cfg.BlockSize
		// The last token is always computed, so a whole prompt is never a hit.
		hit, idle := r.blocks.match(s.hashes[:min(len(s.hashes), (known-1)/size)])
		need := (known+size-1)/size - len(hit)
		if r.blocks.free-idle < need {
			break
		}
		r.blocks.take(hit)
		s.blocks = r.blocks.alloc(hit, need)
		s.computed, s.filled = len(hit)*size, len(hit)
		r.waiting = slices.Delete(r.waiting, i, i+1)
		r.running = append(r.running, s)
		s.state = seqRunning
		if r.loadSlot(s.lora) {
			loads++
		}
		if !s.started {
			s.started = true
			s.cached = s.computed
			s.created = len(s.prompt)/size*size - s.cached
			r.stats.queries += float64(len(s.prompt))
			r.stats.hits += float64(s.cached)
			r.stats.queueTime.observe(now.Sub(s.arrived).Seconds())
		}
		n := min(known-s.computed, *budget)
		r.fill(s, s.computed+n)
		r.batch = append(r.batch, share{s, n})
		*budget -= n
	}
	return loads
}

// stepTime is the duration of a step with the present batch.
func (r *rank) stepTime(loads int) time.Duration {
	prefill, decode := 0, 0
	for _, b := range r.batch {
		if b.tokens == 1 && b.seq.produced > 0 {
			decode++
		} else {
			prefill += b.tokens
		}
	}
	d := r.cfg.PrefillPerToken*time.Duration(prefill) + r.cfg.LoRALoad*time.Duration(loads)
	if decode > 0 {
		d += r.cfg.Decode + r.cfg.DecodePerSeq*time.Duration(decode)
	}
	return r.core.slowed(d)
}

// commit ends a step: every sequence of the batch that is computed up to its
// last token gets the next one.
func (r *rank) commit(now time.Time) {
	ended := false
	for _, b := range r.batch {
		s := b.seq
		if s.state != seqRunning {
			continue // it left during the step
		}
		s.computed += b.tokens
		if s.computed < s.known() {
			continue
		}
		r.stats.token(s, now)
		s.last = now
		if s.produced < s.out.count {
			s.produced++
			r.stats.generated++
		}
		if s.produced == s.out.count {
			r.stats.finished(s, now)
			r.leave(s, endDone)
			ended = true
		} else {
			s.publish(endNone)
		}
	}
	if ended {
		r.running = slices.DeleteFunc(r.running, func(s *sequence) bool { return s.state == seqOver })
	}
	if ended && r.cfg.hasLoRAs() {
		r.noteLoRAs(now)
	}
}

// leave frees what s holds and tells its request; the caller takes it out of
// the lists.
func (r *rank) leave(s *sequence, end int32) {
	r.drop(s)
	s.state = seqOver
	r.core.inflight.Add(-1)
	s.publish(end)
}

// abort takes the unfinished sequences of j out at once: their client is gone.
func (r *rank) abort(j *job) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range j.seqs {
		if s.state != seqOver {
			r.leave(s, endClient)
		}
	}
	over := func(s *sequence) bool { return s.state == seqOver }
	r.running = slices.DeleteFunc(r.running, over)
	r.waiting = slices.DeleteFunc(r.waiting, over)
}

// close ends all sequences and takes no more.
func (r *rank) close(end int32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed != endNone {
		return
	}
	r.closed = end
	for _, list := range [][]*sequence{r.running, r.waiting} {
		for _, s := range list {
			r.leave(s, end)
		}
	}
	r.running, r.waiting = nil, nil
}
