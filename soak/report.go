package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"
)

// ending is how a request ended for its client.
type ending struct {
	*request
	verdict
	id           string // the gateway's, "" if no answer began
	began, ended time.Time
}

// entry is what the gateway's access log says of a request.
type entry struct {
	RequestID       string `json:"request_id"`
	ClientRequestID string `json:"client_request_id"`
	Replica         string
	Status          int
	Attempts        int
	Reason          string
	Error           string
	Outcome         string
}

// span is a time in which an engine had trouble.
type span struct {
	name     string
	excuses  bool
	from, to time.Time // to is zero while it lasts
}

// report gathers what happened.
type report struct {
	mu       sync.Mutex
	counts   map[string]map[string]int // kind of request -> outcome
	reasons  map[string]int            // of failures
	events   map[string]int            // what the chaos did
	spans    map[string][]*span        // by engine
	reloads  []*span
	skipped  int
	sent     int               // all requests
	answered int               // of them an answer began
	unsure   map[string]bool   // no answer began: the gateway may have seen them, by client id
	seen     map[string]bool   // by client id: the log has it
	failures []*ending         // to be explained
	entries  map[string]*entry // of what did not end well, by client id
	logLines int
	wrongs   []error
	rss      []float64 // MiB
	heap     []float64
}

func newReport() *report {
	return &report{
		counts: make(map[string]map[string]int), reasons: make(map[string]int), events: make(map[string]int),
		spans: make(map[string][]*span), unsure: make(map[string]bool), seen: make(map[string]bool), entries: make(map[string]*entry),
	}
}

func (r *report) capped() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.skipped++
}

// reload notes that a config is loaded until the function that it returns is
// called.
func (r *report) reload() (end func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := &span{name: "reload", from: time.Now()}
	r.reloads = append(r.reloads, s)
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		s.to = time.Now()
	}
}

func (r *report) event(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events[name]++
}

// trouble notes that an engine has trouble until the function that it returns is
// called.
func (r *report) trouble(address, name string, excuses bool) (end func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events[name]++
	s := &span{name: name, excuses: excuses, from: time.Now()}
	r.spans[address] = append(r.spans[address], s)
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		s.to = time.Now()
	}
}

// ended counts a request.
func (r *report) ended(e *ending) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sent++
	if e.id == "" {
		r.unsure[e.request.id] = true
	} else {
		r.answered++
	}
	if r.counts[e.name] == nil {
		r.counts[e.name] = make(map[string]int)
	}
	r.counts[e.name][e.outcome]++
	if e.wrong != "" {
		r.wrongs = append(r.wrongs, fmt.Errorf("%s: %s", e.where(), e.wrong))
	}
	if e.reason != "" {
		r.reasons[e.reason]++
		e.body = "" // it may be large
		r.failures = append(r.failures, e)
	}
}

// logged takes a line of the access log.
func (r *report) logged(line []byte) {
	if !bytes.Contains(line, []byte(`"client_request_id":"soak-`)) {
		return
	}
	e := new(entry)
	err := json.Unmarshal(line, e)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		r.wrongs = append(r.wrongs, fmt.Errorf("a line of the access log: %w: %.300q", err, line))
		return
	}
	r.logLines++
	if r.seen[e.ClientRequestID] {
		r.wrongs = append(r.wrongs, fmt.Errorf("%s is in the access log twice", e.ClientRequestID))
	}
	r.seen[e.ClientRequestID] = true
	if e.Outcome != "ok" {
		r.entries[e.ClientRequestID] = e
	}
}

// totals returns how many requests the gateway must have counted, how many
// lines its log has, and how many of the first got no answer.
func (r *report) totals() (want, lines, maybe int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id := range r.unsure {
		if r.seen[id] {
			maybe++
		}
	}
	return r.answered + maybe, r.logLines, maybe
}

// violations are the answers that must not be, at most some of them.
func (r *report) violations() []error {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := slices.Clone(r.wrongs)
	for _, e := range r.failures {
		if e.outcome == outcomeLost && !r.mayBeLost(e) {
			all = append(all, fmt.Errorf("%s: %s", e.where(), e.reason))
		}
	}
	if n := len(all); n > mostShown {
		return append(all[:mostShown], fmt.Errorf("and %d more such answers", n-mostShown))
	}
	return all
}

// mayBeLost reports whether a request may have got no answer: at a reload.
func (r *report) mayBeLost(e *ending) bool {
	return r.entries[e.request.id] == nil && r.atReload(e)
}

// atReload reports whether a reload may have closed the connection of a request:
// one that nobody had accepted yet, or a kept one that was idle, at once or after
// a request of the old config that was on it.
func (r *report) atReload(e *ending) bool {
	after := late
	if e.kept {
		after = hung
	}
	return slices.ContainsFunc(r.reloads, func(s *span) bool {
		return s.from.Before(e.ended) && (s.to.IsZero() || s.to.Add(after).After(e.began))
	})
}

// late is how long after its trouble an engine's requests are still excused: a
// reset that is on its way, a port that opens again.
const late = time.Second

// excuse names the trouble that an engine had during a time.
func (r *report) excuse(address string, from, to time.Time) (name string, ok bool) {
	for _, s := range r.spans[address] {
		if s.excuses && s.from.Before(to) && (s.to.IsZero() || s.to.Add(late).After(from)) {
			return s.name, true
		}
	}
	return "", false
}

