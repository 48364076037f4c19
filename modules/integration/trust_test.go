package integration

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
)

const secret = "sk-llmgw-client-secret"

// keyed is a site that asks for a key.
const keyed = "\tllm {\n\t\tkey " + secret + " {\n\t\t\tname team-a\n\t\t\tmodels m\n\t\t}\n\t\tkey other-secret {\n\t\t\tmodels nothing\n\t\t}\n\t}"

// guarded is the model m on engines with a key of their own.
func guarded(engines ...*engine) string {
	option := strings.TrimSuffix(one(engines...), "\n\t\t}")
	return option + " {\n\t\t\t\tapi_key engine-secret\n\t\t\t}\n\t\t}"
}

func TestT11_TheClientsKeyReachesNoEngine(t *testing.T) {
	e := newEngine(t, answer)
	e.setPage(page(0, 0, 0))
	g := start(t, guarded(e), keyed)
	g.known(t, e)
	for _, headers := range [][]string{
		{"Authorization", "Bearer " + secret},
		{"Authorization", "bearer " + secret},
		{"X-Api-Key", secret},
		{"Api-Key", secret},
		{"Authorization", "Bearer " + secret, "X-Api-Key", secret, "Cookie", "k=" + secret, "Proxy-Authorization", "Bearer " + secret},
	} {
		if res, text := g.post(t, "/v1/chat/completions", request, headers...); res.StatusCode != http.StatusOK {
			t.Errorf("%v: %s %s", headers[0], res.Status, text)
		}
	}
	for _, r := range e.all() {
		if dump := fmt.Sprint(r); strings.Contains(dump, secret) {
			t.Errorf("%s got the client's key: %v", r.Path, r.Header)
		}
		if got := r.Header.Get("Authorization"); got != "Bearer engine-secret" {
			t.Errorf("%s got Authorization %q", r.Path, got)
		}
	}
	if n := len(e.got()); n != 5 {
		t.Errorf("%d requests reached the engine", n)
	}
	if text, err := os.ReadFile(g.logs); err != nil || strings.Contains(string(text), secret) || !strings.Contains(string(text), "handled request") {
		t.Errorf("the log holds the client's key, or nothing: %v", err)
	}
}

func TestT11_TheEnginesKeyReachesNoClient(t *testing.T) {
	status := http.StatusUnauthorized
	e := newEngine(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Set-Cookie", "k=engine-secret")
		w.WriteHeader(status)
		fmt.Fprintf(w, `{"error":{"message":"no good: %s","type":"x","code":1}}`, r.Header.Get("Authorization"))
	})
	g := start(t, guarded(e), "\tllm")
	for status = range map[int]bool{http.StatusUnauthorized: true, http.StatusBadRequest: true, http.StatusInternalServerError: true} {
		res, text := g.post(t, "/v1/chat/completions", request)
		if strings.Contains(text, "engine-secret") || strings.Contains(fmt.Sprint(res.Header), "engine-secret") {
			t.Errorf("%d: the client got %v %s", status, res.Header, text)
		}
		// A wrong engine key is the gateway's fault: to the client it must not
		// look as if its own key were bad.
		want := status
		if status == http.StatusUnauthorized {
			want = http.StatusBadGateway
		}
		isError(t, res, text, want)
	}
	for _, r := range []string{secret, "engine-secret"} {
		if text, _ := os.ReadFile(g.logs); strings.Contains(string(text), r) {
			t.Errorf("the log holds a key")
		}
	}
}

