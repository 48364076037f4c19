package openai

import "strings"

// MaxSequences is the most that [Fields.Sequences] returns.
const MaxSequences = 1 << 12

// Prompts counts the prompts, from 1 to MaxSequences: the items of a list of strings or of
// lists (of token ids). A list of numbers is one prompt, as one of objects is, which are
// messages, parts, or documents for a template; but where text is compared or ranked each
// object is one.
func (f *Fields) Prompts(generates bool) int64 {
	if generates {
		return max(1, f.items)
	}
	return max(1, f.items, f.objects)
}

// Sequences is how many sequences an engine makes of a request of so many prompts, each
// of which it runs as it would run a request: each prompt as often as there are choices.
// It is from 1 to MaxSequences.
func (f *Fields) Sequences(prompts int64) int64 {
	n := int64(1)
	if f.HasN {
		n = max(1, f.N)
	}
	return min(n*prompts, MaxSequences)
}

// items counts those of a list whose first one begins with one of these bytes.
func items(b []byte, first string) (n int64) {
	if len(b) == 0 || b[0] != '[' {
		return 0
	}
	i := skipSpace(b, 1)
	if i == len(b) || strings.IndexByte(first, b[i]) < 0 {
		return 0
	}
	for n < MaxSequences {
		end, f := skipValue(b, i)
		if f != noFault {
			break
		}
		n++
		if i = skipSpace(b, end); i == len(b) || b[i] != ',' {
			break
		}
		i++
	}
	return n
}
