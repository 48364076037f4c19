package prefix

import (
	"math"
	"sync"
	"testing"
	"time"
)

func TestPopular(t *testing.T) {
	now := time.Unix(1e9, 0)
	p := new(Popular)
	const model, other = 0x9e3779b97f4a7c15, 0xc2b2ae3d27d4eb4f
	if got := p.Share(model, 1, now); got != 0 {
		t.Errorf("of nothing: %v", got)
	}
	p.Note(model, 1, now)
	if got := p.Share(model, 1, now); got != 0 {
		t.Errorf("one says nothing, not %v", got)
	}
	for range 399 {
		p.Note(model, 1, now)
	}
	for range 400 {
		p.Note(model, 2, now)
	}
	for n, want := range []float64{0, 0, 1.0 / 3, 0.5} { // few say little
		p.Note(other, 3, now)
		if got := p.Share(other, 3, now); math.Abs(got-want) > 1e-9 {
			t.Errorf("after %d of %d: %v, want %v", n+1, n+1, got, want)
		}
	}
	for beginning, want := range map[uint64]float64{1: (398 - math.Sqrt(200)) / 800, 2: (398 - math.Sqrt(200)) / 800, 3: 0, 4: 0} {
		if got := p.Share(model, beginning, now); math.Abs(got-want) > 1e-9 {
			t.Errorf("beginning %d: %v, want %v", beginning, got, want)
		}
	}
	// What is old counts less and less, and what is new is what counts.
	later := now.Add(3 * halfLife)
	if got, want := p.Share(model, 1, later), (48-math.Sqrt(25))/100; math.Abs(got-want) > 1e-9 {
		t.Errorf("%v, want %v", got, want)
	}
	for range 100 {
		p.Note(model, 2, later)
	}
	if one, two := p.Share(model, 1, later), p.Share(model, 2, later); one > 0.25 || two < 0.6 {
		t.Errorf("%v and %v", one, two)
	}
	if got := p.Share(model, 1, now.Add(-time.Hour)); got > 1 || got < 0 {
		t.Errorf("the clock went back: %v", got)
	}
	if got := p.Share(model, 1, now.Add(1000*time.Hour)); got != 0 {
		t.Errorf("long ago: %v", got)
	}
	const third = 0xd6e8feb86659fd93
	if p.Note(third, 0, now); p.count(third, now) != 1 {
		t.Errorf("a prompt that begins like no other counts %v times", p.count(third, now))
	}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 1000 {
				p.Note(other, 9, now)
			}
		})
	}
	all.Wait()
	if got := p.count(other^9, now); got != 8000 {
		t.Errorf("counted %v of 8000", got)
	}
}

func BenchmarkPopular(b *testing.B) {
	p, now := new(Popular), time.Now()
	for i := range b.N {
		p.Note(1<<40, uint64(i%100)<<20, now)
		p.Share(1<<40, uint64(i%100)<<20, now)
	}
}
