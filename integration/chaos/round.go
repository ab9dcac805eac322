package chaos

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/deltabridge/deltabridge/integration/check"
	"github.com/deltabridge/deltabridge/integration/harness"
)

const (
	// settleTimeout bounds how long a stream may take to come to rest after the last fault.
	settleTimeout = 3 * time.Minute
	// quiet is how long nothing may be stored, after the marks of the end, until the stream is at rest though it is
	// not right.
	quiet = 20 * time.Second
	// roundTimeout is for a round that hangs.
	roundTimeout = 20 * time.Minute
	// marker is the name of the objects that are created last.
	marker = "marker"
	// baseObjects are there of each resource before the bridge starts.
	baseObjects = 3
)

// round is a plan that is carried out.
type round struct {
	t           testing.TB
	arena       *Arena
	plan        Plan
	namespace   string
	clock       *clock
	load        *load
	contestants []*contestant
	recording   *check.Recording

	mu       sync.Mutex
	faults   int
	injected []Injected
}

// Run carries out a plan with the bridge and, unless it is empty, the control's binary, and returns what came of it. It
// ends the test only where a server fails; what the bridge did wrong is in the result.
func (a *Arena) Run(t testing.TB, plan Plan, bridge, control string) *Result {
	t.Helper()
	a.rounds++
	ctx, cancel := context.WithTimeout(t.Context(), roundTimeout)
	defer cancel()
	r := &round{t: t, arena: a, plan: plan, namespace: fmt.Sprintf("chaos-%d", a.rounds), clock: newClock()}
	r.load = &load{client: a.client, namespace: r.namespace, clock: r.clock, counts: map[Action]int{}}
	r.contestants = []*contestant{a.newContestant(bridgeName, bridge, "KUBE", "kube")}
	if control != "" {
		r.contestants = append(r.contestants, a.newContestant(controlName, control, "CONTROL", "control"))
	}
	defer r.clean()
	begin := time.Now()
	if err := r.prepare(ctx); err != nil {
		t.Fatalf("begin the round of seed %d: %v", plan.Seed, err)
	}
	if err := r.fight(ctx); err != nil {
		t.Fatalf("in the round of seed %d: %v", plan.Seed, err)
	}
	result := r.judge(ctx)
	result.Took = time.Since(begin)
	return result
}

// each calls f for every contestant, all at once.
func (r *round) each(f func(*contestant) error) error {
	errs := make([]error, len(r.contestants))
	var running sync.WaitGroup
	for i, c := range r.contestants {
		running.Go(func() { errs[i] = f(c) })
	}
	running.Wait()
	return errors.Join(errs...)
}

// prepare brings everything into step: the streams hold what is there, and the recording begins.
func (r *round) prepare(ctx context.Context) error {
	if err := createNamespace(ctx, r.arena.client, r.namespace); err != nil {
		return err
	}
	for i := range baseObjects {
		if err := r.createEverywhere(ctx, fmt.Sprintf("base-%d", i)); err != nil {
			return err
		}
	}
	err := r.each(func(c *contestant) error {
		if err := c.start(); err != nil {
			return err
		}
		return r.awaitStart(ctx, c)
	})
	if err != nil {
		return err
	}
	r.recording = check.RecordStore(r.t, r.arena.client, selection(),
		check.Store{URL: r.arena.plane.StoreURL(), Prefixes: prefixes()})
	return nil
}

// awaitStart waits until a contestant's stream holds the cluster's state.
func (r *round) awaitStart(ctx context.Context, c *contestant) error {
	err := retry(ctx, harness.Patience, func() error {
		_, report, err := c.check.Once(ctx)
		if err != nil {
			return err
		}
		if wrong := report.Only(check.Missing, check.Stale); len(wrong) > 0 {
			return fmt.Errorf("%d objects are not in the stream: %s", len(wrong), wrong[0])
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("the %s does not publish what there is: %w\nIts log ends:\n%s", c.name, err, c.main.Tail(20))
	}
	return nil
}

func (r *round) createEverywhere(ctx context.Context, name string) error {
	for i := range resources {
		step := Step{Action: Create, Resource: i, Name: name, Value: name}
		if err := r.load.insist(ctx, step, r.load.create); err != nil {
			return fmt.Errorf("create %s %s: %w", resources[i].plural(), name, err)
		}
	}
	return nil
}

// fight runs the load and the faults, until the load is done and every fault is over.
func (r *round) fight(ctx context.Context) error {
	var tracks sync.WaitGroup
	for track := range r.plan.Mix.Tracks {
		tracks.Go(func() { r.follow(ctx, track) })
	}
	err := r.load.run(ctx, r.plan)
	tracks.Wait()
	if err != nil {
		return fmt.Errorf("run the load: %w", err)
	}
	if err := r.each((*contestant).alive); err != nil {
		return err
	}
	return r.createEverywhere(ctx, marker)
}

func (r *round) number() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.faults++
	return r.faults
}

func (r *round) note(i Injected) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.injected = append(r.injected, i)
}

