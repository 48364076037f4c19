package zmtp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"
)

// maxPeers bounds how many peers a listening socket has at a time.
const maxPeers = 256

// listener accepts peers and runs serve for each.
type listener struct {
	net.Listener
	kind    Kind
	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup
	slots   chan struct{}
}

// listen binds tcp://host:port; port 0 takes one that is free.
func listen(address string, kind Kind, serve func(ctx context.Context, c *Conn)) (*listener, error) {
	host, ok := strings.CutPrefix(address, "tcp://")
	if !ok {
		return nil, fmt.Errorf("zmtp: address %q: want tcp://host:port", address)
	}
	host = strings.Replace(host, "*", "", 1)
	ln, err := new(net.ListenConfig).Listen(context.Background(), "tcp", host)
	if err != nil {
		return nil, fmt.Errorf("zmtp: %w", err)
	}
	l := &listener{Listener: ln, kind: kind, slots: make(chan struct{}, maxPeers)}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.running.Go(func() { l.accept(serve) })
	return l, nil
}

func (l *listener) accept(serve func(ctx context.Context, c *Conn)) {
	for {
		conn, err := l.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil: // as with too many open files
			select {
			case <-l.ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
			continue
		}
		select {
		case l.slots <- struct{}{}:
		default:
			conn.Close()
			continue
		}
		l.running.Go(func() {
			defer func() { <-l.slots }()
			ctx, cancel := context.WithTimeout(l.ctx, handshakeTimeout)
			c, err := handshake(ctx, conn, l.kind)
			cancel()
			if err != nil {
				return
			}
			defer c.Close()
			stop := context.AfterFunc(l.ctx, func() { c.Close() })
			defer stop()
			serve(l.ctx, c)
		})
	}
}

// Address is where it listens, as tcp://host:port.
func (l *listener) Address() string { return "tcp://" + l.Addr().String() }

// Close ends all connections and waits for what serves them.
func (l *listener) Close() error {
	l.cancel()
	err := l.Listener.Close()
	l.running.Wait()
	return err
}

// Publisher is a PUB socket: each peer gets the messages of the topics that it has subscribed to.
// One that does not read fast enough misses some. Safe for concurrent use.
type Publisher struct {
	*listener

	mu    sync.Mutex
	peers map[*subscriber]struct{}
	hwm   int
}

// subscriber is one peer of a publisher.
type subscriber struct {
	topics map[string]struct{} // under the publisher's mu
	queue  chan [][]byte
}

// NewPublisher binds a PUB socket. highWater is how many messages wait for a peer at most.
func NewPublisher(address string, highWater int) (*Publisher, error) {
	p := &Publisher{peers: make(map[*subscriber]struct{}), hwm: highWater}
	l, err := listen(address, Pub, p.serve)
	if err != nil {
		return nil, err
	}
	p.listener = l
	return p, nil
}

func (p *Publisher) serve(ctx context.Context, c *Conn) {
	s := &subscriber{topics: make(map[string]struct{}), queue: make(chan [][]byte, p.hwm)}
	p.mu.Lock()
	p.peers[s] = struct{}{}
	p.mu.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	var sending sync.WaitGroup
	sending.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case m := <-s.queue:
				if c.Send(m...) != nil {
					c.Close()
					return
				}
			}
		}
	})
	for {
		m, err := c.Receive(ctx)
		if err != nil || !p.subscribe(s, m) {
			break
		}
	}
	p.mu.Lock()
	delete(p.peers, s)
	p.mu.Unlock()
	cancel()
	sending.Wait()
}

// maxTopics bounds what a peer may subscribe to.
const maxTopics = 64

// subscribe notes what a peer wants, or does not want any more. It returns false for what a SUB socket
// does not send.
func (p *Publisher) subscribe(s *subscriber, m [][]byte) bool {
	if len(m) != 1 || len(m[0]) == 0 || m[0][0] > 1 || len(m[0]) > maxCommand {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	topic := string(m[0][1:])
	if m[0][0] == 0 {
		delete(s.topics, topic)
	} else if len(s.topics) < maxTopics {
		s.topics[topic] = struct{}{}
	}
	return true
}

// Publish sends a message to whoever has subscribed to its first frame. The frames must not change
// any more. It never waits.
func (p *Publisher) Publish(frames ...[]byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for s := range p.peers {
		for topic := range s.topics {
			if strings.HasPrefix(string(frames[0]), topic) {
				select {
				case s.queue <- frames:
				default: // it misses one
				}
				break
			}
		}
	}
}

// Subscribers returns how many peers have subscribed to anything.
func (p *Publisher) Subscribers() (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for s := range p.peers {
		if len(s.topics) > 0 {
			n++
		}
	}
	return n
}

// Replier is a ROUTER socket that answers requests of DEALER sockets.
type Replier struct{ *listener }

// NewReplier binds a ROUTER socket. answer is called with the frames of each request, for one peer one
// after the other, and may call reply as often as it likes, until it returns; it should return when
// reply fails.
func NewReplier(address string, answer func(request [][]byte, reply func(frames ...[]byte) error)) (*Replier, error) {
	l, err := listen(address, Router, func(ctx context.Context, c *Conn) {
		for {
			m, err := c.Receive(ctx)
			if err != nil {
				return
			}
			answer(m, c.Send)
		}
	})
	if err != nil {
		return nil, err
	}
	return &Replier{l}, nil
}
