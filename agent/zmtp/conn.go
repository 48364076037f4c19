package zmtp

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"
)

// Kind is a type of socket, as it is named in the handshake.
type Kind string

// The types.
const (
	Sub    Kind = "SUB"
	Dealer Kind = "DEALER"
	Pub    Kind = "PUB"
	Router Kind = "ROUTER"
)

// peers are the types that a socket may talk to.
var peers = map[Kind][]string{
	Sub: {"PUB", "XPUB"}, Dealer: {"DEALER", "REP", "ROUTER"},
	Pub: {"SUB", "XSUB"}, Router: {"DEALER", "REQ", "ROUTER"},
}

// The bounds.
const (
	// MaxMessage bounds all frames of a message together, in bytes, and MaxFrames how many there
	// are.
	MaxMessage = 16 << 20
	MaxFrames  = 16
	// maxCommand bounds a command: those that there are, are short.
	maxCommand = 4 << 10
	// handshakeTimeout bounds the handshake, dialling included.
	handshakeTimeout = 3 * time.Second
	// Quiet is how long a peer may say nothing before it is asked whether it is there, and
	// then until the connection counts as lost.
	Quiet = 5 * time.Second
	// writeTimeout bounds how long one write may be stuck.
	writeTimeout = 5 * time.Second
)

// ErrProtocol is what a peer sends that it must not.
var ErrProtocol = errors.New("zmtp: protocol error")

func wrong(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrProtocol, fmt.Sprintf(format, args...))
}

// Conn is a connection to one peer. One goroutine may Receive while others Send.
type Conn struct {
	conn net.Conn
	r    *bufio.Reader
	kind Kind

	mu sync.Mutex // of what is written
	w  *bufio.Writer
}

// Dial connects to a peer at tcp://host:port.
func Dial(ctx context.Context, address string, kind Kind) (*Conn, error) {
	host, ok := strings.CutPrefix(address, "tcp://")
	if !ok {
		return nil, fmt.Errorf("zmtp: address %q: want tcp://host:port", address)
	}
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", host)
	if err != nil {
		return nil, fmt.Errorf("zmtp: %w", err)
	}
	return handshake(ctx, conn, kind)
}

// handshake makes a connection ready for messages, or closes it. It takes as long as ctx lets it.
func handshake(ctx context.Context, conn net.Conn, kind Kind) (*Conn, error) {
	c := &Conn{conn: conn, r: bufio.NewReaderSize(conn, 64<<10), w: bufio.NewWriter(conn), kind: kind}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := c.greet(); err != nil {
		conn.Close()
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, fmt.Errorf("zmtp: handshake: %w", err)
	}
	if !stop() { // it ended in this moment
		conn.Close()
		return nil, fmt.Errorf("zmtp: handshake: %w", ctx.Err())
	}
	_ = conn.SetDeadline(time.Time{})
	return c, nil
}

const greeting = 64

// greet exchanges greetings and READY.
func (c *Conn) greet() error {
	var own, other [greeting]byte
	own[0], own[9], own[10], own[11] = 0xff, 0x7f, 3, 1
	copy(own[12:32], "NULL")
	if _, err := c.conn.Write(own[:]); err != nil {
		return err
	}
	if _, err := io.ReadFull(c.r, other[:]); err != nil {
		return err
	}
	switch {
	case other[0] != 0xff || other[9] != 0x7f:
		return wrong("this is no ZeroMQ peer")
	case other[10] < 3:
		return wrong("the peer speaks version %d.%d, 3.0 is the least", other[10], other[11])
	case strings.TrimRight(string(other[12:32]), "\x00") != "NULL":
		return wrong("the peer asks for the mechanism %q, NULL is the only one", strings.TrimRight(string(other[12:32]), "\x00"))
	}
	if err := c.command("READY", property(nil, "Socket-Type", string(c.kind))); err != nil {
		return err
	}
	f, err := c.frame(maxCommand)
	if err != nil {
		return err
	}
	name, body, err := parseCommand(f)
	switch {
	case err != nil:
		return err
	case name == "ERROR" && len(body) > 0:
		return wrong("the peer refuses: %.200q", body[1:])
	case name != "READY":
		return wrong("the peer says %.20q before READY", name)
	}
	kind, err := lookUp(body, "Socket-Type")
	if err != nil {
		return err
	}
	for _, k := range peers[c.kind] {
		if k == kind {
			return nil
		}
	}
	return wrong("a socket of type %.20q is no peer of %s", kind, c.kind)
}

func property(to []byte, name, value string) []byte {
	to = append(to, byte(len(name)))
	to = append(to, name...)
	to = binary.BigEndian.AppendUint32(to, uint32(len(value)))
	return append(to, value...)
}

// lookUp returns a property of a READY command.
func lookUp(body []byte, name string) (string, error) {
	for len(body) > 0 {
		n := int(body[0])
		if len(body) < 1+n+4 {
			return "", wrong("a property is cut off")
		}
		key := string(body[1 : 1+n])
		body = body[1+n:]
		size := binary.BigEndian.Uint32(body)
		if body = body[4:]; uint64(size) > uint64(len(body)) {
			return "", wrong("a property of %d bytes in %d", size, len(body))
		}
		if strings.EqualFold(key, name) {
			return string(body[:size]), nil
		}
		body = body[size:]
	}
	return "", wrong("the peer does not say its %s", name)
}

// The flags of a frame.
const (
	flagMore = 1 << iota
	flagLong
	flagCommand
)

type frame struct {
	flags byte
	body  []byte
}

// firstPart is what is taken for a frame before more of it has come.
const firstPart = 64 << 10

