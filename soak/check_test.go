package main

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

// stream builds a chat stream of tokens, and of what follows them.
func stream(tokens int, finish string, more ...string) string {
	var b strings.Builder
	b.WriteString(`data: {"choices":[{"delta":{"role":"assistant","content":""},"finish_reason":null}]}` + "\n\n")
	for i := range tokens {
		reason := "null"
		if i == tokens-1 && finish != "" {
			reason = `"` + finish + `"`
		}
		fmt.Fprintf(&b, "data: {\"choices\":[{\"delta\":{\"content\":\"t%03d\"},\"finish_reason\":%s}]}\n\n", i, reason)
	}
	return b.String() + strings.Join(more, "")
}

func TestCheck(t *testing.T) {
	const (
		done     = "data: [DONE]\n\n"
		usage    = `data: {"choices":[],"usage":{"completion_tokens":3}}` + "\n\n"
		failure  = `data: {"error":{"message":"m","type":"server_error","param":null,"code":"stream_broken"}}` + "\n\n"
		events   = "text/event-stream; charset=utf-8"
		jsonType = "application/json"
	)
	reset := errors.New("connection reset")
	chat := expect{path: pathChat, stream: true, tokens: 3}
	asked, plain := chat, chat
	asked.usage, plain.stream = true, false
	answer := func(finish string, tokens int, text string) string {
		return fmt.Sprintf(`{"choices":[{"message":{"content":%q},"finish_reason":%q}],"usage":{"completion_tokens":%d}}`, text, finish, tokens)
	}
	refusal := `{"error":{"message":"m","type":"invalid_request_error","param":null,"code":null}}`
	for _, c := range []struct {
		name, body string
		status     int
		mediaType  string
		err        error
		expect     expect
		outcome    string
		wrong      string
	}{
		{"whole", stream(3, "length", done), 200, events, nil, chat, outcomeOK, ""},
		{"whole with usage", stream(3, "length", usage, done), 200, events, nil, asked, outcomeOK, ""},
		{"usage that nobody asked for", stream(3, "length", usage, done), 200, events, nil, chat, outcomeWrong, "1 usages"},
		{"no usage", stream(3, "length", done), 200, events, nil, asked, outcomeWrong, "0 usages"},
		{"a token less", stream(2, "length", done), 200, events, nil, chat, outcomeWrong, "after 2 of 3 tokens"},
		{"a false end", stream(2, "", done), 200, events, nil, chat, outcomeWrong, "[DONE] after 2"},
		{"an aborted end", stream(2, "abort", done), 200, events, nil, chat, outcomeWrong, `finish_reason "abort"`},
		{"a clean end too early", stream(2, ""), 200, events, nil, chat, outcomeWrong, "a clean end"},
		{"aborted", stream(2, "abort"), 200, events, nil, chat, outcomeAborted, ""},
		{"an error event", stream(2, "", failure), 200, events, reset, chat, outcomeEvent, ""},
		{"an error event and an end", stream(2, "", failure, done), 200, events, nil, chat, outcomeWrong, "after an error event"},
		{"broken off", stream(2, ""), 200, events, reset, chat, outcomeBroken, ""},
		{"broken off in an event", stream(2, "", `data: {"cho`), 200, events, reset, chat, outcomeBroken, ""},
		{"broken off after its end", stream(3, "length", done), 200, events, reset, chat, outcomeWrong, "[DONE] and then"},
		{"left after its end", stream(3, "length", done), 200, events, errLeft, chat, outcomeOK, ""},
		{"more after its end", stream(3, "length", done, usage), 200, events, nil, chat, outcomeWrong, "something after"},
		{"half an event", "data: {\n\n", 200, events, nil, chat, outcomeWrong, "no JSON"},
		{"another type", stream(3, "length", done), 200, jsonType, nil, chat, outcomeWrong, "of the type"},
		{"plain", answer("length", 3, "t000t001t002"), 200, jsonType, nil, plain, outcomeOK, ""},
		{"plain, another text", answer("length", 3, "t000t001t003"), 200, jsonType, nil, plain, outcomeWrong, "another text"},
		{"plain, too short", answer("length", 2, "t000t001"), 200, jsonType, nil, plain, outcomeWrong, "2 tokens"},
		{"plain, cut", `{"choices":`, 200, jsonType, nil, plain, outcomeWrong, "no JSON"},
		{"plain, broken off", `{"choices":`, 200, jsonType, reset, plain, outcomeBroken, ""},
		{"refused", refusal, 400, jsonType, nil, expect{status: []int{400}}, outcomeRefused, ""},
		{"refused otherwise", refusal, 404, jsonType, nil, expect{status: []int{400}}, outcomeWrong, "status 404"},
		{"not refused", answer("length", 3, ""), 200, jsonType, nil, expect{status: []int{400}}, outcomeWrong, "200 for"},
		{"a good one refused", refusal, 400, jsonType, nil, chat, outcomeWrong, "status 400"},
		{"an engine's failure", refusal, 502, jsonType, nil, chat, outcomeError, ""},
		{"another shape", `{"detail":"m"}`, 502, jsonType, nil, chat, outcomeWrong, "OpenAI's shape"},
		{"embeddings", `{"data":[{"embedding":[1]}]}`, 200, jsonType, nil, expect{path: pathEmbeddings, inputs: 1}, outcomeWrong, "of 1 numbers"},
	} {
		texts := newTexts()
		texts.known[""] = "t000t001t002"
		v := texts.check(c.status, c.mediaType, []byte(c.body), c.err, &c.expect)
		if v.outcome != c.outcome || !strings.Contains(v.wrong, c.wrong) || (v.wrong == "") != (c.wrong == "") {
			t.Errorf("%s: %+v, want %s %q", c.name, v, c.outcome, c.wrong)
		}
	}
}

// TestExplain: a failure is excused by the trouble that its engine had at that
// time, and by no other.
func TestExplain(t *testing.T) {
	r := newReport()
	end := r.trouble("a", "hang", true)
	r.trouble("b", "drain", false)
	at := time.Now()
	end()
	for i, c := range []struct {
		replica string
		after   time.Duration
		excused bool
	}{{"a", 0, true}, {"a", late * 2, false}, {"b", 0, false}, {"", 0, false}} {
		id := fmt.Sprint(i)
		r.entries[id] = &entry{Replica: c.replica}
		from := at.Add(c.after)
		why, excused := r.explain(&ending{request: &request{id: id}, began: from, ended: from.Add(time.Second)})
		if excused != c.excused {
			t.Errorf("%+v: excused %v, %s", c, excused, why)
		}
	}
}

// TestFlat: memory may go up and down, and not grow.
func TestFlat(t *testing.T) {
	for _, c := range []struct {
		rss  []float64
		flat bool
	}{
		{[]float64{50, 60, 80, 70, 60}, true},
		{[]float64{50, 60, 90, 120, 150}, false},
		{[]float64{50, 60}, false},
	} {
		r := newReport()
		r.rss = c.rss
		if err := r.flat(); (err == nil) != c.flat {
			t.Errorf("%v: %v", c.rss, err)
		}
	}
}
