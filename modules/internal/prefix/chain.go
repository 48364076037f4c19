// Package prefix knows which replica holds the beginning of which prompt in its
// KV cache, as far as a gateway can tell.
//
// It is approximate: it remembers where prompts were sent, and models what each
// engine keeps of them as a cache that forgets what was used least recently. What
// is wrong with that costs a cache hit and never an answer.
package prefix

import (
	"github.com/cespare/xxhash/v2"
)

// A prompt is cut into blocks at fixed offsets. The first ones are as long as a block of
// an engine, 16 tokens of 4 bytes; further on they are a sixteenth of what is before them. So
// a prompt of any length is a few dozen of them, and what is unknown of where two prompts part
// is a few per cent of what they have in common.
const (
	minBlock = 64
	growth   = 16
)

// Block is a prompt up to a certain byte.
type Block struct {
	// Hash tells it from all others, as far as 64 bits can: of its bytes and all before them,
	// and of what else the cached state depends on.
	Hash uint64
	// Bytes is how much longer it is than the block before it.
	Bytes uint32
}

// Chain is the blocks of one prompt. The zero Chain is one of an empty prompt. It is for one
// goroutine.
type Chain struct {
	// Blocks are those that the prompt fills, the first one first.
	Blocks []Block
	// Bytes is how long the prompt is.
	Bytes int

	digest xxhash.Digest
	begin  int // of the block that is being filled
	end    int

	path    []uint32 // its nodes in the index that it was looked up in last, of when that had
	walked  *Index   // changed so often, and the chain so many blocks
	changes uint64
	of      int
}

// Reset makes it the chain of an empty prompt. Chains are comparable only where the seed is the
// same.
func (c *Chain) Reset(seed uint64) {
	c.digest.ResetWithSeed(seed)
	c.Blocks, c.Bytes, c.begin, c.end, c.walked = c.Blocks[:0], 0, 0, minBlock, nil
}

// Tag adds what the cached state depends on and that is no part of the prompt: the names of
// the model and the adapter, a salt.
func (c *Chain) Tag(s string) {
	_, _ = c.digest.WriteString(s)
	_, _ = c.digest.Write([]byte{0}) // so that no two lists of tags are the same bytes
}

// Add adds a part of the prompt.
func (c *Chain) Add(b []byte) {
	for len(b) >= c.end-c.Bytes {
		n := c.end - c.Bytes
		_, _ = c.digest.Write(b[:n])
		b = b[n:]
		c.Blocks = append(c.Blocks, Block{Hash: c.digest.Sum64(), Bytes: uint32(c.end - c.begin)})
		c.Bytes, c.begin = c.end, c.end
		c.end += max(minBlock, c.end/growth)
	}
	_, _ = c.digest.Write(b)
	c.Bytes += len(b)
}
