// Package informer follows the selected resources of an API server: client-go's shared informers, one for each resource,
// over lists and watches that are read as raw bytes. It hands every change to a Feed.
package informer

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/deltabridge/deltabridge/internal/change"
)

// State is what an informer is doing.
type State string

// The states of an informer, as informer_state and /statusz show them.
const (
	StateStarting     State = "starting"     // the first list has not succeeded yet
	StateWatching     State = "watching"     // synced, and the watch is open or about to be opened again
	StateForbidden    State = "forbidden"    // the API server refuses a verb
	StateUnauthorized State = "unauthorized" // the API server does not accept the credentials
	StateAbsent       State = "absent"       // the API server does not have the resource
	StateFailing      State = "failing"      // a list or watch fails for another reason
)

// States lists every State.
var States = []State{StateStarting, StateWatching, StateForbidden, StateUnauthorized, StateAbsent, StateFailing}

// Status describes one informer.
type Status struct {
	State   State
	Synced  bool   // the feed has been told everything up to a version that the API server had
	Settled bool   // synced, or refused for a reason that has a name; of several informers, all of them
	Verb    string // the verb that is refused or fails, empty while all is well
	Message string // why, in words for a user; empty while all is well
	Objects int
	// Position is the last resourceVersion that a list or a watch brought.
	Position string
}

// informer follows one resource, in the whole cluster or in one namespace.
type informer struct {
	resource  Resource
	namespace string
	lw        *ListWatch
	shared    cache.SharedIndexInformer
	feed      Feed
	log       *slog.Logger
	caught    atomic.Int64 // the ListWatch's generation whose first mark the listener has seen, zero for none
	objects   atomic.Int64 // in the cache, as far as the listener has been told
	resync    *resync
	// order guards the calls of the feed: those of the listener and of the resync take turns, so that a repetition is
	// handed on either before a change of its object or not at all.
	order sync.Mutex
	// entered tells whether objects of a namespace were outside of the selection before; nil for no.
	entered func(namespace string) bool

	mu       sync.Mutex
	failures map[string]error // by verb: the last error of list and of watch, absent while the verb works
	trouble  troubleLog
}

// informerOptions are what the informers of a Manager have in common.
type informerOptions struct {
	client  rest.Interface
	metrics Metrics
	log     *slog.Logger
	// resync is the period of client-go's resync, zero for none.
	resync time.Duration
}

func newInformer(options informerOptions, resource Resource, namespace string, keep func(string) bool, feed Feed) (*informer, error) {
	log := options.log
	in := &informer{
		resource:  resource,
		namespace: namespace,
		feed:      feed,
		log:       log,
		resync:    newResync(options.resync),
		failures:  map[string]error{},
		trouble:   troubleLog{log: log, resource: resource.String(), namespace: namespace},
	}
	in.lw = &ListWatch{
		client: options.client, resource: resource, namespace: namespace, keep: keep,
		metrics: options.metrics, log: log, report: in.report, generation: 1,
		deadline: progressDeadline, rewound: func(string, string) bool { return false },
	}
	in.shared = cache.NewSharedIndexInformerWithOptions(in.lw, &Object{}, cache.SharedIndexInformerOptions{
		ObjectDescription: resource.GVR.String(),
		ResyncPeriod:      options.resync,
	})
	// The outcome of every request is reported by the ListWatch, which knows the verb.
	if err := in.shared.SetWatchErrorHandlerWithContext(func(context.Context, *cache.Reflector, error) {}); err != nil {
		return nil, err
	}
	if _, err := in.shared.AddEventHandlerWithOptions((*listener)(in), cache.HandlerOptions{ResyncPeriod: &options.resync}); err != nil {
		return nil, err
	}
	return in, nil
}

// run follows the resource until the context ends, and returns when the last change has been handed to the feed.
func (in *informer) run(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() { in.runResync(ctx) })
	in.shared.RunWithContext(ctx)
	wg.Wait()
}

// report notes the outcome of a list or of a watch.
func (in *informer) report(verb string, err error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if err == nil {
		delete(in.failures, verb)
	} else {
		in.failures[verb] = err
	}
	_, failed, cause := in.stateLocked()
	in.trouble.note(failed, cause)
}

// stateLocked derives the state from the verbs' last outcomes; list comes first, since nothing works without it.
func (in *informer) stateLocked() (State, string, error) {
	for _, verb := range []string{"list", "watch"} {
		if err, failing := in.failures[verb]; failing {
			return stateOf(err), verb, err
		}
	}
	if !in.synced() {
		return StateStarting, "", nil
	}
	return StateWatching, "", nil
}

// synced reports whether the feed has been told everything up to a version that the API server had when the watch was
// opened. It is not so any more from the moment at which the server has forgotten the watch's version.
func (in *informer) synced() bool { return in.caught.Load() == in.lw.currentGeneration() }

// troubleLog logs that a resource cannot be followed and that it can be again, once for each change of state.
type troubleLog struct {
	log                 *slog.Logger
	resource, namespace string
	logged              State // what was last logged, empty when there is no trouble
}

