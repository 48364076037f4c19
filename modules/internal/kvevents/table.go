package kvevents

import "sync"

// table holds who has which block, by the block's key. Blocks of a prompt mostly lie side by side in it, and
// each says which one came after it last: so a prompt is followed from block to block with hardly a look at the
// map, most of which would wait for memory.
type table struct {
	mu     sync.RWMutex
	at     map[uint64]int32 // entries by their keys
	chunks []*[chunk]entry
	used   int32 // entries that there ever were at once, with the first, which is none
	free   int32 // the first of those that are free
}

const chunk = 1024

// entry is a block that caches have.
type entry struct {
	key   uint64 // 0 if it is free
	first holder
	// next is the entry of the block that came after it last, if it still is that, and of a free one the next
	// free one.
	next int32
	more []holder
}

// holder is a cache that has a block, and the best medium that it has it in.
type holder struct {
	id     int32 // the view's
	credit uint8 // percent
}

func newTable() table {
	return table{at: make(map[uint64]int32), chunks: []*[chunk]entry{new([chunk]entry)}, used: 1}
}

// yield lets others have the lock, which the caller has.
func (t *table) yield() {
	t.mu.Unlock()
	t.mu.Lock()
}

func (t *table) get(n int32) *entry { return &t.chunks[n/chunk][n%chunk] }

// after returns the entry of a key, 0 if there is none, for a block that comes after that of another entry.
func (t *table) after(before int32, key uint64) int32 {
	if before > 0 {
		if n := t.get(before).next; n > 0 && t.get(n).key == key {
			return n
		}
	}
	return t.at[key]
}

// follows notes that a block comes after another.
func (t *table) follows(before, b block) {
	if e := t.get(before.entry); before.entry > 0 && e.key == before.key { // which may be gone under its other name
		e.next = b.entry
	}
}

// entry returns the entry of a key, a new one if there is none.
func (t *table) entry(key uint64) int32 {
	n := t.at[key]
	if n > 0 {
		return n
	}
	if n = t.free; n > 0 {
		t.free = t.get(n).next
	} else {
		if n = t.used; n%chunk == 0 {
			t.chunks = append(t.chunks, new([chunk]entry))
		}
		t.used++
	}
	t.at[key] = n
	*t.get(n) = entry{key: key}
	return n
}

// set makes a cache have the block, or with no credit not have it any more.
func (t *table) set(b block, h holder) {
	n := b.entry
	if t.get(n).key != b.key { // it is gone under its other name, or has come again
		if n = t.at[b.key]; n == 0 && h.credit > 0 {
			n = t.entry(b.key)
		}
	}
	e := t.get(n)
	switch {
	case n == 0:
	case h.credit > 0:
		e.put(h)
	case e.drop(h.id):
		delete(t.at, b.key)
		*e = entry{next: t.free}
		t.free = n
	}
}

func (e *entry) put(h holder) {
	if e.first.credit == 0 || e.first.id == h.id {
		e.first = h
		return
	}
	for i := range e.more {
		if e.more[i].id == h.id {
			e.more[i] = h
			return
		}
	}
	e.more = append(e.more, h)
}

// drop returns whether nobody has the block then.
func (e *entry) drop(id int32) bool {
	at := &e.first
	for i := 0; at.id != id; i++ {
		if i == len(e.more) {
			return e.first.credit == 0
		}
		at = &e.more[i]
	}
	n := len(e.more)
	if n == 0 {
		e.first = holder{}
		return true
	}
	*at = e.more[n-1]
	if e.more = e.more[:n-1]; n == 1 {
		e.more = nil
	}
	return false
}
