package sim

import (
	"math"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// scrape reads and parses the metrics page.
func scrape(t *testing.T, url string) map[string]*dto.MetricFamily {
	t.Helper()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	page, err := parser.TextToMetricFamilies(strings.NewReader(must(t, "GET", url+"/metrics", "")))
	if err != nil {
		t.Fatal(err)
	}
	return page
}

// value is the one series of a family with the given labels.
func value(t *testing.T, page map[string]*dto.MetricFamily, name string, labels ...string) float64 {
	t.Helper()
	found, out := 0, math.NaN()
	for _, m := range page[name].GetMetric() {
		have := make(map[string]string)
		for _, l := range m.GetLabel() {
			have[l.GetName()] = l.GetValue()
		}
		ok := true
		for i := 0; i < len(labels); i += 2 {
			ok = ok && have[labels[i]] == labels[i+1]
		}
		if !ok {
			continue
		}
		found++
		switch {
		case m.Gauge != nil:
			out = m.GetGauge().GetValue()
		case m.Counter != nil:
			out = m.GetCounter().GetValue()
		case m.Histogram != nil:
			out = float64(m.GetHistogram().GetSampleCount())
		}
	}
	if found != 1 {
		t.Errorf("%s%v: %d series: want 1", name, labels, found)
	}
	return out
}

func TestMetricsPage(t *testing.T) {
	_, srv := newTestEngine(t, goldenConfig())
	body := readCapture(t, "cached_1_cold").request // two tokens long
	u, _ := chatUsage(t, srv.URL, body)
	warm, _ := chatUsage(t, srv.URL, body)
	page := scrape(t, srv.URL)
	cached := float64(warm.PromptDetails.Cached)
	label := []string{"engine", "0", "model_name", "tiny"}
	for name, want := range map[string]float64{
		"vllm:num_requests_running":           0,
		"vllm:num_requests_waiting":           0,
		"vllm:kv_cache_usage_perc":            0,
		"vllm:prefix_cache_queries_total":     float64(2 * u.Prompt),
		"vllm:prefix_cache_hits_total":        cached,
		"vllm:prompt_tokens_total":            float64(2 * u.Prompt),
		"vllm:prompt_tokens_cached_total":     cached,
		"vllm:generation_tokens_total":        4,
		"vllm:num_preemptions_total":          0,
		"vllm:time_to_first_token_seconds":    2,
		"vllm:inter_token_latency_seconds":    2,
		"vllm:e2e_request_latency_seconds":    2,
		"vllm:request_queue_time_seconds":     2,
		"vllm:num_requests_waiting_by_reason": math.Inf(1),
	} {
		if math.IsInf(want, 1) {
			for _, reason := range []string{"capacity", "deferred"} {
				if got := value(t, page, name, append(label, "reason", reason)...); got != 0 {
					t.Errorf("%s %s is %g: want 0", name, reason, got)
				}
			}
			continue
		}
		if got := value(t, page, name, label...); got != want {
			t.Errorf("%s is %g: want %g", name, got, want)
		}
	}
	for reason, want := range map[string]float64{"stop": 0, "length": 2, "abort": 0, "error": 0, "repetition": 0} {
		if got := value(t, page, "vllm:request_success_total", append(label, "finished_reason", reason)...); got != want {
			t.Errorf("%s: %g requests: want %g", reason, got, want)
		}
	}
	value(t, page, "vllm:cache_config_info", "engine", "0", "block_size", "32", "num_gpu_blocks", "256")
	started := value(t, page, "process_start_time_seconds")
	if age := float64(time.Now().Unix()) - started; age < -1 || age > 3600 {
		t.Errorf("the process started %g s ago", age)
	}
	if got := value(t, page, "vllm:prefix_cache_queries_created", label...); got < started {
		t.Errorf("a counter was made at %f, before the process at %f", got, started)
	}
	if _, old := page["vllm:gpu_cache_usage_perc"]; old {
		t.Error("the old names are there too")
	}
}

// Every vllm family of the page that the recorded engine also has is of the
// same type and, but for cache_config_info, has the same labels.
func TestMetricsAgreeWithTheEngine(t *testing.T) {
	cfg := goldenConfig()
	_, srv := newTestEngine(t, cfg)
	must(t, "POST", srv.URL+"/v1/chat/completions", readCapture(t, "chat_lora").request)
	parser := expfmt.NewTextParser(model.UTF8Validation)
	real, err := parser.TextToMetricFamilies(strings.NewReader(readCapture(t, "metrics").body + "\n"))
	if err != nil {
		t.Fatal(err)
	}
	names := func(m *dto.Metric) string {
		var out []string
		for _, l := range m.GetLabel() {
			out = append(out, l.GetName())
		}
		return strings.Join(out, ",")
	}
	same := 0
	for name, family := range scrape(t, srv.URL) {
		if !strings.HasPrefix(name, "vllm:") {
			continue
		}
		want := real[name]
		if want == nil {
			t.Errorf("%s: the engine has no such family", name)
			continue
		}
		same++
		if family.GetType() != want.GetType() {
			t.Errorf("%s is a %s: want %s", name, family.GetType(), want.GetType())
		}
		if name == "vllm:cache_config_info" {
			continue
		}
		if got, want := names(family.GetMetric()[0]), names(want.GetMetric()[0]); got != want {
			t.Errorf("%s has labels %s: want %s", name, got, want)
		}
		if h := want.GetMetric()[0].GetHistogram(); h != nil && len(h.GetBucket()) != len(family.GetMetric()[0].GetHistogram().GetBucket()) {
			t.Errorf("%s has %d buckets: want %d", name, len(family.GetMetric()[0].GetHistogram().GetBucket()), len(h.GetBucket()))
		}
	}
	if same < 25 {
		t.Errorf("only %d families", same)
	}
}

func TestMetricsOfRanksAndOldNames(t *testing.T) {
	cfg := fast()
	cfg.DataParallel, cfg.OldMetricNames = 3, true
	cfg.Models = []string{`a"b\c`}
	_, srv := newTestEngine(t, cfg)
	page := scrape(t, srv.URL)
	for _, name := range []string{
		"vllm:num_requests_running", "vllm:gpu_cache_usage_perc", "vllm:gpu_prefix_cache_hits_total", "vllm:gpu_prefix_cache_queries_total",
	} {
		for _, engine := range []string{"0", "1", "2"} {
			value(t, page, name, "engine", engine, "model_name", cfg.Models[0])
		}
	}
	if _, ok := page["vllm:kv_cache_usage_perc"]; ok {
		t.Error("the new names are there too")
	}
}

// Under load the gauges show what runs, waits and is deferred, and which
// adapters.
func TestMetricsUnderLoad(t *testing.T) {
	cfg := goldenConfig()
	cfg.LoRAs, cfg.MaxLoRAs, cfg.MaxNumSeqs, cfg.Decode = []string{"alpha", "beta"}, 1, 2, 300*time.Millisecond
	_, srv := newTestEngine(t, cfg)
	ask := func(model string) {
		openStream(t, srv.URL, `{"model":"`+model+`","messages":[{"role":"user","content":"x"}],"max_tokens":1000,"ignore_eos":true,"stream":true}`)
	}
	ask("alpha")
	until(t, "alpha runs", func() bool {
		return value(t, scrape(t, srv.URL), "vllm:num_requests_running") == 1
	})
	ask("beta") // no slot for it
	until(t, "beta waits for its slot", func() bool {
		return value(t, scrape(t, srv.URL), "vllm:num_requests_waiting_by_reason", "reason", "deferred") == 1
	})
	ask("tiny") // overtakes it
	ask("tiny") // no sequence is free
	until(t, "two run and two wait", func() bool {
		page := scrape(t, srv.URL)
		return value(t, page, "vllm:num_requests_running") == 2 && value(t, page, "vllm:num_requests_waiting") == 2 &&
			value(t, page, "vllm:num_requests_waiting_by_reason", "reason", "capacity") == 1
	})
	until(t, "the adapters are shown", func() bool {
		for _, m := range scrape(t, srv.URL)["vllm:lora_requests_info"].GetMetric() {
			labels := ""
			for _, l := range m.GetLabel() {
				labels += l.GetName() + "=" + l.GetValue() + " "
			}
			if labels == "max_lora=1 running_lora_adapters=alpha waiting_lora_adapters=beta " && m.GetGauge().GetValue() > 1e9 {
				return true
			}
		}
		return false
	})
	page := scrape(t, srv.URL)
	if got := value(t, page, "vllm:kv_cache_usage_perc"); got <= 0 || got > 1 {
		t.Errorf("usage is %g", got)
	}
	if got := must(t, "GET", srv.URL+"/load", ""); got != `{"server_load":4}` {
		t.Errorf("load is %s", got)
	}
}
