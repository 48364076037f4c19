package exchange

import "github.com/llmgw/llmgw/modules/internal/catalog"

// fallBack makes the next fallback serve, and returns whether there is one. It needs mu.
func (x *Exchange) fallBack() bool {
	m := x.fallback()
	if m == nil {
		return false
	}
	x.serving, x.tries = m, 0
	x.passed++
	return true
}

// fallback returns the next fallback of the model that was asked for which
// exists and the client's key may use, or nil. It needs mu.
func (x *Exchange) fallback() *catalog.Model {
	for ; x.passed < len(x.Model.Fallbacks); x.passed++ {
		if m := x.permitted(x.Model.Fallbacks[x.passed]); m != nil {
			return m
		}
	}
	return nil
}

// fallbacks returns all that are left. It needs mu.
func (x *Exchange) fallbacks() (all []*catalog.Model) {
	for _, name := range x.Model.Fallbacks[x.passed:] {
		if m := x.permitted(name); m != nil {
			all = append(all, m)
		}
	}
	return all
}

// permitted returns a model if it exists and the client's key may use it, or nil.
func (x *Exchange) permitted(name string) *catalog.Model {
	m := x.rt.Catalog.Resolve(name)
	if m == nil || !x.Key.MayUse(append([]string{m.Name}, m.Aliases...)...) {
		return nil
	}
	return m
}
