package exchange

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/cespare/xxhash/v2"

	"github.com/llmgw/llmgw/modules/internal/admit"
	"github.com/llmgw/llmgw/modules/internal/catalog"
	"github.com/llmgw/llmgw/modules/internal/fleet"
	"github.com/llmgw/llmgw/modules/internal/openai"
	"github.com/llmgw/llmgw/modules/internal/pipeline"
	"github.com/llmgw/llmgw/modules/schedule"
)

// bytesPerToken is the usual estimate for English text.
const bytesPerToken = 4

// defaultOutput is the number of output tokens that is expected of a request
// that sets no limit.
const defaultOutput = 256

// Resolve finds the model that was asked for. A model that the client's key
// may not use is answered like one that does not exist, so that keys cannot be
// used to find out what there is.
func (x *Exchange) Resolve() error {
	if x.Model != nil {
		return nil
	}
	m := x.rt.Catalog.Resolve(x.Requested)
	if m == nil && x.Key.MayUse(x.Requested) && x.rt.Catalog.Incomplete() {
		err := Fail(ErrUnavailable, "the model `%s` is not known yet: a replica has still to be asked what it serves", clip(x.Requested, 128))
		x.Fail(err)
		return err
	}
	if m == nil || !x.Key.MayUse(append([]string{m.Name}, m.Aliases...)...) {
		err := Fail(ErrModel, "the model `%s` does not exist or you do not have access to it", clip(x.Requested, 128))
		x.Fail(err)
		return err
	}
	x.mu.Lock()
	x.Model, x.serving = m, m
	x.mu.Unlock()
	return nil
}

// PickOrWait is [Exchange.Pick] for a request that was let through: where all replicas
// refuse it since they are full, it waits for its turn again, for no longer than it may in
// all.
func (x *Exchange) PickOrWait(ctx context.Context) *catalog.Endpoint {
	b := newBeginning()
	defer b.free()
	x.tokenize(ctx, b)
	for {
		e, err := x.pick(b)
		if e != nil {
			return x.picked(e, nil)
		}
		switch again, refused := x.waitAgain(ctx); {
		case refused != nil: // which is no fault of the decision
			x.Fail(refused)
			x.failed = true
			return nil
		case !again:
			return x.picked(nil, err)
		}
	}
}

// Pick decides where the request goes and counts it there. Called again, it
// gives the last replica back and decides among the others. It returns nil if
// there is none, and the exchange keeps why: [ErrUnavailable], or the cause of
// the last attempt if there was one.
func (x *Exchange) Pick() *catalog.Endpoint {
	b := newBeginning()
	defer b.free()
	return x.picked(x.pick(b))
}

// picked reports a decision.
func (x *Exchange) picked(e *catalog.Endpoint, err error) *catalog.Endpoint {
	switch {
	case x.rt.Picked == nil:
	case err == nil:
		x.rt.Picked(x, "")
	case !x.failed:
		x.failed = true
		x.rt.Picked(x, Label(err))
	}
	return e
}

func (x *Exchange) pick(b *beginning) (*catalog.Endpoint, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.ended {
		return nil, errEnded
	}
	if x.failed {
		return nil, x.err // Caddy's proxy asks again and again
	}
	if x.endpoint != nil {
		if x.reloads != x.endpoint.Replica {
			x.tried = append(x.tried, x.endpoint.Replica)
		}
		x.slot.Release()
		x.endpoint = nil
	}
	if x.attempts == 0 {
		x.rt.Retry.Deposit()
	}
	retries := x.retries
	x.retries = false
	defer func() { x.reloads = nil }()
	for {
		e, err := x.pickServing(b)
		if e != nil {
			return e, nil
		}
		if !x.fallBack() {
			if retries {
				x.rt.Retry.Give() // others may have more use for it
			}
			return nil, err
		}
	}
}

