package scrape

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/llmgw/llmgw/modules/schedule"
)

func TestModelsAreAskedForNowAndThen(t *testing.T) {
	play(t, func(s *stage) {
		detach, changes := s.attach()
		defer detach()
		s.after(29 * time.Second)
		if n := len(s.engine.times("/v1/models")); n != 1 {
			s.Errorf("asked %d times in 29 s", n)
		}
		s.after(3 * time.Second)
		if n := len(s.engine.times("/v1/models")); n != 2 || *changes != 1 {
			s.Errorf("asked %d times in 32 s, %d changes", n, *changes)
		}
		s.engine.set("/v1/models", `{"data":[{"id":"m"},{"id":"adapter"}]}`)
		s.after(32 * time.Second)
		if *changes != 2 {
			s.Errorf("%d changes after an adapter was loaded", *changes)
		}
		// A failure keeps what was known, and is repeated soon.
		s.engine.set("/v1/models", "500")
		s.after(32 * time.Second)
		before := len(s.engine.times("/v1/models"))
		s.after(20 * time.Second)
		if n := len(s.engine.times("/v1/models")) - before; n < 3 || n > 5 {
			s.Errorf("asked %d times in 20 s of failures", n)
		}
		if names, ok := s.replica.Models(); !ok || !slices.Equal(names, []string{"m", "adapter"}) || *changes != 2 {
			s.Errorf("models %q, %d changes", names, *changes)
		}
		s.want(schedule.Ready)
	})
}

// A list of models that hangs must not take the time of the scrape, and with it
// the replica.
func TestHangingModelsAreNoFailedScrape(t *testing.T) {
	play(t, func(s *stage) {
		s.engine.set("/v1/models", "hang")
		detach, _ := s.attach()
		defer detach()
		s.after(time.Minute)
		s.want(schedule.Ready)
		if got := s.replica.Stats(); got.Failed != "" || got.Waiting != 3 {
			s.Errorf("stats %+v", *got)
		}
	})
}

func TestR10_EngineWithoutMetrics(t *testing.T) {
	withoutMetrics(t, "404", "no metrics page")
}

// An engine behind something that shows its metrics to nobody is as healthy as
// any other, and comes back by its health page alone.
func TestR10_EngineThatHidesItsMetrics(t *testing.T) {
	withoutMetrics(t, "403", "api_key")
	play(t, func(s *stage) {
		s.engine.set("/metrics", "403")
		detach, _ := s.attach()
		defer detach()
		s.after(time.Second)
		s.replica.Health.ConnectFailed("connect: refused")
		s.after(5 * time.Second)
		s.want(schedule.Ready)
	})
}

func withoutMetrics(t *testing.T, status, said string) {
	play(t, func(s *stage) {
		s.engine.set("/metrics", status)
		detach, _ := s.attach()
		defer detach()
		s.after(time.Minute)
		s.want(schedule.Ready)
		got := s.replica.Stats()
		expectStats(s.T, got, unknown, unknown, unknown)
		if !got.NoMetrics || got.Failed != "" || time.Since(got.At) > 2*time.Second {
			s.Errorf("stats %+v", *got)
		}
		if s.log.count(said) != 1 || s.log.count("failed") != 0 {
			s.Errorf("want it said once:\n%s", s.log.text.String())
		}
	})
}

func TestR08_MissingFieldsAreWarnedOfOnce(t *testing.T) {
	play(t, func(s *stage) {
		s.engine.set("/metrics", "vllm:num_requests_waiting 1\n")
		detach, _ := s.attach()
		defer detach()
		s.after(time.Minute)
		if got := s.replica.Stats().Missing; !slices.Equal(got, []string{"running", "kv_usage"}) {
			s.Errorf("missing %q", got)
		}
		if n := s.log.count("lacks fields"); n != 1 {
			s.Errorf("warned %d times", n)
		}
		s.engine.set("/metrics", "vllm:num_requests_waiting 1\nvllm:num_requests_running 1\n")
		s.after(5 * time.Second)
		if n := s.log.count("lacks fields"); n != 2 {
			s.Errorf("warned %d times after it lacks others", n)
		}
		s.want(schedule.Ready)
	})
}

