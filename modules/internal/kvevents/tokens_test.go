package kvevents

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"
)

// textOf is a prompt in JSON, with a block for each sixteen bytes.
func textOf(s string) Text {
	t := Text{Bytes: len(s), End: 1, Hash: func(n int) uint64 { return xxhash.Sum64String(s[:n]) }}
	for n := 16; n <= len(s); n += 16 {
		t.Blocks = append(t.Blocks, xxhash.Sum64String(s[:n]))
	}
	return t
}

// answering answers with a token for each byte, after a while.
func answering(s string, after time.Duration, asked *atomic.Int64) func(context.Context) (*http.Response, error) {
	return func(ctx context.Context) (*http.Response, error) {
		asked.Add(1)
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(after):
		}
		var b strings.Builder
		b.WriteString(`{"count":1,"tokens":[`)
		for i := range s {
			if i > 0 {
				b.WriteByte(',')
			}
			fmt.Fprint(&b, s[i])
		}
		b.WriteString("]}")
		return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(b.String()))}, nil
	}
}

func tokensOf(s string) (all []uint32) {
	for i := range s {
		all = append(all, uint32(s[i]))
	}
	return all
}

// TestTokens: what is known is not asked for again, of a prompt that goes on most is known at once, and
// one that parts is another.
func TestTokens(t *testing.T) {
	tk := NewTokenizer(1 << 20)
	var asked atomic.Int64
	ask := func(s string) []uint32 {
		t.Helper()
		got, err := tk.Tokens(t.Context(), textOf(s), false, answering(s, 0, &asked))
		if err != nil {
			t.Fatal(err)
		}
		return got.List
	}
	talk := strings.Repeat("hello you there. ", 20)
	for range 2 {
		if got := ask(talk + "]"); !slices.Equal(got, tokensOf(talk+"]")) || asked.Load() != 1 {
			t.Fatalf("%d tokens of %d, asked %d times", len(got), len(talk)+1, asked.Load())
		}
	}
	next := talk + strings.Repeat("and so on ", 10)
	if got := ask(next + "]"); !slices.Equal(got, tokensOf(talk+"]")) {
		t.Errorf("of one that goes on %d tokens are known", len(got))
	}
	eventually(t, "the rest is asked for", func() bool {
		got, _ := tk.find(textOf(next + "]"))
		return len(got.List) == len(next)+1
	})
	other := talk[:len(talk)-5] + strings.Repeat("something else. ", 3)
	if got := ask(other + "]"); !slices.Equal(got, tokensOf(other+"]")) {
		t.Errorf("one that parts in the last block has the tokens of another: %d of %d", len(got), len(other)+1)
	}
}

// TestTokensInTime: a request waits for tokens for as long as it may, and the next time they are there.
func TestTokensInTime(t *testing.T) {
	tk := NewTokenizer(1 << 20)
	var asked atomic.Int64
	s := strings.Repeat("hello you there. ", 20) + "]"
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := tk.Tokens(ctx, textOf(s), false, answering(s, 20*time.Millisecond, &asked)); !errors.Is(err, ErrLate) {
		t.Errorf("%v", err)
	}
	eventually(t, "they are there", func() bool {
		got, _ := tk.find(textOf(s))
		return got.Share == 1
	})
	if got, err := tk.Tokens(t.Context(), textOf(s), false, answering(s, time.Hour, &asked)); err != nil || len(got.List) != len(s) || asked.Load() != 1 {
		t.Errorf("%d tokens: %v", len(got.List), err)
	}
	long := textOf("x")
	long.Bytes = maxTokenized + 1
	if _, err := tk.Tokens(t.Context(), long, false, nil); !errors.Is(err, ErrLate) {
		t.Errorf("too long: %v", err)
	}
	// Engines that hang are asked no more than a few times.
	for i := range 2 * maxAsking {
		s := strings.Repeat(fmt.Sprint(i), 100)
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		_, err := tk.Tokens(ctx, textOf(s), false, answering(s, time.Hour, &asked))
		cancel()
		if !errors.Is(err, ErrLate) {
			t.Errorf("%v", err)
		}
	}
	if n := asked.Load(); n > 1+maxAsking {
		t.Errorf("%d were asked for", n)
	}
}

// TestTokensMemory: what is remembered is bounded, and what was used last is there.
func TestTokensMemory(t *testing.T) {
	tk := NewTokenizer(10_000)
	var asked atomic.Int64
	for i := range 100 {
		s := strings.Repeat(fmt.Sprintf("%03d ", i), 50) + "]"
		if _, err := tk.Tokens(t.Context(), textOf(s), false, answering(s, 0, &asked)); err != nil {
			t.Fatal(err)
		}
		if got, _ := tk.find(textOf(s)); got.Share != 1 || tk.size > 10_000 || tk.order.Len() != len(tk.known) {
			t.Fatalf("after %d: %d bytes, %d of %d", i, tk.size, tk.order.Len(), len(tk.known))
		}
	}
}

