package admit

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/llmgw/llmgw/modules/internal/fleet"
)

// TestOutputOfSequences: what is expected of an output is learnt of each sequence, and holds
// for each.
func TestOutputOfSequences(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := strict(t, 1, 64)
		ask := func(sequences int64) *Lease {
			r := s.request("silver", "a")
			r.Sequences, r.Prompt, r.Output = sequences, 100, 1000*sequences
			l, err := s.gate.Acquire(t.Context(), r)
			if err != nil {
				t.Fatal(err)
			}
			return l
		}
		for _, sequences := range []int64{1, 32} { // of 200 tokens each
			for range 2 * recent {
				l := ask(sequences)
				time.Sleep(time.Second)
				l.Release(200 * sequences)
			}
			one, many := ask(1), ask(32)
			if a, b := one.Tokens()-100, (many.Tokens()-100)/32; a < 350 || a > 450 || a != b {
				t.Errorf("after requests of %d sequences: %d tokens are expected, of each of 32 %d", sequences, a, b)
			}
			one.Release(-1)
			many.Release(-1)
		}
		s.atRest(t)
	})
}

// TestTokensLeftForSequences: as many tokens are left for a request of many sequences as for
// as many requests.
func TestTokensLeftForSequences(t *testing.T) {
	var left []float64
	for _, sequences := range []int64{1, 8} {
		synctest.Test(t, func(t *testing.T) {
			s := strict(t, 1, 64)
			stats := func() {
				s.engines[0].replica.SetStats(&fleet.Stats{At: time.Now(), Waiting: 0, Running: 0, KVUsage: 0, BlockSize: 16, Blocks: 100_000})
			}
			for range 20 {
				stats()
				var all []*Lease
				for range 8 / sequences {
					r := s.request("platinum", "p")
					r.Sequences, r.Prompt, r.Output = sequences, 0, 1000*sequences
					l, err := s.gate.Acquire(t.Context(), r)
					if err != nil {
						t.Fatal(err)
					}
					all = append(all, l)
				}
				time.Sleep(time.Second)
				for _, l := range all {
					l.Release(1000 * sequences)
				}
			}
			stats()
			left = append(left, s.gate.Explain(s.request("bronze", "b")).HeadroomTokens)
		})
	}
	if left[0] < 7000 || left[0] > 9000 || left[0] != left[1] {
		t.Errorf("%v tokens are left for what held 8,000 at once", left)
	}
}
