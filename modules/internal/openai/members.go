package openai

import "unicode/utf8"

// members walks the members of an object, without looking into the values.
//
//	m := members{b: b, i: i} // b[i] is the opening brace
//	for m.next() {
//		... m.key is set, m.i is at the value: move it behind the value, or call m.skip()
//	}
//
// After the walk m.f tells a fault at m.i, or m.i is behind the closing brace. The zero key marks
// the start.
type members struct {
	b    []byte
	key  []byte // between the quotes, as written
	i    int
	f    fault
	open bool
}

func (m *members) next() bool {
	if m.f != noFault {
		return false
	}
	i := m.i
	if !m.open {
		if i == len(m.b) || m.b[i] != '{' {
			return m.fail(faultAt(m.b, i))
		}
		m.open = true
		i = skipSpace(m.b, i+1)
		if i < len(m.b) && m.b[i] == '}' {
			m.i = i + 1
			return false
		}
	} else {
		i = skipSpace(m.b, i)
		if i == len(m.b) {
			return m.fail(i, badEnd)
		}
		switch m.b[i] {
		case ',':
			i = skipSpace(m.b, i+1)
		case '}':
			m.i = i + 1
			return false
		default:
			return m.fail(i, badByte)
		}
	}
	if i == len(m.b) || m.b[i] != '"' {
		return m.fail(faultAt(m.b, i))
	}
	end, f := skipString(m.b, i+1)
	if f != noFault {
		return m.fail(end, f)
	}
	m.key = m.b[i+1 : end-1]
	if end = skipSpace(m.b, end); end == len(m.b) || m.b[end] != ':' {
		return m.fail(faultAt(m.b, end))
	}
	m.i = skipSpace(m.b, end+1)
	if m.i == len(m.b) {
		return m.fail(m.i, badEnd)
	}
	return true
}

// skip moves behind the value.
func (m *members) skip() { m.i, m.f = skipValue(m.b, m.i) }

func (m *members) fail(i int, f fault) bool {
	m.i, m.f = i, f
	return false
}

// appendQuoted appends s as a JSON string. Unlike encoding/json it leaves <, > and & alone, since
// a model's name must reach the engine as it is written. Bytes that are no UTF-8 become U+FFFD.
func appendQuoted(dst []byte, s string) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			dst = append(dst, '\\', byte(r))
		case r < 0x20:
			dst = append(dst, '\\', 'u', '0', '0', hex[r>>4], hex[r&15])
		default:
			dst = utf8.AppendRune(dst, r)
		}
	}
	return append(dst, '"')
}
