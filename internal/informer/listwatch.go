package informer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/deltabridge/deltabridge/internal/change"
)

// Metrics is what the informers count. Its methods must not block.
type Metrics interface {
	// BadFrame counts a watch that was restarted because of a frame that is not valid.
	BadFrame(schema.GroupResource)
	// Relist counts a list after the first, with the reason for it: expired, disconnected, invalid-frame, failed.
	Relist(gr schema.GroupResource, reason string)
}

// ListWatch lists and watches one resource for a Reflector, in raw bytes. It implements cache.ListerWatcher and
// cache.ListerWatcherWithContext. It opts out of streaming lists: a list is read in pages, and waits between them for as
// long as there is no credit for what it has found.
type ListWatch struct {
	client    rest.Interface
	resource  Resource
	namespace string                      // of namespaced requests, empty for the whole cluster
	keep      func(namespace string) bool // nil keeps all
	metrics   Metrics
	log       *slog.Logger
	report    func(verb string, err error) // told the outcome of each list and each opening of a watch
	deadline  time.Duration                // how long a watch may be silent before it is doubted
	// rewound is told that the server is behind the version that it gave before, and returns whether that was a restore;
	// otherwise the API's versions just do not rise.
	rewound func(known, served string) bool
	intake  *intake // of the events that leave a watch
	// listed takes an object of a list before the Reflector is given it, which it may change; nil leaves it to the
	// Reflector. since is the version up to which the resource was followed before.
	listed func(ctx context.Context, o *Object, since string) error

	// stalled says that the last watch was ended because it was silent, and that nothing was heard since.
	stalled atomic.Bool
	// held says that there is no credit for what the server has to tell.
	held atomic.Bool
	// lastHeard is when a watch last brought something or a list succeeded, in nanoseconds of Unix time; zero for never.
	lastHeard atomic.Int64

	mu           sync.Mutex
	origin       *Origin          // what the first list is answered with, nil once it was, or for none
	stubs        []runtime.Object // of the origin
	position     string           // last version that a list or a watch brought
	known        bool             // a list has succeeded, now or in a former life
	listVersion  string           // version of the last list
	otherHistory bool             // the position is of a history that the cluster has left
	floor        string           // a version that the server had, until the first list; empty if the position is one
	generation   int64            // rises each time that the server has forgotten the watch's version
	gap          change.Gap       // that the last list left, until a sentinel tells of it
	relistReason string           // why the last watch ended
	// fruitless counts the watches in a row that failed or ended at once without any news; heldOff says that the next one
	// is still to be put off for that, and doubted that it was reported.
	fruitless int
	heldOff   bool
	doubted   bool
	warned    time.Time // when a watch that failed was last logged
	bookmarks bool      // the server has sent one to an open watch, so that it sends them
}

var (
	_ cache.ListerWatcher            = (*ListWatch)(nil)
	_ cache.ListerWatcherWithContext = (*ListWatch)(nil)
)

// List is ListWithContext without a context; client-go's interface asks for it, and the Reflector does not call it.
func (lw *ListWatch) List(options metav1.ListOptions) (runtime.Object, error) {
	return lw.ListWithContext(context.Background(), options)
}

// Watch is WatchWithContext without a context; client-go's interface asks for it, and the Reflector does not call it.
func (lw *ListWatch) Watch(options metav1.ListOptions) (watch.Interface, error) {
	return lw.WatchWithContext(context.Background(), options)
}

// IsWatchListSemanticsUnSupported opts out of streaming lists; client-go asks for it by this name. A streaming list cannot
// wait: the API server ends one that is not read.
func (lw *ListWatch) IsWatchListSemanticsUnSupported() bool { return true }

// ListWithContext returns the whole list, whatever page the Reflector asks for. It fetches page by page, and hands on what
// is new as it comes, so that no more than a page is in memory; the Reflector is given stubs. The error of a refused request is the API's own (apierrors), which the Reflector
// tests for.
//
// The first list may be answered with what the stream holds, so that the watch resumes where a former one was. Every
// other one is a consistent read, whatever version the Reflector asks for: what is compared with what was published must
// not be older than that, and a version that the server no longer has, or does not have yet, cannot be in the way.
func (lw *ListWatch) ListWithContext(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	if list := lw.primed(); list != nil {
		return list, nil
	}
	// What was watched before the list must have been handed on before what the list finds.
	if err := lw.intake.drained(ctx); err != nil {
		return nil, err
	}
	if err := lw.awaitCredit(ctx); err != nil {
		return nil, err
	}
	since := lw.beginList()
	var list *List
	var err error
	for range listAttempts {
		if list, err = lw.pages(ctx, options, since); !expired(err) {
			break
		}
	}
	if err == nil {
		lw.listSucceeded(list.ResourceVersion)
	} else if ctx.Err() == nil {
		lw.report("list", err)
	}
	return list, err
}