func TestKeys(t *testing.T) {
	e := newEngine(t, answer)
	g := start(t, one(e), keyed)
	for _, header := range []string{"X-Nothing: 1", "Authorization: Bearer wrong", "Authorization: " + secret, "Authorization: Basic " + secret, "X-Api-Key: " + secret + "x"} {
		// The answer comes although the body never does: nothing of it is read.
		res, text := g.raw(t, "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n"+header+"\r\n\r\n")
		if code := isError(t, res, text, http.StatusUnauthorized); code != "invalid_api_key" {
			t.Errorf("%v: code %q", header, code)
		}
		if strings.Contains(text, secret) || strings.Contains(text, "wrong") {
			t.Errorf("the answer repeats the key: %s", text)
		}
	}
	// A key that may not use the model cannot tell it from one that is not there.
	res, text := g.post(t, "/v1/chat/completions", request, "X-Api-Key", "other-secret")
	isError(t, res, text, http.StatusNotFound)
	_, unknown := g.post(t, "/v1/chat/completions", strings.Replace(request, `"m"`, `"z"`, 1), "X-Api-Key", "other-secret")
	if text != strings.Replace(unknown, "`z`", "`m`", 1) {
		t.Errorf("%s\n%s", text, unknown)
	}
	for key, want := range map[string]bool{secret: true, "other-secret": false} {
		req := g.request(t, t.Context(), http.MethodGet, "/v1/models", "", "Authorization", "Bearer "+key)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if text := readAll(t, res.Body); strings.Contains(text, `"id":"m"`) != want {
			t.Errorf("models: %s", text)
		}
		res.Body.Close()
	}
	if n := len(e.got()); n != 0 {
		t.Errorf("%d requests reached the engine", n)
	}
	res, _ = g.post(t, "/v1/chat/completions", request, "X-Api-Key", secret)
	if entry := g.accessLog(t, res.Header.Get("X-Request-Id")); entry["key"] != "team-a" {
		t.Errorf("logged key %v", entry["key"])
	}
}

func TestT12_ControlHeadersAreNotBelieved(t *testing.T) {
	a, b := newEngine(t, answer), newEngine(t, answer)
	for name, site := range map[string]string{"open": "\tllm", "keyed": keyed} {
		t.Run(name, func(t *testing.T) {
			g := start(t, one(a, b), site)
			headers := []string{"X-Api-Key", secret}
			for _, h := range []string{
				"X-Llmgw-Replica", "x-llmgw-replica", "X_Llmgw_Replica", "X-LLMGW-Profile", "x_llmgw-tenant", "X-Llmgw-Band",
				"X-Llmgw-Queue-Ms", "X-Llmgw-Anything",
			} {
				headers = append(headers, h, b.Address, h, "debug")
			}
			before := len(a.got()) + len(b.got())
			counts := map[string]int{}
			for range 40 {
				res, _ := g.post(t, "/v1/chat/completions", request, headers...)
				counts[res.Header.Get("X-Llmgw-Replica")]++
				if len(res.Header["X-Llmgw-Queue-Ms"]) != 1 || res.Header["X-Llmgw-Anything"] != nil {
					t.Errorf("answered with %v", res.Header)
				}
			}
			if counts[a.Address] == 0 {
				t.Error("the client chose the replica")
			}
			if n := len(a.got()) + len(b.got()) - before; n != 40 {
				t.Errorf("%d of 40 arrived", n)
			}
			for _, r := range append(a.got(), b.got()...) {
				for h := range r.Header {
					if strings.HasPrefix(strings.ReplaceAll(strings.ToLower(h), "_", "-"), "x-llmgw") {
						t.Errorf("the engine got %s", h)
					}
				}
			}
		})
	}
}

func TestDebugHeadersPinAReplica(t *testing.T) {
	a, b := newEngine(t, answer), newEngine(t, answer)
	g := start(t, one(a, b), "\tllm {\n\t\tdebug_headers on\n\t}")
	pin := func() string {
		res, _ := g.post(t, "/v1/chat/completions", request, "X-Llmgw-Replica", b.Address)
		return res.Header.Get("X-Llmgw-Replica")
	}
	for range 6 {
		if got := pin(); got != b.Address {
			t.Fatalf("pinned to %s, went to %s", b.Address, got)
		}
	}
	g.admin(t, "/llmgw/replicas/drain", fmt.Sprintf(`{"replica":%q}`, b.Address), nil)
	if got := pin(); got != a.Address {
		t.Errorf("a pin to a draining replica went to %s", got)
	}
	res, text := g.post(t, "/v1/chat/completions", request, "X-Llmgw-Profile", "nonsense")
	isError(t, res, text, http.StatusBadRequest)
	res, text = g.post(t, "/v1/chat/completions", request, "X-Llmgw-Deadline-Ms", "soon")
	isError(t, res, text, http.StatusBadRequest)
}