// frame reads one of so many bytes at most.
func (c *Conn) frame(limit int) (f frame, err error) {
	if f.flags, err = c.r.ReadByte(); err != nil {
		return f, err
	}
	if f.flags&^(flagMore|flagLong|flagCommand) != 0 || f.flags&flagCommand != 0 && f.flags&flagMore != 0 {
		return f, wrong("flags %#x", f.flags)
	}
	var head [8]byte
	var size uint64
	if f.flags&flagLong == 0 {
		b, err := c.r.ReadByte()
		if err != nil {
			return f, noEnd(err)
		}
		size = uint64(b)
	} else {
		if _, err := io.ReadFull(c.r, head[:]); err != nil {
			return f, noEnd(err)
		}
		size = binary.BigEndian.Uint64(head[:])
	}
	if f.flags&flagCommand != 0 {
		limit = min(limit, maxCommand)
	}
	if size > uint64(max(0, limit)) {
		return f, wrong("a frame of %d bytes, %d are the most", size, limit)
	}
	for n := int(size); len(f.body) < n; {
		have := len(f.body)
		part := min(n-have, max(firstPart, have))
		f.body = append(f.body, make([]byte, part)...)
		if _, err := io.ReadFull(c.r, f.body[have:]); err != nil {
			return f, noEnd(err)
		}
	}
	return f, nil
}

// noEnd makes an end in the middle of a frame what it is.
func noEnd(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

func parseCommand(f frame) (name string, body []byte, err error) {
	if f.flags&flagCommand == 0 {
		return "", nil, wrong("a message where a command is due")
	}
	if len(f.body) == 0 || len(f.body) < 1+int(f.body[0]) {
		return "", nil, wrong("a command without a name")
	}
	n := 1 + int(f.body[0])
	return string(f.body[1:n]), f.body[n:], nil
}

// Receive returns the frames of the next message. It fails when ctx ends, when the connection is
// lost or the peer says nothing any more, or says what it must not; then the connection is of no
// use any more. The frames are the caller's.
func (c *Conn) Receive(ctx context.Context) ([][]byte, error) {
	stop := context.AfterFunc(ctx, func() { _ = c.conn.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	var message [][]byte
	size, asked := 0, false
	for {
		if c.r.Buffered() == 0 && len(message) == 0 {
			if err := c.await(ctx, &asked); err != nil {
				return nil, err
			}
		}
		_ = c.conn.SetReadDeadline(time.Now().Add(2 * Quiet))
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		f, err := c.frame(MaxMessage - size)
		if err != nil {
			if ctx.Err() != nil {
				err = ctx.Err()
			}
			return nil, err
		}
		asked = false
		if f.flags&flagCommand != 0 {
			topic, err := c.obey(f)
			if err != nil {
				return nil, err
			}
			if topic != nil {
				return [][]byte{topic}, nil
			}
			continue
		}
		if len(message) == MaxFrames {
			return nil, wrong("a message of more than %d frames", MaxFrames)
		}
		message = append(message, f.body)
		if size += len(f.body); f.flags&flagMore == 0 {
			return message, nil
		}
	}
}

// await returns when there is something to read. A peer that is quiet is asked once whether it is
// there.
func (c *Conn) await(ctx context.Context, asked *bool) error {
	for {
		_ = c.conn.SetReadDeadline(time.Now().Add(Quiet))
		if ctx.Err() != nil { // it may have ended before the deadline was set
			return ctx.Err()
		}
		_, err := c.r.Peek(1)
		switch timeout, ok := errors.AsType[net.Error](err); {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case !ok || !timeout.Timeout():
			return err
		case *asked:
			return fmt.Errorf("zmtp: the peer has said nothing for %v", 2*Quiet)
		}
		*asked = true
		if err := c.command("PING", []byte{0, 0}); err != nil {
			return err
		}
	}
}

// obey answers a command. A subscription comes back as 3.0 would have sent it, as a message.
func (c *Conn) obey(f frame) (topic []byte, err error) {
	name, body, err := parseCommand(f)
	switch {
	case err != nil:
		return nil, err
	case name == "PING" && len(body) >= 2:
		return nil, c.command("PONG", body[2:]) // its context comes back
	case name == "SUBSCRIBE" && c.kind == Pub:
		return append([]byte{1}, body...), nil
	case name == "CANCEL" && c.kind == Pub:
		return append([]byte{0}, body...), nil
	case name == "ERROR":
		return nil, wrong("the peer says: %.200q", body)
	}
	return nil, nil // PONG, and what is still to come
}

// Subscribe asks a PUB socket for the messages whose first frame begins with topic.
func (c *Conn) Subscribe(topic string) error { return c.Send(append([]byte{1}, topic...)) }

// Send sends one message.
func (c *Conn) Send(frames ...[]byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = c.conn.SetWriteDeadline(time.Now().Add(writeTimeout))
	for i, b := range frames {
		flags := byte(0)
		if i < len(frames)-1 {
			flags = flagMore
		}
		c.write(flags, b)
	}
	return c.w.Flush()
}

func (c *Conn) command(name string, body []byte) error {
	b := append([]byte{byte(len(name))}, name...)
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = c.conn.SetWriteDeadline(time.Now().Add(writeTimeout))
	c.write(flagCommand, append(b, body...))
	return c.w.Flush()
}

// write writes a frame. Its errors come with Flush. It needs mu.
func (c *Conn) write(flags byte, b []byte) {
	if len(b) < 256 {
		_, _ = c.w.Write([]byte{flags, byte(len(b))})
	} else {
		head := binary.BigEndian.AppendUint64([]byte{flags | flagLong}, uint64(len(b)))
		_, _ = c.w.Write(head)
	}
	_, _ = c.w.Write(b)
}

// Close ends the connection, and what waits on it.
func (c *Conn) Close() error { return c.conn.Close() }
