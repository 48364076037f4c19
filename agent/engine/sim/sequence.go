package sim

import (
	"bytes"
	"encoding/binary"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"
)

// How a sequence ended.
const (
	endNone   int32 = iota
	endDone         // by its own plan
	endAbort        // the engine shuts down: finish_reason "abort"
	endDead         // the engine is gone: nothing more will come
	endClient       // the client left
)

// Where a sequence is.
type seqState uint8

const (
	seqWaiting seqState = iota
	seqRunning
	seqOver
)

// output is the whole future of a sequence: since the pseudo text is a pure
// function, how it ends is known before the first token is computed.
type output struct {
	seed   uint64
	count  int    // tokens that it will produce; 0: prefill only (pooling)
	bytes  int    // length of its text, less than all where a stop string cuts
	finish string // finish_reason: stop or length
	stop   string // the stop string that ended it, if one did
	eos    bool   // the last token ends the text and has none itself
}

// token is the id of the i-th output token.
func (o *output) token(i int) uint32 {
	if o.eos && i == o.count-1 {
		return tokenEnd
	}
	return outputToken(o.seed, i)
}

// appendText appends the text of the output tokens from (included) to to
// (excluded).
func (o *output) appendText(dst []byte, from, to int) []byte {
	visible := o.count
	if o.eos {
		visible--
	}
	start := len(dst)
	dst = appendOutput(dst, o.seed, from, max(from, min(to, visible)))
	if over := from*maxTokenBytes + len(dst) - start - o.bytes; over > 0 {
		dst = dst[:max(start, len(dst)-over)]
	}
	return dst
}

// limits is what a request asks of its output.
type limits struct {
	maxTokens   int
	minTokens   int
	ignoreEOS   bool
	stop        []string
	includeStop bool
}

// planOutput decides where the output under seed ends: at a stop string, at its
// natural length (mean tokens, from half to one and a half of it) or at
// maxTokens, whichever comes first.
func planOutput(seed uint64, mean int, l limits) output {
	natural := max(1, mean/2+int(mix(seed)%uint64(mean+1)), l.minTokens)
	o := output{seed: seed, count: l.maxTokens, finish: "length"}
	visible := o.count
	if !l.ignoreEOS && natural < l.maxTokens {
		o.count, o.finish, o.eos = natural+1, "stop", true
		visible = natural
	}
	o.bytes = visible * maxTokenBytes
	if len(l.stop) == 0 {
		return o
	}
	longest := 0
	for _, s := range l.stop {
		longest = max(longest, len(s))
	}
	var text []byte
	for i := range visible {
		text = appendOutput(text, seed, i, i+1)
		if i+1 < l.minTokens {
			continue
		}
		tail := max(0, len(text)-longest-maxTokenBytes+1)
		at, found := len(text), ""
		for _, s := range l.stop {
			if j := bytes.Index(text[tail:], []byte(s)); j >= 0 && tail+j < at {
				at, found = tail+j, s
			}
		}
		if found == "" {
			continue
		}
		if l.includeStop {
			at += len(found)
		}
		return output{seed: seed, count: i + 1, bytes: at, finish: "stop", stop: found}
	}
	return o
}

// sequence is one prompt on its way to one output. Its rank owns it from submit
// on, under its mutex. The request may look at any time, and read cached and
// created once it saw a token or the end.
type sequence struct {
	prompt   []uint32
	hashes   []uint64 // chain of the full blocks of prompt and output
	hashSeed uint64
	lora     string
	salt     string
	out      output
	job      *job

	state    seqState
	computed int // tokens whose KV the blocks hold
	filled   int // blocks that have their hash
	blocks   []blockID
	cached   int // prompt tokens that the cache held at the first schedule
	created  int // prompt tokens that it added to the cache
	started  bool
	arrived  time.Time
	last     time.Time // of the latest token

	produced int // tokens so far

	news atomic.Uint64 // for the request: produced, and the end above it
}

// publish shows the request how many tokens there are and, where it is not
// endNone, how the sequence ended. Both are one word: a request that saw the
// last token without the end would wait for more.
func (s *sequence) publish(end int32) {
	s.news.Store(uint64(end)<<32 | uint64(s.produced))
	s.job.ring()
}

// look returns what was published last.
func (s *sequence) look() (produced int, end int32) {
	v := s.news.Load()
	return int(uint32(v)), int32(v >> 32)
}

// known is the number of tokens that the sequence has so far.
func (s *sequence) known() int { return len(s.prompt) + s.produced }

// token is the token at a position below known.
func (s *sequence) token(pos int) uint32 {
	if pos < len(s.prompt) {
		return s.prompt[pos]
	}
	return s.out.token(pos - len(s.prompt))
}

// extend brings the chain of hashes to all full blocks among the first upto
// tokens. A hash covers the parent's hash and the ids of the block; it is
// never 0.
func (s *sequence) extend(upto, blockSize int) {
	var buf []byte
	for n := len(s.hashes); (n+1)*blockSize <= upto; n++ {
		parent := s.hashSeed
		if n > 0 {
			parent = s.hashes[n-1]
		}
		buf = binary.LittleEndian.AppendUint64(buf[:0], parent)
		for i := n * blockSize; i < (n+1)*blockSize; i++ {
			buf = binary.LittleEndian.AppendUint32(buf, s.token(i))
		}
		s.hashes = append(s.hashes, max(xxhash.Sum64(buf), 1))
	}
}

// job is the sequences of one request and the bell that rings at their news.
type job struct {
	seqs []*sequence
	rank *rank
	bell chan struct{} // capacity 1: news since the last look
}

func newJob(seqs ...*sequence) *job {
	j := &job{seqs: seqs, bell: make(chan struct{}, 1)}
	for _, s := range seqs {
		s.job = j
	}
	return j
}

func (j *job) ring() {
	select {
	case j.bell <- struct{}{}:
	default:
	}
}

// over says whether all sequences have ended.
func (j *job) over() bool {
	for _, s := range j.seqs {
		if _, end := s.look(); end == endNone {
			return false
		}
	}
	return true
}
