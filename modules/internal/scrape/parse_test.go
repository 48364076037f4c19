package scrape

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/llmgw/llmgw/modules/internal/fleet"
	"github.com/llmgw/llmgw/modules/schedule"
)

var unknown = schedule.Unknown

func page1(t testing.TB, name string) string {
	t.Helper()
	b, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// same compares gauges, of which unknown differs from itself.
func same(a, b schedule.Gauge) bool {
	return a.Known() == b.Known() && (!a.Known() || math.Abs(float64(a-b)) < 1e-9)
}

func expectStats(t *testing.T, got *fleet.Stats, waiting, running, kv schedule.Gauge, missing ...string) {
	t.Helper()
	if !same(got.Waiting, waiting) || !same(got.Running, running) || !same(got.KVUsage, kv) {
		t.Errorf("waiting %v, running %v, kv %v; want %v, %v, %v",
			got.Waiting, got.Running, got.KVUsage, waiting, running, kv)
	}
	if !slices.Equal(got.Missing, missing) {
		t.Errorf("missing %q, want %q", got.Missing, missing)
	}
}

func parse(t *testing.T, text, engine string, overrides map[string]string, models ...string) *fleet.Stats {
	t.Helper()
	s, err := Parse(strings.NewReader(text), engine, overrides, models)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// What engines and versions call their metrics; what they do not have is
// unknown and, if they should have it, listed.
func TestR08_NamesOfAllVersions(t *testing.T) {
	const both = "\nvllm:kv_cache_usage_perc{model_name=\"org/Tiny-1B\"} 0.5\n"
	old := page1(t, "vllm_old_names.prom")
	none := strings.ReplaceAll(old, "gpu_cache_usage_perc", "cache_fill")
	for _, c := range []struct {
		name, text, engine   string
		waiting, running, kv schedule.Gauge
		missing              []string
	}{
		{"vLLM, old names", old, "", 2, 7, 0.8125, nil},
		{"vLLM, new names, two ranks", page1(t, "vllm_new_names_dp2.prom"), "", 12, 31, 0.97, nil},
		{"vLLM, both names: the new one", old + both, "", 2, 7, 0.5, nil},
		{"vLLM, no KV name", none, "", 2, 7, unknown, []string{"kv_usage"}},
		{"vLLM, told", old, "vllm", 2, 7, 0.8125, nil},
		{"vLLM, captured while it queues", page1(t, "vllm_queueing.prom"), "", 8, 4, 0.03137254901960784, nil},
		{"vLLM, taken for SGLang", old, "sglang", unknown, unknown, unknown, Fields},
		{"SGLang, ranks and copies", page1(t, "sglang_dp.prom"), "", 4, 10, 0.9, nil},
		{"SGLang, underscores", strings.ReplaceAll(page1(t, "sglang_dp.prom"), "sglang:", "sglang_"), "", 4, 10, 0.9, nil},
		{"llama.cpp, captured while it queues", page1(t, "llamacpp_queueing.prom"), "", 4, 2, unknown, nil},
		{"llama.cpp, captured idle", page1(t, "llamacpp_idle.prom"), "", 0, 0, unknown, nil},
		{"llama.cpp, told", page1(t, "llamacpp_short.prom"), "llamacpp", 1, 3, unknown, nil},
		{"an unknown engine", "foo 1\nbar 2\n", "", unknown, unknown, unknown, Fields},
		{"nothing", "", "", unknown, unknown, unknown, Fields},
		{"nothing of a known engine", "", "llamacpp", unknown, unknown, unknown, []string{"waiting", "running"}},
		{"the _created gauges beside counters are not values", "vllm:num_requests_running_created 1.7e9\n", "vllm", unknown, unknown, unknown, Fields},
	} {
		t.Run(c.name, func(t *testing.T) {
			expectStats(t, parse(t, c.text, c.engine, nil), c.waiting, c.running, c.kv, c.missing...)
		})
	}
}

// The names that are read are the ones that SGLang's list of metrics has.
func TestSGLangNames(t *testing.T) {
	list := page1(t, "sglang_names.tsv")
	for field, spellings := range names["sglang"] {
		if !strings.Contains(list, spellings[0]+"\tGauge\n") {
			t.Errorf("%s: %s is no gauge of SGLang's", field, spellings[0])
		}
	}
}

func TestR09_SeriesOfOneField(t *testing.T) {
	for _, c := range []struct {
		name, text           string
		models               []string
		waiting, running, kv schedule.Gauge
	}{
		{
			name: "ranks are summed, the fullest cache counts",
			text: `
vllm:num_requests_waiting{engine="0",model_name="m"} 3
vllm:num_requests_waiting{engine="1",model_name="m"} 4
vllm:num_requests_running{engine="0",model_name="m"} 1
vllm:num_requests_running{engine="1",model_name="m"} 2
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.75
`,
			waiting: 7, running: 3, kv: 0.75,
		},
		{
			name: "copies of tensor-parallel ranks and processes count once",
			text: `
sglang:num_queue_reqs{dp_rank="0",tp_rank="0",pid="1"} 5
sglang:num_queue_reqs{dp_rank="0",tp_rank="1",pid="2"} 5
sglang:num_running_reqs{dp_rank="0",tp_rank="0"} 8
sglang:num_running_reqs{dp_rank="0",tp_rank="1"} 7
sglang:token_usage{dp_rank="0",tp_rank="0"} 0.5
sglang:token_usage{dp_rank="0",tp_rank="1"} 0.25
`,
			waiting: 5, running: 8, kv: 0.5,
		},
		{
			name: "other models of the engine are ignored",
			text: `
vllm:num_requests_waiting{engine="0",model_name="mine"} 3
vllm:num_requests_waiting{engine="0",model_name="other"} 100
vllm:num_requests_running{engine="0",model_name="other"} 100
vllm:num_requests_running{engine="0",model_name="mine"} 1
vllm:kv_cache_usage_perc{engine="0",model_name="mine"} 0.25
vllm:kv_cache_usage_perc{engine="0",model_name="other"} 0.95
`,
			models:  []string{"mine"},
			waiting: 3, running: 1, kv: 0.25,
		},
		{
			name: "two served models of one engine are two series",
			text: `
vllm:num_requests_waiting{engine="0",model_name="a"} 3
vllm:num_requests_waiting{engine="0",model_name="b"} 4
vllm:num_requests_running{engine="0",model_name="a"} 1
vllm:num_requests_running{engine="0",model_name="b"} 1
vllm:kv_cache_usage_perc{engine="0",model_name="a"} 0.25
vllm:kv_cache_usage_perc{engine="0",model_name="b"} 0.5
`,
			models:  []string{"b", "a"},
			waiting: 7, running: 2, kv: 0.5,
		},
		{
			name: "without a wish all of them count",
			text: `
vllm:num_requests_waiting{model_name="a"} 3
vllm:num_requests_waiting{model_name="b"} 4
vllm:num_requests_running 2
vllm:kv_cache_usage_perc 0.5
`,
			waiting: 7, running: 2, kv: 0.5,
		},
		{
			name: "the page's one model_name is an alias of ours",
			text: `
vllm:num_requests_waiting{engine="0",model_name="org/Model-70B"} 3
vllm:num_requests_waiting{engine="1",model_name="org/Model-70B"} 1
vllm:num_requests_running{engine="0",model_name="org/Model-70B"} 2
vllm:kv_cache_usage_perc{engine="0",model_name="org/Model-70B"} 0.5
`,
			models:  []string{"fast"},
			waiting: 4, running: 2, kv: 0.5,
		},
		{
			name: "of two other names none can be told to be ours",
			text: `
vllm:num_requests_waiting{model_name="a"} 3
vllm:num_requests_waiting{model_name="b"} 3
vllm:num_requests_running{model_name="a"} 3
vllm:num_requests_running{model_name="b"} 3
vllm:kv_cache_usage_perc{model_name="a"} 0.5
vllm:kv_cache_usage_perc{model_name="b"} 0.5
`,
			models:  []string{"fast"},
			waiting: unknown, running: unknown, kv: unknown,
		},
		{
			name: "series without a model_name belong to every model",
			text: `
vllm:num_requests_waiting{engine="0"} 3
vllm:num_requests_running{engine="0"} 4
vllm:kv_cache_usage_perc{engine="0"} 0.5
`,
			models:  []string{"fast"},
			waiting: 3, running: 4, kv: 0.5,
		},
		{
			name: "beside those of other models, too",
			text: `
vllm:num_requests_waiting 3
vllm:num_requests_waiting{model_name="other"} 100
vllm:num_requests_running 4
vllm:num_requests_running{model_name="other"} 100
vllm:kv_cache_usage_perc 0.5
vllm:kv_cache_usage_perc{model_name="other"} 0.75
`,
			models:  []string{"fast"},
			waiting: 3, running: 4, kv: 0.5,
		},
		{
			name: "one bad rank makes the field unknown, and only it",
			text: `
vllm:num_requests_waiting{engine="0"} 3
vllm:num_requests_waiting{engine="1"} NaN
vllm:num_requests_running{engine="0"} 4
vllm:num_requests_running{engine="1"} +Inf
vllm:kv_cache_usage_perc{engine="0"} 0.5
vllm:kv_cache_usage_perc{engine="1"} 0.25
`,
			waiting: unknown, running: unknown, kv: 0.5,
		},
		{
			name: "more than there can be is no count",
			text: `
vllm:num_requests_waiting{engine="0"} 1.7e308
vllm:num_requests_waiting{engine="1"} 1.7e308
vllm:num_requests_running 1e30
vllm:kv_cache_usage_perc 0
`,
			waiting: unknown, running: unknown, kv: 0,
		},
		{
			name: "negative is no count",
			text: `
vllm:num_requests_waiting -1
vllm:num_requests_running 0
vllm:kv_cache_usage_perc -0.5
`,
			waiting: unknown, running: 0, kv: unknown,
		},
		{
			name: "a bad value of another model does no harm",
			text: `
vllm:num_requests_waiting{model_name="mine"} 3
vllm:num_requests_waiting{model_name="other"} NaN
vllm:num_requests_running{model_name="mine"} 0
vllm:kv_cache_usage_perc{model_name="mine"} -Inf
`,
			models:  []string{"mine"},
			waiting: 3, running: 0, kv: unknown,
		},
		{
			name: "a full cache is 1, also with a rounding error",
			text: `
vllm:num_requests_waiting 0
vllm:num_requests_running 0
vllm:kv_cache_usage_perc 1.0000002
`,
			waiting: 0, running: 0, kv: 1,
		},
		{
			name: "a percentage is not what the contract has, and no guess is made",
			text: `
vllm:num_requests_waiting 0
vllm:num_requests_running 0
vllm:kv_cache_usage_perc 42
`,
			waiting: 0, running: 0, kv: unknown,
		},
		{
			name: "CRLF, blanks, timestamps and comments in between",
			text: "# a comment\r\n\r\nvllm:num_requests_waiting  3 1700000000000\r\n" +
				"# TYPE vllm:num_requests_running gauge\r\nvllm:num_requests_running\t4\r\n" +
				"vllm:kv_cache_usage_perc{ engine = \"0\" , } 5e-1\r\n# EOF\r\n",
			waiting: 3, running: 4, kv: 0.5,
		},
		{
			name:    "no line end at the end",
			text:    "vllm:num_requests_waiting 3\nvllm:num_requests_running 4\nvllm:kv_cache_usage_perc 0.5",
			waiting: 3, running: 4, kv: 0.5,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			expectStats(t, parse(t, c.text, "", nil, c.models...), c.waiting, c.running, c.kv)
		})
	}
}

func TestOverrides(t *testing.T) {
	text := page1(t, "vllm_old_names.prom") + "my:queue{model_name=\"org/Tiny-1B\"} 17\nmy:cache 0.125\n"
	for _, c := range []struct {
		name                 string
		engine               string
		overrides            map[string]string
		waiting, running, kv schedule.Gauge
		missing              []string
	}{
		{"one field", "", map[string]string{"waiting": "my:queue"}, 17, 7, 0.8125, nil},
		{"two fields", "vllm", map[string]string{"waiting": "my:queue", "kv_usage": "my:cache"}, 17, 7, 0.125, nil},
		{"a name that is not there does not fall back", "", map[string]string{"waiting": "my:typo"}, unknown, 7, 0.8125, []string{"waiting"}},
		{"an empty one is none", "", map[string]string{"waiting": ""}, 2, 7, 0.8125, nil},
		{"a field that the engine lacks", "llamacpp", map[string]string{"kv_usage": "my:cache"}, unknown, unknown, 0.125, []string{"waiting", "running"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			expectStats(t, parse(t, text, c.engine, c.overrides), c.waiting, c.running, c.kv, c.missing...)
		})
	}
	// An engine that nobody knows: what has no override is missing.
	s := parse(t, "my:queue 3\n", "", map[string]string{"waiting": "my:queue"})
	expectStats(t, s, 3, unknown, unknown, "running", "kv_usage")
}

func TestCacheConfig(t *testing.T) {
	line := func(engine, size, blocks string) string {
		return fmt.Sprintf("vllm:cache_config_info{block_size=%q,engine=%q,num_gpu_blocks=%q} 1.0\n", size, engine, blocks)
	}
	for _, c := range []struct {
		name, text   string
		size, blocks int
	}{
		{"captured", page1(t, "vllm_queueing.prom"), 32, 256},
		{"an engine without it", page1(t, "llamacpp_idle.prom"), 0, 0},
		{"ranks are summed", line("0", "16", "1000") + line("1", "16", "1024"), 16, 2024},
		{"not known yet", line("0", "16", "None"), 0, 0},
		{"nonsense", line("0", "-16", "100") + line("1", "16", "0") + line("2", "x", "5"), 0, 0},
		{"more than there is", line("0", "16", "9223372036854775807") + line("1", "9223372036854775807", "16"), 0, 0},
		{"one rank that does not say", line("0", "16", "1000") + line("1", "16", "None"), 16, 1000},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := parse(t, c.text, "", nil)
			if s.BlockSize != c.size || s.Blocks != c.blocks {
				t.Errorf("%d blocks of %d tokens, want %d of %d", s.Blocks, s.BlockSize, c.blocks, c.size)
			}
		})
	}
}

func TestEngines(t *testing.T) {
	if got, want := Engines(), []string{"llamacpp", "sglang", "vllm"}; !slices.Equal(got, want) {
		t.Errorf("engines %q, want %q", got, want)
	}
	for _, engine := range Engines() {
		for field := range names[engine] {
			if !slices.Contains(Fields, field) {
				t.Errorf("%s has a field %q that config does not know", engine, field)
			}
		}
	}
}

func BenchmarkParse60K(b *testing.B) {
	text := []byte(page1(b, "vllm_queueing.prom"))
	for i := 0; len(text) < 60<<10; i++ {
		text = fmt.Appendf(text, "vllm:request_prompt_tokens_bucket{engine=\"0\",le=\"%d.0\",model_name=\"tiny\"} 27.0\n", i)
	}
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Parse(bytes.NewReader(text), "", nil, []string{"tiny"}); err != nil {
			b.Fatal(err)
		}
	}
}
