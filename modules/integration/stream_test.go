package integration

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
)

const streamRequest = `{"model":"m","stream":true,"messages":[{"role":"user","content":"x"}]}`

func fixture(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// usageChunk is the chunk that a client that did not ask for usage must not
// see, with its blank line.
func usageChunk(t *testing.T, stream string) string {
	t.Helper()
	at := strings.Index(stream, `"usage":{`)
	begin := strings.LastIndex(stream[:at], "data:")
	end := at + strings.Index(stream[at:], "\n\n") + 2
	if crlf := strings.Index(stream[at:], "\r\n\r\n"); crlf >= 0 {
		end = at + crlf + 4
	}
	return stream[begin:end]
}

func TestS01_CharactersCutBetweenReads(t *testing.T) {
	text := fixture(t, "sse/01_utf8.sse")
	// Inside a 3-byte and inside a 4-byte character.
	parts := []string{text[:328], text[328:332], text[332:515], text[515:517], text[517:]}
	e := newEngine(t, events("text/event-stream", parts...))
	g := start(t, one(e), "\tllm")
	for _, body := range []string{streamRequest, strings.Replace(streamRequest, `"stream":true`, `"stream":true,"stream_options":{"include_usage":true}`, 1)} {
		if _, got := g.post(t, "/v1/chat/completions", body); got != text {
			t.Errorf("the client got other bytes than the engine sent:\n%q", got)
		}
	}
}

func TestS02_LongDataLines(t *testing.T) {
	for _, size := range []int{70 << 10, 1100 << 10, 4 << 20} {
		long := `data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"` +
			strings.Repeat("a", size) + "\"}}]}}]}\n\n"
		usage := `data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":9,"total_tokens":16}}` + "\n\n"
		e := newEngine(t, events("text/event-stream", long, usage, "data: [DONE]\n\n"))
		g := start(t, one(e), "\tllm")
		res, got := g.post(t, "/v1/chat/completions", streamRequest)
		if got != long+"data: [DONE]\n\n" {
			t.Errorf("%d bytes: the client got %d bytes, want %d", size, len(got), len(long)+14)
		}
		entry := g.accessLog(t, res.Header.Get("X-Request-Id"))
		if entry["completion_tokens"] != 9.0 || entry["outcome"] != "ok" {
			t.Errorf("%d bytes: logged %v tokens, outcome %v", size, entry["completion_tokens"], entry["outcome"])
		}
	}
}

func TestS03_LineEndsAndBlanks(t *testing.T) {
	crlf := fixture(t, "sse/02_crlf_nospace.sse")
	lf := strings.ReplaceAll(crlf, "\r\n", "\n")
	forms := map[string]string{
		"crlf": crlf, "lf": lf,
		"crlf blank": strings.ReplaceAll(crlf, "data:", "data: "), "lf blank": strings.ReplaceAll(lf, "data:", "data: "),
		"mixed": strings.Replace(strings.Replace(crlf, "\r\n\r\n", "\n\n", 2), "data:", "data: ", 1),
	}
	for name, text := range forms {
		t.Run(name, func(t *testing.T) {
			e := newEngine(t, events("text/event-stream", text))
			g := start(t, one(e), "\tllm")
			res, got := g.post(t, "/v1/chat/completions", streamRequest)
			if want := strings.Replace(text, usageChunk(t, text), "", 1); got != want {
				t.Errorf("got %q\nwant %q", got, want)
			}
			entry := g.accessLog(t, res.Header.Get("X-Request-Id"))
			if entry["prompt_tokens"] != 11.0 || entry["completion_tokens"] != 3.0 || entry["outcome"] != "ok" || entry["ttft_ms"] == nil {
				t.Errorf("logged %v", entry)
			}
		})
	}
}

func TestS04_CommentsAreNoTokens(t *testing.T) {
	text := fixture(t, "sse/03_comments.sse")
	first := strings.Index(text, "data:")
	gate := make(chan struct{})
	e := newEngine(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, text[:first])
		w.(http.Flusher).Flush()
		<-gate
		io.WriteString(w, text[first:])
	})
	g := start(t, one(e), "\tllm")
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	res, err := http.DefaultClient.Do(g.request(t, ctx, http.MethodPost, "/v1/chat/completions", streamRequest))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	comments := make([]byte, first)
	if _, err := io.ReadFull(res.Body, comments); err != nil || string(comments) != text[:first] {
		t.Fatalf("comments came as %q, %v", comments, err)
	}
	close(gate)
	rest, err := io.ReadAll(res.Body)
	if want := strings.Replace(text[first:], usageChunk(t, text), "", 1); err != nil || string(rest) != want {
		t.Errorf("got %q, %v\nwant %q", rest, err, want)
	}
	entry := g.accessLog(t, res.Header.Get("X-Request-Id"))
	// That no comment is taken for the first token is for the tap's own test.
	if entry["outcome"] != "ok" || entry["completion_tokens"] != 3.0 || entry["ttft_ms"] == nil {
		t.Errorf("logged %v", entry)
	}
}

