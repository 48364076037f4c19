package openai

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"unicode/utf8"
)

const (
	maxModel = 1024 // bytes of a model's name
	maxUser  = 512  // bytes of a user's name; longer ones are hashed

	// Counts are held at these values, so that max tokens times n cannot overflow an int64.
	maxTokensCap = 1 << 40
	maxNCap      = 1 << 20

	// minMedia is the length from which a string can be media; shorter ones weigh nothing.
	minMedia = 1024
)

// Span is a half-open range of byte offsets in a body. The zero Span means that there is none.
type Span struct{ Start, End int }

// Empty reports whether the span covers no byte.
func (s Span) Empty() bool { return s.Start == s.End }

// Of returns the bytes of body that the span covers.
func (s Span) Of(body []byte) []byte { return body[s.Start:s.End] }

// Fields is what routing needs to know of a request body. Spans are those of raw values: a
// string's span includes its quotes. A Fields is a plain value; its strings do not share memory
// with the body.
type Fields struct {
	Model     string // decoded, never empty after a successful scan, at most 1024 bytes
	ModelSpan Span

	Stream        bool // `"stream": true`; null and absence are false
	StreamOptions Span
	IncludeUsage  Span // the value inside StreamOptions
	// WantsUsage says that a usage chunk is the client's own wish: include_usage is there and
	// neither false nor null. (An engine may read 1 or "yes" as true.)
	WantsUsage bool

	// MaxTokens is the ceiling of output tokens per choice: max_completion_tokens, else
	// max_output_tokens, else max_tokens. N is the number of choices. Both are only hints: a value
	// that cannot be read as a count (-1, "many") is unknown, and the engine decides what to make
	// of it. Held at 1<<40 and 1<<20.
	MaxTokens, N       int64
	HasMaxTokens, HasN bool

	// User is OpenAI's `user`, decoded; "sha256:" and the hash in hex when it is longer than 512 bytes.
	User string

	Priority, CacheSalt Span

	// PromptBytes is the size of all values that end up in the prompt (messages, prompt, input,
	// tools and so on), as JSON text, less MediaBytes: the base64 strings of images and sound,
	// whose tokens have nothing to do with their bytes.
	PromptBytes, MediaBytes int
	prompt                  [8]Span
	order                   [8]uint8 // where each stands in a prompt, the least first
	prompts                 int
	options                 [3]Span // what else a chat template goes by
	// How many items the longest list of strings or lists in the prompt has, and the longest
	// list of objects that are texts to compare.
	items, objects int64

	open      int // offset behind the opening brace
	multipart bool
}

// Prompt returns the spans of the prompt's values in the order of the body, at most eight. The
// slice belongs to f.
func (f *Fields) Prompt() []Span { return f.prompt[:f.prompts] }

// CanInjectUsage reports whether Edits with InjectUsage makes the engine send a usage chunk that
// the client did not ask for, and that must therefore be withheld from it: a JSON request for a
// stream, without include_usage of its own and with stream_options that an object can be made of,
// which do not ask for usage in another way.
func (f *Fields) CanInjectUsage(body []byte) bool {
	if !f.Stream || f.multipart || f.WantsUsage {
		return false
	}
	options := f.StreamOptions.Of(body)
	// With this on, include_usage would put usage into every event.
	if bytes.Contains(options, []byte(`"continuous_usage_stats"`)) {
		return false
	}
	return len(options) == 0 || options[0] == '{' || options[0] == 'n'
}

// The keys that are read, one bit each for the duplicate rule.
const (
	keyModel = 1 << iota
	keyStream
	keyStreamOptions
	keyMaxTokens
	keyMaxCompletionTokens
	keyMaxOutputTokens
	keyN
	keyUser
	keyPriority
	keyCacheSalt
	keyPrompt
	keyTexts
	keyOption
)

