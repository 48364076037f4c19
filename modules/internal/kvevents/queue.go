package kvevents

import (
	"context"
	"sync/atomic"

	"github.com/llmgw/llmgw/agent/zmtp"
)

// maxBehind and maxBehindBytes bound what is read and not applied yet.
const (
	maxBehind      = 4096
	maxBehindBytes = 64 << 20
)

// queue holds what is read and not applied yet. When it is full it forgets what comes: that is a gap.
type queue struct {
	c     chan message
	bytes atomic.Int64
	lost  atomic.Bool // the last ones that came are forgotten
}

func newQueue() *queue { return &queue{c: make(chan message, maxBehind)} }

// fill reads messages until there is an error.
func (q *queue) fill(ctx context.Context, c *zmtp.Conn) error {
	for {
		frames, err := c.Receive(ctx)
		if err != nil {
			return err
		}
		m, err := parse(frames)
		if err != nil {
			return err
		}
		if q.bytes.Load() > maxBehindBytes {
			q.lost.Store(true)
			continue
		}
		select {
		case q.c <- m:
			q.bytes.Add(int64(len(m.payload)))
		default:
			q.lost.Store(true)
		}
	}
}

func (q *queue) take(ctx context.Context) (message, error) {
	if len(q.c) == 0 && q.lost.Swap(false) {
		return message{}, errGap
	}
	select {
	case m := <-q.c:
		q.bytes.Add(-int64(len(m.payload)))
		return m, nil
	case <-ctx.Done():
		return message{}, context.Canceled
	}
}
