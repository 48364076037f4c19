package integration

import (
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
)

// aliased declares the model m, served as org/Name-70B, under the alias
// chat-big.
func aliased(e *engine) string {
	return fmt.Sprintf("\t\tmodel m {\n\t\t\talias chat-big\n\t\t\tendpoint %s {\n\t\t\t\tserved_model org/Name-70B\n\t\t\t}\n\t\t}", e.Address)
}

// served is what an engine must get of a body for chat-big.
func served(body string) string {
	return strings.Replace(body, `"model":"chat-big"`, `"model":"org/Name-70B"`, 1)
}

// arrives checks that the engine gets the body with nothing but the model
// changed.
func arrives(t *testing.T, name string) {
	t.Helper()
	body := strings.TrimSpace(fixture(t, "bodies/"+name))
	e := newEngine(t, answer)
	g := start(t, aliased(e), "\tllm")
	if res, text := g.post(t, "/v1/chat/completions", body); res.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s", res.Status, text)
	}
	if got := e.got()[0].Body; got != served(body) {
		t.Errorf("the engine got %s\nwant %s", got, served(body))
	}
}

func TestB01_NumbersKeepTheirDigits(t *testing.T) { arrives(t, "01_bigint.json") }

func TestB02_NoHTMLEscapes(t *testing.T) { arrives(t, "02_html_chars.json") }

func TestB03_UnknownFieldsArrive(t *testing.T) { arrives(t, "03_unknown_fields.json") }

func TestB04_EveryShapeOfContent(t *testing.T) {
	arrives(t, "04_content_shapes.json")
	e := newEngine(t, answer)
	g := start(t, aliased(e), "\tllm")
	body := `{"model":"chat-big","messages":[]}`
	if res, text := g.post(t, "/v1/chat/completions", body); res.StatusCode != http.StatusOK {
		t.Errorf("empty messages: %s %s", res.Status, text)
	}
}

func TestB05_DuplicateKeysAreRefused(t *testing.T) {
	e := newEngine(t, answer)
	g := start(t, one(e), "\tllm")
	bodies := []string{
		strings.TrimSpace(fixture(t, "bodies/05_duplicate_keys.json")),
		`{"model":"denied","messages":[],"model":"m"}`,
		`{"model":"m","messages":[],"\u006dodel":"denied"}`,
		`{"\u006dodel":"m","messages":[],"model":"denied"}`,
		`{"model":"m","stream":true,"stream":false}`,
		`{"model":"m","max_tokens":1,"max_tokens":50000}`,
	}
	for _, body := range bodies {
		res, text := g.post(t, "/v1/chat/completions", body)
		isError(t, res, text, http.StatusBadRequest)
		if !strings.Contains(text, "more than once") {
			t.Errorf("%s: %s", body, text)
		}
	}
	if n := len(e.got()); n != 0 {
		t.Errorf("%d of them reached the engine", n)
	}
	// One escaped key alone is the model, and is the one that is replaced.
	if res, text := g.post(t, "/v1/chat/completions", `{"\u006dodel":"m"}`); res.StatusCode != http.StatusOK {
		t.Errorf("%s %s", res.Status, text)
	}
}

