package exchange

import (
	"errors"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// A client may set three headers; all others of the family are gone, however
// they are spelt and wherever the request is forwarded to.
func TestT12_ControlHeadersOfClients(t *testing.T) {
	for _, c := range []struct {
		name string
		in   http.Header
		want Wishes
		left []string
	}{
		{
			"what a client may ask for",
			http.Header{
				"X-Llmgw-Replica": {"gpu1:8000"}, "X-Llmgw-Profile": {"debug"}, "X-Llmgw-Deadline-Ms": {"1500"},
				"X-Session-Id": {"s"},
			},
			Wishes{Replica: "gpu1:8000", Profile: "debug", Deadline: 1500 * time.Millisecond},
			[]string{"X-Session-Id"},
		},
		{
			"what only the gateway says",
			http.Header{
				"X-Llmgw-Tenant": {"admin"}, "X-Llmgw-Band": {"platinum"}, "X-Llmgw-Pool": {"p"},
				"X-Llmgw-Served-Model": {"m"}, "X-Llmgw-": {""}, "X-Llmgw-Queue-Ms": {"0"}, "X-Llmgw": {"kept"},
			},
			Wishes{},
			[]string{"X-Llmgw"},
		},
		{
			"other spellings: of those the gateway reads none",
			http.Header{
				"x-llmgw-replica": {"gpu1:8000"}, "X-LLMGW-REPLICA": {"gpu1:8000"}, "X_llmgw_replica": {"gpu1:8000"},
				"X-Llmgw_replica": {"gpu1:8000"}, "x_LLMGW-Replica": {"gpu1:8000"}, "X_Llmgw_Tenant": {"admin"},
			},
			Wishes{},
			nil,
		},
		{
			"twice: which one counts is not for us to guess",
			http.Header{
				"X-Llmgw-Replica": {"gpu1:8000", "gpu2:8000"}, "X-Llmgw-Profile": {"debug", "debug"}, "X-Llmgw-Deadline-Ms": {"1", "2"},
			},
			Wishes{},
			nil,
		},
		{
			"empty, and too long",
			http.Header{
				"X-Llmgw-Replica": {""}, "X-Llmgw-Profile": {strings.Repeat("x", maxWish+1)}, "X-Llmgw-Deadline-Ms": {},
			},
			Wishes{},
			nil,
		},
		{
			"names that only begin like it",
			http.Header{
				"X-Llmgw2-Replica": {"a"}, "Y-Llmgw-Replica": {"a"}, "X-Llm": {"a"}, "X.llmgw-A": {"a"}, "Llmgw-X-": {"a"},
				"X-Llmgwx": {"a"}, "X-LLMGW": {"a"},
			},
			Wishes{},
			[]string{"Llmgw-X-", "X-LLMGW", "X-Llm", "X-Llmgw2-Replica", "X-Llmgwx", "X.llmgw-A", "Y-Llmgw-Replica"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := TakeWishes(c.in)
			if err != nil || got != c.want {
				t.Errorf("wishes %+v, %v; want %+v", got, err, c.want)
			}
			if left := slices.Sorted(maps.Keys(c.in)); !slices.Equal(left, c.left) {
				t.Errorf("left %q, want %q", left, c.left)
			}
		})
	}
}

func TestDeadlineWish(t *testing.T) {
	for value, want := range map[string]time.Duration{
		"1": time.Millisecond, "30000": 30 * time.Second, "2147483647": 2147483647 * time.Millisecond,
	} {
		h := http.Header{"X-Llmgw-Deadline-Ms": {value}}
		if w, err := TakeWishes(h); err != nil || w.Deadline != want {
			t.Errorf("%q: %v, %v", value, w.Deadline, err)
		}
	}
	for _, value := range []string{"0", "-5", "1.5", "1e3", "5s", "2147483648", "99999999999999999999", " 5", "0x10", "five"} {
		h := http.Header{"X-Llmgw-Deadline-Ms": {value}, "X-Llmgw-Band": {"gold"}}
		w, err := TakeWishes(h)
		if !errors.Is(err, ErrRequest) || !strings.Contains(err.Error(), "x-llmgw-deadline-ms must be a whole number") || w.Deadline != 0 {
			t.Errorf("%q: %v, %v", value, w.Deadline, err)
		}
		if len(h) != 0 {
			t.Errorf("%q: left %v beside the error", value, h)
		}
	}
}

// For any header names: what is left does not begin with x-llmgw- once
// underscores are read as hyphens, and what does not is left.
func TestStripWishesProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.OneOf(
			rapid.StringMatching(`[Xx][-_][Ll][Ll][Mm][Gg][Ww][-_][A-Za-z_-]{0,10}`),
			rapid.StringMatching(`[Xx][-_.][LlMmGgWw]{2,6}[-_]?[a-z]{0,10}`),
			rapid.String(),
		).Draw(t, "name")
		h := http.Header{name: {"v"}}
		StripWishes(h)
		ours := strings.HasPrefix(strings.ToLower(strings.ReplaceAll(name, "_", "-")), "x-llmgw-")
		// Folding of letters beyond ASCII is no spelling of the prefix.
		ours = ours && len(name) >= 8 && isASCII(name[:8])
		if (len(h) == 0) != ours {
			t.Fatalf("%q: removed %v, want %v", name, len(h) == 0, ours)
		}
	})
}

func isASCII(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r >= utf8.RuneSelf })
}

