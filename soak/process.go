package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// patience bounds every wait for something that must happen.
const patience = time.Minute

// poll waits until f is true.
func poll(ctx context.Context, what string, f func() bool) error {
	for end := time.Now().Add(patience); !f(); {
		if time.Now().After(end) {
			return fmt.Errorf("not within %v: %s", patience, what)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
	return nil
}

// freePorts returns loopback addresses that nobody listens on. They lie below
// the ports that the system gives to connections: a connection that happened to
// have the port of an engine that is away would keep it from coming back.
func freePorts(ctx context.Context, n int) ([]string, error) {
	var found []string
	for port := 20000 + os.Getpid()%5000; len(found) < n && port < 32000; port++ {
		address := fmt.Sprintf("127.0.0.1:%d", port)
		ln, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
		if err != nil {
			continue
		}
		ln.Close()
		found = append(found, address)
	}
	if len(found) < n {
		return nil, errors.New("there are not enough free ports from 20000 to 32000")
	}
	return found, nil
}

// engine is a simulated engine, with its address for good and a process that
// comes and goes.
type engine struct {
	binary, address, dir string
	cmd                  *exec.Cmd
	ended                chan struct{}
}

// start runs the process and waits until it serves.
func (e *engine) start(ctx context.Context) error {
	e.cmd = exec.CommandContext(ctx, e.binary, "sim-engine", "--listen", e.address,
		"--model", "sim", "--lora", "ada", "--journal", "4", "--max-num-seqs", "64",
		"--prefill-per-token", "2us", "--decode", "3ms", "--decode-per-seq", "20us",
		"--max-num-batched-tokens", "8192", "--kv-blocks", "16384", "--lora-load", "5ms")
	log, err := os.OpenFile(filepath.Join(e.dir, "engines.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	e.cmd.Stdout, e.cmd.Stderr = log, log
	if err := e.cmd.Start(); err != nil {
		return fmt.Errorf("%s: %w (make build builds it)", e.binary, err)
	}
	e.ended = make(chan struct{})
	go func(cmd *exec.Cmd, ended chan struct{}) {
		_ = cmd.Wait() // it is killed as a rule
		close(ended)
	}(e.cmd, e.ended)
	return poll(ctx, e.address+" serves", func() bool {
		res, err := get(ctx, "http://"+e.address+"/health")
		return err == nil && res == http.StatusOK
	})
}

// signal sends a signal to the process.
func (e *engine) signal(s syscall.Signal) error { return e.cmd.Process.Signal(s) }

// gone waits until the process has ended.
func (e *engine) gone() {
	if e.ended != nil {
		<-e.ended
	}
}

// gateway is the process under test.
type gateway struct {
	site *site
	cmd  *exec.Cmd
	done chan struct{}
	logs string
}

// startGateway runs the gateway and reads its access log. It waits until it
// serves.
func startGateway(ctx context.Context, binary, dir string, s *site, r *report) (*gateway, error) {
	file := filepath.Join(dir, "Caddyfile")
	if err := os.WriteFile(file, []byte(s.caddyfile(variant{})), 0o600); err != nil {
		return nil, err
	}
	g := &gateway{site: s, done: make(chan struct{}), logs: filepath.Join(dir, "gateway.log")}
	log, err := os.Create(g.logs)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	g.cmd = exec.CommandContext(ctx, binary, "run", "--config", file)
	g.cmd.Env = append(os.Environ(), "XDG_DATA_HOME="+dir, "XDG_CONFIG_HOME="+dir)
	g.cmd.Stderr = log
	access, err := g.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := g.cmd.Start(); err != nil {
		return nil, fmt.Errorf("%s: %w (make build builds it)", binary, err)
	}
	go func() {
		lines := bufio.NewReader(access)
		for {
			line, err := lines.ReadBytes('\n')
			r.logged(line)
			if err != nil {
				break
			}
		}
		_ = g.cmd.Wait() // its end alone says enough
		close(g.done)
	}()
	err = poll(ctx, "the gateway serves", func() bool {
		status, err := get(ctx, g.url("/v1/models"))
		return err == nil && status == http.StatusOK
	})
	return g, err
}

func (g *gateway) url(path string) string { return "http://" + g.site.listen + path }

// admin asks the admin API; body "" is a GET.
func (g *gateway) admin(ctx context.Context, path, mediaType, body string) (int, []byte, error) {
	method := http.MethodGet
	if body != "" {
		method = http.MethodPost
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://"+g.site.admin+path, strings.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	if body != "" {
		req.Header.Set("Content-Type", mediaType)
	}
	// A reload closes the admin API's connections too.
	res, err := fresh.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	return res.StatusCode, text, err
}

// reload loads a config and returns the status that the admin API gives.
func (g *gateway) reload(ctx context.Context, text string) (int, []byte, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return g.admin(ctx, "/load", "text/caddyfile", text)
}

// fresh makes a connection for each request.
var fresh = &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DisableCompression: true}}

// get returns the status of a page.
func get(ctx context.Context, url string) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return 0, err
	}
	res, err := fresh.Do(req)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	_, err = io.Copy(io.Discard, res.Body)
	return res.StatusCode, err
}
