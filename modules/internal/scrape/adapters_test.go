package scrape

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/llmgw/llmgw/modules/internal/fleet"
)

// TestLoadAdapter: an engine is asked to load an adapter in its own way, in place of one of the same name,
// and what it lists after that is what counts. The errors are as vLLM 0.32 gives them.
func TestLoadAdapter(t *testing.T) {
	const loaded = `{"error":{"message":"The lora adapter 'sql' has already been loaded. If you want to load the adapter in place, set 'load_inplace' to True.","type":"InvalidUserInput","param":null,"code":400}}`
	for _, c := range []struct {
		name, engine, prefix string
		lists                string // the path of the adapter before
		status               int    // of loading, if it is refused
		body                 string
		forgets              bool // it says that it has loaded, and has not
		calls, fails         string
	}{
		{name: "vLLM", engine: "vllm", prefix: "/v1", calls: "load"},
		{name: "any other", prefix: "/v1", calls: "load"},
		{name: "SGLang", engine: "sglang", calls: "load"},
		{name: "somebody else meanwhile", prefix: "/v1", lists: "/loras/sql", status: 400, body: loaded, calls: "load"},
		{name: "another path", prefix: "/v1", lists: "/loras/v1", calls: "unload load"},
		{name: "another path, not loaded again", prefix: "/v1", lists: "/loras/v1", status: 400, body: loaded, calls: "unload load", fails: `the engine says that it has loaded the adapter "sql", and does not list it`},
		{name: "not listed", prefix: "/v1", forgets: true, calls: "load", fails: `the engine says that it has loaded the adapter "sql", and does not list it`},
		{
			name: "no such path", prefix: "/v1", status: 404, calls: "load",
			body:  `{"error":{"message":"Loading lora sql failed: No adapter found for /loras/sql","type":"NotFoundError","param":null,"code":404}}`,
			fails: "the engine answered 404: Loading lora sql failed: No adapter found for /loras/sql",
		},
		{
			name: "an echo of the key", prefix: "/v1", status: 500, calls: "load",
			body:  `{"error":{"message":"who is ` + testKey + `?","type":"InternalServerError","param":null,"code":500}}`,
			fails: "the engine answered 500: who is [redacted]?",
		},
		{name: "no such route", prefix: "/other", fails: errNoLoading.Error()},
	} {
		t.Run(c.name, func(t *testing.T) {
			at := c.lists
			var calls []string
			tg := serve(t, func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("Authorization") != "Bearer "+testKey {
					t.Errorf("%s without the key", r.URL.Path)
				}
				var body map[string]string
				if r.Method == http.MethodPost {
					if err := json.NewDecoder(r.Body).Decode(&body); err != nil || body["lora_name"] != "sql" {
						t.Errorf("%s: %v, %v", r.URL.Path, body, err)
					}
				}
				switch r.URL.Path {
				case "/v1/models":
					list := []map[string]any{{"id": "m", "root": "/models/m"}}
					if at != "" {
						list = append(list, map[string]any{"id": "sql", "parent": "m", "root": at})
					}
					_ = json.NewEncoder(w).Encode(map[string]any{"data": list})
				case c.prefix + "/unload_lora_adapter":
					calls, at = append(calls, "unload"), ""
				case c.prefix + "/load_lora_adapter":
					if calls = append(calls, "load"); c.status != 0 {
						w.WriteHeader(c.status)
						fmt.Fprint(w, c.body)
					} else if !c.forgets {
						at = body["lora_path"]
					}
				default:
					w.WriteHeader(http.StatusNotFound)
					fmt.Fprint(w, `{"detail":"Not Found"}`)
				}
			})
			tg.Engine = c.engine
			err := tg.LoadAdapter(bounded(t), fleet.Adapter{Name: "sql", Path: "/loras/sql"})
			if got := fmt.Sprint(err); c.fails != "" && got != c.fails || c.fails == "" && err != nil {
				t.Errorf("error %s, want %q", got, c.fails)
			}
			if got := strings.Join(calls, " "); got != c.calls {
				t.Errorf("it was asked to %s, want %s", got, c.calls)
			}
		})
	}
	if LoadsAdapters("llamacpp") || !slices.ContainsFunc(Engines(), LoadsAdapters) {
		t.Error("which engines load adapters")
	}
	if a, b, c := ServedAdapter("vllm", "m", "sql"), ServedAdapter("", "m", "sql"), ServedAdapter("sglang", "m", "sql"); a != "sql" || b != "sql" || c != "m:sql" {
		t.Errorf("asked for as %s, %s and %s", a, b, c)
	}
}