func TestT14_CleanID(t *testing.T) {
	for _, id := range []string{
		"a", "req-123", "01HZX_5.a:b", "4bf92f3577b34da6a3ce929d0e0e4736", strings.Repeat("Z", 128), "",
	} {
		if got := CleanID(id); got != id {
			t.Errorf("CleanID(%q) = %q", id, got)
		}
	}
	for _, id := range []string{
		strings.Repeat("a", 129), strings.Repeat("a", 5000), "a\tb", "a\x1b[31mb", "a\r\nb", "a%0d%0aSet-Cookie:x=1",
		"a b", "a\x00", "ä", "a\u2028b", "\xff", "a/b", "a@b", "a[b", "a`b", "a{b", "<script>", `a"b`, "a,b", "a;b", "a=b",
	} {
		if got := CleanID(id); got != "" {
			t.Errorf("CleanID(%.40q) = %q", id, got)
		}
	}
}

func TestNewID(t *testing.T) {
	seen := make(map[string]bool)
	for range 10000 {
		id := NewID()
		if len(id) != 28 || !strings.HasPrefix(id, "req_") || CleanID(id) != id {
			t.Fatalf("id %q", id)
		}
		if seen[id] {
			t.Fatalf("id %q came twice", id)
		}
		seen[id] = true
	}
}

func TestClip(t *testing.T) {
	for _, c := range []struct {
		in   string
		n    int
		want string
	}{
		{"", 5, ""},
		{"hello", 5, "hello"},
		{"hello!", 5, "hello…"},
		{"grün", 3, "gr…"},
		{"grün", 4, "grü…"},
		{"日本", 2, "…"},
		{"\x80\x80\x80", 2, "…"},
	} {
		if got := clip(c.in, c.n); got != c.want {
			t.Errorf("clip(%q, %d) = %q, want %q", c.in, c.n, got, c.want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		s, n := rapid.String().Draw(t, "s"), rapid.IntRange(0, 20).Draw(t, "n")
		got := clip(s, n)
		if !utf8.ValidString(got) || len(got) > max(len(s), n+len("…")) || !strings.HasPrefix(s, strings.TrimSuffix(got, "…")) {
			t.Fatalf("clip(%q, %d) = %q", s, n, got)
		}
	})
}

func TestIsUpgrade(t *testing.T) {
	for _, c := range []struct {
		h    http.Header
		want bool
	}{
		{http.Header{"Upgrade": {"websocket"}, "Connection": {"Upgrade"}}, true},
		{http.Header{"Upgrade": {"websocket"}, "Connection": {"keep-alive, upgrade"}}, true},
		{http.Header{"Upgrade": {"websocket"}, "Connection": {"keep-alive", " UPGRADE "}}, true},
		{http.Header{"Upgrade": {"websocket"}}, false},
		{http.Header{"Upgrade": {"websocket"}, "Connection": {"keep-alive"}}, false},
		{http.Header{"Connection": {"Upgrade"}}, false},
		{http.Header{"Upgrade": {""}, "Connection": {"Upgrade"}}, false},
		{http.Header{}, false},
	} {
		if got := IsUpgrade(c.h); got != c.want {
			t.Errorf("IsUpgrade(%v) = %v", c.h, got)
		}
	}
}

func TestFindRoute(t *testing.T) {
	extra := []string{"/custom/generate", "/v1/chat/completions"}
	for _, c := range []struct {
		path, method string
		kind         Kind
		usage        bool
		anthropic    bool
	}{
		{"/v1/chat/completions", "POST", KindJSON, true, false},
		{"/v1/completions", "POST", KindJSON, true, false},
		{"/v1/embeddings", "POST", KindJSON, false, false},
		{"/v1/messages", "POST", KindJSON, false, true},
		{"/v1/messages/count_tokens", "POST", KindJSON, false, true},
		{"/v1/responses", "POST", KindJSON, false, false},
		{"/tokenize", "POST", KindJSON, false, false},
		{"/v1/audio/transcriptions", "POST", KindForm, false, false},
		{"/v1/realtime", "GET", KindUpgrade, false, false},
		{"/v1/models", "GET", KindModels, false, false},
		{"/v1/models/org/name", "GET", KindModels, false, false},
		{"/custom/generate", "POST", KindJSON, false, false},
	} {
		r := FindRoute(c.path, extra)
		if r == nil || r.Method != c.method || r.Kind != c.kind || r.Usage != c.usage || r.Anthropic != c.anthropic {
			t.Errorf("FindRoute(%q) = %+v", c.path, r)
		}
	}
	for _, path := range []string{
		"", "/", "/v1", "/v1/", "/v1/modelsx", "/v1/chat/completions/", "/V1/chat/completions", "v1/chat/completions",
		"/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/reset_prefix_cache", "/update_weights", "/metrics", "/slots", "/custom",
	} {
		if r := FindRoute(path, extra); r != nil {
			t.Errorf("FindRoute(%q) = %+v", path, r)
		}
	}
}

func BenchmarkTakeWishes(b *testing.B) {
	h := http.Header{}
	for _, name := range []string{"X-Forwarded-For", "X-Stainless-Lang", "X-Stainless-Os", "User-Agent", "Content-Type", "Accept", "X-Session-Id"} {
		h.Set(name, "value")
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := TakeWishes(h); err != nil {
			b.Fatal(err)
		}
	}
}
