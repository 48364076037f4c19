package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/llmgw/llmgw/agent/engine/sim"
	"github.com/llmgw/llmgw/modules/llmgw"
)

// simulated is an engine of the simulator, which publishes KV events.
type simulated struct {
	address string
	stop    context.CancelFunc
	ended   chan error
}

// simulate starts one with so many blocks in its cache, of sixteen tokens, and no time for anything.
func simulate(t *testing.T, address string, blocks int, events, replay string) *simulated {
	t.Helper()
	cfg := sim.DefaultConfig()
	cfg.Models, cfg.KVBlocks, cfg.MaxModelLen = []string{"m"}, blocks, 16*blocks
	cfg.PrefillPerToken, cfg.Decode, cfg.DecodePerSeq = 0, 0, 0
	cfg.KVEvents, cfg.KVEventsReplay = events, replay
	return simulateAs(t, address, cfg)
}

// simulateAs starts one with that config.
func simulateAs(t *testing.T, address string, cfg sim.Config) *simulated {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	s := &simulated{stop: stop, ended: make(chan error, 1)}
	var err error
	if s.address, err = sim.Start(ctx, cfg, address, s.ended); err != nil {
		stop()
		t.Fatal(err)
	}
	t.Cleanup(s.end)
	return s
}

func (s *simulated) end() {
	s.stop()
	if s.ended != nil {
		<-s.ended
		s.ended = nil
	}
}

// live waits until the events of all replicas are followed.
func (g *gateway) live(t *testing.T, replicas int) {
	t.Helper()
	eventually(t, "all events are followed", func() bool {
		n := 0
		for _, r := range g.replicas(t) {
			if len(r.KVEvents) == 1 && r.KVEvents[0].State == "live" {
				n++
			}
		}
		return n == replicas
	})
}

// explained says what a request would meet.
func (g *gateway) explained(t *testing.T, body string) llmgw.Explanation {
	t.Helper()
	var e llmgw.Explanation
	if status := g.admin(t, "/llmgw/explain", body, &e); status != http.StatusOK {
		t.Fatalf("explain: %d", status)
	}
	return e
}

// cachedOf sends a request and returns where it went, and of how many tokens of its prompt the engine says
// that it had.
func (g *gateway) cachedOf(t *testing.T, body string) (replica string, cached, tokens int, decision string) {
	t.Helper()
	res, text := g.post(t, "/v1/chat/completions", body)
	var answer struct {
		Usage struct {
			Prompt  int `json:"prompt_tokens"`
			Details struct {
				Cached int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		}
	}
	if err := json.Unmarshal([]byte(text), &answer); err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("%s %s: %v", res.Status, text, err)
	}
	return res.Header.Get("X-Llmgw-Replica"), answer.Usage.Details.Cached, answer.Usage.Prompt, res.Header.Get("X-Llmgw-Cache-Decision")
}

const eventsOn = "\n\t\tprefix {\n\t\t\tevents on 5s\n\t\t}\n"

// TestKVEventsTellWhatIsCached: over hundreds of requests to engines that evict all the time, what a
// replica is said to hold of a prompt is what the engine finds then.
func TestKVEventsTellWhatIsCached(t *testing.T) {
	var addresses []string
	for range 2 {
		s := simulate(t, "127.0.0.1:0", 256, "tcp://127.0.0.1:0", "tcp://127.0.0.1:0")
		addresses = append(addresses, s.address)
	}
	g := start(t, "\t\tmodel m {\n\t\t\tendpoint "+strings.Join(addresses, " ")+"\n\t\t}"+eventsOn, "\tllm")
	g.live(t, 2)
	random := rand.New(rand.NewPCG(1, 2))
	prompt := func() string {
		system := random.IntN(4)
		return fmt.Sprintf(`{"model":"m","max_tokens":4,"messages":[{"role":"system","content":%q},{"role":"user","content":%q}]}`,
			strings.Repeat(fmt.Sprintf("System %d says. ", system), 20+10*system), strings.Repeat(fmt.Sprintf("Ask %d. ", random.IntN(12)), 40))
	}
	hits, wrong, all := 0, 0, 200
	for range all {
		body := prompt()
		want, said := 0, g.explained(t, body)
		at, cached, tokens, decision := g.cachedOf(t, body)
		for _, c := range said.Candidates {
			if c.Replica == at && c.Cached != nil {
				want = int(*c.Cached*float64(tokens) + 0.5)
			}
		}
		if cached > 0 {
			hits++
		}
		if want != cached {
			wrong++
		}
		if decision == "stale" || decision == "no_tree" {
			t.Errorf("it is known by %s", decision)
		}
	}
	if hits < all/3 || wrong > all/50 {
		t.Errorf("of %d prompts %d were cached in part; of %d something else was said", all, hits, wrong)
	}
	if n, _ := g.metric(t, fmt.Sprintf(`llmgw_kv_events_live{rank="0",replica=%q}`, addresses[0])); n != 1 {
		t.Errorf("the metric says %v", n)
	}
}

