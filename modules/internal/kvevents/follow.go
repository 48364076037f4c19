package kvevents

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/llmgw/llmgw/agent/zmtp"
)

// Source is where one data-parallel rank of an engine publishes its events.
type Source struct {
	// Endpoint is that of its PUB socket, Replay that of its ROUTER socket, which sends past
	// events again; "" if it has none. Both are tcp://host:port.
	Endpoint, Replay string
	// Topic is the beginning of the topics that are asked for.
	Topic string
}

// State says how far a follower knows a cache.
type State string

// The states.
const (
	// Connecting is one that has no connection.
	Connecting State = "connecting"
	// Syncing is one that asks for past events.
	Syncing State = "syncing"
	// Live is one that knows the cache.
	Live State = "live"
)

// Status is what is known of a follower.
type Status struct {
	State State
	// Since is when that began, Error what ended the last connection, "" for none.
	Since time.Time
	Error string
	// Blocks is how many blocks the cache is known to have.
	Blocks int
	// Batches, Gaps, Replays and Failures count since the follower began: batches of events
	// that were applied, gaps in their numbers, requests for past events, and connections
	// that ended. Orphans are blocks whose parent was not known.
	Batches, Gaps, Replays, Failures, Orphans int64
	// Lag is how much later than it was made the last batch came, as the clocks of both sides have
	// it.
	Lag time.Duration
}

// Follower keeps a view of the cache of one rank as events say it is. While it is not sure there is
// no view. Safe for concurrent use.
type Follower struct {
	source Source
	index  *Index
	log    func(state State, err error)

	view      atomic.Pointer[View] // nil unless it is live
	blockSize atomic.Int64
	blocks    atomic.Int64
	lag       atomic.Int64
	batches   atomic.Int64
	gaps      atomic.Int64
	replays   atomic.Int64
	failures  atomic.Int64
	orphans   atomic.Int64

	mu    sync.Mutex
	state State
	since time.Time
	err   string
}

// NewFollower returns a follower of a source. log is called when its state changes.
func NewFollower(index *Index, source Source, log func(state State, err error)) *Follower {
	return &Follower{source: source, index: index, log: log, state: Connecting, since: time.Now()}
}

// View returns what the cache has, nil while that is not known.
func (f *Follower) View() *View { return f.view.Load() }

// BlockSize returns how many tokens a block has, 0 while that is not known.
func (f *Follower) BlockSize() int { return int(f.blockSize.Load()) }

// Status returns how it stands.
func (f *Follower) Status() Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	return Status{
		State: f.state, Since: f.since, Error: f.err, Blocks: int(f.blocks.Load()), Lag: time.Duration(f.lag.Load()),
		Batches: f.batches.Load(), Gaps: f.gaps.Load(), Replays: f.replays.Load(), Failures: f.failures.Load(), Orphans: f.orphans.Load(),
	}
}

func (f *Follower) set(s State, err error) {
	f.mu.Lock()
	changed := f.state != s || err != nil && f.err != err.Error()
	if f.state != s {
		f.state, f.since = s, time.Now()
	}
	switch {
	case err != nil:
		f.err = err.Error()
	case s == Live:
		f.err = ""
	}
	f.mu.Unlock()
	if changed && f.log != nil {
		f.log(s, err)
	}
}

// The pauses between connections, and the bounds of one.
const (
	firstPause = 500 * time.Millisecond
	longPause  = 10 * time.Second
	// syncTimeout bounds how long the past events may take to come, in all.
	syncTimeout = 15 * time.Second
	// replayQuiet bounds how long a replay may say nothing: an engine looks for requests each 100 ms,
	// and between its steps.
	replayQuiet = 5 * time.Second
	// maxReplays is how often it is asked for what is still missing, in one go: an engine
	// drops what is not read fast enough.
	maxReplays = 5
)

// Run follows the source until ctx ends.
func (f *Follower) Run(ctx context.Context) {
	pause := firstPause
	for ctx.Err() == nil {
		begin := time.Now()
		err := f.session(ctx)
		f.view.Store(nil)
		if ctx.Err() != nil {
			return
		}
		f.failures.Add(1)
		f.set(Connecting, err)
		if time.Since(begin) > longPause {
			pause = firstPause
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(float64(pause) * (0.8 + 0.4*rand.Float64()))):
		}
		pause = min(2*pause, longPause)
	}
}

// message is one of a source's.
type message struct {
	seq     uint64
	payload []byte
}

// endOfReplay is the number of the message behind the last one.
const endOfReplay = math.MaxUint64

// parse reads topic, number and payload.
func parse(frames [][]byte) (m message, err error) {
	if len(frames) != 3 || len(frames[1]) != 8 {
		return m, malformed("a message of %d frames is not topic, number and events", len(frames))
	}
	return message{binary.BigEndian.Uint64(frames[1]), frames[2]}, nil
}

// errGap says that messages are missing.
var errGap = errors.New("events are missing")

