package leader

import (
	"context"
	"errors"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// term is one attempt to lead, from standing by to the end of leading. It stands between client-go's elector and the
// Lease, bounds each request, and sees what comes of it.
type term struct {
	resourcelock.Interface
	elector  *Elector
	acquired chan struct{} // closed when the lease is ours
	lost     chan struct{} // closed when it must be taken for another's

	mu       sync.Mutex
	isHeld   bool
	isLost   bool
	deadline *time.Timer // loses the lease
}

var _ resourcelock.Interface = (*term)(nil)

func newTerm(e *Elector) *term {
	return &term{Interface: e.newLock(), elector: e, acquired: make(chan struct{}), lost: make(chan struct{})}
}

// Get reads the lease.
func (t *term) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	ctx, cancel := context.WithTimeout(ctx, t.elector.requestTimeout)
	defer cancel()
	record, raw, err := t.Interface.Get(ctx)
	if apierrors.IsNotFound(err) {
		t.elector.note(nil) // it is created next
		return record, raw, err
	}
	t.elector.note(err)
	if err != nil {
		return record, raw, err
	}
	t.elector.observe(record.HolderIdentity)
	if holder := record.HolderIdentity; holder != "" && holder != t.Identity() && t.held() {
		t.lose("another process has taken it: " + holder)
	}
	return record, raw, nil
}

// Create makes the lease ours.
func (t *term) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return t.write(ctx, record, t.Interface.Create)
}

// Update makes the lease ours, or renews it.
func (t *term) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return t.write(ctx, record, t.Interface.Update)
}

func (t *term) write(ctx context.Context, record resourcelock.LeaderElectionRecord, write func(context.Context, resourcelock.LeaderElectionRecord) error) error {
	// Others count from when they see the renewal, which is after it was sent.
	sent := time.Now()
	ctx, cancel := context.WithTimeout(ctx, t.elector.requestTimeout)
	defer cancel()
	err := write(ctx, record)
	if isConflict(err) {
		t.elector.note(nil) // another process was faster; client-go reads the lease next
		return err
	}
	t.elector.note(err)
	if err == nil {
		t.elector.observe(record.HolderIdentity)
		t.renewed(sent)
	}
	return err
}

// renewed moves the deadline. The first time it starts the term.
func (t *term) renewed(sent time.Time) {
	left := time.Until(sent.Add(t.elector.renewDeadline))
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.isLost: // too late: the work was told to stop
	case !t.isHeld:
		t.isHeld = true
		t.deadline = time.AfterFunc(left, func() { t.lose("it could not be renewed in time") })
		close(t.acquired)
	default:
		t.deadline.Reset(left)
	}
}

func (t *term) held() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.isHeld
}

// lose ends the term for a reason.
func (t *term) lose(why string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.isLost {
		return
	}
	t.isLost = true
	close(t.lost)
	t.elector.log.Warn("lease lost, stopping to lead", "reason", why, "error", t.elector.Err())
}

// end stops the clock when the work has returned, and reports whether the lease was held and never lost.
func (t *term) end() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.deadline != nil {
		t.deadline.Stop()
	}
	kept := t.isHeld && !t.isLost
	t.isLost = true
	return kept
}

// isConflict reports whether the lease was not what the writer had read.
func isConflict(err error) bool { return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) }

// isAnswer reports whether the API server gave the error itself, so that the way to it is in order.
func isAnswer(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status)
}
