package prefix

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/cespare/xxhash/v2"
	"pgregory.net/rapid"
)

func TestSizes(t *testing.T) {
	if unsafe.Sizeof(node{}) != nodeSize || unsafe.Sizeof(entry{}) != entrySize {
		t.Errorf("a node takes %d bytes, an entry %d", unsafe.Sizeof(node{}), unsafe.Sizeof(entry{}))
	}
}

func chain(parts ...string) *Chain {
	c := new(Chain)
	c.Reset(1)
	for _, p := range parts {
		c.Add([]byte(p))
	}
	return c
}

// TestChain: a chain depends on the bytes alone, not on how they came; two that begin alike have
// the blocks in common that end before they part.
func TestChain(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		long := rapid.IntRange(0, 5000).Draw(t, "length")
		text := strings.Repeat("some text that repeats itself. ", long/31+1)[:long]
		whole := chain(text)
		var parts []string
		for rest := text; rest != ""; {
			n := rapid.IntRange(0, len(rest)).Draw(t, "part")
			if n == 0 {
				n = min(1, len(rest))
			}
			parts, rest = append(parts, rest[:n]), rest[n:]
		}
		if c := chain(parts...); c.Bytes != long || !slices.Equal(c.Blocks, whole.Blocks) {
			t.Fatalf("in parts: %d bytes in %d blocks, whole: %d in %d", c.Bytes, len(c.Blocks), long, len(whole.Blocks))
		}
		covered := 0
		for _, b := range whole.Blocks {
			covered += int(b.Bytes)
		}
		if covered > long || long-covered >= max(minBlock, (covered/growth)+1) {
			t.Fatalf("blocks cover %d of %d bytes", covered, long)
		}
		at := rapid.IntRange(0, long).Draw(t, "parts at")
		other := chain(text[:at], "X", text[at:])
		end := 0
		for i, b := range whole.Blocks {
			end += int(b.Bytes)
			if i >= len(other.Blocks) || (b == other.Blocks[i]) != (end <= at) {
				t.Fatalf("they part at %d: the block that ends at %d is alike: %v", at, end, i < len(other.Blocks) && b == other.Blocks[i])
			}
		}
	})
}

// TestSeedsAndTags: what is not the same state has no block in common.
func TestSeedsAndTags(t *testing.T) {
	text := []byte(strings.Repeat("x", 200))
	all := make(map[uint64]string)
	for _, tags := range [][]string{nil, {""}, {"a"}, {"b"}, {"a", "b"}, {"ab"}, {"a", "", "b"}} {
		for seed := range uint64(2) {
			var c Chain
			c.Reset(seed)
			for _, s := range tags {
				c.Tag(s)
			}
			c.Add(text)
			name := fmt.Sprint(seed, tags)
			if other := all[c.Blocks[0].Hash]; other != "" {
				t.Errorf("%s is as %s", name, other)
			}
			all[c.Blocks[0].Hash] = name
		}
	}
}

// model is what the index is to be: for each replica the blocks that it has, the one used last
// first.
type model map[uint64][]Block

func (m model) insert(c *Chain, replica uint64, capacity int64) {
	kept := slices.DeleteFunc(slices.Clone(m[replica]), func(b Block) bool { return slices.Contains(c.Blocks, b) })
	all := append(slices.Clone(c.Blocks), kept...)
	for size := total(all); capacity > 0 && size > capacity; size = total(all) {
		all = all[:len(all)-1]
	}
	m[replica] = all
}

func total(all []Block) (n int64) {
	for _, b := range all {
		n += int64(b.Bytes)
	}
	return n
}

func (m model) matched(c *Chain, replica uint64) (n int) {
	for _, b := range c.Blocks {
		if !slices.Contains(m[replica], b) {
			break
		}
		n += int(b.Bytes)
	}
	return n
}

// held reports whether anybody has a block.
func (m model) held(b Block) bool {
	for _, all := range m {
		if slices.Contains(all, b) {
			return true
		}
	}
	return false
}

// endings are the prompts that were sent whose last block is this one, by their hashes.
type endings map[Block]map[uint16]bool

func (e endings) add(c *Chain) {
	if n := len(c.Blocks); n > 0 {
		if e[c.Blocks[n-1]] == nil {
			e[c.Blocks[n-1]] = make(map[uint16]bool)
		}
		e[c.Blocks[n-1]][uint16(c.digest.Sum64())|2] = true
	}
}

