package llmgw

import (
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/llmgw/llmgw/modules/internal/admit"
	"github.com/llmgw/llmgw/modules/internal/exchange"
	"github.com/llmgw/llmgw/modules/internal/fleet"
	"github.com/llmgw/llmgw/modules/schedule"
)

// metrics are the gateway's. The counters live in the shared state, so that
// they survive a reload, and are registered in each config's new registry.
// Label values come from closed sets: config, engines, statuses, never a
// client.
type metrics struct {
	requests  *prometheus.CounterVec
	duration  *prometheus.HistogramVec
	ttft      *prometheus.HistogramVec
	tpot      *prometheus.HistogramVec
	tokens    *prometheus.CounterVec
	overhead  prometheus.Histogram
	failures  *prometheus.CounterVec
	outcomes  *prometheus.CounterVec
	retries   *prometheus.CounterVec
	fallbacks *prometheus.CounterVec
	bodies    prometheus.GaugeFunc
	waits     *prometheus.HistogramVec
	rejected  *prometheus.CounterVec
	decisions *prometheus.CounterVec
	matched   *prometheus.HistogramVec
	noTokens  *prometheus.CounterVec
	adapters  *prometheus.CounterVec
	live      *liveCollector

	models sync.Map // model name -> *modelMetrics
	count  atomic.Int64
}

// maxModels is how many models have series of their own: engines list what they
// like, and models come and go.
const maxModels = 1000

// modelMetrics are the children of one model, looked up once.
type modelMetrics struct {
	name                 string // as a label
	duration, ttft, tpot prometheus.Observer
	prompt, completion   prometheus.Counter
	outcomes             map[exchange.Outcome]prometheus.Counter
	decisions            map[schedule.CacheDecision]prometheus.Counter
	matched              prometheus.Observer
	status               sync.Map // pool + status -> prometheus.Counter
}

var (
	secondsBuckets = []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 25, 60, 120, 300}
	tokenBuckets   = []float64{.002, .005, .01, .015, .02, .03, .05, .075, .1, .2, .5, 1}
	// An overhead of 2 ms at the 99th percentile is the promise.
	overheadBuckets = []float64{.00005, .0001, .0002, .0005, .001, .002, .005, .01, .05}
)

func newMetrics(f *fleet.Fleet, budget *exchange.Budget, gate *admit.Gate) *metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "llmgw_" + name, Help: help}, labels)
	}
	histogram := func(name, help string, buckets []float64) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "llmgw_" + name, Help: help, Buckets: buckets}, []string{"model"})
	}
	return &metrics{
		requests: counter("requests_total", "Requests that ended, by what the client got.", "model", "pool", "status"),
		outcomes: counter("outcomes_total", "Requests that ended, by how they did.", "model", "outcome"),
		duration: histogram("request_duration_seconds", "Time from the request's arrival to the end of its answer.", secondsBuckets),
		ttft:     histogram("ttft_seconds", "Time from the request's arrival to the first token of a stream.", secondsBuckets),
		tpot:     histogram("tpot_seconds", "Mean time per output token after the first, by stream.", tokenBuckets),
		tokens:   counter("tokens_total", "Tokens as the engines counted them.", "model", "direction"),
		overhead: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "llmgw_overhead_seconds", Buckets: overheadBuckets,
			Help: "The gateway's own time in a request before it is sent to a replica, waits left out.",
		}),
		failures:  counter("schedule_failures_total", "Decisions that found no replica, by reason.", "model", "reason"),
		retries:   counter("retries_total", "Further replicas that requests were sent to after one failed.", "model"),
		fallbacks: counter("fallbacks_total", "Requests that another model served than the one asked for.", "model", "fallback"),
		bodies: prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "llmgw_body_bytes", Help: "Bytes of request bodies that are held now.",
		}, func() float64 { return float64(budget.Used()) }),
		waits: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "llmgw_admission_wait_seconds", Buckets: secondsBuckets,
			Help: "How long requests waited, in all their turns, that were let through after a wait, by band.",
		}, []string{"band"}),
		rejected:  counter("admission_rejected_total", "Requests that were not let through, by band and reason.", "band", "reason"),
		decisions: counter("cache_decision_total", "Decisions by what became of the wish to go where the prompt's beginning is held.", "model", "decision"),
		matched: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "llmgw_prefix_match_ratio", Buckets: []float64{0, .1, .2, .3, .4, .5, .6, .7, .8, .9, .95, 1},
			Help: "The share of the prompt that the chosen replica was taken to hold.",
		}, []string{"model"}),
		noTokens: counter("no_tokens_total", "Requests that went by the text of their prompt, since its tokens were not to be had in time.", "model"),
		adapters: counter("adapter_loads_total", "LoRA adapters that replicas were asked to load, by outcome: ok or error.", "model", "outcome"),
		live:     newLiveCollector(f, gate),
	}
}

