package exchange

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/llmgw/llmgw/modules/internal/admit"
	"github.com/llmgw/llmgw/modules/internal/catalog"
	"github.com/llmgw/llmgw/modules/internal/openai"
)

// gated makes a world with a gate, in which the model "m" runs so many requests at once
// on the replica gpu1 and falls back to the model "other", on gpu2. It is for bubbles.
func gated(t *testing.T, slots int, change func(m *catalog.Model)) *world {
	t.Helper()
	w := newWorld(t)
	one, two := w.endpoint(t, "gpu1:8000"), w.endpoint(t, "gpu2:8000")
	one.Slots, two.Slots = slots, slots
	limits := catalog.Admission{QueueTTL: 30 * time.Second, MaxQueued: 4000, MaxQueuedBytes: 1 << 30}
	m := &catalog.Model{Name: "m", Fallbacks: []string{"other"}, TargetWaiting: 4, KVCeiling: 0.9, Endpoints: []*catalog.Endpoint{one}, Admission: limits}
	other := &catalog.Model{Name: "other", TargetWaiting: 4, KVCeiling: 0.9, Endpoints: []*catalog.Endpoint{two}, Admission: limits}
	if change != nil {
		change(m)
	}
	w.serve(t, nil, m, other)
	w.Gate = admit.NewGate(nil)
	bands := admit.Bands()
	for i := range bands {
		bands[i].Ceiling = 0.01
	}
	bands, err := admit.CheckBands(bands)
	if err != nil {
		t.Fatal(err)
	}
	w.Gate.Configure(bands, w.Catalog.Resolve)
	return w
}

// admitted asks for a request in the background and returns it with what came of it.
func admitted(t *testing.T, w *world, body string, c Class) (*Exchange, chan error) {
	t.Helper()
	x, done := w.ask(t, body), make(chan error, 1)
	go func() { done <- x.Admit(t.Context(), c) }()
	synctest.Wait()
	return x, done
}

// TestAdmit: a request waits for its turn, which is another's place, and says for how
// long it did; what it holds is given back.
func TestAdmit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := gated(t, 1, nil)
		first := w.ask(t, chatBody)
		if err := first.Admit(t.Context(), Class{Band: "gold"}); err != nil {
			t.Fatal(err)
		}
		if err := first.Admit(t.Context(), Class{}); err != nil { // of a handler after the first
			t.Fatal(err)
		}
		mustPick(t, first)
		x, done := admitted(t, w, chatBody, Class{Band: "nonsense"})
		time.Sleep(1500 * time.Millisecond)
		first.End()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if first.Band() != "gold" || first.Queued() != 0 || x.Band() != "silver" || x.Queued() != 1500*time.Millisecond {
			t.Errorf("%s waited %v, %s %v", first.Band(), first.Queued(), x.Band(), x.Queued())
		}
		mustPick(t, x)
		x.End()
		w.atRest(t)
	})
}

// TestAdmitWithoutReplica: a fallback's replicas are waited for, and what the wait for
// the first took counts.
func TestAdmitWithoutReplica(t *testing.T) {
	for _, patience := range []time.Duration{0, 2 * time.Second} {
		t.Run(fmt.Sprint(patience), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := gated(t, 1, func(m *catalog.Model) { m.Admission.ReplicaWait = patience })
				w.fleet.Find("gpu1:8000").Health.ConnectFailed("connect: refused")
				busy := w.ask(t, strings.Replace(chatBody, `"m"`, `"other"`, 1))
				if err := busy.Admit(t.Context(), Class{}); err != nil {
					t.Fatal(err)
				}
				mustPick(t, busy)
				x, done := admitted(t, w, chatBody, Class{})
				time.Sleep(patience + time.Second)
				busy.End()
				if err := <-done; err != nil {
					t.Fatal(err)
				}
				if got := x.Queued(); got != patience+time.Second {
					t.Errorf("it says it waited %v, it was %v", got, patience+time.Second)
				}
				if e := mustPick(t, x); e.Replica.ID != "gpu2:8000" || x.Fallback() != "other" {
					t.Errorf("it goes to %s, fallback %q", e.Replica.ID, x.Fallback())
				}
				x.End()
				w.atRest(t)
			})
		})
	}
}

// TestDeadlineAcrossFallbacks: what a request has waited for its own model counts.
func TestDeadlineAcrossFallbacks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := gated(t, 1, func(m *catalog.Model) { m.Admission.ReplicaWait = 3 * time.Second })
		w.fleet.Find("gpu1:8000").Health.ConnectFailed("connect: refused")
		busy := w.ask(t, strings.Replace(chatBody, `"m"`, `"other"`, 1))
		if err := busy.Admit(t.Context(), Class{}); err != nil {
			t.Fatal(err)
		}
		mustPick(t, busy)
		x, begin := w.ask(t, chatBody), time.Now()
		x.Wishes.Deadline = 5 * time.Second
		if err := x.Admit(t.Context(), Class{}); !errors.Is(err, ErrDeadline) || time.Since(begin) != 5*time.Second || x.Queued() != 5*time.Second {
			t.Errorf("after %v, of which it says it waited %v: %v", time.Since(begin), x.Queued(), err)
		}
		x.End()
		busy.End()
		w.atRest(t)
	})
}

