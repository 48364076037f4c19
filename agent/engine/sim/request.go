package sim

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"

	"github.com/cespare/xxhash/v2"
)

// Bounds of one request; above them it gets 400.
const (
	maxChoices = 1024 // sequences
	maxStops   = 64
)

// request is what the generation endpoints have in common.
type request struct {
	model        string // as the client wrote it, or the first served one
	lora         string
	salt         string
	id           string // request_id
	n            int
	seed         int
	limits       limits
	maxSet       bool // the client named a limit of output tokens
	usual        int  // the limit where the client names none; 0: what fits
	stream       bool
	includeUsage bool
	continuous   bool // usage in every chunk
	returnIDs    bool // token ids beside the text
}

// parseRequest reads the common fields. maxKeys are the names of the limit of
// output tokens, the preferred one last; stopKey names the stop strings.
func parseRequest(f fields, stopKey string, maxKeys ...string) (q request, bad *apiError) {
	q = request{
		model: f.text("model"), salt: f.text("cache_salt"), id: f.text("request_id"), n: 1,
		stream: f.flag("stream"), returnIDs: f.flag("return_token_ids"),
		limits: limits{ignoreEOS: f.flag("ignore_eos"), stop: f.texts(stopKey), includeStop: f.flag("include_stop_str_in_output")},
	}
	if n, ok := f.integer("n"); ok {
		q.n = n
	}
	q.seed, _ = f.integer("seed")
	q.limits.minTokens, _ = f.integer("min_tokens")
	maxKey := ""
	for _, key := range maxKeys {
		if v, ok := f.integer(key); ok {
			q.limits.maxTokens, q.maxSet, maxKey = v, true, key
		}
	}
	temperature, topP := f.number("temperature", 1), f.number("top_p", 1)
	presence, frequency := f.number("presence_penalty", 0), f.number("frequency_penalty", 0)
	if opts, ok := f.get("stream_options"); ok {
		o := f.object("stream_options")
		q.includeUsage, q.continuous = o.flag("include_usage"), o.flag("continuous_usage_stats")
		if !q.stream && !bytes.Equal(opts, []byte("{}")) {
			return q, badRequest("stream_options", "", "Stream options can only be defined when `stream=True`. (parameter=stream_options)")
		}
	}
	if bad := f.err(); bad != nil {
		return q, bad
	}
	q.limits.stop = slices.DeleteFunc(q.limits.stop, func(s string) bool { return s == "" })
	switch {
	case temperature < 0:
		bad = badRequest("temperature", pyFloat(temperature), "temperature must be non-negative, got %s.", pyFloat(temperature))
	case topP <= 0 || topP > 1:
		bad = badRequest("top_p", pyFloat(topP), "top_p must be in (0, 1], got %s.", pyFloat(topP))
	case presence < -2 || presence > 2:
		bad = badRequest("presence_penalty", pyFloat(presence), "presence_penalty must be in [-2, 2], got %s.", pyFloat(presence))
	case frequency < -2 || frequency > 2:
		bad = badRequest("frequency_penalty", pyFloat(frequency), "frequency_penalty must be in [-2, 2], got %s.", pyFloat(frequency))
	case q.n < 1:
		bad = badRequest("n", strconv.Itoa(q.n), "n must be at least 1, got %d.", q.n)
	case q.n > maxChoices:
		bad = badRequest("n", strconv.Itoa(q.n), "n must be at most %d, got %d.", maxChoices, q.n)
	case q.maxSet && q.limits.maxTokens < 1:
		bad = badRequest(maxKey, strconv.Itoa(q.limits.maxTokens), "max_tokens must be at least 1, got %d.", q.limits.maxTokens)
	case q.limits.minTokens < 0:
		bad = badRequest("min_tokens", strconv.Itoa(q.limits.minTokens), "min_tokens must be greater than or equal to 0, got %d.", q.limits.minTokens)
	case q.maxSet && q.limits.minTokens > q.limits.maxTokens:
		bad = badRequest("min_tokens", strconv.Itoa(q.limits.minTokens),
			"min_tokens must be less than or equal to max_tokens=%d, got %d.", q.limits.maxTokens, q.limits.minTokens)
	case len(q.limits.stop) > maxStops:
		bad = badRequest("stop", strconv.Itoa(len(q.limits.stop)), "stop must hold at most %d strings.", maxStops)
	}
	return q, bad
}

