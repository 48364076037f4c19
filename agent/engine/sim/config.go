package sim

import (
	"errors"
	"fmt"
	"time"
)

// Upper bounds of a configuration. They keep a typing error from asking for
// more memory than a laptop has; a real engine stays below all of them.
const (
	maxKVBlocks     = 1 << 22
	maxModelLen     = 1 << 22
	maxSequences    = 1 << 16
	maxDataParallel = 64
	maxNames        = 4096
	maxJournal      = 4096
)

// Config says what the engine pretends to be. The zero value of a field means
// its default, except where zero is documented as a value; [DefaultConfig]
// spells the defaults out.
type Config struct {
	// Models are the served model names. The first one is the model_name label
	// of the metrics and the `model` of a request that names none. Default: sim.
	Models []string
	// LoRAs are adapter names served beside the models; none by default.
	LoRAs []string
	// LoRAUpdating lets clients load and unload adapters (vLLM's
	// VLLM_ALLOW_RUNTIME_LORA_UPDATING).
	LoRAUpdating bool
	// MaxLoRAs is how many adapters run at the same time (vLLM's --max-loras).
	// Default 1.
	MaxLoRAs int
	// LoRALoad is the time that one step takes longer when it brings an adapter
	// into a slot. Zero loads at once; DefaultConfig has 50ms.
	LoRALoad time.Duration

	// MaxNumSeqs is the most sequences running together in one rank. Default 16.
	MaxNumSeqs int
	// MaxBatchedTokens is the token budget of one step: longer prompts are
	// computed in chunks while others decode. Default 512, at least MaxNumSeqs.
	MaxBatchedTokens int
	// MaxQueued refuses a request with 503 while that many sequences are
	// unfinished over all ranks, running ones included, as vLLM's
	// --max-num-queued-reqs counts. Zero: no limit.
	MaxQueued int
	// KVBlocks is the number of KV blocks of one rank. Default 2048.
	KVBlocks int
	// BlockSize is the number of tokens in a block. Default 16.
	BlockSize int
	// MaxModelLen is the most tokens of prompt and output together; one such
	// request must fit the KV blocks. Default 32768.
	MaxModelLen int
	// OutputTokens is the mean natural length of an answer in tokens: lengths
	// spread evenly from half to one and a half of it. Default 128.
	OutputTokens int

	// PrefillPerToken is the time for one prompt token that the cache does not
	// hold. Zero: no time; DefaultConfig has 200us.
	PrefillPerToken time.Duration
	// Decode is the base time of a step that decodes. Zero: no time;
	// DefaultConfig has 15ms.
	Decode time.Duration
	// DecodePerSeq is added to a step for each decoding sequence, so that decode
	// time grows with the batch. Zero: no time; DefaultConfig has 500us.
	DecodePerSeq time.Duration
	// StartupDelay keeps the port closed for this long at the start of Run, as
	// an engine does that loads its weights.
	StartupDelay time.Duration
	// ShutdownTimeout is vLLM's --shutdown-timeout. Zero: requests in flight end
	// at once with finish_reason "abort". Above zero they may finish for that
	// long, /health stays 200 and new requests get 500.
	ShutdownTimeout time.Duration
	// KeepAlive is how long an idle connection stays open. Default 5s, uvicorn's.
	KeepAlive time.Duration

	// APIKey, where set, is asked for on the paths under /v1 and on no other.
	APIKey string
	// DataParallel is the number of ranks, each with its own queue and cache and
	// its own series under the label `engine`. Default 1.
	DataParallel int
	// Nodes is the number of nodes of the replica that this process is a part
	// of. Default 1.
	Nodes int
	// Rank is this node's rank, 0 to Nodes-1. Only rank 0 serves the API; the
	// others answer /health alone.
	Rank int
	// GPUClass is shown in /server_info and in the metric
	// llmgw_sim_info; it changes no time. Default sim-80g.
	GPUClass string
	// Seed varies the pseudo text and the natural lengths.
	Seed uint64
	// RequestIDHeaders answers every request with an X-Request-Id header
	// (vLLM's --enable-request-id-headers).
	RequestIDHeaders bool
	// OldMetricNames writes vllm:gpu_cache_usage_perc and
	// vllm:gpu_prefix_cache_* instead of today's names.
	OldMetricNames bool
	// KVEvents is where the first rank publishes events of its cached blocks, as tcp://host:port, the
	// others on the ports after it; KVEventsReplay is where it sends past ones to who asks.
	// Empty: nowhere. KVEventsTopic is their topic. Default: kv@ and the first model.
	KVEvents, KVEventsReplay, KVEventsTopic string
	// Journal is how many requests /sim/requests keeps. Default 256.
	Journal int
}