// TestAdmitRefuses: each refusal has its class, and a time to come back.
func TestAdmitRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := gated(t, 1, func(m *catalog.Model) { m.Admission.MaxQueued, m.Fallbacks = 1, nil })
		first := w.ask(t, chatBody)
		if err := first.Admit(t.Context(), Class{}); err != nil {
			t.Fatal(err)
		}
		refused := func(what string, done chan error, class error, seconds int) {
			t.Helper()
			err := <-done
			var answer *openai.Error
			if !errors.Is(err, class) {
				t.Fatalf("%s: %v, want a %v", what, err, class)
			}
			if answer = Answer(err); answer.RetryAfter != time.Duration(seconds)*time.Second {
				t.Errorf("%s: come back after %v, want %d s", what, answer.RetryAfter, seconds)
			}
		}
		one, low := admitted(t, w, chatBody, Class{Band: "bronze"})
		two, same := admitted(t, w, chatBody, Class{Band: "bronze"})
		refused("a full queue", same, ErrQueueFull, 1)
		x, high := admitted(t, w, chatBody, Class{Band: "gold"})
		refused("displaced", low, ErrDisplaced, 1)
		time.Sleep(30 * time.Second)
		refused("queue TTL", high, ErrQueueTimeout, 30)
		if x.Band() != "gold" || x.Queued() != 30*time.Second {
			t.Errorf("band %q, waited %v", x.Band(), x.Queued())
		}
		short := w.ask(t, chatBody)
		short.Wishes.Deadline = 50 * time.Millisecond
		done := make(chan error, 1)
		done <- short.Admit(t.Context(), Class{})
		refused("its own deadline", done, ErrDeadline, 1)
		ctx, cancel := context.WithCancel(t.Context())
		gone := w.ask(t, chatBody)
		go func() { done <- gone.Admit(ctx, Class{}) }()
		synctest.Wait()
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("a client that left: %v", err)
		}
		w.fleet.Find("gpu1:8000").Health.ConnectFailed("connect: refused")
		none := w.ask(t, chatBody)
		if err := none.Admit(t.Context(), Class{}); err != nil || none.Pick() != nil || !errors.Is(none.Err(), ErrUnavailable) {
			t.Errorf("no replica: %v, then %v", err, none.Err())
		}
		for _, x := range []*Exchange{first, one, two, x, short, gone, none} {
			x.End()
		}
		w.atRest(t)
	})
}

// TestAdmissionOf says what the gate is told of a request.
func TestAdmissionOf(t *testing.T) {
	text := strings.Repeat("x", 1200)
	for body, want := range map[string]admit.Request{
		`{"model":"m","messages":[]}`:                        {Holds: true, Output: 256, Sequences: 1},
		`{"model":"m","prompt":"` + text + `"}`:              {Holds: true, Prompt: 300, Output: 256, Least: 100, Sequences: 1},
		`{"model":"m","prompt":"` + text + `","n":3}`:        {Holds: true, Prompt: 300, Output: 768, Least: 100, Sequences: 3},
		`{"model":"m","max_tokens":1000,"prompt":"x","n":2}`: {Holds: true, Output: 2000, Least: 1000, Sequences: 2},
		`{"model":"m","max_tokens":10,"prompt":["a","b"]}`:   {Holds: true, Prompt: 1, Output: 20, Sequences: 2},
		`{"model":"m","max_tokens":1e30,"prompt":"x"}`:       {Holds: true, Output: 1 << 24, Least: 1 << 40, Sequences: 1},
	} {
		f, err := openai.Scan([]byte(body))
		if err != nil {
			t.Fatal(err)
		}
		got := Admission(nil, &f, []byte(body), WorkGenerate)
		want.Bytes = int64(len(body))
		// Brackets and quotes count as well: not all of it is text.
		if near(got.Prompt, want.Prompt) {
			want.Prompt = got.Prompt
		}
		if near(got.Least, want.Least) {
			want.Least = got.Least
		}
		if !reflect.DeepEqual(*got, want) {
			t.Errorf("%.60s: %+v, want %+v", body, *got, want)
		}
	}
	f := openai.Fields{PromptBytes: 1000}
	if got := Admission(nil, &f, nil, WorkRead); got.Holds || got.Output != 0 || got.Least != 0 || got.Prompt != 250 {
		t.Errorf("embeddings: %+v", got)
	}
}

func near(a, b int64) bool { return a >= b && a <= b+2 }