// note takes what keeps the resource from being followed, nil for nothing, and the verb that it is about.
func (t *troubleLog) note(verb string, err error) {
	if err == nil {
		if t.logged != "" {
			t.log.Info("resource is followed again", "resource", t.resource, "namespace", t.namespace)
		}
		t.logged = ""
		return
	}
	// Not to reach the API server at all is no matter of one resource: the Manager logs it, once for all.
	state := stateOf(err)
	if state == t.logged || unreachable(err) {
		return
	}
	t.logged = state
	t.log.Warn("resource cannot be followed, trying again", "resource", t.resource, "namespace", t.namespace,
		"state", string(state), "verb", verb, "error", err)
}

// stateOf returns the state of an informer whose request has failed.
func stateOf(err error) State {
	switch {
	case apierrors.IsForbidden(err):
		return StateForbidden
	case apierrors.IsUnauthorized(err):
		return StateUnauthorized
	case apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err):
		return StateAbsent
	}
	return StateFailing
}

func (in *informer) status() Status {
	in.mu.Lock()
	state, verb, err := in.stateLocked()
	in.mu.Unlock()
	s := Status{
		State:    state,
		Synced:   in.synced(),
		Verb:     verb,
		Objects:  int(in.objects.Load()),
		Position: in.lw.Position(),
	}
	// Of what a watch would bring that is silent for too long, nothing is known.
	s.Settled = (s.Synced || verb != "") && !in.lw.stalled.Load()
	if err != nil {
		s.Message = err.Error()
	}
	return s
}

// listener turns what the processor delivers into changes. Its methods are called one at a time.
type listener informer

var _ cache.ResourceEventHandler = (*listener)(nil)

// OnAdd is called for an object that the cache did not have. That the stream has an object is nothing to tell.
func (l *listener) OnAdd(obj any, _ bool) {
	l.order.Lock()
	defer l.order.Unlock()
	o := obj.(*Object)
	if o.mark != nil {
		l.mark(o)
		return
	}
	l.objects.Add(1)
	if o.stub {
		return
	}
	reason := l.reason(o)
	if o.listed && l.entered != nil && l.entered(o.namespace) {
		reason = change.ReasonScope
	}
	l.emit(change.OpAdded, reason, o)
}

// OnUpdate is called for an object that the cache had. A relist delivers it for unchanged objects too, as long as
// client-go counts the listener as syncing; a resync delivers every object of the cache, as its own update.
func (l *listener) OnUpdate(oldObj, newObj any) {
	l.order.Lock()
	defer l.order.Unlock()
	before, o := oldObj.(*Object), newObj.(*Object)
	switch {
	case o.mark != nil:
		if before != o {
			l.mark(o)
		}
	case before == o:
		l.resync.note(o, time.Now())
	case before.uid == o.uid && before.rv == o.rv:
	default:
		l.resync.drop(o)
		l.emit(change.OpModified, l.reason(o), o)
	}
}

// OnDelete is called for an object that is gone: with its last state when the watch said so, wrapped in a
// DeletedFinalStateUnknown when a list no longer had it.
func (l *listener) OnDelete(obj any) {
	l.order.Lock()
	defer l.order.Unlock()
	unknown, missing := obj.(cache.DeletedFinalStateUnknown)
	if missing {
		obj = unknown.Obj
	}
	o, ok := obj.(*Object)
	switch {
	case !ok:
		l.log.Error("deleted object is not known to the cache", "resource", l.resource.String(), "key", unknown.Key)
		return
	case o.mark != nil:
		return
	}
	l.objects.Add(-1)
	l.resync.drop(o)
	if !missing {
		l.emit(change.OpDeleted, change.ReasonWatch, o)
		return
	}
	// The version at which the object went is not known; its last known version orders the deletion after all that was
	// published of it and before whatever takes its name.
	c := l.change(change.OpDeleted, change.ReasonMissing, o)
	c.Gap = change.Gap{From: o.rv, To: l.lw.listedAt()}
	l.feed.Take(c, false)
}

// mark handles a sentinel: everything up to its version has been delivered.
func (l *listener) mark(o *Object) {
	l.feed.Mark(o.rv, o.mark.gap)
	l.caught.Store(o.mark.generation)
}

func (l *listener) reason(o *Object) change.Reason {
	if o.listed {
		return change.ReasonRelist
	}
	return change.ReasonWatch
}

func (l *listener) emit(op change.Op, reason change.Reason, o *Object) {
	c := l.change(op, reason, o)
	if o.listed && o.since != "" {
		c.Gap = change.Gap{From: o.since, To: o.rv}
	}
	l.feed.Take(c, !o.listed)
}

func (l *listener) change(op change.Op, reason change.Reason, o *Object) *change.Change {
	return &change.Change{
		Op:     op,
		Reason: reason,
		Ref: change.ObjectRef{
			Group: l.resource.GVR.Group, Resource: l.resource.GVR.Resource, Namespace: o.namespace, Name: o.name,
		},
		GVK:  o.GroupVersionKind(),
		UID:  o.uid,
		RV:   o.rv,
		Raw:  o.raw,
		Seen: time.Now(),
	}
}
