package sim

import (
	"encoding/binary"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/llmgw/llmgw/agent/zmtp"
)

// kvBuffer is how many batches of events are kept for who asks for them again, as vLLM's
// buffer_steps, and kvHighWater how many wait for a subscriber, as its hwm.
const (
	kvBuffer    = 10_000
	kvHighWater = 100_000
)

// kvEvents publishes what happens to one rank's cached blocks, as vLLM does with
// --kv-events-config: batches of map events over PUB, and those of before over ROUTER to who asks. It
// is one of a life of the engine: another begins to count anew.
type kvEvents struct {
	topic   string
	rank    int
	pub     *zmtp.Publisher
	replier *zmtp.Replier

	pending []byte // of the step that is under way; under the rank's mutex, as count
	count   int

	mu     sync.Mutex
	seq    uint64
	buffer [][]byte // the last batches; that of number n is at n % kvBuffer
}

// newKVEvents binds the sockets of a rank: its ports are that of the config and its number more.
func newKVEvents(cfg *Config, rank int) (*kvEvents, error) {
	k := &kvEvents{topic: cfg.KVEventsTopic, rank: rank}
	publish, err := rankAddress(cfg.KVEvents, rank)
	if err != nil {
		return nil, err
	}
	if k.pub, err = zmtp.NewPublisher(publish, kvHighWater); err != nil {
		return nil, err
	}
	if cfg.KVEventsReplay == "" {
		return k, nil
	}
	replay, err := rankAddress(cfg.KVEventsReplay, rank)
	if err == nil {
		k.replier, err = zmtp.NewReplier(replay, k.answer)
	}
	if err != nil {
		k.close()
		return nil, err
	}
	return k, nil
}

// rankAddress adds the rank to the port of an address; port 0 stays, and takes one that is free.
func rankAddress(address string, rank int) (string, error) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "tcp" {
		return "", fmt.Errorf("address %q: want tcp://host:port", address)
	}
	port, err := strconv.ParseUint(u.Port(), 10, 16)
	if err != nil {
		return "", fmt.Errorf("address %q: want tcp://host:port", address)
	}
	if port > 0 {
		port += uint64(rank)
	}
	return "tcp://" + net.JoinHostPort(u.Hostname(), strconv.FormatUint(port, 10)), nil
}

func (k *kvEvents) close() {
	if k == nil {
		return
	}
	k.pub.Close()
	if k.replier != nil {
		k.replier.Close()
	}
}

// The events. They need the rank's mutex, and do nothing for a nil kvEvents.

func (k *kvEvents) cleared() {
	if k == nil {
		return
	}
	k.pending = packText(packText(append(k.pending, 0x81), "type"), "AllBlocksCleared")
	k.count++
}

func (k *kvEvents) removed(hash uint64) {
	if k == nil {
		return
	}
	b := k.pending
	b = append(b, 0x84)
	b = packText(packText(b, "type"), "BlockRemoved")
	b = packInt(append(packText(b, "block_hashes"), 0x91), hash)
	b = packText(packText(b, "medium"), "GPU")
	k.pending = packInt(packText(b, "group_idx"), 0)
	k.count++
}

// stored notes that the blocks from (included) to to (excluded) of s have their hashes.
func (k *kvEvents) stored(s *sequence, from, to, blockSize int) {
	if k == nil || from == to {
		return
	}
	b := k.pending
	b = append(b, 0x8b)
	b = packText(packText(b, "type"), "BlockStored")
	b = packList(packText(b, "block_hashes"), to-from)
	for _, h := range s.hashes[from:to] {
		b = packInt(b, h)
	}
	if b = packText(b, "parent_block_hash"); from > 0 {
		b = packInt(b, s.hashes[from-1])
	} else {
		b = append(b, packNil)
	}
	b = packList(packText(b, "token_ids"), (to-from)*blockSize)
	for i := from * blockSize; i < to*blockSize; i++ {
		b = packInt(b, uint64(s.token(i)))
	}
	b = packInt(packText(b, "block_size"), uint64(blockSize))
	b = append(packText(b, "lora_id"), packNil)
	b = packText(packText(b, "medium"), "GPU")
	if b = packText(b, "lora_name"); s.lora != "" {
		b = packText(b, s.lora)
	} else {
		b = append(b, packNil)
	}
	b = packList(packText(b, "extra_keys"), to-from)
	for i := from; i < to; i++ {
		var extra []string
		if s.lora != "" {
			extra = append(extra, s.lora)
		}
		if i == 0 && s.salt != "" {
			extra = append(extra, s.salt)
		}
		if extra == nil {
			b = append(b, packNil)
			continue
		}
		b = packList(b, len(extra))
		for _, text := range extra {
			b = packText(b, text)
		}
	}
	b = packInt(packText(b, "group_idx"), 0)
	k.pending = packText(packText(b, "kv_cache_spec_kind"), "full_attention")
	k.count++
}

