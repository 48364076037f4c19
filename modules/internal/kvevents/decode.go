// Package kvevents follows what engines say of the blocks in their KV caches, and knows which replica
// has the blocks of which prompt: the exact one of the three tiers of prefix awareness.
//
// Engines publish events over ZeroMQ, of vLLM's format, which SGLang has taken over. An engine's own
// hashes of blocks are opaque: they depend on an algorithm and a seed. So each block that is stored gets
// a key of the gateway's own, from the tokens that come with it and the key of the block before it, and
// a request's prompt, as tokens, has the same keys.
package kvevents

import (
	"bytes"
	"encoding/binary"
	"math"

	"github.com/cespare/xxhash/v2"
)

// Type is a type of event.
type Type uint8

// The types.
const (
	// Stored blocks are in a cache from now on.
	Stored Type = iota + 1
	// Removed blocks are not any more.
	Removed
	// Cleared says that none is.
	Cleared
)

// Event is one event. Its slices are good until the next one is decoded.
type Event struct {
	Type Type
	// Hashes are the engine's names of the blocks. A name that is bytes is a hash of them here.
	Hashes []uint64
	// Parent is the block before the first one, if HasParent.
	Parent    uint64
	HasParent bool
	// Tokens are those of all blocks, BlockSize in each.
	Tokens    []uint32
	BlockSize int
	// LoRA is the adapter's name, "" for none.
	LoRA []byte
	// Extra is for each block a hash of what else it depends on (a salt, an image), 0 for nothing; or
	// it is empty, and there is nothing for any.
	Extra []uint64
	// Medium is where the blocks are: GPU, or "" if it does not say, or CPU, DISK and such.
	Medium []byte
}

// maxBlockSize bounds the block size: beyond it sums could overflow.
const maxBlockSize = 1 << 16

// Decoder decodes payloads. It is for one goroutine.
type Decoder struct {
	r reader
	e Event
}

// Decode calls do for each event of a payload that is of a known type, until there is an error, after
// which what came of the payload is not to be kept. The
// payload is one array: time, events, and what is ignored, such as the data-parallel rank. It returns
// the time when it was made, in Unix s.
// Events are maps with their type under "type", or arrays that begin with it, as in older versions.
func (d *Decoder) Decode(payload []byte, do func(*Event)) (made float64, err error) {
	d.r = reader{b: payload}
	r := &d.r
	k, n, err := r.head()
	if err != nil {
		return made, err
	}
	if k != kindArray || n < 2 {
		return made, malformed("a batch is not an array of time and events")
	}
	switch k, v, err := r.head(); {
	case err != nil:
		return made, err
	case k == kindFloat:
		made = math.Float64frombits(v)
	case k == kindInt:
		made = float64(v)
	default:
		if err := r.skipRest(k, v, maxDepth); err != nil {
			return made, err
		}
	}
	k, events, err := r.head()
	if err != nil {
		return made, err
	}
	if k != kindArray {
		return made, malformed("the events are no array")
	}
	for range events {
		if err := d.event(); err != nil {
			return made, err
		}
		if d.e.Type != 0 {
			do(&d.e)
		}
	}
	return made, nil
}

// positions are the fields of events that are arrays.
var positions = map[Type][]string{
	Stored:  {"block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name", "extra_keys"},
	Removed: {"block_hashes", "medium"},
}

func typeOf(name []byte) Type {
	switch string(name) {
	case "BlockStored":
		return Stored
	case "BlockRemoved":
		return Removed
	case "AllBlocksCleared":
		return Cleared
	}
	return 0
}

func (d *Decoder) event() error {
	e := &d.e
	*e = Event{Hashes: e.Hashes[:0], Tokens: e.Tokens[:0], Extra: e.Extra[:0]}
	k, n, err := d.r.head()
	switch {
	case err != nil:
		return err
	case k == kindArray && n > 0:
		name, err := d.text()
		if err != nil {
			return err
		}
		e.Type = typeOf(name)
		fields := positions[e.Type]
		for i := range n - 1 {
			field := ""
			if i < uint64(len(fields)) {
				field = fields[i]
			}
			if err := d.field(field); err != nil {
				return err
			}
		}
	case k == kindMap:
		for range n {
			name, err := d.text()
			if err != nil {
				return err
			}
			if string(name) == "type" {
				if name, err = d.text(); err != nil {
					return err
				}
				e.Type = typeOf(name)
			} else if err := d.field(string(name)); err != nil {
				return err
			}
		}
	default:
		return malformed("an event is neither a map nor an array")
	}
	return e.check()
}

