package main

import (
	"container/heap"
	"math"
	"math/rand/v2"
	"slices"
)

// message is one of a prompt.
type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// talk is a conversation: what is said before it, and by its user, turn by turn.
type talk struct {
	system string
	turns  []string
}

// workload makes the conversations of a run over so many replicas.
type workload struct {
	name  string
	talks func(r *rand.Rand, replicas int) []talk
}

// answerTokens is how many tokens each answer has.
const answerTokens = 16

// prose is text that nothing else begins like.
func prose(r *rand.Rand, n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = "abcdefghijklmnopqrstuvwxyz    "[r.IntN(30)]
	}
	return string(b)
}

// talksOf makes n conversations, each with one of so many system prompts.
func talksOf(r *rand.Rand, n, groups, system, turns, user int) []talk {
	prompts := make([]string, groups)
	for i := range prompts {
		prompts[i] = prose(r, system)
	}
	all := make([]talk, n)
	for i := range all {
		all[i].system = prompts[i%groups]
		for range turns {
			all[i].turns = append(all[i].turns, prose(r, user))
		}
	}
	return all
}

var workloads = []workload{
	{"multi-turn", func(r *rand.Rand, replicas int) []talk { return talksOf(r, 30*replicas, 30*replicas, 400, 6, 600) }},
	{"shared system prompt", func(r *rand.Rand, replicas int) []talk { return talksOf(r, 100*replicas, 2*replicas, 4000, 1, 300) }},
	{"agentic", func(r *rand.Rand, replicas int) []talk { return talksOf(r, 15*replicas, 2, 4000, 10, 2000) }},
	{"no reuse", func(r *rand.Rand, replicas int) []talk { return talksOf(r, 240*replicas, 240*replicas, 500, 1, 1500) }},
	// So many that the 99th percentile is not how the first ones wait for what all begin with.
	{"one hot prefix", func(r *rand.Rand, replicas int) []talk { return talksOf(r, max(6000, 600*replicas), 1, 8000, 1, 300) }},
}

// order returns the conversations in the order in which their turns come: turn after turn over all of them,
// shuffled.
func order(r *rand.Rand, talks []talk) (all []int) {
	turns := 0
	for _, t := range talks {
		turns = max(turns, len(t.turns))
	}
	for turn := range turns {
		for _, i := range r.Perm(len(talks)) {
			if turn < len(talks[i].turns) {
				all = append(all, i)
			}
		}
	}
	return all
}

const blockBytes = 64 // 16 tokens of four bytes

// blockName tells blocks apart: of which text, and its place there.
type blockName struct {
	text  string
	place int
}

// asked is the blocks of a prompt, in order, and those of its answer: a cache has both afterwards.
type asked struct{ prompt, answer []blockName }

// trace is what is asked, in order, and how many blocks there are: what the bound is computed from, and
// how large the working set is.
func trace(talks []talk, sequence []int) (all []asked, set int) {
	next := make([]int, len(talks))
	seen := make(map[blockName]bool)
	for _, i := range sequence {
		t := talks[i]
		turn := next[i]
		next[i]++
		shared := len(t.system) / blockBytes
		size := len(t.system) + 32
		for k := range turn + 1 {
			size += len(t.turns[k]) + 40
			if k < turn {
				size += 4 * answerTokens
			}
		}
		var blocks []blockName
		for place := range (size + 4*answerTokens) / blockBytes {
			b := blockName{t.system, place}
			if place >= shared {
				b = blockName{t.turns[0], place}
			}
			blocks = append(blocks, b)
			if !seen[b] {
				seen[b] = true
				set++
			}
		}
		all = append(all, asked{blocks[:size/blockBytes], blocks[size/blockBytes:]})
	}
	return all, set
}

// use is when a block that is cached is used next.
type use struct {
	next  int
	place int
	name  blockName
}

// uses is a heap, the block first that is used last, and of one prompt the end before the beginning.
type uses []use

func (u uses) Len() int { return len(u) }
func (u uses) Less(i, j int) bool {
	if u[i].next != u[j].next {
		return u[i].next > u[j].next
	}
	return u[i].place > u[j].place
}
func (u uses) Swap(i, j int) { u[i], u[j] = u[j], u[i] }
func (u *uses) Push(x any)   { *u = append(*u, x.(use)) }
func (u *uses) Pop() any {
	last := (*u)[len(*u)-1]
	*u = (*u)[:len(*u)-1]
	return last
}

// bound returns the share of all blocks that one cache of so many could have held when they were asked for,
// if it knew the future: Belady's rule.
func bound(requests []asked, capacity int) float64 {
	at := make(map[blockName][]int)
	for i, a := range requests {
		for _, b := range a.prompt {
			at[b] = append(at[b], i)
		}
	}
	cached := make(map[blockName]int)
	var order uses
	hits, all := 0, 0
	for i, a := range requests {
		all += len(a.prompt)
		for _, b := range a.prompt {
			if _, ok := cached[b]; !ok {
				break
			}
			hits++
		}
		for _, b := range slices.Concat(a.prompt, a.answer) {
			later := at[b]
			for len(later) > 0 && later[0] <= i {
				later = later[1:]
			}
			at[b] = later
			next := math.MaxInt
			if len(later) > 0 {
				next = later[0]
			}
			cached[b] = next
			heap.Push(&order, use{next, b.place, b})
		}
		for len(cached) > capacity {
			u := heap.Pop(&order).(use)
			if next, ok := cached[u.name]; ok && next == u.next {
				delete(cached, u.name)
			}
		}
	}
	return float64(hits) / float64(max(1, all))
}
