package openai

import "bytes"

// Result is what a Tap or a Unary has seen so far.
type Result struct {
	Usage     Usage
	HaveUsage bool
	// Events counts the events in which the model said something: about the completion tokens, when
	// no usage ever comes. Unary leaves it 0.
	Events      int64
	Finish      string // why the last choice ended, as the engine put it; at most 64 bytes
	Done        bool   // the end mark was seen: [DONE], response.completed, message_stop
	Aborted     bool   // a choice ended with "abort": the engine dropped the request
	ErrorFrame  bool   // an error object came under HTTP 200
	ClientError bool   // and its code says that the client is to blame: a 4xx
	// Complete says that the answer ended as it should: the body came to its end, with an end mark if
	// the stream is of a kind that has one, and without abort or error.
	Complete bool
	Bytes    int64 // read from the engine
	Withheld int64 // bytes of them that the client did not get
}

const maxFinish = 64

// add merges what an event or an answer has said, except for its content.
func (r *Result) add(f *facts) {
	if f.haveUsage {
		r.Usage.merge(f.usage)
		r.HaveUsage = true
	}
	if len(f.finish) > 0 && string(f.finish) != r.Finish {
		r.Finish = string(bytes.ToValidUTF8(f.finish[:min(len(f.finish), maxFinish)], nil))
	}
	r.Aborted = r.Aborted || f.aborted
	r.ErrorFrame = r.ErrorFrame || f.errored
	r.ClientError = r.ClientError || f.errored && f.clients
}

// tailFacts reads usage and finish reason from the end of a JSON text whose start is not known: the
// last members of these names. A name with its quotes cannot stand inside a JSON string, where
// quotes are escaped, so an answer that talks about "usage" does not mislead it.
func tailFacts(b []byte) facts {
	var f facts
	if i := lastMember(b, `"usage"`, '{'); i >= 0 {
		m := members{b: b, i: i}
		f.readUsage(&m)
	}
	if i := lastMember(b, `"finish_reason"`, '"'); i >= 0 {
		m := members{b: b, i: i}
		f.readFinish(&m)
	}
	return f
}

// lastMember returns the offset of the last value that begins with the byte kind and belongs to the
// quoted name, or -1.
func lastMember(b []byte, name string, kind byte) int {
	for end := len(b); ; {
		end = bytes.LastIndex(b[:end], []byte(name))
		if end < 0 {
			return -1
		}
		i := skipSpace(b, end+len(name))
		if end > 0 && b[end-1] == '\\' || i == len(b) || b[i] != ':' {
			continue
		}
		if i = skipSpace(b, i+1); i < len(b) && b[i] == kind {
			return i
		}
	}
}
