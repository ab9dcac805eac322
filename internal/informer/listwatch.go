package informer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"syscall"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/flowcontrol"
)

// Metrics is what the informers count. Its methods must not block.
type Metrics interface {
	// BadFrame counts a watch that was restarted because of a frame that is not valid.
	BadFrame(schema.GroupResource)
	// Relist counts a list after the first, with the reason for it: expired, disconnected, invalid-frame, failed.
	Relist(gr schema.GroupResource, reason string)
}

// ListWatch lists and watches one resource for a Reflector, in raw bytes. It implements cache.ListerWatcher and
// cache.ListerWatcherWithContext. It does not opt out of streaming lists: the Reflector asks for one first, and falls
// back to a plain list where the server has none.
type ListWatch struct {
	client    rest.Interface
	resource  Resource
	namespace string                      // of namespaced requests, empty for the whole cluster
	keep      func(namespace string) bool // nil keeps all
	metrics   Metrics
	log       *slog.Logger
	report    func(verb string, err error) // told the outcome of each list and each opening of a watch

	mu              sync.Mutex
	position        string // last version that a list or a watch brought
	listed          bool   // a list has succeeded
	relistReason    string // why the last watch ended
	noStreamingList bool
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

// ListWithContext fetches one page. The error of a refused request is the API's own (apierrors), which the Reflector
// tests for.
func (lw *ListWatch) ListWithContext(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	since := lw.beginList(options.Continue == "")
	body, err := lw.request(options).DoRaw(ctx)
	if err != nil {
		if ctx.Err() == nil && !listRecovers(err) {
			lw.report("list", err)
		}
		return nil, err
	}
	list, err := scanList(body, lw.resource.apiVersion(), lw.resource.Kind, since, lw.keep)
	if err != nil {
		lw.report("list", err)
		return nil, err
	}
	if list.Continue == "" {
		lw.listSucceeded(list.ResourceVersion)
	}
	return list, nil
}

// listRecovers reports whether the Reflector answers the error by listing once more without a version.
func listRecovers(err error) bool {
	return apierrors.IsResourceExpired(err) || apierrors.IsGone(err) ||
		apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge)
}

// WatchWithContext opens a watch. Trouble on the way (no connection, an overloaded or absent server) is returned in
// the form that makes the Reflector wait and watch again from the same version; other refusals make it list again.
func (lw *ListWatch) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	initial := options.SendInitialEvents != nil && *options.SendInitialEvents
	since := ""
	if initial {
		if lw.streamingListUnsupported() {
			return nil, errors.New("streaming list not supported by this API")
		}
		since = lw.beginList(true)
	}
	options.Watch = true
	ctx, cancel := context.WithCancelCause(ctx)
	// Watches are not subject to the client's rate limit: hundreds of them are opened at once, and rarely.
	body, err := lw.request(options).Throttle(flowcontrol.NewFakeAlwaysRateLimiter()).Stream(ctx)
	if err != nil {
		stopped := ctx.Err() != nil
		cancel(nil)
		if initial {
			return nil, initialListError(err)
		}
		if !stopped {
			lw.watchEnded(err)
			lw.report("watch", err)
		}
		return nil, watchError(err)
	}
	lw.report("watch", nil)
	return newStream(ctx, cancel, lw, body, initial, since), nil
}

func (lw *ListWatch) request(options metav1.ListOptions) *rest.Request {
	return lw.client.Get().AbsPath(lw.resource.path(lw.namespace)...).VersionedParams(&options, metav1.ParameterCodec)
}

// initialListError hides from the Reflector what would make it retry the streaming list by itself, for that wait does
// not end when the informer is stopped. The plain list that follows meets the same trouble and waits interruptibly.
func initialListError(err error) error {
	if utilnet.IsConnectionRefused(err) || apierrors.IsTooManyRequests(err) {
		return fmt.Errorf("streaming list: %s", err.Error()) //nolint:errorlint // hidden on purpose, see above
	}
	return err
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

// answered reports whether an error is the API server's own answer, not trouble on the way to it.
func answered(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status)
}

func watchError(err error) error {
	if !answered(err) {
		return &retriableWatchError{err: err}
	}
	if apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge) {
		return err
	}
	if apierrors.IsServiceUnavailable(err) || apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err) || apierrors.IsInternalError(err) {
		return &retriableWatchError{err: err}
	}
	return err
}

// beginList notes the start of a list and returns the version up to which the resource was followed before; first is
// false for the later pages of a list.
func (lw *ListWatch) beginList(first bool) string {
	lw.mu.Lock()
	defer lw.mu.Unlock()
	if !lw.listed {
		return ""
	}
	if first && lw.relistReason != "" {
		lw.metrics.Relist(lw.resource.GVR.GroupResource(), lw.relistReason)
		lw.relistReason = ""
	}
	return lw.position
}

// listSucceeded notes the end of a list at the given version.
func (lw *ListWatch) listSucceeded(rv string) {
	lw.mu.Lock()
	lw.position, lw.listed = rv, true
	lw.mu.Unlock()
	lw.report("list", nil)
}

// follow moves the position to an event's version.
func (lw *ListWatch) follow(rv string) {
	lw.mu.Lock()
	lw.position = rv
	lw.mu.Unlock()
}

// watchEnded remembers why a watch is over, in case a list follows.
func (lw *ListWatch) watchEnded(err error) {
	reason := "disconnected"
	switch {
	case errors.Is(err, errBadFrame):
		reason = "invalid-frame"
	case apierrors.IsResourceExpired(err) || apierrors.IsGone(err):
		reason = "expired"
	case err != nil:
		if answered(err) {
			reason = "failed"
		}
	}
	lw.mu.Lock()
	lw.relistReason = reason
	lw.mu.Unlock()
}

func (lw *ListWatch) streamingListFailed() {
	lw.mu.Lock()
	lw.noStreamingList = true
	lw.mu.Unlock()
	lw.log.Warn("API accepts a streaming list but does not complete it, listing instead", "resource", lw.resource.String())
}

func (lw *ListWatch) streamingListUnsupported() bool {
	lw.mu.Lock()
	defer lw.mu.Unlock()
	return lw.noStreamingList
}

// Position returns the last version that a list or a watch brought, empty before the first list.
func (lw *ListWatch) Position() string {
	lw.mu.Lock()
	defer lw.mu.Unlock()
	return lw.position
}
