// Package leader elects one of several processes by a Kubernetes Lease. The election is client-go's; this package adds
// what publishing needs of it:
//
//   - The work is told to stop when the lease could not be renewed for the renewal deadline, counted from the moment at
//     which the last renewal that worked was sent. client-go counts from when it begins its next attempt, which can be
//     after the lease has run out for others.
//   - Seeing another holder ends the work at once, not at the deadline.
//   - While the work drains, the lease is still being renewed; it is released when the work has returned.
//   - Only a lease that is still ours is released. client-go's own release believes what it saw last, and would clear the
//     lease of whoever took over meanwhile.
//
// A Lease alone does not make one writer: a process can be paused between looking at the clock and sending. What such a
// process sends must be refused where it arrives, and is.
package leader

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"
)

// ErrLost is the cause with which the contexts of the work end when the lease could not be renewed in time, or is
// another's.
var ErrLost = errors.New("the lease is lost")

// Options configure an Elector.
type Options struct {
	// Config says how to reach the API server. Its limits are not used: a renewal must not wait for other requests.
	Config *rest.Config
	// Namespace and Name are the Lease's. It is created if it is missing; the namespace is not.
	Namespace, Name string
	// Identity names this process among all that may ever stand for election.
	Identity string
	// LeaseDuration is how long others wait for a leader that has gone silent. The Lease holds it in whole seconds, and
	// so must this be. Renewal is tried every 2/15 of it; after 2/3 of it without success the lease is lost.
	LeaseDuration time.Duration
	Log           *slog.Logger
}

// Elector stands for election. Its methods are safe for concurrent use, but Run is to be called once.
type Elector struct {
	options        Options
	log            *slog.Logger
	newLock        func() resourcelock.Interface
	closeIdle      func() // drops connections that may be dead
	renewDeadline  time.Duration
	retryPeriod    time.Duration
	requestTimeout time.Duration

	mu       sync.Mutex
	leading  bool
	holder   string
	err      error
	logged   string // failure as it was last logged, empty for none
	loggedAt time.Time
}

// New returns an Elector that does nothing until it runs. An error means that the options cannot be used.
func New(o Options) (*Elector, error) {
	client, closeIdle, err := newClient(o.Config)
	if err != nil {
		return nil, fmt.Errorf("make a client for the lease: %w", err)
	}
	return newElector(o, closeIdle, func() resourcelock.Interface {
		return &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: o.Namespace, Name: o.Name},
			Client:     client,
			LockConfig: resourcelock.ResourceLockConfig{Identity: o.Identity},
		}
	})
}

func newElector(o Options, closeIdle func(), newLock func() resourcelock.Interface) (*Elector, error) {
	if o.LeaseDuration < time.Second || o.LeaseDuration%time.Second != 0 {
		return nil, fmt.Errorf("lease duration %s is not one or more whole seconds", o.LeaseDuration)
	}
	e := &Elector{
		options:       o,
		log:           o.Log.With("lease", o.Namespace+"/"+o.Name),
		newLock:       newLock,
		closeIdle:     closeIdle,
		renewDeadline: o.LeaseDuration * 2 / 3,
		retryPeriod:   o.LeaseDuration * 2 / 15,
	}
	e.err = e.explain(errors.New("not read yet"))
	e.requestTimeout = e.renewDeadline / 2 // so that a request which hangs leaves time for another one
	if _, err := e.newCampaign(newTerm(e)); err != nil {
		return nil, fmt.Errorf("set up the election: %w", err)
	}
	return e, nil
}

// newClient returns a client with connections of its own, and what closes those that are idle. A connection whose other
// end is gone without a word would take one request after another into its death if it were shared with watches, which
// keep it from being idle.
func newClient(config *rest.Config) (*coordinationv1.CoordinationV1Client, func(), error) {
	config = rest.CopyConfig(config)
	config.QPS, config.RateLimiter = -1, nil
	config.Timeout = 0 // each request has its own
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	config.Dial = (&net.Dialer{Timeout: 10 * time.Second}).DialContext
	httpClient, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, nil, err
	}
	client, err := coordinationv1.NewForConfigAndClient(config, httpClient)
	if err != nil {
		return nil, nil, err
	}
	return client, func() { utilnet.CloseIdleConnectionsFor(httpClient.Transport) }, nil
}

// newCampaign returns client-go's elector for one term. What it does shows in the term; its own callbacks are not
// needed.
func (e *Elector) newCampaign(t *term) (*leaderelection.LeaderElector, error) {
	return leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock:          t,
		Name:          e.options.Name,
		LeaseDuration: e.options.LeaseDuration,
		RenewDeadline: e.renewDeadline,
		RetryPeriod:   e.retryPeriod,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) {},
			OnStoppedLeading: func() {},
		},
	})
}

