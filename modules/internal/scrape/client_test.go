package scrape

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/llmgw/llmgw/modules/internal/fleet"
)

const testKey = "engine-key-hunter2"

// target returns a replica at the server's address and how to ask it.
func target(t *testing.T, f *fleet.Fleet, address string, client *http.Client) Target {
	t.Helper()
	u, err := fleet.ParseURL(address)
	if err != nil {
		t.Fatal(err)
	}
	r, release := f.Hold(u)
	t.Cleanup(release)
	return Target{Replica: r, APIKey: testKey, Client: client, Interval: time.Second}
}

// serve starts an engine on a free port of the loopback interface.
func serve(t *testing.T, h http.HandlerFunc) Target {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return target(t, fleet.New(nil), server.URL, NewClient(transport))
}

// bounded is a context that ends long after the test should have.
func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func TestMetricsAreAskedForWithTheKey(t *testing.T) {
	tg := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet || r.URL.Path != "/metrics" || r.Header.Get("Authorization") != "Bearer "+testKey {
			t.Errorf("asked %s %s with %q", r.Method, r.URL.Path, r.Header.Get("Authorization"))
		}
		fmt.Fprint(w, good)
	})
	s, err := tg.metrics(bounded(t))
	if err != nil {
		t.Fatal(err)
	}
	expectStats(t, s, 3, 4, 0.5)
}

func TestNoKeyNoHeader(t *testing.T) {
	tg := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		if _, ok := r.Header["Authorization"]; ok {
			t.Errorf("sent %q", r.Header["Authorization"])
		}
	})
	tg.APIKey = ""
	if reason := tg.probe(bounded(t)); reason != "" {
		t.Error(reason)
	}
}

func TestPathPrefixOfTheReplica(t *testing.T) {
	var paths []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		paths = append(paths, r.URL.Path)
		fmt.Fprint(w, `{"data":[]}`)
	}))
	defer server.Close()
	tg := target(t, fleet.New(nil), server.URL+"/engines/a/", NewClient(http.DefaultTransport))
	tg.probe(bounded(t))
	if _, _, err := tg.models(bounded(t)); err != nil {
		t.Error(err)
	}
	if want := []string{"/engines/a/health", "/engines/a/v1/models"}; !slices.Equal(paths, want) {
		t.Errorf("asked for %q, want %q", paths, want)
	}
	if tg.Replica.URL.Path != "/engines/a" {
		t.Errorf("the replica's URL was changed to %s", tg.Replica.URL)
	}
}

func TestR10_RedirectOnTheSameHostIsFollowed(t *testing.T) {
	for _, status := range []int{301, 302, 307, 308} {
		tg := serve(t, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/metrics" {
				http.Redirect(w, r, "/metrics/", status)
				return
			}
			if r.Header.Get("Authorization") != "Bearer "+testKey {
				t.Error("the key is lost on the way")
			}
			fmt.Fprint(w, good)
		})
		s, err := tg.metrics(bounded(t))
		if err != nil {
			t.Errorf("status %d: %v", status, err)
			continue
		}
		expectStats(t, s, 3, 4, 0.5)
	}
}

func TestR10_RedirectToAnotherHostIsRefused(t *testing.T) {
	var reached atomic.Int32
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Add(1) }))
	defer elsewhere.Close()
	port := elsewhere.URL[strings.LastIndex(elsewhere.URL, ":"):]
	for _, location := range []string{
		elsewhere.URL + "/metrics",
		"http://localhost" + port + "/metrics",
		"//127.0.0.1" + port + "/metrics",
		"https://{self}/metrics", // the same host by another scheme
	} {
		tg := serve(t, func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, strings.ReplaceAll(location, "{self}", r.Host), http.StatusTemporaryRedirect)
		})
		for what, ask := range map[string]func() error{
			"metrics": func() error { _, err := tg.metrics(bounded(t)); return err },
			"models":  func() error { _, _, err := tg.models(bounded(t)); return err },
			"health": func() error {
				if reason := tg.probe(bounded(t)); reason != "" {
					return errors.New(reason)
				}
				return nil
			},
		} {
			if err := ask(); err == nil || !strings.Contains(err.Error(), "redirect to another host refused") {
				t.Errorf("%s to %s: %v", what, location, err)
			}
		}
	}
	if n := reached.Load(); n != 0 {
		t.Errorf("the other host, and so whoever listens there, got %d requests", n)
	}
}

func TestRedirectLoopEnds(t *testing.T) {
	var asked atomic.Int32
	tg := serve(t, func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		http.Redirect(w, r, "/metrics", http.StatusFound)
	})
	if _, err := tg.metrics(bounded(t)); err == nil || !strings.Contains(err.Error(), "more than 3 redirects") {
		t.Errorf("error %v", err)
	}
	if n := asked.Load(); n != maxRedirects+1 {
		t.Errorf("asked %d times", n)
	}
}

