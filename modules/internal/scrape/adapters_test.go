package scrape

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// TestLoadAdapter: an engine is asked to load an adapter in its own way, and what it lists after that is
// what counts. The errors are as vLLM 0.24 gives them.
func TestLoadAdapter(t *testing.T) {
	vllm := func(status int, body string) map[string]http.HandlerFunc {
		return map[string]http.HandlerFunc{"/v1/load_lora_adapter": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			fmt.Fprint(w, body)
		}}
	}
	for _, c := range []struct {
		name, engine string
		paths        map[string]http.HandlerFunc
		lists, fails string
	}{
		{"loaded", "", vllm(200, "Success: LoRA adapter 'sql' added successfully."), "sql", ""},
		{"by another", "vllm", vllm(400, `{"error":{"message":"The lora adapter 'sql' has already been loaded. If you want to load the adapter in place, set 'load_inplace' to True.","type":"InvalidUserInput","param":null,"code":400}}`), "sql", ""},
		{"no such path", "vllm", vllm(404, `{"error":{"message":"Loading lora sql failed: No adapter found for /loras/sql","type":"NotFoundError","param":null,"code":404}}`), "", "the engine answered 404: Loading lora sql failed: No adapter found for /loras/sql"},
		{"too large a rank", "vllm", vllm(500, `{"error":{"message":"LoRA rank 64 is greater than max_lora_rank 16.","type":"InternalServerError","param":null,"code":500}}`), "", "the engine answered 500: LoRA rank 64 is greater than max_lora_rank 16."},
		{"no such route", "vllm", nil, "", errNoLoading.Error()},
		{"SGLang", "", map[string]http.HandlerFunc{"/load_lora_adapter": func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, `{"success":true,"loaded_adapters":{"sql":"/loras/sql"}}`)
		}}, "sql", ""},
		{"neither", "", nil, "", errNoLoading.Error()},
	} {
		t.Run(c.name, func(t *testing.T) {
			tg := serve(t, func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get("Authorization") != "Bearer "+testKey {
					t.Errorf("%s without the key", r.URL.Path)
				}
				if r.URL.Path == "/v1/models" {
					fmt.Fprintf(w, `{"data":[{"id":"m"},{"id":"sql","parent":"m"}]}`)
					return
				}
				body, _ := io.ReadAll(r.Body)
				if h := c.paths[r.URL.Path]; h != nil && r.Method == http.MethodPost && string(body) == `{"lora_name":"sql","lora_path":"/loras/sql"}` {
					h(w, r)
					return
				}
				w.WriteHeader(http.StatusNotFound)
				fmt.Fprint(w, `{"detail":"Not Found"}`)
			})
			tg.Engine = c.engine
			listed, err := tg.LoadAdapter(bounded(t), "sql", "/loras/sql")
			if got := fmt.Sprint(err); c.fails != "" && got != c.fails || c.fails == "" && err != nil {
				t.Errorf("error %s, want %q", got, c.fails)
			}
			if strings.Join(listed, ",") != c.lists {
				t.Errorf("listed: %q", listed)
			}
		})
	}
	if LoadsAdapters("llamacpp") || !slices.ContainsFunc(Engines(), LoadsAdapters) {
		t.Error("which engines load adapters")
	}
}
