package harness

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// maxOutput bounds what is kept of a process's output: the last so many bytes.
const maxOutput = 8 << 20

// Process is a child process whose output is kept. It is ended by its id and never by its name.
type Process struct {
	name   string
	cmd    *exec.Cmd
	stdout output
	stderr output
	done   chan struct{} // closed when it has ended and all its output was read
}

// startProcess starts the program at path. env is its whole environment.
func startProcess(name, path string, args, env []string) (*Process, error) {
	p := &Process{name: name, cmd: exec.Command(path, args...), done: make(chan struct{})}
	p.cmd.Env = env
	p.cmd.Stdout, p.cmd.Stderr = &p.stdout, &p.stderr
	p.cmd.SysProcAttr = childAttributes()
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		defer close(p.done)
		// The exit code tells more than Wait's error, which only repeats it.
		_ = p.cmd.Wait()
	}()
	return p, nil
}

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Running reports whether the process has not ended.
func (p *Process) Running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// ExitCode returns the exit code of a process that has ended, -1 when a signal ended it or it still runs.
func (p *Process) ExitCode() int {
	if p.Running() {
		return -1
	}
	return p.cmd.ProcessState.ExitCode()
}

// Signal sends the process a signal. It is no error if the process has ended.
func (p *Process) Signal(signal os.Signal) error {
	if err := p.cmd.Process.Signal(signal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal %s (pid %d): %w", p.name, p.cmd.Process.Pid, err)
	}
	return nil
}

// Kill ends the process at once and waits until it is gone.
func (p *Process) Kill() error {
	if err := p.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	<-p.done
	return nil
}

// Stop asks the process to end and waits for it; one that takes longer than grace is killed, which is an error.
func (p *Process) Stop(grace time.Duration) error {
	if err := p.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-p.done:
		return nil
	case <-time.After(grace):
		return errors.Join(fmt.Errorf("%s did not stop within %s and was killed", p.name, grace), p.Kill())
	}
}

// Stdout returns what the process wrote to its standard output.
func (p *Process) Stdout() string { return p.stdout.String() }

// Stderr returns what the process wrote to its standard error.
func (p *Process) Stderr() string { return p.stderr.String() }

// Tail returns the last n lines of the standard error, or of the standard output where that is empty.
func (p *Process) Tail(n int) string {
	if text := p.Stderr(); text != "" {
		return lastLines(text, n)
	}
	return lastLines(p.Stdout(), n)
}

func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// output keeps the last maxOutput bytes written to it.
type output struct {
	mu  sync.Mutex
	buf []byte
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.buf = append(o.buf, b...)
	if over := len(o.buf) - 2*maxOutput; over > 0 {
		o.buf = append([]byte(nil), o.buf[len(o.buf)-maxOutput:]...)
	}
	return len(b), nil
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return string(o.buf)
}

// FreePort returns a TCP port of loopback on which nothing listens.
func FreePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("find a free port: %w", err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}