// judge waits until the streams are at rest, and checks them.
func (r *round) judge(ctx context.Context) *Result {
	result := &Result{Plan: r.plan, Injected: r.injected, Steps: r.load.counts}
	outcomes := make([]Outcome, len(r.contestants))
	var running sync.WaitGroup
	for i, c := range r.contestants {
		running.Go(func() { outcomes[i] = r.settle(ctx, c) })
	}
	running.Wait()
	for i, c := range r.contestants {
		if err := c.alive(); err != nil {
			c.blame("%v", err)
		}
		c.end()
		outcomes[i].Misdeeds = c.misdeeds
		outcomes[i].Unrecorded = r.unrecorded()
		if report := outcomes[i].Report; report != nil && r.plan.Mix.keepsVersions() {
			outcomes[i].Withheld = report.MarkedHere + report.MarkedElsewhere
		}
	}
	result.Bridge = outcomes[0]
	if len(outcomes) > 1 {
		result.Control = &outcomes[1]
	}
	r.keep(result)
	return result
}

// unrecorded returns the versions that the API server answered the load with and that the recording lacks. There are
// none, or the recording is no measure of anything.
func (r *round) unrecorded() []string {
	recorded := map[string]bool{}
	for _, c := range r.recording.Changes() {
		recorded[c.UID+"/"+c.RV] = true
	}
	var lacking []string
	for _, version := range r.load.acknowledged[baseObjects*len(resources):] {
		if !recorded[version] {
			lacking = append(lacking, version)
		}
	}
	return lacking
}

// settle waits until a stream is right, or at rest without being right, or the time is over.
func (r *round) settle(ctx context.Context, c *contestant) Outcome {
	all := c.check
	all.Recording = r.recording
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	var (
		outcome Outcome
		grown   = time.Now()
		objects = -1
	)
	for {
		stream, report, err := all.Once(r.t.Context())
		if err == nil {
			if r.arena.Lenient {
				report.Drop(check.Malformed, check.Unconditional, check.Reduced)
			}
			outcome.Stream, outcome.Report = stream, report
			if n := len(stream.Objects("")); n != objects || !r.marked(stream) {
				objects, grown = n, time.Now()
			}
			awaited := report.Only(check.Missing, check.Stale, check.Lost, check.LostDelete, check.Incomplete)
			if r.marked(stream) && len(awaited) == 0 || time.Since(grown) > quiet {
				return outcome
			}
		}
		select {
		case <-ctx.Done():
			outcome.Restless = fmt.Sprintf("the stream was not at rest %s after the last fault (%v)", settleTimeout, err)
			return outcome
		case <-time.After(time.Second):
		}
	}
}

// marked reports whether a stream has the objects that were created last.
func (r *round) marked(s *check.Stream) bool {
	for _, res := range resources {
		object := check.Object{Group: res.Group, Resource: res.Resource, Namespace: r.namespace, Name: marker}
		if len(s.History(object)) == 0 {
			return false
		}
	}
	return true
}

// clean ends what still runs and removes what the round made.
func (r *round) clean() {
	if r.recording != nil {
		r.recording.Stop()
	}
	var streams []string
	for _, c := range r.contestants {
		c.end()
		streams = append(streams, c.check.Stream)
	}
	ctx, cancel := context.WithTimeout(context.Background(), harness.Patience)
	defer cancel()
	if err := retry(ctx, harness.Patience, func() error { return r.arena.clean(ctx, r.namespace, streams...) }); err != nil {
		r.t.Errorf("clean up after the round of seed %d: %v", r.plan.Seed, err)
	}
}
