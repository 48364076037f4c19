package sim

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"
)

const (
	askChat   = `{"messages":[{"role":"user","content":"hello"}],"max_tokens":8,"ignore_eos":true}`
	askStream = `{"messages":[{"role":"user","content":"hello"}],"max_tokens":8,"ignore_eos":true,"stream":true}`
)

func setFault(t *testing.T, url, fault string) {
	t.Helper()
	must(t, "POST", url+"/sim/faults", fault)
}

func TestFaultError(t *testing.T) {
	_, srv := newTestEngine(t, fast())
	busy := readCapture(t, "err_queue_limit_503").body
	setFault(t, srv.URL, `{"mode":"error"}`)
	for _, body := range []string{askChat, askStream} {
		if status, _, got, err := send(t, "POST", srv.URL+"/v1/chat/completions", body); status != 503 || got != busy || err != nil {
			t.Errorf("got %d %s %v: want vLLM's 503", status, got, err)
		}
	}
	setFault(t, srv.URL, `{"mode":"error","status":429}`)
	if status, _, got, _ := send(t, "POST", srv.URL+"/v1/chat/completions", askChat); status != 429 || !strings.Contains(got, `"code":429`) {
		t.Errorf("got %d %s: want 429", status, got)
	}
	must(t, "GET", srv.URL+"/health", "")
	must(t, "GET", srv.URL+"/v1/models", "")
	setFault(t, srv.URL, `{"mode":"error","status":500,"path":"/health"}`)
	if status, _, _, _ := send(t, "GET", srv.URL+"/health", ""); status != 500 {
		t.Errorf("/health is %d: want 500", status)
	}
	must(t, "POST", srv.URL+"/v1/chat/completions", askChat)
	setFault(t, srv.URL, `{"mode":"none"}`)
	must(t, "GET", srv.URL+"/health", "")
}

func TestFaultShareAndCount(t *testing.T) {
	_, srv := newTestEngine(t, fast())
	tests := []struct {
		fault string
		want  string // the outcome of ten requests
	}{
		{`{"mode":"error","share":0.5}`, ".x.x.x.x.x"},
		{`{"mode":"error","share":0.25}`, "...x...x.."},
		{`{"mode":"error","count":3}`, "xxx......."},
		{`{"mode":"error","count":2,"share":0.5}`, ".x.x......"},
	}
	for _, tt := range tests {
		setFault(t, srv.URL, tt.fault)
		got := ""
		for range 10 {
			status, _, _, _ := send(t, "POST", srv.URL+"/v1/chat/completions", askChat)
			got += map[bool]string{true: ".", false: "x"}[status == 200]
		}
		if got != tt.want {
			t.Errorf("%s: %s: want %s", tt.fault, got, tt.want)
		}
		var state faultState
		if err := json.Unmarshal([]byte(must(t, "GET", srv.URL+"/sim/faults", "")), &state); err != nil || state.Hits != strings.Count(tt.want, "x") {
			t.Errorf("%s: %d hits shown, %v", tt.fault, state.Hits, err)
		}
	}
}

func TestFaultBreak(t *testing.T) {
	_, srv := newTestEngine(t, fast())
	tests := []struct {
		name, fault, body string
		status, chunks    int
	}{
		{"before the headers", `{"mode":"break","after_tokens":-1}`, askStream, 0, 0},
		{"before the headers of a whole answer", `{"mode":"break","after_tokens":-1}`, askChat, 0, 0},
		{"after three tokens", `{"mode":"break","after_tokens":3}`, askStream, 200, 4}, // the role is a chunk too
		{"before the first token", `{"mode":"break","after_tokens":0}`, askStream, 200, 1},
		{"within a whole answer", `{"mode":"break"}`, askChat, 200, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			setFault(t, srv.URL, tt.fault)
			status, _, got, err := send(t, "POST", srv.URL+"/v1/chat/completions", tt.body)
			if !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("error %v: want a reset connection", err)
			}
			if n := strings.Count(got, "data: {"); status != tt.status || n != tt.chunks || strings.Contains(got, "[DONE]") {
				t.Errorf("status %d, %d chunks: want %d, %d: %s", status, n, tt.status, tt.chunks, got)
			}
		})
	}
}