// pickServing picks among the replicas of the model that serves now. It needs
// mu.
func (x *Exchange) pickServing(b *beginning) (*catalog.Endpoint, error) {
	m := x.serving
	if x.tries > m.Reliability.Retries {
		return nil, x.exhausted(nil)
	}
	d := pipeline.NewDecision()
	defer d.Free()
	req := x.rt.request(m, m.Next(), x.session(), x.Fields.PromptBytes, x.outputTokens())
	profile := x.profile()
	tokens := cmp.Or(x.lease.Tokens(), int64(req.PromptTokens+req.OutputTokens))
	b.read(x.rt, m, x.prompt())
	b.find(x.rt, x.tokensAs(m))
	for conflicts := 0; ; conflicts++ {
		x.rt.snapshot(d, m, &req, x.tried, x.lease, x.sequences())
		b.fill(x.rt, d, &req)
		if !x.pinned(d) && !d.Decide(profile, &req) {
			x.cache = schedule.CacheNoWorker
			return nil, x.exhausted(d)
		}
		e := m.Endpoints[d.Pick]
		seen := d.Candidates[d.Pick].Inflight
		if conflicts == maxConflicts {
			seen = -1
		}
		// What it shares with others, and is cached, takes no memory of its own.
		cached := int64(b.cached(d.Pick, req.PromptTokens))
		common := min(cached, int64(req.Shared*float64(req.PromptTokens)))
		slot, ok := e.Replica.Take(seen, tokens-common)
		if !ok {
			req.Random = rand.Uint64()
			continue
		}
		x.slot, x.endpoint, x.last, x.pool = slot, e, e, e.Pool
		x.slot.Sequences(x.lease.Takes())
		x.slot.Prompt(x.reads(int64(req.PromptTokens)-cached), cached-common)
		x.lease.Placed()
		x.cache, x.matched = b.decided(d, &req), d.Candidates[d.Pick].Cached
		if x.attempts == 0 {
			b.count(x.rt, req.Now) // once, however often it has waited
		}
		b.went(x.rt, e)
		if name, _, ok := adapter(m, e); ok {
			e.Replica.UseLoRA(name)
		}
		x.attempts++
		x.tries++
		x.err = nil
		return e, nil
	}
}

// maxConflicts is how often a decision is made anew because other requests came
// or went on the chosen replica meanwhile. Then it stands: a little too much on
// one replica is better than a request that goes round and round.
const maxConflicts = 16

// exhausted returns why there is no replica left: the cause of the last
// attempt, if one was kept, else what the decision, if there was one, says. It
// needs mu.
func (x *Exchange) exhausted(d *pipeline.Decision) error {
	switch {
	case x.err != nil:
	case d != nil:
		x.err = unavailable(x.serving, d)
	default:
		x.err = Fail(ErrReplica, "the replica could not be reached")
	}
	return x.err
}

// pinned takes the replica that is to load the request's adapter again, or that the client asked for, if it
// is ready.
func (x *Exchange) pinned(d *pipeline.Decision) bool {
	wish := x.Wishes.Replica
	if x.reloads != nil {
		wish = x.reloads.ID
	}
	if wish == "" {
		return false
	}
	for i := range d.Candidates {
		c := &d.Candidates[i]
		if c.ID == wish && c.State == schedule.Ready && !c.Tried && c.Adapter != schedule.AdapterFailed {
			d.Pick = i
			return true
		}
	}
	return false
}

// profile is the routing profile: the client's wish, else the key's, else the
// model's, else the default.
func (x *Exchange) profile() *pipeline.Profile {
	for _, name := range []string{x.Wishes.Profile, x.keyProfile(), x.serving.Profile} {
		if name != "" {
			return x.rt.profile(name)
		}
	}
	return x.rt.profile("")
}

func (x *Exchange) keyProfile() string {
	if x.Key == nil {
		return ""
	}
	return x.Key.Profile
}

// session is what identifies the conversation: a header, else OpenAI's user.
func (x *Exchange) session() string {
	if x.serving.SessionLoad == 0 {
		return ""
	}
	if v := x.header[x.serving.SessionHeader]; len(v) > 0 && v[0] != "" {
		return v[0]
	}
	return x.Fields.User
}

// OutputTokens estimates the output of a request: what it allows, for all of
// its choices, or a typical length if it sets no limit.
func OutputTokens(f *openai.Fields) int {
	n := int64(defaultOutput)
	if f.HasMaxTokens {
		n = f.MaxTokens
	}
	if f.HasN && f.N > 1 {
		n *= min(f.N, 1024)
	}
	return int(min(n, 1<<24))
}

func (x *Exchange) outputTokens() int {
	if x.Route.Work != WorkGenerate {
		return 0
	}
	return OutputTokens(&x.Fields)
}

// PromptTokens estimates the tokens of a request's prompt.
func PromptTokens(f *openai.Fields) int { return f.PromptBytes / bytesPerToken }

