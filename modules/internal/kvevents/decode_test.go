package kvevents

import (
	"bufio"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// recorded are messages of a real vLLM 0.32, with hashes that are numbers or bytes.
func recorded(t testing.TB, name string) (all []message) {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var m struct {
			Seq     uint64
			Payload string
		}
		if err := json.Unmarshal(lines.Bytes(), &m); err != nil {
			t.Fatal(err)
		}
		payload, err := hex.DecodeString(m.Payload)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, message{m.Seq, payload})
	}
	return all
}

var recordings = []string{"vllm_int_hashes.jsonl", "vllm_bytes_hashes.jsonl"}

// clone keeps an event.
func (e *Event) clone() *Event {
	c := *e
	c.Hashes, c.Tokens, c.Extra = slices.Clone(e.Hashes), slices.Clone(e.Tokens), slices.Clone(e.Extra)
	c.LoRA, c.Medium = slices.Clone(e.LoRA), slices.Clone(e.Medium)
	return &c
}

func TestDecodeRecorded(t *testing.T) {
	for _, name := range recordings {
		var d Decoder
		counts := map[Type]int{}
		loras := map[string]int{}
		for _, m := range recorded(t, name) {
			b, err := d.Decode(m.payload, func(e *Event) {
				counts[e.Type]++
				loras[string(e.LoRA)]++
				if e.Type == Stored && (e.BlockSize != 32 || !gpu(e.Medium) || len(e.Hashes) == 0 || e.HasParent != (e.Parent != 0)) {
					t.Errorf("%s: %+v", name, e)
				}
			})
			if err != nil || b < 1.7e9 || b > 2e9 {
				t.Errorf("%s: message %d: %+v, %v", name, m.seq, b, err)
			}
		}
		if counts[Stored] < 5 || loras["alpha"] == 0 && name == recordings[0] {
			t.Errorf("%s: %v, adapters %v", name, counts, loras)
		}
	}
}

