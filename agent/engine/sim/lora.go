package sim

import (
	"slices"
	"strings"
	"time"
)

// maxLoRASets bounds the label sets of vllm:lora_requests_info, which stay on
// the page once they were seen.
const maxLoRASets = 256

// loraSet is one label set: sorted adapter names joined by commas.
type loraSet struct{ running, waiting string }

// busy says whether a running sequence uses the adapter.
func (r *rank) busy(lora string) bool {
	return slices.ContainsFunc(r.running, func(s *sequence) bool { return s.lora == lora })
}

// slotFor says whether a sequence on the adapter may start now: it needs none,
// or it is in a slot, or a slot is empty or idle.
func (r *rank) slotFor(lora string) bool {
	if lora == "" || slices.Contains(r.slots, lora) || len(r.slots) < r.cfg.MaxLoRAs {
		return true
	}
	return slices.ContainsFunc(r.slots, func(name string) bool { return !r.busy(name) })
}

// loadSlot makes the adapter the most recently used one and reports whether it
// had to be loaded, in place of the idle adapter that was used least recently.
// The caller has asked slotFor.
func (r *rank) loadSlot(lora string) bool {
	if lora == "" {
		return false
	}
	if i := slices.Index(r.slots, lora); i >= 0 {
		r.slots = append(slices.Delete(r.slots, i, i+1), lora)
		return false
	}
	if len(r.slots) == r.cfg.MaxLoRAs {
		i := slices.IndexFunc(r.slots, func(name string) bool { return !r.busy(name) })
		r.slots = slices.Delete(r.slots, i, i+1)
	}
	r.slots = append(r.slots, lora)
	return true
}

// deferred counts the waiting sequences whose adapter finds no slot.
func (r *rank) deferred() int {
	n := 0
	for _, s := range r.waiting {
		if !r.slotFor(s.lora) {
			n++
		}
	}
	return n
}

// noteLoRAs dates the present label set of vllm:lora_requests_info.
func (r *rank) noteLoRAs(now time.Time) {
	names := func(list []*sequence) string {
		var out []string
		for _, s := range list {
			if s.lora != "" && !slices.Contains(out, s.lora) {
				out = append(out, s.lora)
			}
		}
		slices.Sort(out)
		return strings.Join(out, ",")
	}
	sets := r.stats.loras
	sets[loraSet{names(r.running), names(r.waiting)}] = now
	if len(sets) > maxLoRASets {
		var oldest loraSet
		first := now
		for set, at := range sets {
			if at.Before(first) {
				oldest, first = set, at
			}
		}
		delete(sets, oldest)
	}
}
