package integration

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// program is llmgw as a process of its own.
type program struct {
	cmd    *exec.Cmd
	mu     sync.Mutex
	output bytes.Buffer
	ended  chan error
}

// run starts llmgw with these arguments. It is killed when the test ends.
func run(t *testing.T, args ...string) *program {
	t.Helper()
	p := &program{ended: make(chan error, 1)}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p.cmd = exec.Command(exe, args...)
	p.cmd.Env = append(os.Environ(), asProgram+"=1")
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p.cmd.Stdout, p.cmd.Stderr = w, w
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	go func() {
		for lines := bufio.NewReader(r); ; {
			line, err := lines.ReadString('\n')
			p.mu.Lock()
			p.output.WriteString(line)
			p.mu.Unlock()
			if err != nil {
				p.ended <- p.cmd.Wait()
				return
			}
		}
	}()
	t.Cleanup(func() {
		_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
		r.Close()
	})
	return p
}

func (p *program) text() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.output.String()
}

// says waits until the output matches and returns the match.
func (p *program) says(t *testing.T, pattern string) []string {
	t.Helper()
	re := regexp.MustCompile(pattern)
	var m []string
	defer func() {
		if t.Failed() {
			t.Log(p.text())
		}
	}()
	eventually(t, "the program says "+pattern, func() bool {
		m = re.FindStringSubmatch(p.text())
		return m != nil
	})
	return m
}

// interrupt sends Ctrl-C and waits for a clean end.
func (p *program) interrupt(t *testing.T) {
	t.Helper()
	if err := p.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	select {
	case err := <-p.ended:
		if err != nil {
			t.Errorf("ended with %v\n%s", err, p.text())
		}
	case <-ctx.Done():
		t.Errorf("still runs after Ctrl-C\n%s", p.text())
	}
}

// TestDemo is `make run`: the printed command streams, Ctrl-C ends everything.
func TestDemo(t *testing.T) {
	listen := freePort(t)
	p := run(t, "demo", "--from", listen)
	sims := p.says(t, `3 simulated replicas: (\S+) (\S+) (\S+)`)[1:]
	command := p.says(t, `(?s)(curl -N .*?'\n?.*?\}')\n`)[1]
	out, err := exec.CommandContext(t.Context(), "sh", "-c", command+" -sS --max-time 30").CombinedOutput()
	if err != nil || !strings.Contains(string(out), `"delta":{"content":`) || !strings.HasSuffix(strings.TrimSpace(string(out)), "data: [DONE]") {
		t.Errorf("%s\n%v: %s", command, err, out)
	}
	replicas := p.says(t, `replicas --address (\S+)`)[1]
	if n := len((&gateway{Admin: replicas}).replicas(t)); n != 3 {
		t.Errorf("%d replicas listed", n)
	}
	p.interrupt(t)
	for _, address := range append(sims, listen) {
		if res, err := http.Get("http://" + address + "/health"); err == nil {
			res.Body.Close()
			t.Errorf("%s still answers", address)
		}
	}
}

// TestExampleRuns starts the Caddyfile that is shipped, before simulated
// engines at the ports that it names.
func TestExampleRuns(t *testing.T) {
	b, err := os.ReadFile("../../Caddyfile.example")
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	for _, port := range []string{"8001", "8002", "8003"} {
		sim := run(t, "sim-engine", "--listen", "127.0.0.1:0", "--decode", "1ms")
		address := sim.says(t, `http://(\S+)`)[1]
		if !strings.Contains(text, "127.0.0.1:"+port) {
			t.Fatalf("the example does not name port %s", port)
		}
		text = strings.ReplaceAll(text, "127.0.0.1:"+port, address)
	}
	listen, admin := freePort(t), freePort(t)
	text = strings.Replace(text, "\n:8080 {", "\n"+strings.TrimPrefix(listen, "127.0.0.1")+" {", 1)
	text = strings.Replace(text, "{\n\tgrace_period", "{\n\tadmin "+admin+"\n\tgrace_period", 1)
	file := filepath.Join(t.TempDir(), "Caddyfile")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p := run(t, "run", "--config", file)
	g := &gateway{URL: "http://" + listen, Admin: admin, listen: listen}
	eventually(t, "the gateway serves", func() bool {
		res, err := http.Get(g.URL + "/v1/models")
		if err != nil {
			return false
		}
		res.Body.Close()
		return res.StatusCode == http.StatusOK
	})
	res, answer := g.post(t, "/v1/chat/completions", `{"model":"gpt-4o-mini","max_tokens":4,"messages":[{"role":"user","content":"x"}]}`)
	if res.StatusCode != http.StatusOK || res.Header.Get("X-Llmgw-Pool") != "fast" {
		t.Errorf("%s %s, pool %s", res.Status, answer, res.Header.Get("X-Llmgw-Pool"))
	}
	p.says(t, `"msg":"handled request".*"outcome":"ok"`)
	operatorCommands(t, g)
	p.interrupt(t)
}

