package informer

import (
	"context"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/deltabridge/deltabridge/internal/change"
)

// resyncPause is how soon a repetition that was not taken is offered again.
const resyncPause = 20 * time.Millisecond

// resync keeps the objects of which client-go's resync has told and which are still to be handed on. It is a set: what it
// holds is bounded by the cache, whose objects it shares, however long they wait, and a resync that is still held when
// the next one comes becomes part of it. The informer's order guards it.
type resync struct {
	period  time.Duration
	pending map[objectKey]repetition
	wake    chan struct{}

	// What tells one resync from the next: client-go says neither when it begins nor when it ends.
	run  string
	last time.Time              // when client-go told of an object last
	told map[types.UID]struct{} // of which in this run
}

type objectKey struct{ namespace, name string }

// repetition is an object as it is to be handed on, and the run that it is of.
type repetition struct {
	object *Object
	run    string
}

func newResync(period time.Duration) *resync {
	return &resync{
		period: period, pending: map[objectKey]repetition{}, wake: make(chan struct{}, 1), told: map[types.UID]struct{}{},
	}
}

// NewRun returns what tells a resync that begins now from every other one of the same objects.
func NewRun(now time.Time) string { return strconv.FormatInt(now.UnixNano(), 10) }

// note takes an object that client-go's resync tells of.
func (r *resync) note(o *Object, now time.Time) {
	if r.period == 0 {
		return
	}
	// All objects of one resync come without a pause; and where a resync was late, none comes twice in one.
	if _, twice := r.told[o.uid]; twice || now.Sub(r.last) > r.period/2 {
		r.run = NewRun(now)
		clear(r.told)
	}
	r.last = now
	r.told[o.uid] = struct{}{}
	r.pending[objectKey{o.namespace, o.name}] = repetition{object: o, run: r.run}
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// drop forgets an object that has changed or is gone: its change is published, which is more than a repetition.
func (r *resync) drop(o *Object) { delete(r.pending, objectKey{o.namespace, o.name}) }

// runResync hands on what client-go's resync tells of, until the context ends.
func (in *informer) runResync(ctx context.Context) {
	if in.resync.period == 0 {
		return
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-in.resync.wake:
		}
		for in.repeatPending() {
			if !pause(ctx, resyncPause) {
				return
			}
		}
	}
}

// repeatPending hands on as many of the pending objects as the feed takes. It reports whether any are left.
func (in *informer) repeatPending() bool {
	in.order.Lock()
	defer in.order.Unlock()
	for key, p := range in.resync.pending {
		c := (*listener)(in).change(change.OpSynced, change.ReasonResync, p.object)
		c.Raw, c.Run = (*listener)(in).body(p.object), p.run
		if !in.feed.Repeat(c) {
			return true
		}
		delete(in.resync.pending, key)
	}
	return false
}

// pause waits for the duration; false if the context ended first.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

func (m *Manager) informerOptions() informerOptions {
	return informerOptions{client: m.client, metrics: m.options.Metrics, log: m.log, resync: m.options.ResyncPeriod, gate: m.gate}
}
