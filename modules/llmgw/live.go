package llmgw

import (
	"context"
	"strconv"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/llmgw/llmgw/modules/internal/admit"
	"github.com/llmgw/llmgw/modules/internal/exchange"
	"github.com/llmgw/llmgw/modules/internal/fleet"
	"github.com/llmgw/llmgw/modules/internal/kvevents"
	"github.com/llmgw/llmgw/modules/internal/prefix"
	"github.com/llmgw/llmgw/modules/schedule"
)

// liveCollector reads what replicas are like at the moment of a scrape, so
// that no request pays for keeping gauges up to date.
type liveCollector struct {
	fleet *fleet.Fleet
	gate  *admit.Gate
	// prefix is what is remembered of prompts now.
	prefix *atomic.Pointer[prefix.Index]
	events *kvevents.Manager

	kvLive, kvBlocks, kvLag, kvGaps, kvFailures *prometheus.Desc

	memory, blocks, inflight, waiting, running, kv, stale, score, scorer, replicas, depth, saturation *prometheus.Desc
}

func newLiveCollector(f *fleet.Fleet, g *admit.Gate) *liveCollector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("llmgw_"+name, help, labels, nil)
	}
	return &liveCollector{
		fleet:      f,
		gate:       g,
		kvLive:     desc("kv_events_live", "1 while the replica's KV cache is known by its events, 0 while they are lost.", "replica", "rank"),
		kvBlocks:   desc("kv_events_blocks", "Blocks that the replica's KV cache is known to have.", "replica", "rank"),
		kvLag:      desc("kv_events_lag_seconds", "How much later than they were made the last events came.", "replica", "rank"),
		kvGaps:     desc("kv_events_gaps_total", "Gaps in the replica's events, which were asked for again.", "replica", "rank"),
		kvFailures: desc("kv_events_failures_total", "Connections for the replica's events that ended.", "replica", "rank"),
		memory:     desc("prefix_tree_bytes", "Bytes that the memory of which prompts went where takes."),
		blocks:     desc("prefix_tree_blocks", "Blocks of prompts that are remembered, of all replicas."),
		inflight:   desc("endpoint_inflight", "The gateway's own requests on the replica.", "replica"),
		waiting:    desc("endpoint_waiting", "Requests that wait in the engine, as last scraped; absent if unknown.", "replica"),
		running:    desc("endpoint_running", "Requests that run in the engine, as last scraped; absent if unknown.", "replica"),
		kv:         desc("endpoint_kv_usage", "Share of KV blocks in use, 0 to 1, as last scraped; absent if unknown.", "replica"),
		stale:      desc("endpoint_metrics_stale", "1 if the replica's last scrape failed.", "replica"),
		score:      desc("endpoint_score", "The total score that the replica would get now from the model's routing profile.", "model", "replica"),
		scorer:     desc("scorer_value", "What a scorer of the model's routing profile would give the replica now.", "model", "replica", "scorer"),
		replicas:   desc("replicas", "Replicas by state.", "model", "state"),
		depth:      desc("admission_queue_depth", "Requests that wait for their turn.", "band", "model"),
		saturation: desc("pool_saturation", "How full the model's replicas in the pool are: 1 is full.", "model", "pool"),
	}
}

// Describe implements prometheus.Collector.
func (c *liveCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.kvLive, c.kvBlocks, c.kvLag, c.kvGaps, c.kvFailures, c.memory, c.blocks, c.inflight, c.waiting, c.running, c.kv, c.stale, c.score, c.scorer, c.replicas, c.depth, c.saturation} {
		ch <- d
	}
}

// maxLiveModels is how many models have series of their own for each replica.
const maxLiveModels = 200

// states are all states, so that a count that falls to nothing is shown as 0.
var states = []schedule.State{schedule.Ready, schedule.Draining, schedule.Down, schedule.Cooling, schedule.Full}

// Collect implements prometheus.Collector.
func (c *liveCollector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	at := now()
	for _, r := range c.fleet.Replicas() {
		var s schedule.Replica
		r.Fill(&s, at, 0, 0)
		if s.Waiting.Known() {
			s.Waiting = r.Stats().Waiting // as scraped, not as estimated
		}
		gauge(c.inflight, float64(s.Inflight), r.ID)
		for _, v := range []struct {
			desc  *prometheus.Desc
			value schedule.Gauge
		}{{c.waiting, s.Waiting}, {c.running, s.Running}, {c.kv, s.KVUsage}} {
			if v.value.Known() {
				gauge(v.desc, float64(v.value), r.ID)
			}
		}
		stale := 0.0
		if s.Stale {
			stale = 1
		}
		gauge(c.stale, stale, r.ID)
		c.collectKV(ch, r)
	}
	if x := c.prefix.Load(); x != nil {
		bytes, blocks := x.Memory()
		gauge(c.memory, float64(bytes))
		gauge(c.blocks, float64(blocks))
	}
	for _, d := range c.gate.Depths() {
		gauge(c.depth, float64(d.Requests), d.Band, d.Model)
	}
	app := Current()
	if app == nil {
		return
	}
	models := app.runtime.Catalog.Models()
	// What engines list has no bound of ours, so it gets one here.
	for _, m := range models[:min(len(models), maxLiveModels)] {
		counts := make(map[schedule.State]int)
		for _, e := range m.Endpoints {
			counts[e.Replica.State()]++
		}
		for _, s := range states {
			gauge(c.replicas, float64(counts[s]), m.Name, s.String())
		}
		for pool, v := range admit.Saturations(m, at) {
			gauge(c.saturation, v, m.Name, pool)
		}
		for _, v := range app.runtime.Explain(context.Background(), m, &exchange.Question{}).Candidates {
			if len(v.Scores) == 0 {
				continue
			}
			gauge(c.score, v.Total, m.Name, v.Replica)
			for _, s := range v.Scores {
				gauge(c.scorer, s.Value, m.Name, v.Replica, s.Scorer)
			}
		}
	}
}

// collectKV reads how far the replica's events are followed.
func (c *liveCollector) collectKV(ch chan<- prometheus.Metric, r *fleet.Replica) {
	for i, f := range c.events.Ranks(r) {
		s, live := f.Status(), 0.0
		if s.State == kvevents.Live {
			live = 1
		}
		for _, v := range []struct {
			desc  *prometheus.Desc
			kind  prometheus.ValueType
			value float64
		}{
			{c.kvLive, prometheus.GaugeValue, live},
			{c.kvBlocks, prometheus.GaugeValue, float64(s.Blocks)},
			{c.kvLag, prometheus.GaugeValue, s.Lag.Seconds()},
			{c.kvGaps, prometheus.CounterValue, float64(s.Gaps)},
			{c.kvFailures, prometheus.CounterValue, float64(s.Failures)},
		} {
			ch <- prometheus.MustNewConstMetric(v.desc, v.kind, v.value, r.ID, strconv.Itoa(i))
		}
	}
}