func keyOf(key []byte) int {
	switch string(key) {
	case "model":
		return keyModel
	case "stream":
		return keyStream
	case "stream_options":
		return keyStreamOptions
	case "max_tokens":
		return keyMaxTokens
	case "max_completion_tokens":
		return keyMaxCompletionTokens
	case "max_output_tokens":
		return keyMaxOutputTokens
	case "n":
		return keyN
	case "user":
		return keyUser
	case "priority":
		return keyPriority
	case "cache_salt":
		return keyCacheSalt
	case "messages", "prompt", "suffix", "input", "system", "instructions", "tools", "query":
		return keyPrompt
	case "chat_template", "chat_template_kwargs", "reasoning_effort":
		return keyOption
	case "documents", "text_1", "text_2", "texts", "queries", "items", "data_1", "data_2":
		return keyTexts
	}
	return 0
}

// plainKey resolves the escapes of a key, so that "\u006dodel" is known as "model". Keys too long
// to be one of ours even when every character is escaped come back as they are.
func plainKey(key []byte) []byte {
	if len(key) > 6*len("max_completion_tokens") || bytes.IndexByte(key, '\\') < 0 {
		return key
	}
	var s string
	if json.Unmarshal(append(append([]byte{'"'}, key...), '"'), &s) != nil {
		return key
	}
	return []byte(s)
}

// Scan reads a JSON request body in one pass. It fails with an *Error, status 400, unless the body
// is exactly one JSON object (RFC 8259, at most 512 levels deep; strings need not be UTF-8) with a
// model, a stream of the right type, and no routed key twice. Keys are compared decoded. Messages
// of errors name keys and offsets and never show the body's text.
func Scan(body []byte) (Fields, error) {
	var f Fields
	counts := [3]int64{-1, -1, -1} // max_tokens, max_output_tokens, max_completion_tokens: the last known one wins
	i := skipSpace(body, 0)
	if i == len(body) {
		return f, badBody("the request body is empty: send a JSON object with a model")
	}
	if body[i] != '{' {
		return f, badBody("the request body must be a JSON object")
	}
	f.open = i + 1
	seen := 0
	m := members{b: body, i: i}
	for m.next() {
		key := keyOf(plainKey(m.key))
		if key&seen&^(keyPrompt|keyTexts|keyOption) != 0 {
			return f, duplicate(string(plainKey(m.key)))
		}
		seen |= key
		at := m.i
		if key == keyStreamOptions && body[at] == '{' {
			if err := f.scanStreamOptions(&m); err != nil {
				return f, err
			}
		} else {
			m.skip()
		}
		if m.f != noFault {
			break
		}
		s := Span{at, m.i}
		switch raw := s.Of(body); key {
		case keyModel:
			if err := f.setModel(raw); err != nil {
				return f, err
			}
			f.ModelSpan = s
		case keyStream:
			if raw[0] != 't' && raw[0] != 'f' && raw[0] != 'n' {
				return f, NewError(http.StatusBadRequest, "stream", "", "stream must be true, false or null")
			}
			f.Stream = raw[0] == 't'
		case keyStreamOptions:
			f.StreamOptions = s
		case keyMaxTokens:
			counts[0] = parseCount(raw, maxTokensCap)
		case keyMaxOutputTokens:
			counts[1] = parseCount(raw, maxTokensCap)
		case keyMaxCompletionTokens:
			counts[2] = parseCount(raw, maxTokensCap)
		case keyN:
			n := parseCount(raw, maxNCap)
			f.N, f.HasN = max(n, 0), n >= 0
		case keyUser:
			f.setUser(raw)
		case keyPriority:
			f.Priority = s
		case keyCacheSalt:
			f.CacheSalt = s
		case keyPrompt:
			f.addPrompt(body, s, orderOf(plainKey(m.key)))
		case keyTexts:
			f.objects = max(f.objects, items(raw, "{"))
			f.addPrompt(body, s, orderLast)
		case keyOption:
			f.addOption(s)
		}
	}
	if m.f != noFault {
		return f, badJSON(m.f, m.i)
	}
	if end := skipSpace(body, m.i); end != len(body) {
		return f, badBody("the request body has more data after its JSON object, at byte " + strconv.Itoa(end))
	}
	if f.ModelSpan.Empty() {
		return f, missingModel()
	}
	for _, c := range counts {
		if c >= 0 {
			f.MaxTokens, f.HasMaxTokens = c, true
		}
	}
	return f, nil
}

