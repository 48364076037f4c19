package prefix

import (
	"math"
	"sync/atomic"
	"time"
)

// Popular counts how often prompts have the same beginning, lately: what came ten seconds before counts half.
// It takes 16 KiB, whatever is asked; beginnings that share a cell count as one, which is seldom and makes
// them look more popular than they are. Safe for concurrent use.
type Popular struct{ cells [2048]atomic.Uint64 }

// halfLife is the time after which a count is worth half.
const halfLife = 10 * time.Second

// unit is one in a cell's count, so that halves are not lost.
const unit = 256

// Note counts a prompt of that model with that beginning, both as hashes; a beginning of 0 is none.
func (p *Popular) Note(model, beginning uint64, now time.Time) {
	p.add(model, now)
	if beginning != 0 {
		p.add(model^beginning, now)
	}
}

// Share returns which share of the model's prompts have that beginning at least, as far as so few can tell:
// 0 if there were too few.
func (p *Popular) Share(model, beginning uint64, now time.Time) float64 {
	all, n := p.count(model, now), p.count(model^beginning, now)
	if all == 0 {
		return 0
	}
	// Less by a standard deviation, and by two: the first few say nothing.
	return max(0, n-2-math.Sqrt(n*max(0, 1-n/all))) / max(n, all)
}

func tick(now time.Time) uint32 { return uint32(now.Unix() / int64(halfLife/time.Second)) }

// decayed returns what a cell is worth at a tick. Its upper half is the tick at which it was written.
func decayed(cell uint64, at uint32) uint32 {
	since := at - uint32(cell>>32)
	if int32(since) <= 0 { // or the clock went back
		return uint32(cell)
	}
	return uint32(uint64(uint32(cell)) >> min(since, 32))
}

func (p *Popular) cell(hash uint64) *atomic.Uint64 {
	return &p.cells[(hash^hash>>32)%uint64(len(p.cells))]
}

func (p *Popular) add(hash uint64, now time.Time) {
	c, at := p.cell(hash), tick(now)
	for {
		old := c.Load()
		n := decayed(old, at)
		if n <= math.MaxUint32-unit {
			n += unit
		}
		if c.CompareAndSwap(old, uint64(at)<<32|uint64(n)) {
			return
		}
	}
}

func (p *Popular) count(hash uint64, now time.Time) float64 {
	return float64(decayed(p.cell(hash).Load(), tick(now))) / unit
}