func (m *metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{
		m.requests, m.outcomes, m.duration, m.ttft, m.tpot, m.tokens, m.overhead, m.failures, m.retries, m.fallbacks, m.bodies, m.waits, m.rejected, m.decisions, m.matched, m.noTokens, m.adapters, m.live,
	}
}

// register puts the collectors into a config's registry. One that is there
// already, of an earlier app in the same config, serves as well: it is the
// same.
func (m *metrics) register(r *prometheus.Registry) error {
	for _, c := range m.collectors() {
		err := r.Register(c)
		if _, again := errors.AsType[prometheus.AlreadyRegisteredError](err); err != nil && !again {
			return err
		}
	}
	return nil
}

func (m *metrics) model(name string) *modelMetrics {
	if v, ok := m.models.Load(name); ok {
		return v.(*modelMetrics)
	}
	if name != exchange.OtherModel && m.count.Add(1) > maxModels {
		return m.model(exchange.OtherModel)
	}
	outcomes := make(map[exchange.Outcome]prometheus.Counter)
	for _, o := range exchange.Outcomes {
		outcomes[o] = m.outcomes.WithLabelValues(name, string(o))
	}
	decisions := make(map[schedule.CacheDecision]prometheus.Counter)
	for _, d := range schedule.CacheDecisions {
		decisions[d] = m.decisions.WithLabelValues(name, string(d))
	}
	v, _ := m.models.LoadOrStore(name, &modelMetrics{
		name: name, outcomes: outcomes, decisions: decisions, matched: m.matched.WithLabelValues(name),
		duration: m.duration.WithLabelValues(name), ttft: m.ttft.WithLabelValues(name), tpot: m.tpot.WithLabelValues(name),
		prompt: m.tokens.WithLabelValues(name, "prompt"), completion: m.tokens.WithLabelValues(name, "completion"),
	})
	return v.(*modelMetrics)
}

// statusKey finds the counter of a pool and a status.
type statusKey struct {
	pool   string
	status int
}

func (m *metrics) status(mm *modelMetrics, key statusKey) prometheus.Counter {
	if v, ok := mm.status.Load(key); ok {
		return v.(prometheus.Counter)
	}
	c := m.requests.WithLabelValues(mm.name, key.pool, strconv.Itoa(key.status))
	mm.status.Store(key, c)
	return c
}

// ended counts an exchange that has ended.
func (m *metrics) ended(x *exchange.Exchange) {
	if x.Route.Kind == exchange.KindModels {
		return
	}
	res, end := x.Result(), now()
	mm := m.model(x.ModelName())
	m.status(mm, statusKey{x.Pool(), res.Status}).Inc()
	if c := mm.outcomes[res.Outcome]; c != nil {
		c.Inc()
	}
	mm.duration.Observe(end.Sub(x.Start).Seconds())
	if !res.FirstToken.IsZero() {
		mm.ttft.Observe(res.FirstToken.Sub(x.Start).Seconds())
		if n := Completion(res); n > 1 && res.Outcome == exchange.OutcomeOK {
			mm.tpot.Observe(end.Sub(res.FirstToken).Seconds() / float64(n-1))
		}
	}
	if res.UsageKnown {
		mm.prompt.Add(float64(res.Usage.Prompt))
		mm.completion.Add(float64(res.Usage.Completion))
	}
	if !res.Sent.IsZero() {
		m.overhead.Observe(x.Overhead().Seconds())
	}
	if d := x.Queued(); d > 0 && x.Granted() {
		m.waits.WithLabelValues(x.Band()).Observe(d.Seconds())
	}
	if n := x.Attempts(); n > 1 {
		m.retries.WithLabelValues(mm.name).Add(float64(n - 1))
	}
	if other := x.Fallback(); other != "" {
		m.fallbacks.WithLabelValues(mm.name, m.model(other).name).Inc()
	}
}

// picked counts a decision, and why if it found no replica.
func (m *metrics) picked(x *exchange.Exchange, failure string) {
	mm := m.model(x.ModelName())
	if c := mm.decisions[x.CacheDecision()]; c != nil {
		c.Inc()
	}
	if failure != "" {
		m.failures.WithLabelValues(mm.name, failure).Inc()
	} else if v := x.Matched(); v.Known() {
		mm.matched.Observe(float64(v))
	}
}

// notAdmitted counts a request that was not let through. It is for the gate.
func (m *metrics) notAdmitted(_, band string, reason admit.Reason) {
	m.rejected.WithLabelValues(band, string(reason)).Inc()
}

// Completion returns the output tokens of a result: the engine's count, else
// the number of content events, which is close to it.
func Completion(r exchange.Result) int64 {
	if r.UsageKnown {
		return r.Usage.Completion
	}
	return int64(r.Events)
}

// TTFT returns the time to the first token, or 0 if none came.
func TTFT(x *exchange.Exchange, r exchange.Result) time.Duration {
	if r.FirstToken.IsZero() {
		return 0
	}
	return r.FirstToken.Sub(x.Start)
}
