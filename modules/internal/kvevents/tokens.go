package kvevents

import (
	"bytes"
	"container/list"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"
)

// The bounds of tokenizing.
const (
	// maxTokenized is the longest prompt, in bytes, whose tokens are asked for: an engine takes about 1 ms
	// for 1.5 KiB, and has no bound of its own.
	maxTokenized = 1 << 20
	// maxTokenAnswer bounds the answer, of up to 8 bytes for a token.
	maxTokenAnswer = 16 << 20
	// inBackground bounds how long an answer is waited for that no request waits for any more, and
	// maxAsking how many are asked for at a time.
	inBackground = 5 * time.Second
	maxAsking    = 8
	// enough is the share of a prompt whose tokens must be known for it to go by these.
	enough = 0.7
	// fresh is the share from which on the rest is not asked for.
	fresh = 0.9
	// renewEach is how old tokens may be that nobody asks for anew: what an engine makes of a text can change
	// with the day, in templates that say which it is, or with its next start.
	renewEach = 5 * time.Minute
)

// Text is a prompt as the tokenizer's memory sees it.
type Text struct {
	// Blocks are hashes of its beginnings, each longer than the one before; of prompts that
	// begin alike they are the same as far as that goes.
	Blocks []uint64
	// Bytes is how long it is, of which the last End are not in a prompt that goes on.
	Bytes, End int
	// Common is what others begin with, too, if anything.
	Common Beginning
	// Hash returns a hash of its first n bytes.
	Hash func(n int) uint64
}

// Beginning is the beginning of a prompt: its last block, and how many bytes it has.
type Beginning struct {
	Block uint64
	Bytes int
}

// Tokens are those of a prompt, or of most of what it begins with.
type Tokens struct {
	List []uint32
	// Share is how much of the prompt they are, from 0 to 1, which is all of it.
	Share float64
}

// ErrLate says that tokens were not to be had in time.
var ErrLate = errors.New("the tokens were not to be had in time")

// Tokenizer knows the tokens of prompts, or of most of what they begin with, which it asks
// engines for: only these do it exactly, chat template included. Safe for concurrent use.
type Tokenizer struct {
	limit  int // bytes
	asking chan struct{}
	now    func() time.Time

	mu    sync.Mutex
	known map[uint64]*list.Element // by the last block
	order *list.List               // of known, the latest first
	size  int
}

// known is what is known of a prompt, or of what several begin with.
type known struct {
	Beginning
	end    int    // how much more the prompt had
	hash   uint64 // of its bytes
	asked  time.Time
	tokens []uint32
}

// NewTokenizer returns one that remembers about so many bytes of tokens.
func NewTokenizer(memory int64) *Tokenizer {
	return &Tokenizer{
		limit: int(memory), asking: make(chan struct{}, maxAsking), now: time.Now,
		known: make(map[uint64]*list.Element), order: list.New(),
	}
}

// Tokens returns the tokens of a prompt, or, unless all are wanted, of most of what it begins with. What
// is not known it asks for with ask, and waits until ctx ends, which fails with [ErrLate], unless most are
// known; ask goes on for a moment, for the next time. ask gets a context of its own.
func (t *Tokenizer) Tokens(ctx context.Context, text Text, all bool, ask func(context.Context) (*http.Response, error)) (Tokens, error) {
	if text.Bytes > maxTokenized || len(text.Blocks) == 0 {
		return Tokens{}, fmt.Errorf("%w: the prompt has %d bytes", ErrLate, text.Bytes)
	}
	found, old := t.find(text)
	satisfies, suffices := fresh, enough
	if all {
		satisfies, suffices = 1, 1
	}
	if found.Share >= satisfies && !old {
		return found, nil
	}
	most := func(err error) (Tokens, error) {
		if found.Share >= enough {
			return found, nil
		}
		return Tokens{}, err
	}
	select {
	case t.asking <- struct{}{}:
	default:
		return most(fmt.Errorf("%w: %d are asked for already", ErrLate, maxAsking))
	}
	done := make(chan error, 1)
	var got []uint32
	bytes := text.Bytes - text.End
	entry := known{Beginning: Beginning{text.Blocks[len(text.Blocks)-1], bytes}, end: text.End, hash: text.Hash(bytes), asked: t.now()}
	common := known{Beginning: text.Common, asked: entry.asked}
	if common.Bytes > 0 {
		common.hash = text.Hash(common.Bytes)
	}
	background, cancel := context.WithTimeout(context.WithoutCancel(ctx), inBackground)
	go func() {
		defer cancel()
		defer func() { <-t.asking }()
		var err error
		if got, err = fetch(background, ask); err == nil {
			entry.tokens = got
			t.keep(entry, common, text.Hash)
		}
		done <- err
	}()
	if found.Share >= suffices {
		return found, nil
	}
	select {
	case err := <-done:
		if err != nil {
			return most(err)
		}
		return Tokens{got, 1}, nil
	case <-ctx.Done():
		return most(ErrLate)
	}
}

