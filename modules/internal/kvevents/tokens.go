package kvevents

import (
	"bytes"
	"container/list"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
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
)

// Text is a prompt as the tokenizer's memory sees it.
type Text struct {
	// Blocks are hashes of its beginnings, each longer than the one before; of prompts that
	// begin alike they are the same as far as that goes.
	Blocks []uint64
	// Bytes is how long it is, of which the last End are not in a prompt that goes on.
	Bytes, End int
	// Hash returns a hash of its first n bytes.
	Hash func(n int) uint64
}

// ErrLate says that tokens were not to be had in time.
var ErrLate = errors.New("the tokens were not to be had in time")

// Tokenizer knows the tokens of prompts, or of most of what they begin with, which it asks
// engines for: only these do it exactly, chat template included. Safe for concurrent use.
type Tokenizer struct {
	limit  int // bytes
	asking chan struct{}

	mu    sync.Mutex
	known map[uint64]*list.Element // by the last block
	order *list.List               // of known, the latest first
	size  int
}

// known is what is known of a prompt.
type known struct {
	block  uint64 // its last one
	bytes  int
	hash   uint64 // of so many bytes
	tokens []uint32
}

// NewTokenizer returns one that remembers about so many bytes of tokens.
func NewTokenizer(memory int64) *Tokenizer {
	return &Tokenizer{
		limit: int(memory), asking: make(chan struct{}, maxAsking),
		known: make(map[uint64]*list.Element), order: list.New(),
	}
}

// Tokens returns the tokens of a prompt, or of most of what it begins with. What is not known it asks
// for with ask, and waits until ctx ends, which fails with [ErrLate]; ask goes on for a moment, for
// the next time. ask gets a context of its own.
func (t *Tokenizer) Tokens(ctx context.Context, text Text, ask func(context.Context) (*http.Response, error)) ([]uint32, error) {
	if text.Bytes > maxTokenized || len(text.Blocks) == 0 {
		return nil, fmt.Errorf("%w: the prompt has %d bytes", ErrLate, text.Bytes)
	}
	tokens, share := t.find(text)
	if share >= fresh {
		return tokens, nil
	}
	select {
	case t.asking <- struct{}{}:
	default:
		if share >= enough {
			return tokens, nil
		}
		return nil, fmt.Errorf("%w: %d are asked for already", ErrLate, maxAsking)
	}
	done := make(chan error, 1)
	var got []uint32
	bytes := text.Bytes - text.End
	entry := known{block: text.Blocks[len(text.Blocks)-1], bytes: bytes, hash: text.Hash(bytes)}
	background, cancel := context.WithTimeout(context.WithoutCancel(ctx), inBackground)
	go func() {
		defer cancel()
		defer func() { <-t.asking }()
		var err error
		if got, err = fetch(background, ask); err == nil {
			entry.tokens = got
			t.keep(entry)
		}
		done <- err
	}()
	if share >= enough {
		return tokens, nil
	}
	select {
	case err := <-done:
		return got, err
	case <-ctx.Done():
		return nil, ErrLate
	}
}

// find returns the tokens of the longest beginning that is known, and what share of the prompt that is.
func (t *Tokenizer) find(text Text) (tokens []uint32, share float64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := len(text.Blocks) - 1; i >= 0; i-- {
		e := t.known[text.Blocks[i]]
		if e == nil {
			continue
		}
		k := e.Value.(*known)
		if k.bytes > text.Bytes || text.Hash(k.bytes) != k.hash {
			continue // they part behind the last block
		}
		t.order.MoveToFront(e)
		return k.tokens, float64(k.bytes+text.End) / float64(text.Bytes)
	}
	return nil, 0
}

// entryBytes is about what an entry takes beside its tokens.
const entryBytes = 256

func (t *Tokenizer) keep(k known) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.known[k.block]; e != nil {
		t.drop(e)
	}
	t.known[k.block] = t.order.PushFront(&k)
	t.size += 4*len(k.tokens) + entryBytes
	for t.size > t.limit && t.order.Len() > 0 {
		t.drop(t.order.Back())
	}
}

func (t *Tokenizer) drop(e *list.Element) {
	k := t.order.Remove(e).(*known)
	delete(t.known, k.block)
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
	if i == len(body) {
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
