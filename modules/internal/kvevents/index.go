package kvevents

import (
	"encoding/binary"
	"errors"
	"math"
	"sync"
	"sync/atomic"

	"github.com/cespare/xxhash/v2"
)

// Index knows for many caches which blocks each has, by the gateway's own keys. Safe for concurrent
// use.
type Index struct {
	shards [shards]shard
	pairs  atomic.Int64 // of a block and a cache that has it
	views  atomic.Int64
	limit  int64 // of pairs; see NewIndex

	mu   sync.Mutex
	ids  int   // how many views there were at once
	free []int // ids of views that are dropped
}

const shards = 64

// shard is the part of the blocks whose keys end alike.
type shard struct {
	mu      sync.RWMutex
	holders map[uint64][]holder
}

// holder is a cache that has a block, and the best medium that it has it in.
type holder struct {
	view   *View
	credit uint8 // percent
}

// pairBytes is about what a pair takes: an entry in a shard, and one in a view.
const pairBytes = 128

// What blocks are worth that are not on the GPU, in percent of one that is: copying them costs time.
const (
	creditGPU   = 100
	creditCPU   = 75
	creditOther = 25
)

// NewIndex returns an index that takes about so many bytes at most: half of it is for whoever comes, and
// where that is full each cache may have its equal share of as much, so that none takes it from others.
func NewIndex(memory int64) *Index {
	x := &Index{limit: max(1, memory/pairBytes/2)}
	for i := range x.shards {
		x.shards[i].holders = make(map[uint64][]holder)
	}
	return x
}

func (x *Index) shard(key uint64) *shard { return &x.shards[key%shards] }

// View is what one cache has: that of one data-parallel rank of one engine. One goroutine applies
// events to it.
type View struct {
	index  *Index
	id     int
	blocks map[uint64]*block // by the engine's hash

	// Orphans is how many blocks were stored whose parent is not known: they are of a time
	// before the first event, and cannot be found.
	Orphans int64
	dropped bool
}

// block is one that a cache has, in so many places: the same may be stored twice, and is
// removed twice then.
type block struct {
	key    uint64
	places [3]uint16 // by medium: GPU, CPU, others
}

// NewView returns a view without any block.
func (x *Index) NewView() *View {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.views.Add(1)
	v := &View{index: x, id: x.ids, blocks: make(map[uint64]*block)}
	if n := len(x.free); n > 0 {
		v.id, x.free = x.free[n-1], x.free[:n-1]
	} else {
		x.ids++
	}
	return v
}

// ErrTooMany says that a cache claims more blocks than there is room for. What the view has is
// dropped.
var ErrTooMany = errors.New("the engine claims more KV blocks than there is memory for")

// Apply changes the view by an event.
func (v *View) Apply(e *Event) error {
	switch e.Type {
	case Cleared:
		v.clear()
	case Removed:
		for _, h := range e.Hashes {
			v.remove(h, place(e.Medium))
		}
	case Stored:
		return v.store(e)
	}
	return nil
}

func place(medium []byte) int {
	switch {
	case gpu(medium):
		return 0
	case len(medium) >= 3 && string(medium[:3]) == "CPU":
		return 1
	}
	return 2
}

func (b *block) credit() uint8 {
	for i, c := range [...]uint8{creditGPU, creditCPU, creditOther} {
		if b.places[i] > 0 {
			return c
		}
	}
	return 0
}

func (v *View) store(e *Event) error {
	parent := uint64(0)
	if e.HasParent {
		p := v.blocks[e.Parent]
		if p == nil {
			v.Orphans += int64(len(e.Hashes))
			return nil
		}
		parent = p.key
	}
	at := place(e.Medium)
	for i, h := range e.Hashes {
		extra := uint64(0)
		if len(e.Extra) > 0 {
			extra = e.Extra[i]
		}
		parent = keyOf(parent, extra, e.Tokens[i*e.BlockSize:(i+1)*e.BlockSize])
		b := v.blocks[h]
		if b != nil && b.key != parent { // the engine uses the name anew, and we have missed that the old one went
			v.forget(h, b)
			b = nil
		}
		if b == nil {
			if v.index.pairs.Add(1) > v.index.limit && int64(len(v.blocks)) >= v.index.limit/v.index.views.Load() {
				v.index.pairs.Add(-1)
				v.clear()
				return ErrTooMany
			}
			b = &block{key: parent}
			v.blocks[h] = b
		}
		before := b.credit()
		if b.places[at] < math.MaxUint16 {
			b.places[at]++
		}
		if c := b.credit(); c != before {
			v.show(b.key, c)
		}
	}
	return nil
}

func (v *View) remove(h uint64, at int) {
	b := v.blocks[h]
	if b == nil || b.places[at] == 0 { // from before the first event
		return
	}
	before := b.credit()
	b.places[at]--
	switch c := b.credit(); {
	case c == 0:
		v.forget(h, b)
	case c != before:
		v.show(b.key, c)
	}
}

