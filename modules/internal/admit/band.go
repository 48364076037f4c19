// Package admit answers "now?": it lets requests go to a model's replicas as
// these have room, the highest band first, and makes the rest wait, in bounded
// queues and fairly between tenants.
//
// It is pure but for the [Gate], which holds the queues: what it knows of time
// and of replicas comes in with each call.
package admit

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Unlimited is the ceiling from which on a band's requests never wait.
const Unlimited = 1000

// Band is a priority class. Immutable.
type Band struct {
	// Name is the one in config.
	Name string
	// Priority orders the bands: the highest goes first.
	Priority int
	// Ceiling is the saturation of a model's replicas above which the band's
	// requests wait; at [Unlimited] they never do.
	Ceiling float64
	// Deadline is how long its requests care to wait; 0 means the queue TTL.
	Deadline time.Duration
	// Queue is how many of its requests may wait for each model.
	Queue int
	// EnginePriority goes into the request where the engine schedules by it; nil
	// leaves what the client said.
	EnginePriority *int
	// Aging is how long a request waits before its band gets a share of the turns of
	// those above it, see [agingShare]; 0 means never.
	Aging time.Duration

	low bool // it is below the default one
}

// agingShare is how many requests of higher bands go until one of a band goes whose
// oldest has waited for too long.
const agingShare = 10

// DefaultBand is the band of requests that name none.
const DefaultBand = "silver"

// NewBand returns a band with the defaults.
func NewBand(name string) Band { return Band{Name: name, Queue: 2000, Aging: time.Minute} }

// Bands returns the shipped bands.
func Bands() []Band {
	var all []Band
	for _, b := range []struct {
		name     string
		priority int
		ceiling  float64
	}{{"platinum", 400, 1.00}, {"gold", 300, 0.85}, {DefaultBand, 200, 0.60}, {"bronze", 100, 0.30}} {
		band := NewBand(b.name)
		band.Priority, band.Ceiling = b.priority, b.ceiling
		all = append(all, band)
	}
	return all
}

// CheckBands returns the bands in order, the highest first, or what is wrong with
// them.
func CheckBands(bands []Band) ([]Band, error) {
	sorted := slices.Clone(bands)
	slices.SortStableFunc(sorted, func(a, b Band) int { return cmp.Compare(b.Priority, a.Priority) })
	var faults []error
	if len(bands) > MaxBands {
		faults = append(faults, fmt.Errorf("%d bands: there may be %d", len(bands), MaxBands))
	}
	usual := slices.IndexFunc(sorted, func(b Band) bool { return b.Name == DefaultBand })
	for i, b := range sorted {
		sorted[i].low = usual >= 0 && i > usual
		fault := func(format string, args ...any) {
			faults = append(faults, fmt.Errorf("band %q: %w", b.Name, fmt.Errorf(format, args...)))
		}
		if b.Name == "" || strings.ContainsFunc(b.Name, func(r rune) bool { return r <= ' ' || r > '~' }) {
			fault("a name is of printable ASCII without blanks")
		}
		if i > 0 && sorted[i-1].Priority == b.Priority {
			fault("priority %d is that of band %q, too: which goes first?", b.Priority, sorted[i-1].Name)
		}
		if !(b.Ceiling > 0 && b.Ceiling <= Unlimited) {
			fault("ceiling %v: must be above 0 and at most %d, at which requests never wait", b.Ceiling, Unlimited)
		}
		if b.Priority < -MaxPriority || b.Priority > MaxPriority {
			fault("priority %d: must be from %d to %d", b.Priority, -MaxPriority, MaxPriority)
		}
		if b.Deadline != 0 && b.Deadline < leastLimit {
			fault("deadline %v: must be at least %v", b.Deadline, leastLimit)
		}
		if b.Aging != 0 && b.Aging < leastLimit {
			fault("aging %v: must be at least %v", b.Aging, leastLimit)
		}
		if b.Queue < 0 || b.Queue > MaxQueue {
			fault("queue %d: must be from 0 to %d", b.Queue, MaxQueue)
		}
		if slices.ContainsFunc(sorted[:i], func(o Band) bool { return o.Name == b.Name }) {
			fault("it is declared twice")
		}
	}
	return sorted, errors.Join(faults...)
}

// MaxPriority bounds priorities, in both directions.
const MaxPriority = 1_000_000

// leastLimit bounds times from below: less is a mistake in the unit.
const leastLimit = time.Millisecond

// MaxQueue bounds a band's queue: beyond this a config means something else.
const MaxQueue = 1_000_000
