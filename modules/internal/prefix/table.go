package prefix

import "math/bits"

// What follows is kept in slabs of plain numbers: so it is as large as it looks, it grows by
// little at a time, and the garbage collector does not look into it.

const (
	slabBits = 12
	slabSize = 1 << slabBits

	// What the items take, in bytes; a test compares.
	nodeSize, entrySize, bucketSize = 32, 24, 4
)

// none is the index of nothing.
const none = ^uint32(0)

// node is a block that at least one cache has.
type node struct {
	hash     uint64
	parent   uint32 // the block before it, none for the first
	entries  uint32 // the first of the caches that have it
	children uint32 // how many blocks follow it
	next     uint32 // another in its bucket, or another that is free
	bytes    uint32
	holders  uint16 // how many entries there are
	ends     uint16 // which prompt has this as its last block: noEnd, manyEnds, or a hash of it
}

const noEnd, manyEnds = 0, 1

// parts reports whether prompts are known that go on behind it in different ways.
func (n *node) parts() bool {
	return n.children > 1 || n.ends == manyEnds || n.children == 1 && n.ends != noEnd
}

// end notes that a prompt with that hash ends behind it.
func (n *node) end(hash uint64) {
	switch h := uint16(hash) | 2; n.ends {
	case noEnd, h:
		n.ends = h
	default:
		n.ends = manyEnds
	}
}

// entry is a block in one cache.
type entry struct {
	node, cache uint32
	prev, next  uint32 // in the cache, by use, the latest first; or next is another that is free
	sibling     uint32 // another cache's entry of the block
	parent      uint32 // the cache's entry of the block before it
}

// slabs is a growing list of items that do not move.
type slabs[T any] struct {
	all  [][]T
	n    uint32 // how many were ever taken
	free uint32 // the first of those that were given back
	link func(*T) *uint32
}

func newSlabs[T any](link func(*T) *uint32) slabs[T] { return slabs[T]{free: none, link: link} }

func (s *slabs[T]) at(i uint32) *T { return &s.all[i>>slabBits][i%slabSize] }

// full reports whether another one needs another slab.
func (s *slabs[T]) full() bool { return s.free == none && s.n>>slabBits == uint32(len(s.all)) }

func (s *slabs[T]) grow() { s.all = append(s.all, make([]T, slabSize)) }

// take returns one of those that are free, of which there must be one.
func (s *slabs[T]) take() uint32 {
	i := s.free
	if i == none {
		i = s.n
		s.n++
	} else {
		s.free = *s.link(s.at(i))
	}
	return i
}

func (s *slabs[T]) give(i uint32) {
	*s.link(s.at(i)) = s.free
	s.free = i
}

// buckets find nodes by their hashes. There is one for each node that ever was, and they grow by
// one at a time: linear hashing (Litwin, VLDB 1980).
type buckets struct{ slabs[uint32] }

func (b *buckets) of(hash uint64) *uint32 {
	mask := uint32(1)<<bits.Len32(b.n-1) - 1
	i := uint32(hash) & mask
	if i >= b.n {
		i &= mask >> 1
	}
	return b.at(i)
}

// split adds a bucket, and moves those nodes there that belong there now.
func (b *buckets) split(nodes *slabs[node]) {
	added := b.take()
	*b.at(added) = none
	if added == 0 {
		return
	}
	mask := uint32(1)<<bits.Len32(added) - 1
	from := b.at(added & (mask >> 1))
	for link := from; *link != none; {
		i := *link
		n := nodes.at(i)
		if uint32(n.hash)&mask != added {
			link = &n.next
			continue
		}
		*link = n.next
		n.next, *b.at(added) = *b.at(added), i
	}
}

// evict makes a cache lose what it has used least recently.
func (x *Index) evict(own uint32) {
	e := x.caches[own].last
	x.unlink(own, e)
	i := x.entries.at(e).node
	n := x.nodes.at(i)
	x.caches[own].blocks--
	x.caches[own].bytes -= int64(n.bytes)
	link := &n.entries
	for *link != e {
		link = &x.entries.at(*link).sibling
	}
	*link = x.entries.at(e).sibling
	x.entries.give(e)
	if n.holders--; n.holders > 0 {
		return
	}
	x.changes++
	if n.parent != none {
		x.nodes.at(n.parent).children--
	}
	bucket := x.buckets.of(n.hash)
	for *bucket != i {
		bucket = &x.nodes.at(*bucket).next
	}
	*bucket = n.next
	x.nodes.give(i)
}

// link puts an entry behind another of its cache, or before all others.
func (x *Index) link(own, e, behind uint32) {
	o, v := &x.caches[own], x.entries.at(e)
	if v.prev = behind; behind == none {
		v.next, o.first = o.first, e
	} else {
		p := x.entries.at(behind)
		v.next, p.next = p.next, e
	}
	if v.next == none {
		o.last = e
	} else {
		x.entries.at(v.next).prev = e
	}
}

func (x *Index) unlink(own, e uint32) {
	o, v := &x.caches[own], x.entries.at(e)
	if o.mark == e {
		o.mark = v.next
	}
	if v.prev == none {
		o.first = v.next
	} else {
		x.entries.at(v.prev).next = v.next
	}
	if v.next == none {
		o.last = v.prev
	} else {
		x.entries.at(v.next).prev = v.prev
	}
}

// find returns the node of a hash, or none.
func (x *Index) find(hash uint64) uint32 {
	if x.buckets.n == 0 {
		return none
	}
	i := *x.buckets.of(hash)
	for i != none && x.nodes.at(i).hash != hash {
		i = x.nodes.at(i).next
	}
	return i
}

// entryOf returns the entry of a node in a cache, or none.
func (x *Index) entryOf(i, own uint32) uint32 {
	e := x.nodes.at(i).entries
	for e != none && x.entries.at(e).cache != own {
		e = x.entries.at(e).sibling
	}
	return e
}
