package prefix

import (
	"math"
	"math/rand/v2"
	"sort"
	"sync"
)

// Key names the cache of one replica, from its start to its restart.
type Key struct {
	// Replica tells it from all others, Epoch one that has lost what it held from the same
	// one before.
	Replica, Epoch uint64
}

// Index knows for many replicas which blocks each has in its cache. Its memory is bounded: where it
// does not suffice, the replica that has most of it forgets first. Safe for concurrent use.
type Index struct {
	// Popular counts what prompts have in common.
	Popular Popular

	seed   uint64
	memory int64

	mu      sync.Mutex
	left    int // bytes that may still be allocated
	nodes   slabs[node]
	entries slabs[entry]
	buckets buckets
	caches  []cache
	unused  []uint32          // caches
	byKey   map[uint64]uint32 // by replica
	gone    []uint32          // caches of replicas that are gone, or have lost theirs
	seen    uint64            // counts the looks
	changes uint64            // counts the nodes that came and went
}

// cache is what one replica holds.
type cache struct {
	key         Key
	first, last uint32 // entries, the one used last first
	mark        uint32 // the first that has not been used since Mark
	blocks      int
	bytes       int64
	gone        bool
	seen        uint64 // the last look that came here
	matched     int
}

// New returns an index that takes so many bytes at most, besides a few for each replica.
func New(memory int64) *Index {
	return &Index{
		seed:    rand.Uint64(),
		memory:  memory,
		left:    int(memory),
		nodes:   newSlabs(func(n *node) *uint32 { return &n.next }),
		entries: newSlabs(func(e *entry) *uint32 { return &e.next }),
		buckets: buckets{newSlabs(func(i *uint32) *uint32 { return i })},
		byKey:   make(map[uint64]uint32),
	}
}

// Held is what one replica's cache is taken to hold.
type Held struct {
	// Matched is how many bytes of the prompt in question, from its beginning.
	Matched int
	// Blocks and Bytes are those of all prompts.
	Blocks int
	Bytes  int64
}

// Seed is for the chains that are looked up here. It is another one for each index, so that nobody
// can make up prompts whose hashes are the same.
func (x *Index) Seed() uint64 { return x.seed }

// Limit returns how many bytes it may take.
func (x *Index) Limit() int64 { return x.memory }

// Match writes into held what each replica's cache holds, one for each key, and returns how many
// of the prompt's bytes are not its own: up to there other prompts are like it, and go on in
// another way.
func (x *Index) Match(c *Chain, keys []Key, held []Held) (shared int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.seen++
	path, depth := x.walk(c), 0
	for k, i := range path {
		depth += int(c.Blocks[k].Bytes)
		n := x.nodes.at(i)
		if n.parts() || n.children == 1 && k == len(path)-1 && len(c.Blocks) > len(path) {
			shared = depth
		}
	}
	found := uint16(0)
	for k := len(path) - 1; k >= 0; k-- { // whoever has a block has those before it
		n := x.nodes.at(path[k])
		if n.holders > found {
			for e := n.entries; e != none; e = x.entries.at(e).sibling {
				if o := &x.caches[x.entries.at(e).cache]; o.seen != x.seen {
					o.seen, o.matched = x.seen, depth
					found++
				}
			}
		}
		depth -= int(c.Blocks[k].Bytes)
	}
	for i, key := range keys {
		held[i] = Held{}
		if o := x.cache(key); o != nil {
			held[i].Blocks, held[i].Bytes = o.blocks, o.bytes
			if o.seen == x.seen {
				held[i].Matched = o.matched
			}
		}
	}
	return shared
}

// walk returns the nodes of a prompt, as far as there are any. They are good until the index changes, and
// kept in the chain for who asks again before that. It needs mu.
func (x *Index) walk(c *Chain) []uint32 {
	if c.walked == x && c.changes == x.changes && c.of == len(c.Blocks) {
		return c.path
	}
	c.walked, c.changes, c.of, c.path = x, x.changes, len(c.Blocks), c.path[:0]
	for _, b := range c.Blocks {
		i := x.find(b.Hash)
		if i == none {
			break
		}
		c.path = append(c.path, i)
	}
	return c.path
}

