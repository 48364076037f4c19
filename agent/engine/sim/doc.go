// Package sim is a simulated inference engine: an OpenAI-compatible HTTP server
// that schedules, caches, counts and fails as vLLM 0.32 does, without a model.
//
// What a router or a client can tell apart is modelled: continuous batching
// with a FIFO queue and chunked prefill, paged KV memory with a block-level
// LRU prefix cache, preemption, LoRA slots, data-parallel ranks, the metrics
// page, response and error bodies down to the key order, stream framing, and
// the ways in which an engine stops or breaks. What the words say is not: the
// output is pseudo text, a pure function of the prompt, the seed and the
// position, so that the same request always gets the same answer.
//
// A real engine lacks the /sim/ paths: /sim/faults switches faults,
// /sim/requests shows what arrived (credentials included, as they came) and
// /sim/reset empties cache and counters. They need no key: never expose a
// simulator to people who are not meant to drive it.
package sim