// resolve finds the model of a request, or the adapter that goes by its name.
func (c *core) resolve(q *request, generate bool) *apiError {
	switch {
	case q.model == "":
		q.model = c.cfg.Models[0]
	case slices.Contains(c.cfg.Models, q.model):
	case c.adapters.has(q.model):
		q.lora = q.model
	case generate:
		return unknownModel(q.model, c.cfg.Models)
	default:
		return unknownModel(q.model, nil)
	}
	return nil
}

// fit checks a prompt against the model length and returns how many output
// tokens the request may have.
func (c *Config) fit(q *request, prompt int) (int, *apiError) {
	room := c.MaxModelLen - prompt
	length := fmt.Sprintf("This model's maximum context length is %d tokens. However, ", c.MaxModelLen)
	switch {
	case q.maxSet && q.limits.maxTokens > c.MaxModelLen:
		return 0, badRequest("max_tokens", strconv.Itoa(q.limits.maxTokens),
			"max_tokens=%d cannot be greater than max_model_len=%d. Please request fewer output tokens.", q.limits.maxTokens, c.MaxModelLen)
	case room < 1:
		// vLLM truncates before it counts, so it always reports one too many.
		return 0, badRequest("input_tokens", strconv.Itoa(c.MaxModelLen+1),
			"%syour prompt contains at least %d input tokens, which exceeds this limit even without any output tokens. Please reduce the length of the input prompt.",
			length, c.MaxModelLen+1)
	case q.maxSet && q.limits.maxTokens > room:
		return 0, badRequest("input_tokens", strconv.Itoa(prompt),
			"%syou requested %d output tokens and your prompt contains at least %d input tokens, for a total of at least %d tokens. "+
				"Please reduce the length of the input prompt or the number of requested output tokens.",
			length, q.limits.maxTokens, prompt, prompt+q.limits.maxTokens)
	case q.maxSet:
		return q.limits.maxTokens, nil
	case q.usual > 0:
		return min(room, max(q.usual, q.limits.minTokens)), nil
	}
	return room, nil
}

// generation builds the sequences of a request: n for each prompt, prompts
// first. The same request always gets the same ones.
func (c *Config) generation(q *request, prompts ...[]uint32) (*job, *apiError) {
	if len(prompts)*q.n > maxChoices {
		return nil, badRequest("n", strconv.Itoa(q.n), "%d prompts times n=%d are more than %d choices.", len(prompts), q.n, maxChoices)
	}
	var seqs []*sequence
	for _, prompt := range prompts {
		most, bad := c.fit(q, len(prompt))
		if bad != nil {
			return nil, bad
		}
		first := c.sequence(q, prompt)
		l := q.limits
		l.maxTokens = most
		seed := mix(c.Seed ^ uint64(q.seed) ^ promptHash(first))
		for i := range q.n {
			s := first
			if i > 0 {
				s = c.sequence(q, prompt)
			}
			s.out = planOutput(mix(seed+uint64(i)), c.OutputTokens, l)
			seqs = append(seqs, s)
		}
	}
	return newJob(seqs...), nil
}

// sequence makes a sequence that only computes its prompt.
func (c *Config) sequence(q *request, prompt []uint32) *sequence {
	s := &sequence{prompt: prompt, lora: q.lora, salt: q.salt, hashSeed: hashSeed(q.lora, q.salt), out: output{finish: "stop"}}
	s.extend(len(prompt), c.BlockSize)
	return s
}

// promptHash covers the whole prompt and the adapter, not the salt.
func promptHash(s *sequence) uint64 {
	h := xxhash.Sum64String(s.lora)
	for _, t := range s.prompt {
		h = mix(h ^ uint64(t))
	}
	return h
}

// tokenIDs is a list that is null in JSON where it is not wanted.
func tokenIDs(want bool, ids []uint32) json.RawMessage {
	if !want {
		return nil
	}
	return appendIDs(nil, ids)
}

// appendIDs appends ids as a JSON array.
func appendIDs(dst []byte, ids []uint32) []byte {
	dst = append(dst, '[')
	for i, id := range ids {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = strconv.AppendUint(dst, uint64(id), 10)
	}
	return append(dst, ']')
}
