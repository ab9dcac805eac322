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
	// Held says that the broker does not take what the API server has to tell, so that it is left there for the time being.
	Held bool
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
	intake    *intake
	// order guards the calls of the feed: those of the listener and of the resync take turns, so that a repetition is
	// handed on either before a change of its object or not at all.
	order sync.Mutex
	// entered tells whether objects of a namespace were outside of the selection before; nil for no.
	entered func(namespace string) bool

	telling sync.WaitGroup // what a list has found and is being handed on

	mu       sync.Mutex
	stopped  bool             // lists hand on nothing any more
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
	gate   *Gate
}

func newInformer(options informerOptions, resource Resource, namespace string, keep func(string) bool, feed Feed) (*informer, error) {
	log := options.log
	in := &informer{
		resource:  resource,
		namespace: namespace,
		feed:      feed,
		log:       log,
		resync:    newResync(options.resync),
		intake:    newIntake(options.gate),
		failures:  map[string]error{},
		trouble:   troubleLog{log: log, resource: resource.String(), namespace: namespace},
	}
	in.lw = &ListWatch{
		client: options.client, resource: resource, namespace: namespace, keep: keep,
		metrics: options.metrics, log: log, report: in.report, generation: 1,
		deadline: progressDeadline, rewound: func(string, string) bool { return false },
		intake: in.intake, listed: in.listed,
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
	// The Reflector does not wait for a list that is under way.
	in.mu.Lock()
	in.stopped = true
	in.mu.Unlock()
	in.telling.Wait()
	in.intake.close()
}

// tell reports whether a list may hand on something; then telling.Done must follow.
func (in *informer) tell() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	if !in.stopped {
		in.telling.Add(1)
	}
	return !in.stopped
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
		Held:     in.lw.held.Load(),
	}
	// Of what a watch would bring that is silent for too long, nothing is known.
	s.Settled = (s.Synced || verb != "") && !in.lw.stalled.Load()
	if err != nil {
		s.Message = err.Error()
	}
	return s
}

// listener turns what the processor delivers into changes. Its methods are called one at a time. What a list found has been
// handed on before the Reflector was given it; of that only deletions arrive as news, for client-go finds them.
type listener informer

var _ cache.ResourceEventHandler = (*listener)(nil)

// OnAdd is called for an object that the cache did not have.
func (l *listener) OnAdd(obj any, _ bool) {
	l.order.Lock()
	defer l.order.Unlock()
	o := obj.(*Object)
	l.objects.Add(1)
	if event, credit := l.arrive(o); event {
		l.emit(change.OpAdded, o, credit)
	}
}

// OnUpdate is called for an object that the cache had. A relist delivers it for unchanged objects too, as long as
// client-go counts the listener as syncing; a resync delivers every object of the cache, as its own update.
func (l *listener) OnUpdate(oldObj, newObj any) {
	l.order.Lock()
	defer l.order.Unlock()
	before, o := oldObj.(*Object), newObj.(*Object)
	if before == o {
		l.resync.note(o, time.Now())
		return
	}
	event, credit := l.arrive(o)
	switch {
	case !event:
	case before.uid == o.uid && before.rv == o.rv: // a replay
		l.keepBody(o)
		l.intake.gate.give(credit)
	default:
		l.resync.drop(o)
		l.emit(change.OpModified, o, credit)
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
	if !ok {
		l.log.Error("deleted object is not known to the cache", "resource", l.resource.String(), "key", unknown.Key)
		return
	}
	if m := o.marks(); m != nil {
		l.intake.arrive(o.load.event)
		l.feed.Mark(o.rv, m.gap)
		l.caught.Store(m.generation)
		return
	}
	l.objects.Add(-1)
	l.resync.drop(o)
	if !missing {
		_, credit := l.arrive(o)
		l.emit(change.OpDeleted, o, credit)
		return
	}
	// The version at which the object went is not known; its last known version orders the deletion after all that was
	// published of it and before whatever takes its name.
	c := l.change(change.OpDeleted, change.ReasonMissing, o)
	c.Raw = l.body(o)
	c.Gap = change.Gap{From: o.rv, To: l.lw.listedAt()}
	l.feed.Take(c, false)
}

// arrive reports whether the object is the state of a watch event, and returns its credit. What is not is a stub, or was
// handed on by its list.
func (l *listener) arrive(o *Object) (event bool, credit int64) {
	if o.load == nil || o.load.event == 0 {
		return false, 0
	}
	return true, l.intake.arrive(o.load.event)
}

// emit hands on a watched change, which owns the credit from then on. The cache does not keep the object's JSON.
func (l *listener) emit(op change.Op, o *Object, credit int64) {
	c := l.change(op, change.ReasonWatch, o)
	c.Done = l.returning(credit)
	l.keepBody(o)
	l.feed.Take(c, true)
}

// returning returns what gives back the credit of a change that is done.
func (l *listener) returning(credit int64) func() {
	gate := l.intake.gate
	return func() { gate.give(credit) }
}

// keepBody lets go of an object's JSON, but for a compressed copy where a resync will need it.
func (l *listener) keepBody(o *Object) {
	raw := o.raw()
	o.load = nil
	if l.resync.period > 0 && raw != nil {
		o.load = pack(raw)
	}
}

// body returns the JSON of an object in the cache, nil if it is not kept. The stream has it.
func (l *listener) body(o *Object) []byte {
	raw, err := o.load.unpack()
	if err != nil {
		l.log.Error("object in the cache cannot be unpacked, its state is read from the stream", "resource", l.resource.String(), "name", o.name, "error", err)
	}
	return raw
}

// listed hands on what a list has found, unless the cache has it: then it was handed on before, or the stream holds it. It
// blocks while there is no credit. What the Reflector is given is a stub.
func (in *informer) listed(ctx context.Context, o *Object, since string) error {
	cached, exists, err := in.shared.GetIndexer().Get(o)
	if err != nil {
		return err
	}
	l := (*listener)(in)
	if exists {
		before := cached.(*Object)
		if before.uid == o.uid && before.rv == o.rv {
			in.order.Lock()
			defer in.order.Unlock()
			raw := o.raw()
			*o = *before // so that both share their strings
			if o.load == nil && in.resync.period > 0 {
				o.load = pack(raw)
			}
			return nil
		}
	}
	credit := in.intake.gate.cost(len(o.raw()))
	if err := in.lw.take(ctx, credit); err != nil {
		return err
	}
	if !in.tell() {
		in.intake.gate.give(credit)
		return context.Canceled
	}
	defer in.telling.Done()
	in.order.Lock()
	defer in.order.Unlock()
	c := l.change(change.OpAdded, change.ReasonRelist, o)
	switch {
	case exists:
		c.Op = change.OpModified
		in.resync.drop(o)
	case in.entered != nil && in.entered(o.namespace):
		c.Reason = change.ReasonScope
	}
	if since != "" {
		c.Gap = change.Gap{From: since, To: o.rv}
	}
	c.Done = l.returning(credit)
	l.keepBody(o)
	in.feed.Take(c, false)
	return nil
}

func (l *listener) change(op change.Op, reason change.Reason, o *Object) *change.Change {
	return &change.Change{
		Op:     op,
		Reason: reason,
		Ref: change.ObjectRef{
			Group: l.resource.GVR.Group, Resource: l.resource.GVR.Resource, Namespace: o.namespace, Name: o.name,
		},
		GVK:  o.kind.gvk,
		UID:  o.uid,
		RV:   o.rv,
		Raw:  o.raw(),
		Seen: time.Now(),
	}
}