// flush publishes the events of a step.
func (k *kvEvents) flush(now time.Time) {
	if k == nil || k.count == 0 {
		return
	}
	b := append(make([]byte, 0, len(k.pending)+32), 0x93, 0xcb)
	b = binary.BigEndian.AppendUint64(b, math.Float64bits(float64(now.UnixMicro())/1e6))
	b = append(packList(b, k.count), k.pending...)
	b = packInt(b, uint64(k.rank))
	k.pending, k.count = k.pending[:0], 0

	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.buffer) < kvBuffer {
		k.buffer = append(k.buffer, b)
	} else {
		k.buffer[k.seq%kvBuffer] = b
	}
	k.pub.Publish([]byte(k.topic), binary.BigEndian.AppendUint64(nil, k.seq), b)
	k.seq++
}

// answer sends the batches from a number on, and then the end.
func (k *kvEvents) answer(request [][]byte, reply func(...[]byte) error) {
	if len(request) != 2 || len(request[0]) != 0 || len(request[1]) != 8 {
		return // as vLLM, which logs it
	}
	k.mu.Lock()
	to := k.seq
	k.mu.Unlock()
	from := binary.BigEndian.Uint64(request[1])
	if to > kvBuffer {
		from = max(from, to-kvBuffer)
	}
	for n := from; n < to; n++ {
		k.mu.Lock()
		b := k.buffer[n%kvBuffer]
		k.mu.Unlock()
		if reply(nil, []byte(k.topic), binary.BigEndian.AppendUint64(nil, n), b) != nil {
			return
		}
	}
	_ = reply(nil, nil, binary.BigEndian.AppendUint64(nil, math.MaxUint64), nil)
}

// kvEventSources serves /kv_event_sources: where each rank publishes.
func (x *call) kvEventSources() {
	type source struct {
		Endpoint string  `json:"endpoint"`
		Replay   *string `json:"replay_endpoint"`
		Topic    string  `json:"topic"`
	}
	all := make(map[string]source)
	for i, r := range x.core.ranks {
		if k := r.events; k != nil {
			s := source{Endpoint: k.pub.Address(), Topic: k.topic}
			if k.replier != nil {
				replay := k.replier.Address()
				s.Replay = &replay
			}
			all[strconv.Itoa(i)] = s
		}
	}
	x.json(http.StatusOK, all)
}

// What follows writes MessagePack.

const packNil = 0xc0

func packInt(b []byte, n uint64) []byte {
	switch {
	case n < 1<<7:
		return append(b, byte(n))
	case n < 1<<16:
		return binary.BigEndian.AppendUint16(append(b, 0xcd), uint16(n))
	case n < 1<<32:
		return binary.BigEndian.AppendUint32(append(b, 0xce), uint32(n))
	}
	return binary.BigEndian.AppendUint64(append(b, 0xcf), n)
}

func packText(b []byte, s string) []byte {
	if len(s) < 32 {
		return append(append(b, 0xa0|byte(len(s))), s...)
	}
	return append(binary.BigEndian.AppendUint16(append(b, 0xda), uint16(len(s))), s...)
}

func packList(b []byte, n int) []byte {
	if n < 16 {
		return append(b, 0x90|byte(n))
	}
	return binary.BigEndian.AppendUint32(append(b, 0xdd), uint32(n))
}