// cache returns the one of a key, nil if nothing is known of it. What was known of one that has
// restarted since is dropped. It needs mu.
func (x *Index) cache(key Key) *cache {
	i, ok := x.byKey[key.Replica]
	switch {
	case !ok:
		return nil
	case x.caches[i].key.Epoch < key.Epoch:
		x.drop(i)
		return nil
	case x.caches[i].key.Epoch > key.Epoch:
		return nil
	}
	return &x.caches[i]
}

// Insert notes that a replica has the prompt in its cache, which holds so many bytes of prompts at
// most, or if capacity is 0 nobody knows how many.
func (x *Index) Insert(c *Chain, key Key, capacity int64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.tidy()
	own, ok := x.enter(key)
	if !ok {
		return
	}
	path := x.walk(c)
	// What it has already is used now, the last block first: a cache that has a block has
	// those before it, and so loses it sooner than these.
	has := sort.Search(len(path), func(k int) bool { return x.entryOf(path[k], own) == none })
	last := none
	if has > 0 {
		last = x.entryOf(path[has-1], own)
	}
	for e := last; e != none; e = x.entries.at(e).parent {
		x.unlink(own, e)
		x.link(own, e, none)
	}
	whole := len(c.Blocks) > 0
	for _, b := range c.Blocks[has:] {
		if whole = x.room(own, last); !whole {
			break
		}
		last = x.add(own, last, b)
	}
	if whole {
		x.nodes.at(x.entries.at(last).node).end(c.digest.Sum64())
	}
	for o := &x.caches[own]; capacity > 0 && o.bytes > capacity; {
		x.evict(own)
	}
}

// enter returns the cache of a key, unless the replica has restarted since. It needs mu.
func (x *Index) enter(key Key) (i uint32, ok bool) {
	if x.cache(key) != nil {
		return x.byKey[key.Replica], true
	}
	if _, ok := x.byKey[key.Replica]; ok {
		return 0, false
	}
	if n := len(x.unused); n > 0 {
		i, x.unused = x.unused[n-1], x.unused[:n-1]
	} else if len(x.caches) == math.MaxUint16 {
		return 0, false
	} else {
		i, x.caches = uint32(len(x.caches)), append(x.caches, cache{})
	}
	x.caches[i] = cache{key: key, first: none, last: none, mark: none}
	x.byKey[key.Replica] = i
	return i, true
}

// Forget drops what is known of a replica that is gone.
func (x *Index) Forget(replica uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if i, ok := x.byKey[replica]; ok {
		x.drop(i)
	}
}

// Mark notes that from now on a replica's cache may be another one, see [Index.Reset].
func (x *Index) Mark(replica uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if i, ok := x.byKey[replica]; ok {
		x.caches[i].mark = x.caches[i].first
	}
}

// maxKept bounds how many blocks outlive a Reset, since others wait meanwhile.
const maxKept = 1 << 16

// Reset drops what a replica has not used since Mark, or all of it if that is very much.
func (x *Index) Reset(replica uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	i, ok := x.byKey[replica]
	if !ok || x.caches[i].mark == none {
		return
	}
	old := x.caches[i]
	x.drop(i)
	kept, bytes, last := 0, int64(0), none
	for e := old.first; e != old.mark; e = x.entries.at(e).next {
		kept, last = kept+1, e
		bytes += int64(x.nodes.at(x.entries.at(e).node).bytes)
	}
	if kept == 0 || kept > maxKept {
		return
	}
	own, _ := x.enter(old.key)
	for e := old.first; e != old.mark; e = x.entries.at(e).next {
		x.entries.at(e).cache = own
	}
	x.entries.at(last).next, x.entries.at(old.mark).prev = none, none
	o, n := &x.caches[i], &x.caches[own]
	n.first, n.last, n.blocks, n.bytes = old.first, last, kept, bytes
	o.first, o.blocks, o.bytes = old.mark, old.blocks-kept, old.bytes-bytes
}