// commonTo is a prompt that has its first blocks in common with others.
func commonTo(s string, blocks int) Text {
	t := textOf(s)
	t.Common = Beginning{t.Blocks[blocks-1], 16 * blocks}
	return t
}

// TestTokensOfBeginnings: what two prompts begin with is known of all that begin with it, and of none that do
// not, and whoever wants all tokens waits for them.
func TestTokensOfBeginnings(t *testing.T) {
	system := strings.Repeat("You are of help. ", 16) // 17 blocks of 16
	for _, own := range []int{25, 3} {                // which are a block of their own, or less than one
		tk := NewTokenizer(1 << 20)
		var asked atomic.Int64
		ask := func(i int, all bool) (Tokens, string) {
			t.Helper()
			s := system + strings.Repeat(string(rune('a'+i)), own) + "]"
			got, err := tk.Tokens(t.Context(), commonTo(s, 17), all, answering(s, 0, &asked))
			if err != nil {
				t.Fatal(err)
			}
			return got, s
		}
		for i := range 2 { // one alone does not tell
			if got, s := ask(i, false); got.Share != 1 || !slices.Equal(got.List, tokensOf(s)) || asked.Load() != int64(i+1) {
				t.Fatalf("%d own, number %d: %d tokens of %d, asked %d times", own, i, len(got.List), len(s), asked.Load())
			}
		}
		for i := range 5 {
			got, s := ask(2+i, false)
			if want := float64(len(system)) / float64(len(s)); !slices.Equal(got.List, tokensOf(system)) || got.Share != want {
				t.Errorf("%d own: of another one %d tokens are known, a share of %v; want %d, %v", own, len(got.List), got.Share, len(system), want)
			}
		}
		before := asked.Load()
		if got, s := ask(9, true); got.Share != 1 || len(got.List) != len(s) || asked.Load() != before+1 {
			t.Errorf("%d own: all are wanted: %d tokens of %d", own, len(got.List), len(s))
		}
		if got, _ := tk.find(commonTo(system[:200]+strings.Repeat("x", 100)+"]", 12)); len(got.List) > 0 {
			t.Errorf("%d own: one that parts before has %d tokens", own, len(got.List))
		}
	}
}

// TestTokensPartBeforeText: where what the engine makes of two prompts parts long before their text does, nothing
// is taken for what they have in common.
func TestTokensPartBeforeText(t *testing.T) {
	tk := NewTokenizer(1 << 20)
	var asked atomic.Int64
	system := strings.Repeat("You are of help. ", 16)
	for i := range 4 {
		s := system + strings.Repeat(string(rune('a'+i)), 40) + "]"
		answer := strings.Repeat(string(rune('a'+i)), 300)
		if got, err := tk.Tokens(t.Context(), commonTo(s, 17), false, answering(answer, 0, &asked)); err != nil || got.Share != 1 || asked.Load() != int64(i+1) {
			t.Errorf("number %d: %v of it is known, %v; asked %d times", i, got.Share, err, asked.Load())
		}
	}
}

// TestTokensOfOneThatGoesOn: the second turn of a conversation says nothing of what it has in common with others,
// and neither does the same prompt again.
func TestTokensOfOneThatGoesOn(t *testing.T) {
	tk := NewTokenizer(1 << 20)
	var asked atomic.Int64
	system := strings.Repeat("You are of help. ", 16)
	turn := func(text string) Tokens {
		t.Helper()
		before, s := asked.Load(), system+text+"]"
		got, err := tk.Tokens(t.Context(), commonTo(s, 17), false, answering(s, 0, &asked))
		if err != nil {
			t.Fatal(err)
		}
		if got.Share < fresh {
			eventually(t, "the rest is there", func() bool {
				now, _ := tk.find(commonTo(s, 17))
				return asked.Load() > before && now.Share == 1
			})
		}
		return got
	}
	second := strings.Repeat("b", 60)
	turn(second)
	turn(second + strings.Repeat("and so on ", 20))
	third := strings.Repeat("c", 60)
	if got, want := turn(third), tokensOf(system+third+"]"); len(got.List) > len(want) || !slices.Equal(got.List, want[:len(got.List)]) {
		t.Errorf("another one is taken to begin with %d tokens that are not its own", len(got.List))
	}
	if got := turn(strings.Repeat("d", 60)); !slices.Equal(got.List, tokensOf(system)) {
		t.Errorf("of another one %d tokens are known, want the %d of what all begin with", len(got.List), len(system))
	}
}