// TestKVEventsAfterReset: what is cleared, or was in an engine that has restarted, is not credited.
func TestKVEventsAfterReset(t *testing.T) {
	events, replay := "tcp://"+freePort(t), "tcp://"+freePort(t)
	s := simulate(t, "127.0.0.1:0", 256, events, replay)
	g := start(t, "\t\tmodel m {\n\t\t\tendpoint "+s.address+"\n\t\t}"+eventsOn, "\tllm")
	g.live(t, 1)
	share := func(body string) float64 {
		c := g.explained(t, body).Candidates[0].Cached
		if c == nil {
			return -1
		}
		return *c
	}
	warm := func(body string) {
		t.Helper()
		g.cachedOf(t, body)
		eventually(t, "it is known to be cached", func() bool { return share(body) > 0.5 })
	}
	warm(talk(1, 2))
	res, err := http.PostForm((&url.URL{Scheme: "http", Host: s.address, Path: "/sim/reset"}).String(), nil)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	g.cachedOf(t, talk(2, 1)) // events come with the engine's next step
	eventually(t, "it is known to be gone", func() bool { return share(talk(1, 2)) == 0 })
	warm(talk(3, 2))
	s.end()
	eventually(t, "the events are lost", func() bool {
		r := g.replicas(t)[s.address]
		return r.State == "down" && r.KVEvents[0].State == "connecting"
	})
	simulate(t, s.address, 256, events, replay)
	eventually(t, "it is back", func() bool { return g.replicas(t)[s.address].State == "ready" })
	g.live(t, 1)
	if v := share(talk(3, 2)); v != 0 {
		t.Errorf("of an engine that has restarted %v are credited", v)
	}
	if _, cached, _, decision := g.cachedOf(t, talk(3, 2)); cached != 0 || decision != "cache_miss_min_load" {
		t.Errorf("%d tokens were cached: %s", cached, decision)
	}
}

// TestKVEventsHotPrefix: requests that begin alike do not wait for their tokens, one by one: what they share is
// known by two of them. A conversation among them stays where it is, all the same.
func TestKVEventsHotPrefix(t *testing.T) {
	var asked atomic.Int64
	var addresses []string
	for range 2 {
		s := simulate(t, "127.0.0.1:0", 4096, "tcp://127.0.0.1:0", "tcp://127.0.0.1:0")
		pass := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: s.address})
		front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/tokenize" {
				asked.Add(1)
			}
			pass.ServeHTTP(w, r)
		}))
		t.Cleanup(front.Close)
		addresses = append(addresses, front.Listener.Addr().String())
	}
	g := start(t, "\t\tmodel m {\n\t\t\tendpoint "+strings.Join(addresses, " ")+"\n\t\t}"+eventsOn, "\tllm")
	g.live(t, 2)
	body := func(talk, turn int) string {
		messages := []map[string]string{{"role": "system", "content": strings.Repeat("You are of help. ", 500)}}
		for i := range turn {
			if i > 0 {
				messages = append(messages, map[string]string{"role": "assistant", "content": "well"})
			}
			messages = append(messages, map[string]string{"role": "user", "content": strings.Repeat(fmt.Sprint(100+talk, " "), 150/(1+9*i))})
		}
		text, err := json.Marshal(map[string]any{"model": "m", "max_tokens": 4, "messages": messages})
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	const talks = 40
	home, used := make([]string, talks), make(map[string]int)
	for i := range talks {
		home[i], _, _, _ = g.cachedOf(t, body(i, 1))
		used[home[i]]++
	}
	if len(used) != 2 {
		t.Errorf("all are at one replica: %v", used)
	}
	for i := range talks {
		eventually(t, "nothing is in flight", func() bool { // the last answer is here a moment before it counts as ended
			all := g.replicas(t)
			return all[addresses[0]].Inflight+all[addresses[1]].Inflight == 0
		})
		at, cached, tokens, decision := g.cachedOf(t, body(i, 2))
		if at != home[i] || decision != "cache_hit" || 20*cached < 19*tokens {
			t.Errorf("conversation %d goes from %s to %s, %s, where %d of %d tokens are cached", i, home[i], at, decision, cached, tokens)
		}
	}
	if n := asked.Load(); n > talks/4 {
		t.Errorf("for %d requests tokens were asked for %d times", 2*talks, n)
	}
}

// TestKVEventsAreSilent: an engine that publishes none, though config says that it does, is known by
// where prompts were sent, and that is said.
func TestKVEventsAreSilent(t *testing.T) {
	e := newEngine(t, answer)
	g := start(t, one(e)+eventsOn, "\tllm")
	eventually(t, "it is said", func() bool {
		text, err := os.ReadFile(g.logs)
		return err == nil && strings.Contains(string(text), "cannot learn where the replica publishes KV events")
	})
	for turn, want := range []string{"stale", "stale"} {
		res, text := g.post(t, "/v1/chat/completions", talk(1, turn+1))
		if got := res.Header.Get("X-Llmgw-Cache-Decision"); res.StatusCode != http.StatusOK || got != want {
			t.Errorf("turn %d: %s, %s", turn, got, text)
		}
	}
	if c := g.explained(t, talk(1, 3)).Candidates[0].Cached; c == nil || *c < 0.5 {
		t.Errorf("nothing is known of it: %v", c)
	}
}
