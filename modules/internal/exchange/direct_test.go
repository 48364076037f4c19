package exchange

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/llmgw/llmgw/modules/internal/catalog"
)

// direct sends a request through a world with one endpoint and returns what
// goes to the replica.
func direct(t *testing.T, r *http.Request, e *catalog.Endpoint, change func(*Exchange)) (*Exchange, *http.Request) {
	t.Helper()
	w := newWorld(t)
	e.Replica = w.endpoint(t, "https://GPU1:8443/engines/a").Replica
	e.Pool, e.Priority, e.Weight = "default", 100, 1
	w.serve(t, nil, &catalog.Model{Name: "m", Aliases: []string{"alias"}, TargetWaiting: 4, KVCeiling: 0.9, Endpoints: []*catalog.Endpoint{e}})
	x := Open(w.Runtime, r, FindRoute(r.URL.Path, nil))
	t.Cleanup(x.End)
	x.Anonymous = true
	if change != nil {
		change(x)
	}
	if err := errors.Join(x.Read(r), x.Resolve()); err != nil {
		t.Fatal(err)
	}
	mustPick(t, x)
	if !x.Direct(r) {
		t.Fatal(x.Err())
	}
	return x, r
}

func sent(t *testing.T, r *http.Request) string {
	t.Helper()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	if r.ContentLength != int64(len(body)) {
		t.Errorf("length %d of a body of %d", r.ContentLength, len(body))
	}
	if _, ok := r.Header["Content-Length"]; ok {
		t.Error("Content-Length is in the header, too: it would be sent twice")
	}
	return string(body)
}

