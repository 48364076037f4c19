package openai

import (
	"net/http"
	"strconv"
)

// facts is what one data payload of a stream, or a whole JSON answer, says.
type facts struct {
	choices      bool   // has choices, so it is OpenAI's chat or completions shape
	emptyChoices bool   // choices is [] or null
	typ          []byte // the type of an event of the Responses or Anthropic API
	content      bool   // text, reasoning, a tool call: something the model has said
	finish       []byte // why a choice ended
	aborted      bool   // some choice ended with "abort": the engine dropped it
	errored      bool
	clients      bool // the error's code says that the client is to blame
	usage        Usage
	haveUsage    bool
	topUsage     bool // a top-level usage that is not null
	bad          bool // not JSON, or cut off: the rest holds as far as the text goes

	textAt, textEnd int // the first text of a delta that is not empty, without its quotes; 0 if none
}

// usageOnly reports whether this is the extra chunk that include_usage brings: usage and no choice.
// Anthropic's message_delta has usage too, but no choices at all.
func (f *facts) usageOnly() bool {
	return f.topUsage && f.choices && f.emptyChoices && !f.errored && !f.bad
}

// inspect walks the top level of a JSON object, and of its choices. It does not allocate. Text that
// breaks off is read as far as it goes.
func inspect(b []byte) facts {
	var f facts
	m := members{b: b, i: skipSpace(b, 0)}
	deltaContent := false
	for m.next() {
		switch c := b[m.i]; string(m.key) {
		case "choices":
			f.readChoices(&m)
		case "usage":
			f.topUsage = c != 'n'
			f.readUsage(&m)
		case "error":
			f.errored = f.errored || c == '{' || c == '"' && !isBlank(b, m.i)
			f.readError(&m)
		case "object": // older vLLM: {"object":"error","message":...}
			f.errored = string(m.text()) == "error" || f.errored
		case "code": // of such an error
			f.readCode(&m)
		case "type":
			f.typ = m.text()
		case "delta":
			if c == '{' {
				deltaContent = f.readDelta(&m)
				break
			}
			deltaContent = !isBlank(b, m.i)
			f.skipText(&m)
		case "response", "message":
			f.readInner(&m)
		case "stop_reason":
			f.readFinish(&m)
		default:
			m.skip()
		}
	}
	f.bad = m.f != noFault || skipSpace(b, m.i) != len(b)
	switch string(f.typ) {
	case "":
		// A shape that is not known: all that is sure is that the engine has said something.
		f.content = f.content || deltaContent || !f.choices && !f.errored && !f.haveUsage
	case "error", "response.failed":
		f.errored = true
	default:
		f.content = f.content || deltaContent
	}
	return f
}

// ended reports whether an event type is the last of a stream's events.
func ended(typ []byte) bool {
	switch string(typ) {
	case "response.completed", "response.incomplete", "response.cancelled", "message_stop", "transcript.text.done":
		return true
	}
	return false
}

func (f *facts) readChoices(m *members) {
	b := m.b
	f.choices = true
	if b[m.i] != '[' {
		f.emptyChoices = b[m.i] == 'n'
		m.skip()
		return
	}
	i := skipSpace(b, m.i+1)
	if i < len(b) && b[i] == ']' {
		f.emptyChoices = true
		m.i = i + 1
		return
	}
	f.emptyChoices = false
	for {
		c := members{b: b, i: i}
		for c.next() {
			switch string(c.key) {
			case "delta", "message":
				if b[c.i] == '{' {
					f.content = f.readDelta(&c) || f.content
				} else {
					c.skip()
				}
			case "text":
				f.content = f.content || !isBlank(b, c.i)
				c.skip()
			case "finish_reason":
				f.readFinish(&c)
			default:
				c.skip()
			}
		}
		if m.i, m.f = skipSpace(b, c.i), c.f; m.f != noFault {
			return
		}
		switch {
		case m.i == len(b):
			m.f = badEnd
			return
		case b[m.i] == ']':
			m.i++
			return
		case b[m.i] != ',':
			m.f = badByte
			return
		}
		i = skipSpace(b, m.i+1)
	}
}

// readDelta reports whether a delta says anything: any member with a value, except those that only
// frame it. So kinds of content that are yet to come count too.
func (f *facts) readDelta(m *members) (content bool) {
	d := members{b: m.b, i: m.i}
	for d.next() {
		switch string(d.key) {
		case "stop_reason":
			f.readFinish(&d)
		case "role", "type", "stop_sequence":
			d.skip()
		default:
			content = content || !isBlank(d.b, d.i)
			f.skipText(&d)
		}
	}
	m.i, m.f = d.i, d.f
	return content
}

// skipText moves behind a value and notes where it stands, if it is the first
// text that is not empty.
func (f *facts) skipText(m *members) {
	at := m.i
	m.skip()
	if f.textAt == 0 && m.f == noFault && m.b[at] == '"' && m.i > at+2 {
		f.textAt, f.textEnd = at+1, m.i-1
	}
}

// readInner reads the response object of a Responses event, or the message of Anthropic's first one.
func (f *facts) readInner(m *members) {
	if m.b[m.i] != '{' {
		m.skip()
		return
	}
	r := members{b: m.b, i: m.i}
	for r.next() {
		switch string(r.key) {
		case "usage":
			f.readUsage(&r)
		case "error":
			f.errored = f.errored || r.b[r.i] == '{'
			r.skip()
		default:
			r.skip()
		}
	}
	m.i, m.f = r.i, r.f
}

// readError reads the code of an error object.
func (f *facts) readError(m *members) {
	if m.b[m.i] != '{' {
		m.skip()
		return
	}
	e := members{b: m.b, i: m.i}
	for e.next() {
		if string(e.key) == "code" {
			f.readCode(&e)
		} else {
			e.skip()
		}
	}
	m.i, m.f = e.i, e.f
}

// readCode reads an HTTP status: engines that have begun a stream with 200 have
// no other place for it.
func (f *facts) readCode(m *members) {
	at := m.i
	if m.skip(); m.f != noFault {
		return
	}
	code, err := strconv.Atoi(string(m.b[at:m.i]))
	f.clients = f.clients || err == nil && code >= 400 && code < 500 && code != http.StatusRequestTimeout && code != http.StatusTooManyRequests
}

func (f *facts) readUsage(m *members) {
	if m.b[m.i] != '{' {
		m.skip()
		return
	}
	u, end, flags := parseUsage(m.b, m.i)
	if m.i = end; flags.bad {
		m.f = badByte
		return
	}
	if flags.known {
		f.usage.merge(u)
		f.haveUsage = true
	}
}

func (f *facts) readFinish(m *members) {
	if reason := m.text(); len(reason) > 0 {
		f.finish = reason
		f.aborted = f.aborted || string(reason) == "abort"
	}
}

// text returns the characters of a string value as written, nothing for other values, and moves
// behind the value.
func (m *members) text() []byte {
	at := m.i
	m.skip()
	if m.f != noFault || m.b[at] != '"' {
		return nil
	}
	return m.b[at+1 : m.i-1]
}

// isBlank reports whether the value at b[i] is null, "", [] or {}.
func isBlank(b []byte, i int) bool {
	switch c := b[i]; c {
	case 'n':
		return true
	case '"':
		return i+1 == len(b) || b[i+1] == '"'
	case '[', '{':
		i = skipSpace(b, i+1)
		return i == len(b) || b[i] == c+2
	}
	return false
}
