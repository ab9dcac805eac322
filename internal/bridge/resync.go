package bridge

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/deltabridge/deltabridge/internal/change"
	"github.com/deltabridge/deltabridge/internal/informer"
)

// A repetition is handed to the publisher only while less than this waits there. So changes go first, a resync needs no
// memory to speak of while the broker is away, and there is still enough under way to use the connection.
const (
	repeatMessages = 64
	repeatBytes    = 4 << 20
)

// repeat is where a state that is no change enters the line. It does not block.
func repeat(p Publisher) func(*change.Change) bool {
	return func(c *change.Change) bool {
		if messages, bytes := p.Pending(); messages >= repeatMessages || bytes >= repeatBytes {
			return false
		}
		p.Publish(c)
		return true
	}
}

const (
	// resyncRate is how many objects a resync on request hands on each second at most.
	resyncRate = 1000
	// resyncPause is how soon is looked again whether what a resync waits for has come.
	resyncPause = 20 * time.Millisecond
	// resyncPatience is how long it waits: for the watch to deliver what a list had, which on an idle resource takes until
	// the API server's next bookmark, a minute; and for anything to be published.
	resyncPatience = 3 * time.Minute
	// resyncReport is how often it reports.
	resyncReport = 500 * time.Millisecond
	// resyncLargest bounds the error's text, of which a resource may have one each.
	resyncLargest = 2000
)

// ResyncRequest says what is to be published again. The zero value means everything that is followed.
type ResyncRequest struct {
	Resources []string // as informer.Manager.Targets has them
	Namespace string   // empty for all
	Selector  string   // of labels, as in kubectl
}

// ResyncProgress counts what a resync has done. It is part of /statusz and of the answers to a request.
type ResyncProgress struct {
	Done     bool   `json:"done"`
	Resource string `json:"resource,omitempty"` // the one at hand
	Total    int    `json:"total"`              // objects listed so far
	Synced   int    `json:"synced"`             // of which the state was published again
	Repaired int    `json:"repaired"`           // of which the stream had an older state, or none
	Deleted  int    `json:"deleted"`            // objects that the stream had and the cluster has not
	// Overtaken counts objects of which the stream has something newer by now: they changed meanwhile.
	Overtaken int       `json:"overtaken"`
	Started   time.Time `json:"started"`
	Error     string    `json:"error,omitempty"` // why it failed, or what of it
}

// Errors of a resync request.
var (
	// ErrResyncRunning means that a resync is under way; there is one at a time.
	ErrResyncRunning = errors.New("a resync is running already, wait for its end")
	// ErrNotPublishing means that the bridge does not publish at the moment.
	ErrNotPublishing = errors.New("the bridge does not publish at the moment")
	// ErrBadRequest is wrapped by the error of a request that says nothing that there is.
	ErrBadRequest = errors.New("bad request")
)

// resyncs is the part of a Bridge that resyncs on request use.
type resyncs struct {
	running sync.Mutex // held while one is under way

	mu      sync.Mutex
	session context.Context // of the session that publishes
	last    *resyncRun      // the present one, or the last
}

// open lets resyncs begin, until the session ends.
func (r *resyncs) open(session context.Context) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.session = session
}

// wait blocks until no resync is under way; the end of the session ends it.
func (r *resyncs) wait() {
	r.running.Lock()
	defer r.running.Unlock()
}

// status returns the counts of the present resync or the last one, nil if there was none.
func (r *resyncs) status() *ResyncProgress {
	r.mu.Lock()
	run := r.last
	r.mu.Unlock()
	if run == nil {
		return nil
	}
	p := run.snapshot()
	return &p
}

// Resync publishes the present state of what the request says: what differs from the stream as a repair, the rest as
// synced. It blocks until everything is acknowledged, and calls report now and then, on one goroutine at a time. The
// error is ErrResyncRunning, ErrNotPublishing, or wraps ErrBadRequest, where nothing was done; else it says what failed.
func (b *Bridge) Resync(ctx context.Context, request ResyncRequest, report func(ResyncProgress)) (ResyncProgress, error) {
	if !b.resyncs.running.TryLock() {
		return ResyncProgress{}, ErrResyncRunning
	}
	defer b.resyncs.running.Unlock()
	b.mu.Lock()
	source, p, positions := b.source, b.publisher, b.positions
	b.mu.Unlock()
	b.resyncs.mu.Lock()
	session := b.resyncs.session
	b.resyncs.mu.Unlock()
	if source == nil || positions == nil || session == nil || session.Err() != nil {
		return ResyncProgress{}, ErrNotPublishing
	}
	targets, err := targetsOf(source, request)
	if err != nil {
		return ResyncProgress{}, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(session, func() { cancel(ErrNotPublishing) })()
	run := &resyncRun{
		source: source, publisher: p, positions: positions, request: request, id: informer.NewRun(time.Now()),
		limit: flowcontrol.NewTokenBucketRateLimiter(resyncRate, resyncRate/10), moved: make(chan struct{}, 1),
		progress: ResyncProgress{Started: time.Now()},
	}
	b.resyncs.mu.Lock()
	b.resyncs.last = run
	b.resyncs.mu.Unlock()
	b.log.Info("resync begins", "resources", len(targets), "namespace", request.Namespace, "selector", request.Selector)
	err = run.reporting(ctx, targets, report)
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	done := run.finish(err)
	b.log.Info("resync ends", "total", done.Total, "synced", done.Synced, "repaired", done.Repaired,
		"deleted", done.Deleted, "overtaken", done.Overtaken, "error", done.Error)
	return done, err
}

// targetsOf checks a request and returns the resources that it means.
func targetsOf(source Source, request ResyncRequest) ([]schema.GroupResource, error) {
	if _, err := labels.Parse(request.Selector); err != nil {
		return nil, fmt.Errorf("%w: selector %q: %w", ErrBadRequest, request.Selector, err)
	}
	targets, err := source.Targets(request.Resources, request.Namespace)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBadRequest, err)
	}
	return targets, nil
}

