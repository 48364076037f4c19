package prefix

import (
	"runtime"
	"testing"
)

// BenchmarkManyPrompts inserts prompts of 1,000 bytes of which no two are alike, into an index with the
// memory that it has by default, and reports what the heap has grown by, over what it may take. The
// promise holds for ten million: -benchtime 10000000x.
func BenchmarkManyPrompts(b *testing.B) {
	const limit = 512 << 20
	heap := func() int64 {
		var s runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&s)
		return int64(s.HeapAlloc)
	}
	before, x := heap(), New(limit)
	var c Chain
	b.ReportAllocs()
	for i := range b.N {
		c.Reset(uint64(i))
		c.Add(text[:1000])
		x.Insert(&c, Key{Replica: uint64(i % 8)}, 0)
	}
	b.ReportMetric(float64(heap()-before)/limit, "heap/limit")
	runtime.KeepAlive(x)
}
