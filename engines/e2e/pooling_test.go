//go:build engines

package e2e

import (
	"encoding/base64"
	"encoding/binary"
	"math"
	"testing"
)

// TestEmbeddings: vectors of a real embedding model pass in both encodings, as
// the engine gives them, under the alias too.
func TestEmbeddings(t *testing.T) {
	input := []string{"a river runs through the city", "the stream crosses the town", "my cat hates taxes"}
	type answer struct {
		Model string
		Data  []struct {
			Index     int
			Embedding []float64
		}
		Usage usage
	}
	var got, own answer
	body := object{"model": "text-embedding", "input": input}
	posted(t, lab.gatewayURL+"/v1/embeddings", body).into(t, &got)
	posted(t, lab.minilmURL+"/v1/embeddings", object{"model": "minilm", "input": input}).into(t, &own)
	if len(got.Data) != len(input) || got.Model != "minilm" || got.Usage != own.Usage || got.Usage.Prompt == 0 {
		t.Fatalf("%d vectors of %s with %+v; the engine says %+v", len(got.Data), got.Model, got.Usage, own.Usage)
	}
	for i, d := range got.Data {
		// Batches may be cut in another way, which rounds in another way.
		if s := cosine(d.Embedding, own.Data[i].Embedding); d.Index != i || len(d.Embedding) != 384 || s < 0.9999 {
			t.Errorf("vector %d: index %d, %d numbers, similar by %v to the engine's own", i, d.Index, len(d.Embedding), s)
		}
	}
	if like, unlike := cosine(got.Data[0].Embedding, got.Data[1].Embedding), cosine(got.Data[0].Embedding, got.Data[2].Embedding); like < unlike+0.2 {
		t.Errorf("sentences of one meaning are similar by %v, of two by %v", like, unlike)
	}

	var packed struct {
		Data []struct{ Embedding string }
	}
	body["encoding_format"] = "base64"
	posted(t, lab.gatewayURL+"/v1/embeddings", body).into(t, &packed)
	for i, d := range packed.Data {
		raw, err := base64.StdEncoding.DecodeString(d.Embedding)
		if err != nil || len(raw) != 4*384 {
			t.Fatalf("vector %d: %d bytes: %v", i, len(raw), err)
		}
		var v []float64
		for ; len(raw) > 0; raw = raw[4:] {
			v = append(v, float64(math.Float32frombits(binary.LittleEndian.Uint32(raw))))
		}
		if s := cosine(v, own.Data[i].Embedding); s < 0.9999 {
			t.Errorf("vector %d in base64 is similar by %v to the engine's own", i, s)
		}
	}
	if len(packed.Data) != len(input) {
		t.Errorf("%d vectors in base64", len(packed.Data))
	}
}

// TestScoreAndRerank: the other things that a pooling model does.
func TestScoreAndRerank(t *testing.T) {
	const query = "a river runs through the city"
	documents := []string{"my cat hates taxes", "the stream crosses the town"}
	var score struct {
		Data []struct {
			Index int
			Score float64
		}
	}
	posted(t, lab.gatewayURL+"/v1/score", object{"model": "minilm", "text_1": query, "text_2": documents}).into(t, &score)
	if d := score.Data; len(d) != 2 || d[0].Index != 0 || d[1].Index != 1 || d[1].Score <= d[0].Score {
		t.Errorf("scores %+v, want two, the second higher", d)
	}
	for _, path := range []string{"/v1/rerank", "/rerank", "/v2/rerank"} {
		var rank struct {
			Results []struct {
				Index int
				Score float64 `json:"relevance_score"`
			}
		}
		posted(t, lab.gatewayURL+path, object{"model": "text-embedding", "query": query, "documents": documents}).into(t, &rank)
		if r := rank.Results; len(r) != 2 || r[0].Index != 1 || r[0].Score <= r[1].Score {
			t.Errorf("%s: ranked %+v, want the second document first", path, r)
		}
	}
}

func cosine(a, b []float64) float64 {
	var ab, aa, bb float64
	for i := range min(len(a), len(b)) {
		ab, aa, bb = ab+a[i]*b[i], aa+a[i]*a[i], bb+b[i]*b[i]
	}
	return ab / math.Sqrt(aa*bb)
}
