package kvevents

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"

	"pgregory.net/rapid"
)

// prompt is one of few, so that many begin alike.
func prompt(t *rapid.T) (tokens []uint32) {
	for range rapid.IntRange(0, 5).Draw(t, "blocks") {
		tokens = append(tokens, rapid.Uint32Range(0, 1).Draw(t, "token"), 0)
	}
	return tokens
}

// name is what an engine with this seed calls a block.
func name(seed uint64, tokens []uint32) uint64 {
	h := seed
	for _, t := range tokens {
		h = h*31 + uint64(t) + 1
	}
	return h
}

// TestIndex compares with what each cache has: blocks that are stored twice and removed once, on
// several media, with parents that are not known, in engines with hashes of their own.
func TestIndex(t *testing.T) {
	media := []string{"GPU", "CPU", "DISK"}
	worth := []float64{1, .75, .25}
	rapid.Check(t, func(t *rapid.T) {
		x := NewIndex(1 << 20)
		views := []*View{x.NewView(), x.NewView(), x.NewView()}
		has := make([]map[string]*[3]int, 3) // by view, by the tokens up to a block: how often on each medium
		for i := range has {
			has[i] = make(map[string]*[3]int)
		}
		id := func(tokens []uint32) string { return fmt.Sprint(tokens) }
		store := func(v int, tokens []uint32, from, medium int) {
			e := &Event{Type: Stored, BlockSize: 2, Medium: []byte(media[medium])}
			known := from == 0
			if from > 0 {
				e.HasParent, e.Parent = true, name(uint64(v), tokens[:2*from])
				if p := has[v][id(tokens[:2*from])]; p != nil {
					known = true
				}
			}
			for end := 2 * (from + 1); end <= len(tokens); end += 2 {
				e.Hashes = append(e.Hashes, name(uint64(v), tokens[:end]))
				if known {
					p := has[v][id(tokens[:end])]
					if p == nil {
						p = new([3]int)
						has[v][id(tokens[:end])] = p
					}
					p[medium]++
				}
			}
			e.Tokens = tokens[2*from:]
			if err := views[v].Apply(e); err != nil {
				t.Fatal(err)
			}
		}
		view := func() int { return rapid.IntRange(0, 2).Draw(t, "view") }
		medium := func() int { return rapid.IntRange(0, 2).Draw(t, "medium") }
		t.Repeat(map[string]func(*rapid.T){
			"store": func(t *rapid.T) {
				tokens := prompt(t)
				store(view(), tokens, rapid.IntRange(0, len(tokens)/2).Draw(t, "from"), medium())
			},
			"remove": func(t *rapid.T) {
				v, tokens, m := view(), prompt(t), medium()
				_ = views[v].Apply(&Event{Type: Removed, Hashes: []uint64{name(uint64(v), tokens)}, Medium: []byte(media[m])})
				if p := has[v][id(tokens)]; p != nil && p[m] > 0 {
					if p[m]--; *p == [3]int{} {
						delete(has[v], id(tokens))
					}
				}
			},
			"clear": func(*rapid.T) {
				v := view()
				_ = views[v].Apply(&Event{Type: Cleared})
				clear(has[v])
			},
			"drop": func(*rapid.T) {
				v := view()
				views[v].Drop()
				views[v] = x.NewView()
				clear(has[v])
			},
			"": func(t *rapid.T) {
				tokens := prompt(t)
				credits := make([]float64, 3)
				x.Match(Keys(nil, tokens, 2, "", ""), views, credits)
				total := 0
				for v := range views {
					want := 0.0
				walk:
					for end := 2; end <= len(tokens); end += 2 {
						p := has[v][id(tokens[:end])]
						if p == nil {
							break
						}
						for m := range p {
							if p[m] > 0 {
								want += worth[m]
								continue walk
							}
						}
					}
					if credits[v] != want {
						t.Fatalf("cache %d: %v blocks of %v are found, it has %v", v, credits[v], tokens, want)
					}
					if views[v].Blocks() != len(has[v]) {
						t.Fatalf("cache %d is taken to have %d blocks, it has %d", v, views[v].Blocks(), len(has[v]))
					}
					total += len(has[v])
				}
				if x.Size() != int64(total) {
					t.Fatalf("%d pairs, want %d", x.Size(), total)
				}
			},
		})
	})
}

