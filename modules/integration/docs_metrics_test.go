package integration

import (
	"bufio"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/prometheus/client_golang/prometheus"
)

// TestDocsMetrics compares docs/metrics.md with what is registered, with the
// metrics page after all kinds of requests, and with a line of the access log.
func TestDocsMetrics(t *testing.T) {
	good := newEngine(t, events("text/event-stream",
		`data: {"choices":[{"index":0,"delta":{"content":"a"}}]}`+"\n\n", `data: {"choices":[{"index":0,"delta":{"content":"b"}}]}`+"\n\n",
		`data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}}`+"\n\n", "data: [DONE]\n\n"))
	good.setPage(page(1, 1, 0.5))
	dead := freePort(t)
	option := fmt.Sprintf("\t\tmodel m {\n\t\t\tendpoint %s %s\n\t\t\tadapter m-sql /sql\n\t\t}\n\t\tmodel gone {\n\t\t\tendpoint %[1]s\n\t\t}\n\t\tmodel spare {\n\t\t\tfallback m\n\t\t}", dead, good.Address)
	busy := &slots{finish: make(chan struct{})}
	option += fmt.Sprintf("\n\t\tmodel busy {\n\t\t\tadmission {\n\t\t\t\ttarget_waiting 0.01\n\t\t\t}\n\t\t\tendpoint %s {\n\t\t\t\tbatch_capacity 1\n\t\t\t}\n\t\t}", newEngine(t, busy.serve).Address)
	// One whose events are followed, and that has no tokens.
	told := simulate(t, "127.0.0.1:0", 64, "tcp://127.0.0.1:0", "tcp://127.0.0.1:0")
	option += "\n\t\tmodel told {\n\t\t\tprefix {\n\t\t\t\tevents on\n\t\t\t}\n\t\t\tendpoint " + told.address + " {\n\t\t\t\tserved_model m\n\t\t\t}\n\t\t}"
	site := "\tllm {\n\t\tdebug_headers on\n\t}"
	// Scrapes would take the dead replica out before a request was tried on it.
	g := start(t, "\t\tscrape_interval 5s\n"+option, site)
	res, text := g.post(t, "/v1/chat/completions", `{"model":"m","stream":true}`, "X-Llmgw-Replica", dead, "X-Request-Id", "mine")
	if res.StatusCode != http.StatusOK {
		t.Fatal(text)
	}
	g.post(t, "/v1/chat/completions", `{"model":"m-sql"}`)
	g.post(t, "/v1/chat/completions", `{"model":"gone"}`)
	g.post(t, "/v1/chat/completions", `{"model":"spare"}`)
	g.load(t, g.caddyfile(option, site))
	g.known(t, good)
	g.live(t, 1)
	g.post(t, "/v1/completions", `{"model":"told","prompt":[`+strings.Repeat("1,", 100)+`"x"]}`)
	var wg sync.WaitGroup
	for range 3 { // one that has waited, one that does
		wg.Go(func() { g.post(t, "/v1/chat/completions", `{"model":"busy"}`) })
	}
	eventually(t, "two wait", func() bool { return g.waiting(t) == 2 })
	busy.finish <- struct{}{}
	eventually(t, "one waits", func() bool { return g.waiting(t) == 1 })
	defer wg.Wait()
	defer close(busy.finish)

	documented := make(map[string][]string)
	written := doc(t, "docs/metrics.md")
	for name, cells := range rows(written) {
		if strings.HasPrefix(name, "llmgw_") {
			documented[name] = cells
		}
	}
	registered, shown := registeredMetrics(t), g.families(t)
	for name, labels := range registered {
		cells := documented[name]
		if len(cells) < 4 {
			t.Errorf("%s is not in docs/metrics.md", name)
			continue
		}
		if got := sorted(cells[2]); !slices.Equal(got, labels) {
			t.Errorf("%s has the labels %v, documented are %v", name, labels, got)
		}
		if cells[1] != shown[name] {
			t.Errorf("%s is documented as a %s, the metrics page has it as %q", name, cells[1], shown[name])
		}
	}
	for name := range documented {
		if _, ok := registered[name]; !ok {
			t.Errorf("%s is in docs/metrics.md and is not registered", name)
		}
	}
	caddys := []string{"level", "ts", "logger", "msg", "request", "bytes_read", "user_id", "duration", "size", "status", "resp_headers"}
	for field := range g.accessLog(t, res.Header.Get("X-Request-Id")) {
		if !slices.Contains(caddys, field) && !strings.Contains(written, "`"+field+"`") {
			t.Errorf("the log field %s is not in docs/metrics.md", field)
		}
	}
}

// registeredMetrics returns the gateway's metrics in the registry of the
// running config, with their labels. Those without a series are there too.
func registeredMetrics(t *testing.T) map[string][]string {
	t.Helper()
	all := make(chan *prometheus.Desc)
	ctx := caddy.ActiveContext()
	go func() {
		defer close(all)
		ctx.GetMetricsRegistry().Describe(all)
	}()
	form := regexp.MustCompile(`^Desc\{fqName: "(llmgw_\w+)",.* variableLabels: \{([\w,]*)\}\}$`)
	found := make(map[string][]string)
	for d := range all {
		if m := form.FindStringSubmatch(d.String()); m != nil {
			found[m[1]] = sorted(m[2])
		}
	}
	if len(found) < 10 {
		t.Fatalf("only %d of the gateway's metrics are registered: %v", len(found), found)
	}
	return found
}

// families returns the types of the metrics on the page.
func (g *gateway) families(t *testing.T) map[string]string {
	t.Helper()
	res, err := http.Get("http://" + g.Admin + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	found := make(map[string]string)
	for lines := bufio.NewScanner(res.Body); lines.Scan(); {
		var name, kind string
		if n, _ := fmt.Sscanf(lines.Text(), "# TYPE %s %s", &name, &kind); n == 2 {
			found[name] = kind
		}
	}
	return found
}
