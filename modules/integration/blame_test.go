package integration

import (
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// TestBlame: what no replica is to blame for takes none out of use.
func TestBlame(t *testing.T) {
	for name, c := range map[string]struct {
		option string
		does   http.HandlerFunc
	}{
		"an error of the client's inside a stream": {"", events("text/event-stream",
			`data: {"error":{"message":"the prompt is too long","type":"BadRequestError","code":400}}`+"\n\n", "data: [DONE]\n\n")},
		"the total limit": {"total_timeout 100ms", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			for r.Context().Err() == nil {
				io.WriteString(w, tokenEvent)
				http.NewResponseController(w).Flush()
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEngine(t, c.does)
			g := start(t, one(e)+"\n\t\treliability {\n\t\t\t"+c.option+"\n\t\t}", "\tllm")
			for range 12 {
				res, err := http.DefaultClient.Do(g.request(t, t.Context(), http.MethodPost, "/v1/chat/completions", streamRequest))
				if err != nil {
					t.Fatal(err)
				}
				io.Copy(io.Discard, res.Body)
				res.Body.Close()
			}
			if r := g.replicas(t)[e.Address]; r.State != "ready" || r.Reason != "" {
				t.Errorf("it is %s: %s", r.State, r.Reason)
			}
		})
	}
}

// TestPoisonIsSentTwiceAtMost: a request that kills the engine that has it.
func TestPoisonIsSentTwiceAtMost(t *testing.T) {
	bothPaths(t, func(t *testing.T, site string) {
		var got atomic.Int32
		dies := func(w http.ResponseWriter, r *http.Request) {
			if strings.Contains(readAll(t, r.Body), "poison") {
				got.Add(1)
				cutSilently(w)
				return
			}
			answer(w, r)
		}
		engines := []*engine{newEngine(t, dies), newEngine(t, dies), newEngine(t, dies), newEngine(t, dies)}
		g := start(t, one(engines...), site)
		spread(t, g, 20, engines...) // so that there are kept connections
		res, text := g.post(t, "/v1/chat/completions", strings.Replace(request, `"x"`, `"poison"`, 1))
		isError(t, res, text, http.StatusBadGateway)
		if n := got.Load(); n > 2 {
			t.Errorf("it was sent %d times", n)
		}
	})
}

// TestKilledWithKeptConnections: an engine dies under its requests and refuses
// connections from then on. What it had goes to another one, kept connection or
// not.
func TestKilledWithKeptConnections(t *testing.T) {
	bothPaths(t, func(t *testing.T, site string) {
		var dying atomic.Bool
		arrived := make(chan struct{}, 10)
		dead := make(chan struct{})
		doomed := newEngine(t, func(w http.ResponseWriter, r *http.Request) {
			if !dying.Load() {
				answer(w, r)
				return
			}
			arrived <- struct{}{}
			<-dead
			cutSilently(w)
		})
		good := newEngine(t, answer)
		g := start(t, one(doomed, good), site)
		spread(t, g, 20, doomed, good) // so that there are kept connections
		dying.Store(true)
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				res, err := http.DefaultClient.Do(g.request(t, t.Context(), http.MethodPost, "/v1/chat/completions", request))
				if err != nil {
					t.Error(err)
					return
				}
				defer res.Body.Close()
				if text, _ := io.ReadAll(res.Body); res.StatusCode != http.StatusOK {
					t.Errorf("%s %s", res.Status, text)
				}
			})
		}
		<-arrived
		doomed.Listener.Close() // nobody listens there any more
		close(dead)
		wg.Wait()
	})
}

// TestLimitInsideAStream: who reads a stream that a time limit ends is told so,
// and so is the log.
func TestLimitInsideAStream(t *testing.T) {
	bothPaths(t, func(t *testing.T, site string) {
		e := newEngine(t, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			io.WriteString(w, tokenEvent)
			http.NewResponseController(w).Flush()
			<-r.Context().Done()
		})
		for option, says := range map[string]string{
			"idle_token_timeout 100ms": "the replica stopped giving tokens",
			"total_timeout 100ms":      "the request took longer than the gateway allows",
		} {
			g := start(t, one(e)+"\n\t\treliability {\n\t\t\t"+option+"\n\t\t}", site)
			res, err := http.DefaultClient.Do(g.request(t, t.Context(), http.MethodPost, "/v1/chat/completions", streamRequest))
			if err != nil {
				t.Fatal(err)
			}
			text, err := io.ReadAll(res.Body)
			res.Body.Close()
			if err == nil || !strings.Contains(string(text), says) {
				t.Errorf("%s: %q, %v", option, text, err)
			}
			line := g.accessLog(t, res.Header.Get("X-Request-Id"))
			if line["outcome"] != "broken" || line["reason"] != "timeout" || !strings.Contains(line["error"].(string), says) {
				t.Errorf("%s: %v", option, line)
			}
		}
	})
}

// TestKilledBetweenTwoSends: an engine that dies breaks the connections that it
// has, and takes another one before it is gone. What it had goes elsewhere, and is
// sent no more than twice.
func TestKilledBetweenTwoSends(t *testing.T) {
	bothPaths(t, func(t *testing.T, site string) {
		var dying atomic.Bool
		var sent atomic.Int32
		dies := newEngine(t, func(w http.ResponseWriter, r *http.Request) {
			if dying.Load() {
				sent.Add(1)
				cutSilently(w)
				return
			}
			answer(w, r)
		})
		good := newEngine(t, answer)
		g := start(t, one(dies, good), site)
		spread(t, g, 20, dies, good) // so that there are kept connections
		dying.Store(true)
		for range 20 {
			if res, text := g.post(t, "/v1/chat/completions", request); res.StatusCode != http.StatusOK {
				t.Errorf("%s %s", res.Status, text)
			}
		}
		if sent.Load() == 0 {
			t.Error("no request met the dying engine")
		}
		times := make(map[string]int)
		for _, r := range append(dies.got(), good.got()...) {
			id := r.Header.Get("X-Request-Id")
			if times[id]++; times[id] > 2 {
				t.Errorf("%s was sent %d times", id, times[id])
			}
		}
	})
}
