package integration

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/llmgw/llmgw/agent/engine/sim"
)

// simulateLoRAs starts a simulated engine that loads adapters when asked to.
func simulateLoRAs(t *testing.T) *simulated {
	t.Helper()
	cfg := sim.DefaultConfig()
	cfg.Models, cfg.LoRAUpdating, cfg.MaxLoRAs, cfg.LoRALoad = []string{"base"}, true, 4, 100*time.Millisecond
	cfg.PrefillPerToken, cfg.Decode, cfg.DecodePerSeq = 0, 0, 0
	cfg.KVEvents, cfg.KVEventsReplay = "tcp://127.0.0.1:0", "tcp://127.0.0.1:0"
	return simulateAs(t, "127.0.0.1:0", cfg)
}

// post sends JSON to the engine itself.
func (s *simulated) post(t *testing.T, path, body string) {
	t.Helper()
	res, err := http.Post("http://"+s.address+path, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if text, _ := io.ReadAll(res.Body); res.StatusCode != http.StatusOK {
		t.Fatalf("%s: %d %s", path, res.StatusCode, text)
	}
}

// models are what the engine lists.
func (s *simulated) models(t *testing.T) []struct{ ID, Root string } {
	t.Helper()
	res, err := http.Get("http://" + s.address + "/v1/models")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var list struct{ Data []struct{ ID, Root string } }
	if err := json.NewDecoder(res.Body).Decode(&list); err != nil {
		t.Fatal(err)
	}
	return list.Data
}

// TestAdaptersOnDemand: an adapter is brought to a replica by the first request for it, once for all
// that come meanwhile, stays there, and comes back when the engine has lost it. It is ready when the
// engine lists it.
func TestAdaptersOnDemand(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"sql", "sql-2", "law"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	engines := []*simulated{simulateLoRAs(t), simulateLoRAs(t)}
	option := fmt.Sprintf(`		model base {
			prefix {
				events on 5s
			}
			endpoint %s %s
			adapter sql %s/sql
			adapter law %s/law
			adapter lost %s/lost
		}`, engines[0].address, engines[1].address, dir, dir, dir)
	g := start(t, option, "\tllm")
	g.live(t, len(engines))
	ask := func(model string) (*http.Response, string) {
		return g.post(t, "/v1/chat/completions", fmt.Sprintf(`{"model":%q,"max_tokens":2,"messages":[{"role":"user","content":"hi"}]}`, model))
	}
	// status are the states of an adapter, by replica.
	status := func(name string) map[string]string {
		all := make(map[string]string)
		for id, r := range g.replicas(t) {
			for _, a := range r.Adapters {
				if a.Name == name {
					all[id] = strings.TrimSpace(a.Status + " " + a.Reason)
				}
			}
		}
		return all
	}
	loads := func(model, outcome string) float64 {
		n, _ := g.metric(t, fmt.Sprintf(`llmgw_adapter_loads_total{model=%q,outcome=%q}`, model, outcome))
		return n
	}
	if res, text := g.post(t, "/v1/models", ""); res.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("%d %s", res.StatusCode, text)
	}
	if s := status("sql"); len(s) != 0 {
		t.Errorf("before anybody asked: %v", s)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	served := make(map[string]int)
	for i := range 5 {
		wg.Go(func() {
			res, text := ask("sql")
			mu.Lock()
			defer mu.Unlock()
			if served[res.Header.Get("X-Llmgw-Replica")]++; res.StatusCode != http.StatusOK || !strings.Contains(text, `"model":"sql"`) {
				t.Errorf("%d %s", res.StatusCode, text)
			}
		})
		if i == 0 {
			eventually(t, "it is being loaded, or is", func() bool { return len(status("sql")) > 0 })
		}
	}
	wg.Wait()
	s := status("sql")
	if n := loads("sql", "ok"); n != 1 || len(s) != 1 || len(served) != 1 {
		t.Errorf("%v loads; states %v; served by %v", n, s, served)
	}
	for at, state := range s {
		if state != "ready" {
			t.Errorf("%s: %s", at, state)
		}
	}
	// An adapter goes where it is.
	for range 10 {
		if res, text := ask("law"); res.StatusCode != http.StatusOK {
			t.Fatalf("%d %s", res.StatusCode, text)
		}
	}
	if n := loads("law", "ok"); n != 1 || len(status("law")) != 1 {
		t.Errorf("%v loads of an adapter with one request at a time; states %v", n, status("law"))
	}
	// What the engines' events say counts for an adapter, too, wherever it is; and an answer of 404 that
	// is of something else takes nothing away.
	long := `{"model":"law","max_tokens":2,"messages":[{"role":"user","content":"` + strings.Repeat("Once more. ", 100) + `"}]}`
	before, _ := g.metric(t, `llmgw_no_tokens_total{model="law"}`) // short ones have none
	g.post(t, "/v1/chat/completions", long)
	eventually(t, "its events are known", func() bool { return g.explained(t, long).Cache == "cache_hit" })
	if res, text := g.post(t, "/v1/chat/completions", long); res.Header.Get("X-Llmgw-Cache-Decision") != "cache_hit" {
		t.Errorf("%v %s", res.Header, text)
	}
	if n, _ := g.metric(t, `llmgw_no_tokens_total{model="law"}`); n != before {
		t.Errorf("%v requests had no tokens", n-before)
	}
	if res, text := g.post(t, "/v1/embeddings", `{"model":"law","input":"hi","dimensions":99999999}`); res.StatusCode == http.StatusOK || len(status("law")) != 1 {
		t.Errorf("%d %s; states %v", res.StatusCode, text, status("law"))
	}
	// The engines have lost it, one by one and without a word.
	for range 3 {
		for _, e := range engines {
			if status("law")[e.address] == "ready" {
				e.post(t, "/v1/unload_lora_adapter", `{"lora_name":"law"}`)
			}
		}
		if res, text := ask("law"); res.StatusCode != http.StatusOK {
			t.Errorf("after it was unloaded: %d %s", res.StatusCode, text)
		}
	}
	// So they have where it was on all of them: each is asked to load it again, and no client is told.
	eventually(t, "it is on both", func() bool {
		for range 12 {
			wg.Go(func() { ask("law") })
		}
		wg.Wait()
		return len(status("law")) == len(engines)
	})
	for _, e := range engines {
		e.post(t, "/v1/unload_lora_adapter", `{"lora_name":"law"}`)
	}
	for range 5 {
		if res, text := ask("law"); res.StatusCode != http.StatusOK {
			t.Errorf("after it was unloaded everywhere: %d %s", res.StatusCode, text)
		}
	}
	// It crashes, and another process knows nothing.
	for _, e := range engines {
		e.post(t, "/sim/faults", `{"mode":"crash","restart_after":"300ms"}`)
	}
	eventually(t, "it is served again", func() bool {
		res, _ := ask("law")
		return res.StatusCode == http.StatusOK
	})
	eventually(t, "all replicas are back", func() bool {
		for _, r := range g.replicas(t) {
			if r.State != "ready" {
				return false
			}
		}
		return true
	})
	for _, name := range []string{"sql", "law"} {
		for at, state := range status(name) {
			if name == "sql" || state != "ready" {
				t.Errorf("after the crash %s at %s is %s", name, at, state)
			}
		}
	}
	// Another path is another adapter, which takes the place of the one before.
	ask("sql")
	g.load(t, g.caddyfile(strings.ReplaceAll(option, dir+"/sql", dir+"/sql-2"), "\tllm"))
	if res, text := ask("sql"); res.StatusCode != http.StatusOK {
		t.Errorf("%d %s", res.StatusCode, text)
	}
	for _, e := range engines {
		for _, m := range e.models(t) {
			if m.ID == "sql" && m.Root != dir+"/sql-2" && status("sql")[e.address] == "ready" {
				t.Errorf("%s has it from %s still, and serves it", e.address, m.Root)
			}
		}
	}
	// One that is nowhere is an error that says so to the operator, and no replica is to blame.
	res, text := ask("lost")
	isError(t, res, text, http.StatusBadGateway)
	if strings.Contains(text, dir) {
		t.Errorf("a client is told of paths: %s", text)
	}
	eventually(t, "the states say why", func() bool {
		failed := status("lost")
		for _, state := range failed {
			if !strings.HasPrefix(state, "failed the engine answered 404: Loading lora lost failed: No adapter found for "+dir) {
				t.Fatalf("%v", failed)
			}
		}
		return len(failed) > 0
	})
	if n := loads("lost", "error"); n < 1 {
		t.Errorf("%v loads that failed", n)
	}
	for id, r := range g.replicas(t) {
		if r.State != "ready" || r.Inflight != 0 {
			t.Errorf("%s: %+v", id, r)
		}
	}
	// While both pause, it is refused at once.
	for range 10 {
		ask("lost")
	}
	if n := loads("lost", "error"); n > 6 {
		t.Errorf("%v loads of what is not there", n)
	}
	if res, text := ask("base"); res.StatusCode != http.StatusOK {
		t.Errorf("%d %s", res.StatusCode, text)
	}
}
