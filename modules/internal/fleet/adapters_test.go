package fleet

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

var sql, law = Adapter{Name: "sql", Path: "/loras/sql"}, Adapter{Name: "law", Path: "/loras/law"}

// at is what begins a load by do.
func at(do func() error) func() func(context.Context) error {
	return func() func(context.Context) error { return func(context.Context) error { return do() } }
}

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
		calls, answer := 0, make(chan error)
		do := func() error {
			calls++
			return <-answer
		}
		gone, leave := context.WithCancel(t.Context())
		errs := make([]error, 20)
		for i := range errs {
			ctx := t.Context()
			if i == 0 {
				ctx = gone
			}
			go func() { errs[i] = r.LoadAdapter(ctx, sql, at(do)) }()
			synctest.Wait()
		}
		if s := r.AdapterStatuses(); len(s) != 1 || s[0].State != AdapterLoading || s[0].Since.IsZero() || r.HasAdapter(sql) || !r.MayLoad(sql) {
			t.Errorf("%+v", s)
		}
		leave() // who began it may leave
		synctest.Wait()
		answer <- nil
		synctest.Wait()
		for i, err := range errs {
			if i == 0 && !errors.Is(err, context.Canceled) || i > 0 && err != nil {
				t.Errorf("%d: %v", i, err)
			}
		}
		if s := statuses(r); len(s) != 1 || s["sql"] != AdapterReady {
			t.Errorf("%v", s)
		}
		if err := r.LoadAdapter(t.Context(), sql, at(do)); err != nil || calls != 1 {
			t.Errorf("what is there: %v; %d loads", err, calls)
		}
	})
}

// TestLoadAdapterFails: what could not be loaded is tried again after a pause that doubles, and others may be
// loaded meanwhile, the same from another path too.
func TestLoadAdapterFails(t *testing.T) {
	c := newClock()
	r := hold(t, c)
	calls := 0
	fails := func() error { calls++; return errors.New("no such file") }
	pause := time.Second
	for i := range 8 {
		for range 2 { // the second was picked before it was known
			if err := r.LoadAdapter(t.Context(), sql, at(fails)); err == nil || err.Error() != "no such file" || calls != i+1 {
				t.Fatalf("%v, %d calls", err, calls)
			}
		}
		s := r.AdapterStatuses()
		if len(s) != 1 || s[0].State != AdapterFailed || s[0].Reason != "no such file" || !s[0].Since.Equal(c.now()) {
			t.Errorf("%+v", s)
		}
		c.advance(pause - time.Millisecond)
		if r.MayLoad(sql) || !r.MayLoad(law) || !r.MayLoad(Adapter{Name: "sql", Path: "/elsewhere"}) {
			t.Errorf("a pause of %v is not kept, or kept for others", pause)
		}
		c.advance(time.Millisecond)
		if !r.MayLoad(sql) {
			t.Errorf("the pause is longer than %v", pause)
		}
		pause = min(2*pause, time.Minute)
	}
	c.advance(time.Hour)
	if err := r.LoadAdapter(t.Context(), sql, at(fails)); err == nil {
		t.Error("it does not fail")
	}
	if c.advance(time.Second); !r.MayLoad(sql) {
		t.Error("what failed an hour ago makes the pause longer")
	}
	c.advance(time.Hour)
	works := func() error { return nil }
	if err := r.LoadAdapter(t.Context(), law, at(works)); err != nil || len(r.AdapterStatuses()) != 1 {
		t.Errorf("%v; what failed an hour ago is remembered: %+v", err, r.AdapterStatuses())
	}
	if err := r.LoadAdapter(t.Context(), sql, at(works)); err != nil || !r.HasAdapter(sql) || !r.HasAdapter(law) {
		t.Error(err)
	}
	r.LostAdapter(r.Listing(), "sql")
	if err := r.LoadAdapter(t.Context(), sql, at(fails)); err == nil || r.HasAdapter(sql) {
		t.Error(err)
	}
	if c.advance(time.Second); !r.MayLoad(sql) {
		t.Error("what succeeded once does not begin with a short pause")
	}
}