// fill makes a view have so many blocks, as of prompts of a hundred blocks.
func fill(t testing.TB, v *View, seed uint32, blocks int) {
	t.Helper()
	tokens := make([]uint32, 1600)
	for n := 0; n+100 <= blocks; n += 100 {
		e := &Event{Type: Stored, BlockSize: 16, Tokens: tokens}
		tokens[0], tokens[1] = seed, uint32(n)
		for i := range 100 {
			e.Hashes = append(e.Hashes, uint64(n+i))
		}
		if err := v.Apply(e); err != nil {
			t.Fatal(err)
		}
	}
}

// TestIndexLeak: engines that come and go, and blocks that are evicted, leave nothing behind.
func TestIndexLeak(t *testing.T) {
	x := NewIndex(1 << 20)
	kept := x.NewView()
	for i := range uint32(2000) {
		v := x.NewView()
		fill(t, v, 0, 100) // all have the same blocks
		if i%2 == 0 {
			for _, e := range []*Event{{Type: Removed, Hashes: []uint64{1, 2, 3}}, {Type: Cleared}} {
				if err := v.Apply(e); err != nil {
					t.Fatal(err)
				}
			}
		}
		fill(t, kept, i, 100)
		if err := kept.Apply(&Event{Type: Cleared}); err != nil {
			t.Fatal(err)
		}
		v.Drop()
	}
	if n := x.Size(); n != 0 || kept.Blocks() != 0 {
		t.Errorf("%d pairs and %d blocks are left of none", n, kept.Blocks())
	}
	free := 0
	for n := x.table.free; n > 0; n = x.table.get(n).next {
		free++
	}
	if n := len(x.table.at); n != 0 || free != int(x.table.used)-1 {
		t.Errorf("%d keys are kept, and of %d entries %d are free", n, x.table.used-1, free)
	}
}

// TestIndexLooksWhileItChanges: prompts are looked for while engines store, drop and go, and what is found is what a
// cache had at some moment: what comes before a block is there, too.
func TestIndexLooksWhileItChanges(t *testing.T) {
	const blocks = 1000 // which take several turns of the lock
	x := NewIndex(1 << 24)
	prompt := &Event{Type: Stored, BlockSize: 1}
	for i := range blocks {
		prompt.Tokens, prompt.Hashes = append(prompt.Tokens, uint32(i)), append(prompt.Hashes, uint64(i))
	}
	keys := Keys(nil, prompt.Tokens, 1, "", "")
	apply := func(v *View, events ...*Event) {
		for _, e := range events {
			if err := v.Apply(e); err != nil {
				t.Error(err)
			}
		}
	}
	kept := x.NewView()
	apply(kept, prompt)
	ended := make(chan struct{})
	var all sync.WaitGroup
	for range 2 {
		all.Go(func() {
			for range 20 {
				v := x.NewView()
				apply(v, prompt, &Event{Type: Removed, Hashes: prompt.Hashes[blocks/2:]}, &Event{Type: Cleared}, prompt)
				v.Drop()
			}
		})
	}
	go func() { all.Wait(); close(ended) }()
	credits := make([]float64, 1)
	for looks := 0; ; looks++ {
		x.Match(keys, []*View{kept}, credits)
		if credits[0] != blocks {
			t.Fatalf("%v blocks of %d", credits[0], blocks)
		}
		select {
		case <-ended:
			if looks == 0 {
				t.Error("nothing was looked for")
			}
			return
		default:
		}
	}
}

