package fleet

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// statuses are the states of a replica's adapters, by name.
func statuses(r *Replica) map[string]AdapterState {
	all := make(map[string]AdapterState)
	for _, a := range r.AdapterStatuses() {
		all[a.Name] = a.State
	}
	return all
}

// TestLoadAdapter: many who need an adapter have it loaded once, and it is ready when the engine lists
// it, not when somebody says so.
func TestLoadAdapter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := hold(t, newClock())
		calls, listed := 0, make(chan []string)
		do := func() ([]string, error) {
			calls++
			return <-listed, nil
		}
		gone, leave := context.WithCancel(t.Context())
		errs := make([]error, 20)
		for i := range errs {
			ctx := t.Context()
			if i == 0 {
				ctx = gone
			}
			go func() { errs[i] = r.LoadAdapter(ctx, "sql", do) }()
			synctest.Wait()
		}
		if s := r.AdapterStatuses(); len(s) != 1 || s[0].State != AdapterLoading || s[0].Since.IsZero() || r.HasAdapter("sql") || !r.MayLoad("sql") {
			t.Errorf("%+v", s)
		}
		leave() // who began it may leave
		synctest.Wait()
		listed <- []string{"law", "sql"}
		synctest.Wait()
		for i, err := range errs {
			if i == 0 && !errors.Is(err, context.Canceled) || i > 0 && err != nil {
				t.Errorf("%d: %v", i, err)
			}
		}
		if s := statuses(r); len(s) != 2 || s["sql"] != AdapterReady || s["law"] != AdapterReady {
			t.Errorf("%v", s)
		}
		if err := r.LoadAdapter(t.Context(), "sql", do); err != nil || calls != 1 {
			t.Errorf("what is there: %v; %d loads", err, calls)
		}
	})
}

// TestLoadAdapterFails: what could not be loaded is tried again after a pause that doubles, and others may be
// loaded meanwhile.
func TestLoadAdapterFails(t *testing.T) {
	c := newClock()
	r := hold(t, c)
	fails := func() ([]string, error) { return nil, errors.New("no such file") }
	pause := time.Second
	for range 8 {
		if err := r.LoadAdapter(t.Context(), "sql", fails); err == nil || err.Error() != "no such file" {
			t.Fatal(err)
		}
		s := r.AdapterStatuses()
		if len(s) != 1 || s[0].State != AdapterFailed || s[0].Reason != "no such file" || !s[0].Since.Equal(c.now()) {
			t.Errorf("%+v", s)
		}
		c.advance(pause - time.Millisecond)
		if r.MayLoad("sql") || !r.MayLoad("law") {
			t.Errorf("a pause of %v is not kept, or kept for others", pause)
		}
		c.advance(time.Millisecond)
		if !r.MayLoad("sql") {
			t.Errorf("the pause is longer than %v", pause)
		}
		pause = min(2*pause, time.Minute)
	}
	if err := r.LoadAdapter(t.Context(), "sql", func() ([]string, error) { return []string{"law"}, nil }); err == nil {
		t.Error("what the engine does not list counts as loaded")
	}
	if r.HasAdapter("law") {
		t.Error("a load that failed tells of others")
	}
	c.advance(time.Hour)
	if err := r.LoadAdapter(t.Context(), "sql", func() ([]string, error) { return []string{"sql"}, nil }); err != nil || !r.HasAdapter("sql") {
		t.Error(err)
	}
	r.LostAdapter("sql")
	if err := r.LoadAdapter(t.Context(), "sql", fails); err == nil || r.HasAdapter("sql") {
		t.Error(err)
	}
	if c.advance(time.Second); !r.MayLoad("sql") {
		t.Error("what succeeded once does not begin with a short pause")
	}
}

// TestRestartWhileLoading: a load that a process was asked for which is gone tells nothing of the one
// that runs now.
func TestRestartWhileLoading(t *testing.T) {
	for name, restart := range map[string]func(*Replica){
		"seen down":          (*Replica).Restarted,
		"by the page's word": func(r *Replica) { r.SetStats(&Stats{At: time.Now(), Started: 2}) },
	} {
		t.Run(name, func(t *testing.T) {
			r := hold(t, newClock())
			r.SetStats(&Stats{At: time.Now(), Started: 1})
			err := r.LoadAdapter(t.Context(), "sql", func() ([]string, error) {
				restart(r)
				return []string{"sql"}, nil
			})
			if err == nil || r.HasAdapter("sql") || len(r.AdapterStatuses()) != 0 {
				t.Errorf("%v, %+v", err, r.AdapterStatuses())
			}
		})
	}
}

func TestLostAdapter(t *testing.T) {
	r := hold(t, newClock())
	names := []string{"a", "b"}
	r.SetAdapters(names)
	r.LostAdapter("a")
	if r.HasAdapter("a") || !r.HasAdapter("b") || !slices.Equal(names, []string{"a", "b"}) {
		t.Errorf("%v, %v", r.Adapters(), names)
	}
}
