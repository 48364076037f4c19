package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestC08_StopWithAnOpenStream: a stream that never ends keeps the gateway for
// the grace period and no longer.
func TestC08_StopWithAnOpenStream(t *testing.T) {
	const grace = time.Second
	for name, stop := range map[string]func(*testing.T, *program, *gateway){
		"stop": func(t *testing.T, _ *program, g *gateway) {
			if status := g.admin(t, "/stop", "{}", nil); status != http.StatusOK {
				t.Errorf("stop: %d", status)
			}
		},
		"SIGTERM": func(t *testing.T, p *program, _ *gateway) {
			if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			gone := make(chan struct{})
			never := ticking(20*time.Millisecond, nil)
			e := newEngine(t, func(w http.ResponseWriter, r *http.Request) {
				never(w, r)
				if r.Context().Err() != nil {
					close(gone)
				}
			})
			listen, admin := freePort(t), freePort(t)
			file := filepath.Join(t.TempDir(), "Caddyfile")
			text := fmt.Sprintf("{\n\tadmin %s\n\tgrace_period %v\n\tpersist_config off\n\tllmgw {\n%s\n\t}\n}\nhttp://%s {\n\tllm\n}\n", admin, grace, one(e), listen)
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			p := run(t, "run", "--config", file)
			g := &gateway{URL: "http://" + listen, Admin: admin, listen: listen}
			g.serves(t)
			res, err := http.DefaultClient.Do(g.request(t, t.Context(), http.MethodPost, "/v1/chat/completions", streamRequest))
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			if _, err := io.ReadFull(res.Body, make([]byte, len(tokenEvent))); err != nil {
				t.Fatal(err)
			}
			begin := time.Now()
			stop(t, p, g)
			eventually(t, "a new request is refused", func() bool { return !g.takes(t) })
			if g.takes(t) {
				t.Error("a request was served after one was refused")
			}
			rest, err := io.ReadAll(res.Body)
			if strings.Contains(string(rest), "[DONE]") || err == nil && !strings.Contains(string(rest), `"error"`) {
				t.Errorf("the stream ended as if it were whole: %q", rest[max(0, len(rest)-200):])
			}
			if took := time.Since(begin); took < grace*9/10 {
				t.Errorf("the stream was cut after %v, within the grace period", took)
			}
			ctx, cancel := context.WithTimeout(t.Context(), deadline)
			defer cancel()
			select {
			case err := <-p.ended:
				if err != nil {
					t.Errorf("ended with %v\n%s", err, p.text())
				}
			case <-ctx.Done():
				t.Fatalf("still runs\n%s", p.text())
			}
			if took := time.Since(begin); took > grace+15*time.Second {
				t.Errorf("the gateway took %v to end", took)
			}
			select {
			case <-gone:
			case <-ctx.Done():
				t.Error("the engine goes on")
			}
		})
	}
}

// serves waits until the gateway answers.
func (g *gateway) serves(t *testing.T) {
	t.Helper()
	eventually(t, "the gateway serves", func() bool {
		res, err := http.Get(g.URL + "/v1/models")
		if err != nil {
			return false
		}
		defer res.Body.Close()
		io.Copy(io.Discard, res.Body)
		return res.StatusCode == http.StatusOK
	})
}

// takes reports whether a new request is answered with anything but 503.
func (g *gateway) takes(t *testing.T) bool {
	t.Helper()
	res, _, err := g.once(t.Context(), request)
	return err == nil && res.StatusCode != http.StatusServiceUnavailable
}

// TestC08_ShippedConfigs have a grace period, without which a stop waits for the
// last stream, for ever, and no time limit for a whole request or answer.
func TestC08_ShippedConfigs(t *testing.T) {
	const most = time.Minute
	check := func(t *testing.T, config []byte) {
		t.Helper()
		var c struct {
			Apps struct {
				HTTP struct {
					Grace   time.Duration `json:"grace_period"`
					Servers map[string]struct {
						Read  time.Duration `json:"read_timeout"`
						Write time.Duration `json:"write_timeout"`
					} `json:"servers"`
				} `json:"http"`
			} `json:"apps"`
		}
		if err := json.Unmarshal(config, &c); err != nil {
			t.Fatalf("%v in %s", err, config)
		}
		if d := c.Apps.HTTP.Grace; d <= 0 || d > most {
			t.Errorf("the grace period is %v", d)
		}
		if len(c.Apps.HTTP.Servers) == 0 {
			t.Error("no servers")
		}
		for name, s := range c.Apps.HTTP.Servers {
			if s.Read != 0 || s.Write != 0 {
				t.Errorf("%s: read_timeout %v, write_timeout %v", name, s.Read, s.Write)
			}
		}
	}
	// running reads the config of a program by its admin API.
	running := func(t *testing.T, admin string) (config json.RawMessage) {
		t.Helper()
		eventually(t, "the config is there", func() bool {
			res, err := http.Get("http://" + admin + "/config/")
			if err != nil {
				return false
			}
			defer res.Body.Close()
			config, err = io.ReadAll(res.Body)
			return err == nil && strings.HasPrefix(string(config), "{")
		})
		return config
	}
	t.Run("Caddyfile.example", func(t *testing.T) {
		text, err := os.ReadFile("../../Caddyfile.example")
		if err != nil {
			t.Fatal(err)
		}
		config, err := adapt(string(text))
		if err != nil {
			t.Fatal(err)
		}
		check(t, config)
	})
	t.Run("proxy", func(t *testing.T) {
		admin := freePort(t)
		run(t, "proxy", "--from", freePort(t), "--to", "127.0.0.1:1", "--admin", admin)
		check(t, running(t, admin))
	})
	t.Run("demo", func(t *testing.T) {
		p := run(t, "demo", "--replicas", "1", "--from", freePort(t))
		check(t, running(t, p.says(t, `replicas --address (\S+)`)[1]))
	})
}