func TestS05_UsageChunkWithoutChoices(t *testing.T) {
	text := fixture(t, "sse/04_usage_tail.sse")
	asks := strings.Replace(streamRequest, `"stream":true`, `"stream":true,"stream_options":{"include_usage":true}`, 1)
	for name, stream := range map[string]string{
		"empty": text,
		"null":  strings.Replace(text, `"choices":[],"usage"`, `"choices":null,"usage"`, 1),
	} {
		t.Run(name, func(t *testing.T) {
			e := newEngine(t, events("text/event-stream", stream))
			g := start(t, one(e), "\tllm")
			res, got := g.post(t, "/v1/chat/completions", asks)
			if got != stream {
				t.Errorf("got %q", got)
			}
			entry := g.accessLog(t, res.Header.Get("X-Request-Id"))
			if entry["prompt_tokens"] != 2006.0 || entry["cached_tokens"] != 1920.0 || entry["completion_tokens"] != 136.0 {
				t.Errorf("logged %v", entry)
			}
		})
	}
}

func TestS06_UsageIsWithheldFromWhoDidNotAsk(t *testing.T) {
	text := fixture(t, "sse/04_usage_tail.sse")
	less := strings.Replace(text, usageChunk(t, text), "", 1)
	e := newEngine(t, events("text/event-stream", text))
	g := start(t, one(e), "\tllm")
	for _, c := range []struct{ options, want string }{
		{"", less},
		{`,"stream_options":{"include_usage":false}`, less},
		{`,"stream_options":{"include_usage":true}`, text},
	} {
		body := strings.Replace(streamRequest, `"stream":true`, `"stream":true`+c.options, 1)
		res, got := g.post(t, "/v1/chat/completions", body)
		if got != c.want {
			t.Errorf("options %q: got %q", c.options, got)
		}
		if entry := g.accessLog(t, res.Header.Get("X-Request-Id")); entry["completion_tokens"] != 136.0 {
			t.Errorf("options %q: logged %v", c.options, entry)
		}
		sent := e.got()[len(e.got())-1].Body
		if !strings.Contains(sent, `"include_usage":true`) {
			t.Errorf("options %q: the engine was not asked for usage: %s", c.options, sent)
		}
	}
	if v, _ := g.metric(t, `llmgw_tokens_total{direction="completion",model="m"}`); v != 3*136 {
		t.Errorf("%v completion tokens counted", v)
	}
}

func TestS06_InjectUsageOff(t *testing.T) {
	e := newEngine(t, events("text/event-stream", "data: [DONE]\n\n"))
	g := start(t, one(e), "\tllm {\n\t\tinject_usage off\n\t}")
	g.post(t, "/v1/chat/completions", streamRequest)
	if sent := e.got()[0].Body; sent != streamRequest {
		t.Errorf("the engine got %s", sent)
	}
}

func TestS09_ErrorsInsideAStream(t *testing.T) {
	frame := "data: {\"error\":{\"message\":\"engine step failed\",\"type\":\"InternalServerError\",\"code\":500}}\n\n"
	token := "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"},\"finish_reason\":null}]}\n\n"
	for _, c := range []struct{ name, stream, want, outcome string }{
		{"only", frame, frame, "engine_error"},
		{"after tokens", token + token + token + frame + "data: [DONE]\n\n", token + token + token + frame, "engine_error"},
		{"null", strings.Replace(token, "{", `{"error":null,`, 1) + "data: [DONE]\n\n", strings.Replace(token, "{", `{"error":null,`, 1) + "data: [DONE]\n\n", "ok"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := newEngine(t, events("text/event-stream", c.stream))
			b := newEngine(t, events("text/event-stream", c.stream))
			g := start(t, one(a, b), "\tllm")
			ctx, cancel := context.WithTimeout(t.Context(), deadline)
			defer cancel()
			res, err := http.DefaultClient.Do(g.request(t, ctx, http.MethodPost, "/v1/chat/completions", streamRequest))
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			// What broke must not look like a clean end: the connection may be
			// aborted behind the frame.
			got, _ := io.ReadAll(res.Body)
			if !strings.HasPrefix(string(got), c.want) || c.outcome != "ok" && strings.Contains(string(got), "[DONE]") {
				t.Errorf("got %q, want %q", got, c.want)
			}
			if n := len(a.got()) + len(b.got()); n != 1 {
				t.Errorf("%d requests reached the engines", n)
			}
			if entry := g.accessLog(t, res.Header.Get("X-Request-Id")); entry["outcome"] != c.outcome {
				t.Errorf("outcome %v, want %s", entry["outcome"], c.outcome)
			}
		})
	}
}

