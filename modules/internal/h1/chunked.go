package h1

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/textproto"
)

// What bounds the overhead of chunks, as in net/http: 16 bytes and twice the
// data are granted to each, and so much more to all together.
const (
	maxChunkLine = 4 << 10
	chunkGrant   = 16
	maxExcess    = 16 << 10
)

var (
	errChunk        = errors.New("malformed chunked encoding")
	errChunkLine    = errors.New("chunk header line too long")
	errChunkExcess  = errors.New("chunked encoding contains too much that is no data")
	errTrailerCut   = errors.New("the answer ended in its trailer")
	errTrailerLarge = errors.New("trailer too long")
)

// chunked reads a body in the chunked encoding (RFC 9112, section 7.1), as
// strictly as net/http does. A stream's token costs less in it than in
// net/http's readers, which lock and ask one another for each.
type chunked struct {
	br     *bufio.Reader
	res    *http.Response // gets the trailers
	left   uint64         // bytes of the chunk that have not come
	excess int64
	tail   bool // the line end behind a chunk's data is due
	ending bool // the last chunk's line was read, the trailer is due
	err    error
}

// Read implements io.Reader. It waits only while it has nothing to give.
func (c *chunked) Read(p []byte) (n int, err error) {
	for c.err == nil && n < len(p) {
		if n > 0 && !c.ready() {
			return n, nil
		}
		c.err = c.advance()
		if c.err != nil || c.left == 0 {
			continue
		}
		var m int
		m, c.err = c.br.Read(p[n:][:min(uint64(len(p)-n), c.left)])
		n += m
		c.left -= uint64(m)
		c.tail = c.left == 0
		c.err = early(c.err)
	}
	return n, c.err
}

// early is an end that came too early.
func early(err error) error {
	if err == io.EOF { //nolint:errorlint // a wrapped one is another error
		return io.ErrUnexpectedEOF
	}
	return err
}

// ready reports whether advance would not wait.
func (c *chunked) ready() bool {
	have := c.br.Buffered()
	if c.left > 0 {
		return have > 0
	}
	buffered, _ := c.br.Peek(have) // what is there can be had
	if c.tail {
		buffered = buffered[min(2, have):]
	}
	if c.ending {
		return len(buffered) >= 2
	}
	return bytes.IndexByte(buffered, '\n') >= 0
}

// advance reads what stands before the next byte of data. It returns io.EOF at
// the end of the body.
func (c *chunked) advance() error {
	if c.left > 0 {
		return nil
	}
	if c.tail {
		end, err := c.br.Peek(2)
		if err != nil {
			return early(err)
		}
		if end[0] != '\r' || end[1] != '\n' {
			return errChunk
		}
		_, _ = c.br.Discard(2)
		c.tail = false
		return nil // there may be no more to read without waiting
	}
	if c.ending {
		return c.trailer()
	}
	size, overhead, err := c.header()
	if err != nil {
		return err
	}
	c.excess = max(0, c.excess+overhead-chunkGrant-2*int64(size))
	if c.excess > maxExcess {
		return errChunkExcess
	}
	c.left, c.ending = size, size == 0
	return nil
}

// header reads the line before a chunk's data: the size, and extensions, which
// mean nothing to us.
func (c *chunked) header() (size uint64, overhead int64, err error) {
	line, err := c.br.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		return 0, 0, errChunkLine
	}
	if err != nil {
		return 0, 0, early(err)
	}
	// A bare LF or a CR elsewhere is how requests are smuggled.
	if len(line) < 2 || bytes.IndexByte(line, '\r') != len(line)-2 {
		return 0, 0, errChunk
	}
	line = line[:len(line)-2]
	if len(line) >= maxChunkLine {
		return 0, 0, errChunkLine
	}
	overhead = int64(len(line)) + 2
	digits, _, _ := bytes.Cut(bytes.TrimRight(line, " \t"), []byte(";"))
	size, err = hex(digits)
	return size, overhead, err
}

// hex reads a chunk's size.
func hex(digits []byte) (n uint64, err error) {
	if len(digits) == 0 || len(digits) > 16 {
		return 0, errChunk
	}
	for _, d := range digits {
		switch {
		case d >= '0' && d <= '9':
			d -= '0'
		case d|0x20 >= 'a' && d|0x20 <= 'f':
			d = d | 0x20 - 'a' + 10
		default:
			return 0, errChunk
		}
		n = n<<4 | uint64(d)
	}
	return n, nil
}

// trailer reads the end of the body and the trailers before it. They must fit
// into the read buffer.
func (c *chunked) trailer() error {
	end, err := c.br.Peek(2)
	switch {
	case len(end) < 2:
		if err == io.EOF { //nolint:errorlint // a wrapped one is another error
			err = errTrailerCut
		}
		return err
	case end[0] == '\r' && end[1] == '\n':
		_, _ = c.br.Discard(2)
		return io.EOF
	}
	for size := 4; ; size++ {
		have, err := c.br.Peek(size)
		if bytes.HasSuffix(have, []byte("\r\n\r\n")) {
			break
		}
		if err != nil {
			return errTrailerLarge
		}
	}
	fields, err := textproto.NewReader(c.br).ReadMIMEHeader()
	if err != nil {
		if err == io.EOF { //nolint:errorlint // a wrapped one is another error
			return errTrailerCut
		}
		return fmt.Errorf("trailer: %w", errChunk) // the error itself would quote it
	}
	if c.res.Trailer == nil {
		c.res.Trailer = http.Header(fields)
	} else {
		maps.Copy(c.res.Trailer, http.Header(fields))
	}
	return io.EOF
}
