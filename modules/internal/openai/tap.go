package openai

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync"
)

const (
	firstBuffer = 4 << 10  // what a stream begins with
	maxEvent    = 64 << 10 // the largest event that is held back or read as JSON
	tailWindow  = 16 << 10 // what is kept of the end of a larger event
	maxEmpty    = 100      // reads in a row that may bring neither bytes nor an error
)

var firstBuffers = sync.Pool{New: func() any { return new([firstBuffer]byte) }}

// TapOptions says what a Tap does beside watching. The zero value passes every byte at once.
type TapOptions struct {
	// WithholdUsage drops the usage-only event: top-level usage, and choices that are [] or null.
	// The client did not ask for it, and would trip over its empty choices.
	WithholdUsage bool
	// WithholdDone drops a [DONE] that follows an error event or a choice that ended with "abort":
	// vLLM sends both when it is stopped, and a client would take the answer for a whole one.
	WithholdDone bool
	// RequireEnd takes a stream that ought to have an end mark for broken if it
	// ends without one, and without an error: without chunks or a length nothing
	// else tells the end from a break. A stream of choices ought to, and one of
	// typed or named events unless they are OtherEvents.
	RequireEnd bool
	// OtherEvents says that the stream may be of an API whose last event is not
	// known.
	OtherEvents bool
	// BreakEvent gives the event (with its blank line) that a client reads when the stream breaks
	// off before its end. Nil means none.
	BreakEvent func(err error) []byte
	// OnFirst is called once, from Read, at the first event in which the model says something.
	OnFirst func()
}

// Tap passes a Server-Sent Events stream (WHATWG HTML, section 9.2) and watches it. The client gets
// the engine's bytes, however they are cut into reads, less the events that the options withhold.
// An event is passed as soon as it is complete; an unfinished one is held back only while it could
// still be one to withhold, and never more than 64 KiB of it. That is also the memory of one stream:
// 4 KiB, growing to 64 KiB if an event needs it, and as much again to join an event of several data
// lines. Larger events pass unparsed: only their start and their last 16 KiB are looked at.
//
// When the engine's stream breaks off, before its end mark and not by context.Canceled, the client
// gets the BreakEvent at an event boundary, and then Read returns the error.
//
// A Tap is not safe for concurrent use, Close and Result included.
type Tap struct {
	src   io.ReadCloser
	opt   TapOptions
	first *[firstBuffer]byte // from the pool, nil when given back
	buf   []byte
	err   error  // of src, returned when all is read
	extra []byte // what follows buf: the break event
	res   Result
	typed bool // a kind of stream that ought to have an end mark
	last  likeness

	// Offsets in buf: given <= pass <= end, and event <= line <= end.
	given int // bytes before are with the client
	pass  int // bytes before may go to the client
	end   int // bytes before are filled
	scanner
}

// NewTap wraps an engine's stream. Close closes src.
func NewTap(src io.ReadCloser, opt TapOptions) *Tap {
	t := &Tap{src: src, opt: opt, first: firstBuffers.Get().(*[firstBuffer]byte)}
	t.buf = t.first[:]
	return t
}

// Result returns what has been seen so far; it is final once Read has returned an error.
func (t *Tap) Result() Result { return t.res }

// Close closes the engine's stream. What was not read is gone.
func (t *Tap) Close() error {
	if t.first != nil {
		firstBuffers.Put(t.first)
		t.first, t.buf = nil, nil
		t.given, t.pass, t.end, t.extra = 0, 0, 0, nil
		if t.err == nil {
			t.err = errClosed
		}
	}
	return t.src.Close()
}

var errClosed = errors.New("openai: read from a closed stream")

// Read implements io.Reader. It returns as soon as there is something to give.
func (t *Tap) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	b, err := t.wait()
	n := copy(p, b)
	t.give(n)
	return n, err
}

// Next is Read without the copy: it returns what there is to give, at least a byte
// unless there is an error. The bytes are valid until the next call of any method.
func (t *Tap) Next() ([]byte, error) {
	b, err := t.wait()
	t.give(len(b))
	return b, err
}

// wait returns what there is to give, or why there will be no more.
func (t *Tap) wait() ([]byte, error) {
	for {
		switch {
		case t.given < t.pass:
			return t.buf[t.given:t.pass], nil
		case len(t.extra) > 0:
			return t.extra, nil
		case t.err != nil:
			return nil, t.err
		}
		t.fill()
	}
}

// give takes the first n bytes of what wait has returned for given.
func (t *Tap) give(n int) {
	if t.given < t.pass {
		t.given += n
	} else {
		t.extra = t.extra[n:]
	}
}

// fill reads once from the engine, or makes room for it. All that may pass has been given.
func (t *Tap) fill() {
	if keep := min(t.given, t.event); keep == t.end || keep > 0 && t.end == len(t.buf) {
		t.discard(keep)
	}
	if t.end == len(t.buf) {
		if len(t.buf) < maxEvent {
			t.buf = append(make([]byte, 0, 2*len(t.buf)), t.buf...)
			t.buf = t.buf[:cap(t.buf)]
		} else {
			t.overflow()
			if t.pass = t.end; t.given < t.pass {
				return
			}
			t.discard(t.end - tailWindow)
		}
	}
	for range maxEmpty {
		n, err := t.src.Read(t.buf[t.end:])
		if n > 0 {
			t.end += n
			t.res.Bytes += int64(n)
			t.scan()
		}
		if err != nil {
			t.finish(err)
		}
		if n > 0 || err != nil {
			return
		}
	}
	t.finish(io.ErrNoProgress)
}

// discard drops the first n bytes of the buffer.
func (t *Tap) discard(n int) {
	copy(t.buf, t.buf[n:t.end])
	t.end -= n
	t.given -= n
	t.pass -= n
	t.shift(n)
}