// resyncRun is one resync on request.
type resyncRun struct {
	source    Source
	publisher Publisher
	positions *positions
	request   ResyncRequest
	id        string
	limit     flowcontrol.RateLimiter
	moved     chan struct{} // something was published

	mu       sync.Mutex
	progress ResyncProgress
	waiting  int // handed on and not done
}

func (r *resyncRun) snapshot() ResyncProgress {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.progress
}

func (r *resyncRun) count(f func(*ResyncProgress)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f(&r.progress)
}

func (r *resyncRun) finish(err error) ResyncProgress {
	r.count(func(p *ResyncProgress) {
		p.Done, p.Resource = true, ""
		if err != nil {
			p.Error = err.Error()
		}
	})
	return r.snapshot()
}

// reporting runs the resync, and reports meanwhile.
func (r *resyncRun) reporting(ctx context.Context, targets []schema.GroupResource, report func(ResyncProgress)) error {
	ended := make(chan error, 1)
	go func() { ended <- r.all(ctx, targets) }()
	ticker := time.NewTicker(resyncReport)
	defer ticker.Stop()
	for {
		report(r.snapshot())
		select {
		case err := <-ended:
			return err
		case <-ticker.C:
		}
	}
}

// all resyncs one resource after the other. One that fails holds up no other one.
func (r *resyncRun) all(ctx context.Context, targets []schema.GroupResource) error {
	var failed []string
	for _, gr := range targets {
		r.count(func(p *ResyncProgress) { p.Resource = gr.String() })
		of := &resourceResync{resyncRun: r, gr: gr, listed: map[string]bool{}}
		scope := informer.Scope{Resource: gr, Namespace: r.request.Namespace, Selector: r.request.Selector}
		err := r.source.Survey(ctx, scope, r.id, func(page informer.Page) error { return of.page(ctx, page) })
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			failed = append(failed, err.Error())
		}
	}
	if err := r.drain(ctx); err != nil {
		failed = append(failed, err.Error())
	}
	if len(failed) == 0 {
		return nil
	}
	text := strings.Join(failed, "; ")
	return errors.New(text[:min(len(text), resyncLargest)])
}

// resourceResync is the part of a resync that concerns one resource.
type resourceResync struct {
	*resyncRun
	gr     schema.GroupResource
	listed map[string]bool // names of the present list, "namespace/name"
}

// page publishes the states of one page, and after the last one looks for what the list does not have.
func (r *resourceResync) page(ctx context.Context, page informer.Page) error {
	ordered := compares(page.Version)
	for _, c := range page.States {
		r.count(func(p *ResyncProgress) { p.Total++ })
		r.listed[c.Ref.Namespace+"/"+c.Ref.Name] = true
		if ordered {
			if err := r.awaitChange(ctx, c); err != nil {
				return err
			}
			gone, err := r.deletedSince(ctx, c)
			if err != nil {
				return err
			}
			if gone {
				continue
			}
		} else {
			c.Reason = change.ReasonResync // it cannot be told what is older
		}
		if err := r.hand(ctx, c); err != nil {
			return err
		}
	}
	if page.Covers == nil {
		return nil
	}
	defer clear(r.listed)
	if !ordered || r.request.Selector != "" {
		return nil // which of the others the selector means cannot be told
	}
	return r.absent(ctx, page)
}

// awaitChange waits until a state is not on its way any more: until the stream is known to have it or something newer,
// or until everything up to its version is published, so that a stream without it has lost it.
func (r *resourceResync) awaitChange(ctx context.Context, c *change.Change) error {
	return r.await(ctx, c.RV, func() bool {
		stored, known := r.positions.checkpoint.Stored(c.Ref)
		return known && notOlder(stored.RV, c.RV)
	})
}

