package sim

import (
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"mime"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// maxBody is the largest request body in bytes; vLLM itself has no limit.
const maxBody = 64 << 20

// route is what a path answers, by method.
type route map[string]func(*call)

// call is one HTTP request on its way.
type call struct {
	e         *Engine
	core      *core
	w         http.ResponseWriter
	r         *http.Request
	body      []byte
	fault     Fault // the fault that hits this request
	anthropic bool  // errors after validation have Anthropic's shape
}

// table lists the paths of rank 0.
func (e *Engine) table() map[string]route {
	get := func(f func(*call)) route { return route{http.MethodGet: f} }
	post := func(f func(*call)) route { return route{http.MethodPost: f} }
	body := func(f func(*call, fields)) route { return post(withFields(f)) }
	table := map[string]route{
		"/health":                   get((*call).health),
		"/ping":                     {http.MethodGet: (*call).health, http.MethodPost: (*call).health},
		"/version":                  get((*call).version),
		"/load":                     get((*call).load),
		"/server_info":              get((*call).serverInfo),
		"/metrics":                  get((*call).metrics),
		"/metrics/":                 get((*call).metrics),
		"/v1/models":                get((*call).models),
		"/v1/chat/completions":      body((*call).chat),
		"/v1/completions":           body((*call).completions),
		"/v1/responses":             body((*call).responses),
		"/v1/messages":              body((*call).messages),
		"/v1/messages/count_tokens": body((*call).countTokens),
		"/v1/embeddings":            body((*call).embeddings),
		"/pooling":                  body((*call).pooling),
		"/v1/rerank":                body((*call).rerank),
		"/rerank":                   body((*call).rerank),
		"/v1/score":                 body((*call).score),
		"/score":                    body((*call).score),
		"/v1/audio/transcriptions":  post((*call).transcriptions),
		"/kv_event_sources":         get((*call).kvEventSources),
		"/tokenize":                 body((*call).tokenize),
		"/detokenize":               body((*call).detokenize),
		"/sim/faults":               {http.MethodGet: (*call).getFaults, http.MethodPost: (*call).setFaults},
		"/sim/requests":             get((*call).requests),
		"/sim/reset":                post((*call).reset),
	}
	if e.cfg.LoRAUpdating {
		table["/v1/load_lora_adapter"], table["/v1/unload_lora_adapter"] = body((*call).loadLoRA), body((*call).unloadLoRA)
	}
	return table
}

// serve answers one HTTP request.
func (e *Engine) serve(w http.ResponseWriter, r *http.Request) {
	x := &call{e: e, core: e.core.Load(), w: w, r: r}
	w.Header().Set("Server", "uvicorn")
	if e.cfg.RequestIDHeaders {
		id := r.Header.Get("X-Request-Id")
		if id == "" {
			id = fmt.Sprintf("%016x%016x", rand.Uint64(), rand.Uint64())
		}
		w.Header().Set("X-Request-Id", id)
	}
	if !x.read() {
		return
	}
	path := r.URL.Path
	control := strings.HasPrefix(path, "/sim/")
	if !control {
		e.journal.add(r, x.body)
		if x.core.crashed.Load() {
			x.cut()
			return
		}
		if !x.allowed() {
			x.json(http.StatusUnauthorized, map[string]string{"error": "Unauthorized"})
			return
		}
	}
	w.Header().Set("Vary", "Origin")
	if !control && x.hit() {
		return
	}
	rt, ok := e.routes[path]
	if e.cfg.Rank > 0 && path != "/health" && !control {
		ok = false
	}
	if !ok {
		x.json(http.StatusNotFound, detail{"Not Found"})
		return
	}
	f, ok := rt[r.Method]
	if !ok {
		w.Header().Set("Allow", strings.Join(slices.Sorted(maps.Keys(rt)), ", "))
		x.json(http.StatusMethodNotAllowed, detail{"Method Not Allowed"})
		return
	}
	f(x)
}

// detail is the error body of the router itself.
type detail struct {
	Detail string `json:"detail"`
}

// read takes the whole body. Only then does the server notice that a client
// leaves.
func (x *call) read() bool {
	body, err := io.ReadAll(http.MaxBytesReader(x.w, x.r.Body, maxBody))
	if large := (*http.MaxBytesError)(nil); errors.As(err, &large) {
		x.json(http.StatusRequestEntityTooLarge, detail{fmt.Sprintf("Request body is larger than %d bytes", large.Limit)})
		return false
	}
	x.body = body
	return err == nil
}

// allowed checks the key, which guards /v1 alone.
func (x *call) allowed() bool {
	if x.e.cfg.APIKey == "" || !strings.HasPrefix(x.r.URL.Path, "/v1") || x.r.Method == http.MethodOptions {
		return true
	}
	want := "Bearer " + x.e.cfg.APIKey
	return subtle.ConstantTimeCompare([]byte(x.r.Header.Get("Authorization")), []byte(want)) == 1
}

// withFields reads a JSON body before f runs.
func withFields(f func(*call, fields)) func(*call) {
	return func(x *call) {
		media, _, err := mime.ParseMediaType(x.r.Header.Get("Content-Type"))
		if err != nil || media != "application/json" {
			x.fail(errMediaType)
			return
		}
		body, bad := parseFields(x.body)
		if bad != nil {
			x.fail(bad)
			return
		}
		f(x, body)
	}
}

// json answers with a JSON value.
func (x *call) json(status int, v any) {
	x.answer(status, "application/json", marshal(v))
}

// answer sends a whole body.
func (x *call) answer(status int, mediaType string, body []byte) {
	if mediaType != "" {
		x.w.Header().Set("Content-Type", mediaType)
	}
	x.w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	x.w.WriteHeader(status)
	if x.fault.Mode == ModeBreak && len(body) > 1 {
		_, _ = x.w.Write(body[:len(body)/2]) // the connection is cut in any case
		_ = http.NewResponseController(x.w).Flush()
		x.cut()
		return
	}
	_, _ = x.w.Write(body) // a client that left needs no answer
}

func (x *call) fail(e *apiError) {
	if x.anthropic {
		x.json(e.status, e.anthropic())
		return
	}
	x.json(e.status, e.body())
}

// cut resets the connection, without a proper end of the response.
func (x *call) cut() {
	conn, _, err := http.NewResponseController(x.w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler) // HTTP/2 and test recorders: the server aborts the stream
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // RST instead of FIN
	}
	_ = conn.Close()
}

