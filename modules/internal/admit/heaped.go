package admit

// ranked is what knows where in a heap it is.
type ranked[T any] interface {
	before(T) bool
	at() *int // where it keeps its index, -1 if it is in none
}

var (
	_ ranked[*flow]  = (*flow)(nil)
	_ ranked[*share] = (*share)(nil)
)

// heaped is a heap, for container/heap.
type heaped[T ranked[T]] []T

func (h heaped[T]) Len() int           { return len(h) }
func (h heaped[T]) Less(i, j int) bool { return h[i].before(h[j]) }

func (h heaped[T]) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	*h[i].at(), *h[j].at() = i, j
}

// Push implements heap.Interface.
func (h *heaped[T]) Push(x any) {
	e := x.(T)
	*e.at() = len(*h)
	*h = append(*h, e)
}

// Pop implements heap.Interface.
func (h *heaped[T]) Pop() any {
	old := *h
	e := old[len(old)-1]
	clear(old[len(old)-1:]) // or the array would keep it
	*h = old[:len(old)-1]
	*e.at() = -1
	return e
}
