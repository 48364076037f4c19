package sim

import (
	"encoding/json"
	"strings"
	"testing"
)

// TestKVEvents: what the engine says of its cache is where it says, and is what it has. Who reads it
// is the gateway, whose tests follow it through evictions, clears and restarts.
func TestKVEvents(t *testing.T) {
	cfg := DefaultConfig()
	cfg.KVEvents, cfg.KVEventsReplay, cfg.DataParallel = "tcp://127.0.0.1:0", "tcp://127.0.0.1:0", 2
	_, srv := newTestEngine(t, cfg)
	var sources map[string]struct {
		Endpoint string
		Replay   string `json:"replay_endpoint"`
		Topic    string
	}
	res := must(t, "GET", srv.URL+"/kv_event_sources", "")
	if err := json.Unmarshal([]byte(res), &sources); err != nil || len(sources) != 2 || sources["1"].Topic != "kv@sim" || sources["0"].Endpoint == sources["1"].Endpoint {
		t.Errorf("%s: %v", res, err)
	}
	cfg.KVEvents = strings.TrimSpace(sources["0"].Endpoint)
	if _, err := New(cfg); err == nil {
		t.Error("two engines publish at one address")
	}
	for _, address := range []string{"127.0.0.1:1", "ipc:///tmp/x", "tcp://127.0.0.1:x"} {
		cfg.KVEvents = address
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), "tcp://host:port") {
			t.Errorf("%q: %v", address, err)
		}
	}
}
