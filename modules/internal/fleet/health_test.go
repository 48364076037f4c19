package fleet

import (
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/llmgw/llmgw/modules/schedule"
)

func TestHealth(t *testing.T) {
	type step struct {
		do      string
		want    schedule.State
		changed bool // what the call returned, where it returns something
	}
	for _, c := range []struct {
		name  string
		steps []step
	}{
		{
			"one failed connection takes it out, two probes bring it back",
			[]step{
				{"connect", schedule.Down, false},
				{"probe ok", schedule.Down, false},
				{"probe ok", schedule.Ready, true},
			},
		},
		{
			"a failed probe starts the count again",
			[]step{
				{"connect", schedule.Down, false},
				{"probe ok", schedule.Down, false},
				{"probe bad", schedule.Down, false},
				{"probe ok", schedule.Down, false},
				{"probe ok", schedule.Ready, true},
			},
		},
		{
			"a request that fails between the probes does so, too",
			[]step{
				{"connect", schedule.Down, false},
				{"probe ok", schedule.Down, false},
				{"connect", schedule.Down, false},
				{"probe ok", schedule.Down, false},
				{"probe ok", schedule.Ready, true},
			},
		},
		{
			"three scrapes in a row",
			[]step{
				{"scrape bad", schedule.Ready, false},
				{"scrape bad", schedule.Ready, false},
				{"scrape bad", schedule.Down, true},
				{"scrape bad", schedule.Down, false},
			},
		},
		{
			"a good scrape starts the count again",
			[]step{
				{"scrape bad", schedule.Ready, false},
				{"scrape bad", schedule.Ready, false},
				{"scrape ok", schedule.Ready, false},
				{"scrape bad", schedule.Ready, false},
				{"scrape bad", schedule.Ready, false},
				{"scrape bad", schedule.Down, true},
			},
		},
		{
			"three new scrapes after it came back",
			[]step{
				{"scrape bad", schedule.Ready, false},
				{"scrape bad", schedule.Ready, false},
				{"connect", schedule.Down, false},
				{"probe ok", schedule.Down, false},
				{"probe ok", schedule.Ready, true},
				{"scrape bad", schedule.Ready, false},
				{"scrape bad", schedule.Ready, false},
				{"scrape bad", schedule.Down, true},
			},
		},
		{
			"a good scrape alone does not bring it back",
			[]step{
				{"connect", schedule.Down, false},
				{"scrape ok", schedule.Down, false},
				{"scrape ok", schedule.Down, false},
			},
		},
		{
			"probes of what is up say nothing",
			[]step{
				{"probe ok", schedule.Ready, false},
				{"probe bad", schedule.Ready, false},
				{"connect", schedule.Down, false},
				{"probe ok", schedule.Down, false},
			},
		},
		{
			"down for no reason given is down, too",
			[]step{
				{"connect without a reason", schedule.Down, false},
				{"probe ok", schedule.Down, false},
				{"probe ok", schedule.Ready, true},
			},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := &hold(t, newClock()).Health
			for i, s := range c.steps {
				changed := false
				switch s.do {
				case "connect":
					h.ConnectFailed("connect: refused")
				case "connect without a reason":
					h.ConnectFailed("")
				case "scrape bad":
					changed = h.ScrapeFailed("scrape: timeout")
				case "scrape ok":
					h.ScrapeOK()
				case "probe ok":
					changed = h.Probed("")
				case "probe bad":
					changed = h.Probed("/health answered 503")
				default:
					t.Fatalf("unknown step %q", s.do)
				}
				if got := h.State(); got != s.want || changed != s.changed {
					t.Fatalf("step %d, %s: %s, returned %v; want %s, %v", i, s.do, got, changed, s.want, s.changed)
				}
			}
		})
	}
}