// request builds what the scheduler knows of a request for a model.
func (rt *Runtime) request(m *catalog.Model, sequence uint64, session string, promptBytes, output int) schedule.Request {
	req := schedule.Request{
		Model: m.Name, SessionLoad: m.SessionLoad,
		PromptTokens: promptBytes / bytesPerToken, OutputTokens: output,
		TargetWaiting: m.TargetWaiting, KVCeiling: m.KVCeiling, P90: m.Admission.P90,
		Now: rt.Now(), Random: rand.Uint64(), Sequence: sequence,
	}
	if session != "" && m.SessionLoad > 0 {
		req.Session, req.HasSession = xxhash.Sum64String(session), true
	}
	return req
}

// snapshot fills the decision's candidates, as they are for a request of so many sequences, but
// for what the lease has reserved.
func (rt *Runtime) snapshot(d *pipeline.Decision, m *catalog.Model, req *schedule.Request, tried []*fleet.Replica, lease *admit.Lease, sequences int64) {
	reserved, takes := lease.Reserved()
	if cap(d.Candidates) < len(m.Endpoints) {
		d.Candidates = make([]schedule.Replica, len(m.Endpoints))
	}
	d.Candidates = d.Candidates[:len(m.Endpoints)]
	for i, e := range m.Endpoints {
		c := &d.Candidates[i]
		own := int64(0)
		if e.Replica == reserved {
			own = takes
		}
		load := e.Replica.Fill(c, req.Now, e.Slots, own)
		c.Absent = false
		if name, absent, ok := adapter(m, e); ok {
			c.Adapter, c.Absent = e.Replica.LoRA(name), absent
			if absent && !e.Replica.MayLoad(e.Adapter.Adapter) {
				c.Adapter = schedule.AdapterFailed
			}
		}
		if c.State == schedule.Ready && !e.Replica.TakesMany(req.Now, sequences) {
			c.State = schedule.Cooling
		}
		c.Pool, c.Priority, c.Weight = e.Pool, e.Priority, e.Weight
		c.Tried, c.Room = slices.Contains(tried, e.Replica), lease.Room(e, load, req.TargetWaiting)
	}
}

// Question is a request that [Runtime.Explain] decides about.
type Question struct {
	// Profile "" is the model's, Session is what the session header would hold, Tenant whose
	// it is.
	Profile, Session, Tenant string
	// Body is the request's, Fields what was read in it.
	Body   []byte
	Fields openai.Fields
}

// Explain decides as for a request, without counting it anywhere, and returns
// the reasons.
func (rt *Runtime) Explain(ctx context.Context, m *catalog.Model, q *Question) pipeline.Explanation {
	p := rt.profile(cmp.Or(q.Profile, m.Profile))
	d := pipeline.NewDecision()
	defer d.Free()
	b := newBeginning()
	defer b.free()
	// Of a key that no header names a tenant for, the tenant is the key's name.
	b.read(rt, m, prompt{&q.Fields, q.Body, q.Tenant, q.Tenant})
	tokens, _ := rt.promptTokens(ctx, b, true) // without any it goes by its text
	b.find(rt, tokens)
	req := rt.request(m, m.Upcoming(), cmp.Or(q.Session, q.Fields.User), q.Fields.PromptBytes, OutputTokens(&q.Fields))
	rt.snapshot(d, m, &req, nil, nil, q.Fields.Sequences(q.Fields.Prompts(true)))
	b.fill(rt, d, &req)
	d.Decide(p, &req)
	e := d.Explain(p)
	e.Cache, e.Shared, e.Spread = b.decided(d, &req), req.Shared, req.Spread
	return e
}

// unavailable says why no replica of the model may be used, without naming
// any.
func unavailable(m *catalog.Model, d *pipeline.Decision) error {
	reasons := d.Reasons()
	if len(reasons) == 0 {
		return Fail(ErrUnavailable, "the model `%s` has no replica", m.Name)
	}
	var parts []string
	for _, reason := range slices.Sorted(maps.Keys(reasons)) {
		parts = append(parts, fmt.Sprintf("%d %s", reasons[reason], strings.ReplaceAll(reason, "_", " ")))
	}
	class := ErrUnavailable
	if slices.ContainsFunc(d.Candidates, func(c schedule.Replica) bool { return c.State == schedule.Full }) {
		class = ErrFull // it passes sooner
	}
	return Fail(class, "no replica of the model `%s` is available now: %s", m.Name, strings.Join(parts, ", "))
}
