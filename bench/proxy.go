package main

import (
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
	"time"
)

// children are the processes and folders of a run.
type children struct {
	processes []*exec.Cmd
	folders   []string
}

// end kills the processes, waits for them, and removes the folders.
func (c *children) end(cancel context.CancelFunc) {
	cancel()
	for _, p := range c.processes {
		_ = p.Wait() // it was killed
	}
	for _, f := range c.folders {
		_ = os.RemoveAll(f)
	}
}

// proxy is a running proxy.
type proxy struct {
	url, admin string
	pid        int
}

// startProxy runs the binary with a site of its own until ctx ends.
func startProxy(ctx context.Context, c *children, binary, site, option string) (*proxy, error) {
	address, err := freeAddress(ctx)
	if err != nil {
		return nil, err
	}
	admin, err := freeAddress(ctx)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "llmgw-bench-")
	if err != nil {
		return nil, err
	}
	c.folders = append(c.folders, dir)
	config := fmt.Sprintf("{\n\tadmin %s\n\tpersist_config off\n\tauto_https off\n\tlog {\n\t\tlevel ERROR\n\t}\n\t%s\n}\nhttp://%s {\n\t%s\n}\n", admin, option, address, site)
	file := filepath.Join(dir, "Caddyfile")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, binary, "run", "--config", file)
	cmd.Env = append(os.Environ(), "XDG_DATA_HOME="+dir, "XDG_CONFIG_HOME="+dir)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("%s: %w (make build builds it)", binary, err)
	}
	c.processes = append(c.processes, cmd)
	p := &proxy{url: "http://" + address, admin: "http://" + admin, pid: cmd.Process.Pid}
	return p, waitFor(ctx, p.url)
}

// waitFor waits until a completion is answered.
func waitFor(ctx context.Context, url string) error {
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end) && ctx.Err() == nil; {
		res, err := post(ctx, http.DefaultClient, url, plainBody)
		if err == nil {
			_, _ = io.Copy(io.Discard, res.Body)
			res.Body.Close()
			if res.StatusCode == http.StatusOK {
				return nil
			}
		}
		time.Sleep(20 * time.Millisecond)
	}
	return fmt.Errorf("%s does not answer", url)
}

// clockTick is the unit of /proc/PID/stat: USER_HZ is 100 on every Linux.
const clockTick = 10 * time.Millisecond

// cpuTime returns the user and system time of a process.
func cpuTime(pid int) (time.Duration, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// Fields 14 and 15; the second, in parentheses, may hold blanks.
	_, rest, ok := strings.Cut(string(b), ") ")
	fields := strings.Fields(rest)
	if !ok || len(fields) < 13 {
		return 0, errors.New("/proc/PID/stat has another format")
	}
	var user, system int64
	if _, err := fmt.Sscan(fields[11]+" "+fields[12], &user, &system); err != nil {
		return 0, err
	}
	return time.Duration(user+system) * clockTick, nil
}

func freeAddress(ctx context.Context) (string, error) {
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer ln.Close()
	return ln.Addr().String(), nil
}
