package pipeline

import "github.com/llmgw/llmgw/modules/schedule"

// Explanation is a decision as data, for people and tools: every candidate
// with why it was dropped or how it scored, and the pick.
type Explanation struct {
	// Profile and Picker name what decided.
	Profile string
	Picker  string
	// Pool was chosen, at this saturation; Spilled if a pool of higher priority
	// was saturated.
	Pool       string
	Saturation float64
	Spilled    bool
	// Pick is the ID of the chosen replica; "" if none was eligible.
	Pick string
	// Cache says what became of the wish to go where the prompt's beginning is held, and Shared
	// up to which share of it other prompts are like it. Spread is true if that is to be on more replicas.
	Cache  schedule.CacheDecision
	Shared float64
	Spread bool
	// Candidates are all replicas of the model, in config order.
	Candidates []Verdict
}

// Verdict is what a decision found about one candidate.
type Verdict struct {
	// Replica is its ID, Pool its pool.
	Replica string
	Pool    string
	// Rejected says why it got no score; "" if it did.
	Rejected string
	// Cached is the share of the prompt that it is taken to hold, Held how many bytes of all prompts.
	Cached schedule.Gauge
	Held   int64
	// Total is the weighted sum of Scores, less the penalty for stale values.
	Total float64
	// Scores are the scorers' values and weights, in the profile's order.
	Scores []Score
}

// Score is one scorer's part of a total.
type Score struct {
	// Scorer is the scorer's name.
	Scorer string
	// Value is 0 to 1, or -1 for a replica to be avoided.
	Value float64
	// Weight is the profile's.
	Weight float64
}

// Explain returns the decision as data. Call it after [Decision.Decide] with
// the same profile, and before [Decision.Free].
func (d *Decision) Explain(p *Profile) Explanation {
	e := Explanation{
		Profile: p.Name, Picker: p.PickerName,
		Pool: d.Pool, Saturation: d.Saturation, Spilled: d.Spilled,
		Candidates: make([]Verdict, len(d.Candidates)),
	}
	if d.Pick >= 0 {
		e.Pick = d.Candidates[d.Pick].ID
	}
	for i := range d.Candidates {
		r := &d.Candidates[i]
		e.Candidates[i] = Verdict{Replica: r.ID, Pool: r.Pool, Rejected: d.Rejected[i], Cached: r.Cached, Held: r.Held}
	}
	n := len(d.eligible) // 0 without a pick
	for j, i := range d.index {
		v := &e.Candidates[i]
		v.Total = d.totals[j]
		for k, s := range p.Scorers {
			v.Scores = append(v.Scores, Score{Scorer: s.Name, Value: d.values[k*n+j], Weight: s.Weight})
		}
	}
	return e
}

// Reasons counts the reasons of the candidates that were dropped, for the
// error that a client gets when none is left.
func (d *Decision) Reasons() map[string]int {
	reasons := make(map[string]int)
	for i := range d.Candidates {
		if d.Rejected[i] != "" {
			reasons[d.Rejected[i]]++
		}
	}
	return reasons
}