const (
	// listAttempts is how often in a row a list is begun whose pages the server forgets before they are asked for. What
	// one of them has handed on is not handed on again by the next.
	listAttempts = 3
	// listPage is how many objects are asked for at once, and listPageBytes the size of a page above which it is less.
	listPage      = 500
	listPageBytes = 8 << 20
)

// pages reads a list page by page.
func (lw *ListWatch) pages(ctx context.Context, options metav1.ListOptions, since string) (*List, error) {
	options.ResourceVersion, options.ResourceVersionMatch = "", ""
	options.Limit, options.Continue = listPage, ""
	whole := &List{}
	for {
		body, err := fetch(ctx, lw.request(options))
		if err != nil {
			return nil, err
		}
		page, err := scanList(body, lw.resource.apiVersion(), lw.resource.Kind, lw.keep)
		if err != nil {
			return nil, err
		}
		if options.Continue == "" {
			if err := lw.checkList(page.ResourceVersion); err != nil {
				return nil, err
			}
		}
		for _, item := range page.Items {
			if lw.listed == nil {
				break
			}
			if err := lw.listed(ctx, item.(*Object), since); err != nil {
				return nil, err
			}
		}
		whole.Items = append(whole.Items, page.Items...)
		whole.ResourceVersion = page.ResourceVersion
		if page.Continue == "" {
			return whole, nil
		}
		options.Continue = page.Continue
		if len(body) > listPageBytes {
			options.Limit = max(options.Limit/2, 10)
		}
	}
}

// awaitCredit blocks while there is no credit: until half of it is free, so that what begins then has a chance to get on.
func (lw *ListWatch) awaitCredit(ctx context.Context) error {
	if !lw.held.Load() {
		return nil
	}
	if err := lw.intake.gate.awaitRoom(ctx); err != nil {
		return err
	}
	lw.held.Store(false)
	return nil
}

// WatchWithContext opens a watch. Trouble on the way and refusals that a list would not mend are returned in the form
// that makes the Reflector wait and watch again from the same version; others make it list again.
func (lw *ListWatch) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	if err := lw.awaitCredit(ctx); err != nil {
		return nil, err
	}
	if err := lw.holdOff(); err != nil {
		return nil, err
	}
	options.Watch = true
	owner := ctx
	ctx, cancel := context.WithCancelCause(owner)
	// Watches are not subject to the client's rate limit: hundreds of them are opened at once, and rarely.
	body, err := lw.request(options).Throttle(flowcontrol.NewFakeAlwaysRateLimiter()).Stream(ctx)
	if err != nil {
		cancel(nil)
		if owner.Err() == nil {
			lw.ended(err)
			lw.report("watch", err)
		}
		return nil, watchError(err)
	}
	lw.watchOpened()
	return newStream(owner, ctx, cancel, lw, body, options.ResourceVersion), nil
}

// fetch returns the body of an answer, or the API's own error: with its message and causes, which DoRaw would lose.
func fetch(ctx context.Context, request *rest.Request) ([]byte, error) {
	result := request.Do(ctx)
	if err := result.Error(); err != nil {
		return nil, err
	}
	return result.Raw()
}

func (lw *ListWatch) request(options metav1.ListOptions) *rest.Request {
	return lw.client.Get().AbsPath(lw.resource.path(lw.namespace)...).VersionedParams(&options, metav1.ParameterCodec)
}

// retriableWatchError makes the Reflector wait and watch again from the same version. The Reflector does so for
// "connection refused" and for 429; other ways of not reaching a server leave the position just as valid.
type retriableWatchError struct{ err error }

func (e *retriableWatchError) Error() string { return e.err.Error() }

// As reports the error as "connection refused", which the Reflector tests for.
func (e *retriableWatchError) As(target any) bool {
	if errno, ok := target.(*syscall.Errno); ok {
		*errno = syscall.ECONNREFUSED
		return true
	}
	return false
}

// unreachable reports whether a request got no answer at all.
func unreachable(err error) bool {
	var request *url.Error
	return errors.As(err, &request)
}

// answered reports whether an error is the API server's own answer, not trouble on the way to it.
func answered(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status)
}

// expired reports whether the server no longer has the version that was asked for, or does not have it yet. Only a list
// helps then.
func expired(err error) bool {
	return apierrors.IsResourceExpired(err) || apierrors.IsGone(err) ||
		apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge)
}

// watchError lets the Reflector list again only where the request itself is what the server does not accept. A server
// that is not there, overloaded, or refuses the user (for the moment, perhaps) leaves the position valid: a list would
// lose the versions that the server still has, and be a burden.
func watchError(err error) error {
	if expired(err) || apierrors.IsBadRequest(err) || apierrors.IsInvalid(err) {
		return err
	}
	return &retriableWatchError{err: err}
}