// forget forgets those whose last block nobody has any more.
func (e endings) forget(m model) {
	for b := range e {
		if !m.held(b) {
			delete(e, b)
		}
	}
}

// shared is how far others are like it.
func (m model) shared(c *Chain, chains []*Chain, ends endings) (n int) {
	depth := 0
	for i, b := range c.Blocks {
		if !m.held(b) {
			break
		}
		depth += int(b.Bytes)
		next := make(map[Block]bool) // the blocks that follow
		for _, o := range chains {
			if len(o.Blocks) > i+1 && o.Blocks[i] == b && m.held(o.Blocks[i+1]) {
				next[o.Blocks[i+1]] = true
			}
		}
		goesOn := len(c.Blocks) > i+1
		if len(next)+len(ends[b]) > 1 || len(next) == 1 && goesOn && !next[c.Blocks[i+1]] {
			n = depth
		}
	}
	return n
}

// TestIndex compares with the model: with prompts that begin alike, replicas that hold little, that
// restart and that go, nothing is credited that is not there, and nothing missing that is.
func TestIndex(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x, m := New(1<<20), model{}
		var chains []*Chain
		epochs, capacities := make([]uint64, 4), make([]int64, 4)
		recent := make([][]Block, 4) // used since the last mark
		ends := make(endings)
		for i := range capacities {
			capacities[i] = rapid.SampledFrom([]int64{0, 100, 500, 2000}).Draw(t, "capacity")
		}
		draw := func() *Chain {
			if n := len(chains); n > 0 && rapid.Bool().Draw(t, "again") { // it knows where it was found
				return chains[rapid.IntRange(0, n-1).Draw(t, "which")]
			}
			var parts []string
			for range rapid.IntRange(0, 6).Draw(t, "parts") {
				parts = append(parts, strings.Repeat(rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "part"), 100))
			}
			chains = append(chains, chain(parts...))
			return chains[len(chains)-1]
		}
		replica := func() uint64 { return rapid.Uint64Range(0, 3).Draw(t, "replica") }
		key := func(r uint64) Key { return Key{r, epochs[r]} }
		t.Repeat(map[string]func(*rapid.T){
			"insert": func(*rapid.T) {
				c, r := draw(), replica()
				x.Insert(c, key(r), capacities[r])
				ends.forget(m)
				m.insert(c, r, capacities[r])
				ends.add(c)
				recent[r] = append(recent[r], c.Blocks...)
			},
			"mark": func(*rapid.T) {
				r := replica()
				x.Mark(r)
				recent[r] = nil
			},
			"reset": func(*rapid.T) {
				r := replica()
				x.Reset(r)
				m[r] = slices.DeleteFunc(m[r], func(b Block) bool { return !slices.Contains(recent[r], b) })
			},
			"restart": func(*rapid.T) {
				r := replica()
				epochs[r]++
				delete(m, r)
			},
			"go": func(*rapid.T) {
				r := replica()
				x.Forget(r)
				delete(m, r)
			},
			"": func(*rapid.T) {
				ends.forget(m)
				c := draw()
				keys, held := []Key{key(0), key(1), key(2), key(3)}, make([]Held, 4)
				x.Match(c, keys, held)
				for len(x.gone) > 0 {
					x.tidy()
				}
				if shared, want := x.Match(c, keys, held), m.shared(c, chains, ends); shared != want {
					t.Fatalf("others are taken to be like it for %d bytes, they are for %d", shared, want)
				}
				for r := range uint64(4) {
					if want := m.matched(c, r); held[r].Matched != want {
						t.Fatalf("replica %d is taken to have %d bytes, it has %d", r, held[r].Matched, want)
					}
					if h := held[r]; h.Blocks != len(m[r]) || h.Bytes != total(m[r]) {
						t.Fatalf("replica %d is taken to have %+v, it has %d blocks with %d bytes", r, h, len(m[r]), total(m[r]))
					}
				}
			},
		})
		for r := range uint64(4) {
			x.Forget(r)
		}
		for len(x.gone) > 0 {
			x.tidy()
		}
		live := 0
		for i := range x.buckets.n {
			if *x.buckets.at(i) != none {
				live++
			}
		}
		if live > 0 {
			t.Fatalf("%d buckets have nodes that nobody has", live)
		}
	})
}

