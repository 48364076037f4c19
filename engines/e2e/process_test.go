//go:build engines

package e2e

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// keeper starts processes and sees to it that they end.
type keeper struct {
	dir   string // of the logs
	pipe  io.WriteCloser
	guard *exec.Cmd
	all   []*process
}

// process is one that was started, with a group of its own.
type process struct {
	name, log string
	pid       int           // of its group too
	done      chan struct{} // closed when it has ended, after err is set
	err       error
	mayEnd    bool // a test ends it
}

func newKeeper(dir string) (*keeper, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	k := &keeper{dir: dir, guard: exec.Command(self)}
	k.guard.Env = append(os.Environ(), guardEnv+"="+dir)
	// Out of the terminal's reach: Ctrl-C must end the tests, not the guard.
	k.guard.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if k.pipe, err = k.guard.StdinPipe(); err != nil {
		return nil, err
	}
	return k, k.guard.Start()
}

// start runs a command with its output in a log.
func (k *keeper) start(name string, command ...string) (*process, error) {
	p := &process{name: name, log: filepath.Join(k.dir, name+".log"), done: make(chan struct{})}
	log, err := os.Create(p.log)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	p.pid = cmd.Process.Pid
	fmt.Fprintln(k.pipe, p.pid)
	k.all = append(k.all, p)
	go func() {
		p.err = cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// close ends all processes and waits until the guard has seen them go.
func (k *keeper) close() error {
	k.pipe.Close()
	return k.guard.Wait()
}

// await polls until ready says nil; it gives up when the process ends.
func (p *process) await(within time.Duration, ready func() error) error {
	err := poll(within, func() error {
		select {
		case <-p.done:
			return fmt.Errorf("%w: it ended: %w", errHopeless, p.err)
		default:
			return ready()
		}
	})
	if err != nil {
		return fmt.Errorf("%s: %w; the end of its log:\n%s", p.name, err, p.tail())
	}
	return nil
}

// tail returns the last lines of the log.
func (p *process) tail() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-20):], "\n")
}
