package sim

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// arrival is one generated request of a scheduler run.
type arrival struct {
	gap    time.Duration // after the one before
	prompt []uint32
	output int
	n      int
	lora   string
	leaves time.Duration // when its client goes; 0: never
	job    *job
}

func genConfig(t *rapid.T) Config {
	c := Config{
		MaxNumSeqs:      rapid.IntRange(1, 5).Draw(t, "max_num_seqs"),
		BlockSize:       rapid.IntRange(1, 6).Draw(t, "block_size"),
		KVBlocks:        rapid.IntRange(8, 24).Draw(t, "kv_blocks"),
		PrefillPerToken: time.Millisecond, Decode: 10 * time.Millisecond, DecodePerSeq: time.Millisecond,
		LoRALoad: 5 * time.Millisecond, MaxLoRAs: rapid.IntRange(1, 2).Draw(t, "max_loras"),
		DataParallel: rapid.IntRange(1, 2).Draw(t, "ranks"),
	}
	c.MaxModelLen = max(2, min(c.KVBlocks*c.BlockSize, 40))
	c.MaxBatchedTokens = rapid.IntRange(c.MaxNumSeqs, 32).Draw(t, "budget")
	if rapid.Bool().Draw(t, "adapters") {
		c.LoRAs = []string{"a", "b", "c"}
	}
	return c.withDefaults()
}

func genArrivals(t *rapid.T, c Config) []*arrival {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) *arrival {
		a := &arrival{
			gap: time.Duration(rapid.IntRange(0, 30).Draw(t, "gap")) * time.Millisecond,
			// Two letters only, so that prompts share prefixes.
			prompt: rapid.SliceOfN(rapid.SampledFrom([]uint32{'a', 'b'}), 1, c.MaxModelLen-1).Draw(t, "prompt"),
			n:      rapid.IntRange(1, 2).Draw(t, "n"),
		}
		a.output = rapid.IntRange(0, c.MaxModelLen-len(a.prompt)).Draw(t, "output")
		if len(c.LoRAs) > 0 {
			a.lora = rapid.SampledFrom([]string{"", "a", "b", "c"}).Draw(t, "lora")
		}
		if rapid.IntRange(0, 3).Draw(t, "leaves") == 0 {
			a.leaves = time.Duration(rapid.IntRange(1, 60).Draw(t, "after")) * time.Millisecond
		}
		return a
	}), 1, 14).Draw(t, "arrivals")
}

// check returns what is wrong with the state of a rank.
func (r *rank) check() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.running) > r.cfg.MaxNumSeqs {
		return fmt.Errorf("%d sequences run: at most %d may", len(r.running), r.cfg.MaxNumSeqs)
	}
	refs := make([]int32, r.blocks.size())
	adapters := make(map[string]bool)
	for _, s := range r.running {
		for _, id := range s.blocks {
			refs[id]++
		}
		if s.computed > len(s.blocks)*r.cfg.BlockSize {
			return fmt.Errorf("%d tokens computed in %d blocks", s.computed, len(s.blocks))
		}
		if s.lora != "" {
			adapters[s.lora] = true
		}
	}
	if len(adapters) > r.cfg.MaxLoRAs || len(r.slots) > r.cfg.MaxLoRAs {
		return fmt.Errorf("%d adapters run, %d are loaded: at most %d may", len(adapters), len(r.slots), r.cfg.MaxLoRAs)
	}
	free := 0
	for id, n := range refs {
		if r.blocks.blocks[id].refs != n {
			return fmt.Errorf("block %d has %d references: %d sequences hold it", id, r.blocks.blocks[id].refs, n)
		}
		if n == 0 {
			free++
		}
	}
	length := 0
	for id := r.blocks.blocks[r.blocks.size()].next; int(id) != r.blocks.size(); id = r.blocks.blocks[id].next {
		length++
	}
	if r.blocks.free != free || length != free {
		return fmt.Errorf("%d blocks are free, %d counted, %d in the ring", free, r.blocks.free, length)
	}
	for _, s := range r.waiting {
		if len(s.blocks) > 0 {
			return fmt.Errorf("a waiting sequence holds %d blocks", len(s.blocks))
		}
	}
	return nil
}