func TestHealthSaysWhy(t *testing.T) {
	c := newClock()
	h := &hold(t, c).Health
	if reason, since := h.Reason(); reason != "" || !since.IsZero() {
		t.Errorf("up: %q since %v", reason, since)
	}
	at := c.now()
	h.ConnectFailed("connect: refused")
	c.advance(time.Minute)
	h.ConnectFailed("connect: no route")
	if reason, since := h.Reason(); reason != "connect: refused" || !since.Equal(at) {
		t.Errorf("down: %q since %v", reason, since)
	}
	h.Probed("/health answered 503")
	if reason, since := h.Reason(); reason != "/health answered 503" || !since.Equal(at) {
		t.Errorf("still down: %q since %v", reason, since)
	}
	h.Probed("")
	h.Probed("")
	if reason, since := h.Reason(); reason != "" || !since.IsZero() {
		t.Errorf("back: %q since %v", reason, since)
	}
}

func TestTripped(t *testing.T) {
	h := &hold(t, newClock()).Health
	tripped := h.Tripped()
	signalled := func() bool {
		select {
		case <-tripped:
			return true
		default:
			return false
		}
	}
	if signalled() {
		t.Fatal("a signal before anything happened")
	}
	h.ConnectFailed("refused")
	h.ConnectFailed("refused")
	if !signalled() || signalled() {
		t.Error("want one signal for going down once")
	}
	h.Probed("")
	h.Probed("")
	if signalled() {
		t.Error("a signal for coming back")
	}
	for range scrapesToTrip {
		h.ScrapeFailed("timeout")
	}
	if h.Tripped() != tripped || !signalled() {
		t.Error("no signal for going down by scrapes")
	}
	// Nobody listened when it went down: the signal waits.
	other := &hold(t, newClock()).Health
	other.ConnectFailed("refused")
	select {
	case <-other.Tripped():
	default:
		t.Error("the signal is lost on who comes late")
	}
}

// For any history: it is down if and only if something took it out and two
// probes in a row have not brought it back since.
func TestHealthProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := &Health{now: time.Now}
		down, probes, scrapes := false, 0, 0
		for _, event := range rapid.SliceOf(rapid.IntRange(0, 4)).Draw(t, "events") {
			switch event {
			case 0:
				h.ConnectFailed("refused")
				down, probes = true, 0
			case 1:
				h.ScrapeFailed("timeout")
				if scrapes++; scrapes >= scrapesToTrip && !down {
					down, probes = true, 0
				}
			case 2:
				h.ScrapeOK()
				scrapes = 0
			case 3:
				h.Probed("")
				if probes++; down && probes == probesToRecover {
					down, scrapes = false, 0
				}
			case 4:
				h.Probed("bad")
				probes = 0
			}
			if !down {
				probes = 0
			}
			if got := h.State() == schedule.Down; got != down {
				t.Fatalf("down %v, want %v", got, down)
			}
			if reason, _ := h.Reason(); (reason != "") != down {
				t.Fatalf("down %v for %q", down, reason)
			}
		}
	})
}

func TestHealthConcurrently(t *testing.T) {
	h := &hold(t, newClock()).Health
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 200 {
				h.ConnectFailed("refused")
				h.ScrapeFailed("timeout")
				h.State()
				h.Reason()
				h.ScrapeOK()
				h.Probed("")
				select {
				case <-h.Tripped():
				default:
				}
			}
		})
	}
	wg.Wait()
	h.Probed("")
	h.Probed("")
	if h.State() != schedule.Ready {
		t.Errorf("state %s", h.State())
	}
}

// A replica that answers requests is there, however busy the gateway is with
// something else than reading its metrics page.
func TestAnswersOutweighFailedScrapes(t *testing.T) {
	h := Health{now: time.Now}
	for range 10 {
		h.ScrapeFailed("slow")
		if h.ScrapeFailed("slow") {
			t.Fatal("two failed scrapes took it out")
		}
		h.Answered()
	}
	if h.State() != schedule.Ready {
		t.Errorf("state %v", h.State())
	}
	h.ScrapeFailed("slow")
	h.ScrapeFailed("slow")
	if !h.ScrapeFailed("slow") || h.State() != schedule.Down {
		t.Error("three failed scrapes without an answer did not take it out")
	}
	h.Answered() // one that was under way
	if h.State() != schedule.Down {
		t.Error("an answer brought it back without a probe")
	}
}
