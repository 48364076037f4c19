package integration

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/llmgw/llmgw/modules/llmgw"
)

// talk is a conversation of so many turns that begins like no other.
func talk(id, turns int) string {
	messages := fmt.Sprintf(`{"role":"system","content":"You are number %d. %s"}`, id, strings.Repeat("Be kind. ", 50))
	for turn := range turns {
		messages += fmt.Sprintf(`,{"role":"user","content":"Question %d: %s?"}`, turn, strings.Repeat("why ", 30))
	}
	return `{"model":"m","max_tokens":5,"messages":[` + messages + `]}`
}

// TestPrefixIsRemembered: a conversation stays on its replica, over a reload, too; the header, the
// metrics and explain say so. A memory of another size is another.
func TestPrefixIsRemembered(t *testing.T) {
	engines := []*engine{newEngine(t, answer), newEngine(t, answer), newEngine(t, answer)}
	g := start(t, one(engines...), "\tllm")
	homes := make(map[int]string)
	ask := func(id, turns int, want string) {
		t.Helper()
		res, text := g.post(t, "/v1/chat/completions", talk(id, turns))
		at, decision := res.Header.Get("X-Llmgw-Replica"), res.Header.Get("X-Llmgw-Cache-Decision")
		if res.StatusCode != http.StatusOK || decision != want || homes[id] != "" && at != homes[id] && want == "cache_hit" {
			t.Errorf("conversation %d, turn %d: %s at %s, home is %s: %s", id, turns, decision, at, homes[id], text)
		}
		homes[id] = at
	}
	const talks = 6
	for id := range talks {
		ask(id, 1, "cache_miss_min_load")
	}
	for id := range talks {
		ask(id, 2, "cache_hit")
	}
	g.load(t, g.caddyfile(one(engines...)+"\n\t\tprefix {\n\t\t\ttree 0.4\n\t\t}\n", "\tllm"))
	for id := range talks {
		ask(id, 3, "cache_hit")
	}
	for decision, want := range map[string]float64{"cache_hit": 2 * talks, "cache_miss_min_load": talks, "no_tree": 0} {
		if n, _ := g.metric(t, fmt.Sprintf(`llmgw_cache_decision_total{decision=%q,model="m"}`, decision)); n != want {
			t.Errorf("%v decisions are counted as %s, want %v", n, decision, want)
		}
	}
	if n, _ := g.metric(t, `llmgw_prefix_match_ratio_count{model="m"}`); n != 3*talks {
		t.Errorf("%v ratios are counted", n)
	}
	if n, _ := g.metric(t, "llmgw_prefix_tree_blocks"); n < talks*5 {
		t.Errorf("%v blocks are remembered", n)
	}
	var e llmgw.Explanation
	if status := g.admin(t, "/llmgw/explain", talk(0, 4), &e); status != http.StatusOK || e.Cache != "cache_hit" || e.Pick != homes[0] {
		t.Errorf("explain: %d, %+v", status, e)
	}
	for _, c := range e.Candidates {
		if c.Cached == nil || (*c.Cached > 0.5) != (c.Replica == homes[0]) || c.Held == 0 && c.Replica == homes[0] {
			t.Errorf("explain: %+v", c)
		}
	}
	g.load(t, g.caddyfile(one(engines...)+"\n\t\tprefix {\n\t\t\ttree 0.3 16 1.5 2MiB\n\t\t}\n", "\tllm"))
	ask(0, 4, "cache_miss_min_load")
	g.load(t, g.caddyfile(one(engines...)+"\n\t\tprefix {\n\t\t\ttree off\n\t\t}\n", "\tllm"))
	ask(0, 5, "no_tree")
}

// TestR18_ResetIsNoticed: once an engine's counters have gone back, nothing is credited that it had
// before. What went there since the scrape before may be of the new one, and stays.
func TestR18_ResetIsNoticed(t *testing.T) {
	e := simulate(t, "127.0.0.1:0", 4096, "", "")
	g := start(t, "\t\tmodel m {\n\t\t\tendpoint "+e.address+"\n\t\t}", "\tllm")
	ask := func(id, turns int) string {
		t.Helper()
		res, text := g.post(t, "/v1/chat/completions", talk(id, turns))
		if res.StatusCode != http.StatusOK {
			t.Fatalf("%s: %s", res.Status, text)
		}
		return res.Header.Get("X-Llmgw-Cache-Decision")
	}
	for id := range 4 {
		ask(id, 1)
	}
	if d := ask(0, 2); d != "cache_hit" {
		t.Fatalf("before: %s", d)
	}
	asked := time.Now()
	eventually(t, "the gateway has seen how much it has read", func() bool {
		age := g.replicas(t)[e.address].AgeSeconds
		return age != nil && *age < time.Since(asked).Seconds()
	})
	res, err := http.Post("http://"+e.address+"/sim/reset", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	ask(9, 1) // less than it had read before
	eventually(t, "what it held is forgotten", func() bool {
		return g.explained(t, talk(1, 2)).Cache == "cache_miss_min_load"
	})
	if d := ask(9, 2); d != "cache_hit" {
		t.Errorf("what it got since: %s", d)
	}
}

// TestT16_IsolationOfTenants: each key, and each tenant that a header names, has a cache_salt of its own
// in the engine, whatever its clients send.
func TestT16_IsolationOfTenants(t *testing.T) {
	e := newEngine(t, answer)
	g := start(t, one(e)+"\n\t\tprefix {\n\t\t\tisolation on\n\t\t}\n",
		"\tllm {\n\t\ttenant {http.request.header.X-Team}\n\t\tkey secret-a\n\t\tkey secret-b\n\t}")
	salt := func(key, team, salt string) string {
		t.Helper()
		body := talk(1, 1)
		if salt != "" {
			body = `{"cache_salt":"` + salt + `",` + body[1:]
		}
		if res, text := g.post(t, "/v1/chat/completions", body, "Authorization", "Bearer "+key, "X-Team", team); res.StatusCode != http.StatusOK {
			t.Fatalf("%s %s", res.Status, text)
		}
		got := e.got()
		sent := got[len(got)-1].Body
		if strings.Count(sent, `"cache_salt"`) != 1 {
			t.Fatalf("the engine got %s", sent)
		}
		_, rest, _ := strings.Cut(sent, `"cache_salt":"`)
		value, _, _ := strings.Cut(rest, `"`)
		return value
	}
	a := salt("secret-a", "", "")
	if again := salt("secret-a", "", ""); again != a || len(a) < 16 {
		t.Errorf("one tenant has the salts %q and %q", a, again)
	}
	for name, other := range map[string]string{
		"another key":             salt("secret-b", "", ""),
		"its salt, sent by it":    salt("secret-b", "", a),
		"another team":            salt("secret-a", "team", ""),
		"a key's name as team":    salt("secret-b", "key-1", ""),
		"a client's own salt":     salt("secret-a", "", "mine"),
		"its own salt as its own": salt("secret-a", "", a),
	} {
		if other == a || other == "mine" {
			t.Errorf("%s: the salt is the same, %q", name, other)
		}
	}
}
