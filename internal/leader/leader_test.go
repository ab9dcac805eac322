package leader

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// klog flushes for the life of the process.
		goleak.IgnoreTopFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"))
}

const duration = 15 * time.Second

var leases = schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}

// api is an API server with one Lease, in memory, so that a test's time can be a bubble's.
type api struct {
	mu      sync.Mutex
	record  *resourcelock.LeaderElectionRecord
	version int
	fail    map[string]error // by identity: what requests fail with
	dark    map[string]bool  // by identity: requests are not answered
	delay   func() time.Duration
	writes  []string
}

func newAPI() *api { return &api{fail: map[string]error{}, dark: map[string]bool{}} }

func (a *api) set(f func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f()
}

func (a *api) holder() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.record == nil {
		return "no lease"
	}
	return a.record.HolderIdentity
}

// take makes the lease another's behind everybody's back.
func (a *api) take(identity string) {
	a.set(func() {
		a.record.HolderIdentity = identity
		a.version++
	})
}

// lock is one client's view of the api.
type lock struct {
	api      *api
	identity string
	version  int // that was read or written last
}

func (l *lock) Identity() string     { return l.identity }
func (l *lock) Describe() string     { return "lease" }
func (l *lock) RecordEvent(_ string) {}

// do runs a request: it takes its time on the way there and back, and the server serves it in between.
func (l *lock) do(ctx context.Context, serve func() error) error {
	l.api.mu.Lock()
	dark, fail, delay := l.api.dark[l.identity], l.api.fail[l.identity], l.api.delay
	l.api.mu.Unlock()
	if dark {
		<-ctx.Done()
		return ctx.Err()
	}
	if fail != nil {
		return fail
	}
	wait := func() {
		if delay != nil {
			pause(ctx, delay())
		}
	}
	wait()
	l.api.mu.Lock()
	err := serve() // even if nobody waits for it any more
	l.api.mu.Unlock()
	wait()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

func (l *lock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	var record resourcelock.LeaderElectionRecord
	version := 0
	err := l.do(ctx, func() error {
		if l.api.record == nil {
			return apierrors.NewNotFound(leases, "lease")
		}
		record, version = *l.api.record, l.api.version
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	l.version = version
	raw, err := json.Marshal(record)
	return &record, raw, err
}

func (l *lock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.write(ctx, record, func() error {
		if l.api.record != nil {
			return apierrors.NewAlreadyExists(leases, "lease")
		}
		return nil
	})
}

func (l *lock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.write(ctx, record, func() error {
		if l.api.version != l.version {
			return apierrors.NewConflict(leases, "lease", errors.New("it was changed"))
		}
		return nil
	})
}

func (l *lock) write(ctx context.Context, record resourcelock.LeaderElectionRecord, check func() error) error {
	version := 0
	err := l.do(ctx, func() error {
		if err := check(); err != nil {
			return err
		}
		l.api.version++
		l.api.record, version = &record, l.api.version
		l.api.writes = append(l.api.writes, fmt.Sprintf("%s wrote %q", l.identity, record.HolderIdentity))
		return nil
	})
	if err == nil {
		l.version = version
	}
	return err
}

// candidate is an elector whose work the test steers.
type candidate struct {
	*Elector
	t      *testing.T
	log    *bytes.Buffer
	stop   context.CancelFunc // SIGTERM
	begun  chan [2]context.Context
	finish chan struct{} // the work returns
	ended  chan struct{} // Run has returned
}

// stand makes a candidate and lets it stand for election.
func stand(t *testing.T, a *api, identity string) *candidate {
	t.Helper()
	c := &candidate{
		t: t, log: &bytes.Buffer{},
		begun: make(chan [2]context.Context), finish: make(chan struct{}), ended: make(chan struct{}),
	}
	var err error
	c.Elector, err = newElector(Options{
		Namespace: "ns", Name: "lease", Identity: identity, LeaseDuration: duration,
		Log: slog.New(slog.NewTextHandler(c.log, nil)),
	}, func() {}, func() resourcelock.Interface { return &lock{api: a, identity: identity} })
	if err != nil {
		t.Fatal(err)
	}
	if c.Err() == nil {
		t.Error("no error before the lease was looked at")
	}
	ctx, cancel := context.WithCancel(context.Background())
	c.stop = cancel
	go func() {
		defer close(c.ended)
		c.Run(ctx, func(ctx, lease context.Context) {
			c.begun <- [2]context.Context{ctx, lease}
			<-c.finish
		})
	}()
	return c
}

// leads waits until the work has begun and returns its contexts.
func (c *candidate) leads() (work, lease context.Context) {
	both := <-c.begun
	return both[0], both[1]
}

// quit ends a candidate that stands by, or works.
func (c *candidate) quit() {
	c.stop()
	select {
	case c.finish <- struct{}{}:
		<-c.ended
	case <-c.ended:
	}
}

func (c *candidate) logged(text string) int { return strings.Count(c.log.String(), text) }

func bubble(t *testing.T, f func(t *testing.T, a *api)) {
	synctest.Test(t, func(t *testing.T) { f(t, newAPI()) })
}

// The lease is renewed for as long as the drain takes, and released after it.
func TestReleasedAfterTheDrain(t *testing.T) {
	bubble(t, func(t *testing.T, a *api) {
		one := stand(t, a, "one")
		work, lease := one.leads()
		if one.Err() != nil || !one.Leading() || one.Holder() != "one" || a.holder() != "one" {
			t.Errorf("leading %t, holder %q, lease %q", one.Leading(), one.Holder(), a.holder())
		}
		two := stand(t, a, "two")
		time.Sleep(time.Hour)
		one.stop()
		synctest.Wait()
		if cause := context.Cause(work); !errors.Is(cause, context.Canceled) || errors.Is(cause, ErrLost) {
			t.Errorf("the work ends with %v", cause)
		}
		time.Sleep(10 * duration) // the drain
		if lease.Err() != nil || a.holder() != "one" || two.Leading() || two.Holder() != "one" {
			t.Errorf("while draining: lease context %v, lease %q; the other sees %q", lease.Err(), a.holder(), two.Holder())
		}
		one.finish <- struct{}{}
		<-one.ended
		released := time.Now()
		if a.holder() != "" && a.holder() != "two" {
			t.Errorf("after the drain the lease is %q", a.holder())
		}
		two.leads()
		if took := time.Since(released); took > 5*time.Second {
			t.Errorf("the other took over %s after the release", took)
		}
		two.quit()
	})
}

// L1: the work is told to stop before others can take over.
func TestLostBeforeItRunsOut(t *testing.T) {
	bubble(t, func(t *testing.T, a *api) {
		one := stand(t, a, "one")
		work, lease := one.leads()
		two := stand(t, a, "two")
		time.Sleep(time.Hour + 700*time.Millisecond)
		a.set(func() { a.dark["one"] = true })
		last := a.record.RenewTime.Time
		<-lease.Done()
		if held := time.Since(last); held > duration*2/3 || held < duration/2 {
			t.Errorf("lost %s after the last renewal, want two thirds of %s", held, duration)
		}
		<-work.Done()
		if !errors.Is(context.Cause(work), ErrLost) || !errors.Is(context.Cause(lease), ErrLost) {
			t.Errorf("causes %v and %v", context.Cause(work), context.Cause(lease))
		}
		synctest.Wait()
		if one.Leading() || two.Leading() || one.Err() == nil || one.logged("lease lost") != 1 {
			t.Errorf("leading %t and %t, error %v, log:\n%s", one.Leading(), two.Leading(), one.Err(), one.log)
		}
		one.finish <- struct{}{}
		two.leads()
		a.set(func() { a.dark["one"] = false })
		time.Sleep(time.Minute)
		if a.holder() != "two" || one.Holder() != "two" || one.Err() != nil {
			t.Errorf("the lease is %q, and the former leader sees %q, %v", a.holder(), one.Holder(), one.Err())
		}
		one.quit()
		if a.holder() != "two" {
			t.Errorf("a standby cleared the lease: %q", a.holder())
		}
		two.quit()
	})
}

// What counts is when the last renewal was sent, not when its answer came: others count from in between.
func TestSlowAnswersDoNotMoveTheDeadline(t *testing.T) {
	bubble(t, func(t *testing.T, a *api) {
		a.delay = func() time.Duration { return 1500 * time.Millisecond }
		one := stand(t, a, "one")
		_, lease := one.leads()
		for range 20 {
			time.Sleep(time.Minute)
			if lease.Err() != nil {
				t.Fatal("lost to answers that take 3 s")
			}
		}
		var last time.Time
		a.set(func() { a.dark["one"] = true })
		<-lease.Done()
		// One more may have been under way.
		a.set(func() { last = a.record.RenewTime.Time })
		if held := time.Since(last); held > duration*2/3 {
			t.Errorf("lost %s after the last renewal was sent, want two thirds of %s", held, duration)
		}
		one.quit()
	})
}

// A lease that is lost during the drain cuts it.
func TestLostWhileDraining(t *testing.T) {
	bubble(t, func(t *testing.T, a *api) {
		one := stand(t, a, "one")
		work, lease := one.leads()
		one.stop()
		time.Sleep(time.Minute)
		a.set(func() { a.dark["one"] = true })
		begin := time.Now()
		<-lease.Done()
		if took := time.Since(begin); took > duration*2/3 {
			t.Errorf("lost after %s", took)
		}
		if errors.Is(context.Cause(work), ErrLost) || !errors.Is(context.Cause(lease), ErrLost) {
			t.Errorf("causes %v and %v", context.Cause(work), context.Cause(lease))
		}
		begin = time.Now()
		one.finish <- struct{}{}
		<-one.ended
		if took := time.Since(begin); took != 0 {
			t.Errorf("the end took %s: a lost lease is not to be released", took)
		}
	})
}

func TestAnotherHolderEndsItAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T, a *api) {
		one := stand(t, a, "one")
		_, lease := one.leads()
		time.Sleep(time.Minute)
		a.take("usurper")
		begin := time.Now()
		<-lease.Done()
		if took := time.Since(begin); took > 3*time.Second {
			t.Errorf("noticed after %s, want the next renewal", took)
		}
		one.finish <- struct{}{}
		time.Sleep(duration / 3)
		if a.holder() != "usurper" {
			t.Errorf("the lease was taken back or cleared: %q", a.holder())
		}
		one.leads() // the usurper does not renew
		one.quit()
	})
}

