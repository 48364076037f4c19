package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"
)

const (
	pathChat        = "/v1/chat/completions"
	pathCompletions = "/v1/completions"
	pathEmbeddings  = "/v1/embeddings"
)

// request is one request, and how its client behaves.
type request struct {
	name   string // of its kind
	id     string // sent as x-request-id
	method string
	body   string
	header http.Header
	expect expect

	kept   bool          // over a connection that is kept
	leaves time.Duration // the client leaves after that; 0 never
	slow   bool          // the client reads slowly
	half   bool          // the client leaves while it sends
}

// prompts is how many different ones there are: few enough for answers to be
// compared with earlier ones, and for prefix caches to have their effect.
const prompts = 200

// promptTexts are the prompts. Most are short, some have 100 KiB.
var promptTexts = sync.OnceValue(func() (all [prompts]string) {
	r := rand.New(rand.NewPCG(7, 7))
	for n := range all {
		size := 20 + r.IntN(2000)
		switch {
		case n%10 == 0:
			size = 20<<10 + r.IntN(90<<10)
		case n%10 < 3:
			size = 2<<10 + r.IntN(18<<10)
		}
		var b strings.Builder
		for b.Len() < size {
			fmt.Fprintf(&b, "word%d ", r.IntN(10000))
		}
		all[n] = b.String()
	}
	return all
})

// newRequest draws the n-th request.
func newRequest(r *rand.Rand, n int) *request {
	q := &request{id: fmt.Sprintf("soak-%d", n), method: http.MethodPost, header: http.Header{"Content-Type": {"application/json"}}}
	switch k := r.IntN(100); {
	case k < 30:
		q.generation(r, pathChat, true)
	case k < 50:
		q.generation(r, pathChat, false)
	case k < 62:
		q.generation(r, pathCompletions, true)
	case k < 70:
		q.generation(r, pathCompletions, false)
	case k < 85:
		q.embeddings(r)
	default:
		q.bad(r)
	}
	if q.expect.status != nil {
		return q
	}
	q.kept = r.IntN(5) == 0
	switch k := r.IntN(100); {
	case k < 4: // before the headers, as a rule
		q.leaves = time.Duration(1 + r.IntN(int(20*time.Millisecond)))
	case k < 15:
		q.leaves = time.Duration(r.IntN(int(time.Second)))
	case k < 20:
		q.slow = true
	case k < 22:
		q.half, q.kept = true, false
	}
	return q
}

// models are those that have all engines or some, one that is learned, and one
// that comes and goes.
func (q *request) model(r *rand.Rand) string {
	switch k := r.IntN(20); {
	case k < 8:
		return "chat"
	case k < 10:
		return "gpt-4o-mini"
	case k < 14:
		return "pools"
	case k < 16:
		return "sim"
	case k < 18:
		return "ada"
	}
	q.expect.either = []int{http.StatusNotFound}
	return "extra"
}

func (q *request) generation(r *rand.Rand, path string, stream bool) {
	n := r.IntN(prompts)
	q.expect = expect{path: path, stream: stream, tokens: 1 + r.IntN(1+r.IntN(200))}
	if r.IntN(20) == 0 {
		q.expect.tokens += 600
	}
	model := q.model(r)
	fields := map[string]any{"model": model, "max_tokens": q.expect.tokens, "ignore_eos": true}
	if path == pathChat {
		fields["messages"] = []map[string]string{{"role": "user", "content": promptTexts()[n]}}
	} else {
		fields["prompt"] = promptTexts()[n]
	}
	q.name = strings.TrimPrefix(path, "/v1/")
	if stream {
		q.name += ", stream"
		fields["stream"] = true
		if q.expect.usage = r.IntN(2) == 0; q.expect.usage {
			fields["stream_options"] = map[string]bool{"include_usage": true}
		}
	}
	switch r.IntN(4) {
	case 0:
		q.header.Set("X-Session-Id", fmt.Sprintf("session-%d", n))
	case 1:
		fields["user"] = fmt.Sprintf("user-%d", n)
	}
	// An adapter says something else than its base model.
	q.expect.text = fmt.Sprintf("%s, prompt %d, adapter: %v", path, n, model == "ada")
	q.body = encode(fields)
}

func (q *request) embeddings(r *rand.Rand) {
	inputs := make([]string, 1+r.IntN(1+r.IntN(40)))
	for i := range inputs {
		inputs[i] = promptTexts()[1+r.IntN(9)] // none of the longest
	}
	q.name = "embeddings"
	q.expect = expect{path: pathEmbeddings, inputs: len(inputs)}
	q.body = encode(map[string]any{"model": q.model(r), "input": inputs})
}

// bad makes a request that must be refused, or that asks for the models.
func (q *request) bad(r *rand.Rand) {
	q.expect.path = pathChat
	refused := func(name string, status int, body string) {
		q.name, q.body, q.expect.status = "wrong: "+name, body, []int{status}
	}
	const messages = `"messages":[{"role":"user","content":"x"}]`
	switch r.IntN(10) {
	case 0:
		refused("no JSON", 400, `{"model":"chat",`+messages)
	case 1:
		refused("no model", 400, `{`+messages+`}`)
	case 2:
		refused("a key twice", 400, `{"model":"chat","model":"chat",`+messages+`}`)
	case 3:
		refused("refused by the engine", 400, `{"model":"chat","temperature":-1,`+messages+`}`)
		// It gets as far as an engine, which may fail in any other way.
		q.expect.status = append(q.expect.status, 429, 500, 502, 503, 504)
	case 4:
		refused("too large", 413, `{"model":"chat","x":"`+strings.Repeat("x", bodyLimit)+`"}`)
	case 5:
		refused("unknown path", 404, `{}`)
		q.expect.path = "/v1/nothing"
	case 6:
		refused("wrong method", 405, "")
		q.method = http.MethodGet
	case 7:
		refused("compressed", 400, `{"model":"chat"}`)
		q.header.Set("Content-Encoding", "gzip")
	default:
		refused("unknown model", 404, fmt.Sprintf(`{"model":"nothing-%d",%s}`, r.IntN(1e6), messages))
	}
}

func encode(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // maps of strings and numbers
	}
	return string(b)
}