// TestRecordedKeys: the blocks of a prompt are found with the same tokens, under the adapter and with
// the salt that they were stored with, and otherwise not.
func TestRecordedKeys(t *testing.T) {
	for _, name := range recordings {
		x := NewIndex(1 << 20)
		v := x.NewView()
		var d Decoder
		var stored []*Event
		for _, m := range recorded(t, name) {
			_, err := d.Decode(m.payload, func(e *Event) {
				if err := v.Apply(e); err != nil {
					t.Fatal(err)
				}
				if e.Type == Stored && !e.HasParent {
					stored = append(stored, e.clone())
				}
				for _, e := range stored {
					lora, salt := string(e.LoRA), ""
					if len(e.Extra) > 1 && e.Extra[0] != 0 && e.Extra[1] == 0 {
						salt = "tenant-a"
					}
					credits := make([]float64, 1)
					x.Match(Keys(nil, e.Tokens, e.BlockSize, lora, salt), []*View{v}, credits)
					if want := float64(len(e.Hashes)); v.blocks[e.Hashes[0]].credit() > 0 && credits[0] != want {
						t.Errorf("%s: lora %q, salt %q: %v of %v blocks are found", name, lora, salt, credits[0], want)
					}
					x.Match(Keys(nil, e.Tokens, e.BlockSize, lora, "another"), []*View{v}, credits)
					if credits[0] != 0 {
						t.Errorf("%s: with another salt %v blocks are found", name, credits[0])
					}
				}
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		if len(stored) < 4 {
			t.Fatalf("%s: %d prompts", name, len(stored))
		}
		v.Drop()
		if n := x.Size(); n != 0 {
			t.Errorf("%s: %d pairs are left", name, n)
		}
	}
}

// What follows writes MessagePack, for tests.

func packArray(parts ...string) string {
	return packHead(0x90, 0xdc, len(parts)) + strings.Join(parts, "")
}

func packMap(pairs ...string) string {
	return packHead(0x80, 0xde, len(pairs)/2) + strings.Join(pairs, "")
}

func packHead(small, large byte, n int) string {
	if n < 16 {
		return string([]byte{small | byte(n)})
	}
	return string([]byte{large, byte(n >> 8), byte(n)})
}

func packText(s string) string { return string([]byte{0xd9, byte(len(s))}) + s }

func packBytes(s string) string { return string([]byte{0xc4, byte(len(s))}) + s }

func packInt(n uint64) string {
	b := []byte{0xcf, 0, 0, 0, 0, 0, 0, 0, 0}
	for i := range 8 {
		b[1+i] = byte(n >> (56 - 8*i))
	}
	return string(b)
}

const (
	packNil  = "\xc0"
	packTime = "\xcb\x41\xda\xc3\x03\xf8\x21\xa4\x81"
)

func packInts(ns ...uint64) string {
	var all []string
	for _, n := range ns {
		all = append(all, packInt(n))
	}
	return packArray(all...)
}

func decodeAll(t testing.TB, payload string) (made float64, all []*Event, err error) {
	t.Helper()
	var d Decoder
	made, err = d.Decode([]byte(payload), func(e *Event) { all = append(all, e.clone()) })
	return made, all, err
}

// TestDecodeForms: maps and arrays, with hashes of any kind, with more fields than are known, and of
// types that are not.
func TestDecodeForms(t *testing.T) {
	asMap := packMap(
		packText("type"), packText("BlockStored"), packText("to come"), packMap(packText("x"), packArray(packNil)),
		packText("block_hashes"), packInts(1, 1<<63), packText("parent_block_hash"), packNil,
		packText("token_ids"), packInts(1, 2, 3, 4), packText("block_size"), packInt(2), packText("lora_name"), packText("a"),
		packText("medium"), packText("CPU"), packText("extra_keys"), packArray(packArray(packText("a"), packText("salt")), packArray(packText("a"))),
	)
	asArray := packArray(packText("BlockStored"), packInts(1, 1<<63), packNil, packInts(1, 2, 3, 4), packInt(2), packInt(7), packText("CPU"))
	b, all, err := decodeAll(t, packArray(packTime, packArray(
		asMap, asArray,
		packArray(packText("BlockRemoved"), packArray(packBytes("a hash of 32 bytes")), packText("GPU")),
		packArray(packText("AllBlocksCleared")), packMap(packText("type"), packText("AllBlocksCleared")),
		packMap(packText("type"), packText("SomethingElse")), packArray(packText("SomethingElse"), packInt(3)),
	), packInt(3), packText("more")))
	if err != nil || len(all) != 5 {
		t.Fatalf("%+v, %d events: %v", b, len(all), err)
	}
	for i, e := range all[:2] {
		if e.Type != Stored || !slices.Equal(e.Hashes, []uint64{1, 1 << 63}) || e.HasParent || !slices.Equal(e.Tokens, []uint32{1, 2, 3, 4}) || e.BlockSize != 2 || string(e.Medium) != "CPU" {
			t.Errorf("form %d: %+v", i, e)
		}
	}
	if e := all[0]; string(e.LoRA) != "a" || len(e.Extra) != 2 || e.Extra[0] == e.Extra[1] {
		t.Errorf("%+v", e)
	}
	if all[2].Type != Removed || len(all[2].Hashes) != 1 || all[3].Type != Cleared || all[4].Type != Cleared {
		t.Errorf("%+v %+v %+v", all[2], all[3], all[4])
	}
	keys := Keys(nil, []uint32{1, 2, 3, 4, 5}, 2, "a", "salt")
	first := keyOf(0, all[0].Extra[0], []uint32{1, 2})
	if len(keys) != 2 || keys[0] != first || keys[1] != keyOf(first, all[0].Extra[1], []uint32{3, 4}) {
		t.Errorf("keys %v", keys)
	}
}

// TestDecodeBad: what is not what it should be is an error, takes no memory for what it claims, and
// ends.
func TestDecodeBad(t *testing.T) {
	event := func(s string) string { return packArray(packTime, packArray(s)) }
	stored := func(hashes, tokens, size string) string {
		return event(packMap(packText("type"), packText("BlockStored"), packText("block_hashes"), hashes, packText("token_ids"), tokens, packText("block_size"), size))
	}
	deep := strings.Repeat("\x91", 1<<20) + packNil
	for name, payload := range map[string]string{
		"nothing":               "",
		"no array":              packInt(3),
		"no events":             packArray(packTime),
		"events that are none":  packArray(packTime, packInt(1)),
		"4 G events":            "\x92" + packTime + "\xdd\xff\xff\xff\xff",
		"4 G pairs":             event("\xdf\xff\xff\xff\xff"),
		"4 GiB of text":         event("\x81\xdb\xff\xff\xff\xff"),
		"64 M tokens":           stored(packInts(1), "\xdd\x04\x00\x00\x00", packInt(1)),
		"cut off":               strings.TrimSuffix(event(packMap(packText("type"), packText("AllBlocksCleared"))), "d"),
		"an event that is none": event(packInt(7)),
		"no name":               event(packArray(packInt(7))),
		"tokens of 64 bits":     stored(packInts(1), packInts(1<<40), packInt(1)),
		"tokens that are text":  stored(packInts(1), packArray(packText("x")), packInt(1)),
		"too few tokens":        stored(packInts(1, 2), packInts(1), packInt(1)),
		"no block size":         stored(packInts(1), packInts(1), packInt(0)),
		"a huge block size":     stored(packInts(1), packInts(1), packInt(1<<40)),
		"hashes that are none":  stored(packArray(packArray()), packInts(1), packInt(1)),
		"nested deep":           packArray(packTime, deep),
		"nested deep, to skip":  packArray(deep, packArray()),
		"a byte of no meaning":  event("\xc1"),
	} {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, all, err := decodeAll(t, payload)
			runtime.ReadMemStats(&after)
			if !errors.Is(err, ErrPayload) {
				t.Errorf("%d events: %v", len(all), err)
			}
			if n := after.TotalAlloc - before.TotalAlloc; n > 4<<20 {
				t.Errorf("%d bytes were taken", n)
			}
		})
	}
}

// FuzzDecode: no payload makes the decoder panic or hang, and what is decoded can be applied.
func FuzzDecode(f *testing.F) {
	for _, name := range recordings {
		for _, m := range recorded(f, name) {
			f.Add(m.payload)
		}
	}
	f.Add([]byte(packArray(packTime, packArray(packArray(packText("BlockRemoved"), packInts(1), packText("GPU"))), packInt(1))))
	f.Fuzz(func(t *testing.T, payload []byte) {
		x := NewIndex(1 << 20)
		v := x.NewView()
		var d Decoder
		_, _ = d.Decode(payload, func(e *Event) { _ = v.Apply(e) })
		v.Drop()
		if x.Size() != 0 {
			t.Fatalf("%d pairs are left", x.Size())
		}
	})
}