// L2.
func TestLoseAndRegain(t *testing.T) {
	bubble(t, func(t *testing.T, a *api) {
		one := stand(t, a, "one")
		for range 20 {
			_, lease := one.leads()
			time.Sleep(time.Minute)
			a.set(func() { a.dark["one"] = true })
			<-lease.Done()
			one.finish <- struct{}{}
			time.Sleep(time.Minute)
			if one.Leading() {
				t.Fatal("leads without a lease")
			}
			a.set(func() { a.dark["one"] = false })
		}
		one.leads()
		if n := one.logged("lease can be used again"); n != 20 {
			t.Errorf("recovery is logged %d times", n)
		}
		one.quit()
		if a.holder() != "" {
			t.Errorf("not released: %q", a.holder())
		}
	})
}

// A leader whose work gives up makes way.
func TestWorkThatGivesUp(t *testing.T) {
	bubble(t, func(t *testing.T, a *api) {
		one, two := stand(t, a, "one"), (*candidate)(nil)
		one.leads()
		two = stand(t, a, "two")
		time.Sleep(time.Minute)
		one.finish <- struct{}{}
		two.leads()
		if one.Leading() || a.holder() != "two" {
			t.Errorf("the lease is %q", a.holder())
		}
		two.stop()
		two.finish <- struct{}{}
		<-two.ended
		one.leads()
		begin := time.Now()
		one.finish <- struct{}{}
		one.leads() // nobody else is there
		if back := time.Since(begin); back < duration || back > 2*duration {
			t.Errorf("leads again after %s", back)
		}
		one.quit()
	})
}