func TestR10_StatusOfTheMetricsPage(t *testing.T) {
	for status, none := range map[int]bool{
		404: true, 405: true, 501: true, 401: true, 403: true,
		400: false, 429: false, 500: false, 502: false, 503: false, 204: false,
	} {
		tg := serve(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })
		s, err := tg.metrics(bounded(t))
		if s != nil || err == nil || errors.Is(err, errNoMetrics) != none {
			t.Errorf("status %d: %+v, %v", status, s, err)
		}
		if !none && !strings.Contains(err.Error(), fmt.Sprintf("/metrics answered %d", status)) {
			t.Errorf("status %d: %v", status, err)
		}
	}
}

func TestProbeStatus(t *testing.T) {
	for status, up := range map[int]bool{
		200: true, 204: true, 404: true, 401: true, 501: true,
		500: false, 502: false, 503: false,
	} {
		tg := serve(t, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/health" {
				t.Errorf("asked for %s", r.URL.Path)
			}
			w.WriteHeader(status)
		})
		if reason := tg.probe(bounded(t)); (reason == "") != up {
			t.Errorf("status %d: %q", status, reason)
		}
	}
}

// What goes wrong on the way ends up in logs and in the admin API.
func TestErrorsShowNoKeyAndNoURL(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	tg := target(t, fleet.New(nil), server.URL+"/secret-path", NewClient(&http.Transport{}))
	server.Close() // refuses connections from here on
	_, err := tg.metrics(bounded(t))
	if err == nil {
		t.Fatal("a closed port answered")
	}
	reason := tg.probe(bounded(t))
	for _, text := range []string{err.Error(), reason} {
		if text == "" || strings.Contains(text, "hunter2") || strings.Contains(text, "secret-path") {
			t.Errorf("error %q", text)
		}
	}
}

func TestModelsList(t *testing.T) {
	many := `{"data":[`
	for i := range maxModels + 50 {
		many += fmt.Sprintf(`{"id":"m%d"},`, i)
	}
	many += `{"id":"last"}]}`
	for _, c := range []struct {
		name, body string
		want       []string
		count      int
	}{
		{"vLLM with an adapter", `{"object":"list","data":[{"id":"base","root":"org/base"},{"id":"lora","parent":"base"}]}`, []string{"base", "lora"}, 2},
		{"llama.cpp with aliases", `{"models":[],"data":[{"id":"a","aliases":["b","a","c"]}]}`, []string{"a", "b", "c"}, 3},
		{"none", `{"data":[]}`, nil, 0},
		{"null", `{"data":null}`, nil, 0},
		{"no ids", `{"data":[{"id":""},{}]}`, nil, 0},
		{"what could be no name", `{"data":[{"id":"a\nb"},{"id":"a\u0000"},{"id":"` + strings.Repeat("x", 257) + `"},{"id":"ok"}]}`, []string{"ok"}, 1},
		{"more than there should be", many, nil, maxModels},
	} {
		t.Run(c.name, func(t *testing.T) {
			tg := serve(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, c.body) })
			got, _, err := tg.models(bounded(t))
			if err != nil {
				t.Fatal(err)
			}
			if len(got) != c.count || c.want != nil && !slices.Equal(got, c.want) {
				t.Errorf("models %.200q, want %q", got, c.want)
			}
		})
	}
}

// TestListedAdapters: adapters are asked for as their engine wants it, which config says, or the list.
func TestListedAdapters(t *testing.T) {
	const list = `{"data":[{"id":"base","owned_by":%[1]q,"parent":null},{"id":"sql","owned_by":%[1]q,"root":"/loras/sql","parent":"base"}]}`
	for _, c := range []struct{ configured, owner, served string }{
		{"", "vllm", "sql"},
		{"", "sglang", "base:sql"},
		{"", "", "sql"},
		{"", "somebody", ""},
		{"sglang", "somebody", "base:sql"},
		{"vllm", "sglang", "sql"},
		{"llamacpp", "llamacpp", ""},
	} {
		tg := serve(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintf(w, list, c.owner) })
		tg.Engine = c.configured
		names, got, err := tg.models(bounded(t))
		if err != nil {
			t.Fatal(err)
		}
		want := []fleet.Adapter{{Name: "sql", Path: "/loras/sql", Served: c.served}}
		if !slices.Equal(got, want) || !slices.Equal(names, []string{"base", "sql"}) {
			t.Errorf("%+v: adapters %+v, want %+v, of the models %q", c, got, want, names)
		}
	}
}

func TestModelsListThatIsNone(t *testing.T) {
	for _, c := range []struct {
		name, body string
		status     int
	}{
		{"a page", "<html>", 200},
		{"another shape", `["a"]`, 200},
		{"cut off", `{"data":[{"id":"a"}`, 200},
		{"nothing", "", 200},
		{"larger than 4 MiB", `{"data":[{"id":"` + strings.Repeat("x", maxModelsBody), 200},
		{"an error", `{"data":[]}`, 500},
		{"no such page", `{"data":[]}`, 404},
	} {
		t.Run(c.name, func(t *testing.T) {
			tg := serve(t, func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(c.status)
				fmt.Fprint(w, c.body)
			})
			if got, _, err := tg.models(bounded(t)); err == nil || !strings.Contains(err.Error(), "/v1/models") {
				t.Errorf("models %q, error %v", got, err)
			}
		})
	}
}
