package sim

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

func TestValidateListsAllFaults(t *testing.T) {
	if err := (Config{}).Validate(); err != nil {
		t.Errorf("the zero value: %v", err)
	}
	if err := DefaultConfig().Validate(); err != nil {
		t.Errorf("the defaults: %v", err)
	}
	bad := Config{
		Models: []string{"a", ""}, LoRAs: []string{"a"}, MaxLoRAs: -1, MaxNumSeqs: -1, MaxBatchedTokens: -1, MaxQueued: -1, KVBlocks: -1,
		BlockSize: -1, MaxModelLen: -1, OutputTokens: -1, PrefillPerToken: -1, Decode: -1, DecodePerSeq: -1, LoRALoad: -1,
		StartupDelay: -1, ShutdownTimeout: -1, KeepAlive: -1, DataParallel: -1, Nodes: 2, Rank: 2, Journal: -1,
	}
	err := bad.Validate()
	if err == nil {
		t.Fatal("no error")
	}
	for _, name := range []string{
		"empty name", `"a" twice`, "--max-loras", "--max-num-seqs", "--max-num-batched-tokens", "--max-num-queued-reqs", "--kv-blocks", "--block-size",
		"--max-model-len", "--output-tokens", "--prefill-per-token", "--decode ", "--decode-per-seq", "--lora-load", "--startup-delay",
		"--shutdown-timeout", "--keep-alive", "--data-parallel-size", "--node-rank", "--journal",
	} {
		if !strings.Contains(err.Error(), name) {
			t.Errorf("nothing about %s in: %v", name, err)
		}
	}
	for _, tt := range []struct {
		cfg  Config
		want string
	}{
		{Config{KVBlocks: 10, BlockSize: 16}, "would never fit"},
		{Config{MaxNumSeqs: 100, MaxBatchedTokens: 50}, "would never step"},
	} {
		if _, err := New(tt.cfg); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v: %v: want %q", tt.cfg, err, tt.want)
		}
	}
}

// Every field has one flag with a help text, and the flag sets that field.
func TestFlags(t *testing.T) {
	var cfg Config
	fs := pflag.NewFlagSet("sim", pflag.ContinueOnError)
	cfg.Flags(fs)
	n := 0
	fs.VisitAll(func(f *pflag.Flag) {
		n++
		if f.Usage == "" {
			t.Errorf("--%s has no help text", f.Name)
		}
		before := reflect.ValueOf(cfg)
		value := map[string]string{"bool": "true", "duration": "7s", "int": "7", "uint64": "7", "string": "x", "stringSlice": "x,y"}[f.Value.Type()]
		if err := fs.Set(f.Name, value); err != nil {
			t.Errorf("--%s %s: %v", f.Name, value, err)
		}
		changed := 0
		for i := range before.NumField() {
			if !reflect.DeepEqual(before.Field(i).Interface(), reflect.ValueOf(cfg).Field(i).Interface()) {
				changed++
			}
		}
		if changed != 1 {
			t.Errorf("--%s sets %d fields", f.Name, changed)
		}
	})
	if want := reflect.TypeFor[Config]().NumField(); n != want {
		t.Errorf("%d flags for %d fields", n, want)
	}
	if cfg.Decode != 7*time.Second || len(cfg.Models) != 2 {
		t.Errorf("got %+v", cfg)
	}
}

// A flag either takes 0 or refuses it: none makes a default of it in silence.
func TestFlagsOfZero(t *testing.T) {
	cfg := DefaultConfig()
	fs := pflag.NewFlagSet("sim", pflag.ContinueOnError)
	cfg.Flags(fs)
	fs.VisitAll(func(f *pflag.Flag) {
		if kind := f.Value.Type(); kind != "int" && kind != "duration" {
			return
		}
		before := f.Value.String()
		if err := fs.Set(f.Name, "0"); err != nil {
			if f.Value.String() != before || !strings.Contains(err.Error(), "above 0") {
				t.Errorf("--%s 0: %v, and it is %s", f.Name, err, f.Value)
			}
			return
		}
		field := f.Value.String()
		cfg = cfg.withDefaults()
		if f.Value.String() != field {
			t.Errorf("--%s 0 becomes %s", f.Name, f.Value)
		}
	})
	if err := cfg.Validate(); err != nil {
		t.Error(err)
	}
}