// play runs the arrivals through an engine and returns the first broken rule.
func play(cfg Config, arrivals []*arrival) error {
	c, err := newCore(cfg)
	if err != nil {
		return err
	}
	defer c.close(endDead)
	var now time.Duration
	at := make([]time.Duration, len(arrivals))
	for i, a := range arrivals {
		now += a.gap
		at[i] = now
	}
	live := len(arrivals)
	for tick := time.Duration(0); live > 0; tick += time.Millisecond {
		if tick > time.Hour {
			return fmt.Errorf("%d requests never ended", live)
		}
		for i, a := range arrivals {
			switch {
			case at[i] == tick:
				q := request{n: a.n, lora: a.lora}
				var seqs []*sequence
				for range a.n {
					s := cfg.sequence(&q, a.prompt)
					s.out = output{seed: 1, count: a.output, finish: "length"}
					seqs = append(seqs, s)
				}
				a.job = newJob(seqs...)
				if bad := c.submit(a.job, -1); bad != nil {
					return fmt.Errorf("refused: %s", bad.message)
				}
			case a.job != nil && a.leaves > 0 && at[i]+a.leaves == tick:
				a.job.rank.abort(a.job)
			}
		}
		synctest.Wait()
		live = 0
		for _, r := range c.ranks {
			if err := r.check(); err != nil {
				return fmt.Errorf("at %s: %w", tick, err)
			}
			if err := inOrder(r, arrivals); err != nil {
				return fmt.Errorf("at %s: %w", tick, err)
			}
		}
		for _, a := range arrivals {
			if a.job == nil || !a.job.over() {
				live++
			}
		}
		time.Sleep(time.Millisecond)
	}
	for _, r := range c.ranks {
		if len(r.running)+len(r.waiting) > 0 || r.blocks.free != r.blocks.size() {
			return fmt.Errorf("at rest %d run, %d wait, %d of %d blocks are free", len(r.running), len(r.waiting), r.blocks.free, r.blocks.size())
		}
	}
	if n := c.inflight.Load(); n != 0 {
		return fmt.Errorf("%d sequences in flight at rest", n)
	}
	for _, a := range arrivals {
		for _, s := range a.job.seqs {
			produced, end := s.look()
			if end == endDone && produced != a.output {
				return fmt.Errorf("%d tokens produced of %d", produced, a.output)
			}
			if a.leaves == 0 && end != endDone {
				return fmt.Errorf("a request ended as %d though its client stayed", end)
			}
		}
	}
	return nil
}

// inOrder says whether sequences without an adapter started in the order in
// which they came, of those whose clients stayed.
func inOrder(r *rank, arrivals []*arrival) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	waits := false
	for i, a := range arrivals {
		if a.job == nil || a.job.rank != r || a.leaves > 0 || a.lora != "" {
			continue
		}
		for _, s := range a.job.seqs {
			if s.started && waits {
				return fmt.Errorf("request %d overtook an older one", i)
			}
			waits = waits || !s.started
		}
	}
	return nil
}

func TestSchedulerKeepsItsRules(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		cfg := genConfig(rt)
		arrivals := genArrivals(rt, cfg)
		var err error
		synctest.Test(t, func(*testing.T) { err = play(cfg, arrivals) })
		if err != nil {
			rt.Fatal(err)
		}
	})
}

// plain is a sequence of a given number of output tokens.
func plain(cfg *Config, text string, output int) *sequence {
	s := cfg.sequence(&request{}, encode(nil, text))
	s.out = planOutput(7, cfg.OutputTokens, limits{maxTokens: output, ignoreEOS: true})
	return s
}

func TestStepTimes(t *testing.T) {
	ms := time.Millisecond
	cfg := Config{PrefillPerToken: ms, Decode: 10 * ms, DecodePerSeq: 2 * ms, MaxNumSeqs: 4, MaxBatchedTokens: 8}.withDefaults()
	tests := []struct {
		name   string
		factor float64
		other  string // a prompt beside the first one
		want   []time.Duration
	}{
		{"prefill, then one step a token", 1, "", []time.Duration{1 * ms, 13 * ms, 25 * ms}},
		{"slow", 10, "", []time.Duration{10 * ms, 130 * ms, 250 * ms}},
		{"a bigger batch is slower", 1, "abce", []time.Duration{2 * ms, 16 * ms, 30 * ms}},
		// 12 tokens: 7 in the first step, 5 in the second one.
		{"a long prompt is computed in chunks", 1, "000011112222333344445555666677778888999900001111", []time.Duration{8 * ms, 25 * ms, 39 * ms}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var got []time.Duration
			synctest.Test(t, func(t *testing.T) {
				c, err := newCore(cfg)
				if err != nil {
					t.Fatal(err)
				}
				defer c.close(endDead)
				c.slow(tt.factor)
				s := plain(&cfg, "abcd", 3)
				j := newJob(s)
				if tt.other != "" {
					j = newJob(s, plain(&cfg, tt.other, 3))
				}
				start := time.Now()
				if bad := c.submit(j, -1); bad != nil {
					t.Fatal(bad.message)
				}
				for len(got) < 3 {
					<-j.bell
					for n, _ := s.look(); len(got) < n; {
						got = append(got, time.Since(start))
					}
				}
			})
			if !slices.Equal(got, tt.want) {
				t.Errorf("tokens came after %v: want %v", got, tt.want)
			}
		})
	}
}

// A sequence that finds no block makes the youngest one wait, which then goes
// on where it was.
func TestPreemption(t *testing.T) {
	cfg := Config{MaxNumSeqs: 2, BlockSize: 2, KVBlocks: 8, MaxModelLen: 16, Decode: time.Millisecond}.withDefaults()
	synctest.Test(t, func(t *testing.T) {
		c, err := newCore(cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer c.close(endDead)
		first, second := newJob(plain(&cfg, "aaaabbbb", 12)), newJob(plain(&cfg, "ccccdddd", 12))
		for _, j := range []*job{first, second} {
			if bad := c.submit(j, -1); bad != nil {
				t.Fatal(bad.message)
			}
		}
		for _, j := range []*job{first, second} {
			for !j.over() {
				<-j.bell
			}
			if got, _ := j.seqs[0].look(); got != 12 {
				t.Errorf("%d tokens: want 12", got)
			}
		}
		if n := c.ranks[0].read().preemptions; n == 0 {
			t.Error("nothing was preempted: 28 tokens fit into 16?")
		}
	})
}