func TestStopWhileStandingBy(t *testing.T) {
	bubble(t, func(t *testing.T, a *api) {
		one := stand(t, a, "one")
		one.leads()
		two := stand(t, a, "two")
		time.Sleep(time.Minute)
		begin := time.Now()
		two.quit()
		if took := time.Since(begin); took != 0 || a.holder() != "one" {
			t.Errorf("stopping took %s; the lease is %q", took, a.holder())
		}
		one.quit()
	})
}

// The lease is created only once, and a lease deleted under a leader is made again.
func TestDeletedLease(t *testing.T) {
	bubble(t, func(t *testing.T, a *api) {
		one := stand(t, a, "one")
		_, lease := one.leads()
		time.Sleep(time.Minute)
		a.set(func() { a.record = nil; a.version++ })
		time.Sleep(time.Minute)
		if a.holder() != "one" || lease.Err() != nil {
			t.Errorf("the lease is %q, the context %v", a.holder(), lease.Err())
		}
		one.quit()
	})
}

// A renewal that is cut off by the end of the drain can arrive between the read and the write of the release.
func TestReleaseMeetsALateRenewal(t *testing.T) {
	bubble(t, func(t *testing.T, a *api) {
		one := stand(t, a, "one")
		one.leads()
		time.Sleep(time.Minute)
		conflicts := 2
		a.set(func() {
			a.delay = func() time.Duration {
				a.mu.Lock()
				defer a.mu.Unlock()
				if conflicts > 0 {
					conflicts--
					a.version++
				}
				return 0
			}
		})
		one.quit()
		if a.holder() != "" || conflicts != 0 {
			t.Errorf("the lease is %q; %d conflicts did not happen", a.holder(), conflicts)
		}
	})
}