// Two failures in a row, however often, are not three.
func TestFailuresThatComeAndGo(t *testing.T) {
	play(t, func(s *stage) {
		detach, _ := s.attach()
		defer detach()
		s.after(0)
		scrapes := func(n int, page string) {
			s.engine.set("/metrics", page)
			for until := len(s.engine.times("/metrics")) + n; len(s.engine.times("/metrics")) < until; {
				s.after(50 * time.Millisecond)
			}
		}
		for range 5 {
			scrapes(2, "500")
			if got := s.replica.Stats().Failed; got != "/metrics answered 500" {
				s.Errorf("failed: %q", got)
			}
			scrapes(1, good)
			if got := s.replica.Stats().Failed; got != "" {
				s.Errorf("failed: %q after a good one", got)
			}
		}
		if n := s.log.count("replica is down"); n != 0 {
			s.Errorf("it went down %d times", n)
		}
	})
}

// A loop that is told to end while it asks has learned nothing of the replica,
// which another config may still use.
func TestEndOfALoopLeavesNoMark(t *testing.T) {
	for _, hanging := range []string{"/metrics", "/v1/models", "/health"} {
		play(t, func(s *stage) {
			detach, _ := s.attach()
			s.after(0)
			s.engine.set(hanging, "hang")
			if hanging == "/health" {
				s.replica.Health.ConnectFailed("connect: refused")
			}
			before := len(s.engine.times(hanging))
			for len(s.engine.times(hanging)) == before {
				s.after(10 * time.Millisecond)
			}
			detach()
			s.manager.Wait()
			if got := s.replica.Stats().Failed; got != "" {
				s.Errorf("%s: failed: %s", hanging, got)
			}
			reason, _ := s.replica.Health.Reason()
			if want := map[bool]string{true: "connect: refused"}[hanging == "/health"]; reason != want {
				s.Errorf("%s: down for %q, want %q", hanging, reason, want)
			}
			if s.log.count("canceled") != 0 {
				s.Errorf("log:\n%s", s.log.text.String())
			}
		})
	}
}

func TestProbeHasALimit(t *testing.T) {
	play(t, func(s *stage) {
		detach, _ := s.attach()
		defer detach()
		s.after(0)
		s.engine.set("/health", "hang")
		s.replica.Health.ConnectFailed("connect: refused")
		s.after(timeout + time.Millisecond)
		if reason, _ := s.replica.Health.Reason(); reason != context.DeadlineExceeded.Error() {
			s.Errorf("down for %q", reason)
		}
		s.engine.set("/health", "")
		s.after(2 * time.Second)
		s.want(schedule.Ready)
	})
}

// TestStarvedGatewayBlamesNoReplica: time limits that are noticed late are the
// gateway's own doing.
func TestStarvedGatewayBlamesNoReplica(t *testing.T) {
	play(t, func(s *stage) {
		detach, _ := s.attach()
		defer detach()
		s.after(0)
		s.engine.set("/metrics", "late")
		s.after(time.Minute)
		s.want(schedule.Ready)
		if s.replica.Stats().Failed == "" {
			s.Error("values that could not be read are not stale")
		}
		s.engine.set("/metrics", "hang")
		s.after(20 * time.Second)
		s.want(schedule.Down)
	})
}

// TestOpenBreakersAreLogged: whoever opened it, it is said once.
func TestOpenBreakersAreLogged(t *testing.T) {
	play(t, func(s *stage) {
		detach, _ := s.attach()
		defer detach()
		s.after(0)
		slot, _ := s.replica.Take(-1, 1)
		slot.Refused("answered 503 Service Unavailable", 0, 15*time.Second)
		slot.Release()
		s.after(4 * time.Second)
		slot, _ = s.replica.Take(-1, 1)
		slot.Succeeded()
		slot.Release()
		s.after(4 * time.Second)
		for _, text := range []string{"let alone for a while", "answered 503", "answers well again"} {
			if n := s.log.count(text); n != 1 {
				s.Errorf("%q is logged %d times:\n%s", text, n, s.log.text.String())
			}
		}
	})
}
