package chaos

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/deltabridge/deltabridge/integration/harness"
)

// Injected is a fault that happened.
type Injected struct {
	Fault
	Track  Track
	Number int // in the order of their beginnings
	Step   int // of the load, at its beginning
	// Begin and End are when it began and was over. From and To are the store's newest revision then.
	Begin, End time.Time
	From, To   string
	Err        error // why it could not be carried out
}

// String returns it on one line.
func (i Injected) String() string {
	text := fmt.Sprintf("fault %d, %s, %s to %s, versions %s to %s (hold %d, delay %s, pick %d)", i.Number, i.Kind,
		i.Begin.UTC().Format("15:04:05.000"), i.End.UTC().Format("15:04:05.000"), i.From, i.To, i.Hold, i.Delay, i.Pick)
	if i.Err != nil {
		text += fmt.Sprintf(": failed: %v", i.Err)
	}
	return text
}

// follow carries out a track's faults until the load ends. A fault that lasts ends then, too: at the end all is healed.
func (r *round) follow(ctx context.Context, track Track) {
	next := r.plan.Faults(track)
	for {
		f, ok := next()
		if !ok || !r.clock.wait(f.After) {
			return
		}
		i := Injected{
			Fault: f, Track: track, Number: r.number(), Step: r.clock.now(), Begin: time.Now(), From: r.recording.Latest(),
		}
		r.t.Logf("step %4d, version %s: fault %d, %s", i.Step, i.From, i.Number, i.Fault)
		i.Err = r.inject(ctx, f)
		i.End, i.To = time.Now(), r.recording.Latest()
		r.note(i)
		if i.Err != nil {
			r.t.Errorf("%s", i)
			return
		}
	}
}

// inject carries out one fault, from its beginning to its end.
func (r *round) inject(ctx context.Context, f Fault) error {
	switch f.Kind {
	case Kill, Term, Pause, Two, Zombie:
		return r.injectBridge(f)
	case APIRestart, APICompact:
		return r.restartAPI(ctx, f)
	case NATSNode, NATSAll:
		return r.restartNATS(ctx, f)
	case StepDown:
		for _, c := range r.contestants {
			// There may be no leader at the moment, with a node down.
			if err := r.arena.nats.StepDown(c.check.Stream); err != nil {
				r.t.Logf("no leader of %s stepped down: %v", c.check.Stream, err)
			}
		}
		return nil
	default:
		r.disturb(f)
		return nil
	}
}

// disturb does something to the connections of one side.
func (r *round) disturb(f Fault) {
	proxies := r.arena.natsProxy
	switch f.Kind {
	case APICut, APIRefuse, APIDelay, APIStall:
		proxies = []*harness.TCPProxy{r.arena.apiProxy}
	}
	for _, p := range proxies {
		switch f.Kind {
		case APICut, NATSCut:
			p.Cut()
		case APIRefuse, NATSRefuse:
			p.Refuse(true)
		case APIDelay, NATSDelay:
			p.Delay(f.Delay)
		case APIStall, NATSStall:
			p.Stall(true)
		}
	}
	if f.Kind == APICut || f.Kind == NATSCut {
		return
	}
	r.clock.wait(f.Hold)
	for _, p := range proxies {
		p.Heal()
	}
}

// restartAPI restarts the API server, with or without a farewell. The load waits while it is away.
func (r *round) restartAPI(ctx context.Context, f Fault) error {
	plane := r.arena.plane
	if f.Kind == APICompact {
		if err := plane.Compact(ctx); err != nil {
			return err
		}
	}
	if f.Pick%2 == 0 {
		return plane.RestartAPIServer(ctx)
	}
	return errors.Join(plane.KillAPIServer(), plane.StartAPIServer(ctx))
}

// restartNATS restarts one node or all, and waits until they are together again.
func (r *round) restartNATS(ctx context.Context, f Fault) error {
	nodes := r.arena.nats.Nodes
	if f.Kind == NATSNode {
		nodes = nodes[f.Pick%len(nodes):][:1]
	}
	for _, node := range nodes {
		node.Stop()
	}
	r.clock.wait(f.Hold)
	for _, node := range nodes {
		if err := node.Start(); err != nil {
			return err
		}
	}
	return retry(ctx, harness.Patience, r.arena.nats.Ready)
}

// injectBridge does something to the processes.
func (r *round) injectBridge(f Fault) error {
	return r.each(func(c *contestant) error {
		if err := c.alive(); err != nil {
			return err
		}
		b := c.main
		switch f.Kind {
		case Kill:
			return errors.Join(b.Kill(), r.then(f, c.start))
		case Term:
			return errors.Join(c.term(b), r.then(f, c.start))
		case Pause:
			return errors.Join(b.Signal(syscall.SIGSTOP), r.then(f, func() error { return b.Signal(syscall.SIGCONT) }))
		case Two:
			return r.two(c, f)
		default:
			return r.zombie(c, f)
		}
	})
}

// then waits as long as the fault lasts and ends it.
func (r *round) then(f Fault, end func() error) error {
	r.clock.wait(f.Hold)
	return end()
}

// two starts a second process beside the first. Then either the first goes; or it is started again, takes over, and the
// second, which is fenced now, goes.
func (r *round) two(c *contestant, f Fault) error {
	first := c.main
	second, err := c.launch()
	if err != nil {
		return err
	}
	r.overlap(c, second, f)
	if f.Pick%2 == 0 {
		c.take(second)
		return errors.Join(c.term(first), r.oneLeft(c))
	}
	if err := errors.Join(first.Kill(), c.start()); err != nil {
		return err
	}
	r.overlap(c, c.main, f)
	return errors.Join(c.term(second), r.oneLeft(c))
}

// zombie lets a process that was stopped continue after another has taken over.
func (r *round) zombie(c *contestant, f Fault) error {
	first := c.main
	if err := errors.Join(first.Signal(syscall.SIGSTOP), c.start()); err != nil {
		return err
	}
	r.overlap(c, c.main, f)
	if err := first.Signal(syscall.SIGCONT); err != nil {
		return err
	}
	r.clock.wait(f.Hold)
	return errors.Join(first.Kill(), r.oneLeft(c))
}

// overlap waits until a process that was started beside another has taken over, and then as long as the fault lasts. It
// need not succeed: the broker may be away.
func (r *round) overlap(c *contestant, b *harness.Bridge, f Fault) {
	if err := r.awaitReady(c, b); err != nil {
		r.t.Logf("process %d has not taken over: %v", b.PID(), err)
	}
	r.clock.wait(f.Hold)
}

// oneLeft sees to it that the process that stays does its work. In other trouble the two can have taken over in another
// order than they were started in, and the one that stays is fenced: it is then started again, as its operator would.
func (r *round) oneLeft(c *contestant) error {
	b := c.main
	err := r.awaitReady(c, b)
	if err == nil {
		return nil
	}
	r.t.Logf("process %d is started again: %v", b.PID(), err)
	return errors.Join(b.Kill(), c.start())
}

// awaitReady waits a while until a process is ready. The control does not tell.
func (r *round) awaitReady(c *contestant, b *harness.Bridge) error {
	if c.name != bridgeName {
		return nil
	}
	return retry(r.t.Context(), takeoverPatience, func() error { return b.Ready(r.t.Context()) })
}

// retry calls f until it returns nil.
func retry(ctx context.Context, patience time.Duration, f func() error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		err := f()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("not so after %s: %w", patience, err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}
