package kvevents

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/llmgw/llmgw/agent/zmtp"
)

// engine publishes events as vLLM does: live ones, and those of a buffer to who asks.
type engine struct {
	t       testing.TB
	pub     *zmtp.Publisher
	replier *zmtp.Replier
	address [2]string

	mu     sync.Mutex
	seq    uint64
	buffer map[uint64][]byte
	first  uint64 // that the buffer has
	// faults of the next replays
	cut    int // they end after so many messages, without the end; 0 is none
	skip   uint64
	broken int // how many are
	asked  int
}

func newEngine(t testing.TB) *engine {
	t.Helper()
	e := &engine{t: t, address: [2]string{"tcp://127.0.0.1:0", "tcp://127.0.0.1:0"}}
	e.start()
	t.Cleanup(e.stop)
	return e
}

// start begins with nothing, as a process does.
func (e *engine) start() {
	var err error
	e.mu.Lock()
	e.seq, e.first, e.buffer = 0, 0, make(map[uint64][]byte)
	e.mu.Unlock()
	if e.pub, err = zmtp.NewPublisher(e.address[0], 1000); err != nil {
		e.t.Fatal(err)
	}
	if e.replier, err = zmtp.NewReplier(e.address[1], e.replay); err != nil {
		e.t.Fatal(err)
	}
	e.address = [2]string{e.pub.Address(), e.replier.Address()}
}

func (e *engine) stop() {
	e.pub.Close()
	e.replier.Close()
}

func (e *engine) source() Source {
	return Source{Endpoint: e.address[0], Replay: e.address[1], Topic: "kv@"}
}

// record makes an event the next one, and publishes it unless it is to be lost.
func (e *engine) record(event string, lost bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	payload := []byte(packArray(packTime, packArray(event), packInt(0)))
	number := binary.BigEndian.AppendUint64(nil, e.seq)
	e.buffer[e.seq] = payload
	e.seq++
	if !lost {
		e.pub.Publish([]byte("kv@m"), number, payload)
	}
}

// store makes the engine have the blocks of a prompt, each of two tokens, and returns their keys.
func (e *engine) store(first uint64, blocks int, lost bool) []uint64 {
	var hashes, tokens []uint64
	var text []uint32
	for i := range uint64(blocks) {
		hashes = append(hashes, first+i)
		tokens = append(tokens, first, i)
		text = append(text, uint32(first), uint32(i))
	}
	e.record(packMap(packText("type"), packText("BlockStored"), packText("block_hashes"), packInts(hashes...), packText("parent_block_hash"), packNil,
		packText("token_ids"), packInts(tokens...), packText("block_size"), packInt(2)), lost)
	return Keys(nil, text, 2, "", "")
}

func (e *engine) remove(lost bool, hashes ...uint64) {
	e.record(packMap(packText("type"), packText("BlockRemoved"), packText("block_hashes"), packInts(hashes...)), lost)
}

func (e *engine) replay(m [][]byte, reply func(...[]byte) error) {
	if len(m) != 2 || len(m[0]) != 0 || len(m[1]) != 8 {
		return
	}
	e.mu.Lock()
	e.asked++
	from, to := max(binary.BigEndian.Uint64(m[1]), e.first), e.seq
	all := make([][]byte, 0, to)
	for seq := from; seq < to; seq++ {
		all = append(all, e.buffer[seq])
	}
	cut, skip := 0, uint64(0)
	if e.broken > 0 {
		e.broken--
		cut, skip = e.cut, e.skip
	}
	e.mu.Unlock()
	for i, payload := range all {
		seq := from + uint64(i)
		if cut > 0 && i == cut {
			return
		}
		if skip > 0 && seq == skip {
			continue
		}
		if reply(nil, []byte("kv@m"), binary.BigEndian.AppendUint64(nil, seq), payload) != nil {
			return
		}
	}
	_ = reply(nil, nil, binary.BigEndian.AppendUint64(nil, endOfReplay), nil)
}

