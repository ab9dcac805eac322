package harness

// PID returns the process's id, of a process that has ended too.
func (p *Process) PID() int { return p.cmd.Process.Pid }
