//go:build unix && !linux

package harness

import "syscall"

// childAttributes keeps the terminal's Ctrl-C from a child: its parent decides in which order things stop.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}