func TestT14_RequestIDs(t *testing.T) {
	e := newEngine(t, answer)
	g := start(t, one(e), "\tllm")
	ids := map[string]bool{}
	for _, id := range []string{"", "my-id.1:2_3", "my-id.1:2_3", strings.Repeat("a", 5000), "tab\tbed", "esc", "a%0d%0ab", "ünïcode"} {
		res, _ := g.post(t, "/v1/chat/completions", request, "X-Request-Id", id)
		own := res.Header.Get("X-Request-Id")
		if own == id || ids[own] || !strings.HasPrefix(own, "req_") || len(res.Header["X-Request-Id"]) != 1 {
			t.Errorf("id %q: answered with %q", id, res.Header["X-Request-Id"])
		}
		ids[own] = true
		entry := g.accessLog(t, own)
		client, _ := entry["client_request_id"].(string)
		if want := map[bool]string{true: id}[id == "my-id.1:2_3" || id == "esc"]; client != want {
			t.Errorf("id %q: logged %q", id, client)
		}
		got := e.got()
		if sent := got[len(got)-1].Header.Get("X-Request-Id"); sent != own {
			t.Errorf("the engine got id %q", sent)
		}
	}
	res, text := g.post(t, "/v1/chat/completions", `{"model":"a\nb\u001b[31m"}`)
	isError(t, res, text, http.StatusNotFound)
	entry := g.accessLog(t, res.Header.Get("X-Request-Id")) // which is one line
	if entry["requested_model"] != "a\nb\x1b[31m" || entry["model"] != "_other" {
		t.Errorf("logged %v", entry)
	}
	if _, ok := g.metric(t, `llmgw_requests_total{model="_other",pool="",status="404"}`); !ok {
		t.Error("an unknown model has no series _other")
	}
}

func TestS17_WebSockets(t *testing.T) {
	e := newEngine(t, func(w http.ResponseWriter, r *http.Request) {
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		line, _ := rw.ReadString('\n')
		io.WriteString(conn, "echo "+line)
	})
	option := fmt.Sprintf("\t\tmodel m {\n\t\t\tendpoint %s {\n\t\t\t\tserved_model real-name\n\t\t\t}\n\t\t}", e.Address)
	g := start(t, option, keyed)
	handshake := func(path, key string) string {
		return fmt.Sprintf("GET %s HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nAuthorization: Bearer %s\r\n\r\n", path, key)
	}
	for _, c := range []struct {
		path, key string
		status    int
	}{
		{"/v1/realtime?model=m", "wrong", http.StatusUnauthorized},
		{"/v1/realtime?model=m", "other-secret", http.StatusNotFound},
		{"/v1/realtime", secret, http.StatusBadRequest},
		{"/v1/realtime?model=m&model=n", secret, http.StatusBadRequest},
		{"/v1/chat/completions", secret, http.StatusMethodNotAllowed},
	} {
		res, text := g.raw(t, handshake(c.path, c.key))
		isError(t, res, text, c.status)
	}
	if n := len(e.got()); n != 0 {
		t.Fatalf("%d unauthenticated upgrades reached the engine", n)
	}
	conn := g.dial(t)
	io.WriteString(conn, strings.Replace(handshake("/v1/realtime?model=m&intent=x&api_key="+secret, secret),
		"Authorization: Bearer ", "Sec-WebSocket-Protocol: realtime, openai-insecure-api-key.", 1))
	r := bufio.NewReader(conn)
	res, err := http.ReadResponse(r, nil)
	if err != nil || res.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("%v, %v", res, err)
	}
	// The config is replaced while the socket is open.
	g.load(t, g.caddyfile(option, keyed+"\n\theader X-New 1"))
	io.WriteString(conn, "hello\n")
	if line, err := r.ReadString('\n'); line != "echo hello\n" {
		t.Errorf("got %q, %v", line, err)
	}
	if q := e.got()[0].Query; !strings.Contains(q, "model=real-name") || !strings.Contains(q, "intent=x") || strings.Contains(q, secret) {
		t.Errorf("the engine got ?%s", q)
	}
	if h := e.got()[0].Header; strings.Contains(fmt.Sprint(h), secret) || h.Get("Sec-WebSocket-Protocol") != "realtime" {
		t.Errorf("the engine got the client's key, or lost a subprotocol: %v", h)
	}
	conn.Close()
	eventually(t, "the WebSocket is in the access log", func() bool {
		log, err := os.ReadFile(g.logs)
		return err == nil && strings.Contains(string(log), "intent=x")
	})
	if log, _ := os.ReadFile(g.logs); strings.Contains(string(log), secret) {
		t.Error("the log has the client's key")
	}
	// What no request can be made of is no replica's fault.
	io.WriteString(g.dial(t), strings.Replace(handshake("/v1/realtime?model=m", secret), "\r\n\r\n", "\r\nTransfer-Encoding: chunked\r\nTrailer: bad name\r\n\r\n0\r\n\r\n", 1))
	eventually(t, "it has gone", func() bool { return len(e.got()) == 2 || g.replicas(t)[e.Address].State != "ready" })
	if r := g.replicas(t)[e.Address]; r.State != "ready" {
		t.Errorf("the replica is %s: %s", r.State, r.Reason)
	}
	res2, text := g.post(t, "/v1/realtime?model=m", "", "Authorization", "Bearer "+secret)
	isError(t, res2, text, http.StatusBadRequest)
}

