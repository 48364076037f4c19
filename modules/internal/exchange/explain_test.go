package exchange

import (
	"slices"
	"testing"

	"github.com/llmgw/llmgw/modules/internal/openai"
)

func TestOutputTokens(t *testing.T) {
	for _, c := range []struct {
		f    openai.Fields
		want int
	}{
		{openai.Fields{}, 256},
		{openai.Fields{MaxTokens: 100, HasMaxTokens: true}, 100},
		{openai.Fields{MaxTokens: 0, HasMaxTokens: true}, 0},
		{openai.Fields{MaxTokens: 100, HasMaxTokens: true, N: 4, HasN: true}, 400},
		{openai.Fields{N: 4, HasN: true}, 1024},
		{openai.Fields{N: 0, HasN: true}, 256},
		{openai.Fields{MaxTokens: 1 << 40, HasMaxTokens: true, N: 1 << 20, HasN: true}, 1 << 24},
	} {
		if got := OutputTokens(&c.f); got != c.want {
			t.Errorf("OutputTokens(%+v) = %d, want %d", c.f, got, c.want)
		}
	}
}

// Explain says what a request would meet, and counts nothing.
func TestExplainTakesNothing(t *testing.T) {
	w := newWorld(t, fourReplicas...)
	w.fleet.Find("gpu2:8000").Health.ConnectFailed("connect: refused")
	slot, _ := w.fleet.Find("gpu1:8000").Take(0, 1)
	m := w.Catalog.Resolve("m")
	before := m.Upcoming()
	for range 5 {
		e := w.Explain(t.Context(), m, &Question{})
		if e.Profile != "chat" || e.Pool != "default" || e.Pick == "" || e.Pick == "gpu2:8000" || len(e.Candidates) != 4 {
			t.Fatalf("explanation %+v", e)
		}
		if e.Candidates[1].Rejected != "down" || e.Candidates[0].Total >= e.Candidates[2].Total {
			t.Errorf("candidates %+v", e.Candidates)
		}
	}
	if e := w.Explain(t.Context(), m, &Question{Profile: "debug"}); e.Profile != "debug" || e.Picker != "round_robin" {
		t.Errorf("explanation %+v", e)
	}
	with := w.Explain(t.Context(), m, &Question{Session: "a session"})
	if home := with.Candidates[slices.IndexFunc(fourReplicas, func(id string) bool { return id == with.Pick })]; home.Scores[0].Value != 1 {
		t.Errorf("the session's home has no score: %+v", home)
	}
	if m.Upcoming() != before {
		t.Error("an explanation took a sequence number")
	}
	slot.Release()
	w.atRest(t)
}