// forget drops a block.
func (v *View) forget(h uint64, b *block) {
	delete(v.blocks, h)
	v.show(b.key, 0)
	v.index.pairs.Add(-1)
}

// clear drops all blocks.
func (v *View) clear() {
	for h, b := range v.blocks {
		v.forget(h, b)
	}
}

// Drop ends the view: nothing is matched with it any more, and what it has is given back. It may be
// called again.
func (v *View) Drop() {
	if !v.dropped {
		v.dropped = true
		v.clear() // first: its id must not be found any more
		v.index.views.Add(-1)
		v.index.mu.Lock()
		defer v.index.mu.Unlock()
		v.index.free = append(v.index.free, v.id)
	}
}

// Blocks returns how many it has.
func (v *View) Blocks() int { return len(v.blocks) }

// show makes a block one that this cache is known to have, worth so much, or with 0 not any more.
// Two of the engine's blocks may have one key (its hashes may depend on more than events say): the
// last one that changes counts.
func (v *View) show(key uint64, credit uint8) {
	s := v.index.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.holders[key]
	for i := range all {
		if all[i].view != v {
			continue
		}
		if credit > 0 {
			all[i].credit = credit
			return
		}
		all[i] = all[len(all)-1]
		all[len(all)-1] = holder{}
		if all = all[:len(all)-1]; len(all) == 0 {
			delete(s.holders, key)
		} else {
			s.holders[key] = all
		}
		return
	}
	if credit > 0 {
		s.holders[key] = append(all, holder{v, credit})
	}
}

// keyOf is the key of a block.
func keyOf(parent, extra uint64, tokens []uint32) uint64 {
	var d xxhash.Digest
	d.Reset()
	var b [256]byte
	binary.LittleEndian.PutUint64(b[:], parent)
	binary.LittleEndian.PutUint64(b[8:], extra)
	n := 16
	for _, t := range tokens {
		if n == len(b) {
			_, _ = d.Write(b[:])
			n = 0
		}
		binary.LittleEndian.PutUint32(b[n:], t)
		n += 4
	}
	_, _ = d.Write(b[:n])
	return d.Sum64()
}

// Keys appends to keys those of the blocks that a prompt fills, for a cache with such blocks. lora is
// the adapter's name and salt the request's cache_salt, "" for none: vLLM says of each block which
// adapter it is for, and of the first which salt.
func Keys(keys []uint64, tokens []uint32, blockSize int, lora, salt string) []uint64 {
	var h extraHash
	extra := func(salt string) uint64 {
		h.reset()
		for _, s := range []string{lora, salt} {
			if s != "" {
				h.add([]byte(s))
			}
		}
		return h.sum()
	}
	first, rest := extra(salt), extra("")
	parent := uint64(0)
	for i := 0; i+blockSize <= len(tokens); i += blockSize {
		e := rest
		if i == 0 {
			e = first
		}
		parent = keyOf(parent, e, tokens[i:i+blockSize])
		keys = append(keys, parent)
	}
	return keys
}

// scratch is what a look needs.
type scratch struct {
	at  []int // by id of a view: 1 + where it stands in the question
	has []uint8
	out []bool
}

var scratches = sync.Pool{New: func() any { return new(scratch) }}

// Match writes into credits, for each view, how many of the blocks with these keys its cache has from
// the first on, each counted for what its medium is worth: at most len(keys). A nil view has none.
func (x *Index) Match(keys []uint64, views []*View, credits []float64) {
	clear(credits)
	c := scratches.Get().(*scratch)
	defer scratches.Put(c)
	x.mu.Lock()
	ids := x.ids
	x.mu.Unlock()
	c.at = append(c.at[:0], make([]int, ids)...)
	c.has, c.out = append(c.has[:0], make([]uint8, len(views))...), append(c.out[:0], make([]bool, len(views))...)
	left := 0
	for i, v := range views {
		if c.out[i] = v == nil; v != nil {
			c.at[v.id] = i + 1
			left++
		}
	}
	for _, key := range keys {
		if left == 0 {
			return
		}
		clear(c.has)
		s := x.shard(key)
		s.mu.RLock()
		for _, h := range s.holders[key] {
			if h.view.id < ids {
				if i := c.at[h.view.id]; i > 0 && views[i-1] == h.view { // another may have its id by now
					c.has[i-1] = h.credit
				}
			}
		}
		s.mu.RUnlock()
		for i, credit := range c.has {
			switch {
			case c.out[i]:
			case credit == 0:
				c.out[i] = true
				left--
			default:
				credits[i] += float64(credit) / 100
			}
		}
	}
}

// Size returns how many pairs of a block and a cache there are.
func (x *Index) Size() int64 { return x.pairs.Load() }