func TestReleaseIsBounded(t *testing.T) {
	bubble(t, func(t *testing.T, a *api) {
		one := stand(t, a, "one")
		one.leads()
		time.Sleep(time.Minute)
		a.set(func() { a.dark["one"] = true })
		begin := time.Now()
		one.quit()
		if took := time.Since(begin); took != duration/3 {
			t.Errorf("the stop took %s, want the limit of a request", took)
		}
		if one.logged("runs out by itself") != 1 {
			t.Errorf("not logged:\n%s", one.log)
		}
	})
}

// What keeps a candidate from the lease is named, and logged once.
func TestLeaseCannotBeUsed(t *testing.T) {
	bubble(t, func(t *testing.T, a *api) {
		a.fail["one"] = apierrors.NewForbidden(leases, "lease", errors.New("no right to get it"))
		one := stand(t, a, "one")
		time.Sleep(time.Hour)
		if err := one.Err(); err == nil || !strings.Contains(err.Error(), "lease ns/lease: ") || !strings.Contains(err.Error(), "no right to get it") {
			t.Errorf("error %v", err)
		}
		if one.logged("no right to get it") != 1 {
			t.Errorf("log:\n%s", one.log)
		}
		n := 0
		for range 60 {
			n++
			a.set(func() { a.fail["one"] = fmt.Errorf("read tcp 127.0.0.1:%d: connection reset", 40000+n) })
			time.Sleep(10 * time.Second)
		}
		if lines := one.logged("connection reset"); lines < 1 || lines > 11 {
			t.Errorf("%d lines in ten minutes:\n%s", lines, one.log)
		}
		a.set(func() { a.dark["one"] = true })
		time.Sleep(time.Minute)
		if err := one.Err(); err == nil || !strings.Contains(err.Error(), "does not answer within 5s") {
			t.Errorf("error %v", err)
		}
		a.set(func() { delete(a.dark, "one"); delete(a.fail, "one") })
		one.leads()
		if one.Err() != nil {
			t.Errorf("error %v", one.Err())
		}
		one.quit()
	})
}

func TestOptionsThatCannotBeUsed(t *testing.T) {
	for _, d := range []time.Duration{0, -time.Second, 500 * time.Millisecond, 1500 * time.Millisecond} {
		_, err := newElector(Options{Identity: "i", LeaseDuration: d, Log: slog.New(slog.DiscardHandler)}, nil,
			func() resourcelock.Interface { return &lock{identity: "i"} })
		if err == nil {
			t.Errorf("a lease of %s is accepted", d)
		}
	}
	_, err := newElector(Options{LeaseDuration: duration, Log: slog.New(slog.DiscardHandler)}, nil,
		func() resourcelock.Interface { return &lock{} })
	if err == nil {
		t.Error("an empty identity is accepted")
	}
}

// TestNeverTwo lets three candidates suffer slow and dead connections for hours: no two hold the lease at a time, as
// long as each heeds its context.
func TestNeverTwo(t *testing.T) {
	for seed := range uint64(3) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			bubble(t, func(t *testing.T, a *api) {
				random := rand.New(rand.NewPCG(seed, 0))
				step := rand.New(rand.NewPCG(seed, 1))
				var mu sync.Mutex
				a.delay = func() time.Duration {
					mu.Lock()
					defer mu.Unlock()
					if random.IntN(3) > 0 {
						return 0
					}
					return time.Duration(random.Int64N(int64(4 * time.Second)))
				}
				holds, terms := "", map[string]int{}
				ctx, cancel := context.WithCancel(context.Background())
				var running sync.WaitGroup
				names := []string{"one", "two", "three"}
				for _, name := range names {
					e, err := newElector(Options{Identity: name, LeaseDuration: duration, Log: slog.New(slog.DiscardHandler)},
						func() {}, func() resourcelock.Interface { return &lock{api: a, identity: name} })
					if err != nil {
						t.Fatal(err)
					}
					running.Go(func() {
						e.Run(ctx, func(_, lease context.Context) {
							mu.Lock()
							if holds != "" {
								t.Errorf("%s leads while %s does", name, holds)
							}
							holds = name
							terms[name]++
							work := time.Duration(random.Int64N(int64(10 * time.Minute)))
							mu.Unlock()
							pause(lease, work)
							mu.Lock()
							holds = ""
							mu.Unlock()
						})
					})
				}
				for range 500 {
					time.Sleep(time.Duration(step.Int64N(int64(90 * time.Second))))
					mu.Lock()
					name, dark := names[random.IntN(3)], random.IntN(2) == 0
					mu.Unlock()
					a.set(func() { a.dark[name] = dark })
				}
				cancel()
				running.Wait()
				total := terms["one"] + terms["two"] + terms["three"]
				if total < 20 || len(terms) < 3 {
					t.Errorf("that is too little to show anything: %v", terms)
				}
				t.Log(terms)
			})
		})
	}
}
