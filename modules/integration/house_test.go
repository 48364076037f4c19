package integration

import (
	"bytes"
	"encoding/json"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/llmgw/llmgw"

// listed is what `go list -json` says of a package.
type listed struct {
	ImportPath string
	Imports    []string
	Deps       []string
}

func packages(t *testing.T) []listed {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-json=ImportPath,Imports,Deps", "./...")
	cmd.Dir = "../.."
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var all []listed
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		if err := dec.Decode(&p); err == io.EOF {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
}

// TestImportArrows holds the architecture: which room may know of which.
func TestImportArrows(t *testing.T) {
	under := func(path string, roots ...string) bool {
		return slices.ContainsFunc(roots, func(r string) bool {
			r = module + "/" + r
			return path == r || strings.HasPrefix(path, r+"/")
		})
	}
	isAdapter := func(path string) bool {
		return strings.HasPrefix(path, module+"/modules/llm") && !under(path, "modules/llmgw")
	}
	rules := []struct {
		name      string
		of        func(p string) bool
		forbidden func(p string) bool
		deep      bool // all dependencies, not only direct imports
	}{
		{
			"the core knows no Caddy and no zap", func(p string) bool { return under(p, "modules/internal", "modules/schedule") },
			func(d string) bool {
				return strings.HasPrefix(d, "github.com/caddyserver/") || strings.HasPrefix(d, "go.uber.org/zap")
			}, true,
		},
		{
			"the core knows no adapter", func(p string) bool { return under(p, "modules/internal", "modules/schedule") },
			func(d string) bool { return isAdapter(d) || under(d, "modules/llmgw", "modules/integration", "cmd") }, true,
		},
		{
			"other people's plugins can import the contracts", func(p string) bool { return under(p, "modules/schedule") },
			func(d string) bool { return strings.HasPrefix(d, module+"/") && !under(d, "modules/schedule") }, true,
		},
		{"adapters never import each other", isAdapter, isAdapter, false},
		{"the app imports no adapter", func(p string) bool { return under(p, "modules/llmgw") }, isAdapter, true},
		{
			"the agent knows neither Caddy nor the modules", func(p string) bool { return under(p, "agent") },
			func(d string) bool { return strings.HasPrefix(d, "github.com/caddyserver/") || under(d, "modules") }, true,
		},
		{"only the app and the commands import engines", func(p string) bool {
			return strings.HasPrefix(p, module+"/modules/") && !under(p, "modules/llmgw", "modules/llmagents", "modules/llmcmd", "modules/integration")
		}, func(d string) bool { return under(d, "agent/engine", "agent/gossip") }, false},
		{
			"nothing imports a command", func(p string) bool { return !under(p, "cmd") },
			func(d string) bool { return under(d, "cmd") }, false,
		},
	}
	all := packages(t)
	if len(all) < 15 {
		t.Fatalf("only %d packages found", len(all))
	}
	for _, r := range rules {
		matched := 0
		for _, p := range all {
			if !r.of(p.ImportPath) {
				continue
			}
			matched++
			deps := p.Imports
			if r.deep {
				deps = p.Deps
			}
			for _, d := range deps {
				if d != p.ImportPath && r.forbidden(d) {
					t.Errorf("%s: %s imports %s", r.name, p.ImportPath, d)
				}
			}
		}
		if matched == 0 {
			t.Errorf("%s: the rule holds for no package", r.name)
		}
	}
}

// goFiles calls f for every Go file of the module, tests included.
func goFiles(t *testing.T, f func(path string)) {
	t.Helper()
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := d.Name(); d.IsDir() && path != "../.." && (strings.HasPrefix(name, ".") || name == "testdata" || name == "bin" || name == "dist") {
			return fs.SkipDir
		}
		if strings.HasSuffix(path, ".go") {
			f(path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestEveryPackageIsDocumented(t *testing.T) {
	documented := make(map[string]bool)
	goFiles(t, func(path string) {
		if strings.HasSuffix(path, "_test.go") {
			return
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.PackageClauseOnly|parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		dir := filepath.Dir(path)
		documented[dir] = documented[dir] || f.Doc != nil
	})
	for dir, ok := range documented {
		if !ok {
			t.Errorf("%s has no package comment", dir)
		}
	}
}

func TestFilesStaySmall(t *testing.T) {
	goFiles(t, func(path string) {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		limit := 400
		if rel := strings.TrimPrefix(filepath.ToSlash(path), "../../modules/"); strings.HasPrefix(rel, "llm") && !strings.HasSuffix(path, "_test.go") {
			limit = 250
		}
		if n := bytes.Count(b, []byte("\n")); n > limit {
			t.Errorf("%s has %d lines, at most %d are allowed", path, n, limit)
		}
	})
}
