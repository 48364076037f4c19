package openai

import (
	"bytes"
	"errors"
	"io"
	"sync"
)

// maxAnswer is up to what size a JSON answer is kept whole until its end.
const maxAnswer = 256 << 10

var answerBuffers = sync.Pool{New: func() any { return new(make([]byte, 0, firstBuffer)) }}

// Unary passes a JSON answer unchanged and finds usage, finish reason and an error in it. It keeps
// up to 256 KiB of the answer; of a larger one (a batch of embeddings) it reads those first 256 KiB
// and then keeps the last 16 to 32 KiB, where usage stands. Not safe for concurrent use.
type Unary struct {
	src  io.ReadCloser
	kept *[]byte // from the pool, nil when given back
	big  bool
	res  Result
}

// NewUnary wraps an engine's JSON answer. Close closes src.
func NewUnary(src io.ReadCloser) *Unary {
	return &Unary{src: src, kept: answerBuffers.Get().(*[]byte)}
}

// Read implements io.Reader.
func (u *Unary) Read(p []byte) (int, error) {
	n, err := u.src.Read(p)
	if n > 0 {
		u.res.Bytes += int64(n)
		u.keep(p[:n])
	}
	if err != nil {
		u.finish(err)
	}
	return n, err
}

// Result returns what the answer said; it is final once Read has returned an error.
func (u *Unary) Result() Result { return u.res }

// Close closes the engine's answer.
func (u *Unary) Close() error {
	u.finish(errClosed)
	return u.src.Close()
}

func (u *Unary) keep(p []byte) {
	if u.kept == nil {
		return
	}
	kept := *u.kept
	if !u.big && len(kept)+len(p) > maxAnswer {
		room := maxAnswer - len(kept)
		kept, p = append(kept, p[:room]...), p[room:]
		f := inspect(kept)
		u.res.add(&f)
		u.big = true
		kept = append(kept[:0], kept[maxAnswer-tailWindow:]...)
	}
	if u.big {
		p = p[max(0, len(p)-tailWindow):]
		if over := len(kept) + len(p) - 2*tailWindow; over > 0 {
			kept = append(kept[:0], kept[len(kept)-tailWindow:]...)
		}
	}
	kept = append(kept, p...)
	*u.kept = kept
}

// openJSON reports whether a text begins as a JSON object or array and does not
// end as one.
func openJSON(text []byte) bool {
	text = bytes.TrimSpace(text)
	if len(text) == 0 || text[0] != '{' && text[0] != '[' {
		return false
	}
	last := text[len(text)-1]
	return last != '}' && last != ']'
}

func (u *Unary) finish(err error) {
	if u.kept == nil {
		return
	}
	var f facts
	if u.big {
		f = tailFacts(*u.kept)
	} else {
		f = inspect(*u.kept)
	}
	u.res.add(&f)
	ended := errors.Is(err, io.EOF)
	// A body without a length that was cut ends like a whole one.
	u.res.Done = ended && (u.big || !openJSON(*u.kept))
	u.res.Complete = u.res.Done && !u.res.Aborted && !u.res.ErrorFrame
	if cap(*u.kept) <= maxEvent {
		*u.kept = (*u.kept)[:0]
		answerBuffers.Put(u.kept)
	}
	u.kept = nil
}
