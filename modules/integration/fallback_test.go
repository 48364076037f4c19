package integration

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
)

// TestFallback: another model serves while none of the model's own replicas
// can, and only then, and only whom its key permits it.
func TestFallback(t *testing.T) {
	var bigSays, smallSays atomic.Pointer[http.HandlerFunc]
	says := func(p *atomic.Pointer[http.HandlerFunc], h http.HandlerFunc) { p.Store(&h) }
	scripted := func(p *atomic.Pointer[http.HandlerFunc]) *engine {
		return newEngine(t, func(w http.ResponseWriter, r *http.Request) { (*p.Load())(w, r) })
	}
	status := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "7")
			w.WriteHeader(code)
			io.WriteString(w, `{"error":{"message":"too much to do","type":"x"}}`)
		}
	}
	big, small := scripted(&bigSays), scripted(&smallSays)
	g := start(t, fmt.Sprintf(`
		reliability {
			retries 0
			cooldown 1ms
		}
		model big {
			alias gpt-4
			fallback gpt-3 never
			endpoint %s
		}
		model small {
			alias gpt-3
			fallback never
			endpoint %s {
				served_model org/small
			}
		}
		model never {
		}`, big.Address, small.Address), "\tllm {\n\t\tkey all\n\t\tkey some {\n\t\t\tmodels big\n\t\t}\n\t}")
	body := strings.Replace(request, `"m"`, `"gpt-4"`, 1)
	ask := func(t *testing.T, key string) (*http.Response, string) {
		return g.post(t, "/v1/chat/completions", body, "Authorization", "Bearer "+key)
	}
	// each begins with both replicas as good as new.
	each := func(name string, bigDoes, smallDoes http.HandlerFunc, test func(t *testing.T)) {
		t.Run(name, func(t *testing.T) {
			says(&bigSays, answer)
			says(&smallSays, answer)
			eventually(t, "the big model serves itself", func() bool {
				res, _ := ask(t, "some")
				return res.StatusCode == http.StatusOK
			})
			eventually(t, "the small model serves", func() bool {
				res, _ := g.post(t, "/v1/chat/completions", strings.Replace(request, `"m"`, `"small"`, 1), "Authorization", "Bearer all")
				return res.StatusCode == http.StatusOK
			})
			says(&bigSays, bigDoes)
			says(&smallSays, smallDoes)
			test(t)
		})
	}
	each("its own", answer, answer, func(t *testing.T) {
		if res, text := ask(t, "all"); res.StatusCode != http.StatusOK || res.Header.Get("X-Llmgw-Served-Model") != "big" {
			t.Errorf("%s %s %v", res.Status, text, res.Header)
		}
	})
	each("refused", status(503), answer, func(t *testing.T) {
		before, _ := g.metric(t, `llmgw_fallbacks_total{fallback="small",model="big"}`)
		res, text := ask(t, "all")
		if res.StatusCode != http.StatusOK || res.Header.Get("X-Llmgw-Served-Model") != "org/small" || res.Header.Get("X-Llmgw-Replica") != small.Address {
			t.Fatalf("%s %s %v", res.Status, text, res.Header)
		}
		got := small.got()
		if last := got[len(got)-1].Body; last != strings.Replace(body, "gpt-4", "org/small", 1) {
			t.Errorf("the engine got %s", last)
		}
		entry := g.accessLog(t, res.Header.Get("X-Request-Id"))
		if entry["model"] != "big" || entry["fallback"] != "small" || entry["served_model"] != "org/small" {
			t.Errorf("logged %v", entry)
		}
		eventually(t, "it is counted", func() bool {
			after, _ := g.metric(t, `llmgw_fallbacks_total{fallback="small",model="big"}`)
			return after == before+1
		})
	})
	each("refused, not permitted", status(503), answer, func(t *testing.T) {
		res, text := ask(t, "some")
		isError(t, res, text, http.StatusServiceUnavailable)
	})
	each("an error that is no shortage", status(500), answer, func(t *testing.T) {
		res, text := ask(t, "all")
		isError(t, res, text, http.StatusInternalServerError)
	})
	each("the client's fault", status(400), answer, func(t *testing.T) {
		res, text := ask(t, "all")
		isError(t, res, text, http.StatusBadRequest)
	})
	each("both refuse", status(503), status(429), func(t *testing.T) {
		res, text := ask(t, "all")
		isError(t, res, text, http.StatusTooManyRequests)
		if !strings.Contains(text, "too much to do") || res.Header.Get("Retry-After") != "7" {
			t.Errorf("%s, Retry-After %q", text, res.Header.Get("Retry-After"))
		}
	})
	g.admin(t, "/llmgw/replicas/drain", fmt.Sprintf(`{"replica":%q}`, big.Address), nil)
	says(&smallSays, answer)
	eventually(t, "nothing of its own is there", func() bool {
		res, _ := ask(t, "all")
		return res.StatusCode == http.StatusOK && res.Header.Get("X-Llmgw-Served-Model") == "org/small"
	})
	res, text := ask(t, "some")
	isError(t, res, text, http.StatusServiceUnavailable)
	if !strings.Contains(text, "`big`") {
		t.Errorf("%s", text)
	}
}