// TestLoopbackOnly: without keys only this machine is served, whatever a proxy
// or a client says.
func TestLoopbackOnly(t *testing.T) {
	e := newEngine(t, answer)
	g := start(t, one(e), "\tllm")
	for _, c := range []struct {
		status  int
		headers []string
	}{
		{http.StatusOK, nil},
		{http.StatusOK, []string{"X-Forwarded-For", "127.0.0.1"}},
		{http.StatusOK, []string{"X-Forwarded-For", "::1, 127.0.0.1"}},
		{http.StatusUnauthorized, []string{"X-Forwarded-For", "192.0.2.7"}},
		{http.StatusUnauthorized, []string{"X-Forwarded-For", "127.0.0.1, 192.0.2.7"}},
		{http.StatusUnauthorized, []string{"X-Forwarded-For", "127.0.0.1", "X-Forwarded-For", "192.0.2.7"}},
		{http.StatusUnauthorized, []string{"X-Forwarded-For", "nonsense"}},
		{http.StatusUnauthorized, []string{"X-Real-Ip", "192.0.2.7"}},
		{http.StatusUnauthorized, []string{"Forwarded", "for=127.0.0.1"}},
	} {
		res, text := g.post(t, "/v1/chat/completions", request, c.headers...)
		if res.StatusCode != c.status {
			t.Errorf("%v: %s %s", c.headers, res.Status, text)
		}
	}
	if n := len(e.got()); n != 3 {
		t.Errorf("%d requests reached the engine, want 3", n)
	}
	// Caddy's proxy overwrites the header before it asks for an upstream.
	g.load(t, g.caddyfile(one(e), "\treverse_proxy {\n\t\tdynamic llm\n\t\ttransport llm\n\t}"))
	for address, status := range map[string]int{"127.0.0.1": http.StatusOK, "192.0.2.7": http.StatusServiceUnavailable} {
		if res, text := g.post(t, "/v1/chat/completions", request, "X-Forwarded-For", address); res.StatusCode != status {
			t.Errorf("%s: %s %s", address, res.Status, text)
		}
	}
	g.load(t, g.caddyfile(one(e), "\tllm {\n\t\topen\n\t}"))
	eventually(t, "an open site serves all", func() bool {
		res, err := http.DefaultClient.Do(g.request(t, t.Context(), http.MethodPost, "/v1/chat/completions", request, "X-Forwarded-For", "192.0.2.7"))
		if err != nil {
			return false
		}
		defer res.Body.Close()
		return res.StatusCode == http.StatusOK
	})
}
