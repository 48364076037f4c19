package integration

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	_ "github.com/caddyserver/caddy/v2/modules/standard"

	_ "github.com/llmgw/llmgw"
	"github.com/llmgw/llmgw/modules/llmcmd"
)

// asProgram makes the test binary behave like llmgw itself, so that tests can
// start whole processes without building Caddy once more.
const asProgram = "LLMGW_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) == "1" {
		caddy.CustomBinaryName = "llmgw"
		caddycmd.Main()
		return
	}
	// Caddy writes its autosaved config and certificates below these.
	dir, err := os.MkdirTemp("", "llmgw-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Setenv("XDG_DATA_HOME", dir)
	os.Setenv("XDG_CONFIG_HOME", dir)
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// gateway is a running Caddy.
type gateway struct {
	URL, Admin string
	listen     string
	logs       string // file
	unlogged   bool   // the site has no access log
}

// deadline bounds every wait in these tests.
const deadline = time.Minute

// given are the addresses that freePort has returned: the system gives a port
// that was let go of to the next who asks.
var given = make(map[string]bool)

// freePort returns a loopback address that nobody listens on.
func freePort(t *testing.T) string {
	t.Helper()
	for {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		address := ln.Addr().String()
		ln.Close()
		if !given[address] {
			given[address] = true
			return address
		}
	}
}

// start runs Caddy with a config of these lines in the global option `llmgw`,
// and these in the site. Access logs go to a file.
func start(t *testing.T, option, site string) *gateway {
	t.Helper()
	g := newGateway(t)
	g.run(t, g.caddyfile(option, site))
	return g
}

// newGateway returns one that does not run yet.
func newGateway(t *testing.T) *gateway {
	t.Helper()
	listen := freePort(t)
	return &gateway{URL: "http://" + listen, listen: listen, Admin: freePort(t), logs: t.TempDir() + "/log"}
}

// run runs Caddy with a whole Caddyfile.
func (g *gateway) run(t *testing.T, text string) {
	t.Helper()
	g.load(t, text)
	t.Cleanup(func() {
		if err := caddy.Stop(); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
}

func (g *gateway) caddyfile(option, site string) string {
	if !g.unlogged {
		site = "\tlog\n" + site
	}
	return fmt.Sprintf(`{
	admin %s
	persist_config off
	auto_https off
	log {
		output file %s {
			mode 0600
		}
		level DEBUG
%s	}
	llmgw {
		scrape_interval 100ms
%s
	}
}
http://%s {
%s
}`, g.Admin, g.logs, llmcmd.LogFormat, option, g.listen, site)
}

func adapt(text string) ([]byte, error) {
	cfg, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(text), map[string]any{"filename": "Caddyfile"})
	return cfg, err
}

func (g *gateway) load(t *testing.T, text string) {
	t.Helper()
	cfg, err := adapt(text)
	if err != nil {
		t.Fatalf("adapt: %v\n%s", err, text)
	}
	if err := caddy.Load(cfg, true); err != nil {
		t.Fatalf("load: %v\n%s", err, text)
	}
	g.settle(t)
}

// settle waits until an old server has given up the address, after a reload: Caddy
// closes its listener a moment later, and what has connected to that is lost.
func (g *gateway) settle(t *testing.T) {
	t.Helper()
	// The old server closes its idle connections, and Go's client does not
	// repeat a POST that meets one.
	http.DefaultClient.CloseIdleConnections()
	_, port, err := net.SplitHostPort(g.listen)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	// A socket that listens, in Linux' table of all: the state is 0A.
	listening := regexp.MustCompile(fmt.Sprintf(`(?m)^ *\d+: [0-9A-F]+:%04X [0-9A-F]+:[0-9A-F]+ 0A `, n))
	eventually(t, "one server listens", func() bool {
		table, err := os.ReadFile("/proc/net/tcp")
		return err != nil || len(listening.FindAll(table, 2)) < 2
	})
}

// post sends a body and returns the answer with its whole text.
func (g *gateway) post(t *testing.T, path, body string, headers ...string) (*http.Response, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	res, err := http.DefaultClient.Do(g.request(t, ctx, http.MethodPost, path, body, headers...))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatalf("reading the answer: %v, after %q", err, text)
	}
	return res, string(text)
}

func (g *gateway) request(t *testing.T, ctx context.Context, method, path, body string, headers ...string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, method, g.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	return req
}

// dial opens a connection to the gateway.
func (g *gateway) dial(t *testing.T) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", g.listen)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(deadline))
	return conn
}