// TestMemory: the index takes no more than it may, however many prompts there are, and who has
// most of it loses first.
func TestMemory(t *testing.T) {
	const limit = 8 << 20
	x := New(limit)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	small := Key{Replica: 1}
	var c Chain
	prompt := func(i int) *Chain {
		c.Reset(uint64(i))
		c.Add(text[:1000])
		return &c
	}
	for i := range 100 {
		x.Insert(prompt(i), small, 0)
	}
	for i := range 300_000 {
		x.Insert(prompt(1000+i), Key{Replica: 2 + uint64(i%2)}, 0)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if n, _ := x.Memory(); n > limit || n < limit*9/10 {
		t.Errorf("it takes %d bytes of %d", n, limit)
	}
	if n := int64(after.HeapAlloc) - int64(before.HeapAlloc); n > limit*105/100 {
		t.Errorf("the heap has grown by %d bytes", n)
	}
	held := make([]Held, 3)
	keys := []Key{small, {Replica: 2}, {Replica: 3}}
	if x.Match(prompt(0), keys, held); held[0].Matched == 0 {
		t.Error("who has little has lost it")
	}
	x.Match(prompt(1000+299_998), keys, held)
	if held[1].Matched == 0 {
		t.Error("the latest is lost")
	}
	if a, b := held[1].Blocks, held[2].Blocks; a < b*9/10 || b < a*9/10 {
		t.Errorf("of two alike one has %d blocks, the other %d", a, b)
	}
	runtime.KeepAlive(x)
}

// TestIndexLeak: replicas that come, restart and go leave nothing behind, however many they are.
func TestIndexLeak(t *testing.T) {
	x := New(8 << 20)
	var c Chain
	for i := range uint64(20_000) {
		c.Reset(i)
		c.Add(text[:4000])
		x.Insert(&c, Key{Replica: i, Epoch: 1}, 1<<20)
		x.Insert(&c, Key{Replica: i, Epoch: 2}, 1<<20)
		if i >= 3 {
			x.Forget(i - 3)
		}
	}
	if n, limit := len(x.caches), 8; n > limit || len(x.byKey) != 3 {
		t.Errorf("%d caches are kept of three replicas, %d keys", n, len(x.byKey))
	}
	for len(x.gone) > 0 {
		x.tidy()
	}
	if bytes, blocks := x.Memory(); blocks != 3*len(c.Blocks) || bytes > 1<<20 {
		t.Errorf("%d bytes, %d blocks, of three prompts of %d", bytes, blocks, len(c.Blocks))
	}
}

// TestOneLargerThanAll: a prompt for which there is no room is kept as far as there is.
func TestOneLargerThanAll(t *testing.T) {
	x := New((nodeSize + entrySize + bucketSize) * slabSize)
	long := chain(strings.Repeat("x", 1<<20))
	for i := uint64(0); len(long.Blocks) < 2*slabSize; i++ {
		long.Blocks = append(long.Blocks, Block{i, 1})
	}
	held := make([]Held, 1)
	for range 3 {
		x.Insert(long, Key{}, 0)
		if x.Match(long, []Key{{}}, held); held[0].Blocks != slabSize {
			t.Fatalf("%d blocks are kept, of which %d bytes are found", held[0].Blocks, held[0].Matched)
		}
	}
	none := New(100)
	none.Insert(long, Key{}, 0)
	if none.Match(long, []Key{{}}, held); held[0].Blocks != 0 {
		t.Errorf("without memory %d blocks are kept", held[0].Blocks)
	}
}

var text = bytes.Repeat([]byte("The quick brown fox jumps over the lazy dog. "), 1<<14)

// BenchmarkHash is what the next ones are measured against.
func BenchmarkHash(b *testing.B) {
	b.SetBytes(100 << 10)
	for b.Loop() {
		xxhash.Sum64(text[:100<<10])
	}
}

// BenchmarkPrompt is a look and an insertion of a new prompt of 100 KiB, of which a replica has half.
func BenchmarkPrompt(b *testing.B) {
	for _, replicas := range []int{4, 64} {
		b.Run(fmt.Sprint(replicas), func(b *testing.B) {
			b.SetBytes(100 << 10)
			b.ReportAllocs()
			x := New(512 << 20)
			keys, held := make([]Key, replicas), make([]Held, replicas)
			for i := range keys {
				keys[i].Replica = uint64(i)
			}
			var c Chain
			own := bytes.Clone(text[:100<<10])
			for i := 0; b.Loop(); i++ {
				binary.LittleEndian.PutUint64(own[50<<10:], uint64(i))
				c.Reset(1)
				c.Add(own)
				x.Match(&c, keys, held)
				x.Insert(&c, keys[i%replicas], 0)
			}
		})
	}
}
