package sim

import (
	"encoding/binary"
	"strings"
	"unicode/utf8"
)

// The toy tokenizer. A token is up to four bytes of text that never split a
// UTF-8 sequence, and its id is those bytes read as a big-endian number, so
// that a text and its ids turn into each other without a vocabulary. A NUL
// byte is a token of its own, which keeps ids unambiguous. Special tokens have
// ids from specialBase on, where no valid UTF-8 sequence begins (0xF5 and
// above never occur in UTF-8).
//
// Every output token of the simulator is exactly four bytes, so an answer that
// comes back as history has the ids that the cache already holds, as it mostly
// has with real tokenizers.
const (
	maxTokenBytes = 4
	specialBase   = 0xFF000000
)

// Special token ids.
const (
	tokenStart     = specialBase + iota // opens a message
	tokenEnd                            // closes a message; as output it ends the text
	tokenSystem                         // role
	tokenUser                           // role
	tokenAssistant                      // role
	tokenTool                           // role
	tokenImage                          // one patch of an image or another medium
)

var specialText = [...]string{"<|im_start|>", "<|im_end|>", "system", "user", "assistant", "tool", "<|image|>"}

var roleTokens = map[string]uint32{
	"system": tokenSystem, "developer": tokenSystem, "user": tokenUser, "assistant": tokenAssistant, "tool": tokenTool,
}

// encode appends the token ids of s to ids. Bytes that are no valid UTF-8
// count as U+FFFD.
func encode(ids []uint32, s string) []uint32 {
	if !utf8.ValidString(s) {
		s = strings.ToValidUTF8(s, "\uFFFD")
	}
	for len(s) > 0 {
		n := 0
		for n < len(s) {
			if s[n] == 0 {
				n = max(n, 1)
				break
			}
			_, size := utf8.DecodeRuneInString(s[n:])
			if n+size > maxTokenBytes {
				break
			}
			n += size
		}
		var id uint32
		for i := range n {
			id = id<<8 | uint32(s[i])
		}
		ids = append(ids, id)
		s = s[n:]
	}
	return ids
}

// tokenText returns the text of one id; a special token has its marker.
func tokenText(id uint32) string {
	if id >= specialBase && int(id-specialBase) < len(specialText) {
		return specialText[id-specialBase]
	}
	var b [maxTokenBytes]byte
	binary.BigEndian.PutUint32(b[:], id)
	i := 0
	for i < maxTokenBytes-1 && b[i] == 0 {
		i++
	}
	return string(b[i:])
}

// decode returns the text of ids; bytes that form no UTF-8 become U+FFFD.
func decode(ids []uint32) string {
	var b strings.Builder
	for _, id := range ids {
		b.WriteString(tokenText(id))
	}
	return strings.ToValidUTF8(b.String(), "\uFFFD")
}

// The texts of output tokens, four ASCII bytes each and none that JSON
// escapes.
var (
	openers = words("This That Here When Once Each Then Some Most Many Both With From Over")
	starts  = words(" The And But Yet Now One Two Any All You Her His Our")
	inners  = words(" the and but for not you all any can had her was one our out day get has him his how man new now old see two way who boy did its let put say she too use big cat dog fox sun sky sea map key box cup pen car bus air ice oak red")
	enders  = words(" it. so. me. up. on. in. us. go. be. do. he. we. to. is. by. at.")
)

// words encodes a list; where it begins with a space, each word has one too.
func words(list string) []uint32 {
	space := list[:1]
	if space != " " {
		space = ""
	}
	var ids []uint32
	for w := range strings.FieldsSeq(list) {
		ids = encode(ids, space+w)
	}
	return ids
}

// mix is the finaliser of splitmix64: a cheap hash of a counter
// (https://prng.di.unimi.it/splitmix64.c).
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// sentenceEvery is the mean length of a sentence in tokens.
const sentenceEvery = 12

// outputToken is the i-th output token under seed, a pure function.
func outputToken(seed uint64, i int) uint32 {
	h := mix(seed + uint64(i))
	list := inners
	switch {
	case i == 0:
		list = openers
	case h%sentenceEvery == 0:
		list = enders
	case mix(seed+uint64(i-1))%sentenceEvery == 0:
		list = starts
	}
	return list[(h>>32)%uint64(len(list))]
}

// appendOutput appends the text of the output tokens from (included) to to
// (excluded) under seed.
func appendOutput(dst []byte, seed uint64, from, to int) []byte {
	for i := from; i < to; i++ {
		dst = binary.BigEndian.AppendUint32(dst, outputToken(seed, i))
	}
	return dst
}
