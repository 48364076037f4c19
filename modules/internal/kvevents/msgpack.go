package kvevents

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// ErrPayload is a payload that is not what it should be.
var ErrPayload = errors.New("malformed KV events")

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrPayload, fmt.Sprintf(format, args...))
}

// kind is a family of MessagePack's formats (https://github.com/msgpack/msgpack/blob/master/spec.md).
type kind uint8

const (
	kindNil kind = iota
	kindBool
	kindInt   // n holds it, as its 64 bits
	kindFloat // n holds its bits
	kindBytes // a string or binary, of n bytes, which follow
	kindArray // of n items, which follow
	kindMap   // of n pairs, which follow
	kindExt   // of n bytes and a type
)

// maxDepth bounds how deep values are nested.
const maxDepth = 16

// reader reads MessagePack. A length is only believed as far as there are bytes for it.
type reader struct {
	b  []byte
	at int
}

// head reads the beginning of a value: all of it, but for what follows.
func (r *reader) head() (k kind, n uint64, err error) {
	c, err := r.uint(1)
	if err != nil {
		return 0, 0, err
	}
	fixed := func(k kind, n uint64) (kind, uint64, error) {
		if left := uint64(len(r.b) - r.at); n > left {
			return 0, 0, malformed("%d items or bytes are announced, %d are left", n, left)
		}
		return k, n, nil
	}
	sized := func(k kind, bytes int) (kind, uint64, error) {
		n, err := r.uint(bytes)
		if err != nil {
			return 0, 0, err
		}
		return fixed(k, n)
	}
	switch {
	case c <= 0x7f:
		return kindInt, c, nil
	case c <= 0x8f:
		return fixed(kindMap, c&0x0f)
	case c <= 0x9f:
		return fixed(kindArray, c&0x0f)
	case c <= 0xbf:
		return fixed(kindBytes, c&0x1f)
	case c >= 0xe0:
		return kindInt, uint64(int64(int8(c))), nil
	}
	switch c {
	case 0xc0:
		return kindNil, 0, nil
	case 0xc2, 0xc3:
		return kindBool, c & 1, nil
	case 0xc4, 0xc5, 0xc6:
		return sized(kindBytes, 1<<(c-0xc4))
	case 0xc7, 0xc8, 0xc9:
		return sized(kindExt, 1<<(c-0xc7))
	case 0xca:
		n, err := r.uint(4)
		return kindFloat, math.Float64bits(float64(math.Float32frombits(uint32(n)))), err
	case 0xcb:
		n, err := r.uint(8)
		return kindFloat, n, err
	case 0xcc, 0xcd, 0xce, 0xcf:
		n, err := r.uint(1 << (c - 0xcc))
		return kindInt, n, err
	case 0xd0, 0xd1, 0xd2, 0xd3:
		size := 1 << (c - 0xd0)
		n, err := r.uint(size)
		shift := 64 - 8*size
		return kindInt, uint64(int64(n<<shift) >> shift), err
	case 0xd4, 0xd5, 0xd6, 0xd7, 0xd8:
		return fixed(kindExt, 1<<(c-0xd4))
	case 0xd9, 0xda, 0xdb:
		return sized(kindBytes, 1<<(c-0xd9))
	case 0xdc, 0xdd:
		return sized(kindArray, 2<<(c-0xdc))
	case 0xde, 0xdf:
		return sized(kindMap, 2<<(c-0xde))
	}
	return 0, 0, malformed("byte %#x at %d begins nothing", c, r.at-1)
}

// uint reads a big-endian number of so many bytes.
func (r *reader) uint(size int) (uint64, error) {
	if len(r.b)-r.at < size {
		return 0, malformed("it ends in the middle of a value")
	}
	b := r.b[r.at : r.at+size]
	r.at += size
	switch size {
	case 1:
		return uint64(b[0]), nil
	case 2:
		return uint64(binary.BigEndian.Uint16(b)), nil
	case 4:
		return uint64(binary.BigEndian.Uint32(b)), nil
	}
	return binary.BigEndian.Uint64(b), nil
}

// bytes reads n bytes, which head has announced. They are part of the payload.
func (r *reader) bytes(n uint64) []byte {
	b := r.b[r.at : r.at+int(n)]
	r.at += int(n)
	return b
}

// skip reads a value that is of no interest.
func (r *reader) skip(depth int) error {
	k, n, err := r.head()
	if err != nil {
		return err
	}
	return r.skipRest(k, n, depth)
}

// skipRest reads what follows the head of a value.
func (r *reader) skipRest(k kind, n uint64, depth int) error {
	switch k {
	case kindBytes:
		r.bytes(n)
		return nil
	case kindExt:
		if uint64(len(r.b)-r.at) < n+1 {
			return malformed("it ends in the middle of a value")
		}
		r.bytes(n + 1)
		return nil
	case kindMap:
		n *= 2
	case kindArray:
	default:
		return nil
	}
	if depth == 0 {
		return malformed("values are nested more than %d deep", maxDepth)
	}
	for range n {
		if err := r.skip(depth - 1); err != nil {
			return err
		}
	}
	return nil
}