func TestFaultInbandError(t *testing.T) {
	e, srv := newTestEngine(t, fast())
	setFault(t, srv.URL, `{"mode":"inband_error","after_tokens":2}`)
	got := must(t, "POST", srv.URL+"/v1/chat/completions", askStream)
	lines := strings.Split(strings.TrimSpace(got), "\n\n")
	if len(lines) != 5 || lines[3]+"\n\n" != inbandError || lines[4] != "data: [DONE]" {
		t.Errorf("got %q: want the role, two tokens, the error frame and [DONE]", lines)
	}
	status, _, got, err := send(t, "POST", srv.URL+"/v1/chat/completions", askChat)
	if want := string(marshal(errDead.body())); status != 500 || got != want || err != nil {
		t.Errorf("got %d %s %v: want 500 %s", status, got, err, want)
	}
	if n := e.core.Load().inflight.Load(); n != 0 {
		t.Errorf("%d sequences still in flight", n)
	}
}

func TestFaultMetrics(t *testing.T) {
	_, srv := newTestEngine(t, fast())
	setFault(t, srv.URL, `{"mode":"no_metrics"}`)
	if status, _, body, _ := send(t, "GET", srv.URL+"/metrics", ""); status != 404 {
		t.Errorf("no_metrics: %d %s", status, body)
	}
	setFault(t, srv.URL, `{"mode":"redirect_metrics"}`)
	status, header, _, _ := send(t, "GET", srv.URL+"/metrics", "")
	if status != 307 || header.Get("Location") != srv.URL+"/metrics/" {
		t.Errorf("redirect_metrics: %d to %q", status, header.Get("Location"))
	}
	must(t, "GET", srv.URL+"/metrics/", "")
	setFault(t, srv.URL, `{"mode":"freeze_metrics"}`)
	before := must(t, "GET", srv.URL+"/metrics", "")
	must(t, "POST", srv.URL+"/v1/chat/completions", askChat)
	if must(t, "GET", srv.URL+"/metrics", "") != before {
		t.Error("freeze_metrics: the page changed")
	}
	setFault(t, srv.URL, `{"mode":"none"}`)
	if must(t, "GET", srv.URL+"/metrics", "") == before {
		t.Error("the page is frozen without the fault")
	}
}

func TestFaultCrashCutsAll(t *testing.T) {
	cfg := fast()
	cfg.Decode = never
	_, srv := newTestEngine(t, cfg)
	res := openStream(t, srv.URL, askStream)
	setFault(t, srv.URL, `{"mode":"crash"}`)
	if rest, err := res.rest(); err == nil {
		t.Errorf("the stream ended well: %q", rest)
	}
	if status, _, _, err := send(t, "GET", srv.URL+"/health", ""); err == nil {
		t.Errorf("/health answered %d", status)
	}
}

func TestFaultRejected(t *testing.T) {
	_, srv := newTestEngine(t, fast())
	for _, bad := range []string{
		``, `{"mode":"explode"}`, `{"mode":"error","status":200}`, `{"mode":"slow","factor":0}`, `{"mode":"break","after_tokens":-2}`,
		`{"mode":"error","share":0}`, `{"mode":"error","share":1.5}`, `{"mode":"error","count":-1}`, `{"mode":"crash","restart_after":"soon"}`,
		`{"mode":"error","typo":1}`, `{"mode":"none"} {}`,
	} {
		if status, _, body, _ := send(t, "POST", srv.URL+"/sim/faults", bad); status != http.StatusBadRequest {
			t.Errorf("%s: %d %s", bad, status, body)
		}
	}
}

func TestJournal(t *testing.T) {
	cfg := fast()
	cfg.Journal = 3
	_, srv := newTestEngine(t, cfg)
	for i := range 5 {
		must(t, "GET", srv.URL+"/health", "")
		must(t, "POST", srv.URL+"/v1/chat/completions?x=1", fmt.Sprintf(`{"messages":[],"user":"%d"}`, i), "Authorization", "Bearer k")
	}
	big := `{"messages":[],"user":"` + strings.Repeat("u", journalBody) + `"}`
	must(t, "POST", srv.URL+"/v1/chat/completions", big)
	var got requestList
	if err := json.Unmarshal([]byte(must(t, "GET", srv.URL+"/sim/requests", "")), &got); err != nil {
		t.Fatal(err)
	}
	if got.Total != 6 || len(got.Requests) != 3 {
		t.Fatalf("%d of %d requests kept: want 3 of 6", len(got.Requests), got.Total)
	}
	first, last := got.Requests[0], got.Requests[2]
	if first.Body != `{"messages":[],"user":"3"}` || first.Method != http.MethodPost || first.Path != "/v1/chat/completions" ||
		first.Query != "x=1" || first.Headers.Get("Authorization") != "Bearer k" || first.Truncated {
		t.Errorf("got %+v", first)
	}
	if !last.Truncated || last.BodyBytes != len(big) || last.Body != big[:journalBody] {
		t.Errorf("a big body: truncated %v, %d bytes of %d", last.Truncated, len(last.Body), last.BodyBytes)
	}
}
