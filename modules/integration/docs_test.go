package integration

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/llmgw/llmgw/modules/internal/exchange"
	"github.com/llmgw/llmgw/modules/llmapi"
	"github.com/llmgw/llmgw/modules/llmcmd"
	"github.com/llmgw/llmgw/modules/llmgw"
	"github.com/llmgw/llmgw/modules/llmkeys"
	"github.com/llmgw/llmgw/modules/llmselect"
)

// doc returns a page, by its path from the repository's root.
func doc(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("../..", path))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// docs returns the paths of all pages.
func docs(t *testing.T) []string {
	t.Helper()
	pages := []string{"README.md"}
	for _, pattern := range []string{"docs/*.md", "docs/*/*.md", "examples/*/*.md"} {
		found, err := filepath.Glob(filepath.Join("../..", pattern))
		if err != nil || len(found) == 0 {
			t.Fatalf("%s: no pages, %v", pattern, err)
		}
		for _, path := range found {
			pages = append(pages, filepath.ToSlash(path)[len("../../"):])
		}
	}
	return pages
}

// rows returns the rows of a page's tables by their first cell, without
// backticks.
func rows(text string) map[string][]string {
	found := make(map[string][]string)
	for line := range strings.Lines(text) {
		line, isRow := strings.CutPrefix(strings.TrimSpace(line), "|")
		if !isRow {
			continue
		}
		var cells []string
		for cell := range strings.SplitSeq(strings.TrimSuffix(line, "|"), "|") {
			cells = append(cells, strings.ReplaceAll(strings.TrimSpace(cell), "`", ""))
		}
		found[cells[0]] = cells
	}
	return found
}

// sorted returns the words of a list.
func sorted(list string) []string {
	words := strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' })
	slices.Sort(words)
	return words
}

// TestDocsCaddyfiles validates every block that is marked as a Caddyfile.
func TestDocsCaddyfiles(t *testing.T) {
	for _, name := range []string{"LLMGW_KEY", "OPERATOR_KEY", "VLLM_KEY", "CHAT_KEY", "BATCH_KEY"} {
		t.Setenv(name, "sk-"+name)
	}
	authority := httptest.NewTLSServer(nil)
	defer authority.Close()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	block := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: authority.Certificate().Raw})
	if err := os.WriteFile(ca, block, 0o600); err != nil {
		t.Fatal(err)
	}
	fenced := regexp.MustCompile("(?ms)^```caddyfile\n(.*?)^```$")
	blocks := 0
	for _, path := range docs(t) {
		for i, m := range fenced.FindAllStringSubmatch(doc(t, path), -1) {
			blocks++
			if string(caddyfile.Format([]byte(m[1]))) != m[1] {
				t.Errorf("%s: block %d is not as `llmgw fmt` has it", path, i+1)
			}
			cfg, err := adapt(strings.ReplaceAll(m[1], "/etc/llmgw/engines-ca.pem", ca))
			if err == nil {
				var parsed caddy.Config
				if err = json.Unmarshal(cfg, &parsed); err == nil {
					err = caddy.Validate(&parsed)
				}
			}
			if err != nil {
				t.Errorf("%s: block %d: %v", path, i+1, err)
			}
		}
	}
	if blocks < 8 {
		t.Errorf("only %d blocks are marked", blocks)
	}
}

// TestDocsOptions looks for every word that the Caddyfile parsers accept, every
// field of the JSON and every shipped plugin in docs/caddyfile.md.
func TestDocsOptions(t *testing.T) {
	written := doc(t, "docs/caddyfile.md")
	mentioned := func(kind, word string) {
		if !regexp.MustCompile("`([a-z_.]+[ :.`]+)?" + regexp.QuoteMeta(word) + "[` ]").MatchString(written) {
			t.Errorf("the %s %s is not in docs/caddyfile.md", kind, word)
		}
	}
	words := make(map[string]bool)
	files, err := filepath.Glob("../llm*/*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool { return optionWords(n, words) })
	}
	if len(words) < 25 {
		t.Fatalf("only %d option words were found: %v", len(words), words)
	}
	for word := range words {
		mentioned("option", word)
	}
	fields := make(map[string]bool)
	for _, v := range []any{llmgw.App{}, llmapi.Handler{}, llmkeys.Handler{}, llmselect.Policy{}, llmgw.Softmax{}} {
		jsonFields(reflect.TypeOf(v), fields)
	}
	for field := range fields {
		mentioned("field", field)
	}
	for _, namespace := range []string{"llmgw.scorers", "llmgw.filters", "llmgw.pickers"} {
		for _, m := range caddy.GetModules(namespace) {
			mentioned("plugin", m.ID.Name())
		}
	}
}

