package openai

import (
	"errors"
	"fmt"
	"io"
	"strconv"
)

// MaxEdits is how many edits one body can take: one for each field of Rewrite.
const MaxEdits = 4

// Edit replaces a span of a body by other bytes. An empty span is an insertion before its start.
type Edit struct {
	At   Span
	With []byte
}

// Rewrite says what a replica must see other than what the client wrote. The zero Rewrite changes
// nothing.
type Rewrite struct {
	Model string // the name the replica serves the model under; empty leaves the client's
	// InjectUsage asks a stream for a usage chunk where CanInjectUsage allows it. Only
	// /v1/chat/completions and /v1/completions know stream_options; other APIs always send usage.
	InjectUsage bool
	Priority    *int   // vLLM's request priority, replacing the client's
	CacheSalt   string // vLLM's cache_salt, replacing the client's; empty leaves it
}

// Edits appends to dst the edits that turn the scanned body into what r asks for, in the order of
// the body. Strings are encoded as JSON without HTML escapes; a form (ScanMultipart) takes the
// model as it is and knows no other edit. Applied to its own result, a rewrite changes nothing.
func (f *Fields) Edits(dst []Edit, body []byte, r Rewrite) []Edit {
	first := len(dst)
	if f.multipart {
		if r.Model != "" && r.Model != f.Model {
			dst = append(dst, Edit{f.ModelSpan, []byte(r.Model)})
		}
		return dst
	}
	if r.Model != "" && r.Model != f.Model {
		dst = append(dst, Edit{f.ModelSpan, appendQuoted(nil, r.Model)})
	}
	if r.InjectUsage && f.CanInjectUsage(body) {
		dst = append(dst, f.usageEdit(body))
	}
	if r.Priority != nil {
		dst = append(dst, f.set(f.Priority, "priority", strconv.AppendInt(nil, int64(*r.Priority), 10)))
	}
	if r.CacheSalt != "" {
		dst = append(dst, f.set(f.CacheSalt, "cache_salt", appendQuoted(nil, r.CacheSalt)))
	}
	added := dst[first:]
	for i := range added { // insertion sort: stable, and there are four at most
		for k := i; k > 0 && added[k].At.Start < added[k-1].At.Start; k-- {
			added[k], added[k-1] = added[k-1], added[k]
		}
	}
	return dst
}

func (f *Fields) usageEdit(body []byte) Edit {
	const member = `"include_usage":true`
	switch o := f.StreamOptions; {
	case !f.IncludeUsage.Empty():
		return Edit{f.IncludeUsage, []byte("true")}
	case o.Empty() || body[o.Start] != '{':
		return f.set(o, "stream_options", []byte("{"+member+"}"))
	case body[skipSpace(body, o.Start+1)] == '}':
		return Edit{Span{o.Start + 1, o.Start + 1}, []byte(member)}
	default:
		return Edit{Span{o.Start + 1, o.Start + 1}, []byte(member + ",")}
	}
}

// set replaces the value at s, or inserts a member with it as the object's first. A comma follows
// always, since a scanned object has a model.
func (f *Fields) set(s Span, key string, value []byte) Edit {
	if !s.Empty() {
		return Edit{s, value}
	}
	with := make([]byte, 0, len(key)+len(value)+4)
	with = append(with, '"')
	with = append(with, key...)
	with = append(with, `":`...)
	with = append(with, value...)
	return Edit{Span{f.open, f.open}, append(with, ',')}
}

// Spliced is a body with edits applied, without a copy: it refers to the body and the edits, which
// must not change while it is used. A Spliced is read-only and safe for concurrent use.
type Spliced struct {
	segments [2*MaxEdits + 1][]byte
	n        int
	size     int64
}

// Splice applies edits to body. The edits must be in order, within the body, free of overlaps, and
// at most MaxEdits; Edits makes such edits.
func Splice(body []byte, edits []Edit) (Spliced, error) {
	var s Spliced
	if len(edits) > MaxEdits {
		return s, fmt.Errorf("splice: %d edits, at most %d fit", len(edits), MaxEdits)
	}
	at := 0
	for _, e := range edits {
		if e.At.Start < at || e.At.End < e.At.Start || e.At.End > len(body) {
			return Spliced{}, fmt.Errorf("splice: edit of bytes %d to %d is out of order or outside the body of %d bytes",
				e.At.Start, e.At.End, len(body))
		}
		s.add(body[at:e.At.Start])
		s.add(e.With)
		at = e.At.End
	}
	s.add(body[at:])
	return s, nil
}

func (s *Spliced) add(segment []byte) {
	if len(segment) > 0 {
		s.segments[s.n] = segment
		s.n++
		s.size += int64(len(segment))
	}
}

// Len is the number of bytes of the edited body.
func (s *Spliced) Len() int64 { return s.size }

// NewReader returns a reader from the start; each attempt at a replica takes its own.
func (s *Spliced) NewReader() *Reader { return &Reader{s: s} }

// Reader reads a Spliced. It is not safe for concurrent use.
type Reader struct {
	s       *Spliced
	segment int
	offset  int
}

var errBadCount = errors.New("splice: writer reported an impossible count")

// Read implements io.Reader.
func (r *Reader) Read(p []byte) (int, error) {
	n := 0
	for n < len(p) && r.segment < r.s.n {
		k := copy(p[n:], r.s.segments[r.segment][r.offset:])
		n += k
		r.advance(k)
	}
	if n == 0 && len(p) > 0 {
		return 0, io.EOF
	}
	return n, nil
}

// WriteTo implements io.WriterTo: it writes the segments as they lie in memory.
func (r *Reader) WriteTo(w io.Writer) (int64, error) {
	var total int64
	for r.segment < r.s.n {
		rest := r.s.segments[r.segment][r.offset:]
		n, err := w.Write(rest)
		if n < 0 || n > len(rest) {
			return total, errBadCount
		}
		r.advance(n)
		total += int64(n)
		if err != nil {
			return total, err
		}
		if n < len(rest) {
			return total, io.ErrShortWrite
		}
	}
	return total, nil
}

func (r *Reader) advance(n int) {
	r.offset += n
	if r.offset == len(r.s.segments[r.segment]) {
		r.segment++
		r.offset = 0
	}
}
