package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/llmgw/llmgw/agent/engine/sim"
)

// policy is a way to choose replicas, as lines of the model's config.
type policy struct {
	name, config, global string
}

// leastInflight sets the pace, too.
var leastInflight = policy{"least in-flight", "routing least", "routing least {\n\t\t\tscore inflight 1\n\t\t}"}

var policies = []policy{
	{"round robin", "routing debug", ""},
	leastInflight,
	{"session", "prefix {\n\t\t\t\ttree off\n\t\t\t}", ""},
	{"tree", "", ""},
	{"events", "prefix {\n\t\t\t\tevents on 200ms\n\t\t\t}", ""},
}

// outcome is what a run gave.
type outcome struct {
	hit       float64 // share of the prompts' tokens that were cached
	p50, p99  time.Duration
	imbalance float64         // the most requests that a replica got, over the mean
	sent      []time.Duration // when each request was sent, after the first
}

// Each of the simulated engines.
const (
	routingSlots   = 16
	routingPrefill = 100 * time.Microsecond
	routingDecode  = 4 * time.Millisecond
	perReplica     = 6 // clients, of the run that sets the pace
	// routingLoad is how many requests come in the time in which those clients send one: all policies get
	// the same ones at the same times. With clients that wait for their answers, a policy that serves most of
	// them sooner gets more to do at once, and pays for that with its slowest.
	routingLoad = 0.9
	// startApart is how long after another each client starts: else what the 99th percentile says is how
	// all of them begin at once.
	startApart = 10 * time.Millisecond
)

// sets are the working sets that are tried, as multiples of all caches together.
var sets = []float64{0.5, 2, 8}

// routing measures what each policy makes of each workload, and prints a table in Markdown.
func routing(ctx context.Context, binary, only, fleets string) (err error) {
	var sizes []int
	for text := range strings.SplitSeq(fleets, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > 64 {
			return fmt.Errorf("-fleets %q: want numbers from 1 to 64", fleets)
		}
		sizes = append(sizes, n)
	}
	fmt.Println("| replicas | workload | working set | policy | hit ratio | of the bound | TTFT p50 | p99 | busiest |")
	fmt.Println("|---|---|---|---|---|---|---|---|---|")
	for _, n := range sizes {
		for _, w := range workloads {
			if !strings.Contains(w.name, only) {
				continue
			}
			last := 0
			for _, set := range sets {
				if last, err = routeAll(ctx, binary, n, w, set, last); err != nil {
					return fmt.Errorf("%d replicas, %s, working set %v: %w", n, w.name, set, err)
				}
			}
		}
	}
	return nil
}

// routeAll measures all policies with one workload on engines of their own, whose size in blocks it
// returns; not again if that is the last one.
func routeAll(ctx context.Context, binary string, n int, w workload, set float64, last int) (each int, err error) {
	random := rand.New(rand.NewPCG(uint64(n), uint64(len(w.name))))
	talks := w.talks(random, n)
	sequence := order(random, talks)
	requests, blocks := trace(talks, sequence)
	longest := 0
	for _, r := range requests {
		longest = max(longest, len(r.prompt)+len(r.answer))
	}
	// What runs has to fit, whatever the working set.
	each = max(int(float64(blocks)/set)/n, (longest+8)*perReplica)
	if each == last {
		return each, nil
	}
	engines, err := startSims(ctx, n, each)
	if err != nil {
		return each, err
	}
	defer func() { err = errors.Join(err, engines.end()) }()
	most := bound(requests, each*n)
	pace, err := routeOne(ctx, binary, leastInflight, engines.addresses, talks, sequence, nil)
	if err != nil {
		return each, fmt.Errorf("the pace: %w", err)
	}
	for i := range pace.sent {
		pace.sent[i] = time.Duration(float64(pace.sent[i]) / routingLoad)
	}
	for _, p := range policies {
		o, err := routeOne(ctx, binary, p, engines.addresses, talks, sequence, pace.sent)
		if err != nil {
			return each, fmt.Errorf("%s: %w", p.name, err)
		}
		of := "-"
		if most > 0.01 {
			of = fmt.Sprintf("%.2f", o.hit/most)
		}
		fmt.Printf("| %d | %s | %.1fx | %s | %.3f | %s | %d ms | %d ms | %.2f |\n",
			n, w.name, float64(blocks)/float64(each*n), p.name, o.hit, of, o.p50.Milliseconds(), o.p99.Milliseconds(), o.imbalance)
	}
	return each, nil
}

