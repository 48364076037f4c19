package sim

import (
	"bytes"
	"io"
	"net/http"

	"github.com/cespare/xxhash/v2"
)

// Bytes of 16-bit mono sound at 16 kHz: of one second, and of one encoder
// token.
const (
	bytesPerSecond = 32000
	bytesPerToken  = 3200
)

// transcriptions serves /v1/audio/transcriptions: a multipart form with file
// and model. The prompt is as long as the file says, the text is as pseudo as
// all others.
func (x *call) transcriptions() {
	x.r.Body = io.NopCloser(bytes.NewReader(x.body))
	if err := x.r.ParseMultipartForm(maxBody); err != nil {
		x.fail(&apiError{http.StatusBadRequest, "Bad Request", "", "1 validation error:\n  body: cannot read the multipart form: " + err.Error()})
		return
	}
	defer x.r.MultipartForm.RemoveAll() //nolint:errcheck // all of it was in memory
	file, head, err := x.r.FormFile("file")
	if err != nil {
		x.fail(validationError([]invalid{{"missing", "body.file", "Field required", "None", ""}}))
		return
	}
	defer file.Close()
	data, err := io.ReadAll(file)
	if err != nil {
		x.fail(badRequest("file", "", "The file cannot be read: %v", err))
		return
	}
	if v := x.r.FormValue("stream"); v == "true" || v == "True" || v == "1" {
		x.fail(badRequest("stream", v, "This model does not stream transcriptions."))
		return
	}
	cfg := &x.e.cfg
	q := request{model: x.r.FormValue("model"), n: 1}
	bad := x.core.resolve(&q, true)
	tokens := []uint32{tokenImage}
	h := xxhash.Sum64(data)
	for i := range min(int(head.Size)/bytesPerToken, cfg.MaxModelLen/2) {
		tokens = append(tokens, uint32(mix(h+uint64(i)))|0xFE000000)
	}
	var j *job
	if bad == nil {
		j, bad = cfg.generation(&q, tokens)
	}
	if bad != nil {
		x.fail(bad)
		return
	}
	if !x.wait(j) {
		return
	}
	text := j.seqs[0].text()
	if x.r.FormValue("response_format") == "text" {
		x.answer(http.StatusOK, "text/plain; charset=utf-8", []byte(text))
		return
	}
	type used struct {
		Type    string `json:"type"`
		Seconds int64  `json:"seconds"`
	}
	x.json(http.StatusOK, struct {
		Text  string `json:"text"`
		Usage used   `json:"usage"`
	}{text, used{"duration", (head.Size + bytesPerSecond - 1) / bytesPerSecond}})
}