// deletedSince reports whether an object that was listed is gone by now, as the stream says. A deletion that a list found
// has the last version that was known of the object, which may be older than the one listed here.
func (r *resourceResync) deletedSince(ctx context.Context, c *change.Change) (bool, error) {
	stored, known := r.positions.checkpoint.Stored(c.Ref)
	if !known || stored.Op != change.OpDeleted || stored.UID != c.UID {
		return false, nil
	}
	listed := informer.Known{Namespace: c.Ref.Namespace, Name: c.Ref.Name, UID: c.UID, RV: c.RV}
	deleted, err := r.source.Missing(ctx, r.gr, listed, c.RV)
	return deleted != nil, err
}

// absent publishes the deletion of what the stream has, a list has not, and the API server says is gone.
func (r *resourceResync) absent(ctx context.Context, page informer.Page) error {
	for _, k := range r.positions.checkpoint.Objects(r.gr) {
		// What is newer than the list may have come after it.
		if !page.Covers(k.Namespace) || r.listed[k.Namespace+"/"+k.Name] || !notOlder(page.Version, k.RV) {
			continue
		}
		deleted, err := r.source.Missing(ctx, r.gr, k, page.Version)
		if err != nil {
			return err
		}
		if deleted == nil {
			continue
		}
		gone := func() bool {
			stored, known := r.positions.checkpoint.Stored(deleted.Ref)
			return !known || stored.Op.Gone() || stored.UID != deleted.UID
		}
		if err := r.await(ctx, page.Version, gone); err != nil {
			return err
		}
		if gone() { // its deletion was on its way
			continue
		}
		if err := r.hand(ctx, deleted); err != nil {
			return err
		}
	}
	return nil
}

// await blocks until everything of the resource up to a version is published, or until settled says that it need not be
// waited for.
func (r *resourceResync) await(ctx context.Context, version string, settled func() bool) error {
	deadline := time.Now().Add(resyncPatience)
	for !settled() && !notOlder(r.positions.reached(r.gr), version) {
		if time.Now().After(deadline) {
			return fmt.Errorf("%s: the API server has version %s, and only what is up to %q was published within %s: %s",
				r.gr, version, r.positions.reached(r.gr), resyncPatience, r.trouble())
		}
		if !pause(ctx, resyncPause) {
			return ctx.Err()
		}
	}
	return nil
}

// hand gives a state or a deletion to the publisher, once there is room for it.
func (r *resourceResync) hand(ctx context.Context, c *change.Change) error {
	if err := r.limit.Wait(ctx); err != nil {
		return err
	}
	before, _ := r.positions.checkpoint.Stored(c.Ref)
	c.Done = func() { r.done(c, before.Sequence) }
	r.mu.Lock()
	r.waiting++
	r.mu.Unlock()
	err := r.patiently(ctx, func() (bool, error) { return r.source.Repeat(c) })
	if err != nil { // it was not taken
		r.mu.Lock()
		r.waiting--
		r.mu.Unlock()
	}
	return err
}

// drain blocks until everything that was handed on is done.
func (r *resyncRun) drain(ctx context.Context) error {
	return r.patiently(ctx, func() (bool, error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.waiting == 0, nil
	})
}

// patiently calls try until it succeeds or fails. It loses patience when nothing at all was published for long.
func (r *resyncRun) patiently(ctx context.Context, try func() (bool, error)) error {
	deadline := time.Now().Add(resyncPatience)
	for {
		if ok, err := try(); ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-r.moved:
			deadline = time.Now().Add(resyncPatience)
		case <-time.After(resyncPause):
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("nothing could be published for %s: %s", resyncPatience, r.trouble())
		}
	}
}

// trouble says why nothing is published, if that is known.
func (r *resyncRun) trouble() string {
	if t, ok := r.publisher.Trouble(); ok {
		return t.Reason + ": " + t.Message
	}
	if n := len(r.publisher.Parked()); n > 0 {
		return fmt.Sprintf("%d objects cannot be published, see /readyz?verbose", n)
	}
	return "other changes wait, see /statusz"
}

// done counts what became of a state or a deletion. It is called on a goroutine of the publisher and does not block.
func (r *resyncRun) done(c *change.Change, before uint64) {
	stored, known := r.positions.checkpoint.Stored(c.Ref)
	published := known && stored.Sequence != before && stored.UID == c.UID
	r.mu.Lock()
	r.waiting--
	switch {
	case c.Op == change.OpDeleted:
		if published && stored.Op.Gone() {
			r.progress.Deleted++
		}
	case !published || stored.RV != c.RV:
		r.progress.Overtaken++
	case stored.Op == change.OpSynced:
		r.progress.Synced++
	default:
		r.progress.Repaired++
	}
	r.mu.Unlock()
	select {
	case r.moved <- struct{}{}:
	default:
	}
}

// reached returns the version up to which a resource is published, empty if it is not known.
func (p *positions) reached(gr schema.GroupResource) string {
	p.mu.Lock()
	of := p.resources[gr]
	p.mu.Unlock()
	if of == nil {
		return ""
	}
	return of.version()
}

// notOlder reports whether a version is known to be no older than another one.
func notOlder(version, than string) bool {
	order, err := resourceversion.CompareResourceVersion(version, than)
	return err == nil && order >= 0
}