func TestB07_LargeBodies(t *testing.T) {
	var mu sync.Mutex
	lengths := make(map[int]int)
	e := newEngine(t, answer)
	// This one counts bodies instead of keeping them.
	e.setInstead(func(w http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		mu.Lock()
		lengths[int(n)]++
		mu.Unlock()
		answer(w, r)
	})
	// The test machine may be too busy with these to answer anything else in time.
	g := start(t, aliased(e)+"\n\t\tscrape_interval 5s\n\t\treliability {\n\t\t\tconnect_timeout 1m\n\t\t}", "\tllm")
	image := strings.Repeat("iVBORw0K", 6<<20/8)
	body := `{"model":"chat-big","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,` +
		image + `"}},{"type":"image_url","image_url":{"url":"data:image/png;base64,` + image + `"}}]}]}`
	if res, text := g.post(t, "/v1/chat/completions", body); res.StatusCode != http.StatusOK {
		t.Fatalf("12 MiB: %s %s", res.Status, text)
	}
	mu.Lock()
	if lengths[len(served(body))] != 1 {
		t.Errorf("the engine got %v, want %d bytes", lengths, len(served(body)))
	}
	mu.Unlock()

	over := `{"model":"chat-big","x":"` + strings.Repeat("a", 33<<20) + `"}`
	for _, chunked := range []bool{false, true} {
		req := g.request(t, t.Context(), http.MethodPost, "/v1/chat/completions", over)
		if chunked {
			req.ContentLength = -1
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(res.Body)
		res.Body.Close()
		isError(t, res, string(text), http.StatusRequestEntityTooLarge)
		if !strings.Contains(string(text), "32 MiB") {
			t.Errorf("the error does not name the limit: %s", text)
		}
	}

	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	var wg sync.WaitGroup
	for range 30 {
		wg.Go(func() {
			if res, text := g.post(t, "/v1/chat/completions", body); res.StatusCode != http.StatusOK {
				t.Errorf("%s %s", res.Status, text)
			}
		})
	}
	wg.Wait()
	eventually(t, "all bodies are given back", func() bool {
		v, ok := g.metric(t, "llmgw_body_bytes")
		return ok && v == 0
	})
	runtime.GC()
	runtime.ReadMemStats(&after)
	// At rest no body is kept: not one of the thirty.
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > int64(len(body)) {
		t.Errorf("the heap grew by %d bytes", grown)
	}
}

func TestB07_ConfiguredLimit(t *testing.T) {
	e := newEngine(t, answer)
	g := start(t, one(e), "\tllm {\n\t\tbody_limit 1KiB\n\t}")
	res, text := g.post(t, "/v1/chat/completions", `{"model":"m","x":"`+strings.Repeat("a", 2000)+`"}`)
	isError(t, res, text, http.StatusRequestEntityTooLarge)
	if !strings.Contains(text, "1 KiB") {
		t.Errorf("the error does not name the limit: %s", text)
	}
}

func TestB09_TheAnswersModelStaysTheEngines(t *testing.T) {
	said := `{"id":"c","model":"org/Name-70B","choices":[{"message":{"content":"\"model\":\"x\""}}],"usage":{"prompt_tokens":1,"completion_tokens":2}}`
	chunk := `data: {"id":"c","model":"org/Name-70B","choices":[{"delta":{"content":"\"model\":\"x\""}}]}` + "\n\ndata: [DONE]\n\n"
	e := newEngine(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		if strings.Contains(string(b), `"stream":true`) {
			events("text/event-stream", chunk)(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, said)
	})
	g := start(t, aliased(e), "\tllm")
	res, text := g.post(t, "/v1/chat/completions", `{"model":"chat-big","messages":[{"role":"user","content":"say \"model\":\"chat-big\""}]}`)
	if text != said {
		t.Errorf("got %s", text)
	}
	if got := res.Header.Get("X-Llmgw-Served-Model"); got != "org/Name-70B" {
		t.Errorf("served model %q", got)
	}
	if got := e.got()[0].Body; !strings.HasPrefix(got, `{"model":"org/Name-70B"`) || !strings.Contains(got, `say \"model\":\"chat-big\"`) {
		t.Errorf("the engine got %s", got)
	}
	entry := g.accessLog(t, res.Header.Get("X-Request-Id"))
	if entry["model"] != "m" || entry["served_model"] != "org/Name-70B" {
		t.Errorf("logged %v and %v", entry["model"], entry["served_model"])
	}
	if _, text := g.post(t, "/v1/chat/completions", `{"model":"chat-big","stream":true}`); text != chunk {
		t.Errorf("got %s", text)
	}
}

func TestB10_TheEngineDecidesOnLimits(t *testing.T) {
	e := newEngine(t, answer)
	g := start(t, one(e), "\tllm")
	for _, limits := range []string{
		`"max_tokens":0`, `"max_tokens":-1`, `"max_tokens":"10"`, `"max_tokens":1e3`, `"max_completion_tokens":40`,
		`"max_tokens":10,"max_completion_tokens":40`, `"max_tokens":10,"n":4`,
	} {
		body := `{"model":"m",` + limits + `}`
		if res, text := g.post(t, "/v1/chat/completions", body); res.StatusCode != http.StatusOK {
			t.Errorf("%s: %s %s", limits, res.Status, text)
		}
		if got := e.got(); got[len(got)-1].Body != body {
			t.Errorf("the engine got %s, want %s", got[len(got)-1].Body, body)
		}
	}
}

func TestMalformedBodies(t *testing.T) {
	e := newEngine(t, answer)
	g := start(t, one(e), "\tllm")
	for _, body := range []string{
		``, ` `, `[]`, `"m"`, `null`, `{`, `{"model":"m"`, `{"model":"m"} x`, `{"model":"m",}`, `{model:"m"}`,
		`{}`, `{"model":null}`, `{"model":7}`, `{"model":""}`, `{"model":["m"]}`, `{"model":"m","stream":"yes"}`,
		"{\"model\":\"m\x01\"}", strings.Repeat("[", 100000), `{"model":"m","x":` + strings.Repeat(`{"a":`, 100000),
	} {
		res, text := g.post(t, "/v1/chat/completions", body)
		isError(t, res, text, http.StatusBadRequest)
	}
	res, text := g.post(t, "/v1/chat/completions", `{"model":"m"}`, "Content-Encoding", "gzip")
	isError(t, res, text, http.StatusBadRequest)
	if n := len(e.got()); n != 0 {
		t.Errorf("%d of them reached the engine", n)
	}
}

func TestMultipartForm(t *testing.T) {
	e := newEngine(t, func(w http.ResponseWriter, r *http.Request) {
		if err := r.ParseMultipartForm(1 << 20); err != nil {
			t.Errorf("the engine cannot read the form: %v", err)
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"text":%q}`, r.FormValue("model"))
	})
	g := start(t, aliased(e), "\tllm")
	var b strings.Builder
	form := multipart.NewWriter(&b)
	file, _ := form.CreateFormFile("file", "speech.wav")
	io.WriteString(file, "RIFF\x00\x01"+strings.Repeat("\xff", 5000))
	form.WriteField("model", "chat-big")
	form.Close()
	res, text := g.post(t, "/v1/audio/transcriptions", b.String(), "Content-Type", "")
	isError(t, res, text, http.StatusBadRequest)
	req := g.request(t, t.Context(), http.MethodPost, "/v1/audio/transcriptions", b.String())
	req.Header.Set("Content-Type", form.FormDataContentType())
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if got, _ := io.ReadAll(res.Body); string(got) != `{"text":"org/Name-70B"}` {
		t.Errorf("%s %s", res.Status, got)
	}
	if got := e.got()[0].Body; got != strings.Replace(b.String(), "\r\n\r\nchat-big\r\n", "\r\n\r\norg/Name-70B\r\n", 1) {
		t.Errorf("the form changed in other places")
	}
}