// id makes a response id: the client's where it names one.
func (x *call) id(prefix string, q *request) string {
	id := q.id
	if h := x.r.Header.Get("X-Request-Id"); h != "" {
		id = h
	}
	if id == "" {
		id = randomID()
	}
	return prefix + id
}

func randomID() string { return fmt.Sprintf("%016x", rand.Uint64()) }

// start submits j, or answers with the error. A client may name the rank, as
// vLLM's balancers do.
func (x *call) start(j *job) *apiError {
	pin := -1
	if h := x.r.Header.Get("X-Data-Parallel-Rank"); h != "" {
		v, err := strconv.Atoi(h)
		if err != nil || v < 0 || v >= len(x.core.ranks) {
			return badRequest("data_parallel_rank", "", "data_parallel_rank %s is out of range [0, %d).", h, len(x.core.ranks))
		}
		pin = v
	}
	return x.core.submit(j, pin)
}

// wait runs j to its end and reports whether there is an answer to give.
func (x *call) wait(j *job) bool {
	if bad := x.start(j); bad != nil {
		x.fail(bad)
		return false
	}
	for !j.over() {
		select {
		case <-j.bell:
		case <-x.r.Context().Done():
			j.rank.abort(j)
			return false
		}
	}
	for _, s := range j.seqs {
		if _, end := s.look(); end == endDead {
			x.cut()
			return false
		}
	}
	if x.fault.Mode == ModeInbandError {
		x.fail(errDead)
		return false
	}
	return true
}

func now() int64 { return time.Now().Unix() }
