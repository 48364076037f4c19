package integration

import (
	"os"
	"os/exec"
	"runtime/debug"
	"slices"
	"testing"
)

// TestExamplePlugin vets and tests the example, which is a module of its own,
// as somebody else would. It has the same versions in its go.mod as this one,
// so nothing is downloaded, and is built with the race detector if this test
// is, so that what Caddy packages it needs are in the build cache.
func TestExamplePlugin(t *testing.T) {
	var flags []string
	if info, ok := debug.ReadBuildInfo(); ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		flags = []string{"-race"}
	}
	for _, verb := range []string{"vet", "test"} {
		args := append(append([]string{verb}, flags...), "./...")
		cmd := exec.CommandContext(t.Context(), "go", args...)
		cmd.Dir = "../../examples/scorer-plugin"
		cmd.Env = append(os.Environ(), "GOFLAGS=", "GOPROXY=off", "GOWORK=off")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("go %s: %v\n%s\nif it is go.mod that is not up to date, run `go mod tidy` in examples/scorer-plugin", verb, err, out)
		}
	}
}
