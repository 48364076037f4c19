//go:build engines

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

const (
	// These go to the first vLLM and to llama.cpp through a recorder.
	recordedTiny = "tiny-recorded"
	recordedSmol = "smollm2-recorded"

	// doomed is served by an engine that tests kill, and by the second vLLM.
	doomed = "tiny-doomed"

	// told is served by both vLLMs, known by their KV events, and reborn by the doomed one.
	told, reborn = "tiny-told", "tiny-reborn"

	// testKey is the key of the site that wants one.
	testKey = "sk-llmgw-engines-test"
)

// caddyfile is the gateway's config.
func (r *rig) caddyfile() string {
	host := func(url string) string { return strings.TrimPrefix(url, "http://") }
	return fmt.Sprintf(`{
	admin %s
	persist_config off
	auto_https off
	grace_period 2s
	llmgw {
		model tiny {
			alias tiny-llama
			endpoint %s %s
		}
		model smollm2-135m {
			alias smol
			endpoint %s
		}
		model minilm {
			alias text-embedding
			endpoint %s
		}
		model sim {
			endpoint %s
		}
		model %s {
			endpoint %s {
				served_model tiny
			}
		}
		model %s {
			endpoint %s {
				served_model smollm2-135m
			}
		}
		model %s {
			endpoint %s %s {
				served_model tiny
			}
		}
		model %s {
			prefix {
				events on 3s
			}
			endpoint %s %s {
				served_model tiny
			}
		}
		model %s {
			prefix {
				events on 3s
			}
			endpoint %s {
				served_model tiny
				kv_events tcp://%s tcp://%s
			}
			adapter %s %s
			adapter %s %s
		}
	}
}

%s {
	bind 127.0.0.1
	log {
		output file %s
		format json
	}
	llm {
		debug_headers on
	}
}

%s {
	bind 127.0.0.1
	llm {
		key %s
	}
}

%s {
	bind 127.0.0.1
	llm {
		band {http.request.header.X-Band}
	}
}

%s {
	bind 127.0.0.1
	route {
		llm_api
		llm_proxy
	}
}
`, host(r.adminURL),
		host(r.vllmURL[0]), host(r.vllmURL[1]), host(r.llamaURL), host(r.minilmURL), host(r.simURL),
		recordedTiny, host(r.recorders[recordedTiny].url), recordedSmol, host(r.recorders[recordedSmol].url),
		doomed, host(r.doomedURL), host(r.vllmURL[1]),
		told, host(r.vllmURL[0]), host(r.vllmURL[1]), reborn, host(r.doomedURL), r.kvProxies[0].address(), r.kvProxies[1].address(),
		poet, r.adapterFolder(poet), nobody, r.adapterFolder(nobody),
		r.gatewayURL, r.accessLog, r.keyedURL, testKey, r.bandsURL, r.openURL)
}

// replica is what the admin API says of one, as far as the tests care.
type replica struct {
	Replica string   `json:"replica"`
	State   string   `json:"state"`
	Reason  string   `json:"reason"`
	Models  []string `json:"models"`
	Waiting *float64 `json:"waiting"`
	Running *float64 `json:"running"`
	KVUsage *float64 `json:"kv_usage"`
	Metrics string   `json:"metrics"`

	Adapters []struct {
		Name   string `json:"name"`
		Path   string `json:"path"`
		Status string `json:"status"`
		Reason string `json:"reason"`
	} `json:"adapters"`

	KVEvents []struct {
		State  string `json:"state"`
		Error  string `json:"error"`
		Blocks int    `json:"blocks"`
		Gaps   int    `json:"gaps"`
	} `json:"kv_events"`
}

func (r replica) String() string {
	show := func(v *float64) string {
		if v == nil {
			return "unknown"
		}
		return fmt.Sprint(*v)
	}
	return fmt.Sprintf("%s %v %s %s: waiting %s, running %s, KV %s, metrics %s", r.Replica, r.Models, r.State, r.Reason,
		show(r.Waiting), show(r.Running), show(r.KVUsage), r.Metrics)
}

func (r *rig) replicas() (list []replica, err error) {
	body, err := get(r.adminURL + "/llmgw/replicas")
	if err != nil {
		return nil, err
	}
	return list, json.Unmarshal(body, &list)
}

// replicaAt finds a replica by its base URL.
func (r *rig) replicaAt(url string) (replica, error) {
	list, err := r.replicas()
	if err != nil {
		return replica{}, err
	}
	i := slices.IndexFunc(list, func(x replica) bool { return x.Replica == strings.TrimPrefix(url, "http://") })
	if i < 0 {
		return replica{}, fmt.Errorf("%w: no replica %s among %v", errHopeless, url, list)
	}
	return list[i], nil
}

// allReady says nil once the gateway has heard of all replicas.
func (r *rig) allReady() error {
	list, err := r.replicas()
	if err != nil {
		return err
	}
	var not []error
	for _, x := range list {
		if x.Replica == strings.TrimPrefix(r.doomedURL, "http://") {
			continue // no test has started it yet
		}
		if x.State != "ready" || x.Metrics != "ok" {
			not = append(not, errStill("%v", x))
		}
	}
	return errors.Join(not...)
}

// TestMetricsRead: the gateway knows of each engine what the engine's metrics
// page has, and nothing else: llama.cpp does not tell how full its KV cache is.
func TestMetricsRead(t *testing.T) {
	for _, c := range []struct {
		name, url, model string
		kv               bool
	}{
		{"vLLM", lab.vllmURL[0], "tiny " + told, true},
		{"vLLM, the other", lab.vllmURL[1], "tiny " + doomed + " " + told, true},
		{"vLLM with a pooling model", lab.minilmURL, "minilm", true},
		{"llama.cpp", lab.llamaURL, "smollm2-135m", false},
		{"simulator", lab.simURL, "sim", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			eventually(t, patience, func() error {
				x, err := lab.replicaAt(c.url)
				if err != nil {
					return err
				}
				if x.Metrics != "ok" || x.Waiting == nil || x.Running == nil || (x.KVUsage != nil) != c.kv ||
					!slices.Equal(x.Models, strings.Fields(c.model)) {
					return errStill("%v", x)
				}
				return nil
			})
		})
	}
}
