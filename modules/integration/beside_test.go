package integration

import (
	"context"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
)

// TestC10_TwoServersInOneConfig share what is known of the replicas.
func TestC10_TwoServersInOneConfig(t *testing.T) {
	gate := make(chan struct{})
	a, b := newEngine(t, gated(gate)), newEngine(t, gated(gate))
	g := start(t, one(a, b), "\tllm")
	second := freePort(t)
	both := g.caddyfile(one(a, b), "\tllm") + "\nhttp://" + second + " {\n\tllm {\n\t\tkey k\n\t}\n}\n"
	g.reload(t, both)
	other := &gateway{URL: "http://" + second, Admin: g.Admin, listen: second}

	// The second server knows what the first one has sent.
	stream := g.hold(t)
	for range 5 {
		res, text := other.post(t, "/v1/chat/completions", request, "Authorization", "Bearer k")
		if res.StatusCode != http.StatusOK || res.Header.Get("X-Llmgw-Replica") == stream.replica() {
			t.Errorf("%s from %s, and %s has a stream: %s", res.Status, res.Header.Get("X-Llmgw-Replica"), stream.replica(), text)
		}
	}
	// Each has its own keys.
	res, text := other.post(t, "/v1/chat/completions", request)
	isError(t, res, text, http.StatusUnauthorized)
	g.reload(t, strings.Replace(both, "\tllm {", "\theader X-Version 2\n\tllm {", 1))
	if n := g.replicas(t)[stream.replica()].Inflight; n != 1 {
		t.Errorf("%d in flight after a reload, want the stream", n)
	}
	// One of the two goes, and nothing of the other with it.
	g.reload(t, g.caddyfile(one(a, b), "\tllm"))
	close(gate)
	stream.end(t)
	eventually(t, "all are counted", func() bool {
		v, _ := g.metric(t, `llmgw_outcomes_total{model="m",outcome="ok"}`)
		return v == 6
	})
	for id, r := range g.replicas(t) {
		if r.Inflight != 0 {
			t.Errorf("%s: %d in flight", id, r.Inflight)
		}
	}
}

// TestC10_CommandsBesideARunningServer: validate and adapt open no port, ask no
// engine and write nothing, and a forced reload disturbs nobody.
func TestC10_CommandsBesideARunningServer(t *testing.T) {
	var connections atomic.Int32
	unasked := newEngineAt(t, "127.0.0.1:0", answer, func(s *http.Server) {
		s.ConnState = func(_ net.Conn, state http.ConnState) {
			if state == http.StateNew {
				connections.Add(1)
			}
		}
	})
	e := newEngine(t, answer)
	g := start(t, one(e), "\tllm")
	g.admin(t, "/llmgw/replicas/drain", fmt.Sprintf(`{"replica":%q}`, e.Address), nil)
	// A port that cannot be had, for the server and for the admin API.
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	home := t.TempDir()
	text := fmt.Sprintf("{\n\tadmin %s\n\tllmgw {\n\t\tendpoint %s\n%s\n\t}\n}\nhttp://%s {\n\tllm\n}\nhttp://%s {\n\tllm\n}\n",
		taken.Addr(), unasked.Address, strings.Replace(one(unasked), "model m", "model n", 1), taken.Addr(), g.listen)
	write := func(name, text string) string {
		file := filepath.Join(home, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	file, running := write("Caddyfile", text), write("running", g.caddyfile(one(e), "\tllm"))
	before := files(t, home)
	command := func(args ...string) string {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), deadline)
		defer cancel()
		exe, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(ctx, exe, args...)
		cmd.Dir = home
		cmd.Env = append(os.Environ(), asProgram+"=1", "HOME="+home, "XDG_DATA_HOME="+home, "XDG_CONFIG_HOME="+home)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v\n%s", args[0], err, out)
		}
		return string(out)
	}
	if out := command("validate", "--config", file, "--adapter", "caddyfile"); !strings.Contains(out, "Valid configuration") {
		t.Errorf("validate: %s", out)
	}
	if out := command("adapt", "--config", file, "--adapter", "caddyfile", "--validate"); !strings.Contains(out, unasked.Address) {
		t.Errorf("adapt: %s", out)
	}
	if after := files(t, home); after != before {
		t.Errorf("files before:\n%safter:\n%s", before, after)
	}
	if n := connections.Load(); n != 0 {
		t.Errorf("the engine got %d connections", n)
	}
	command("reload", "--config", running, "--adapter", "caddyfile", "--address", g.Admin, "--force")
	if r := g.replicas(t)[e.Address]; r.State != "draining" {
		t.Errorf("the drain is forgotten: %s", r.State)
	}
	g.admin(t, "/llmgw/replicas/undrain", fmt.Sprintf(`{"replica":%q}`, e.Address), nil)
	if status, text := g.fresh(t, request); status != http.StatusOK {
		t.Errorf("%d %s", status, text)
	}
}

// files lists what is below a folder, with sizes.
func files(t *testing.T, dir string) string {
	t.Helper()
	var list strings.Builder
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil && !d.IsDir() {
			fmt.Fprintf(&list, "%s %d\n", path, info.Size())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return list.String()
}
