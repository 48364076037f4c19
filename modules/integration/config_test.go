package integration

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
)

var rewrite = flag.Bool("rewrite", false, "write what the adapter gives into the fixtures")

// TestAdapt checks testdata/adapt/*.caddyfiletest: a Caddyfile, a line of
// dashes, and the JSON that it becomes, or the error.
func TestAdapt(t *testing.T) {
	files, err := filepath.Glob("testdata/adapt/*.caddyfiletest")
	if err != nil || len(files) == 0 {
		t.Fatalf("no fixtures: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".caddyfiletest"), func(t *testing.T) {
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			input, want, ok := strings.Cut(string(b), "\n----------\n")
			if !ok && !*rewrite {
				t.Fatal("no line of dashes")
			}
			var got string
			if cfg, err := adapt(input); err != nil {
				got = "error: " + err.Error()
			} else {
				var pretty bytes.Buffer
				if err := json.Indent(&pretty, cfg, "", "\t"); err != nil {
					t.Fatal(err)
				}
				got = pretty.String()
			}
			if *rewrite {
				if err := os.WriteFile(file, []byte(input+"\n----------\n"+got+"\n"), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if got != strings.TrimSpace(want) {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
		})
	}
}

// TestConfigErrors loads what adapts and yet cannot work.
func TestConfigErrors(t *testing.T) {
	t.Setenv("LLMGW_TEST_EMPTY", "")
	for name, c := range map[string]struct{ option, site, want string }{
		"not an address":     {"model m {\n endpoint y:1\n endpoint x:1 gpu1:80O0\n}", "llm", `model "m": endpoint 2: address 2: not a valid address`},
		"learned address":    {"endpoint x:1,y:1", "llm", "endpoint 1: address 1: not a valid address"},
		"bad address":        {"model m {\n endpoint ftp://x:1\n}", "llm", `scheme "ftp" is not supported`},
		"address with a key": {"model m {\n endpoint http://u:hunter2@x:1\n}", "llm", "use the api_key option"},
		"address with /v1":   {"model m {\n endpoint http://x:1/v1\n}", "llm", "it ends in /v1: give it without, as in http://x:1;"},
		"secret and /v1":     {"model m {\n endpoint http://u:hunter2@x:1/v1\n}", "llm", "use the api_key option"},
		"bad port":           {"model m {\n endpoint x:70000\n}", "llm", "70000"},
		"twice":              {"model m {\n endpoint x:1 x:1\n}", "llm", "named twice"},
		"alias taken":        {"model m {\n alias a\n endpoint x:1\n}\nmodel n {\n alias a\n endpoint x:2\n}", "llm", `"a" is taken`},
		"engine":             {"model m {\n endpoint x:1 {\n engine vlm\n}\n}", "llm", "llamacpp, sglang, vllm"},
		"metric":             {"model m {\n endpoint x:1 {\n metric wating a\n}\n}", "llm", "kv_usage"},
		"empty engine key":   {"model m {\n endpoint x:1 {\n api_key {env.LLMGW_TEST_EMPTY}\n}\n}", "llm", "api_key: the key is empty: is the environment variable"},
		"unknown engine key": {"model m {\n endpoint x:1 {\n api_key {nonsense}\n}\n}", "llm", "api_key: a placeholder in it is unknown"},
		"no profile":         {"model m {\n routing fast\n endpoint x:1\n}", "llm", `there is no routing profile "fast"; there are: batch, chat, debug, long-context`},
		"default profile":    {"routing mine {\n score queue 1\n}\ndefault_profile fast", "llm", `default_profile: there is no routing profile "fast"; there are: batch, chat, debug, long-context, mine`},
		"scorer":             {"routing chat {\n score nonsense 1\n}", "llm", "nonsense"},
		"weight":             {"routing chat {\n score queue -1\n}", "llm", "-1"},
		"tree memory":        {"model m {\n prefix {\n tree 0.3 16 1.5 1GiB\n}\n endpoint x:1\n}", "llm", "for all models together"},
		"session load":       {"prefix {\n session x-s 0.5\n}", "llm", "from 1 to 100"},
		"interval":           {"scrape_interval 1ms", "llm", "at least 100ms"},
		"long interval":      {"scrape_interval 6s", "llm", "at most 5s"},
		"served_model":       {"endpoint x:1 {\n served_model a\n}", "llm", "needs a model"},
		"tls_ca":             {"model m {\n endpoint https://x:1 {\n tls_ca /nonexistent.pem\n}\n}", "llm", "tls_ca"},
		"empty key":          {"", "llm {\n key {env.LLMGW_TEST_EMPTY}\n}", "the key is empty"},
		"same key":           {"", "llm {\n key a\n key a\n}", "same key"},
		"same name":          {"", "llm {\n key a {\n name x\n}\n key b {\n name x\n}\n}", `two keys have the name "x"`},
		"name by number":     {"", "llm {\n key a {\n name key-2\n}\n key b\n}", `two keys have the name "key-2"`},
		"key profile":        {"", "llm {\n key a {\n routing fast\n}\n}", `"fast"; there are: batch`},
		"policy profile":     {"", "reverse_proxy x:1 {\n lb_policy llm fast\n}", "fast"},
		"temperature":        {"routing chat {\n pick softmax -1\n}", "llm", "temperature"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg, err := adapt("{\n admin off\n persist_config off\n llmgw {\n" + c.option + "\n}\n}\nhttp://127.0.0.1:9 {\n" + c.site + "\n}")
			if err == nil {
				var parsed caddy.Config
				if err = json.Unmarshal(cfg, &parsed); err == nil {
					err = caddy.Validate(&parsed)
				}
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one with %q", err, c.want)
			}
			if err != nil && strings.Contains(err.Error(), "hunter2") {
				t.Errorf("the error repeats the password: %v", err)
			}
		})
	}
}

// TestExampleCaddyfile validates the Caddyfile that is shipped; that it also
// runs is TestExampleRuns.
func TestExampleCaddyfile(t *testing.T) {
	b, err := os.ReadFile("../../Caddyfile.example")
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := adapt(string(b))
	if err != nil {
		t.Fatal(err)
	}
	var parsed caddy.Config
	if err := json.Unmarshal(cfg, &parsed); err != nil {
		t.Fatal(err)
	}
	if err := caddy.Validate(&parsed); err != nil {
		t.Fatal(err)
	}
}

// TestConfigJSON loads what a Caddyfile cannot say: in JSON a duration of 0 is
// the default, and plugins are named without a parser of theirs.
func TestConfigJSON(t *testing.T) {
	for name, c := range map[string]struct{ app, want string }{
		"durations of 0":    {`{"scrape_interval":0,"reliability":{"cooldown":0,"connect_timeout":0,"total_timeout":0}}`, ""},
		"negative duration": {`{"reliability":{"connect_timeout":-1}}`, "connect_timeout -1ns: must be at least 1ms"},
		"negative interval": {`{"scrape_interval":-1}`, "must be at least 100ms"},
		"scorer":            {`{"routing":{"chat":{"scorers":[{"weight":1,"scorer":{"name":"foo"}}]}}}`, `there is no scorer "foo"; there are: cost, inflight, kv`},
		"tree threshold":    {`{"prefix":{"tree":{"threshold":1.5}}}`, "tree threshold 1.5: must be from 0 to 1"},
		"tree balance":      {`{"models":[{"name":"m","prefix":{"tree":{"balance_abs":-1}}}]}`, "tree balance -1: must be from 0"},
		"tree memory":       {`{"prefix":{"tree":{"memory":5}}}`, "tree memory of 5 bytes: must be from 1MiB"},
		"filter":            {`{"routing":{"chat":{"filters":[{"name":"foo"}]}}}`, `there is no filter "foo"`},
		"adapter timeout":   {`{"models":[{"name":"m","adapter_timeout":1}]}`, "adapter_timeout 1ns: must be from 1s to 10m0s"},
		"null adapter":      {`{"models":[{"name":"m","adapters":[null]}]}`, "adapter 1 is null"},
		"adapter's path":    {`{"models":[{"name":"m","adapters":[{"name":"a"}]}]}`, `adapter "a": the path is empty`},
		"adapter's name":    {`{"models":[{"name":"m","adapters":[{"path":"/a"}]}]}`, "adapter 1: a model needs a name"},
		"adapter's engine":  {`{"models":[{"name":"m","adapters":[{"name":"a","path":"/a"}],"endpoints":[{"addresses":["x:1"],"engine":"llamacpp"}]}]}`, `adapter "a": llamacpp loads its adapters when it starts`},
		"no engine":         {`{"models":[{"name":"m","adapters":[{"name":"a","path":"/a"}]}]}`, "adapters need an endpoint"},
		"adapter twice":     {`{"models":[{"name":"m","adapters":[{"name":"a","path":"/a"},{"name":"a","path":"/b"}],"endpoints":[{"addresses":["x:1"]}]}]}`, `adapter "a" is named twice`},
		"adapter of itself": {`{"models":[{"name":"m","adapters":[{"name":"a","path":"/a"}],"endpoints":[{"addresses":["x:1"],"served_model":"a"}]}]}`, `adapter "a" has the name by which endpoint x:1 serves the model itself`},
		"events' port":      {`{"models":[{"name":"m","endpoints":[{"addresses":["x:1"],"kv_events":"tcp://x:99999"}]}]}`, "a port from 1 to 65535"},
		"events' host":      {`{"models":[{"name":"m","endpoints":[{"addresses":["x:1"],"kv_events":"tcp://*:5557"}]}]}`, "* is where an engine listens"},
		"adapter taken":     {`{"models":[{"name":"m","endpoints":[{"addresses":["x:1"]}],"adapters":[{"name":"a","path":"/a"}]},{"name":"a"}]}`, `the name or alias "a" is taken by model "a"`},
		"picker":            {`{"routing":{"chat":{"picker":{"name":"foo"}}}}`, `there is no picker "foo"; there are: max_score`},
	} {
		t.Run(name, func(t *testing.T) {
			var parsed caddy.Config
			if err := json.Unmarshal([]byte(`{"admin":{"disabled":true},"apps":{"llmgw":`+c.app+`}}`), &parsed); err != nil {
				t.Fatal(err)
			}
			err := caddy.Validate(&parsed)
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("error %v, want one with %q", err, c.want)
			}
		})
	}
}

// TestNoModels: a site whose global option is missing says so when it is loaded,
// and one that needs no models does not.
func TestNoModels(t *testing.T) {
	const warning = "is the global option llmgw missing?"
	for site, warns := range map[string]bool{"\tllm": true, "\treverse_proxy 127.0.0.1:9 {\n\t\tlb_policy llm\n\t}": false} {
		g := start(t, "", site)
		text, err := os.ReadFile(g.logs)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), warning) != warns {
			t.Errorf("%s: a warning: %t, want %t\n%s", site, !warns, warns, text)
		}
	}
}