// explain says why a request failed: by the trouble of the engine that it went
// to, or by what else.
func (r *report) explain(e *ending) (why string, excused bool) {
	log := r.entries[e.request.id]
	if log == nil {
		if r.atReload(e) {
			return "not in the log, at a reload", false
		}
		return "not in the log", false
	}
	if log.Replica == "" {
		return "no replica was asked: " + log.Reason, false
	}
	if name, ok := r.excuse(log.Replica, e.began, e.ended); ok {
		return name, true
	}
	if log.Attempts > 1 {
		return fmt.Sprintf("after %d replicas: %s", log.Attempts, log.Error), false
	}
	return "an engine without trouble: " + log.Error, false
}

// print writes the tables.
func (r *report) print(out io.Writer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	defer w.Flush()
	fmt.Fprintf(w, "\n%d requests, %d left out while too many were on their way\n\n", r.sent, r.skipped)
	fmt.Fprintf(w, "REQUESTS\t%s\n", strings.Join(outcomes, "\t"))
	sums := make(map[string]int)
	for _, kind := range slices.Sorted(maps.Keys(r.counts)) {
		fmt.Fprint(w, kind)
		for _, o := range outcomes {
			fmt.Fprintf(w, "\t%d", r.counts[kind][o])
			sums[o] += r.counts[kind][o]
		}
		fmt.Fprintln(w)
	}
	fmt.Fprint(w, "all")
	for _, o := range outcomes {
		fmt.Fprintf(w, "\t%d", sums[o])
	}
	fmt.Fprintf(w, "\n\nWHAT WAS DONE\tTIMES\n")
	table(w, r.events)
	fmt.Fprintf(w, "\nFAILURES THAT CLIENTS SAW\tTIMES\n")
	table(w, r.reasons)
	with, without := make(map[string]int), make(map[string]int)
	var blameless []*ending
	for _, e := range r.failures {
		why, excused := r.explain(e)
		if excused {
			with[why+"\t"+e.reason]++
			continue
		}
		without[why+"\t"+e.reason]++
		blameless = append(blameless, e)
	}
	fmt.Fprintf(w, "\nTROUBLE OF THE ENGINE THAT WAS ASKED\tFAILURE\tTIMES\n")
	table(w, with)
	fmt.Fprintf(w, "\nFAILURES WITHOUT SUCH TROUBLE\tFAILURE\tTIMES\n")
	table(w, without)
	shown := make(map[string]int)
	for _, e := range blameless {
		const each = 3
		if shown[e.reason]++; shown[e.reason] <= each {
			fmt.Fprintf(w, "%s\t%s\n", e.where(), r.around(e))
		}
	}
	fmt.Fprintf(w, "\n%d of %d requests (%.3f %%) failed though the engine that they went to had no trouble\n",
		len(blameless), r.sent, 100*float64(len(blameless))/float64(max(r.sent, 1)))
	fmt.Fprintf(w, "\nMEMORY, MiB\tfirst fifth\tsecond\tthird\tfourth\tlast\n")
	fmt.Fprintf(w, "resident%s\n", fifths(r.rss))
	fmt.Fprintf(w, "Go heap%s\n\n", fifths(r.heap))
}

// mostShown bounds the list of what must not be.
const mostShown = 20

// where names a request and its time.
func (e *ending) where() string {
	const clock = "15:04:05.000"
	return fmt.Sprintf("%s %s %s, %s to %s", e.name, e.request.id, e.id, e.began.Format(clock), e.ended.Format(clock))
}

// around is what the log has of a request, and what its engine went through
// shortly before.
func (r *report) around(e *ending) string {
	log := r.entries[e.request.id]
	if log == nil {
		return e.reason
	}
	text := fmt.Sprintf("%s: %d %s on %q, attempt %d", e.reason, log.Status, log.Outcome, log.Replica, log.Attempts)
	for _, s := range r.spans[log.Replica] {
		if s.from.Before(e.ended) && (s.to.IsZero() || s.to.After(e.began.Add(-10*time.Second))) {
			text += fmt.Sprintf("; %s from %s to %s", s.name, s.from.Format(time.TimeOnly), s.to.Format(time.TimeOnly))
		}
	}
	return text
}

func table(w io.Writer, counts map[string]int) {
	for _, name := range slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		if counts[a] != counts[b] {
			return counts[b] - counts[a]
		}
		return strings.Compare(a, b)
	}) {
		fmt.Fprintf(w, "%s\t%d\n", name, counts[name])
	}
}

// fifth returns the mean of a part of the samples, 0 to 4.
func fifth(v []float64, part int) float64 {
	v = v[len(v)*part/5 : len(v)*(part+1)/5]
	sum := 0.0
	for _, x := range v {
		sum += x
	}
	return sum / float64(max(len(v), 1))
}

func fifths(v []float64) string {
	var b strings.Builder
	for part := range 5 {
		fmt.Fprintf(&b, "\t%.1f", fifth(v, part))
	}
	return b.String()
}

// flat checks that memory does not grow.
func (r *report) flat() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.rss) < 5 {
		return errors.New("too few samples of memory: let it run for longer")
	}
	const share, room = 1.1, 20
	second, last := fifth(r.rss, 1), fifth(r.rss, 4)
	if last > second*share+room {
		return fmt.Errorf("memory grows: %.1f MiB in the second fifth, %.1f MiB in the last", second, last)
	}
	return nil
}
