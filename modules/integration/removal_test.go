package integration

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// gated answers streams with one token at once, and the end when the gate
// opens; all else with answer.
func gated(gate <-chan struct{}) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if body, _ := io.ReadAll(r.Body); !strings.Contains(string(body), `"stream":true`) {
			answer(w, r)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, tokenEvent)
		http.NewResponseController(w).Flush()
		select {
		case <-gate:
			io.WriteString(w, "data: [DONE]\n\n")
		case <-r.Context().Done():
		}
	}
}

// held is a stream whose first token has come.
type held struct {
	res *http.Response
	in  *bufio.Reader
}

// hold opens a stream of gated.
func (g *gateway) hold(t *testing.T) *held {
	t.Helper()
	client := &http.Transport{DisableKeepAlives: true}
	res, err := client.RoundTrip(g.request(t, t.Context(), http.MethodPost, "/v1/chat/completions", streamRequest))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { res.Body.Close() })
	h := &held{res: res, in: bufio.NewReader(res.Body)}
	for range 2 { // the event and its blank line
		if line, err := h.in.ReadString('\n'); err != nil || res.StatusCode != http.StatusOK {
			t.Fatalf("%s %q, %v", res.Status, line, err)
		}
	}
	return h
}

func (h *held) replica() string { return h.res.Header.Get("X-Llmgw-Replica") }

// end reads the rest, which must be the end mark.
func (h *held) end(t *testing.T) {
	t.Helper()
	if rest, err := io.ReadAll(h.in); err != nil || string(rest) != "data: [DONE]\n\n" {
		t.Errorf("the stream ended with %q, %v", rest, err)
	}
}

// TestR17_ReplicaRemovedUnderLoad: no request fails, none goes to the replica
// after the mark, and its stream ends by itself.
func TestR17_ReplicaRemovedUnderLoad(t *testing.T) {
	for name, remove := range map[string]func(t *testing.T, g *gateway, a, b *engine){
		"reload": func(t *testing.T, g *gateway, _, b *engine) {
			g.reload(t, g.caddyfile(one(b), "\theader X-Config after\n\tllm"))
		},
		"drain": func(t *testing.T, g *gateway, a, _ *engine) {
			if status := g.admin(t, "/llmgw/replicas/drain", fmt.Sprintf(`{"replica":%q}`, a.Address), nil); status != http.StatusOK {
				t.Errorf("drain: %d", status)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			gate := make(chan struct{})
			a, b := newEngine(t, gated(gate)), newEngine(t, gated(gate))
			g := start(t, one(a, b), "\tllm")
			stream := g.hold(t)
			if stream.replica() == b.Address {
				a, b = b, a
			}
			passers := g.pass(t, 8, func(id string, res *http.Response) {
				// After a reload the old server may still accept for a moment.
				after := name == "drain" && strings.HasPrefix(id, "after-") || res.Header.Get("X-Config") != ""
				if after && res.Header.Get("X-Llmgw-Replica") == a.Address {
					t.Errorf("request %s went to the removed replica", id)
				}
			})
			passers.more(25)
			remove(t, g, a, b)
			passers.phase.Store("after")
			passers.more(25 + 8) // 8 may have begun before the mark
			passers.end(a, b)
			if len(b.got()) < 25 {
				t.Errorf("the other replica got %d requests", len(b.got()))
			}
			if n := g.replicas(t)[a.Address].Inflight; n != 1 {
				t.Errorf("%d in flight on the removed replica, want the stream", n)
			}
			close(gate)
			stream.end(t)
			eventually(t, "nothing is in flight", func() bool { return g.replicas(t)[a.Address].Inflight == 0 })
			if v, _ := g.metric(t, `llmgw_outcomes_total{model="m",outcome="broken"}`); v != 0 {
				t.Errorf("%v requests broke", v)
			}
		})
	}
}

// TestR02_RemovedAndAddedUnderLoad: the requests of before the removal must not
// count down what came after it.
func TestR02_RemovedAndAddedUnderLoad(t *testing.T) {
	old, late := make(chan struct{}), make(chan struct{})
	var now atomic.Pointer[chan struct{}]
	now.Store(&old)
	a := newEngine(t, func(w http.ResponseWriter, r *http.Request) { gated(*now.Load())(w, r) })
	b := newEngine(t, answer)
	g := start(t, one(a), "\tllm")
	// What anybody sees of the count, at any time.
	series := fmt.Sprintf("llmgw_endpoint_inflight{replica=%q}", a.Address)
	stop := make(chan struct{})
	var watcher sync.WaitGroup
	watcher.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if v, ok, err := g.tryMetric(series); err == nil && ok && v < 0 {
				t.Errorf("%v in flight", v)
				return
			}
		}
	})
	var five []*held
	for range 5 {
		five = append(five, g.hold(t))
	}
	g.reload(t, g.caddyfile(one(b), "\tllm"))
	g.reload(t, g.caddyfile(one(a), "\tllm"))
	now.Store(&late)
	last := g.hold(t)
	if n := g.replicas(t)[a.Address].Inflight; n < 1 {
		t.Errorf("%d in flight, and one is open", n)
	}
	close(old)
	for _, h := range five {
		h.end(t)
	}
	eventually(t, "1 is in flight", func() bool { return g.replicas(t)[a.Address].Inflight == 1 })
	close(late)
	last.end(t)
	eventually(t, "0 are in flight", func() bool { return g.replicas(t)[a.Address].Inflight == 0 })
	close(stop)
	watcher.Wait()
	if r := g.replicas(t)[a.Address]; r.Inflight != 0 || r.PendingTokens != 0 {
		t.Errorf("%d in flight, %d tokens", r.Inflight, r.PendingTokens)
	}
}
