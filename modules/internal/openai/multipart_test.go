package openai

import (
	"bytes"
	"errors"
	"io"
	"mime"
	"mime/multipart"
	"strings"
	"testing"
)

const formType = "multipart/form-data; boundary=XX"

func field(name, value string) string {
	return "--XX\r\nContent-Disposition: form-data; name=\"" + name + "\"\r\n\r\n" + value + "\r\n"
}

const (
	soundPart = "--XX\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\\b.wav\"\r\nContent-Type: audio/wav\r\n\r\nRIFF\r\n--X\x00\r\n"
	formEnd   = "--XX--\r\n"
)

func TestScanMultipart(t *testing.T) {
	body := []byte(soundPart + field("model", "whisper") + field("stream", "True") + field("user", "ann") + field("prompt", "hint") + field("x", "1") + field("x", "2") + formEnd)
	f, err := ScanMultipart(body, formType)
	if err != nil {
		t.Fatal(err)
	}
	if f.Model != "whisper" || string(f.ModelSpan.Of(body)) != "whisper" || !f.Stream || f.User != "ann" {
		t.Errorf("fields: %+v", f)
	}
	if f.PromptBytes != 4 || f.MediaBytes != len("RIFF\r\n--X\x00") || len(f.Prompt()) != 1 || f.CanInjectUsage(body) {
		t.Errorf("sizes: %+v", f)
	}
	p := 1
	edits := f.Edits(nil, body, Rewrite{Model: "org/w\"3", InjectUsage: true, Priority: &p, CacheSalt: "s"})
	want := strings.Replace(string(body), "whisper", `org/w"3`, 1)
	if got := splice(t, body, edits); got != want {
		t.Errorf("got %q", got)
	}
	if edits := f.Edits(nil, body, Rewrite{Model: "whisper"}); len(edits) != 0 {
		t.Errorf("edits for the same model: %v", edits)
	}
}

func TestScanMultipartReadsGoWriter(t *testing.T) {
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	part, _ := w.CreateFormFile("file", `we"ird\näme.mp3`)
	_, _ = part.Write(bytes.Repeat([]byte("\r\n--"), 1000))
	_ = w.WriteField("model", "m")
	_ = w.Close()
	if f, err := ScanMultipart(b.Bytes(), w.FormDataContentType()); err != nil || f.Model != "m" || f.MediaBytes != 4000 {
		t.Errorf("%+v, %v", f, err)
	}
}

func TestScanMultipartRefuses(t *testing.T) {
	model := field("model", "m")
	for name, tt := range map[string]struct{ contentType, body, param string }{
		"no type":           {"", model + formEnd, ""},
		"other type":        {"application/json", model + formEnd, ""},
		"no boundary":       {"multipart/form-data", model + formEnd, ""},
		"long boundary":     {"multipart/form-data; boundary=" + strings.Repeat("X", 71), model + formEnd, ""},
		"charset":           {formType + "; charset=utf-16", model + formEnd, ""},
		"empty":             {formType, "", ""},
		"no model":          {formType, field("x", "m") + formEnd, "model"},
		"no parts":          {formType, formEnd, "model"},
		"empty model":       {formType, field("model", "") + formEnd, "model"},
		"long model":        {formType, field("model", strings.Repeat("m", maxModel+1)) + formEnd, "model"},
		"bad model":         {formType, field("model", "\xff") + formEnd, "model"},
		"two models":        {formType, model + model + formEnd, "model"},
		"two streams":       {formType, model + field("stream", "true") + field("stream", "false") + formEnd, "stream"},
		"two users":         {formType, model + field("user", "a") + field("user", "a") + formEnd, "user"},
		"odd stream":        {formType, model + field("stream", "maybe") + formEnd, "stream"},
		"model as a file":   {formType, strings.Replace(model, `"model"`, `"model"; filename="x"`, 1) + formEnd, "model"},
		"model as a file*":  {formType, strings.Replace(model, `"model"`, `"model"; filename*=utf-8''x`, 1) + formEnd, "model"},
		"preamble":          {formType, "hello\r\n" + model + formEnd, ""},
		"epilogue":          {formType, model + formEnd + field("model", "z"), ""},
		"no end":            {formType, model, ""},
		"cut header":        {formType, model + "--XX\r\nContent-Disp", ""},
		"boundary line":     {formType, model + "--XX \r\n" + model + formEnd, ""},
		"longer boundary":   {formType, model + "--XXY\r\n" + formEnd, ""},
		"LF only":           {formType, strings.ReplaceAll(model+formEnd, "\r", ""), ""},
		"no disposition":    {formType, model + "--XX\r\nX: y\r\n\r\nv\r\n" + formEnd, ""},
		"no header":         {formType, model + "--XX\r\n\r\nv\r\n" + formEnd, ""},
		"two dispositions":  {formType, strings.Replace(model, "\r\n\r\n", "\r\nContent-disposition: form-data; name=\"x\"\r\n\r\n", 1) + formEnd, ""},
		"folded":            {formType, strings.Replace(model, "form-data;", "form-data;\r\n", 1) + formEnd, ""},
		"attachment":        {formType, strings.Replace(model, "form-data", "attachment", 1) + formEnd, ""},
		"extended name":     {formType, strings.Replace(model, `name="model"`, `name*=utf-8''model`, 1) + formEnd, ""},
		"both names":        {formType, strings.Replace(model, `name="model"`, `name="x"; name*=utf-8''model`, 1) + formEnd, ""},
		"name twice":        {formType, strings.Replace(model, `name="model"`, `name="model"; name="x"`, 1) + formEnd, ""},
		"escaped name":      {formType, strings.Replace(model, `"model"`, `"mo\del"`, 1) + formEnd, ""},
		"space in a header": {formType, strings.Replace(model, "Disposition:", "Disposition :", 1) + formEnd, ""},
		"long header":       {formType, strings.Replace(model, "\r\n\r\n", "\r\nX: "+strings.Repeat("y", maxPartHeaders)+"\r\n\r\n", 1) + formEnd, ""},
		"many parts":        {formType, strings.Repeat(field("x", ""), maxParts) + model + formEnd, ""},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ScanMultipart([]byte(tt.body), tt.contentType)
			if message := wantError(t, err, tt.param); message == "" {
				t.Error("no message")
			}
		})
	}
}

// FuzzScanMultipart compares with mime/multipart: what is accepted has exactly that one model there.
func FuzzScanMultipart(f *testing.F) {
	for _, body := range []string{
		soundPart + field("model", "m") + field("stream", "true") + formEnd,
		field("model", "m") + formEnd, field("model", "m") + field("model", "n") + formEnd, formEnd,
		strings.Replace(field("model", "m"), `"model"`, `model`, 1) + formEnd,
	} {
		f.Add([]byte(body), formType)
	}
	f.Fuzz(func(t *testing.T, body []byte, contentType string) {
		fields, err := ScanMultipart(body, contentType)
		if err != nil {
			return
		}
		_, params, err := mime.ParseMediaType(contentType)
		if err != nil {
			t.Fatal(err)
		}
		r := multipart.NewReader(bytes.NewReader(body), params["boundary"])
		var models []string
		for {
			part, err := r.NextRawPart()
			if errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("accepted what mime/multipart refuses: %v", err)
			}
			value, err := io.ReadAll(part)
			if err != nil {
				t.Fatal(err)
			}
			if part.FormName() == "model" {
				models = append(models, string(value))
			}
		}
		if len(models) != 1 || models[0] != fields.Model || string(fields.ModelSpan.Of(body)) != fields.Model {
			t.Fatalf("model %q, want %q", fields.Model, models)
		}
	})
}
