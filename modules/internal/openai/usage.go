package openai

// maxCount is the largest token count that is believed; a larger one is a broken engine's.
const maxCount = 1_000_000_000

// Usage is what an engine says that a request has cost, in tokens. Cached is a part of Prompt, and
// Reasoning a part of Completion: a total is Prompt + Completion and nothing else.
type Usage struct{ Prompt, Completion, Cached, Reasoning int64 }

// Total is Prompt + Completion.
func (u Usage) Total() int64 { return u.Prompt + u.Completion }

// ParseUsage reads a usage object of any of three shapes, and false if raw holds no token count:
//
//   - OpenAI chat, completions and embeddings: prompt_tokens, completion_tokens,
//     prompt_tokens_details.cached_tokens, completion_tokens_details.reasoning_tokens;
//   - OpenAI Responses: input_tokens, output_tokens, and their _details;
//   - Anthropic: input_tokens, output_tokens, and beside them (not within input_tokens)
//     cache_read_input_tokens and cache_creation_input_tokens.
//
// Null and absent details are zero; counts that are negative, fractional or above a thousand
// million are taken as absent. It does not allocate.
func ParseUsage(raw []byte) (Usage, bool) {
	u, _, f := parseUsage(raw, skipSpace(raw, 0))
	return u, f.known
}

// usageFlags tells what a usage object held.
type usageFlags struct{ known, bad bool }

// parseUsage reads the object at b[i] and returns the offset behind it.
func parseUsage(b []byte, i int) (Usage, int, usageFlags) {
	var u Usage
	var flags usageFlags
	var beside int64 // Anthropic's cached and newly cached tokens
	m := members{b: b, i: i}
	for m.next() {
		switch string(m.key) {
		case "prompt_tokens", "input_tokens":
			m.count(&u.Prompt, &flags)
		case "completion_tokens", "output_tokens":
			m.count(&u.Completion, &flags)
		case "prompt_tokens_details", "input_tokens_details":
			m.detail("cached_tokens", &u.Cached)
		case "completion_tokens_details", "output_tokens_details":
			m.detail("reasoning_tokens", &u.Reasoning)
		case "cache_read_input_tokens":
			var n int64
			m.count(&n, nil)
			beside += n
			u.Cached = max(u.Cached, n)
		case "cache_creation_input_tokens":
			var n int64
			m.count(&n, nil)
			beside += n
		default:
			m.skip()
		}
	}
	u.Prompt += beside
	u.Cached = min(u.Cached, u.Prompt)
	u.Reasoning = min(u.Reasoning, u.Completion)
	flags.bad = m.f != noFault
	return u, m.i, flags
}

// merge takes the larger of each count: engines report usage cumulatively, and Anthropic's streams
// report the prompt in the first event and the rest in the last.
func (u *Usage) merge(v Usage) {
	u.Prompt = max(u.Prompt, v.Prompt)
	u.Completion = max(u.Completion, v.Completion)
	u.Cached = max(u.Cached, v.Cached)
	u.Reasoning = max(u.Reasoning, v.Reasoning)
}

// count reads a count into n, if the value is one, and moves behind the value.
func (m *members) count(n *int64, flags *usageFlags) {
	at := m.i
	m.skip()
	if m.f != noFault || m.i-at > 10 {
		return
	}
	var v int64
	for _, c := range m.b[at:m.i] {
		if c < '0' || c > '9' {
			return
		}
		v = v*10 + int64(c-'0')
	}
	if v <= maxCount {
		*n = v
		if flags != nil {
			flags.known = true
		}
	}
}

// detail reads one count of a details object, which may be null, and moves behind it.
func (m *members) detail(key string, n *int64) {
	if m.b[m.i] != '{' {
		m.skip()
		return
	}
	d := members{b: m.b, i: m.i}
	for d.next() {
		if string(d.key) == key {
			d.count(n, nil)
		} else {
			d.skip()
		}
	}
	m.i, m.f = d.i, d.f
}