// follow follows an engine until the test ends.
func follow(t testing.TB, x *Index, s Source) *Follower {
	t.Helper()
	f := NewFollower(x, s, nil)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		f.Run(ctx)
		close(done)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
		if f.View() != nil {
			t.Error("it has a view when it has ended")
		}
	})
	return f
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for range 3000 {
		if ok() {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatalf("not so: %s", what)
}

// has returns how many of the blocks are found, below 0 while nobody is sure.
func has(x *Index, f *Follower, keys []uint64) int {
	v := f.View()
	if v == nil {
		return -1
	}
	credits := make([]float64, 1)
	x.Match(keys, []*View{v}, credits)
	return int(credits[0])
}

// TestFollow: what was stored before and after it began is known, and what is removed is not.
func TestFollow(t *testing.T) {
	e, x := newEngine(t), NewIndex(1<<20)
	before := e.store(100, 5, false)
	e.remove(false, 104)
	f := follow(t, x, e.source())
	eventually(t, "it knows what was before", func() bool { return has(x, f, before) == 4 })
	after := e.store(200, 3, false)
	eventually(t, "it knows what came", func() bool { return has(x, f, after) == 3 })
	e.record(packMap(packText("type"), packText("AllBlocksCleared")), false)
	eventually(t, "it knows that nothing is left", func() bool { return has(x, f, before) == 0 && has(x, f, after) == 0 })
	if s := f.Status(); s.State != Live || s.Batches != 4 || s.Replays != 1 || s.Gaps+s.Failures != 0 || f.BlockSize() != 2 {
		t.Errorf("%+v", s)
	}
}

// TestFollowGap: events that are lost on the way are asked for, and until they are there nothing
// is taken for sure.
func TestFollowGap(t *testing.T) {
	e, x := newEngine(t), NewIndex(1<<20)
	keys := e.store(100, 5, false)
	f := follow(t, x, e.source())
	eventually(t, "it follows", func() bool { return has(x, f, keys) == 5 })
	e.remove(true, 103, 104)
	lost := e.store(200, 3, true)
	e.store(300, 1, false)
	eventually(t, "it knows what was lost", func() bool { return has(x, f, keys) == 3 && has(x, f, lost) == 3 })
	if s := f.Status(); s.Gaps != 1 || s.Replays != 2 || s.Failures != 0 {
		t.Errorf("%+v", s)
	}
	// The buffer is shorter than the gap: all is asked for anew, and what is not known is not credited.
	e.remove(true, 100, 101, 102)
	e.mu.Lock()
	e.first = e.seq
	e.mu.Unlock()
	e.store(400, 1, true)
	last := e.store(500, 2, false)
	eventually(t, "it begins anew", func() bool { return has(x, f, last) == 2 })
	if n := has(x, f, keys); n != 0 {
		t.Errorf("%d blocks are credited that are not there", n)
	}
}

// TestFollowLossyReplay: an engine drops what is not read fast enough, and its end is not the end.
func TestFollowLossyReplay(t *testing.T) {
	for name, fault := range map[string]func(e *engine){
		"a hole":      func(e *engine) { e.skip, e.broken = 3, 1 },
		"many holes":  func(e *engine) { e.skip, e.broken = 3, 2 },
		"without end": func(e *engine) { e.cut, e.broken = 4, 1 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e, x := newEngine(t), NewIndex(1<<20)
			var all [][]uint64
			for i := range uint64(10) {
				all = append(all, e.store(100*(i+1), 2, false))
			}
			e.remove(false, 101)
			fault(e)
			f := follow(t, x, e.source())
			eventually(t, "it knows all", func() bool {
				for i, keys := range all {
					if n := has(x, f, keys); n != 2 && (i > 0 || n != 1) {
						return false
					}
				}
				return true
			})
		})
	}
}