// simulated are engines in this process.
type simulated struct {
	addresses []string
	stop      context.CancelFunc
	ended     chan error
}

func (s *simulated) end() (err error) {
	s.stop()
	for range s.addresses {
		err = errors.Join(err, <-s.ended)
	}
	return err
}

func startSims(ctx context.Context, n, blocks int) (*simulated, error) {
	ctx, stop := context.WithCancel(ctx)
	s := &simulated{stop: stop, ended: make(chan error, n)}
	for range n {
		cfg := sim.DefaultConfig()
		cfg.Models, cfg.KVBlocks, cfg.MaxModelLen = []string{"m"}, blocks, min(16*blocks, 1<<20)
		cfg.MaxNumSeqs, cfg.MaxBatchedTokens = routingSlots, 4096
		cfg.PrefillPerToken, cfg.Decode, cfg.DecodePerSeq = routingPrefill, routingDecode, 0
		cfg.KVEvents, cfg.KVEventsReplay = "tcp://127.0.0.1:0", "tcp://127.0.0.1:0"
		address, err := sim.Start(ctx, cfg, "127.0.0.1:0", s.ended)
		if err != nil {
			return nil, errors.Join(err, s.end())
		}
		s.addresses = append(s.addresses, address)
	}
	return s, nil
}

// routeOne plays the conversations through a gateway with one policy, see [play].
func routeOne(ctx context.Context, binary string, p policy, addresses []string, talks []talk, sequence []int, at []time.Duration) (o outcome, err error) {
	ctx, cancel := context.WithCancel(ctx)
	var all children
	defer all.end(cancel)
	for _, a := range addresses {
		if err := forget(ctx, "http://"+a); err != nil {
			return o, err
		}
	}
	option := "llmgw {\n\t\t" + p.global + "\n\t\tmodel m {\n\t\t\t" + p.config + "\n\t\t\tendpoint " + strings.Join(addresses, " ") +
		" {\n\t\t\t\tbatch_capacity " + fmt.Sprint(routingSlots) + "\n\t\t\t}\n\t\t}\n\t}"
	g, err := startProxy(ctx, &all, binary, "llm", option)
	if err != nil {
		return o, err
	}
	if p.name == "events" {
		if err := followed(ctx, g.admin, len(addresses)); err != nil {
			return o, err
		}
	}
	return play(ctx, g.url, len(addresses), talks, sequence, at)
}

// followed waits until a gateway follows the events of so many replicas.
func followed(ctx context.Context, admin string, replicas int) error {
	live := 0
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end) && ctx.Err() == nil; time.Sleep(20 * time.Millisecond) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, admin+"/llmgw/replicas", nil)
		if err != nil {
			return err
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		var all []struct {
			KVEvents []struct{ State string } `json:"kv_events"`
		}
		err = json.NewDecoder(res.Body).Decode(&all)
		res.Body.Close()
		if err != nil {
			return err
		}
		live = 0
		for _, r := range all {
			if len(r.KVEvents) == 1 && r.KVEvents[0].State == "live" {
				live++
			}
		}
		if live == replicas {
			return nil
		}
	}
	return fmt.Errorf("the events of %d replicas of %d are followed", live, replicas)
}

// forget makes an engine forget what it has cached, and say so: the event of that goes out with the first step
// after it.
func forget(ctx context.Context, engine string) error {
	c := client(1)
	defer c.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, engine+"/sim/reset", nil)
	if err != nil {
		return err
	}
	res, err := c.Do(req)
	if err != nil {
		return err
	}
	_ = res.Body.Close()
	if res, err = post(ctx, c, engine, `{"model":"m","messages":[{"role":"user","content":"x"}],"max_tokens":1}`); err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", engine, res.Status)
	}
	_, err = io.Copy(io.Discard, res.Body)
	return err
}