// raw sends bytes as they are and returns the answer with its whole text.
func (g *gateway) raw(t *testing.T, text string) (*http.Response, string) {
	t.Helper()
	conn := g.dial(t)
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	return res, readAll(t, res.Body)
}

// admin asks the admin API; body "" is a GET. v may be nil.
func (g *gateway) admin(t *testing.T, path, body string, v any) int {
	t.Helper()
	method := http.MethodGet
	if body != "" {
		method = http.MethodPost
	}
	req, err := http.NewRequest(method, "http://"+g.Admin+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	if v != nil {
		if err := json.Unmarshal(text, v); err != nil {
			t.Fatalf("%s: %v in %s", path, err, text)
		}
	}
	return res.StatusCode
}

// metric returns the value of a series on the admin API's metrics page, by its
// name with labels; ok is false if it is not there.
func (g *gateway) metric(t *testing.T, series string) (value float64, ok bool) {
	t.Helper()
	value, ok, err := g.tryMetric(series)
	if err != nil {
		t.Fatal(err)
	}
	return value, ok
}

// tryMetric does so where the page may not be there: Caddy loses connections that
// are opened in the moment of a reload.
func (g *gateway) tryMetric(series string) (value float64, ok bool, err error) {
	res, err := http.Get("http://" + g.Admin + "/metrics")
	if err != nil {
		return 0, false, err
	}
	defer res.Body.Close()
	lines := bufio.NewScanner(res.Body)
	for lines.Scan() {
		if rest, found := strings.CutPrefix(lines.Text(), series+" "); found {
			_, err := fmt.Sscan(rest, &value)
			return value, true, err
		}
	}
	return 0, false, lines.Err()
}

// accessLog waits for the access-log line that has the request id and returns
// it.
func (g *gateway) accessLog(t *testing.T, id string) map[string]any {
	t.Helper()
	var found map[string]any
	eventually(t, "the access log has "+id, func() bool {
		text, err := os.ReadFile(g.logs)
		if err != nil {
			return false
		}
		for line := range bytes.Lines(text) {
			var entry map[string]any
			if json.Unmarshal(line, &entry) == nil && entry["request_id"] == id {
				found = entry
				return true
			}
		}
		return false
	})
	return found
}

// eventually polls until the condition holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(deadline); !holds(); {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", deadline, what)
		}
		<-time.After(5 * time.Millisecond)
	}
}

// isError checks that an answer is an error in OpenAI's shape and returns its
// code.
func isError(t *testing.T, res *http.Response, text string, status int) (code string) {
	t.Helper()
	var body struct {
		Error *struct {
			Message *string          `json:"message"`
			Type    *string          `json:"type"`
			Param   *json.RawMessage `json:"param"`
			Code    json.RawMessage  `json:"code"`
		} `json:"error"`
	}
	err := json.Unmarshal([]byte(text), &body)
	if err != nil || body.Error == nil || body.Error.Message == nil || *body.Error.Message == "" || body.Error.Type == nil || body.Error.Code == nil {
		t.Fatalf("not an error in OpenAI's shape: %s", text)
	}
	if res.StatusCode != status {
		t.Fatalf("status %d, want %d: %s", res.StatusCode, status, text)
	}
	if res.Header.Get("X-Request-Id") == "" {
		t.Error("an error without a request id")
	}
	_ = json.Unmarshal(body.Error.Code, &code)
	return code
}