// DefaultConfig returns a configuration in which every default is spelled out.
func DefaultConfig() Config {
	c := Config{
		LoRALoad:        50 * time.Millisecond,
		PrefillPerToken: 200 * time.Microsecond,
		Decode:          15 * time.Millisecond,
		DecodePerSeq:    500 * time.Microsecond,
	}
	return c.withDefaults()
}

// withDefaults fills the fields for which zero is no value.
func (c Config) withDefaults() Config {
	if len(c.Models) == 0 {
		c.Models = []string{"sim"}
	}
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	def(&c.MaxLoRAs, 1)
	def(&c.MaxNumSeqs, 16)
	def(&c.MaxBatchedTokens, max(512, c.MaxNumSeqs))
	def(&c.KVBlocks, 2048)
	def(&c.BlockSize, 16)
	def(&c.MaxModelLen, 32768)
	def(&c.OutputTokens, 128)
	def(&c.DataParallel, 1)
	def(&c.Nodes, 1)
	def(&c.Journal, 256)
	if c.KeepAlive == 0 {
		c.KeepAlive = 5 * time.Second
	}
	if c.KVEventsTopic == "" {
		c.KVEventsTopic = "kv@" + c.Models[0]
	}
	if c.GPUClass == "" {
		c.GPUClass = "sim-80g"
	}
	return c
}

// Validate returns all faults of c at once, each with the flag of the field, the
// value and what is allowed, or nil. Fields at zero count as their defaults.
func (c Config) Validate() error {
	c = c.withDefaults()
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	within := func(name string, v, low, high int) {
		check(v >= low && v <= high, "%s is %d: want %d to %d", name, v, low, high)
	}
	within("--max-loras", c.MaxLoRAs, 1, maxNames)
	within("--max-num-seqs", c.MaxNumSeqs, 1, maxSequences)
	within("--max-num-batched-tokens", c.MaxBatchedTokens, 1, maxModelLen)
	within("--max-num-queued-reqs", c.MaxQueued, 0, maxSequences)
	within("--kv-blocks", c.KVBlocks, 1, maxKVBlocks)
	within("--block-size", c.BlockSize, 1, 1024)
	within("--max-model-len", c.MaxModelLen, 2, maxModelLen)
	within("--output-tokens", c.OutputTokens, 1, maxModelLen)
	within("--data-parallel-size", c.DataParallel, 1, maxDataParallel)
	within("--nnodes", c.Nodes, 1, 1024)
	within("--journal", c.Journal, 1, maxJournal)
	check(c.Rank >= 0 && c.Rank < max(c.Nodes, 1), "--node-rank is %d: want 0 to --nnodes less 1 (%d)", c.Rank, c.Nodes-1)
	check(c.MaxBatchedTokens >= c.MaxNumSeqs,
		"--max-num-batched-tokens is %d: want at least --max-num-seqs (%d), or some sequences would never step", c.MaxBatchedTokens, c.MaxNumSeqs)
	check(c.KVBlocks*c.BlockSize >= c.MaxModelLen,
		"--kv-blocks x --block-size is %d tokens: want at least --max-model-len (%d), or a long request would never fit", c.KVBlocks*c.BlockSize, c.MaxModelLen)
	for _, d := range []struct {
		name string
		v    time.Duration
	}{
		{"--lora-load", c.LoRALoad},
		{"--prefill-per-token", c.PrefillPerToken},
		{"--decode", c.Decode},
		{"--decode-per-seq", c.DecodePerSeq},
		{"--startup-delay", c.StartupDelay},
		{"--shutdown-timeout", c.ShutdownTimeout},
		{"--keep-alive", c.KeepAlive},
	} {
		check(d.v >= 0, "%s is %s: want zero or more", d.name, d.v)
	}
	check(len(c.Models)+len(c.LoRAs) <= maxNames, "--model and --lora are %d names: want at most %d", len(c.Models)+len(c.LoRAs), maxNames)
	seen := make(map[string]bool)
	for _, list := range [][]string{c.Models, c.LoRAs} {
		for _, name := range list {
			check(name != "", "--model and --lora hold an empty name: remove it")
			check(!seen[name], "--model and --lora hold %q twice: give every model and adapter its own name", name)
			seen[name] = true
		}
	}
	return errors.Join(errs...)
}