// maxFruitless is how often in a row a watch may fail without any news before the Reflector lists again: a version that
// the server cannot deliver, for one, is overcome only by a list.
const maxFruitless = 5

// errFruitless means that the last watch failed without any news.
var errFruitless = errors.New("the last watch failed at once")

// holdOff returns an error where the last watch was fruitless, so that the Reflector waits before it opens another; for
// it opens one at once after one that has ended. After too many it returns the error that makes the Reflector list.
func (lw *ListWatch) holdOff() error {
	lw.mu.Lock()
	defer lw.mu.Unlock()
	if !lw.heldOff {
		return nil
	}
	lw.heldOff = false
	if lw.fruitless%maxFruitless == 0 {
		lw.generation++
		return errFruitless
	}
	return &retriableWatchError{err: errFruitless}
}

// watchOpened notes that a watch was opened. Where the last ones were fruitless that proves nothing yet.
func (lw *ListWatch) watchOpened() {
	lw.mu.Lock()
	doubted := lw.doubted
	lw.mu.Unlock()
	if !doubted {
		lw.report("watch", nil)
	}
}

// silence returns for how long the server has told nothing new about its version.
func (lw *ListWatch) silence() time.Duration {
	last := lw.lastHeard.Load()
	if last == 0 {
		return 0
	}
	return time.Since(time.Unix(0, last))
}

// heard notes that the server has sent something on a watch.
func (lw *ListWatch) heard() {
	lw.lastHeard.Store(time.Now().UnixNano())
	if lw.stalled.CompareAndSwap(true, false) {
		lw.watchLasts()
	}
}

// watchLasts notes that a watch did not end soon. One that was opened after a silence proves itself by what it brings.
func (lw *ListWatch) watchLasts() {
	if lw.stalled.Load() {
		return
	}
	lw.mu.Lock()
	doubted := lw.doubted
	lw.doubted = false
	lw.mu.Unlock()
	if doubted {
		lw.report("watch", nil)
	}
}

// watchEnded notes the end of a watch: why; whether that is a failure, not just the end of a response; and whether it
// brought no news in its time.
func (lw *ListWatch) watchEnded(err error, failed, fruitless bool) {
	lw.ended(err)
	if expired(err) {
		return // the list that follows has its own outcome
	}
	lw.mu.Lock()
	doubted := lw.doubted
	if fruitless {
		lw.fruitless++
		lw.doubted = doubted || failed || lw.fruitless > 1 // once may be a server that restarts
	} else {
		lw.fruitless, lw.doubted = 0, false
	}
	lw.heldOff = fruitless
	doubts, warn := lw.doubted, failed && !fruitless && time.Since(lw.warned) > time.Minute
	if warn {
		lw.warned = time.Now()
	}
	lw.mu.Unlock()
	switch {
	case doubts && failed:
		lw.report("watch", err)
	case doubts:
		lw.report("watch", fmt.Errorf("%w: %w", errFruitless, err))
	case doubted:
		lw.report("watch", nil)
	}
	if warn {
		lw.log.Warn("watch failed, watching again from the last version", "resource", lw.resource.String(), "error", err)
	}
}

// beginList notes the start of a list and returns the version up to which the resource was followed before, empty if it
// was not.
func (lw *ListWatch) beginList() string {
	lw.mu.Lock()
	defer lw.mu.Unlock()
	if !lw.known {
		return ""
	}
	if lw.relistReason != "" {
		lw.metrics.Relist(lw.resource.GVR.GroupResource(), lw.relistReason)
		lw.relistReason = ""
	}
	return lw.position
}

// errRewound means that the server is behind a version that it gave before.
var errRewound = errors.New("the API server is behind the version that it was at before")

// checkList compares the version of a list with what was known. All lists are consistent reads; one that is behind shows
// that the server was restored from a backup, and is not to be used.
func (lw *ListWatch) checkList(rv string) error {
	lw.mu.Lock()
	known := lw.position
	if lw.floor != "" {
		known = lw.floor
	}
	suspect := lw.known && !lw.otherHistory && behind(rv, known)
	lw.mu.Unlock()
	if suspect && lw.rewound(known, rv) {
		return errRewound
	}
	return nil
}

// listSucceeded notes the end of a list at the given version.
func (lw *ListWatch) listSucceeded(rv string) {
	lw.mu.Lock()
	lw.floor = ""
	if lw.known {
		lw.gap = change.Gap{From: lw.position, To: rv}
	}
	lw.position, lw.known, lw.listVersion, lw.otherHistory = rv, true, rv, false
	lw.mu.Unlock()
	lw.lastHeard.Store(time.Now().UnixNano())
	lw.report("list", nil)
}