// TestRestartWhileLoading: a load that a process was asked for which is gone ends with it, and tells
// nothing of the one that runs now.
func TestRestartWhileLoading(t *testing.T) {
	for name, restart := range map[string]func(*Replica){
		"seen down":          (*Replica).Restarted,
		"by the page's word": func(r *Replica) { r.SetStats(&Stats{At: time.Now(), Started: 2}) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := hold(t, newClock())
				r.SetStats(&Stats{At: time.Now(), Started: 1})
				r.SetAdapters(r.Listing(), []Adapter{law})
				answer := make(chan error)
				var err error
				go func() { err = r.LoadAdapter(t.Context(), sql, at(func() error { return <-answer })) }()
				synctest.Wait()
				restart(r)
				synctest.Wait()
				if !errors.Is(err, errRestarted) {
					t.Errorf("who waits for it: %v", err)
				}
				answer <- nil
				synctest.Wait()
				if len(r.AdapterStatuses()) != 0 {
					t.Errorf("%+v", r.AdapterStatuses())
				}
			})
		})
	}
}

// TestLoadFromElsewhere: who wants an adapter from another path, since config has changed, does not wait
// for a load that hangs.
func TestLoadFromElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := hold(t, newClock())
		var first error
		go func() {
			first = r.LoadAdapter(t.Context(), sql, func() func(context.Context) error {
				return func(ctx context.Context) error {
					<-ctx.Done()
					return ctx.Err()
				}
			})
		}()
		synctest.Wait()
		if !r.Loading(sql) || r.Loading(Adapter{Name: "sql", Path: "/loras/v2"}) {
			t.Error("what is being loaded")
		}
		if err := r.LoadAdapter(t.Context(), Adapter{Name: "sql", Path: "/loras/v2"}, at(func() error { return nil })); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if !errors.Is(first, context.Canceled) || !r.HasAdapter(Adapter{Name: "sql", Path: "/loras/v2"}) || r.HasAdapter(sql) {
			t.Errorf("%v, %+v", first, r.AdapterStatuses())
		}
	})
}

// TestAdapterLists: a list that was asked for before something became known does not count, and an
// adapter from another path is another one.
func TestAdapterLists(t *testing.T) {
	r := hold(t, newClock())
	names := []Adapter{sql, {Name: "old"}}
	version := r.Listing()
	if !r.SetAdapters(version, names) || !r.HasAdapter(sql) || r.HasAdapter(Adapter{Name: "sql", Path: "/loras/v2"}) || !r.HasAdapter(Adapter{Name: "old", Path: "/any"}) || !r.Lists("old") {
		t.Errorf("%v", r.AdapterStatuses())
	}
	if err := r.LoadAdapter(t.Context(), Adapter{Name: "sql", Path: "/loras/v2"}, at(func() error { return nil })); err != nil || r.HasAdapter(sql) || len(r.AdapterStatuses()) != 2 {
		t.Errorf("in place of another: %v, %v", err, r.AdapterStatuses())
	}
	if r.SetAdapters(version, names) || r.HasAdapter(sql) {
		t.Error("an old list counts")
	}
	if err := r.LoadAdapter(t.Context(), law, at(func() error { r.SetAdapters(r.Listing(), append(r.listed(), law)); return nil })); err != nil || r.Replaced("law") {
		t.Errorf("one that is seen in the list before its load ends takes nobody's place: %v", err)
	}
	r.LostAdapter(r.Listing(), "law")
	if !r.Replaced("sql") || r.Replaced("old") {
		t.Error("what is known of another path's blocks counts")
	}
	// Of two that were lost at once both are, and one that was loaded since is not.
	if r.LostAdapter(version, "sql"); !r.Lists("sql") {
		t.Errorf("%v", r.AdapterStatuses())
	}
	version = r.Listing()
	r.LostAdapter(version, "old")
	if r.LostAdapter(version, "sql"); len(r.AdapterStatuses()) != 0 {
		t.Errorf("%v", r.AdapterStatuses())
	}
	r.SetAdapters(r.Listing(), names)
	if !sql.Is(names[0]) {
		t.Error("the list that was given has changed")
	}
	if err := r.LoadAdapter(t.Context(), Adapter{Name: "sql", Path: "/loras/v3"}, at(func() error { return errors.New("no") })); err == nil || r.Lists("sql") {
		t.Error("one that was unloaded for another is listed still")
	}
	r.Health.ConnectFailed("connect: refused")
	if s := statuses(r); s["old"] != AdapterStale {
		t.Errorf("of one that is down: %v", s)
	}
}
