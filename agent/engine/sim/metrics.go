package sim

import (
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// pageType is vLLM's content type of the metrics page.
const pageType = "text/plain; version=1.0.0; charset=utf-8"

// metrics serves /metrics.
func (x *call) metrics() {
	b := &x.e.faults
	b.mu.Lock()
	mode, frozen := b.fault.Mode, b.frozen
	b.mu.Unlock()
	switch {
	case mode == ModeNoMetrics:
		x.json(http.StatusNotFound, detail{"Not Found"})
	case mode == ModeRedirectMetrics && x.r.URL.Path == "/metrics":
		x.w.Header().Set("Location", "http://"+x.r.Host+"/metrics/")
		x.answer(http.StatusTemporaryRedirect, "", nil)
	case frozen != nil:
		x.answer(http.StatusOK, pageType, frozen)
	default:
		x.answer(http.StatusOK, pageType, x.page())
	}
}

// rankStats is what one scrape reads of one rank.
type rankStats struct {
	stats
	running, waiting, deferred int
	usage                      float64
}

// read copies the statistics of a rank.
func (r *rank) read() rankStats {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := rankStats{stats: r.stats, running: len(r.running), waiting: len(r.waiting), deferred: r.deferred(), usage: r.blocks.usage()}
	for _, h := range []**histogram{&out.firstToken, &out.interToken, &out.whole, &out.queueTime} {
		h0 := **h
		h0.counts = slices.Clone(h0.counts)
		*h = &h0
	}
	out.loras = make(map[loraSet]time.Time, len(r.stats.loras))
	for set, at := range r.stats.loras {
		out.loras[set] = at
	}
	return out
}

// page writes the metrics page in vLLM's order and number format.
func (x *call) page() []byte {
	cfg := &x.e.cfg
	p := &pageWriter{model: cfg.Models[0]}
	ranks := make([]rankStats, len(x.core.ranks))
	for i, r := range x.core.ranks {
		ranks[i] = r.read()
	}
	p.head("process_start_time_seconds", "gauge", "Start time of the process since unix epoch in seconds.")
	p.sample("process_start_time_seconds", seconds(x.core.start))
	gauge := func(name, help string, value func(*rankStats) float64) {
		kind := "gauge"
		if strings.HasSuffix(name, "_total") {
			kind = "counter"
		}
		p.head(name, kind, help)
		for i := range ranks {
			p.sample(name, value(&ranks[i]), "engine", strconv.Itoa(i))
		}
	}
	counter := func(name, help string, value func(*rankStats) float64) {
		gauge(name+"_total", help, value)
		p.created(name, help, ranks)
	}
	gauge("vllm:num_requests_running", "Number of requests in model execution batches.", func(s *rankStats) float64 { return float64(s.running) })
	gauge("vllm:num_requests_waiting", "Number of requests waiting to be processed.", func(s *rankStats) float64 { return float64(s.waiting) })
	p.head("vllm:num_requests_waiting_by_reason", "gauge", "Number of waiting requests by reason. Reason labels: 'capacity' = waiting for scheduling capacity; 'deferred' = deferred by transient constraints (LoRA budget).")
	for i, s := range ranks {
		p.sample("vllm:num_requests_waiting_by_reason", float64(s.waiting-s.deferred), "engine", strconv.Itoa(i), "reason", "capacity")
		p.sample("vllm:num_requests_waiting_by_reason", float64(s.deferred), "engine", strconv.Itoa(i), "reason", "deferred")
	}
	usageName, cacheName := "vllm:kv_cache_usage_perc", "vllm:prefix_cache"
	if cfg.OldMetricNames {
		usageName, cacheName = "vllm:gpu_cache_usage_perc", "vllm:gpu_prefix_cache"
	}
	gauge(usageName, "KV-cache usage. 1 means 100 percent usage.", func(s *rankStats) float64 { return s.usage })
	counter(cacheName+"_queries", "Prefix cache queries, in terms of number of queried tokens.", func(s *rankStats) float64 { return s.queries })
	counter(cacheName+"_hits", "Prefix cache hits, in terms of number of cached tokens.", func(s *rankStats) float64 { return s.hits })
	counter("vllm:num_preemptions", "Cumulative number of preemption from the engine.", func(s *rankStats) float64 { return s.preemptions })
	counter("vllm:prompt_tokens", "Number of prefill tokens processed.", func(s *rankStats) float64 { return s.prompt })
	counter("vllm:prompt_tokens_cached", "Number of cached prompt tokens (local + external).", func(s *rankStats) float64 { return s.promptCached })
	counter("vllm:generation_tokens", "Number of generation tokens processed.", func(s *rankStats) float64 { return s.generated })
	p.success(ranks)
	p.head("vllm:admission_rejections_total", "counter", "Number of admission attempts rejected by a queue limit, by reason.")
	p.sample("vllm:admission_rejections_total", float64(x.core.rejected.Load()), "reason", "max_num_queued_reqs")
	for _, h := range []struct {
		name, help string
		of         func(*rankStats) *histogram
	}{
		{"vllm:time_to_first_token_seconds", "Histogram of time to first token in seconds.", func(s *rankStats) *histogram { return s.firstToken }},
		{"vllm:inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", func(s *rankStats) *histogram { return s.interToken }},
		{"vllm:e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", func(s *rankStats) *histogram { return s.whole }},
		{"vllm:request_queue_time_seconds", "Histogram of time spent in WAITING phase for request.", func(s *rankStats) *histogram { return s.queueTime }},
	} {
		p.histogram(h.name, h.help, ranks, h.of)
	}
	p.loras(cfg, ranks)
	p.head("vllm:cache_config_info", "gauge", "Information of the LLMEngine CacheConfig")
	for i := range ranks {
		p.bare("vllm:cache_config_info", 1, "block_size", strconv.Itoa(cfg.BlockSize), "cache_dtype", "auto", "enable_prefix_caching", "True",
			"engine", strconv.Itoa(i), "kv_cache_size_tokens", strconv.Itoa(cfg.KVBlocks*cfg.BlockSize), "num_cpu_blocks", "None", "num_gpu_blocks", strconv.Itoa(cfg.KVBlocks))
	}
	p.head("llmgw_sim_info", "gauge", "What the simulator plays.")
	p.bare("llmgw_sim_info", 1, "gpu_class", cfg.GPUClass, "node_rank", strconv.Itoa(cfg.Rank), "nodes", strconv.Itoa(cfg.Nodes))
	return p.out
}

// pageWriter writes the Prometheus text format as the Python client does:
// floats with a point, labels sorted by name.
type pageWriter struct {
	out   []byte
	model string
}

func (p *pageWriter) head(name, kind, help string) {
	p.out = append(p.out, "# HELP "+name+" "+help+"\n# TYPE "+name+" "+kind+"\n"...)
}

// sample writes a series with the label model_name beside the given ones.
func (p *pageWriter) sample(name string, v float64, labels ...string) {
	if strings.HasPrefix(name, "vllm:") {
		at := len(labels)
		for i := 0; i < len(labels); i += 2 {
			if labels[i] > "model_name" {
				at = i
				break
			}
		}
		labels = slices.Insert(labels, at, "model_name", p.model)
	}
	p.bare(name, v, labels...)
}

// bare writes a series with the given labels alone, names and values in turn.
func (p *pageWriter) bare(name string, v float64, labels ...string) {
	p.out = append(p.out, name...)
	for i := 0; i < len(labels); i += 2 {
		p.out = append(p.out, "{,"[min(i, 1)])
		p.out = append(p.out, labels[i]+`="`+labelEscape.Replace(labels[i+1])+`"`...)
	}
	if len(labels) > 0 {
		p.out = append(p.out, '}')
	}
	p.out = append(p.out, " "+pageFloat(v)+"\n"...)
}

var labelEscape = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)

