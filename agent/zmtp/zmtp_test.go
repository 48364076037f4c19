package zmtp

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func publisher(t testing.TB, highWater int) *Publisher {
	t.Helper()
	p, err := NewPublisher("tcp://127.0.0.1:0", highWater)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

func dial(t testing.TB, address string, kind Kind) *Conn {
	t.Helper()
	c, err := Dial(t.Context(), address, kind)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for range 500 {
		if ok() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("not so: %s", what)
}

// TestPublishAndSubscribe: who has subscribed gets each message of its topics once, in order.
func TestPublishAndSubscribe(t *testing.T) {
	p := publisher(t, 1000)
	c := dial(t, p.Address(), Sub)
	if err := c.Subscribe("kv@"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it has subscribed", func() bool { return p.Subscribers() == 1 })
	large := bytes.Repeat([]byte("x"), 1<<20)
	for i := range 100 {
		p.Publish([]byte("other"), []byte("no"))
		p.Publish([]byte("kv@a"), binary.BigEndian.AppendUint64(nil, uint64(i)), large[:i*i*100])
	}
	for i := range 100 {
		m, err := c.Receive(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(m) != 3 || string(m[0]) != "kv@a" || binary.BigEndian.Uint64(m[1]) != uint64(i) || len(m[2]) != i*i*100 {
			t.Fatalf("message %d: %d frames, %q", i, len(m), m[0])
		}
	}
}

// TestSlowSubscriber: one that does not read loses messages, and holds up nobody.
func TestSlowSubscriber(t *testing.T) {
	p := publisher(t, 10)
	slow, quick := dial(t, p.Address(), Sub), dial(t, p.Address(), Sub)
	for _, c := range []*Conn{slow, quick} {
		if err := c.Subscribe(""); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "both have subscribed", func() bool { return p.Subscribers() == 2 })
	part := make([]byte, 1<<20)
	for i := range 50 {
		p.Publish([]byte{byte(i)}, part)
		if m, err := quick.Receive(t.Context()); err != nil || m[0][0] != byte(i) {
			t.Fatalf("the quick one: %v", err)
		}
	}
	const end = 100
	last, got := -1, 0
	for last < end { // there is room for the end once it has read enough
		p.Publish([]byte{end})
		m, err := slow.Receive(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if int(m[0][0]) <= last {
			t.Fatalf("%d after %d", m[0][0], last)
		}
		last, got = int(m[0][0]), got+1
	}
	if got-1 == 50 {
		t.Error("it has lost none of 50 MiB")
	}
}

// TestRequestsAndReplies: a DEALER gets what the ROUTER answers, as many messages as it likes.
func TestRequestsAndReplies(t *testing.T) {
	r, err := NewReplier("tcp://127.0.0.1:0", func(m [][]byte, reply func(...[]byte) error) {
		for range 3 {
			if reply(append([][]byte{nil}, m[1:]...)...) != nil {
				return
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	c := dial(t, r.Address(), Dealer)
	for range 2 {
		if err := c.Send(nil, []byte("question")); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if m, err := c.Receive(t.Context()); err != nil || len(m) != 2 || len(m[0]) != 0 || string(m[1]) != "question" {
				t.Fatalf("%q: %v", m, err)
			}
		}
	}
}

// TestLost: the end of a connection is an error at once, in the middle of a frame, too, and so is
// the end of the context.
func TestLost(t *testing.T) {
	p := publisher(t, 10)
	c := dial(t, p.Address(), Sub)
	done := make(chan error, 1)
	go func() {
		_, err := c.Receive(context.Background())
		done <- err
	}()
	p.Close()
	if err := <-done; err == nil {
		t.Error("the publisher is gone, and a message came")
	}
	other := dial(t, publisher(t, 10).Address(), Sub)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		_, err := other.Receive(ctx)
		done <- err
	}()
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("its context ended: %v", err)
	}
	part := append(hello("PUB"), 0, 200, 'x')
	if _, err := dial(t, raw(t, part, true), Sub).Receive(t.Context()); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("in the middle of a frame: %v", err)
	}
}

// raw is a peer that sends these bytes to whoever connects, and hangs up if it is to.
func raw(t testing.TB, b []byte, hangUp bool) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_, _ = conn.Write(b)
				if hangUp {
					_ = conn.(*net.TCPConn).CloseWrite()
				}
				_, _ = io.Copy(io.Discard, conn)
			}()
		}
	}()
	return "tcp://" + ln.Addr().String()
}

// hello is what a peer of that type begins with.
func hello(kind string) []byte {
	b := make([]byte, greeting)
	b[0], b[9], b[10] = 0xff, 0x7f, 3
	copy(b[12:], "NULL")
	ready := property([]byte("\x05READY"), "Socket-Type", kind)
	b = append(b, flagCommand, byte(len(ready)))
	return append(b, ready...)
}

// TestHostilePeers: whatever a peer sends there is an error soon, and no memory is taken for what it
// only announces.
func TestHostilePeers(t *testing.T) {
	long := func(flags byte, size uint64) []byte {
		return binary.BigEndian.AppendUint64([]byte{flags | flagLong}, size)
	}
	old, other := hello("PUB"), hello("PUB")
	old[10] = 2
	copy(other[12:], "CURVE")
	var many []byte
	for range MaxFrames + 1 {
		many = append(many, flagMore, 0)
	}
	for name, c := range map[string]struct {
		bytes []byte
		want  string
		dials bool
	}{
		"no ZeroMQ":            {[]byte("HTTP/1.1 400 Bad Request\r\n\r\n" + strings.Repeat(" ", 64)), "no ZeroMQ peer", false},
		"too old":              {old, "version 2.0", false},
		"another mechanism":    {other, "CURVE", false},
		"another socket":       {hello("PUSH"), "no peer of SUB", false},
		"no READY":             {append(hello("PUB")[:greeting], flagCommand, 5, 4, 'P', 'I', 'N', 'G'), "before READY", false},
		"a message":            {append(hello("PUB")[:greeting], 0, 1, 'x'), "where a command is due", false},
		"an empty command":     {append(hello("PUB")[:greeting], flagCommand, 0), "without a name", false},
		"a property cut off":   {append(hello("PUB")[:greeting], flagCommand, 8, 5, 'R', 'E', 'A', 'D', 'Y', 9, 'x'), "cut off", false},
		"a refusal":            {append(hello("PUB")[:greeting], flagCommand, 9, 5, 'E', 'R', 'R', 'O', 'R', 2, 'n', 'o'), "refuses", false},
		"2^62 bytes":           {append(hello("PUB"), long(0, 1<<62)...), "16777216 are the most", true},
		"2^63 bytes":           {append(hello("PUB"), long(0, 1<<63)...), "16777216 are the most", true},
		"a command of a MiB":   {append(hello("PUB"), long(flagCommand, 1<<20)...), "4096 are the most", true},
		"flags":                {append(hello("PUB"), 0xf8, 0), "flags 0xf8", true},
		"a command with more":  {append(hello("PUB"), flagCommand|flagMore, 0), "flags 0x5", true},
		"frames without end":   {append(hello("PUB"), many...), "more than 16 frames", true},
		"16 MiB in two frames": {append(append(hello("PUB"), append(long(flagMore, 1<<20), make([]byte, 1<<20)...)...), long(0, 16<<20)...), "are the most", true},
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := Dial(t.Context(), raw(t, c.bytes, false), Sub)
			if c.dials {
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				_, err = conn.Receive(t.Context())
			}
			if !errors.Is(err, ErrProtocol) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	conn := dial(t, raw(t, append(hello("PUB"), long(0, MaxMessage)...), true), Sub)
	if _, err := conn.Receive(t.Context()); err == nil {
		t.Error("a frame that never came is there")
	}
	if runtime.ReadMemStats(&after); after.TotalAlloc-before.TotalAlloc > 1<<20 {
		t.Errorf("%d bytes were taken for a frame that never came", after.TotalAlloc-before.TotalAlloc)
	}
}

// TestMutePeers: one that accepts and says nothing is an error when the context ends, or the
// handshake's time is over.
func TestMutePeers(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := Dial(ctx, raw(t, nil, false), Sub); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("in the handshake: %v", err)
	}
	for _, address := range []string{"127.0.0.1:1", "ipc:///tmp/x", "tcp://"} {
		if _, err := Dial(t.Context(), address, Sub); err == nil {
			t.Errorf("%q can be dialled", address)
		}
	}
}

// TestPingIsAnswered, as peers ask.
func TestPingIsAnswered(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	answer := make(chan []byte, 1)
	go func() {
		conn, err := ln.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = conn.Write(append(hello("PUB"), flagCommand, 9, 4, 'P', 'I', 'N', 'G', 0, 9, 'h', 'i'))
		all := make([]byte, len(hello("SUB"))+2+5+2)
		_, _ = io.ReadFull(conn, all)
		answer <- all[len(hello("SUB")):]
	}()
	c := dial(t, "tcp://"+ln.Addr().String(), Sub)
	go func() { _, _ = c.Receive(context.Background()) }()
	if got := <-answer; string(got) != "\x04\x07\x04PONGhi" {
		t.Errorf("it is answered with %q", got)
	}
}

// FuzzPeer: no bytes of a peer make a connection panic, hang or take more memory than it may.
func FuzzPeer(f *testing.F) {
	f.Add(hello("PUB"))
	f.Add(append(hello("PUB"), 1, 1, 'a', 0, 1, 'b'))
	f.Add(append(hello("PUB"), 4, 7, 4, 'P', 'I', 'N', 'G', 0, 9))
	f.Fuzz(func(t *testing.T, b []byte) {
		ours, theirs := net.Pipe()
		go func() { _, _ = io.Copy(io.Discard, theirs) }()
		go func() {
			_, _ = theirs.Write(b)
			theirs.Close()
		}()
		defer ours.Close()
		c, err := handshake(t.Context(), ours, Sub)
		if err != nil {
			return
		}
		for {
			m, err := c.Receive(t.Context())
			if err != nil {
				return
			}
			if len(m) > MaxFrames {
				t.Fatalf("%d frames", len(m))
			}
		}
	})
}

// TestQuietPeers: one that says nothing is asked whether it is there, and lost if it does not answer.
func TestQuietPeers(t *testing.T) {
	for _, answers := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			ours, theirs := net.Pipe()
			defer theirs.Close()
			var pings atomic.Int64
			go func() {
				r := bufio.NewReader(theirs)
				_, _ = io.CopyN(io.Discard, r, int64(len(hello("SUB"))))
				for {
					f := make([]byte, 9)
					if _, err := io.ReadFull(r, f); err != nil {
						return
					}
					if pings.Add(1); answers {
						_, _ = theirs.Write([]byte{flagCommand, 5, 4, 'P', 'O', 'N', 'G'})
					}
				}
			}()
			go func() { _, _ = theirs.Write(hello("PUB")) }()
			c, err := handshake(t.Context(), ours, Sub)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			begin := time.Now()
			_, err = c.Receive(ctx)
			c.Close()
			switch took := time.Since(begin); {
			case answers && (!errors.Is(err, context.DeadlineExceeded) || pings.Load() < 10):
				t.Errorf("one that answers is lost after %v and %d pings: %v", took, pings.Load(), err)
			case !answers && (errors.Is(err, context.DeadlineExceeded) || took != 2*Quiet || pings.Load() != 1):
				t.Errorf("one that does not is lost after %v and %d pings: %v", took, pings.Load(), err)
			}
		})
	}
}
