//go:build engines

package e2e

import (
	"bufio"
	"io"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// guardEnv makes the test binary a guard instead. Its value is the folder that
// the guard removes in the end.
const guardEnv = "LLMGW_E2E_GUARD"

// guard reads the ids of process groups, one a line, and ends them all once
// the other end of the pipe is closed: by the tests when they are done, and by
// the system when they die of a timeout, a panic or a signal. An engine has
// processes of its own that outlive it when only it is killed, hence groups.
func guard(groups io.Reader, grace time.Duration) {
	var ids []int
	for lines := bufio.NewScanner(groups); lines.Scan(); {
		if id, err := strconv.Atoi(lines.Text()); err == nil && id > 1 {
			ids = append(ids, id)
		}
	}
	signal := func(s syscall.Signal) (left bool) {
		for _, id := range ids {
			left = syscall.Kill(-id, s) == nil || left
		}
		return left
	}
	signal(syscall.SIGTERM)
	for deadline := time.Now().Add(grace); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if !signal(0) {
			return
		}
	}
	signal(syscall.SIGKILL)
}

// TestGuard: a group that ignores SIGTERM ends all the same, children
// included.
func TestGuard(t *testing.T) {
	cmd := exec.Command("bash", "-c", `trap "" TERM; sleep 600 & echo; wait`)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	ready, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := ready.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	group := cmd.Process.Pid
	guard(strings.NewReader(strconv.Itoa(group)+"\n"), 100*time.Millisecond)
	_ = cmd.Wait() // it was killed
	eventually(t, 10*time.Second, func() error {
		if err := syscall.Kill(-group, 0); err == nil {
			return errStill("the group %d lives", group)
		}
		return nil
	})
}
