package sim

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"math"
	"mime/multipart"
	"slices"
	"strings"
	"testing"
)

func TestEmbeddings(t *testing.T) {
	_, srv := newTestEngine(t, fast())
	type answer struct {
		Data []struct {
			Index     int
			Embedding json.RawMessage
		}
		Usage usage
	}
	ask := func(body string) (a answer) {
		if err := json.Unmarshal([]byte(must(t, "POST", srv.URL+"/v1/embeddings", body)), &a); err != nil {
			t.Fatal(err)
		}
		return a
	}
	a := ask(`{"input":["hello","world","hello"]}`)
	var vectors [][]float64
	for i, d := range a.Data {
		var v []float64
		if err := json.Unmarshal(d.Embedding, &v); err != nil {
			t.Fatal(err)
		}
		sum := 0.0
		for _, x := range v {
			sum += x * x
		}
		if d.Index != i || len(v) != embeddingSize || math.Abs(sum-1) > 1e-5 {
			t.Errorf("vector %d has index %d, %d dimensions, length² %f", i, d.Index, len(v), sum)
		}
		vectors = append(vectors, v)
	}
	if len(vectors) != 3 || !slices.Equal(vectors[0], vectors[2]) || slices.Equal(vectors[0], vectors[1]) {
		t.Error("vectors do not follow the texts")
	}
	if want := len(encode(nil, "hello"))*2 + len(encode(nil, "world")); a.Usage.Prompt != want || a.Usage.Total != want {
		t.Errorf("usage %+v: want %d tokens", a.Usage, want)
	}
	b := ask(`{"input":[[` + "1,2" + `],[3]],"encoding_format":"base64"}`)
	var text string
	if err := json.Unmarshal(b.Data[0].Embedding, &text); err != nil {
		t.Fatal(err)
	}
	raw, err := base64.StdEncoding.DecodeString(text)
	if err != nil || len(raw) != 4*embeddingSize {
		t.Fatalf("%d bytes, %v", len(raw), err)
	}
	want := vector(&sequence{prompt: []uint32{1, 2}})
	if got := math.Float32frombits(binary.LittleEndian.Uint32(raw)); got != want[0] || b.Usage.Prompt != 3 {
		t.Errorf("first component %g: want %g; usage %+v", got, want[0], b.Usage)
	}
}

func TestRerank(t *testing.T) {
	_, srv := newTestEngine(t, fast())
	var a struct {
		Results []struct {
			Index    int
			Document struct{ Text string }
			Score    float64 `json:"relevance_score"`
		}
	}
	docs := []string{"a", "b", "c", "d", "e", "f"}
	body := marshal(map[string]any{"query": "q", "documents": docs, "top_n": 4})
	if err := json.Unmarshal([]byte(must(t, "POST", srv.URL+"/rerank", string(body))), &a); err != nil {
		t.Fatal(err)
	}
	if len(a.Results) != 4 {
		t.Fatalf("%d results: want top_n", len(a.Results))
	}
	for i, r := range a.Results {
		if r.Document.Text != docs[r.Index] || r.Score < 0 || r.Score > 1 || i > 0 && r.Score > a.Results[i-1].Score {
			t.Errorf("result %d is %+v", i, r)
		}
	}
}

func TestTranscriptions(t *testing.T) {
	_, srv := newTestEngine(t, fast())
	form := func(size int, fields ...string) (string, string) {
		var buf bytes.Buffer
		w := multipart.NewWriter(&buf)
		for i := 0; i < len(fields); i += 2 {
			if err := w.WriteField(fields[i], fields[i+1]); err != nil {
				t.Fatal(err)
			}
		}
		if size > 0 {
			part, err := w.CreateFormFile("file", "a.wav")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := part.Write(make([]byte, size)); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return buf.String(), w.FormDataContentType()
	}
	tests := []struct {
		name   string
		size   int
		fields []string
		status int
		want   string
	}{
		{"json", 80000, []string{"model", "sim"}, 200, `","usage":{"type":"duration","seconds":3}}`},
		{"no model", 10, nil, 200, `"seconds":1}}`},
		{"stream", 10, []string{"stream", "true"}, 400, `"param":"stream"`},
		{"unknown model", 10, []string{"model", "nope"}, 404, "`nope`"},
		{"no file", 0, []string{"model", "sim"}, 400, `"param":"body.file"`},
	}
	for _, tt := range tests {
		body, kind := form(tt.size, tt.fields...)
		status, _, got, err := send(t, "POST", srv.URL+"/v1/audio/transcriptions", body, "Content-Type", kind)
		if status != tt.status || err != nil || !strings.Contains(got, tt.want) {
			t.Errorf("%s: %d %s %v: want %d with %s", tt.name, status, got, err, tt.status, tt.want)
		}
	}
	if status, _, got, _ := send(t, "POST", srv.URL+"/v1/audio/transcriptions", "{}"); status != 400 {
		t.Errorf("no form: %d %s", status, got)
	}
	body, kind := form(10, "response_format", "text")
	if got := must(t, "POST", srv.URL+"/v1/audio/transcriptions", body, "Content-Type", kind); got == "" || got[0] == '{' {
		t.Errorf("text: %s", got)
	}
}
