package openai

import (
	"encoding/binary"
	"math/bits"
)

// maxDepth is how many arrays and objects may be open at once, the outermost one included. Real
// requests stay under 20 (tool schemas); the limit keeps memory flat whatever a client sends.
const maxDepth = 512

// fault is why a text is not JSON; noFault is zero.
type fault uint8

const (
	noFault fault = iota
	badByte
	badEnd
	badControl
	badDepth
)

func (f fault) String() string {
	switch f {
	case badByte:
		return "unexpected character"
	case badEnd:
		return "unexpected end"
	case badControl:
		return "control character in a string"
	case badDepth:
		return "more than 512 levels of nesting"
	default:
		return "no fault"
	}
}

// lows has a 1 in every byte of a word.
const lows = 0x0101010101010101

// skipString returns the offset after the string whose opening quote is at b[i-1]. It follows
// RFC 8259, section 7, but takes any byte above 0x7f: whether a text is good UTF-8 is for the
// engine to say.
func skipString(b []byte, i int) (int, fault) {
	for i < len(b) {
		if i+8 <= len(b) {
			// Eight bytes at a time: the high bit of each byte that is a quote, a backslash or a
			// control character is set. A borrow can only disturb bytes above the lowest hit, and
			// the lowest hit is all that is used.
			x := binary.LittleEndian.Uint64(b[i:])
			q := x ^ lows*'"'
			s := x ^ lows*'\\'
			m := ((q-lows)&^q | (s-lows)&^s | (x-lows*0x20)&^x) & (lows << 7)
			if m == 0 {
				i += 8
				continue
			}
			i += bits.TrailingZeros64(m) >> 3
		}
		switch c := b[i]; {
		case c == '"':
			return i + 1, noFault
		case c < 0x20:
			return i, badControl
		case c != '\\':
			i++
		default:
			if i+1 == len(b) {
				return i + 1, badEnd
			}
			switch b[i+1] {
			case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
				i += 2
			case 'u':
				for k := i + 2; k < i+6; k++ {
					if k >= len(b) {
						return k, badEnd
					}
					if !isHex(b[k]) {
						return k, badByte
					}
				}
				i += 6
			default:
				return i + 1, badByte
			}
		}
	}
	return i, badEnd
}

// skipValue returns the offset after the JSON value that begins at b[i] or after spaces there. It
// does not recurse, and needs the same memory for every input.
func skipValue(b []byte, i int) (int, fault) {
	if i < len(b) && b[i] == '"' {
		return skipString(b, i+1)
	}
	var objects [maxDepth / 64]uint64 // which of the open levels are objects
	var f fault
	depth := 0
	for {
		i = skipSpace(b, i)
		if i == len(b) {
			return i, badEnd
		}
		switch c := b[i]; c {
		case '"':
			i, f = skipString(b, i+1)
		case '{', '[':
			if depth == maxDepth-1 {
				return i, badDepth
			}
			i = skipSpace(b, i+1)
			if i == len(b) {
				return i, badEnd
			}
			if b[i] == c+2 { // in ASCII the closing bracket is two after the opening one
				i++
				break
			}
			if c == '[' {
				objects[depth>>6] &^= 1 << (depth & 63)
				depth++
				continue
			}
			objects[depth>>6] |= 1 << (depth & 63)
			depth++
			if i, f = skipKey(b, i); f != noFault {
				return i, f
			}
			continue
		case 't':
			i, f = skipWord(b, i, "true")
		case 'f':
			i, f = skipWord(b, i, "false")
		case 'n':
			i, f = skipWord(b, i, "null")
		default:
			i, f = skipNumber(b, i)
		}
		if f != noFault {
			return i, f
		}
		for {
			if depth == 0 {
				return i, noFault
			}
			i = skipSpace(b, i)
			if i == len(b) {
				return i, badEnd
			}
			object := objects[(depth-1)>>6]>>((depth-1)&63)&1 == 1
			c := b[i]
			if c == ',' {
				i++
				if object {
					if i, f = skipKey(b, skipSpace(b, i)); f != noFault {
						return i, f
					}
				}
				break
			}
			if object && c != '}' || !object && c != ']' {
				return i, badByte
			}
			i++
			depth--
		}
	}
}

// skipKey returns the offset after `"key" :`, whose first quote must be at b[i].
func skipKey(b []byte, i int) (int, fault) {
	if i == len(b) {
		return i, badEnd
	}
	if b[i] != '"' {
		return i, badByte
	}
	i, f := skipString(b, i+1)
	if f != noFault {
		return i, f
	}
	i = skipSpace(b, i)
	if i == len(b) {
		return i, badEnd
	}
	if b[i] != ':' {
		return i, badByte
	}
	return i + 1, noFault
}

func skipSpace(b []byte, i int) int {
	for i < len(b) && b[i] <= ' ' && (b[i] == ' ' || b[i] == '\n' || b[i] == '\t' || b[i] == '\r') {
		i++
	}
	return i
}

func skipWord(b []byte, i int, word string) (int, fault) {
	for k := range len(word) {
		if i+k == len(b) {
			return i + k, badEnd
		}
		if b[i+k] != word[k] {
			return i + k, badByte
		}
	}
	return i + len(word), noFault
}

func skipNumber(b []byte, i int) (int, fault) {
	if b[i] == '-' {
		i++
	}
	if i < len(b) && b[i] == '0' {
		i++
	} else if k := skipDigits(b, i); k == i {
		return faultAt(b, i)
	} else {
		i = k
	}
	if i < len(b) && b[i] == '.' {
		k := skipDigits(b, i+1)
		if k == i+1 {
			return faultAt(b, k)
		}
		i = k
	}
	if i < len(b) && (b[i] == 'e' || b[i] == 'E') {
		i++
		if i < len(b) && (b[i] == '+' || b[i] == '-') {
			i++
		}
		k := skipDigits(b, i)
		if k == i {
			return faultAt(b, i)
		}
		i = k
	}
	return i, noFault
}

func skipDigits(b []byte, i int) int {
	for i < len(b) && b[i] >= '0' && b[i] <= '9' {
		i++
	}
	return i
}

func faultAt(b []byte, i int) (int, fault) {
	if i >= len(b) {
		return i, badEnd
	}
	return i, badByte
}

func isHex(c byte) bool {
	return c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'f'
}
