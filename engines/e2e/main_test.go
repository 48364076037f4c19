//go:build engines

package e2e

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const (
	// startPatience covers four engines that load at the same time on two
	// cores that others use too.
	startPatience = 10 * time.Minute
	endPatience   = 20 * time.Second
)

// Where things are, seen from this folder.
const (
	scripts = ".."
	root    = "../.."
)

// rig is all that the tests run against. Fields that end in URL are base URLs
// without a slash at the end.
type rig struct {
	keeper *keeper

	vllmURL   [2]string // tiny
	doomedURL string    // tiny too, for the tests that kill it
	llamaURL  string    // smollm2-135m
	minilmURL string    // minilm
	simURL    string    // sim

	recorders map[string]*recorder // by model, see gateway_test.go

	doomedOptions []string // of vllm.sh

	kvProxies [2]*cutter // before the events of the doomed one, and its past ones

	gatewayURL string // no keys, debug headers
	keyedURL   string // wants the key
	bandsURL   string // takes the band from the header X-Band
	openURL    string // without admission
	adminURL   string
	accessLog  string
}

var lab *rig

func TestMain(m *testing.M) {
	if dir := os.Getenv(guardEnv); dir != "" {
		guard(os.Stdin, endPatience)
		if err := os.RemoveAll(dir); err != nil {
			os.Exit(1)
		}
		return
	}
	os.Exit(run(m))
}

func run(m *testing.M) (code int) {
	dir, err := os.MkdirTemp("", "llmgw-engines-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	k, err := newKeeper(dir)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	lab = &rig{keeper: k}
	err = lab.start(k)
	if err == nil {
		code = m.Run()
	} else {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	for _, p := range k.all {
		select {
		case <-p.done:
			if p.mayEnd {
				continue
			}
			fmt.Fprintf(os.Stderr, "%s ended before it was told to: %v\n%s\n", p.name, p.err, p.tail())
			code = 1
		default:
		}
	}
	if err := k.close(); err != nil {
		fmt.Fprintf(os.Stderr, "end the engines: %v\n", err)
		code = 1
	}
	return code
}

// start installs and starts everything and waits until it serves.
func (r *rig) start(k *keeper) error {
	llmgw := filepath.Join(k.dir, "llmgw")
	for _, c := range [][]string{
		{"go", "build", "-o", llmgw, root + "/cmd/llmgw"},
		{scripts + "/llamacpp.sh", "install"},
		{scripts + "/vllm.sh", "install"},
		{scripts + "/sdk.sh", "install"},
	} {
		if out, err := exec.Command(c[0], c[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w\n%s", strings.Join(c, " "), err, out)
		}
	}
	ports, err := freePorts(17)
	if err != nil {
		return err
	}
	for i, where := range []*string{
		&r.vllmURL[0], &r.vllmURL[1], &r.minilmURL, &r.llamaURL, &r.simURL, &r.gatewayURL, &r.keyedURL, &r.adminURL,
		&r.doomedURL, &r.bandsURL, &r.openURL,
	} {
		*where = "http://127.0.0.1:" + ports[i]
	}
	r.recorders = map[string]*recorder{recordedTiny: newRecorder(r.vllmURL[0]), recordedSmol: newRecorder(r.llamaURL)}
	// The last ports are for KV events, past ones after them.
	told := func(i int) []string {
		return []string{"--kv-events-config", fmt.Sprintf(
			`{"enable_kv_cache_events":true,"publisher":"zmq","topic":"kv@tiny","endpoint":"tcp://*:%s","replay_endpoint":"tcp://*:%s"}`,
			ports[11+2*i], ports[12+2*i])}
	}
	r.doomedOptions = told(2)
	for i := range r.kvProxies {
		if r.kvProxies[i], err = newCutter("127.0.0.1:" + ports[15+i]); err != nil {
			return err
		}
	}
	if err := os.Setenv("VLLM_SERVER_DEV_MODE", "1"); err != nil { // for /reset_prefix_cache
		return err
	}
	r.accessLog = filepath.Join(k.dir, "access.json")
	config := filepath.Join(k.dir, "Caddyfile")
	if err := os.WriteFile(config, []byte(r.caddyfile()), 0o600); err != nil {
		return err
	}
	vllm, llama := scripts+"/vllm.sh", scripts+"/llamacpp.sh"
	services := []struct {
		name, url string
		command   []string
	}{
		{"vllm-1", r.vllmURL[0], append([]string{vllm, "serve", ports[0]}, told(0)...)},
		{"vllm-2", r.vllmURL[1], append([]string{vllm, "serve", ports[1]}, told(1)...)},
		{"vllm-minilm", r.minilmURL, []string{vllm, "serve-minilm", ports[2]}},
		{"llama-server", r.llamaURL, []string{llama, "serve", ports[3]}},
		{"sim", r.simURL, []string{llmgw, "sim-engine", "--listen", "127.0.0.1:" + ports[4], "--max-model-len", "2048"}},
		{"gateway", r.gatewayURL, []string{llmgw, "run", "--adapter", "caddyfile", "--config", config}},
	}
	var started []*process
	for _, s := range services {
		p, err := k.start(s.name, s.command...)
		if err != nil {
			return err
		}
		started = append(started, p)
	}
	for i, s := range services {
		if err := started[i].await(startPatience, func() error { return serves(s.url + "/v1/models") }); err != nil {
			return err
		}
	}
	return started[len(started)-1].await(time.Minute, r.allReady)
}

// freePorts finds TCP ports of loopback that nobody uses: engines must be told
// theirs.
func freePorts(n int) ([]string, error) {
	var ports []string
	for range n {
		// Kept open until all are found, so that none is found twice.
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close()
		_, port, err := net.SplitHostPort(l.Addr().String())
		if err != nil {
			return nil, err
		}
		ports = append(ports, port)
	}
	return ports, nil
}
