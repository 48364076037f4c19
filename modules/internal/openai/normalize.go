package openai

import (
	"bytes"
	"fmt"
	"html"
	"net/http"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/tidwall/gjson"
)

const (
	maxErrorBody    = 64 << 10 // how much of an engine's error is read
	maxErrorMessage = 4 << 10
	maxErrorWord    = 256 // bytes of param and code
)

// Normalize turns an engine's error into OpenAI's shape. It knows the bodies of vLLM (new and old),
// SGLang, llama.cpp, FastAPI's {"detail": ...}, a bare string, plain text, HTML of a proxy between,
// and none at all. The engine's message is kept, as valid UTF-8 without control characters other
// than line ends and tabs, up to 4 KiB. Param and code are kept where they are strings: engines put
// the status into code. Known causes get the code that clients act upon. A status that is no error
// becomes 502; all others stay, 422 included.
func Normalize(status int, body []byte) *Error {
	if status < 400 || status > 599 {
		status = http.StatusBadGateway
	}
	e := &Error{Status: status, Type: TypeOf(status)}
	body = bytes.TrimSpace(body[:min(len(body), maxErrorBody)])
	kind := ""
	switch {
	case len(body) == 0:
	case body[0] == '{':
		kind = e.fromObject(gjson.ParseBytes(body))
		if e.Message == "" && !gjson.ValidBytes(body) { // cut off on its way
			e.Message = string(body)
		}
	case body[0] == '"' && gjson.ValidBytes(body):
		e.Message = gjson.ParseBytes(body).String()
	case body[0] == '<':
		e.Message = htmlTitle(string(body))
	default:
		e.Message = string(body)
	}
	e.Message = cleanText(e.Message, maxErrorMessage)
	e.Param = cleanText(e.Param, maxErrorWord)
	e.Code = cleanText(e.Code, maxErrorWord)
	if e.Message == "" {
		name := strings.TrimSpace(fmt.Sprintf("%d %s", status, http.StatusText(status)))
		e.Message = "the engine answered with status " + name + " and no message"
	}
	if e.Code == "" {
		e.Code = knownCode(e, kind)
	}
	return e
}

// fromObject fills in message, param and code and returns the engine's type of the error.
func (e *Error) fromObject(o gjson.Result) (kind string) {
	inner := o.Get("error")
	switch {
	case inner.IsObject():
		o = inner
	case inner.Type == gjson.String:
		e.Message = inner.String()
		return ""
	}
	if detail := o.Get("detail"); detail.IsArray() {
		e.fromDetails(detail)
		return ""
	} else if detail.Type == gjson.String {
		e.Message = detail.String()
		return ""
	}
	text := func(key string) string {
		if v := o.Get(key); v.Type == gjson.String {
			return v.String()
		}
		return ""
	}
	e.Message, e.Param, e.Code = text("message"), text("param"), text("code")
	return text("type")
}

// fromDetails reads FastAPI's validation errors, [{"loc": ["body", "model"], "msg": "..."}]. Their
// `input` is left out: it is the client's prompt.
func (e *Error) fromDetails(list gjson.Result) {
	var parts []string
	list.ForEach(func(_, d gjson.Result) bool {
		var path []string
		d.Get("loc").ForEach(func(_, step gjson.Result) bool {
			path = append(path, step.String())
			return true
		})
		if len(path) > 1 && path[0] == "body" {
			path = path[1:]
		}
		param, message := strings.Join(path, "."), d.Get("msg").String()
		if e.Param == "" {
			e.Param = param
		}
		if param != "" {
			message = param + ": " + message
		}
		parts = append(parts, message)
		return len(parts) < 16
	})
	e.Message = strings.Join(parts, "; ")
}

// knownCode finds the cause in an engine's type and words.
func knownCode(e *Error, kind string) string {
	words := strings.ToLower(e.Message)
	has := func(s string) bool { return strings.Contains(words, s) }
	switch {
	case kind == "exceed_context_size_error", // llama.cpp
		e.Status < 500 && (has("maximum context length") || // vLLM
			has("context length") && (has("longer than") || has("exceed"))): // SGLang
		return CodeContextLength
	case e.Status == http.StatusNotFound && (e.Param == "model" || has("model")) &&
		(has("does not exist") || has("not found")):
		return CodeModelNotFound
	}
	return ""
}

func htmlTitle(page string) string {
	lower := strings.ToLower(page)
	if len(lower) != len(page) {
		return "" // lower-casing moved the offsets
	}
	start := strings.Index(lower, "<title")
	if start < 0 {
		return ""
	}
	open := strings.IndexByte(lower[start:], '>')
	if open < 0 {
		return ""
	}
	start += open + 1
	end := strings.Index(lower[start:], "</title")
	if end < 0 {
		return ""
	}
	return strings.TrimSpace(html.UnescapeString(page[start : start+end]))
}

// cleanText returns s as valid UTF-8, with control characters turned into blanks, in at most limit
// bytes.
func cleanText(s string, limit int) string {
	s = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD"))
	if len(s) <= limit {
		return s
	}
	for limit > 0 && !utf8.RuneStart(s[limit]) {
		limit--
	}
	return s[:limit]
}
