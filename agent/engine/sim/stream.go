package sim

import (
	"net/http"
	"strconv"
)

// inbandError is the frame that vLLM sends when its engine dies in mid-stream,
// spaces included.
const inbandError = `data: {"error": {"message": "EngineCore encountered an issue. See stack trace (above) for the root cause.", "type": "InternalServerError", "param": null, "code": 500}}` + "\n\n"

const doneFrame = "data: [DONE]\n\n"

// frames writes one response as server-sent events. All methods append to buf.
type frames interface {
	// open begins the stream; it is called when the first token is there.
	open(buf []byte) []byte
	// token writes the output token at of the i-th sequence; finish is its
	// finish_reason where it is the last one. A sequence that ends without a
	// token of its own gets at == its count so far.
	token(buf []byte, i, at int, finish string) []byte
	// close ends the stream after all sequences ended.
	close(buf []byte) []byte
}

// stream runs j and sends its tokens as they come, one event each and one
// write for all that are there.
func (x *call) stream(j *job, f frames) {
	if bad := x.start(j); bad != nil {
		x.fail(bad)
		return
	}
	x.w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	x.w.WriteHeader(http.StatusOK)
	rc := http.NewResponseController(x.w)
	var buf []byte
	send := func() bool {
		_, err := x.w.Write(buf)
		if err == nil {
			err = rc.Flush()
		}
		buf = buf[:0]
		return err == nil
	}
	if !send() {
		j.rank.abort(j)
		return
	}
	budget := -1 // tokens until the fault strikes
	if x.fault.Mode == ModeBreak || x.fault.Mode == ModeInbandError {
		budget = max(x.fault.AfterTokens, 0)
	}
	sent, opened := make([]int, len(j.seqs)), false
	ended := make([]bool, len(j.seqs))
	for left := len(j.seqs); left > 0; {
		select {
		case <-j.bell:
		case <-x.r.Context().Done():
			j.rank.abort(j)
			return
		}
		for i, s := range j.seqs {
			if ended[i] {
				continue
			}
			have, end := s.look()
			if !opened && (have > 0 || end == endAbort) {
				opened, buf = true, f.open(buf)
			}
			if end == endDead {
				x.cut()
				return
			}
			for ; sent[i] < have; sent[i]++ {
				if budget == 0 {
					x.strike(j, buf, rc)
					return
				}
				budget--
				finish := ""
				if sent[i]+1 == have && end == endDone {
					finish, ended[i] = s.out.finish, true
				}
				buf = f.token(buf, i, sent[i], finish)
			}
			if end == endAbort {
				ended[i] = true
				buf = f.token(buf, i, have, "abort")
			}
			if ended[i] {
				left--
			}
		}
		if left == 0 {
			buf = f.close(buf)
		}
		if !send() {
			j.rank.abort(j)
			return
		}
	}
}

// strike ends a stream as its fault says.
func (x *call) strike(j *job, buf []byte, rc *http.ResponseController) {
	j.rank.abort(j)
	if x.fault.Mode == ModeInbandError {
		buf = append(append(buf, inbandError...), doneFrame...)
	}
	_, _ = x.w.Write(buf) // the stream is over in any case
	_ = rc.Flush()
	if x.fault.Mode == ModeBreak {
		x.cut()
	}
}

// appendString appends s as a JSON string. What the engine streams is ASCII
// without escapes, but ids come from clients.
func appendString(dst []byte, s string) []byte {
	plain := true
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' || s[i] == '"' || s[i] == '\\' {
			plain = false
			break
		}
	}
	if plain {
		dst = append(dst, '"')
		dst = append(dst, s...)
		return append(dst, '"')
	}
	return append(dst, marshal(s)...)
}

func appendInt(dst []byte, v int) []byte { return strconv.AppendInt(dst, int64(v), 10) }