// find returns the tokens of the longest beginning that is known, and whether they are to be asked for anew.
func (t *Tokenizer) find(text Text) (found Tokens, old bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := len(text.Blocks) - 1; i >= 0; i-- {
		e := t.known[text.Blocks[i]]
		if e == nil {
			continue
		}
		k := e.Value.(*known)
		if k.Bytes > text.Bytes || text.Hash(k.Bytes) != k.hash {
			continue // they part behind the last block
		}
		t.order.MoveToFront(e)
		return Tokens{k.tokens, min(1, float64(k.Bytes+k.end)/float64(text.Bytes))}, t.now().Sub(k.asked) >= renewEach
	}
	return Tokens{}, false
}

// entryBytes is about what an entry takes beside its tokens.
const entryBytes = 256

// keep remembers the tokens of a prompt, and of what it and others begin with, if it has that in common
// with others. hash is of the prompt's first bytes.
func (t *Tokenizer) keep(k, common known, hash func(n int) uint64) {
	goesOn := t.goesOn(&k, &common, hash)
	t.mu.Lock()
	defer t.mu.Unlock()
	if common.Bytes == 0 || goesOn || !t.learn(k, common) {
		t.put(k)
	}
	for t.size > t.limit && t.order.Len() > 0 {
		t.drop(t.order.Back())
	}
}

// goesOn reports whether a prompt is the same as, or goes on from, the one that is known where it parts from
// others: that says nothing of what they have in common.
func (t *Tokenizer) goesOn(k, common *known, hash func(n int) uint64) bool {
	t.mu.Lock()
	e := t.known[common.Block]
	var first known
	if e != nil {
		first = *e.Value.(*known)
	}
	t.mu.Unlock() // a hash takes a while
	return e != nil && first.Bytes > common.Bytes && first.Bytes <= k.Bytes && hash(first.Bytes) == first.hash
}

// learn finds the tokens of what a prompt has in common with others: those that it shares with the first one
// that parted there, which is kept for that. It returns whether that takes the prompt's own place, since they
// part behind its last block.
func (t *Tokenizer) learn(k, common known) bool {
	same := common.Block == k.Block
	n := 0
	if e := t.known[common.Block]; e != nil {
		first := e.Value.(*known).tokens
		for n < min(len(first), len(k.tokens)) && first[n] == k.tokens[n] {
			n++
		}
	}
	if n == 0 || float64(n) < enough*float64(len(k.tokens))*float64(common.Bytes)/float64(k.Bytes) {
		// It is the first, or their tokens part before their text does: if the engine makes another thing
		// of that than it did, the next one will tell.
		k.Block = common.Block
		t.put(k)
		return same
	}
	common.tokens = slices.Clone(k.tokens[:n])
	t.put(common)
	return same
}

func (t *Tokenizer) put(k known) {
	if e := t.known[k.Block]; e != nil {
		t.drop(e)
	}
	t.known[k.Block] = t.order.PushFront(&k)
	t.size += 4*len(k.tokens) + entryBytes
}

func (t *Tokenizer) drop(e *list.Element) {
	k := t.order.Remove(e).(*known)
	delete(t.known, k.Block)
	t.size -= 4*len(k.tokens) + entryBytes
}

// fetch asks an engine.
func fetch(ctx context.Context, ask func(context.Context) (*http.Response, error)) ([]uint32, error) {
	res, err := ask(ctx)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("/tokenize answered %d", res.StatusCode)
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, maxTokenAnswer+1))
	if err != nil {
		return nil, fmt.Errorf("reading tokens: %w", err)
	}
	if len(body) > maxTokenAnswer {
		return nil, fmt.Errorf("/tokenize answered more than %d bytes", maxTokenAnswer)
	}
	return parseTokens(body)
}

// parseTokens reads the list under "tokens" of an answer, which is a hundred thousand numbers: so it is
// read by hand.
func parseTokens(body []byte) ([]uint32, error) {
	const key = `"tokens"`
	i := bytes.Index(body, []byte(key))
	bad := errors.New("/tokenize answered no list of tokens")
	if i < 0 {
		return nil, bad
	}
	i = blanks(body, i+len(key))
	if i == len(body) || body[i] != ':' {
		return nil, bad
	}
	if i = blanks(body, i+1); i == len(body) || body[i] != '[' {
		return nil, bad
	}
	i = blanks(body, i+1)
	tokens := make([]uint32, 0, min(len(body)/4, 1<<20))
	for i < len(body) && body[i] != ']' {
		n, start := uint64(0), i
		for ; i < len(body) && body[i] >= '0' && body[i] <= '9' && n < 1<<32; i++ {
			n = 10*n + uint64(body[i]-'0')
		}
		if i == start || n >= 1<<32 {
			return nil, bad
		}
		tokens = append(tokens, uint32(n))
		if i = blanks(body, i); i < len(body) && body[i] == ',' {
			i = blanks(body, i+1)
		} else if i == len(body) || body[i] != ']' {
			return nil, bad
		}
	}
	if i == len(body) || len(tokens) == 0 {
		return nil, bad
	}
	return tokens, nil
}

func blanks(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\r' || b[i] == '\t') {
		i++
	}
	return i
}