// Run stands by until the lease is acquired, calls lead, and stands by again when lead has returned, until ctx ends. It
// returns when lead has returned and the lease is released, which takes half the renewal deadline at most.
//
// The first context that lead is given ends when ctx does, with its cause, or when the lease is lost, with ErrLost. The
// second ends only when the lease is lost, before the first does: until then lead may go on with what it has begun, and
// from then on must do nothing that only the leader may do. Others can take over a third of the lease duration later.
//
// If lead returns without either, the lease is released, and this process stands back for one lease duration, so that
// another one gets it.
func (e *Elector) Run(ctx context.Context, lead func(ctx, lease context.Context)) {
	defer e.closeIdle()
	for ctx.Err() == nil {
		if gaveUp := e.serve(ctx, lead); gaveUp {
			pause(ctx, e.options.LeaseDuration)
		}
	}
}

// serve stands by, leads once, and returns. It reports whether lead gave up a lease that it could have kept.
func (e *Elector) serve(ctx context.Context, lead func(ctx, lease context.Context)) (gaveUp bool) {
	t := newTerm(e)
	campaign, err := e.newCampaign(t)
	if err != nil { // New has tried it with the same options
		e.log.Error("cannot stand for election", "error", err)
		return true
	}
	// Renewal goes on when ctx ends, until lead has returned. What client-go logs of each attempt, note logs once.
	renewing, stopRenewing := context.WithCancel(klog.NewContext(context.WithoutCancel(ctx), klog.Logger{}))
	defer stopRenewing()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		campaign.Run(renewing)
	}()
	select {
	case <-t.acquired:
		e.hold(ctx, t, ended, lead)
	case <-ctx.Done():
	case <-ended:
	}
	stopRenewing()
	<-ended
	// Only now can no renewal of ours follow the release.
	switch {
	case !t.end():
		return false
	case !e.release():
		return false
	}
	return ctx.Err() == nil
}

// hold calls lead and returns when lead has, after telling it of the loss of the lease if that came first.
func (e *Elector) hold(ctx context.Context, t *term, ended <-chan struct{}, lead func(ctx, lease context.Context)) {
	lease, endLease := context.WithCancelCause(context.WithoutCancel(ctx))
	defer endLease(nil)
	work, endWork := context.WithCancelCause(ctx)
	defer endWork(nil)
	returned := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() {
		select {
		case <-returned:
			return
		case <-t.lost:
		case <-ended: // client-go has given up
			t.lose("it could not be renewed")
		}
		e.setLeading(false)
		endLease(ErrLost)
		endWork(ErrLost)
	})
	e.setLeading(true)
	e.log.Info("leading", "identity", e.options.Identity)
	lead(work, lease)
	close(returned)
	watch.Wait()
	e.setLeading(false)
}

// release clears the lease if it is still ours, so that others need not wait for its end. It reports whether it did.
func (e *Elector) release() bool {
	ctx, cancel := context.WithTimeout(context.Background(), e.requestTimeout)
	defer cancel()
	lock := e.newLock()
	for {
		record, _, err := lock.Get(ctx)
		if err == nil && record.HolderIdentity != e.options.Identity {
			return false
		}
		if err == nil {
			now := metav1.Now()
			record.HolderIdentity, record.AcquireTime, record.RenewTime = "", now, now
			record.LeaseDurationSeconds = 1 // zero is not allowed
			err = lock.Update(ctx, *record)
		}
		switch {
		case err == nil:
			e.observe("")
			e.log.Info("lease released")
			return true
		case isConflict(err): // a renewal that was cut off has arrived after all
			continue
		}
		e.log.Warn("lease cannot be released, it runs out by itself", "error", e.explain(err))
		return false
	}
}

// Leading reports whether this process holds the lease and works.
func (e *Elector) Leading() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.leading
}

// Holder returns the identity that the lease was last seen with; empty if nobody held it, or if it was not seen yet.
func (e *Elector) Holder() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.holder
}

// Err returns why the lease could not be read or written at the last attempt, nil if it could. Before the first attempt it
// says just that.
func (e *Elector) Err() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.err
}

func (e *Elector) setLeading(leading bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.leading = leading
}

// observe takes note of the lease's holder.
func (e *Elector) observe(holder string) {
	e.mu.Lock()
	changed := holder != e.holder
	e.holder = holder
	e.mu.Unlock()
	if changed && holder != "" && holder != e.options.Identity {
		e.log.Info("standing by, another process leads", "holder", holder)
	}
}

// logPeriod is how often failures whose texts differ are logged at most.
const logPeriod = time.Minute

// note takes note of how an attempt to read or write the lease ended, and logs a failure once.
func (e *Elector) note(err error) {
	if errors.Is(err, context.Canceled) {
		return // we ended it
	}
	if err != nil && !isAnswer(err) {
		e.closeIdle()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if err == nil {
		if e.logged != "" {
			e.log.Info("lease can be used again")
		}
		e.err, e.logged = nil, ""
		return
	}
	e.err = e.explain(err)
	text := e.err.Error()
	if e.logged == "" || text != e.logged && time.Since(e.loggedAt) >= logPeriod {
		e.logged, e.loggedAt = text, time.Now()
		e.log.Warn("lease cannot be used, trying again", "error", text)
	}
}

// explain says of an error what it is about.
func (e *Elector) explain(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("the API server does not answer within %s", e.requestTimeout)
	}
	return fmt.Errorf("lease %s/%s: %w", e.options.Namespace, e.options.Name, err)
}

// pause waits for the duration or the end of the context.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
