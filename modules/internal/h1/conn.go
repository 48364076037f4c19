package h1

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/url"
	"syscall"
	"time"
)

// late is how much too late a dial's time limit must be noticed to say nothing of
// the server.
const late = 200 * time.Millisecond

// lateError marks such a dial.
type lateError struct{ error }

func (e *lateError) Unwrap() error { return e.error }

// unlimited is the limit of bytes to read while a body is read.
const unlimited = -1

// conn is a connection with its reader. One trip uses it at a time.
type conn struct {
	nc   net.Conn
	br   *bufio.Reader
	key  string      // the URL's host:port
	shut func()      // closes nc; any number of times, from any goroutine
	idle func() bool // whether the server has neither closed nor sent anything

	left     int64 // how many bytes may be read, or unlimited
	answered bool  // a byte was read in this trip
	readErr  error // why nothing more can be read
	reused   bool
	since    time.Time // when it was last put into the pool or taken out of it
}

// connect makes a new connection.
func (t *Transport) connect(ctx context.Context, u *url.URL) (*conn, error) {
	dial := t.dial
	if dial == nil {
		d := net.Dialer{Timeout: or(t.DialTimeout, DefaultDialTimeout)}
		dial = func(ctx context.Context, addr string) (net.Conn, error) { return d.DialContext(ctx, "tcp", addr) }
	}
	port := u.Port()
	if port == "" {
		port = "80"
	}
	begun := time.Now()
	nc, err := dial(ctx, net.JoinHostPort(u.Hostname(), port))
	if err != nil {
		if isTimeout(err) && time.Since(begun) > or(t.DialTimeout, DefaultDialTimeout)+late {
			err = &lateError{err}
		}
		return nil, err
	}
	c := &conn{nc: nc, key: u.Host}
	c.br = bufio.NewReaderSize(c, or(t.ReadBuffer, DefaultReadBuffer))
	c.shut = func() { c.nc.Close() }
	c.idle = func() bool { return idleByDeadline(nc) }
	if sc, ok := nc.(syscall.Conn); ok {
		if peek := idleByPeek(sc); peek != nil {
			c.idle = peek
		}
	}
	return c, nil
}

// Read implements io.Reader for the connection's bufio.Reader.
func (c *conn) Read(p []byte) (n int, err error) {
	switch c.left {
	case unlimited:
		n, err = c.nc.Read(p)
	case 0:
		err = ErrHeaderTooLarge
	default:
		n, err = c.nc.Read(p[:min(int64(len(p)), c.left)])
		c.left -= int64(n)
		c.answered = c.answered || n > 0
	}
	if err != nil {
		c.readErr = err
	}
	return n, err
}

// idlePatience is how long idleByDeadline waits for what may have come: a
// deadline that has passed would keep the read from being tried at all.
const idlePatience = 100 * time.Microsecond

// idleByDeadline tells an idle connection by reading from it, where it cannot be
// peeked at.
func idleByDeadline(nc net.Conn) bool {
	if nc.SetReadDeadline(time.Now().Add(idlePatience)) != nil {
		return false
	}
	var b [1]byte
	n, err := io.ReadFull(nc, b[:])
	netErr, ok := errors.AsType[net.Error](err)
	return n == 0 && ok && netErr.Timeout() && nc.SetReadDeadline(time.Time{}) == nil
}