// play sends the turns of the conversations, each after the answer of the one before: at these times, or,
// if at is nil, by clients that have one request each.
func play(ctx context.Context, url string, replicas int, talks []talk, sequence []int, at []time.Duration) (o outcome, err error) {
	c := client(max(perReplica*replicas, len(at)))
	defer c.CloseIdleConnections()
	history := make([][]message, len(talks))
	said := make([]int, len(talks))
	for i, t := range talks {
		history[i] = []message{{"system", t.system}}
	}
	var mu sync.Mutex
	var waits []time.Duration
	served := make(map[string]int)
	cached, tokens := 0, 0
	busy := make([]sync.Mutex, len(talks))
	var wg sync.WaitGroup
	var faults []error
	begun := time.Now()
	o.sent = make([]time.Duration, len(sequence))
	send := func(place int) {
		i := sequence[place]
		busy[i].Lock()
		defer busy[i].Unlock()
		o.sent[place] = time.Since(begun)
		history[i] = append(history[i], message{"user", talks[i].turns[said[i]]})
		said[i]++
		a, err := ask(ctx, c, url, fmt.Sprint("talk-", i), history[i])
		history[i] = append(history[i], message{"assistant", a.text})
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			faults = append(faults, err)
		}
		waits = append(waits, a.first)
		served[a.replica]++
		cached, tokens = cached+a.cached, tokens+a.tokens
	}
	if at == nil {
		work := make(chan int)
		for n := range perReplica * replicas {
			wg.Go(func() {
				time.Sleep(time.Duration(n) * startApart)
				for place := range work {
					send(place)
				}
			})
		}
		for place := range sequence {
			work <- place
		}
		close(work)
	}
	for place, t := range at {
		if ctx.Err() != nil {
			break
		}
		time.Sleep(t - time.Since(begun))
		wg.Go(func() { send(place) })
	}
	wg.Wait()
	slices.Sort(waits)
	o.hit = float64(cached) / float64(max(1, tokens))
	o.p50, o.p99 = waits[len(waits)/2], waits[len(waits)*99/100]
	for _, n := range served {
		o.imbalance = max(o.imbalance, float64(n)*float64(replicas)/float64(len(sequence)))
	}
	return o, errors.Join(faults...)
}

// answer is what a turn gave.
type answer struct {
	text, replica  string
	first          time.Duration
	cached, tokens int
}

func ask(ctx context.Context, c *http.Client, url, session string, messages []message) (a answer, err error) {
	body, err := json.Marshal(map[string]any{
		"model": "m", "messages": messages, "stream": true, "max_tokens": answerTokens, "ignore_eos": true,
		"stream_options": map[string]bool{"include_usage": true},
	})
	if err != nil {
		return a, err
	}
	begin := time.Now()
	res, err := post(ctx, c, url, string(body), "X-Session-Id", session)
	if err != nil {
		return a, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(res.Body, 500))
		return a, fmt.Errorf("%s: %s", res.Status, text)
	}
	a.replica = res.Header.Get("X-Llmgw-Replica")
	lines := bufio.NewReader(res.Body)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return a, fmt.Errorf("the stream broke: %w", err)
		}
		data, ok := bytes.CutPrefix(bytes.TrimSpace(line), []byte("data: "))
		switch {
		case !ok:
			continue
		case string(data) == "[DONE]":
			return a, nil
		}
		var e struct {
			Choices []struct {
				Delta struct{ Content string }
			}
			Usage *struct {
				Prompt  int `json:"prompt_tokens"`
				Details *struct {
					Cached int `json:"cached_tokens"`
				} `json:"prompt_tokens_details"`
			}
		}
		if err := json.Unmarshal(data, &e); err != nil {
			return a, err
		}
		if len(e.Choices) > 0 && e.Choices[0].Delta.Content != "" {
			if a.text += e.Choices[0].Delta.Content; a.first == 0 {
				a.first = time.Since(begin)
			}
		}
		if e.Usage != nil {
			a.tokens = e.Usage.Prompt
			if e.Usage.Details != nil {
				a.cached = e.Usage.Details.Cached
			}
		}
	}
}
