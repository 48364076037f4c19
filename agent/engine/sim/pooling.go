package sim

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"math"
	"net/http"
	"slices"
	"strconv"
)

// embeddingSize is the dimension of the vectors.
const embeddingSize = 384

// vector is a unit vector that depends on the whole prompt alone.
func vector(s *sequence) []float32 {
	h := promptHash(s)
	v := make([]float64, embeddingSize)
	sum := 0.0
	for i := range v {
		v[i] = float64(mix(h+uint64(i))>>11)/(1<<52) - 1
		sum += v[i] * v[i]
	}
	out := make([]float32, embeddingSize)
	for i := range v {
		out[i] = float32(v[i] / math.Sqrt(sum))
	}
	return out
}

// floats writes a vector as JSON numbers with the digits of a float64, as
// Python prints a float32.
func floats(v []float32) json.RawMessage {
	b := []byte{'['}
	for i, f := range v {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, pyFloat(float64(f))...)
	}
	return append(b, ']')
}

// pool reads what all pooling endpoints share and computes the prompts. It
// answers by itself, and returns nil, where that fails.
func (x *call) pool(f fields, list [][]uint32) (*job, *request) {
	cfg := &x.e.cfg
	q := request{model: f.text("model"), salt: f.text("cache_salt"), id: f.text("request_id"), n: 1}
	bad := f.err()
	if bad == nil {
		bad = x.core.resolve(&q, false)
	}
	if bad == nil {
		bad = noEmpty(list)
	}
	if bad == nil && len(list) > maxChoices {
		bad = badRequest("input", strconv.Itoa(len(list)), "At most %d inputs are allowed in one request.", maxChoices)
	}
	var seqs []*sequence
	for _, ids := range list {
		if bad == nil && len(ids) > cfg.MaxModelLen {
			_, bad = cfg.fit(&q, len(ids))
		}
		if bad == nil {
			seqs = append(seqs, cfg.sequence(&q, ids))
		}
	}
	if bad != nil {
		x.fail(bad)
		return nil, nil
	}
	j := newJob(seqs...)
	if !x.wait(j) {
		return nil, nil
	}
	return j, &q
}

// poolUsage is the usage of a pooling answer, which tells nothing of the cache.
func (j *job) poolUsage() usage {
	t := j.tally(1)
	return usage{Prompt: t.prompt, Total: t.prompt}
}

type poolAnswer struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	Model   string `json:"model"`
	Data    []any  `json:"data"`
	Usage   usage  `json:"usage"`
}

// embeddings serves /v1/embeddings.
func (x *call) embeddings(f fields) {
	list := prompts(f, "input")
	format := f.text("encoding_format")
	if format != "" && format != "float" && format != "base64" {
		f.fail("encoding_format", "literal_error", `Input should be "float" or "base64"`, format)
	}
	if n, ok := f.integer("dimensions"); ok && n != embeddingSize {
		x.fail(badRequest("dimensions", strconv.Itoa(n), "Model %q does not support matryoshka representation, its dimensions are %d.", f.text("model"), embeddingSize))
		return
	}
	type item struct {
		Index     int    `json:"index"`
		Object    string `json:"object"`
		Embedding any    `json:"embedding"`
	}
	j, q := x.pool(f, list)
	if j == nil {
		return
	}
	a := poolAnswer{ID: x.id("embd-", q), Object: "list", Created: now(), Model: q.model, Usage: j.poolUsage()}
	for i, s := range j.seqs {
		v := vector(s)
		it := item{Index: i, Object: "embedding", Embedding: floats(v)}
		if format == "base64" {
			var raw []byte
			for _, f := range v {
				raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(f))
			}
			it.Embedding = base64.StdEncoding.EncodeToString(raw)
		}
		a.Data = append(a.Data, it)
	}
	x.json(http.StatusOK, a)
}

// pooling serves /pooling, with the same vectors.
func (x *call) pooling(f fields) {
	type item struct {
		Index  int             `json:"index"`
		Object string          `json:"object"`
		Data   json.RawMessage `json:"data"`
	}
	j, q := x.pool(f, prompts(f, "input"))
	if j == nil {
		return
	}
	a := poolAnswer{ID: x.id("pooling-", q), Object: "list", Created: now(), Model: q.model, Usage: j.poolUsage()}
	for i, s := range j.seqs {
		a.Data = append(a.Data, item{i, "pooling", floats(vector(s))})
	}
	x.json(http.StatusOK, a)
}

// pairScore is the score of a pair, 0 to 1, which depends on its tokens alone.
func pairScore(s *sequence) float64 { return float64(promptHash(s)>>11) / (1 << 53) }

// pair is the prompt for a query and a document.
func pair(query, document string) []uint32 {
	return encode(append(encode(nil, query), tokenEnd), document)
}

// rerank serves /v1/rerank and /rerank: documents by falling relevance.
func (x *call) rerank(f fields) {
	f.require("query")
	f.require("documents")
	query, docs := f.text("query"), f.texts("documents")
	top, limited := f.integer("top_n")
	var list [][]uint32
	for _, d := range docs {
		list = append(list, pair(query, d))
	}
	j, q := x.pool(f, list)
	if j == nil {
		return
	}
	type document struct {
		Text       string `json:"text"`
		MultiModal any    `json:"multi_modal"`
	}
	type result struct {
		Index    int      `json:"index"`
		Document document `json:"document"`
		Score    float64  `json:"relevance_score"`
	}
	type used struct {
		Prompt int `json:"prompt_tokens"`
		Total  int `json:"total_tokens"`
	}
	results := make([]result, 0, len(docs))
	for i, s := range j.seqs {
		results = append(results, result{i, document{Text: docs[i]}, pairScore(s)})
	}
	slices.SortStableFunc(results, func(a, b result) int {
		switch {
		case a.Score > b.Score:
			return -1
		case a.Score < b.Score:
			return 1
		}
		return 0
	})
	if limited && top > 0 {
		results = results[:min(top, len(results))]
	}
	n := j.tally(1).prompt
	x.json(http.StatusOK, struct {
		ID      string   `json:"id"`
		Model   string   `json:"model"`
		Usage   used     `json:"usage"`
		Results []result `json:"results"`
	}{x.id("score-", q), q.model, used{n, n}, results})
}

// score serves /v1/score and /score: one text against many, or pair by pair.
func (x *call) score(f fields) {
	f.require("text_1")
	f.require("text_2")
	first, second := f.texts("text_1"), f.texts("text_2")
	if bad := f.err(); bad != nil {
		x.fail(bad)
		return
	}
	if len(first) != 1 && len(first) != len(second) {
		x.fail(badRequest("text_1", "", "Input lengths must be either 1:1, 1:N or N:N, got %d:%d.", len(first), len(second)))
		return
	}
	var list [][]uint32
	for i, text := range second {
		list = append(list, pair(first[min(i, len(first)-1)], text))
	}
	type item struct {
		Index  int     `json:"index"`
		Object string  `json:"object"`
		Score  float64 `json:"score"`
	}
	j, q := x.pool(f, list)
	if j == nil {
		return
	}
	a := poolAnswer{ID: x.id("score-", q), Object: "list", Created: now(), Model: q.model, Data: []any{}, Usage: j.poolUsage()}
	for i, s := range j.seqs {
		a.Data = append(a.Data, item{i, "score", pairScore(s)})
	}
	x.json(http.StatusOK, a)
}
