package sim

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestEncode(t *testing.T) {
	tests := []struct {
		text string
		want []string
	}{
		{"", nil},
		{"hello world", []string{"hell", "o wo", "rld"}},
		{"aé日", []string{"aé", "日"}},
		{"ab\x00cd", []string{"ab", "\x00", "cd"}},
		{"\x00\x00", []string{"\x00", "\x00"}},
		{"🦊x", []string{"🦊", "x"}},
		{"a\xffb", []string{"a\uFFFD", "b"}},
	}
	for _, tt := range tests {
		var got []string
		for _, id := range encode(nil, tt.text) {
			got = append(got, tokenText(id))
		}
		if strings.Join(got, "|") != strings.Join(tt.want, "|") {
			t.Errorf("%q: %q: want %q", tt.text, got, tt.want)
		}
	}
}

func FuzzEncode(f *testing.F) {
	for _, s := range []string{"", "hello", "日本語", "a\x00\xff", "🦊🦊"} {
		f.Add(s, s)
	}
	f.Fuzz(func(t *testing.T, s, more string) {
		ids := encode(nil, s)
		if got, want := decode(ids), strings.ToValidUTF8(s, "\uFFFD"); got != want {
			// A run of bad bytes is one U+FFFD.
			t.Errorf("%q comes back as %q", want, got)
		}
		for _, id := range ids {
			if text := tokenText(id); len(text) > maxTokenBytes || !utf8.ValidString(text) || id >= specialBase {
				t.Errorf("%q holds token %x %q", s, id, text)
			}
		}
		// What is appended leaves all but the last token as it was.
		longer := encode(nil, strings.ToValidUTF8(s, "\uFFFD")+more)
		for i, id := range ids[:max(len(ids)-1, 0)] {
			if longer[i] != id {
				t.Fatalf("token %d of %q changes when %q follows", i, s, more)
			}
		}
	})
}

// An answer has four bytes a token, is plain ASCII and has the same ids when it
// comes back.
func TestOutputTokens(t *testing.T) {
	for seed := range uint64(20) {
		text := string(appendOutput(nil, seed, 0, 500))
		ids := encode(nil, text)
		if len(text) != 2000 || len(ids) != 500 {
			t.Fatalf("seed %d: %d bytes, %d tokens", seed, len(text), len(ids))
		}
		for i, id := range ids {
			if id != outputToken(seed, i) {
				t.Fatalf("seed %d: token %d is %q: was %q", seed, i, tokenText(id), tokenText(outputToken(seed, i)))
			}
		}
		if quoted := string(appendString(nil, text)); quoted != `"`+text+`"` {
			t.Errorf("seed %d: the text needs escapes", seed)
		}
	}
	if string(appendOutput(nil, 1, 0, 50)) == string(appendOutput(nil, 2, 0, 50)) {
		t.Error("two seeds, one text")
	}
}

func TestPlanOutput(t *testing.T) {
	const seed, mean = 3, 20
	full := string(appendOutput(nil, seed, 0, 400))
	natural := planOutput(seed, mean, limits{maxTokens: 1000})
	stop := full[22:27] // within tokens 5 and 6
	tests := []struct {
		name   string
		limits limits
		count  int
		finish string
		text   string
	}{
		{"natural", limits{maxTokens: 1000}, natural.count, "stop", full[:4*(natural.count-1)]},
		{"max", limits{maxTokens: 5}, 5, "length", full[:20]},
		{"ignore eos", limits{maxTokens: 100, ignoreEOS: true}, 100, "length", full[:400]},
		{"min", limits{maxTokens: 1000, minTokens: 90}, 91, "stop", full[:360]},
		{"stop string", limits{maxTokens: 100, ignoreEOS: true, stop: []string{"nowhere", stop}}, 7, "stop", full[:22]},
		{"stop string kept", limits{maxTokens: 100, ignoreEOS: true, stop: []string{stop}, includeStop: true}, 7, "stop", full[:27]},
		{"stop string too late", limits{maxTokens: 6, ignoreEOS: true, stop: []string{stop}}, 6, "length", full[:24]},
		{"stop string at once", limits{maxTokens: 6, stop: []string{full[:1]}}, 1, "stop", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			o := planOutput(seed, mean, tt.limits)
			if o.count != tt.count || o.finish != tt.finish {
				t.Errorf("%d tokens, %s: want %d, %s", o.count, o.finish, tt.count, tt.finish)
			}
			if got := string(o.appendText(nil, 0, o.count)); got != tt.text {
				t.Errorf("text %q: want %q", got, tt.text)
			}
			var pieces []byte
			for i := range o.count {
				pieces = o.appendText(pieces, i, i+1)
			}
			if string(pieces) != tt.text {
				t.Errorf("token by token %q: want %q", pieces, tt.text)
			}
		})
	}
	if natural.count-1 < mean/2 || natural.count-1 > mean/2+mean {
		t.Errorf("natural length %d: want %d to %d", natural.count-1, mean/2, mean/2+mean)
	}
}