func (x *Index) drop(i uint32) {
	delete(x.byKey, x.caches[i].key.Replica)
	x.caches[i].gone = true
	x.gone = append(x.gone, i)
}

// aFew is how many blocks of caches that are gone each insertion throws away: there may be
// millions, and others wait.
const aFew = 256

func (x *Index) tidy() {
	for range aFew {
		n := len(x.gone)
		if n == 0 {
			return
		}
		i := x.gone[n-1]
		if x.caches[i].blocks == 0 {
			x.gone, x.unused = x.gone[:n-1], append(x.unused, i)
			continue
		}
		x.evict(i)
	}
}

// maxEvictions bounds how many blocks make room for one: of those that several caches have
// nothing is gained until the last of these has lost it.
const maxEvictions = 1024

// room makes room for one more block behind the entry last, in a cache. It returns false if there
// is none but in place of what the block follows. It needs mu.
func (x *Index) room(own, last uint32) bool {
	for range maxEvictions {
		if !x.grow() {
			victim := x.victim()
			if x.caches[victim].blocks == 0 || victim == own && x.caches[own].last == last {
				return false
			}
			x.evict(victim)
			continue
		}
		return true
	}
	return false
}

// grow sees to it that a node, an entry and a bucket can be taken. It needs mu.
func (x *Index) grow() bool {
	need := 0
	nodes, entries := x.nodes.full(), x.entries.full()
	buckets := nodes && x.nodes.n == x.buckets.n && x.buckets.full()
	if nodes {
		need += nodeSize * slabSize
	}
	if entries {
		need += entrySize * slabSize
	}
	if buckets {
		need += bucketSize * slabSize
	}
	if need > x.left {
		return false
	}
	x.left -= need
	if nodes {
		x.nodes.grow()
	}
	if entries {
		x.entries.grow()
	}
	if buckets {
		x.buckets.grow()
	}
	return true
}

// victim returns the cache that is to lose a block: one that is gone, else the largest.
func (x *Index) victim() uint32 {
	if n := len(x.gone); n > 0 && x.caches[x.gone[n-1]].blocks > 0 {
		return x.gone[n-1]
	}
	best := uint32(0)
	for i := range x.caches {
		if x.caches[i].blocks > x.caches[best].blocks {
			best = uint32(i)
		}
	}
	return best
}

// add adds a block to a cache behind the entry last, for which there must be room.
func (x *Index) add(own, last uint32, b Block) uint32 {
	i := x.find(b.Hash)
	if i == none {
		parent := none
		if last != none {
			parent = x.entries.at(last).node
			x.nodes.at(parent).children++
		}
		x.changes++
		if i = x.nodes.take(); i == x.buckets.n {
			x.buckets.split(&x.nodes)
		}
		bucket := x.buckets.of(b.Hash)
		*x.nodes.at(i) = node{hash: b.Hash, parent: parent, entries: none, next: *bucket, bytes: b.Bytes}
		*bucket = i
	}
	n, e := x.nodes.at(i), x.entries.take()
	*x.entries.at(e) = entry{node: i, cache: own, sibling: n.entries, parent: last}
	n.entries = e
	n.holders++
	x.link(own, e, last)
	x.caches[own].blocks++
	x.caches[own].bytes += int64(n.bytes)
	return e
}

// Memory returns how many bytes the index takes, and how many blocks all caches hold.
func (x *Index) Memory() (bytes int64, blocks int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for i := range x.caches {
		blocks += x.caches[i].blocks
	}
	return int64(len(x.nodes.all)*nodeSize+len(x.entries.all)*entrySize+len(x.buckets.all)*bucketSize) * slabSize, blocks
}