func TestDirect(t *testing.T) {
	r := newRequest(`{"model":"alias","n":1e0,"messages":[]}`)
	r.Header.Set("Content-Length", "39")
	r.Header.Set("Accept-Encoding", "gzip")
	r.Header.Set("X-Request-Id", "the client's")
	r.Header.Set("Traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
	x, r := direct(t, r, &catalog.Endpoint{ServedModel: "org/Model-7B", APIKey: "engine-key"}, nil)
	if got := sent(t, r); got != `{"model":"org/Model-7B","n":1e0,"messages":[]}` {
		t.Errorf("body %s", got)
	}
	if r.URL.Scheme != "https" || r.Host != "gpu1:8443" || r.URL.Path != "/engines/a/v1/chat/completions" || r.URL.RawPath != "" {
		t.Errorf("to %s, host %s", r.URL, r.Host)
	}
	if got := r.Header.Values("Authorization"); len(got) != 1 || got[0] != "Bearer engine-key" {
		t.Errorf("credential %q", got)
	}
	if got := r.Header.Values("X-Request-Id"); len(got) != 1 || got[0] != x.ID {
		t.Errorf("request id %q, want the gateway's own", got)
	}
	if r.Header.Get("Accept-Encoding") != "" || r.Header.Get("Traceparent") == "" {
		t.Errorf("header %v", r.Header)
	}
}

// The client's key is for the gateway, wherever it came in.
func TestT11_ClientsCredentialsStayHere(t *testing.T) {
	for _, engineKey := range []string{"", "engine-key"} {
		r := newRequest(chatBody)
		for _, name := range []string{"Authorization", "X-Api-Key", "Api-Key", "Cookie", "Proxy-Authorization"} {
			r.Header[name] = []string{"Bearer sk-llmgw-hunter2", "sk-llmgw-hunter2"}
		}
		r.Header["X-Llmgw-Tenant"] = []string{"hunter2"}
		r.Header["X_llmgw_tenant"] = []string{"hunter2"}
		_, r = direct(t, r, &catalog.Endpoint{APIKey: engineKey}, nil)
		for name, values := range r.Header {
			if strings.Contains(strings.Join(values, " "), "hunter2") {
				t.Errorf("%s goes to the engine: %q", name, values)
			}
		}
		want := ""
		if engineKey != "" {
			want = "Bearer " + engineKey
		}
		if got := r.Header.Get("Authorization"); got != want {
			t.Errorf("credential %q, want %q", got, want)
		}
	}
}

// What the client wrote stays, byte by byte, where nothing has to be changed.
func TestDirectChangesNoMoreThanItMust(t *testing.T) {
	const odd = ` { "messages" : [ ] ,"model":"m" , "seed":12345678901234567890, "x":"\u00e9<>&" }` + "\n"
	_, r := direct(t, newRequest(odd), &catalog.Endpoint{}, nil)
	if got := sent(t, r); got != odd {
		t.Errorf("body %s, want %s", got, odd)
	}
}

func TestDirectInjectsUsage(t *testing.T) {
	const stream = `{"model":"m","stream":true,"messages":[]}`
	x, r := direct(t, newRequest(stream), &catalog.Endpoint{}, nil)
	if got := sent(t, r); !x.InjectsUsage() || !strings.Contains(got, `"include_usage":true`) {
		t.Errorf("body %s", got)
	}
	_, r = direct(t, newRequest(stream), &catalog.Endpoint{}, func(x *Exchange) { x.Options.InjectUsage = false })
	if got := sent(t, r); got != stream {
		t.Errorf("body %s", got)
	}
}

// Each attempt gets the body as its endpoint needs it: served names differ.
func TestDirectPerAttempt(t *testing.T) {
	w := newWorld(t)
	one, two := w.endpoint(t, "gpu1:8000"), w.endpoint(t, "gpu2:8000/b")
	one.ServedModel, two.ServedModel = "a-much-longer-name-for-it", "b"
	one.APIKey = "key-of-one"
	w.serve(t, nil, &catalog.Model{Name: "m", TargetWaiting: 4, KVCeiling: 0.9, Endpoints: []*catalog.Endpoint{one, two}})
	x := w.ask(t, chatBody)
	want := map[*catalog.Endpoint][3]string{
		one: {strings.Replace(chatBody, `"m"`, `"a-much-longer-name-for-it"`, 1), "/v1/chat/completions", "Bearer key-of-one"},
		two: {strings.Replace(chatBody, `"m"`, `"b"`, 1), "/b/v1/chat/completions", ""},
	}
	r := newRequest("")
	for range 2 {
		e := mustPick(t, x)
		if !x.Direct(r) {
			t.Fatal(x.Err())
		}
		if got := [3]string{sent(t, r), r.URL.Path, r.Header.Get("Authorization")}; got != want[e] {
			t.Errorf("sent %q, want %q", got, want[e])
		}
		x.Fail(Fail(ErrReplica, "reset"))
	}
}

func TestDirectUpgrade(t *testing.T) {
	r := httptest.NewRequest(http.MethodGet, "/v1/realtime?intent=x&model=alias", nil)
	_, r = direct(t, r, &catalog.Endpoint{ServedModel: "org/Model 7B"}, nil)
	if r.URL.Path != "/engines/a/v1/realtime" || r.URL.RawQuery != "intent=x&model=org%2FModel+7B" {
		t.Errorf("to %s", r.URL)
	}
}

// An encoded path of the client's must not survive beside the one that is sent.
func TestDirectDropsTheRawPath(t *testing.T) {
	w := newWorld(t, "gpu1:8000")
	x := w.ask(t, chatBody)
	mustPick(t, x)
	r := newRequest("")
	r.URL.RawPath = "/v1/chat%2Fcompletions"
	if !x.Direct(r) || r.URL.EscapedPath() != chatPath {
		t.Errorf("path %s, %v", r.URL.EscapedPath(), x.Err())
	}
}

func TestDirectWithoutAPick(t *testing.T) {
	w := newWorld(t, "gpu1:8000")
	x := w.ask(t, chatBody)
	if x.Direct(newRequest("")) || x.Err() == nil {
		t.Error("a request without a replica was directed")
	}
}

// The body can be had again only where the config allows a request to be sent
// again: a transport would otherwise do so on its own.
func TestDirectGivesTheBodyAgainOnlyIfAllowed(t *testing.T) {
	for _, allowed := range []bool{true, false} {
		x, r := direct(t, newRequest(`{"model":"m"}`), &catalog.Endpoint{}, nil)
		x.Model.Reliability.ResendAfterSend = allowed
		if !x.Direct(r) {
			t.Fatal(x.Err())
		}
		if got := r.GetBody != nil; got != allowed {
			t.Errorf("allowed %v, the body can be had again: %v", allowed, got)
		}
	}
}