// TestTokensChange: what the engine makes of a text can change; then the old tokens are gone a while later, also where
// nobody would have had to ask.
func TestTokensChange(t *testing.T) {
	tk := NewTokenizer(1 << 20)
	now := time.Unix(1_800_000_000, 0)
	var mu sync.Mutex
	tk.now = func() time.Time { mu.Lock(); defer mu.Unlock(); return now }
	var asked atomic.Int64
	system := strings.Repeat("You are of help. ", 16)
	day := "Monday"
	ask := func(i int) []uint32 {
		t.Helper()
		s := system + strings.Repeat(string(rune('a'+i)), 20) + "]"
		got, err := tk.Tokens(t.Context(), commonTo(s, 17), false, answering(day+s, 0, &asked))
		if err != nil {
			t.Fatal(err)
		}
		return got.List
	}
	is := func(day string, tokens []uint32) bool {
		return slices.Equal(tokens[:min(len(tokens), len(day))], tokensOf(day))
	}
	for i := range 3 {
		ask(i)
	}
	if n := asked.Load(); n != 2 {
		t.Errorf("asked %d times for three that begin alike", n)
	}
	day = "Tuesday"
	if got := ask(3); !is("Monday", got) || asked.Load() != 2 {
		t.Errorf("asked %d times", asked.Load())
	}
	mu.Lock()
	now = now.Add(renewEach)
	mu.Unlock()
	i := 3
	eventually(t, "the tokens are of today", func() bool {
		i = min(i+1, 'z'-'a')
		return is("Tuesday", ask(i))
	})
	before := asked.Load()
	eventually(t, "they are known", func() bool {
		i = min(i+1, 'z'-'a')
		return is("Tuesday", ask(i)) && asked.Load() == before
	})
	for range 10 {
		if got := ask(i); !is("Tuesday", got) {
			t.Fatal("they are of yesterday again")
		}
	}
}

// TestTokensOfMost: where all tokens are wanted, and not to be had, most of them are better than none.
func TestTokensOfMost(t *testing.T) {
	tk := NewTokenizer(1 << 20)
	var asked atomic.Int64
	s := strings.Repeat("hello you there. ", 20)
	if _, err := tk.Tokens(t.Context(), textOf(s+"]"), true, answering(s+"]", 0, &asked)); err != nil {
		t.Fatal(err)
	}
	next := s + "and so on]"
	for name, ask := range map[string]func(context.Context) (*http.Response, error){
		"late": answering(next, time.Hour, &asked),
		"refused": func(context.Context) (*http.Response, error) {
			return &http.Response{StatusCode: http.StatusServiceUnavailable, Body: http.NoBody}, nil
		},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		got, err := tk.Tokens(ctx, textOf(next), true, ask)
		cancel()
		if err != nil || len(got.List) != len(s)+1 || got.Share >= 1 {
			t.Errorf("%s: %d tokens, %v", name, len(got.List), err)
		}
	}
}

func TestParseTokens(t *testing.T) {
	for body, want := range map[string][]uint32{
		`{"count":3,"max_model_len":9,"tokens":[1,398, 4294967295],"token_strs":null}`: {1, 398, 4294967295},
		"{\"tokens\" :\n[ 7 ] }": {7},
	} {
		if got, err := parseTokens([]byte(body)); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %v, %v", body, got, err)
		}
	}
	for _, body := range []string{``, `{}`, `{"tokens":[]}`, `{"tokens":`, `{"tokens":[`, `{"tokens":[1`, `{"tokens":[1,`, `{"tokens":[1 2]}`, `{"tokens":[-1]}`, `{"tokens":[1.5]}`, `{"tokens":[4294967296]}`, `{"tokens":["a"]}`, `{"tokens":null}`} {
		if got, err := parseTokens([]byte(body)); err == nil {
			t.Errorf("%s: %v", body, got)
		}
	}
}

func TestParseSources(t *testing.T) {
	got, err := parseSources([]byte(`{"1":{"endpoint":"tcp://0.0.0.0:5558","replay_endpoint":null,"topic":""},"0":{"endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5657","topic":"kv@m","more":1}}`), "gpu1")
	want := []Source{{"tcp://gpu1:5557", "tcp://gpu1:5657", "kv@m"}, {"tcp://gpu1:5558", "", ""}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%+v: %v", got, err)
	}
	if got, err := parseSources([]byte(`{"0":{"endpoint":"tcp://127.0.0.1:5557"}}`), "localhost"); err != nil || got[0].Endpoint != "tcp://127.0.0.1:5557" {
		t.Errorf("%+v: %v", got, err)
	}
	for body, want := range map[string]string{
		`{}`: "publishes none", `[]`: "not what it should be", `{"1":{"endpoint":"tcp://*:1"}}`: `rank "1" of 1`, `{"x":{}}`: `rank "x"`,
		`{"0":{"endpoint":"ipc:///tmp/x"}}`: "use tcp://*:PORT", `{"0":{"endpoint":"tcp://*"}}`: "no address",
		`{"0":{"endpoint":"tcp://10.0.0.1:5557"}}`:                        "not its host gpu1",
		`{"0":{"endpoint":"tcp://*:1","replay_endpoint":"tcp://evil:1"}}`: "not its host gpu1",
		`{"0":{"endpoint":"tcp://127.0.0.1:6379"}}`:                       "not its host gpu1",
	} {
		if got, err := parseSources([]byte(body), "gpu1"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %+v, %v", body, got, err)
		}
	}
}
