package integration

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/llmgw/llmgw/modules/llmapi"
	"github.com/llmgw/llmgw/modules/llmgw"
	"github.com/llmgw/llmgw/modules/llmkeys"
)

// block returns what is inside the block that the line begins.
func block(text, line string) string {
	_, rest, ok := strings.Cut("\n"+text, "\n"+line+" {\n")
	if !ok {
		return ""
	}
	var inside strings.Builder
	indent := line[:len(line)-len(strings.TrimLeft(line, "\t"))]
	for l := range strings.Lines(rest) {
		if l == indent+"}\n" {
			break
		}
		inside.WriteString(l)
	}
	return inside.String()
}

// staysInside reports whether a text cannot leave the block that it is put into,
// nor read anything: Caddy's own directives are not what is tested.
func staysInside(text string) bool {
	for _, reads := range []string{"import", "{$", "{file.", "{env."} {
		if strings.Contains(text, reads) {
			return false
		}
	}
	tokens, err := caddyfile.Tokenize([]byte(text), "Caddyfile")
	if err != nil {
		return false
	}
	depth := 0
	for _, t := range tokens {
		switch t.Text {
		case "{":
			depth++
		case "}":
			depth--
		}
		if depth < 0 {
			return false
		}
	}
	return depth == 0
}

// FuzzCaddyfile: whatever stands in `llmgw { }` and in `llm { }`, adapting fails
// or gives the same JSON each time, which has no field that is not known and
// loses none on its way through the structs.
func FuzzCaddyfile(f *testing.F) {
	fixtures, err := filepath.Glob("testdata/adapt/*.caddyfiletest")
	if err != nil || len(fixtures) == 0 {
		f.Fatalf("no fixtures: %v", err)
	}
	var texts []string
	for _, file := range fixtures {
		b, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		text, _, _ := strings.Cut(string(b), "\n----------\n")
		texts = append(texts, text)
	}
	page, err := os.ReadFile("../../docs/caddyfile.md")
	if err != nil {
		f.Fatal(err)
	}
	for _, part := range strings.Split(string(page), "```caddyfile\n")[1:] {
		text, _, _ := strings.Cut(part, "```")
		texts = append(texts, text)
	}
	for _, text := range texts {
		// Keys are read from the environment as a rule, and nothing may be read.
		text = strings.NewReplacer("{env.", "{x.", "{file.", "{x.").Replace(text)
		option, site := block(text, "\tllmgw"), block(text, "\tllm")+block(text, "\tllm /v1/*")
		if option != "" || site != "" {
			f.Add(option, site)
		}
	}
	f.Fuzz(checkAdapted)
}

func checkAdapted(t *testing.T, option, site string) {
	if !staysInside(option) || !staysInside(site) {
		return
	}
	text := fmt.Sprintf("{\n\tadmin off\n\tllmgw {\n%s\n\t}\n}\nhttp://127.0.0.1:9 {\n\tllm {\n%s\n\t}\n}\n", option, site)
	cfg, err := adapt(text)
	again, errAgain := adapt(text)
	if !bytes.Equal(cfg, again) || fmt.Sprint(err) != fmt.Sprint(errAgain) {
		t.Fatalf("adapted to\n%s, %v\nand then to\n%s, %v", cfg, err, again, errAgain)
	}
	if err != nil {
		return
	}
	var parsed caddy.Config
	if err := caddy.StrictUnmarshalJSON(cfg, &parsed); err != nil {
		t.Fatalf("%v in %s", err, cfg)
	}
	var app llmgw.App
	roundTrip(t, parsed.AppsRaw["llmgw"], &app)
	for _, r := range app.Routing {
		for _, s := range r.Scorers {
			plugin(t, "llmgw.scorers.", s.ScorerRaw)
		}
		for _, raw := range r.FiltersRaw {
			plugin(t, "llmgw.filters.", raw)
		}
		plugin(t, "llmgw.pickers.", r.PickerRaw)
	}
	var http any
	if err := json.Unmarshal(parsed.AppsRaw["http"], &http); err != nil {
		t.Fatal(err)
	}
	if n := handlers(t, http); n < 2 {
		t.Fatalf("%d llm handlers in %s", n, cfg)
	}
}

// roundTrip decodes raw strictly and checks that v holds all of it.
func roundTrip(t *testing.T, raw json.RawMessage, v any) {
	t.Helper()
	if err := caddy.StrictUnmarshalJSON(raw, v); err != nil {
		t.Fatalf("%v in %s", err, raw)
	}
	back, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	if a, b := canonical(t, raw), canonical(t, back); a != b {
		t.Fatalf("%T loses something:\n%s\n%s", v, a, b)
	}
}

// canonical writes JSON with its keys in order.
func canonical(t *testing.T, raw []byte) string {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%v in %s", err, raw)
	}
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// plugin decodes the config of a scorer, a filter or a picker as Caddy would.
func plugin(t *testing.T, namespace string, raw json.RawMessage) {
	t.Helper()
	if raw == nil {
		return
	}
	var fields map[string]json.RawMessage
	var name string
	if err := json.Unmarshal(raw, &fields); err != nil || json.Unmarshal(fields["name"], &name) != nil {
		t.Fatalf("no name in %s", raw)
	}
	info, err := caddy.GetModule(namespace + name)
	if err != nil {
		t.Fatalf("%s adapted without such a module", raw)
	}
	delete(fields, "name")
	rest, err := json.Marshal(fields)
	if err != nil {
		t.Fatal(err)
	}
	if err := caddy.StrictUnmarshalJSON(rest, info.New()); err != nil {
		t.Fatalf("%v in %s", err, raw)
	}
}

// handlers decodes all llm handlers below v and returns how many there are.
func handlers(t *testing.T, v any) (n int) {
	t.Helper()
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			n += handlers(t, e)
		}
	case map[string]any:
		name, _ := v["handler"].(string)
		if into := map[string]any{"llm_api": new(llmapi.Handler), "llm_keys": new(llmkeys.Handler)}[name]; into != nil {
			delete(v, "handler")
			raw, err := json.Marshal(v)
			if err != nil {
				t.Fatal(err)
			}
			roundTrip(t, raw, into)
			return 1
		}
		for _, key := range slices.Sorted(maps.Keys(v)) {
			n += handlers(t, v[key])
		}
	}
	return n
}
