package openai

import "bytes"

const doneMark = "[DONE]"

// What an event's name (its event: line) tells.
type eventName uint8

const (
	nameNone  eventName = iota // no name, or "message", which is the default
	nameError                  // "error"
	nameEnd                    // the last event of a Responses or Anthropic stream
	nameDelta                  // something the model has said
	nameOther
)

// scanner finds lines and events in a Tap's buffer. Its fields are offsets in the buffer, and what
// is known of the unfinished event.
type scanner struct {
	event  int // start of the event's first field; comments before it belong to no event
	line   int // start of the unfinished line
	lf, cr int // no LF or CR lies between line and these

	afterCR bool // the last line ended with a CR at the very end of the buffer: an LF may follow
	dropped bool // the last line ended an event that was cut out

	name            eventName
	named           bool // it had a name at some time, so that it went through at once
	datas           int  // data lines
	dataAt, dataEnd int  // the first data line's value
	seek            int  // hasChoices has looked at the value up to here
	open            bool // cannot be one to withhold
	big             bool // larger than the buffer: its start is gone
	bigEnds         bool // and its type says that it is the last one
	headless        bool // the start of the unfinished line is gone too
	joined          []byte
}

// newEvent forgets the event; the next one begins at next.
func (s *scanner) newEvent(next int) {
	s.event, s.line = next, next
	s.name, s.datas, s.seek = nameNone, 0, 0
	s.open, s.big, s.bigEnds, s.named = false, false, false, false
}

// shift follows the buffer when its first n bytes are dropped.
func (s *scanner) shift(n int) {
	if s.line < n {
		s.headless = true
	}
	s.event = max(0, s.event-n)
	s.line = max(0, s.line-n)
	s.lf = max(0, s.lf-n)
	s.cr = max(0, s.cr-n)
	s.dataAt -= n
	s.dataEnd -= n
}

// nextLine returns the next complete line of b, without its end, and the offset behind that end:
// LF, CRLF or CR. A CR is not waited upon: the LF that may follow is skipped when it comes.
func (s *scanner) nextLine(b []byte) (line []byte, next int, ok bool) {
	s.lf = s.find(b, s.lf, '\n')
	s.cr = s.find(b, s.cr, '\r')
	end := min(s.lf, s.cr)
	if end == len(b) {
		return nil, 0, false
	}
	next = end + 1
	if b[end] == '\r' {
		if s.afterCR = next == len(b); !s.afterCR && b[next] == '\n' {
			next++
		}
	}
	return b[s.line:end], next, true
}

// find returns the offset of the first c from the current line on, or len(b). From known, all
// before is known to have none.
func (s *scanner) find(b []byte, known int, c byte) int {
	known = max(known, s.line)
	if i := bytes.IndexByte(b[known:], c); i >= 0 {
		return known + i
	}
	return len(b)
}

// addLine takes a line that is not blank.
func (s *scanner) addLine(line []byte, next int) {
	switch {
	case s.headless:
		s.headless = false
		if s.datas == 0 && s.name == nameNone {
			s.newEvent(next) // it was a comment, or a field that means nothing
		}
	case line[0] == ':':
		if s.event == s.line {
			s.event = next
		}
	default:
		if v, ok := dataValue(line); ok {
			if s.datas++; s.datas == 1 {
				s.dataEnd = s.line + len(line)
				s.dataAt = s.dataEnd - len(v)
			}
		} else if v, ok := bytes.CutPrefix(line, []byte("event:")); ok {
			s.name = nameOf(trimBlank(v))
			s.named = s.named || s.name != nameNone
		}
	}
	s.line = next
}

func nameOf(v []byte) eventName {
	switch {
	case len(v) == 0 || string(v) == "message":
		return nameNone
	case string(v) == "error":
		return nameError
	case ended(v):
		return nameEnd
	case bytes.HasSuffix(v, []byte("delta")):
		return nameDelta
	}
	return nameOther
}

// firstData returns the first data line's value.
func (s *scanner) firstData(b []byte) []byte {
	if s.datas == 0 {
		return nil
	}
	return b[s.dataAt:s.dataEnd]
}

// data returns the event's data: the values of its data lines, joined by LF.
func (s *scanner) data(b []byte) []byte {
	if s.datas == 1 {
		return b[s.dataAt:s.dataEnd]
	}
	s.joined = s.joined[:0]
	lines := scanner{line: s.event}
	for b = b[:s.line]; lines.line < len(b); {
		line, next, ok := lines.nextLine(b)
		if !ok { // the stream ended without a line end
			line, next = b[lines.line:], len(b)
		}
		lines.line = next
		if v, ok := dataValue(line); ok {
			s.joined = append(append(s.joined, v...), '\n')
		}
	}
	return s.joined[:max(0, len(s.joined)-1)]
}

// dataValue returns the value of a data line, which may be unfinished.
func dataValue(line []byte) ([]byte, bool) {
	if v, ok := bytes.CutPrefix(line, []byte("data:")); ok {
		return trimBlank(v), true
	}
	return nil, string(line) == "data"
}

// trimBlank drops the one blank that may follow a field's colon.
func trimBlank(v []byte) []byte {
	if len(v) > 0 && v[0] == ' ' {
		return v[1:]
	}
	return v
}

func isDone(data []byte) bool {
	return len(data) < 32 && string(bytes.Trim(data, " \t")) == doneMark
}

// hasChoices reports whether v, the start of a JSON text, has a "choices" array that is not empty,
// so that it cannot be a usage-only chunk. It looks from offset from on; resume is where to look on
// when v has grown. As for tailFacts, such a name cannot stand inside a JSON string.
func hasChoices(v []byte, from int) (found bool, resume int) {
	const name = `"choices"`
	for {
		i := bytes.Index(v[from:], []byte(name))
		if i < 0 {
			return false, max(from, len(v)-len(name)+1)
		}
		i += from
		from = i + len(name)
		if i > 0 && v[i-1] == '\\' {
			continue
		}
		for _, c := range []byte(":[") {
			k := skipSpace(v, from)
			if k == len(v) {
				return false, i
			}
			if v[k] != c {
				break
			}
			from = k + 1
		}
		if v[from-1] != '[' {
			continue
		}
		if k := skipSpace(v, from); k == len(v) {
			return false, i
		} else if v[k] != ']' {
			return true, i
		}
	}
}