// optionWords adds the words that a parser compares the dispenser's token with.
func optionWords(n ast.Node, words map[string]bool) bool {
	isVal := func(e ast.Expr) bool {
		call, ok := e.(*ast.CallExpr)
		if !ok {
			return false
		}
		sel, ok := call.Fun.(*ast.SelectorExpr)
		return ok && sel.Sel.Name == "Val"
	}
	add := func(e ast.Expr) {
		if lit, ok := e.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			if word, err := strconv.Unquote(lit.Value); err == nil && word != "" {
				words[word] = true
			}
		}
	}
	switch n := n.(type) {
	case *ast.BinaryExpr:
		if isVal(n.X) {
			add(n.Y)
		}
	case *ast.SwitchStmt:
		init, _ := n.Init.(*ast.AssignStmt)
		if (n.Tag == nil || !isVal(n.Tag)) && (init == nil || !isVal(init.Rhs[0])) {
			break
		}
		for _, s := range n.Body.List {
			for _, e := range s.(*ast.CaseClause).List {
				add(e)
			}
		}
	}
	return true
}

// jsonFields adds the JSON names of a struct's exported fields, and of those
// below it.
func jsonFields(typ reflect.Type, fields map[string]bool) {
	for typ.Kind() == reflect.Pointer || typ.Kind() == reflect.Slice || typ.Kind() == reflect.Map {
		typ = typ.Elem()
	}
	if typ.Kind() != reflect.Struct {
		return
	}
	for f := range typ.Fields() {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); f.IsExported() && name != "" {
			fields[name] = true
			jsonFields(f.Type, fields)
		}
	}
}

// TestDocsProfiles compares the table of shipped routing profiles with what
// decides.
func TestDocsProfiles(t *testing.T) {
	e := newEngine(t, answer)
	g := start(t, one(e), "\tllm")
	_, section, _ := strings.Cut(doc(t, "docs/caddyfile.md"), "### Routing profiles\n")
	section, _, _ = strings.Cut(section, "```")
	table := rows(section)
	for _, profile := range []string{"chat", "batch", "long-context", "debug"} {
		var got llmgw.Explanation
		if status := g.admin(t, "/llmgw/explain?profile="+profile, `{"model":"m"}`, &got); status != http.StatusOK || len(got.Candidates) != 1 {
			t.Fatalf("explain %s: %d, %+v", profile, status, got)
		}
		var scorers []string
		for _, s := range got.Candidates[0].Scores {
			scorers = append(scorers, fmt.Sprintf("%s %g", s.Scorer, s.Weight))
		}
		want := []string{profile, strings.Join(scorers, ", "), got.Picker}
		if scorers == nil {
			want[1] = "none"
		}
		row := table[profile]
		if len(row) != 3 || row[0] != want[0] || row[1] != want[1] || strings.Fields(row[2])[0] != want[2] {
			t.Errorf("documented is %q, shipped is %q", row, want)
		}
	}
}

// TestDocsErrors compares the table of errors with what clients get.
func TestDocsErrors(t *testing.T) {
	table := rows(doc(t, "docs/api.md"))
	for _, class := range exchange.Classes() {
		e := exchange.Answer(class)
		want := []string{exchange.Label(class), strconv.Itoa(e.Status), e.Type, "null", ""}
		if e.Code != "" {
			want[3] = e.Code
		}
		if e.RetryAfter > 0 {
			want[4] = strconv.Itoa(int(e.RetryAfter.Seconds()))
		}
		if row := table[want[0]]; len(row) < len(want) || !slices.Equal(row[:len(want)], want) {
			t.Errorf("documented is %q, a client gets %q", row, want)
		}
	}
}

// TestShippedLogFilters: every config that is shipped keeps keys out of the log as
// the commands' own does, which all tests run with.
func TestShippedLogFilters(t *testing.T) {
	for _, path := range []string{"Caddyfile.example", "docs/quickstart.md", "docs/caddyfile.md", "docs/metrics.md"} {
		if !strings.Contains(doc(t, path), llmcmd.LogFormat) {
			t.Errorf("%s filters the log in another way", path)
		}
	}
}

// TestDocsLinks follows the links from page to page.
func TestDocsLinks(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#:]*)(#[^)]*)?\)`)
	heading := regexp.MustCompile(`(?m)^#+ (.*)$`)
	for _, path := range docs(t) {
		for _, m := range link.FindAllStringSubmatch(doc(t, path), -1) {
			target := path
			if m[1] != "" {
				target = filepath.ToSlash(filepath.Join(filepath.Dir(path), m[1]))
			}
			if _, err := os.Stat(filepath.Join("../..", target)); err != nil {
				t.Errorf("%s links to %s, which is not there", path, target)
				continue
			}
			found := m[2] == ""
			if !found {
				for _, h := range heading.FindAllStringSubmatch(doc(t, target), -1) {
					anchor := strings.NewReplacer("`", "", ":", "", " ", "-").Replace(strings.ToLower(h[1]))
					found = found || m[2] == "#"+anchor
				}
			}
			if !found {
				t.Errorf("%s links to %s%s, and there is no such heading", path, target, m[2])
			}
		}
	}
}