// operatorCommands tries the commands that ask a running gateway.
func operatorCommands(t *testing.T, g *gateway) {
	t.Helper()
	ask := func(args ...string) string {
		exe, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), exe, append(args, "--address", g.Admin)...)
		cmd.Env = append(os.Environ(), asProgram+"=1")
		out, err := cmd.CombinedOutput()
		if err != nil {
			return fmt.Sprintf("%s\n%v", out, err)
		}
		return string(out)
	}
	eventually(t, "the replicas' metrics are read", func() bool {
		return strings.Count(ask("replicas"), " ok") == 3
	})
	list := ask("replicas")
	replica := regexp.MustCompile(`(?m)^(127\S+) +ready +fast`).FindStringSubmatch(list)
	if replica == nil {
		t.Fatalf("replicas:\n%s", list)
	}
	if out := ask("drain", replica[1]); !strings.Contains(out, "is draining, with 0 requests in flight") {
		t.Errorf("drain: %s", out)
	}
	out := ask("explain", "sim")
	if !strings.Contains(out, "dropped: draining") || !strings.Contains(out, "dropped: other_pool") || !strings.Contains(out, "queue 1.00 x 1") {
		t.Errorf("explain:\n%s", out)
	}
	if out := ask("undrain", replica[1]); !strings.Contains(out, "is ready") {
		t.Errorf("undrain: %s", out)
	}
	if out := ask("drain", "nobody:1"); !strings.Contains(out, `no replica`) || !strings.Contains(out, "exit status 1") {
		t.Errorf("drain of what is not there: %s", out)
	}
	if out := ask("explain", "nonsense"); !strings.Contains(out, "not found") {
		t.Errorf("explain of what is not there: %s", out)
	}
	body := filepath.Join(t.TempDir(), "body.json")
	if err := os.WriteFile(body, []byte(`{"model":"sim","user":"u","messages":[]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if out := ask("explain", "--file", body, "--profile", "batch", "--json"); !strings.Contains(out, `"profile":"batch"`) {
		t.Errorf("explain --json: %s", out)
	}
}

func TestProxyCommand(t *testing.T) {
	e := newEngine(t, answer)
	listen := freePort(t)
	p := run(t, "proxy", "--from", listen, "--to", e.Address, "--key", "k", "--api-key", "engine-secret", "--admin", "off")
	g := &gateway{URL: "http://" + listen, listen: listen}
	eventually(t, "the model is served", func() bool {
		req, err := http.NewRequest(http.MethodGet, g.URL+"/v1/models/m", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer k")
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return false
		}
		defer res.Body.Close()
		io.Copy(io.Discard, res.Body)
		return res.StatusCode == http.StatusOK
	})
	if res, text := g.post(t, "/v1/chat/completions", request, "Authorization", "Bearer k"); res.StatusCode != http.StatusOK {
		t.Errorf("%s %s", res.Status, text)
	}
	res, text := g.post(t, "/v1/chat/completions", request)
	isError(t, res, text, http.StatusUnauthorized)
	if got := e.got()[0].Header.Get("Authorization"); got != "Bearer engine-secret" {
		t.Errorf("the engine got %q", got)
	}
	p.interrupt(t)

	bad := run(t, "proxy", "--from", listen, "--to", "ftp://x")
	bad.says(t, `scheme .*ftp.* is not supported`)
	if err := <-bad.ended; err == nil {
		t.Error("a bad address ended with success")
	}
}

// TestTakenPort: Caddy would share it with another Caddy, and each would get
// some of the requests.
func TestTakenPort(t *testing.T) {
	e := newEngine(t, answer)
	g := start(t, one(e), "\tllm")
	for _, args := range [][]string{{"demo", "--from", g.listen}, {"proxy", "--from", g.listen, "--to", e.Address, "--admin", "off"}} {
		p := run(t, args...)
		p.says(t, "address already in use")
		if err := <-p.ended; err == nil {
			t.Errorf("%s ended with success", args[0])
		}
	}
}
