package sim

import (
	"errors"
	"strings"

	"github.com/spf13/pflag"
)

// Flags adds one flag for each field to fs. The values that c holds are the
// defaults shown, so start from [DefaultConfig]. The flags write into c when fs
// is parsed; call [Config.Validate] after that.
func (c *Config) Flags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&c.Models, "model", c.Models, "served model names; the first one labels the metrics")
	fs.StringSliceVar(&c.LoRAs, "lora", c.LoRAs, "LoRA adapter names served beside the models")
	fs.BoolVar(&c.LoRAUpdating, "lora-updating", c.LoRAUpdating, "let clients load and unload adapters at /v1/load_lora_adapter and /v1/unload_lora_adapter")
	fs.IntVar(&c.MaxLoRAs, "max-loras", c.MaxLoRAs, "adapters that run at the same time")
	fs.DurationVar(&c.LoRALoad, "lora-load", c.LoRALoad, "time to bring one adapter into a slot")
	fs.IntVar(&c.MaxNumSeqs, "max-num-seqs", c.MaxNumSeqs, "most sequences running together in one rank")
	fs.IntVar(&c.MaxBatchedTokens, "max-num-batched-tokens", c.MaxBatchedTokens, "token budget of one step")
	fs.IntVar(&c.MaxQueued, "max-num-queued-reqs", c.MaxQueued, "unfinished sequences above which a request gets 503; 0 for no limit")
	fs.IntVar(&c.KVBlocks, "kv-blocks", c.KVBlocks, "KV blocks of one rank")
	fs.IntVar(&c.BlockSize, "block-size", c.BlockSize, "tokens in a KV block")
	fs.IntVar(&c.MaxModelLen, "max-model-len", c.MaxModelLen, "most tokens of prompt and output together")
	fs.IntVar(&c.OutputTokens, "output-tokens", c.OutputTokens, "mean natural length of an answer in tokens")
	fs.DurationVar(&c.PrefillPerToken, "prefill-per-token", c.PrefillPerToken, "time for one prompt token that is not in the cache")
	fs.DurationVar(&c.Decode, "decode", c.Decode, "base time of a decode step")
	fs.DurationVar(&c.DecodePerSeq, "decode-per-seq", c.DecodePerSeq, "time added to a step for each decoding sequence")
	fs.DurationVar(&c.StartupDelay, "startup-delay", c.StartupDelay, "time until the port opens")
	fs.DurationVar(&c.ShutdownTimeout, "shutdown-timeout", c.ShutdownTimeout, "time that requests in flight get to finish; 0 aborts them")
	fs.DurationVar(&c.KeepAlive, "keep-alive", c.KeepAlive, "time that an idle connection stays open")
	fs.StringVar(&c.APIKey, "api-key", c.APIKey, "key asked for under /v1; empty for none")
	fs.IntVar(&c.DataParallel, "data-parallel-size", c.DataParallel, "ranks, each with its own queue, cache and metric series")
	fs.IntVar(&c.Nodes, "nnodes", c.Nodes, "nodes of the replica that this process is a part of")
	fs.IntVar(&c.Rank, "node-rank", c.Rank, "rank of this node; above 0 only /health is served")
	fs.StringVar(&c.GPUClass, "gpu-class", c.GPUClass, "GPU class shown in /server_info and in the metrics")
	fs.Uint64Var(&c.Seed, "seed", c.Seed, "varies the pseudo text and the natural lengths")
	fs.BoolVar(&c.RequestIDHeaders, "enable-request-id-headers", c.RequestIDHeaders, "answer with an X-Request-Id header")
	fs.BoolVar(&c.OldMetricNames, "old-metric-names", c.OldMetricNames, "write the cache metrics under the names of older vLLM")
	fs.StringVar(&c.KVEvents, "kv-events", c.KVEvents, "tcp://host:port where events of cached blocks are published; empty for nowhere")
	fs.StringVar(&c.KVEventsReplay, "kv-events-replay", c.KVEventsReplay, "tcp://host:port that sends past events to who asks")
	fs.StringVar(&c.KVEventsTopic, "kv-events-topic", c.KVEventsTopic, "their topic")
	fs.IntVar(&c.Journal, "journal", c.Journal, "requests that /sim/requests keeps")
	for _, name := range nonzero {
		f := fs.Lookup(name)
		f.Value = positive{f.Value}
	}
}

// nonzero are the flags for which 0 is no value: in a [Config] it is the
// default, and whoever writes it means something else.
var nonzero = []string{
	"max-loras", "max-num-seqs", "max-num-batched-tokens", "kv-blocks", "block-size", "max-model-len", "output-tokens",
	"keep-alive", "data-parallel-size", "nnodes", "journal",
}

// positive is the value of a flag that takes nothing below 1.
type positive struct{ pflag.Value }

// Set implements pflag.Value.
func (p positive) Set(text string) error {
	before := p.String()
	if err := p.Value.Set(text); err != nil {
		return err
	}
	if now := p.String(); now == "0" || now == "0s" || strings.HasPrefix(now, "-") {
		_ = p.Value.Set(before)
		return errors.New("must be above 0")
	}
	return nil
}
