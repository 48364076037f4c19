package sim

import (
	"encoding/binary"

	"github.com/cespare/xxhash/v2"
)

// blockID is the index of a physical KV block in its store.
type blockID int32

// block is one physical KV block. A free block that still has a hash is cached:
// it can be taken back by its hash until it is handed out again.
type block struct {
	hash       uint64 // of the whole prefix up to and with this block; 0: not full
	refs       int32  // sequences that hold it
	prev, next blockID
}

// blockStore is the paged KV memory of one rank with the prefix cache of
// vLLM V1: full blocks are known by a chain of hashes, free blocks queue in LRU
// order and lose their content only when they are handed out again. It is not
// safe for concurrent use.
type blockStore struct {
	blocks []block            // one more than there are: the last is the ring's sentinel
	cached map[uint64]blockID // hash to block
	free   int                // length of the ring
	// removed is told of the hashes of blocks that lose their content.
	removed func(hash uint64)
}

func newBlockStore(n int) *blockStore {
	s := &blockStore{blocks: make([]block, n+1), cached: make(map[uint64]blockID), removed: func(uint64) {}}
	ring := blockID(n)
	s.blocks[ring].prev, s.blocks[ring].next = ring, ring
	for id := range ring {
		s.push(id)
	}
	return s
}

func (s *blockStore) size() int { return len(s.blocks) - 1 }

// usage is the share of blocks that sequences hold, 0 to 1.
func (s *blockStore) usage() float64 {
	return float64(s.size()-s.free) / float64(s.size())
}

// push puts a block at the young end of the ring of free blocks.
func (s *blockStore) push(id blockID) {
	ring := blockID(s.size())
	last := s.blocks[ring].prev
	s.blocks[id].prev, s.blocks[id].next = last, ring
	s.blocks[last].next, s.blocks[ring].prev = id, id
	s.free++
}

func (s *blockStore) unlink(id blockID) {
	b := s.blocks[id]
	s.blocks[b.prev].next, s.blocks[b.next].prev = b.next, b.prev
	s.free--
}

// match returns the cached blocks that begin the chain of hashes, without
// taking them, and how many of them are free.
func (s *blockStore) match(hashes []uint64) (hit []blockID, free int) {
	for _, h := range hashes {
		id, ok := s.cached[h]
		if !ok {
			break
		}
		hit = append(hit, id)
		if s.blocks[id].refs == 0 {
			free++
		}
	}
	return hit, free
}

// take adds a reference to blocks that match found.
func (s *blockStore) take(ids []blockID) {
	for _, id := range ids {
		if s.blocks[id].refs == 0 {
			s.unlink(id)
		}
		s.blocks[id].refs++
	}
}

// alloc appends n blocks to ids, the oldest free ones first, whose cached
// content is lost. The caller has seen that n blocks are free.
func (s *blockStore) alloc(ids []blockID, n int) []blockID {
	for range n {
		id := s.blocks[s.size()].next
		s.unlink(id)
		s.forget(id)
		s.blocks[id].refs = 1
		ids = append(ids, id)
	}
	return ids
}

func (s *blockStore) forget(id blockID) {
	if h := s.blocks[id].hash; h != 0 {
		if s.cached[h] == id {
			delete(s.cached, h)
		}
		s.blocks[id].hash = 0
		s.removed(h)
	}
}

// fill names a held block by the hash of its now complete content. Where
// another block has that content already, it stays the one to be found.
func (s *blockStore) fill(id blockID, hash uint64) {
	if s.blocks[id].hash != 0 {
		return
	}
	s.blocks[id].hash = hash
	if _, ok := s.cached[hash]; !ok {
		s.cached[hash] = id
	}
}

// release gives up one reference to each block. The last block of a sequence
// becomes the oldest, since a prefix is worth more than what follows it.
func (s *blockStore) release(ids []blockID) {
	for i := len(ids) - 1; i >= 0; i-- {
		b := &s.blocks[ids[i]]
		b.refs--
		if b.refs == 0 {
			s.push(ids[i])
		}
	}
}

// clear forgets the content of every block that no sequence holds.
func (s *blockStore) clear() {
	for id := range blockID(s.size()) {
		if s.blocks[id].refs == 0 {
			s.forget(id)
		}
	}
}

// hashSeed begins a chain of block hashes: prompts with another adapter or
// another cache_salt share no block.
func hashSeed(lora, salt string) uint64 {
	d := xxhash.New()
	var n [8]byte
	binary.LittleEndian.PutUint64(n[:], uint64(len(lora)))
	_, _ = d.Write(n[:]) // a hash never fails to write
	_, _ = d.WriteString(lora)
	_, _ = d.WriteString(salt)
	return max(d.Sum64(), 1)
}
