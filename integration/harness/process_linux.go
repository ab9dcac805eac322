package harness

import "syscall"

// childAttributes lets a child end with its parent, however that ends, and keeps the terminal's Ctrl-C from it: its
// parent decides in which order things stop.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