func TestS11_CompressionHoldsNothingBack(t *testing.T) {
	step := make(chan struct{})
	e := newEngine(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Accept-Encoding") != "" {
			t.Errorf("the engine was offered %q", r.Header.Get("Accept-Encoding"))
		}
		w.Header().Set("Content-Type", "text/event-stream")
		for range 3 {
			io.WriteString(w, "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n")
			w.(http.Flusher).Flush()
			<-step
		}
		io.WriteString(w, "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":3}}\n\ndata: [DONE]\n\n")
	})
	g := start(t, one(e), "\tencode gzip zstd\n\tllm")
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	res, err := http.DefaultTransport.RoundTrip(g.request(t, ctx, http.MethodPost, "/v1/chat/completions", streamRequest, "Accept-Encoding", "gzip"))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.Header.Get("Content-Encoding") != "" {
		t.Fatalf("the stream is compressed: %s", res.Header.Get("Content-Encoding"))
	}
	lines := bufio.NewReader(res.Body)
	for range 3 {
		// The engine sends the next event only after this one has come.
		if line, err := lines.ReadString('\n'); err != nil || !strings.HasPrefix(line, "data: ") {
			t.Fatalf("got %q, %v", line, err)
		}
		lines.ReadString('\n')
		step <- struct{}{}
	}
	io.Copy(io.Discard, lines)
	if entry := g.accessLog(t, res.Header.Get("X-Request-Id")); entry["completion_tokens"] != 3.0 {
		t.Errorf("logged %v", entry)
	}
}

func TestS12_HeadersComeAtOnce(t *testing.T) {
	for _, contentType := range []string{"text/event-stream; charset=utf-8", "Text/Event-Stream"} {
		gate := make(chan struct{})
		e := newEngine(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", contentType)
			w.WriteHeader(http.StatusOK)
			w.(http.Flusher).Flush()
			<-gate
			io.WriteString(w, "data: [DONE]\n\n")
		})
		g := start(t, one(e), "\tencode gzip\n\tllm")
		ctx, cancel := context.WithTimeout(t.Context(), deadline)
		defer cancel()
		// This returns with the headers, while the engine still holds the body.
		res, err := http.DefaultClient.Do(g.request(t, ctx, http.MethodPost, "/v1/chat/completions", streamRequest))
		if err != nil {
			t.Fatal(err)
		}
		if res.ContentLength >= 0 || res.Header.Get("Content-Length") != "" {
			t.Errorf("%s: Content-Length %d", contentType, res.ContentLength)
		}
		close(gate)
		got, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil || string(got) != "data: [DONE]\n\n" {
			t.Errorf("%s: %q, %v", contentType, got, err)
		}
	}
}

// TestACutAnswerHasNoCleanEnd: without chunks or a length only the end mark
// tells an end from a break.
func TestACutAnswerHasNoCleanEnd(t *testing.T) {
	event := "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"},\"finish_reason\":null}]}\n\n"
	for name, c := range map[string]struct{ contentType, text, want string }{
		"within an event": {"text/event-stream", event + event[:30], event},
		"between events":  {"text/event-stream", event, event},
		"JSON":            {"application/json", `{"choices":[{"message":{"content":"ha`, `{"choices":[{"message":{"content":"ha`},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEngine(t, func(w http.ResponseWriter, _ *http.Request) {
				conn, _, err := http.NewResponseController(w).Hijack()
				if err != nil {
					t.Error(err)
					return
				}
				io.WriteString(conn, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: "+c.contentType+"\r\n\r\n"+c.text)
				conn.Close()
			})
			g := start(t, one(e), "\tllm")
			res, err := http.DefaultClient.Do(g.request(t, t.Context(), http.MethodPost, "/v1/chat/completions", streamRequest))
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			got, err := io.ReadAll(res.Body)
			if err == nil {
				t.Error("the answer ended as if it were whole")
			}
			if !strings.HasPrefix(string(got), c.want) || c.contentType == "text/event-stream" && !strings.Contains(string(got), `"code":"stream_broken"`) {
				t.Errorf("got %q", got)
			}
			if entry := g.accessLog(t, res.Header.Get("X-Request-Id")); entry["outcome"] != "broken" {
				t.Errorf("outcome %v", entry["outcome"])
			}
		})
	}
}

// TestContinuousUsageIsLeftAlone: with it on, asking for usage would put usage
// into each of the client's events.
func TestContinuousUsageIsLeftAlone(t *testing.T) {
	e := newEngine(t, events("text/event-stream", "data: [DONE]\n\n"))
	g := start(t, one(e), "\tllm")
	body := strings.Replace(streamRequest, `"stream":true`, `"stream":true,"stream_options":{"continuous_usage_stats":true}`, 1)
	g.post(t, "/v1/chat/completions", body)
	if sent := e.got()[0].Body; sent != body {
		t.Errorf("the engine got %s", sent)
	}
}
