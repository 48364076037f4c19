package openai

import "bytes"

// maxLikeness is the size of the largest event that is kept to compare with.
const maxLikeness = 1 << 10

// likeness recognises an event that says what the one before said, in other
// words: all of its JSON is the same but for the characters of the delta's text.
// Nearly all events of a stream are like that, and comparing is several times
// cheaper than reading. The zero likeness knows no event.
type likeness struct {
	event   []byte // the data of the event before
	at, end int    // where its text stands, without the quotes; 0 if none is known
}

// learn keeps an event's data to compare the next one with, unless it says more
// than a piece of text.
func (l *likeness) learn(data []byte, f *facts) {
	if l.at = 0; f.textAt == 0 || len(data) > maxLikeness || f.bad || f.errored || f.topUsage || f.haveUsage || len(f.finish) > 0 || ended(f.typ) {
		return
	}
	l.event = append(l.event[:0], data...)
	l.at, l.end = f.textAt, f.textEnd
}

// same reports whether data is such an event.
func (l *likeness) same(data []byte) bool {
	end := len(data) - (len(l.event) - l.end)
	if l.at == 0 || end <= l.at || !bytes.Equal(data[:l.at], l.event[:l.at]) || !bytes.Equal(data[end:], l.event[l.end:]) {
		return false
	}
	next, f := skipString(data, l.at)
	return f == noFault && next == end+1
}
