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
	table table
	pairs atomic.Int64 // of a block and a cache that has it
	views atomic.Int64
	limit int64 // of pairs; see NewIndex

	ids  int   // how many views there were at once; needs table's mutex, as do these
	free []int // ids of views that are dropped
}

// pairBytes is about what a pair takes: an entry in the table, and one in a view.
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
	return &Index{limit: max(1, memory/pairBytes/2), table: newTable()}
}

// View is what one cache has: that of one data-parallel rank of one engine. One goroutine applies
// events to it.
type View struct {
	index  *Index
	id     int
	blocks map[uint64]block // by the engine's hash

	// Orphans is how many blocks were stored whose parent is not known: they are of a time
	// before the first event, and cannot be found.
	Orphans int64
	dropped bool
}

// block is one that a cache has, in so many places: the same may be stored twice, and is
// removed twice then.
type block struct {
	key    uint64
	entry  int32     // in the index's table
	places [3]uint16 // by medium: GPU, CPU, others
}

// NewView returns a view without any block.
func (x *Index) NewView() *View {
	x.table.mu.Lock()
	defer x.table.mu.Unlock()
	x.views.Add(1)
	v := &View{index: x, id: x.ids, blocks: make(map[uint64]block)}
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
	if e.Type == Stored {
		return v.store(e)
	}
	t := &v.index.table
	t.mu.Lock()
	defer t.mu.Unlock()
	switch e.Type {
	case Cleared:
		v.clear()
	case Removed:
		for i, h := range e.Hashes {
			if i%atOnce == atOnce-1 {
				t.yield()
			}
			v.remove(h, place(e.Medium))
		}
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

func (b block) credit() uint8 {
	for i, c := range [...]uint8{creditGPU, creditCPU, creditOther} {
		if b.places[i] > 0 {
			return c
		}
	}
	return 0
}

// atOnce is how many blocks are changed at once while requests wait for the lock.
const atOnce = 128

func (v *View) store(e *Event) error {
	t := &v.index.table
	t.mu.Lock()
	parent, ok := v.blocks[e.Parent]
	t.mu.Unlock()
	if !e.HasParent {
		parent = block{}
	} else if !ok {
		v.Orphans += int64(len(e.Hashes))
		return nil
	}
	at := place(e.Medium)
	var keys [atOnce]uint64
	for first := 0; first < len(e.Hashes); first += atOnce {
		hashes := e.Hashes[first:min(first+atOnce, len(e.Hashes))]
		key := parent.key
		for i := range hashes { // without the lock
			n, extra := first+i, uint64(0)
			if len(e.Extra) > 0 {
				extra = e.Extra[n]
			}
			key = keyOf(key, extra, e.Tokens[n*e.BlockSize:(n+1)*e.BlockSize])
			keys[i] = key
		}
		t.mu.Lock()
		var err error
		for i, h := range hashes {
			if parent, err = v.add(h, keys[i], at, parent); err != nil {
				break
			}
		}
		t.mu.Unlock()
		if err != nil {
			return err
		}
	}
	return nil
}

// add notes that the cache has a block, at a place, which comes after another one. It needs the table's mutex.
func (v *View) add(h, key uint64, at int, parent block) (b block, err error) {
	t := &v.index.table
	b, ok := v.blocks[h]
	if ok && b.key != key { // the engine uses the name anew, and we have missed that the old one went
		v.forget(h, b)
		ok = false
	}
	if !ok {
		if v.index.pairs.Add(1) > v.index.limit && int64(len(v.blocks)) >= v.index.limit/v.index.views.Load() {
			v.index.pairs.Add(-1)
			v.clear()
			return b, ErrTooMany
		}
		b = block{key: key, entry: t.entry(key)}
	}
	before := b.credit()
	if b.places[at] < math.MaxUint16 {
		b.places[at]++
	}
	v.blocks[h] = b
	if c := b.credit(); c != before {
		v.show(b, c)
	}
	t.follows(parent, b)
	return b, nil
}

func (v *View) remove(h uint64, at int) {
	b, ok := v.blocks[h]
	if !ok || b.places[at] == 0 { // from before the first event
		return
	}
	before := b.credit()
	b.places[at]--
	c := b.credit()
	if c == 0 {
		v.forget(h, b)
		return
	}
	v.blocks[h] = b
	if c != before {
		v.show(b, c)
	}
}

// forget drops a block. It needs the table's mutex, as do clear and show.
func (v *View) forget(h uint64, b block) {
	delete(v.blocks, h)
	v.show(b, 0)
	v.index.pairs.Add(-1)
}

// clear drops all blocks.
func (v *View) clear() {
	n := 0
	for h, b := range v.blocks {
		if n++; n%atOnce == 0 {
			v.index.table.yield()
		}
		v.forget(h, b)
	}
}

// show makes a block one that this cache is known to have, worth so much, or with 0 not any more.
// Two of the engine's blocks may have one key (its hashes may depend on more than events say): the
// last one that changes counts.
func (v *View) show(b block, credit uint8) {
	v.index.table.set(b, holder{id: int32(v.id), credit: credit})
}

// Drop ends the view: nothing is matched with it any more, and what it has is given back. It may be
// called again.
func (v *View) Drop() {
	t := &v.index.table
	t.mu.Lock()
	defer t.mu.Unlock()
	if !v.dropped {
		v.dropped = true
		v.clear() // first: its id must not be found any more
		v.index.views.Add(-1)
		v.index.free = append(v.index.free, v.id)
	}
}

// Blocks returns how many it has.
func (v *View) Blocks() int { return len(v.blocks) }

// keyOf is the key of a block.
func keyOf(parent, extra uint64, tokens []uint32) uint64 {
	var b [16 + 4*64]byte
	binary.LittleEndian.PutUint64(b[:], parent)
	binary.LittleEndian.PutUint64(b[8:], extra)
	if len(tokens) <= 64 { // as most blocks are
		for i, t := range tokens {
			binary.LittleEndian.PutUint32(b[16+4*i:], t)
		}
		return xxhash.Sum64(b[:16+4*len(tokens)])
	}
	var d xxhash.Digest
	d.Reset()
	_, _ = d.Write(b[:16])
	for len(tokens) > 0 {
		n := min(64, len(tokens))
		for i, t := range tokens[:n] {
			binary.LittleEndian.PutUint32(b[4*i:], t)
		}
		_, _ = d.Write(b[:4*n])
		tokens = tokens[n:]
	}
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
	at     []int // by id of a view: 1 + where it stands in the question
	seen   []int // by place in the question: the last block, from 1, that it has
	credit []uint8
	left   []int // places of those that have had all blocks so far
}

var scratches = sync.Pool{New: func() any { return new(scratch) }}

// Match writes into credits, for each view, how many of the blocks with these keys its cache has from
// the first on, each counted for what its medium is worth: at most len(keys). A nil view has none.
func (x *Index) Match(keys []uint64, views []*View, credits []float64) {
	clear(credits)
	c := scratches.Get().(*scratch)
	defer scratches.Put(c)
	x.table.mu.RLock()
	defer x.table.mu.RUnlock()
	c.at = append(c.at[:0], make([]int, x.ids)...)
	c.seen, c.credit, c.left = append(c.seen[:0], make([]int, len(views))...), append(c.credit[:0], make([]uint8, len(views))...), c.left[:0]
	for i, v := range views {
		if v != nil && !v.dropped { // another may have its id by now
			c.at[v.id] = i + 1
			c.left = append(c.left, i)
		}
	}
	entry := int32(0)
	for n, key := range keys {
		if entry = x.table.after(entry, key); entry == 0 {
			return
		}
		e := x.table.get(entry)
		c.note(e.first, n+1)
		for _, h := range e.more {
			c.note(h, n+1)
		}
		left := c.left[:0]
		for _, i := range c.left {
			if c.seen[i] == n+1 {
				credits[i] += float64(c.credit[i]) / 100
				left = append(left, i)
			}
		}
		if c.left = left; len(left) == 0 {
			return
		}
	}
}

// note notes that a cache has the block of that number.
func (c *scratch) note(h holder, n int) {
	if i := c.at[h.id]; i > 0 {
		c.seen[i-1], c.credit[i-1] = n, h.credit
	}
}

// Size returns how many pairs of a block and a cache there are.
func (x *Index) Size() int64 { return x.pairs.Load() }