// listedAt returns the version of the last list.
func (lw *ListWatch) listedAt() string {
	lw.mu.Lock()
	defer lw.mu.Unlock()
	return lw.listVersion
}

// follow moves the position to an event's version.
func (lw *ListWatch) follow(rv string) {
	lw.mu.Lock()
	lw.position = rv
	lw.mu.Unlock()
}

// ended remembers why a watch is over, in case a list follows.
func (lw *ListWatch) ended(err error) {
	reason := "disconnected"
	switch {
	case errors.Is(err, errBadFrame):
		reason = "invalid-frame"
	case expired(err):
		reason = "expired"
	case answered(err):
		reason = "failed"
	}
	lw.mu.Lock()
	lw.relistReason = reason
	if expired(err) {
		lw.generation++
	}
	lw.mu.Unlock()
}

// prime notes what the stream holds. Where a watch can resume, the first list is answered with it.
func (lw *ListWatch) prime(origin *Origin, stubs []*Object) {
	lw.mu.Lock()
	defer lw.mu.Unlock()
	switch {
	case origin.resumes():
		lw.origin, lw.stubs = origin, make([]runtime.Object, 0, len(stubs))
		for _, stub := range stubs {
			lw.stubs = append(lw.stubs, stub)
		}
		lw.position, lw.known = origin.Version, true
	case origin.Since != "":
		lw.position, lw.known, lw.relistReason = origin.Since, true, origin.Reason
		lw.otherHistory = origin.OtherHistory
		if origin.Since == unknownVersion {
			lw.floor = newest(stubs)
		}
	}
}

// newest returns the highest version of some objects, empty for none that compares.
func newest(objects []*Object) string {
	highest := ""
	for _, o := range objects {
		if highest == "" || behind(highest, o.rv) {
			highest = o.rv
		}
	}
	return highest
}

// take takes credit for an object of a list, and blocks until there is some. The error is the context's.
func (lw *ListWatch) take(ctx context.Context, credit int64) error {
	gate := lw.intake.gate
	if gate.tryTake(credit) {
		return nil
	}
	lw.held.Store(true)
	defer lw.held.Store(false)
	return gate.take(ctx, credit)
}

// primed returns what the first list is answered with, once; nil if that is for the server.
func (lw *ListWatch) primed() *List {
	lw.mu.Lock()
	defer lw.mu.Unlock()
	if lw.origin == nil {
		return nil
	}
	list := &List{Items: lw.stubs}
	list.ResourceVersion = lw.origin.Version
	lw.origin, lw.stubs = nil, nil
	return list
}

// mark is what a sentinel carries beside its version.
type mark struct {
	generation int64      // of the ListWatch when it was made
	gap        change.Gap // that the list before it left
}

// sentinelName is a name that no object has.
const sentinelName = "\x00"

// sentinel returns an object that is none. It goes the way of every event, through the Reflector, FIFO, Indexer and
// processor, and arrives at the listener after all that came before it. So it tells what bookmarks, which end at the
// Reflector, cannot: that the listener has seen everything up to a version. It is the deletion of what never was, for
// client-go hands on every deletion, and keeps nothing of it.
func (lw *ListWatch) sentinel(rv string) watch.Event {
	lw.mu.Lock()
	defer lw.mu.Unlock()
	m := &mark{generation: lw.generation, gap: lw.gap}
	lw.gap = change.Gap{}
	return watch.Event{Type: watch.Deleted, Object: &Object{
		name: sentinelName, rv: rv, kind: newTypeMeta(lw.resource.apiVersion(), lw.resource.Kind),
		load: &load{mark: m, event: lw.intake.enter(0)},
	}}
}

// bookmarked notes that the server tells watches the version that it is at from time to time.
func (lw *ListWatch) bookmarked() {
	lw.mu.Lock()
	defer lw.mu.Unlock()
	lw.bookmarks = true
}

// mayBeSilent reports whether a watch that brings nothing for long is nothing to wonder at: the server has never sent a
// bookmark.
func (lw *ListWatch) mayBeSilent() bool {
	lw.mu.Lock()
	defer lw.mu.Unlock()
	return !lw.bookmarks
}

// currentGeneration returns how often the server has forgotten the watch's version, counted from 1.
func (lw *ListWatch) currentGeneration() int64 {
	lw.mu.Lock()
	defer lw.mu.Unlock()
	return lw.generation
}

// Position returns the last version that a list or a watch brought, empty before the first list.
func (lw *ListWatch) Position() string {
	lw.mu.Lock()
	defer lw.mu.Unlock()
	return lw.position
}
