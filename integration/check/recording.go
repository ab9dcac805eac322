package check

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
)

// Change is one change of an object that a recording saw.
type Change struct {
	Object  Object
	Kind    string // "added", "modified" or "deleted"
	UID, RV string
	digest  [sha256.Size]byte
}

// Recording notes every change of some resources as the API server tells it to a plain watch, which has no part of the
// bridge in it. Versions that were there when it began are not among its changes.
type Recording struct {
	client    dynamic.Interface
	selection Selection
	cancel    context.CancelFunc
	done      sync.WaitGroup

	mu      sync.Mutex
	changes []Change
	state   map[Object]string // uid and version of what lives
	begin   map[string]string // by resource: the version at which it began
	end     map[string]string // by resource: the last version that it saw
	latest  string            // the last version of anything, where the recording is the store's
	broken  error
}

func newRecording(client dynamic.Interface, selection Selection, cancel context.CancelFunc) *Recording {
	return &Recording{
		client: client, selection: selection, cancel: cancel,
		state: map[Object]string{}, begin: map[string]string{}, end: map[string]string{},
	}
}

// Record begins to record the changes of the selected objects. The test's end ends it.
func Record(t testing.TB, client dynamic.Interface, selection Selection) *Recording {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r := newRecording(client, selection, cancel)
	for _, resource := range selection.Resources {
		version, err := r.list(ctx, resource)
		if err != nil {
			cancel()
			t.Fatalf("begin to record %s: %v", resource.GroupResource(), err)
		}
		r.done.Go(func() { r.watch(ctx, resource, version) })
	}
	t.Cleanup(r.Stop)
	return r
}

// Stop ends the recording.
func (r *Recording) Stop() {
	r.cancel()
	r.done.Wait()
}

// Changes returns what was recorded so far.
func (r *Recording) Changes() []Change {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Change(nil), r.changes...)
}

// Latest returns the last version of anything that a recording of the store has seen.
func (r *Recording) Latest() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.latest
}

func (r *Recording) reached(version string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.latest = version
}

// breakOff notes why nothing more is recorded.
func (r *Recording) breakOff(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.broken = errors.Join(r.broken, err)
}

func (r *Recording) list(ctx context.Context, resource schema.GroupVersionResource) (version string, err error) {
	list, err := r.client.Resource(resource).List(ctx, metav1.ListOptions{})
	if err != nil {
		return "", err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range list.Items {
		object, b, err := decode(resource, &list.Items[i])
		if err != nil {
			return "", err
		}
		r.state[object] = b.uid + "/" + b.version
	}
	version = list.GetResourceVersion()
	r.begin[resource.GroupResource().String()] = version
	r.end[resource.GroupResource().String()] = version
	return version, nil
}

// errWatchEnded ends the attempt to watch, not the recording.
var errWatchEnded = errors.New("the watch ended")

// watch records from a version on until the recording ends. A watch that ends is begun again at the last version seen;
// what it cannot then get any more breaks the recording.
func (r *Recording) watch(ctx context.Context, resource schema.GroupVersionResource, version string) {
	for ctx.Err() == nil {
		err := r.watchOnce(ctx, resource, &version)
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, errWatchEnded):
			select {
			case <-time.After(50 * time.Millisecond):
			case <-ctx.Done():
			}
		default:
			r.breakOff(fmt.Errorf("record %s from version %s: %w", resource.GroupResource(), version, err))
			return
		}
	}
}

func (r *Recording) watchOnce(ctx context.Context, resource schema.GroupVersionResource, version *string) error {
	w, err := r.client.Resource(resource).Watch(ctx, metav1.ListOptions{
		ResourceVersion: *version, AllowWatchBookmarks: true,
	})
	if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		return err
	}
	if err != nil {
		// The API server may be restarting; if it is not, nothing more is recorded, which is noticed at the end.
		return fmt.Errorf("%w: %w", errWatchEnded, err)
	}
	defer w.Stop()
	for event := range w.ResultChan() {
		if event.Type == watch.Error {
			return fmt.Errorf("the API server says: %v", event.Object)
		}
		u, ok := event.Object.(*unstructured.Unstructured)
		if !ok {
			return fmt.Errorf("a watch event holds a %T", event.Object)
		}
		if err := r.note(resource, event.Type, u); err != nil {
			return err
		}
		*version = u.GetResourceVersion()
	}
	return errWatchEnded
}

func (r *Recording) note(resource schema.GroupVersionResource, event watch.EventType, u *unstructured.Unstructured) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.end[resource.GroupResource().String()] = u.GetResourceVersion()
	kind, ok := map[watch.EventType]string{
		watch.Added: "added", watch.Modified: "modified", watch.Deleted: "deleted",
	}[event]
	if !ok {
		return nil // a bookmark
	}
	object, b, err := decode(resource, u)
	if err != nil {
		return err
	}
	if kind == "deleted" {
		delete(r.state, object)
	} else {
		r.state[object] = b.uid + "/" + b.version
	}
	if r.selection.selects(object) {
		r.changes = append(r.changes, Change{Object: object, Kind: kind, UID: b.uid, RV: b.version, digest: b.digest()})
	}
	return nil
}

// CaughtUp returns an error until the recording has seen all that the cluster, at rest, has become.
func (r *Recording) CaughtUp(ctx context.Context) error {
	want := map[Object]string{}
	for _, resource := range r.selection.Resources {
		list, err := r.client.Resource(resource).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for i := range list.Items {
			object, b, err := decode(resource, &list.Items[i])
			if err != nil {
				return err
			}
			want[object] = b.uid + "/" + b.version
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.broken != nil {
		return r.broken
	}
	if !maps.Equal(r.state, want) {
		return fmt.Errorf("the recording knows %d objects, or other versions of them, and the cluster has %d",
			len(r.state), len(want))
	}
	return nil
}