// check fails for what contradicts itself.
func (e *Event) check() error {
	switch {
	case e.Type != Stored:
		return nil
	case e.BlockSize <= 0 || e.BlockSize > maxBlockSize:
		return malformed("a block size of %d", e.BlockSize)
	case len(e.Tokens) != e.BlockSize*len(e.Hashes):
		return malformed("%d tokens in %d blocks of %d", len(e.Tokens), len(e.Hashes), e.BlockSize)
	case len(e.Extra) != 0 && len(e.Extra) != len(e.Hashes):
		return malformed("%d extra keys of %d blocks", len(e.Extra), len(e.Hashes))
	}
	return nil
}

// text reads a string, or nothing for nil.
func (d *Decoder) text() ([]byte, error) {
	k, n, err := d.r.head()
	switch {
	case err != nil:
		return nil, err
	case k == kindBytes:
		return d.r.bytes(n), nil
	case k == kindNil:
		return nil, nil
	}
	return nil, malformed("a value is no text")
}

// list reads an array, or nothing for nil.
func (d *Decoder) list(each func() error) error {
	k, n, err := d.r.head()
	switch {
	case err != nil:
		return err
	case k == kindNil:
		return nil
	case k != kindArray:
		return malformed("a value is no array")
	}
	for range n {
		if err := each(); err != nil {
			return err
		}
	}
	return nil
}

// field reads the value of a field, or skips it if it is of no interest.
func (d *Decoder) field(name string) (err error) {
	e := &d.e
	switch name {
	case "block_hashes":
		return d.list(func() error {
			h, _, err := d.hash()
			e.Hashes = append(e.Hashes, h)
			return err
		})
	case "parent_block_hash":
		e.Parent, e.HasParent, err = d.hash()
		return err
	case "token_ids":
		return d.list(func() error {
			k, n, err := d.r.head()
			if err == nil && (k != kindInt || n > math.MaxUint32) {
				return malformed("a token is no number of 32 bits")
			}
			e.Tokens = append(e.Tokens, uint32(n))
			return err
		})
	case "block_size":
		k, n, err := d.r.head()
		if err == nil && (k != kindInt || n > maxBlockSize) {
			return malformed("the block size is no number up to %d", maxBlockSize)
		}
		e.BlockSize = int(n)
		return err
	case "lora_name":
		e.LoRA, err = d.text()
		return err
	case "medium":
		e.Medium, err = d.text()
		return err
	case "extra_keys":
		return d.list(func() error {
			h, err := d.extra()
			e.Extra = append(e.Extra, h)
			return err
		})
	}
	return d.r.skip(maxDepth)
}

// hash reads the name of a block: a number, bytes, or nil.
func (d *Decoder) hash() (h uint64, ok bool, err error) {
	k, n, err := d.r.head()
	switch {
	case err != nil:
		return 0, false, err
	case k == kindInt:
		return n, true, nil
	case k == kindBytes:
		return xxhash.Sum64(d.r.bytes(n)), true, nil
	case k == kindNil:
		return 0, false, nil
	}
	return 0, false, malformed("a block hash is neither a number nor bytes")
}

// extra reads what one block depends on, and returns a hash of it: of the bytes of each text, and of
// the encoding of anything else.
func (d *Decoder) extra() (uint64, error) {
	k, n, err := d.r.head()
	switch {
	case err != nil:
		return 0, err
	case k == kindNil:
		return 0, nil
	case k != kindArray:
		return 0, malformed("extra keys are no array")
	}
	var h extraHash
	h.reset()
	for range n {
		at := d.r.at
		k, n, err := d.r.head()
		if err != nil {
			return 0, err
		}
		if k == kindBytes {
			h.add(d.r.bytes(n))
			continue
		}
		if err := d.r.skipRest(k, n, maxDepth); err != nil {
			return 0, err
		}
		h.add(d.r.b[at:d.r.at])
	}
	return h.sum(), nil
}

// extraHash is a hash of a list of texts.
type extraHash struct {
	d xxhash.Digest
	n int
}

func (h *extraHash) reset() {
	h.d.Reset()
	h.n = 0
}

func (h *extraHash) add(text []byte) {
	var size [8]byte
	binary.LittleEndian.PutUint64(size[:], uint64(len(text)))
	_, _ = h.d.Write(size[:])
	_, _ = h.d.Write(text)
	h.n++
}

// sum is 0 for the empty list.
func (h *extraHash) sum() uint64 {
	if h.n == 0 {
		return 0
	}
	return h.d.Sum64()
}

// gpu reports whether blocks are where a request finds them without a copy.
func gpu(medium []byte) bool { return len(medium) == 0 || bytes.EqualFold(medium, []byte("GPU")) }