// scan looks at the lines that are complete, and decides what may pass.
func (t *Tap) scan() {
	t.skipLF()
	for {
		line, next, ok := t.nextLine(t.buf[:t.end])
		if !ok {
			break
		}
		t.takeLine(line, next)
	}
	t.pass = t.end
	if t.event < t.end && t.held() {
		t.pass = t.event
	}
}

// skipLF ends a CRLF whose two bytes came in two reads: the CR alone has ended the line.
func (t *Tap) skipLF() {
	if !t.afterCR {
		return
	}
	t.afterCR = false
	switch {
	case t.buf[t.line] != '\n':
	case t.event != t.line:
		t.line++
	case t.dropped:
		t.cut(t.line + 1)
	default:
		t.line++
		t.event = t.line
	}
}

func (t *Tap) takeLine(line []byte, next int) {
	t.dropped = false
	if len(line) > 0 || t.headless {
		t.addLine(line, next)
		return
	}
	if t.datas > 0 && t.takeEvent() && t.given <= t.event {
		t.cut(next)
		next = t.event
		t.dropped = true
	}
	t.newEvent(next)
}

// cut removes the bytes from the start of the event up to next.
func (t *Tap) cut(next int) {
	t.res.Withheld += int64(next - t.event)
	copy(t.buf[t.event:], t.buf[next:t.end])
	t.end -= next - t.event
	t.lf, t.cr = t.event, t.event
}

// takeEvent notes what a complete event says and reports whether to withhold it.
func (t *Tap) takeEvent() bool {
	failed := t.failed()
	if t.big {
		t.note(tailFacts(t.buf[t.event:t.line]))
		t.res.Done = t.res.Done || t.bigEnds || t.name == nameEnd
		return false
	}
	data := t.data(t.buf)
	usual := t.name == nameNone || t.name == nameDelta
	if usual && t.last.same(data) {
		t.res.Events++
		return false
	}
	if isDone(data) {
		t.res.Done = true
		return failed && t.opt.WithholdDone && !t.named
	}
	f := inspect(data)
	if t.name == nameError {
		f.errored, f.content = true, false
	}
	t.note(f)
	if usual {
		t.last.learn(data, &f)
	}
	t.res.Done = t.res.Done || ended(f.typ) || t.name == nameEnd
	if !t.opt.WithholdUsage || t.named || !f.usageOnly() {
		return false
	}
	// The same test by which an unfinished event is let through, so that what is withheld never
	// depends on how the stream was cut into reads.
	found, _ := hasChoices(t.firstData(t.buf), 0)
	return !found
}

// overflow takes note of the start of an event that does not fit the buffer, and lets it through.
func (t *Tap) overflow() {
	if t.datas == 0 && !t.headless {
		if v, ok := dataValue(t.buf[t.line:t.end]); ok {
			t.datas, t.dataAt, t.dataEnd = 1, t.end-len(v), t.end
		}
	}
	if t.big {
		return
	}
	t.big = true
	if t.datas > 0 {
		f := inspect(t.firstData(t.buf))
		f.content = f.content && (t.name == nameNone || t.name == nameDelta)
		t.bigEnds = ended(f.typ)
		t.note(f)
	}
}

// held reports whether the unfinished event could still be one to withhold.
func (t *Tap) held() bool {
	usage, done := t.opt.WithholdUsage, t.opt.WithholdDone && t.failed()
	if !usage && !done || t.big || t.open || t.named {
		return false
	}
	v := t.firstData(t.buf)
	if t.datas == 0 {
		line := t.buf[t.line:t.end]
		if t.event == t.line && line[0] == ':' {
			return false // a comment belongs to no event
		}
		var ok bool
		if v, ok = dataValue(line); !ok {
			return true
		}
	}
	text := bytes.Trim(v, " \t")
	if len(text) == 0 {
		return true
	}
	if usage && text[0] == '{' {
		var found bool
		if found, t.seek = hasChoices(v, t.seek); !found {
			return true
		}
	}
	if done && bytes.HasPrefix([]byte(doneMark), text) {
		return true
	}
	t.open = true
	return false
}

func (t *Tap) failed() bool { return t.res.Aborted || t.res.ErrorFrame }

// note adds to the result what an event has said.
func (t *Tap) note(f facts) {
	t.typed = t.typed || f.choices || !t.opt.OtherEvents && (len(f.typ) > 0 || t.name != nameNone)
	t.res.add(&f)
	if !f.content {
		return
	}
	if t.res.Events++; t.res.Events == 1 && t.opt.OnFirst != nil {
		t.opt.OnFirst()
	}
}

// finish ends the stream with the engine's error, io.EOF included.
func (t *Tap) finish(err error) {
	t.err = err
	if errors.Is(err, io.EOF) {
		if t.line < t.end {
			t.takeLine(t.buf[t.line:t.end], t.end)
		}
		if t.datas > 0 {
			t.takeLine(nil, t.end)
		}
		t.res.Complete = (t.res.Done || !t.typed) && !t.res.Aborted && !t.res.ErrorFrame
		if !t.opt.RequireEnd || t.res.Complete || t.res.Aborted || t.res.ErrorFrame {
			t.pass = t.end
			return
		}
		err = io.ErrUnexpectedEOF
		t.err = err
	}
	// What was held back is the start of an event that never came: the client is better off without.
	t.res.Withheld += int64(t.end - t.pass)
	t.end = t.pass
	if t.opt.BreakEvent == nil || t.res.Done || errors.Is(err, context.Canceled) {
		return
	}
	if t.pass > t.event {
		t.extra = append(t.extra, "\n\n"...)
	}
	t.extra = append(t.extra, t.opt.BreakEvent(err)...)
}
