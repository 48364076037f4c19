// Command llmgw-build builds the distribution that a JSON file describes: an
// xcaddy Builder. It differs from xcaddy's own command, which reads no file, in
// that paths of replacements may be relative to the file.
//
//	llmgw-build [-config xcaddy.json] [-output bin/llmgw] [-caddy version]
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/caddyserver/xcaddy"
)

func main() {
	config := flag.String("config", "xcaddy.json", "the file that describes the build")
	output := flag.String("output", filepath.Join("bin", "llmgw"), "where the binary goes")
	version := flag.String("caddy", "", "another version of Caddy than the file's")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, *config, *output, *version)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "llmgw-build:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, config, output, version string) error {
	b, err := load(config)
	if err != nil {
		return err
	}
	if version != "" {
		b.CaddyVersion = version
	}
	if err := os.MkdirAll(filepath.Dir(output), 0o755); err != nil {
		return err
	}
	return b.Build(ctx, output)
}

// load reads a Builder. An unknown field is an error: a misspelt one would
// otherwise build something else than what was meant.
func load(path string) (*xcaddy.Builder, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	b := new(xcaddy.Builder)
	if err := dec.Decode(b); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if dec.More() {
		return nil, fmt.Errorf("%s: more than one JSON value", path)
	}
	// The builder works in a folder of its own, where a relative path would
	// point elsewhere.
	dir, err := filepath.Abs(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	for i, r := range b.Replacements {
		if p := string(r.New); p == "." || strings.HasPrefix(p, "./") || strings.HasPrefix(p, "../") {
			b.Replacements[i].New = xcaddy.ReplacementPath(filepath.Join(dir, p))
		}
	}
	return b, nil
}
