//go:build engines

package e2e

import (
	"errors"
	"fmt"
	"testing"
	"time"
)

// errHopeless in a poll's error ends it at once.
var errHopeless = errors.New("hopeless")

// poll asks until it gets nil, and returns the last error if that takes too
// long.
func poll(within time.Duration, ask func() error) error {
	for deadline := time.Now().Add(within); ; time.Sleep(50 * time.Millisecond) {
		err := ask()
		if err == nil || errors.Is(err, errHopeless) {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("not within %s: %w", within, err)
		}
	}
}

// eventually is poll for tests.
func eventually(t *testing.T, within time.Duration, ask func() error) {
	t.Helper()
	if err := poll(within, ask); err != nil {
		t.Fatal(err)
	}
}

// errStill says what is not yet as it should be.
func errStill(format string, args ...any) error { return fmt.Errorf("still: "+format, args...) }
