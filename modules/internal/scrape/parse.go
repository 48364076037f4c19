package scrape

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/llmgw/llmgw/modules/internal/fleet"
	"github.com/llmgw/llmgw/modules/schedule"
)

// The fields of the metric contract, as config names them.
const (
	FieldWaiting = "waiting"
	FieldRunning = "running"
	FieldKVUsage = "kv_usage"
)

// Fields are all fields whose metric name config may override.
var Fields = []string{FieldWaiting, FieldRunning, FieldKVUsage}

// names lists, per engine and field, the metric names in order of preference:
// today's first, then older spellings. A field that an engine has no metric for
// is absent, and so never missed.
//
// Sources: vLLM 0.32 and the rename of gpu_cache_usage_perc before it; SGLang
// 0.5 (the underscore spelling is that of its multiprocess collector);
// llama.cpp's server, which dropped its KV gauges.
var names = map[string]map[string][]string{
	"vllm": {
		FieldWaiting: {"vllm:num_requests_waiting"},
		FieldRunning: {"vllm:num_requests_running"},
		FieldKVUsage: {"vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"},
	},
	"sglang": {
		FieldWaiting: {"sglang:num_queue_reqs", "sglang_num_queue_reqs"},
		FieldRunning: {"sglang:num_running_reqs", "sglang_num_running_reqs"},
		FieldKVUsage: {"sglang:token_usage", "sglang_token_usage"},
	},
	"llamacpp": {
		FieldWaiting: {"llamacpp:requests_deferred"},
		FieldRunning: {"llamacpp:requests_processing"},
	},
}

// Engines are the engines whose metric names are known.
func Engines() []string { return slices.Sorted(maps.Keys(names)) }

// prompted are the counters of what an engine has read since it started, which fall when it
// starts anew, and started is when it did.
var prompted = []string{"vllm:prompt_tokens_total", "sglang:prompt_tokens_total", "sglang_prompt_tokens_total", "llamacpp:prompt_tokens_total"}

const (
	byReason    = "vllm:num_requests_waiting_by_reason"
	loraInfo    = "vllm:lora_requests_info"
	started     = "process_start_time_seconds"
	cacheConfig = "vllm:cache_config_info"
	// maxPage bounds a metrics page. A real one has 50 to 70 kB; many LoRA
	// adapters and data-parallel ranks multiply that.
	maxPage = 8 << 20
	// maxKept bounds the wanted lines of a page, which cost far more memory.
	maxKept = 1 << 20
	maxLine = 1 << 20
	// maxMessage bounds what an error repeats of a page.
	maxMessage = 200
	// The largest cache that is believed: beyond it sums could overflow.
	maxBlockSize, maxBlocks = 1 << 16, 1 << 30
	// maxGauge is the largest value of a gauge that is believed, of which requests are most, and
	// maxCounter that of a counter.
	maxGauge   = 1e7
	maxCounter = 1 << 53
)

// page is what of a metrics page matters, by metric name.
type page map[string]*dto.MetricFamily

// Parse reads a metrics page in Prometheus' text format. engine is one of
// [Engines], or "" to tell it from the names on the page. overrides maps a
// field to a metric name. models are the served names that the caller is
// interested in: series with another model_name are left out, unless the page
// has one model_name only, which is then an alias of the same model.
//
// A data-parallel engine has one set of series per rank (label engine in vLLM,
// dp_rank in SGLang). Waiting and running are summed over ranks; KV usage is
// that of the fullest rank, since a request that lands there suffers it.
// Series that differ in other labels only (tensor-parallel ranks, processes)
// are copies, and the highest counts. A field that is not on the page, or has a
// NaN, infinite or negative value in any rank, is unknown; Missing lists those
// that the engine should have. At is left zero.
//
// It fails on a page that is too large, cannot be read, or has a malformed line
// with one of the wanted names; other lines are not looked at.
func Parse(r io.Reader, engine string, overrides map[string]string, models []string) (*fleet.Stats, error) {
	p, err := read(r, wanted(engine, overrides))
	if err != nil {
		return nil, err
	}
	if engine == "" {
		engine = detect(p)
	}
	s := &fleet.Stats{}
	get := func(field string, combine func(a, b float64) float64) schedule.Gauge {
		family := p.find(engine, field, overrides)
		if family == nil {
			if _, has := names[engine][field]; has || engine == "" || overrides[field] != "" {
				s.Missing = append(s.Missing, field)
			}
			return schedule.Unknown
		}
		return aggregate(family, models, maxGauge, combine)
	}
	sum := func(a, b float64) float64 { return a + b }
	s.Waiting = get(FieldWaiting, sum)
	s.Running = get(FieldRunning, sum)
	s.KVUsage = get(FieldKVUsage, math.Max)
	// Rounding may put a full cache a little above 1; a percentage is not KV
	// usage as the contract has it, and a guess would be worse than nothing.
	if s.KVUsage > 1.01 {
		s.KVUsage = schedule.Unknown
	} else if s.KVUsage > 1 {
		s.KVUsage = 1
	}
	s.BlockSize, s.Blocks = p.blocks()
	s.Deferred = p.deferred(models)
	s.LoRAs, s.MaxLoRAs = p.loras()
	s.Prompted, s.Started = p.counter(prompted...), p.counter(started)
	return s, nil
}