// scanStreamOptions looks for include_usage in the object at m.i and moves behind the object.
func (f *Fields) scanStreamOptions(m *members) error {
	o := members{b: m.b, i: m.i}
	for o.next() {
		at := o.i
		found := string(plainKey(o.key)) == "include_usage"
		if found && !f.IncludeUsage.Empty() {
			return duplicate("stream_options.include_usage")
		}
		o.skip()
		if found && o.f == noFault {
			f.IncludeUsage = Span{at, o.i}
			f.WantsUsage = m.b[at] != 'f' && m.b[at] != 'n'
		}
	}
	m.i, m.f = o.i, o.f
	return nil
}

func (f *Fields) setModel(raw []byte) error {
	if raw[0] != '"' {
		return NewError(http.StatusBadRequest, "model", "", "model must be a string")
	}
	// Before the escapes are resolved, which puts something valid in the place of
	// what is not.
	if !utf8.Valid(raw) {
		return f.setModelText(string(raw))
	}
	return f.setModelText(unquote(raw))
}

func (f *Fields) setModelText(model string) error {
	var problem string
	switch {
	case model == "":
		problem = "you must provide a model parameter: model is empty"
	case len(model) > maxModel:
		problem = fmt.Sprintf("model is longer than %d bytes", maxModel)
	case !utf8.ValidString(model):
		problem = "model is not valid UTF-8"
	default:
		f.Model = model
		return nil
	}
	return NewError(http.StatusBadRequest, "model", "", problem)
}

func (f *Fields) setUser(raw []byte) {
	if raw[0] == '"' {
		f.setUserText(unquote(raw))
	}
}

func (f *Fields) setUserText(user string) {
	if len(user) > maxUser {
		sum := sha256.Sum256([]byte(user))
		user = "sha256:" + hex.EncodeToString(sum[:])
	}
	f.User = strings.ToValidUTF8(user, "\uFFFD")
}

func (f *Fields) addPrompt(body []byte, s Span, order uint8) {
	media := mediaBytes(s.Of(body))
	f.MediaBytes += media
	f.PromptBytes += s.End - s.Start - media
	f.items = max(f.items, items(s.Of(body), `"[`))
	if f.prompts < len(f.prompt) {
		f.prompt[f.prompts], f.order[f.prompts] = s, order
		f.prompts++
	}
}

// unquote decodes a JSON string that the lexer has accepted.
func unquote(raw []byte) string {
	if bytes.IndexByte(raw, '\\') < 0 {
		return string(raw[1 : len(raw)-1])
	}
	var s string
	if err := json.Unmarshal(raw, &s); err != nil {
		return ""
	}
	return s
}

// parseCount reads a token or choice count as the engines' lenient validators do: 10, 1e3, 10.0 and
// "10" are counts. It returns at most limit, and -1 for what is no count.
func parseCount(raw []byte, limit int64) int64 {
	if raw[0] == '"' {
		raw = raw[1 : len(raw)-1]
	}
	if len(raw) == 0 || len(raw) > 32 || raw[0] < '0' || raw[0] > '9' {
		return -1
	}
	v, err := strconv.ParseFloat(string(raw), 64)
	if err != nil || v != math.Trunc(v) {
		return -1
	}
	return int64(min(v, float64(limit)))
}

func badBody(message string) *Error { return NewError(http.StatusBadRequest, "", "", message) }

func badJSON(f fault, at int) *Error {
	return badBody(fmt.Sprintf("the request body is not valid JSON: %s at byte %d", f, at))
}

func duplicate(key string) *Error {
	return NewError(http.StatusBadRequest, key, "", key+" is given more than once: send it once")
}

func missingModel() *Error {
	return NewError(http.StatusBadRequest, "model", "", "you must provide a model parameter")
}