// TestR18_RestartedEngine: of an engine that has restarted nothing is known but what it says itself.
func TestR18_RestartedEngine(t *testing.T) {
	e, x := newEngine(t), NewIndex(1<<20)
	keys := e.store(100, 5, false)
	f := follow(t, x, e.source())
	eventually(t, "it follows", func() bool { return has(x, f, keys) == 5 })
	e.stop()
	eventually(t, "it is not sure any more", func() bool { return f.View() == nil })
	e.start()
	for i := range uint64(5) { // more than before
		e.store(1000*(i+1), 1, false)
	}
	eventually(t, "it follows again", func() bool { return f.View() != nil })
	if n := has(x, f, keys); n != 0 {
		t.Errorf("%d blocks are credited that are gone", n)
	}
	if s := f.Status(); s.Failures == 0 || s.State != Live {
		t.Errorf("%+v", s)
	}
}

// TestFollowNothing: an engine that is not there, or is none, or says nothing, is not known, and all
// that it costs is a connection now and then.
func TestFollowNothing(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	mute := "tcp://" + ln.Addr().String()
	defer ln.Close()
	e, x := newEngine(t), NewIndex(1<<20)
	for name, s := range map[string]Source{
		"nobody":      {Endpoint: "tcp://127.0.0.1:1", Replay: "tcp://127.0.0.1:1"},
		"mute":        {Endpoint: mute, Replay: mute},
		"no replay":   {Endpoint: e.address[0], Replay: "tcp://127.0.0.1:1"},
		"mute replay": {Endpoint: e.address[0], Replay: mute},
		"ipc":         {Endpoint: "ipc:///tmp/x"},
	} {
		f := follow(t, x, s)
		if name == "mute" || name == "mute replay" {
			continue // its time limits are long
		}
		eventually(t, name+": it fails", func() bool { return f.Status().Failures > 0 })
		if f.View() != nil || f.Status().Error == "" {
			t.Errorf("%s: %+v", name, f.Status())
		}
	}
}

// TestFollowWithoutReplay: what comes is known; of what was before nothing is.
func TestFollowWithoutReplay(t *testing.T) {
	e, x := newEngine(t), NewIndex(1<<20)
	before := e.store(100, 2, false)
	s := e.source()
	s.Replay = ""
	f := follow(t, x, s)
	eventually(t, "it listens", func() bool { return e.pub.Subscribers() == 1 && f.View() != nil })
	after := e.store(200, 2, false)
	eventually(t, "it knows what came", func() bool { return has(x, f, after) == 2 })
	if n := has(x, f, before); n != 0 {
		t.Errorf("%d blocks of before are credited", n)
	}
	e.store(300, 1, true)
	e.store(400, 1, false)
	eventually(t, "a gap makes it begin anew", func() bool { return has(x, f, after) == 0 && f.Status().Gaps == 1 })
}

// TestHostileEvents: a publisher of nonsense, of blocks without end, or of what takes long, is
// dropped, and what it takes is bounded.
func TestHostileEvents(t *testing.T) {
	for name, c := range map[string]struct {
		publish func(e *engine, i uint64)
		want    string
	}{
		"nonsense":        {func(e *engine, i uint64) { e.record("\xc1", false) }, "begins nothing"},
		"blocks for ever": {func(e *engine, i uint64) { e.store(i*1000, 100, false) }, "more KV blocks"},
	} {
		t.Run(name, func(t *testing.T) {
			e, x := newEngine(t), NewIndex(pairBytes*1000)
			f := follow(t, x, e.source())
			eventually(t, "it follows", func() bool { return f.View() != nil })
			for i := uint64(1); f.Status().Failures == 0; i++ {
				c.publish(e, i)
				if x.Size() > 1000 {
					t.Fatalf("%d pairs", x.Size())
				}
				if i%100 == 0 {
					time.Sleep(time.Millisecond)
				}
			}
			eventually(t, fmt.Sprintf("it says %q", c.want), func() bool {
				return f.View() == nil && strings.Contains(f.Status().Error, c.want)
			})
		})
	}
}