// session is one connection, to its end.
func (f *Follower) session(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	live, err := zmtp.Dial(ctx, f.source.Endpoint, zmtp.Sub)
	if err != nil {
		return err
	}
	defer live.Close()
	if err := live.Subscribe(f.source.Topic); err != nil {
		return err
	}
	q := newQueue()
	var reading sync.WaitGroup
	defer reading.Wait()
	defer cancel(nil)
	reading.Go(func() { cancel(q.fill(ctx, live)) })
	f.set(Syncing, nil)
	s := &session{f: f}
	defer s.drop()
	for {
		if err := s.sync(ctx); err != nil {
			return orCause(ctx, err)
		}
		f.view.Store(s.view)
		f.set(Live, nil)
		err := s.follow(ctx, q)
		f.view.Store(nil) // at once: nothing is sure now
		if !errors.Is(err, errGap) {
			return orCause(ctx, err)
		}
		f.gaps.Add(1)
		f.set(Syncing, nil)
	}
}

// orCause returns why the context ended, if that is why err is there.
func orCause(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && errors.Is(err, context.Canceled) {
		return cause
	}
	return err
}

// session is what is known in one connection.
type session struct {
	f    *Follower
	view *View
	next uint64 // the number of the message that is due
	d    Decoder
}

func (s *session) drop() {
	if s.view != nil {
		s.view.Drop()
		s.view = nil
		s.f.blocks.Store(0)
	}
}

// apply changes the view by the next message.
func (s *session) apply(m message) error {
	var fault error
	made, err := s.d.Decode(m.payload, func(e *Event) {
		if e.Type == Stored {
			s.f.blockSize.Store(int64(e.BlockSize))
		}
		if fault == nil {
			fault = s.view.Apply(e)
		}
	})
	if err != nil {
		return err
	}
	s.next = m.seq + 1
	s.f.batches.Add(1)
	s.f.blocks.Store(int64(s.view.Blocks()))
	s.f.orphans.Store(s.view.Orphans)
	if made > 0 {
		s.f.lag.Store(int64(time.Since(time.UnixMicro(int64(made * 1e6)))))
	}
	return fault
}

// sync brings the view up to date with what the source has sent so far: from where it stands, if the
// source still has that, or else from as far back as it has.
func (s *session) sync(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, syncTimeout)
	defer cancel()
	if s.f.source.Replay == "" {
		s.drop()
		s.view = s.f.index.NewView()
		s.next = unknown
		return nil
	}
	for range maxReplays {
		done, err := s.replay(ctx)
		if err != nil || done {
			return err
		}
	}
	return fmt.Errorf("%w: %d requests for past events were not answered in full", errGap, maxReplays)
}

// unknown is the number that is due where any may come first.
const unknown = math.MaxUint64

// replay asks once for past events. It returns false if some are missing among those that came.
func (s *session) replay(ctx context.Context) (done bool, err error) {
	s.f.replays.Add(1)
	c, err := zmtp.Dial(ctx, s.f.source.Replay, zmtp.Dealer)
	if err != nil {
		return false, err
	}
	defer c.Close()
	anew := s.view == nil
	from := s.next
	if anew {
		from = 0
	}
	if err := c.Send(nil, binary.BigEndian.AppendUint64(nil, from)); err != nil {
		return false, err
	}
	first := true
	for {
		m, err := receive(ctx, c)
		if err != nil {
			return false, err
		}
		if m.seq == endOfReplay {
			if anew && s.view == nil { // there were none yet
				s.view, s.next = s.f.index.NewView(), 0
			}
			return true, nil
		}
		switch {
		case first && anew:
			s.view, s.next = s.f.index.NewView(), m.seq // what was before is gone
		case first && m.seq > from: // the source has forgotten what is missing here
			s.drop()
			return false, nil
		case m.seq < s.next:
			continue
		case m.seq > s.next:
			return false, nil
		}
		first = false
		if err := s.apply(m); err != nil {
			return false, err
		}
	}
}

// receive returns the next answer of a replay.
func receive(ctx context.Context, c *zmtp.Conn) (message, error) {
	ctx, cancel := context.WithTimeout(ctx, replayQuiet)
	defer cancel()
	frames, err := c.Receive(ctx)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return message{}, errors.New("the replay of past events stopped before its end")
	case err != nil:
		return message{}, fmt.Errorf("replay: %w", err)
	case len(frames) > 0 && len(frames[0]) == 0:
		frames = frames[1:]
	}
	return parse(frames)
}

// follow applies live messages until there is a gap, or an error.
func (s *session) follow(ctx context.Context, q *queue) error {
	for {
		m, err := q.take(ctx)
		switch {
		case err != nil:
			return err
		case s.next == unknown:
			s.next = m.seq
		case m.seq < s.next: // it came with the replay
			continue
		case m.seq > s.next:
			return fmt.Errorf("%w: %d came after %d", errGap, m.seq, s.next-1)
		}
		if err := s.apply(m); err != nil {
			return err
		}
	}
}
