package sim

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// capture is one recorded exchange with a real engine.
type capture struct {
	method, path, request string
	status                int
	header                http.Header
	body                  string
}

func readCapture(t *testing.T, name string) capture {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", "vllm", name+".http"))
	if err != nil {
		t.Fatal(err)
	}
	var c capture
	rest := string(data)
	for strings.HasPrefix(rest, ">>> ") {
		var line string
		line, rest, _ = strings.Cut(rest[4:], "\n")
		if c.path == "" {
			c.method, c.path, _ = strings.Cut(line, " ")
			c.path, _, _ = strings.Cut(c.path, " ")
		} else {
			c.request = strings.Replace(line, `"minilm"`, `"tiny"`, 1)
		}
	}
	head, body, ok := strings.Cut(rest, "\n\n")
	if !ok {
		t.Fatalf("%s: no end of the header", name)
	}
	c.body = strings.TrimRight(body, "\n")
	lines := bufio.NewScanner(strings.NewReader(head))
	lines.Scan()
	if _, err := fmt.Sscanf(lines.Text(), "HTTP/1.1 %d", &c.status); err != nil {
		t.Fatalf("%s: status line %q: %v", name, lines.Text(), err)
	}
	c.header = make(http.Header)
	for lines.Scan() {
		k, v, _ := strings.Cut(lines.Text(), ": ")
		c.header.Add(k, v)
	}
	return c
}

// shape writes a JSON text with its keys in order and every value as its type.
// Of neighbours in an array with the same type only one is written.
func shape(t *testing.T, text string) string {
	t.Helper()
	dec := json.NewDecoder(strings.NewReader(text))
	dec.UseNumber()
	var b strings.Builder
	var value func(tok json.Token)
	next := func() json.Token {
		tok, err := dec.Token()
		if err != nil {
			t.Fatalf("%v in %.300s", err, text)
		}
		return tok
	}
	value = func(tok json.Token) {
		switch v := tok.(type) {
		case json.Delim:
			b.WriteString(v.String())
			for last := ""; dec.More(); {
				if v == '{' {
					fmt.Fprintf(&b, "%v:", next())
				}
				from := b.Len()
				value(next())
				b.WriteByte(',')
				if one := b.String()[from:]; v == '[' && one == last {
					whole := b.String()[:from]
					b.Reset()
					b.WriteString(whole)
				} else {
					last = one
				}
			}
			b.WriteString(next().(json.Delim).String())
		case json.Number:
			if strings.ContainsAny(v.String(), ".e") {
				b.WriteString("float")
			} else {
				b.WriteString("int")
			}
		default:
			fmt.Fprintf(&b, "%T", v)
		}
	}
	value(next())
	return b.String()
}

// shapes is the shape of a whole body: of each line of an event stream, or of
// one JSON value.
func shapes(t *testing.T, stream bool, body string) string {
	t.Helper()
	if !stream {
		return shape(t, body)
	}
	var out []string
	for line := range strings.Lines(body) {
		line = strings.TrimRight(line, "\n")
		if data, ok := strings.CutPrefix(line, "data: "); ok && data != "[DONE]" {
			line = "data: " + shape(t, data)
		}
		out = append(out, line)
	}
	return strings.TrimRight(strings.Join(out, "\n"), "\n")
}

// fast is a configuration in which nothing takes time.
func fast() Config {
	return Config{MaxNumSeqs: 64, OutputTokens: 12}
}

// goldenConfig is what the recorded engine was started with.
func goldenConfig() Config {
	c := fast()
	c.Models, c.LoRAs = []string{"tiny"}, []string{"alpha"}
	c.MaxModelLen, c.BlockSize, c.KVBlocks = 2048, 32, 256
	return c
}

func newTestEngine(t *testing.T, cfg Config) (*Engine, *httptest.Server) {
	t.Helper()
	e, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(e.Handler())
	t.Cleanup(func() { e.Close(); srv.Close() })
	return e, srv
}

// send returns the status, header and body of an exchange; a body that was
// broken off is an error.
func send(t *testing.T, method, url, body string, header ...string) (int, http.Header, string, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	client := &http.Client{
		Transport:     &http.Transport{DisableKeepAlives: true, DisableCompression: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	res, err := client.Do(req)
	if err != nil {
		return 0, nil, "", err
	}
	defer res.Body.Close()
	var buf bytes.Buffer
	_, err = io.Copy(&buf, res.Body)
	return res.StatusCode, res.Header, buf.String(), err
}

// must is send for exchanges that have to succeed.
func must(t *testing.T, method, url, body string, header ...string) string {
	t.Helper()
	status, _, answer, err := send(t, method, url, body, header...)
	if err != nil || status != http.StatusOK {
		t.Fatalf("%s %s: %d %v: %.300s", method, url, status, err, answer)
	}
	return answer
}

func TestGoldenShapes(t *testing.T) {
	_, srv := newTestEngine(t, goldenConfig())
	names := []string{
		"chat", "chat_stream", "chat_stream_usage", "chat_stream_usage_continuous", "chat_n2", "chat_lora", "chat_reqid",
		"completions", "completions_stream", "completions_tokens", "cached_1_cold", "cached_2_hit", "cached_3_hit_stream",
		"cached_4_hit_messages", "messages", "messages_stream", "responses", "responses_stream", "count_tokens",
		"tokenize_chat", "tokenize_prompt", "detokenize", "get_load", "get_v1_models", "xrequestid",
		"embed_embeddings", "embed_embeddings_b64", "embed_pooling", "embed_rerank", "embed_score",
	}
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			c := readCapture(t, name)
			status, header, body, err := send(t, c.method, srv.URL+c.path, c.request)
			if err != nil {
				t.Fatal(err)
			}
			if status != c.status {
				t.Fatalf("status %d: want %d: %s", status, c.status, body)
			}
			for key := range c.header {
				switch got, want := header.Get(key), c.header.Get(key); key {
				case "Date", "Content-Length", "Transfer-Encoding":
				default:
					if got != want {
						t.Errorf("header %s is %q: want %q", key, got, want)
					}
				}
			}
			stream := strings.HasPrefix(c.header.Get("Content-Type"), "text/event-stream")
			if got, want := shapes(t, stream, body), shapes(t, stream, c.body); got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
		})
	}
}

// Answers that hold nothing of this run are the recorded ones to the byte.
func TestGoldenBytes(t *testing.T) {
	_, srv := newTestEngine(t, goldenConfig())
	for _, name := range []string{
		"err_bad_json", "err_bad_param", "err_bad_type", "err_content_type", "err_max_tokens", "err_method", "err_no_messages",
		"err_not_found", "err_too_long", "err_unknown_model", "embed_err_unknown", "get_health", "get_ping", "get_version",
	} {
		t.Run(name, func(t *testing.T) {
			c := readCapture(t, name)
			var header []string
			switch name {
			case "err_content_type":
				c.request, header = "model", []string{"Content-Type", "text/plain"}
			case "err_too_long":
				c.request = `{"model":"tiny","messages":[{"role":"user","content":"` + strings.Repeat("word ", 4000) + `"}]}`
			}
			status, got, body, err := send(t, c.method, srv.URL+c.path, c.request, header...)
			if err != nil {
				t.Fatal(err)
			}
			if status != c.status || body != c.body {
				t.Errorf("got %d %s\nwant %d %s", status, body, c.status, c.body)
			}
			for _, key := range []string{"Allow", "Content-Type", "Content-Length", "Vary", "Server"} {
				if got.Get(key) != c.header.Get(key) {
					t.Errorf("header %s is %q: want %q", key, got.Get(key), c.header.Get(key))
				}
			}
		})
	}
}