// pageFloat writes a number as the Python client does: with an exponent from
// 1e6 on.
func pageFloat(v float64) string {
	if math.IsInf(v, 1) {
		return "+Inf"
	}
	if math.Abs(v) >= 1e6 {
		return strconv.FormatFloat(v, 'e', -1, 64)
	}
	return pyFloat(v)
}

func seconds(t time.Time) float64 { return float64(t.UnixNano()) / 1e9 }

// created writes the gauge that says since when a metric counts.
func (p *pageWriter) created(name, help string, ranks []rankStats) {
	p.head(name+"_created", "gauge", help)
	for i, s := range ranks {
		p.sample(name+"_created", seconds(s.stats.created), "engine", strconv.Itoa(i))
	}
}

// success writes the finished requests by reason.
func (p *pageWriter) success(ranks []rankStats) {
	const name, help = "vllm:request_success", "Count of successfully processed requests."
	p.head(name+"_total", "counter", help)
	for i, s := range ranks {
		for k, reason := range finishReasons {
			p.sample(name+"_total", s.stats.success[k], "engine", strconv.Itoa(i), "finished_reason", reason)
		}
	}
	p.head(name+"_created", "gauge", help)
	for i, s := range ranks {
		for _, reason := range finishReasons {
			p.sample(name+"_created", seconds(s.stats.created), "engine", strconv.Itoa(i), "finished_reason", reason)
		}
	}
}

func (p *pageWriter) histogram(name, help string, ranks []rankStats, of func(*rankStats) *histogram) {
	p.head(name, "histogram", help)
	for i := range ranks {
		h, engine, sum := of(&ranks[i]), strconv.Itoa(i), uint64(0)
		for k, n := range h.counts {
			le := "+Inf"
			if k < len(h.bounds) {
				le = pyFloat(h.bounds[k])
			}
			sum += n
			p.sample(name+"_bucket", float64(sum), "engine", engine, "le", le)
		}
		p.sample(name+"_count", float64(h.n), "engine", engine)
		p.sample(name+"_sum", h.sum, "engine", engine)
	}
	p.created(name, help, ranks)
}

// loras writes the adapter sets that were seen, each with the time when.
func (p *pageWriter) loras(cfg *Config, ranks []rankStats) {
	if !cfg.hasLoRAs() {
		return
	}
	latest := make(map[loraSet]time.Time)
	for _, s := range ranks {
		for set, at := range s.stats.loras {
			if at.After(latest[set]) {
				latest[set] = at
			}
		}
	}
	sets := make([]loraSet, 0, len(latest))
	for set := range latest {
		sets = append(sets, set)
	}
	slices.SortFunc(sets, func(a, b loraSet) int {
		return strings.Compare(a.running+"\x00"+a.waiting, b.running+"\x00"+b.waiting)
	})
	p.head("vllm:lora_requests_info", "gauge", "Running stats on lora requests.")
	for _, set := range sets {
		p.bare("vllm:lora_requests_info", seconds(latest[set]),
			"max_lora", strconv.Itoa(cfg.MaxLoRAs), "running_lora_adapters", set.running, "waiting_lora_adapters", set.waiting)
	}
}