// wanted are the metric names to look at.
func wanted(engine string, overrides map[string]string) map[string]bool {
	w := map[string]bool{cacheConfig: true, started: true, byReason: true, loraInfo: true}
	for _, n := range prompted {
		w[n] = true
	}
	for name, fields := range names {
		if engine != "" && name != engine {
			continue
		}
		for _, list := range fields {
			for _, n := range list {
				w[n] = true
			}
		}
	}
	for _, n := range overrides {
		w[n] = true
	}
	return w
}

// read parses the wanted lines of the page. The hundreds of others, mostly
// histograms, are skipped by name: parsing them costs thirty times as much,
// and a fault in one of them is none of ours.
func read(r io.Reader, want map[string]bool) (page, error) {
	var kept bytes.Buffer
	var numbers []int // of the kept lines, on the page
	limited := &io.LimitedReader{R: r, N: maxPage + 1}
	lines := bufio.NewScanner(limited)
	lines.Buffer(make([]byte, 0, 64<<10), maxLine)
	for number := 1; lines.Scan(); number++ {
		line := lines.Bytes()
		name := line
		if end := bytes.IndexAny(line, "{ \t"); end >= 0 {
			name = line[:end]
		}
		if !want[string(name)] {
			continue
		}
		if kept.Len()+len(line) >= maxKept {
			return nil, fmt.Errorf("the metrics page has more than %d bytes in the series that are read", maxKept)
		}
		kept.Write(line)
		kept.WriteByte('\n')
		numbers = append(numbers, number)
	}
	if limited.N <= 0 {
		return nil, fmt.Errorf("the metrics page is larger than %d bytes", maxPage)
	}
	if err := lines.Err(); err != nil {
		if errors.Is(err, bufio.ErrTooLong) {
			return nil, fmt.Errorf("the metrics page has a line of more than %d bytes", maxLine)
		}
		return nil, fmt.Errorf("reading the metrics page: %w", err)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(&kept)
	if pe, ok := errors.AsType[expfmt.ParseError](err); ok && pe.Line > 0 && pe.Line <= len(numbers) {
		return nil, fmt.Errorf("the metrics page is malformed in line %d: %s", numbers[pe.Line-1], pe.Msg[:min(len(pe.Msg), maxMessage)])
	}
	if err != nil {
		return nil, fmt.Errorf("the metrics page is malformed: %w", err)
	}
	return families, nil
}

// detect tells the engine from the names on the page; "" if none is known.
func detect(p page) string {
	for _, engine := range Engines() {
		for _, list := range names[engine] {
			for _, n := range list {
				if p[n] != nil {
					return engine
				}
			}
		}
	}
	return ""
}

// find returns the series of a field, or nil.
func (p page) find(engine, field string, overrides map[string]string) *dto.MetricFamily {
	if n := overrides[field]; n != "" {
		return p[n]
	}
	for _, n := range names[engine][field] {
		if p[n] != nil {
			return p[n]
		}
	}
	return nil
}

// counter returns the sum of all series of the first of the names that is on the page.
func (p page) counter(names ...string) schedule.Gauge {
	for _, n := range names {
		if family := p[n]; family != nil {
			return aggregate(family, nil, maxCounter, func(a, b float64) float64 { return a + b })
		}
	}
	return schedule.Unknown
}

// deferred reads how many requests wait in vLLM for something else than room.
func (p page) deferred(models []string) float64 {
	family := p[byReason]
	if family == nil {
		return 0
	}
	only := &dto.MetricFamily{Name: family.Name, Type: family.Type}
	for _, m := range family.Metric {
		if labelsOf(m)["reason"] == "deferred" {
			only.Metric = append(only.Metric, m)
		}
	}
	return aggregate(only, models, maxGauge, func(a, b float64) float64 { return a + b }).Or(0)
}

// loras reads which adapters vLLM uses now, and how many it can have loaded at once. Series of before
// stay on the page: the latest counts, whose value is when it was written.
func (p page) loras() (names []string, most int) {
	family := p[loraInfo]
	if family == nil {
		return nil, 0
	}
	latest := math.Inf(-1)
	for _, m := range family.Metric {
		labels, at := labelsOf(m), valueOf(m)
		n, err := strconv.Atoi(labels["max_lora"])
		if err != nil || n < 1 || n > maxLoRAs || !(at > latest) {
			continue
		}
		latest, most, names = at, n, nil
		for _, list := range []string{labels["running_lora_adapters"], labels["waiting_lora_adapters"]} {
			for name := range strings.SplitSeq(list, ",") {
				if name = strings.TrimSpace(name); name != "" && len(names) < maxLoRAs && !slices.Contains(names, name) {
					names = append(names, name)
				}
			}
		}
	}
	return names, most
}

// maxLoRAs bounds the adapters that are believed.
const maxLoRAs = 1024

// blocks reads vLLM's cache configuration, which it exposes as labels.
func (p page) blocks() (size, count int) {
	family := p[cacheConfig]
	if family == nil {
		return 0, 0
	}
	for _, m := range family.Metric {
		labels := labelsOf(m)
		s, err1 := strconv.Atoi(labels["block_size"])
		n, err2 := strconv.Atoi(labels["num_gpu_blocks"])
		if err1 == nil && err2 == nil && s > 0 && n > 0 && s <= maxBlockSize && n <= maxBlocks {
			size = s
			count += n
		}
	}
	return size, count
}

// aggregate folds the series of one field into one value; see [Parse].
func aggregate(family *dto.MetricFamily, models []string, most float64, combine func(a, b float64) float64) schedule.Gauge {
	relevant := ofModels(family, models)
	ranks := make(map[string]float64)
	for _, m := range relevant {
		labels := labelsOf(m)
		v := valueOf(m)
		if !(v >= 0 && v <= most) { // not a number, either
			return schedule.Unknown
		}
		// Two served models of one engine are different series, not copies.
		rank := labels["model_name"] + "\x00" + labels["engine"] + "\x00" + labels["dp_rank"]
		if old, ok := ranks[rank]; !ok || v > old {
			ranks[rank] = v
		}
	}
	if len(ranks) == 0 {
		return schedule.Unknown
	}
	total, first := 0.0, true
	for _, v := range ranks {
		if first {
			total, first = v, false
			continue
		}
		total = combine(total, v)
	}
	if math.IsInf(total, 0) {
		return schedule.Unknown
	}
	return schedule.Gauge(total)
}

// ofModels returns the series that belong to one of the models.
func ofModels(family *dto.MetricFamily, models []string) []*dto.Metric {
	var matching []*dto.Metric
	seen := make(map[string]bool)
	for _, m := range family.Metric {
		name, labelled := labelsOf(m)["model_name"]
		seen[name] = true
		if !labelled || slices.Contains(models, name) {
			matching = append(matching, m)
		}
	}
	// With one model_name on the page, a served name that differs from it is
	// an alias or an adapter of that model.
	if len(models) == 0 || len(matching) == 0 && len(seen) == 1 {
		return family.Metric
	}
	return matching
}

func labelsOf(m *dto.Metric) map[string]string {
	labels := make(map[string]string, len(m.Label))
	for _, l := range m.Label {
		labels[l.GetName()] = l.GetValue()
	}
	return labels
}

func valueOf(m *dto.Metric) float64 {
	switch {
	case m.Gauge != nil:
		return m.Gauge.GetValue()
	case m.Counter != nil:
		return m.Counter.GetValue()
	case m.Untyped != nil:
		return m.Untyped.GetValue()
	}
	return math.NaN()
}
