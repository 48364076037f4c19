package sim

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// chatUsage is the usage of one /v1/chat/completions answer and its text.
func chatUsage(t *testing.T, url, body string) (u usage, text string) {
	t.Helper()
	var a struct {
		Usage   usage
		Choices []struct{ Message struct{ Content string } }
	}
	if err := json.Unmarshal([]byte(must(t, "POST", url+"/v1/chat/completions", body)), &a); err != nil {
		t.Fatal(err)
	}
	return a.Usage, a.Choices[0].Message.Content
}

// Cached are whole blocks only, and never the last token of a prompt; so says
// every recorded answer too.
func TestCachedTokens(t *testing.T) {
	for _, name := range []string{"cached_1_cold", "cached_2_hit"} {
		var a struct{ Usage usage }
		if err := json.Unmarshal([]byte(readCapture(t, name).body), &a); err != nil {
			t.Fatal(err)
		}
		d := a.Usage.PromptDetails
		if whole := a.Usage.Prompt / 32 * 32; d.Cached+*d.Created != whole {
			t.Fatalf("%s: %d cached, %d created of %d: the rule is not the engine's", name, d.Cached, *d.Created, a.Usage.Prompt)
		}
	}
	_, srv := newTestEngine(t, goldenConfig())
	body := readCapture(t, "cached_1_cold").request
	cold, first := chatUsage(t, srv.URL, body)
	warm, second := chatUsage(t, srv.URL, body)
	want := (cold.Prompt - 1) / 32 * 32
	if cold.PromptDetails.Cached != 0 || *cold.PromptDetails.Created != cold.Prompt/32*32 {
		t.Errorf("cold: %d cached, %d created of %d", cold.PromptDetails.Cached, *cold.PromptDetails.Created, cold.Prompt)
	}
	if warm.PromptDetails.Cached != want || want == 0 {
		t.Errorf("warm: %d cached: want %d of %d", warm.PromptDetails.Cached, want, warm.Prompt)
	}
	if first != second {
		t.Errorf("the same request got %q, then %q", first, second)
	}
}

func TestCacheSalts(t *testing.T) {
	long := strings.Repeat("one two three four ", 20)
	ask := func(extra string) string {
		return fmt.Sprintf(`{"messages":[{"role":"user","content":%q}],"max_tokens":1%s}`, long, extra)
	}
	tests := []struct {
		name, extra string
		hit         bool
	}{
		{"same", ``, true},
		{"another salt", `,"cache_salt":"x"`, false},
		{"that salt again", `,"cache_salt":"x"`, true},
		{"an adapter", `,"model":"alpha"`, false},
		{"that adapter again", `,"model":"alpha"`, true},
		{"that adapter with a salt", `,"model":"alpha","cache_salt":"x"`, false},
	}
	_, srv := newTestEngine(t, goldenConfig())
	chatUsage(t, srv.URL, ask(""))
	for _, tt := range tests {
		if u, _ := chatUsage(t, srv.URL, ask(tt.extra)); (u.PromptDetails.Cached > 0) != tt.hit {
			t.Errorf("%s: %d tokens cached", tt.name, u.PromptDetails.Cached)
		}
	}
	must(t, "POST", srv.URL+"/sim/reset", "")
	if u, _ := chatUsage(t, srv.URL, ask("")); u.PromptDetails.Cached != 0 {
		t.Errorf("%d tokens cached after a reset", u.PromptDetails.Cached)
	}
}

// An answer that comes back as history is in the cache as well.
func TestTurnsHitTheirOwnAnswers(t *testing.T) {
	cfg := fast()
	_, srv := newTestEngine(t, cfg)
	q := `{"role":"user","content":"tell me of the fox and the dog"}`
	u, text := chatUsage(t, srv.URL, `{"messages":[`+q+`],"max_tokens":100,"ignore_eos":true}`)
	next, _ := chatUsage(t, srv.URL, fmt.Sprintf(`{"messages":[%s,{"role":"assistant","content":%q},%s],"max_tokens":1}`, q, text, q))
	// The last token of the answer was never computed.
	if want := (u.Total - 1) / 16 * 16; next.PromptDetails.Cached != want {
		t.Errorf("%d tokens cached: want %d of the first turn's %d", next.PromptDetails.Cached, want, u.Total)
	}
}

// The least recently used blocks go first.
func TestEviction(t *testing.T) {
	cfg := fast()
	cfg.KVBlocks, cfg.BlockSize, cfg.MaxModelLen = 12, 16, 192
	_, srv := newTestEngine(t, cfg)
	ask := func(word string) int {
		u, _ := chatUsage(t, srv.URL, fmt.Sprintf(`{"messages":[{"role":"user","content":%q}],"max_tokens":1}`, strings.Repeat(word, 60)))
		return u.PromptDetails.Cached
	}
	ask("aaaa")
	ask("bbbb")
	whole := ask("aaaa")
	if whole == 0 {
		t.Fatal("two prompts of 5 blocks do not fit into 12")
	}
	ask("cccc") // takes the place of b's end
	if got := ask("aaaa"); got != whole {
		t.Errorf("of the younger prompt %d tokens are left: want %d", got, whole)
	}
	if got := ask("bbbb"); got == 0 || got >= whole {
		t.Errorf("of the oldest prompt %d tokens are left: want its beginning, less than %d", got, whole)
	}
}

// Of a prompt of whole blocks the last one is computed again: something has to
// be, for the first token to come out.
func TestLastBlockIsNeverCached(t *testing.T) {
	cfg := fast()
	_, srv := newTestEngine(t, cfg)
	ids := make([]uint32, 48) // three blocks of 16
	body := fmt.Sprintf(`{"prompt":%s,"max_tokens":1}`, appendIDs(nil, ids))
	for i, want := range []int{0, 32, 32} {
		var a struct{ Usage usage }
		if err := json.Unmarshal([]byte(must(t, "POST", srv.URL+"/v1/completions", body)), &a); err != nil {
			t.Fatal(err)
		}
		if got := a.Usage.PromptDetails.Cached; got != want || a.Usage.Prompt != 48 {
			t.Errorf("request %d: %d of %d tokens cached: want %d of 48", i, got, a.Usage.Prompt, want)
		}
	}
}
