package scrape

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/llmgw/llmgw/modules/internal/fleet"
	"github.com/llmgw/llmgw/modules/schedule"
)

func TestStatsArrive(t *testing.T) {
	play(t, func(s *stage) {
		detach, changes := s.attach()
		defer detach()
		s.after(0)
		expectStats(s.T, s.replica.Stats(), 3, 4, 0.5)
		if got := s.replica.Stats().At; !got.Equal(time.Now()) {
			s.Errorf("stats of %v, want now", got)
		}
		if names, ok := s.replica.Models(); !ok || !slices.Equal(names, []string{"m"}) || *changes != 1 {
			s.Errorf("models %q, %d changes", names, *changes)
		}
		s.engine.set("/metrics", strings.ReplaceAll(good, " 3", " 9"))
		s.after(1100 * time.Millisecond)
		expectStats(s.T, s.replica.Stats(), 9, 4, 0.5)
		s.want(schedule.Ready)
	})
}

func TestScrapesAreJittered(t *testing.T) {
	play(t, func(s *stage) {
		detach, _ := s.attach()
		defer detach()
		s.after(100 * time.Second)
		times := s.engine.times("/metrics")
		if len(times) < 92 || len(times) > 111 {
			s.Fatalf("%d scrapes in 100 s", len(times))
		}
		gaps := make(map[time.Duration]bool)
		for i, at := range times[1:] {
			gap := at.Sub(times[i])
			if gap < 900*time.Millisecond || gap > 1100*time.Millisecond {
				s.Errorf("scrape %d came after %v", i+1, gap)
			}
			gaps[gap] = true
		}
		if len(gaps) < 50 {
			s.Errorf("%d different gaps: scrapes of a fleet would align", len(gaps))
		}
	})
}

func TestThreeFailedScrapesTrip(t *testing.T) {
	for _, fault := range []string{"500", "hang", "refuse", "vllm:num_requests_waiting{\n"} {
		play(t, func(s *stage) {
			detach, _ := s.attach()
			defer detach()
			s.after(0)
			s.engine.set("/metrics", fault)
			s.engine.set("/health", "refuse")
			failed := func() bool { return s.replica.Stats().Failed != "" }
			for !failed() {
				s.after(50 * time.Millisecond)
			}
			first := len(s.engine.times("/metrics"))
			// Stale, but not out; the values are the last that were good.
			s.want(schedule.Ready)
			expectStats(s.T, s.replica.Stats(), 3, 4, 0.5)
			for s.replica.State() == schedule.Ready && len(s.engine.times("/metrics")) < first+5 {
				s.after(50 * time.Millisecond)
			}
			s.want(schedule.Down)
			if n := len(s.engine.times("/metrics")); n != first+2 {
				s.Errorf("%s: down after %d failed scrapes", fault, n-first+1)
			}
			if reason, _ := s.replica.Health.Reason(); reason == "" {
				s.Error("down for no reason")
			}
			if s.log.count("scrape failed") != 1 || s.log.count("replica is down") != 1 {
				s.Errorf("%s: log:\n%s", fault, s.log.text.String())
			}
		})
	}
}

func TestRecoveryByProbes(t *testing.T) {
	play(t, func(s *stage) {
		detach, changes := s.attach()
		defer detach()
		s.after(0)
		s.engine.set("/health", "503")
		s.engine.set("/v1/models", `{"data":[{"id":"m"},{"id":"new"}]}`)
		s.replica.Health.ConnectFailed("connect: refused")
		s.after(0) // it is probed at once, not at the next scrape
		if n := len(s.engine.times("/health")); n != 1 {
			s.Fatalf("%d probes at once", n)
		}
		s.after(3 * time.Second)
		s.want(schedule.Down)
		if n := len(s.engine.times("/health")); n != 7 {
			s.Errorf("%d probes in 3 s, want one each 500 ms", n)
		}
		if n := len(s.engine.times("/metrics")); n != 1 {
			s.Errorf("scraped %d times while it was down", n)
		}
		s.engine.set("/health", "")
		s.after(fleet.ProbeInterval)
		s.want(schedule.Down)
		s.after(fleet.ProbeInterval)
		s.want(schedule.Ready)
		// What the process before it could do says nothing of this one; what
		// it serves is asked anew, before the 30 s are over.
		if *changes != 2 {
			s.Errorf("%d changes of models, want 2", *changes)
		}
		if names, _ := s.replica.Models(); !slices.Equal(names, []string{"m", "new"}) {
			s.Errorf("models %q", names)
		}
		expectStats(s.T, s.replica.Stats(), 3, 4, 0.5)
		if s.log.count("replica is back") != 1 {
			s.Errorf("log:\n%s", s.log.text.String())
		}
	})
}

func TestRestartForgetsTheBatchCapacity(t *testing.T) {
	play(t, func(s *stage) {
		detach, _ := s.attach()
		defer detach()
		s.after(0)
		capacity := func() schedule.Gauge {
			var c schedule.Replica
			s.replica.Fill(&c, time.Now(), 0, 0)
			return c.BatchCapacity
		}
		if got := capacity(); got != 4 {
			s.Fatalf("batch capacity %v", got)
		}
		s.engine.set("/metrics", "404")
		s.replica.Health.ConnectFailed("connect: refused")
		s.after(2 * fleet.ProbeInterval)
		s.want(schedule.Ready)
		if got := capacity(); got.Known() {
			s.Errorf("batch capacity %v of a process that is gone", got)
		}
	})
}

// A replica whose reason to be down says nothing is probed like any other.
func TestDownWithoutAReasonIsProbed(t *testing.T) {
	play(t, func(s *stage) {
		detach, _ := s.attach()
		defer detach()
		s.after(0)
		s.replica.Health.ConnectFailed("")
		s.after(2 * fleet.ProbeInterval)
		s.want(schedule.Ready)
	})
}