// TestGreedyEngine: one that claims as much as there is takes nothing from others, and no more than it may.
func TestGreedyEngine(t *testing.T) {
	const limit = 2000 // pairs that are for whoever comes
	x := NewIndex(2 * limit * pairBytes)
	greedy, honest := x.NewView(), x.NewView()
	fill(t, greedy, 1, limit)
	fill(t, honest, 2, limit/2)
	if greedy.Blocks() != limit || honest.Blocks() != limit/2 {
		t.Errorf("%d and %d blocks", greedy.Blocks(), honest.Blocks())
	}
	more := func(v *View) error {
		return v.Apply(&Event{Type: Stored, BlockSize: 1, Hashes: []uint64{1 << 50}, Tokens: []uint32{1}})
	}
	if err := more(greedy); !errors.Is(err, ErrTooMany) || greedy.Blocks() != 0 || honest.Blocks() != limit/2 {
		t.Errorf("one more: %v, %d and %d blocks", err, greedy.Blocks(), honest.Blocks())
	}
	fill(t, greedy, 1, limit/2)
	if err := more(honest); !errors.Is(err, ErrTooMany) {
		t.Errorf("more than its share of what is full: %v", err)
	}
	greedy.Drop()
	fill(t, honest, 2, limit) // and of what is not
}

// TestIndexMemory: what the index takes is about what it says.
func TestIndexMemory(t *testing.T) {
	const limit = 32 << 20
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	x := NewIndex(limit)
	var views []*View
	for i := range 4 {
		v := x.NewView()
		fill(t, v, uint32(i), limit/pairBytes/2/4)
		views = append(views, v)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if n := after.HeapAlloc - before.HeapAlloc; n > limit*5/4 {
		t.Errorf("%d bytes for %d pairs: %d each", n, x.Size(), int64(n)/x.Size())
	}
	e := &Event{Type: Stored, BlockSize: 1, Hashes: []uint64{1 << 40}, Tokens: []uint32{1}}
	for err := error(nil); err == nil; e.Hashes[0]++ {
		err = views[0].Apply(e)
		e.Tokens[0]++
	}
	if views[0].Blocks() != 0 {
		t.Errorf("one that claims too much has %d blocks still", views[0].Blocks())
	}
	runtime.KeepAlive(x)
}

// BenchmarkMatch is a prompt of 100,000 tokens, of which all replicas have some.
func BenchmarkMatch(b *testing.B) {
	for _, replicas := range []int{4, 64} {
		b.Run(fmt.Sprint(replicas), func(b *testing.B) {
			b.ReportAllocs()
			x := NewIndex(1 << 30)
			tokens := make([]uint32, 100_000)
			for i := range tokens {
				tokens[i] = uint32(i)
			}
			views := make([]*View, replicas)
			for v := range views {
				views[v] = x.NewView()
				part := tokens[:16*(1+(v+1)*6249/replicas)]
				e := &Event{Type: Stored, BlockSize: 16, Tokens: part}
				for i := range len(part) / 16 {
					e.Hashes = append(e.Hashes, uint64(i))
				}
				if err := views[v].Apply(e); err != nil {
					b.Fatal(err)
				}
			}
			var keys []uint64
			credits := make([]float64, replicas)
			for b.Loop() {
				keys = Keys(keys[:0], tokens, 16, "", "")
				x.Match(keys, views, credits)
			}
		})
	}
}

// BenchmarkApply is a batch of one prompt of 1,600 tokens, and its removal.
func BenchmarkApply(b *testing.B) {
	b.ReportAllocs()
	x := NewIndex(1 << 30)
	v := x.NewView()
	var hashes, tokens []uint64
	for i := range uint64(100) {
		hashes = append(hashes, binary.BigEndian.Uint64([]byte(fmt.Sprintf("%08d", i))))
		for j := range uint64(16) {
			tokens = append(tokens, i*100+j)
		}
	}
	payload := []byte(packArray(packTime, packArray(
		packMap(packText("type"), packText("BlockStored"), packText("block_hashes"), packInts(hashes...), packText("parent_block_hash"), packNil,
			packText("token_ids"), packInts(tokens...), packText("block_size"), packInt(16)),
		packMap(packText("type"), packText("BlockRemoved"), packText("block_hashes"), packInts(hashes...)),
	)))
	b.SetBytes(int64(len(payload)))
	var d Decoder
	for b.Loop() {
		if _, err := d.Decode(payload, func(e *Event) { _ = v.Apply(e) }); err != nil {
			b.Fatal(err)
		}
	}
}
