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
	broken  error
}

// Record begins to record the changes of the selected objects. The test's end ends it.
func Record(t testing.TB, client dynamic.Interface, selection Selection) *Recording {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r := &Recording{
		client: client, selection: selection, cancel: cancel,
		state: map[Object]string{}, begin: map[string]string{}, end: map[string]string{},
	}
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
			r.mu.Lock()
			r.broken = errors.Join(r.broken, fmt.Errorf("record %s from version %s: %w", resource.GroupResource(), version, err))
			r.mu.Unlock()
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

// CompareRecording checks that every recorded version is in the stream with the content that the API server sent, unless
// a message says that it may be missing, and that the stream has no version that was not recorded.
func (s *Stream) CompareRecording(r *Recording) *Report {
	r.mu.Lock()
	defer r.mu.Unlock()
	report := &Report{Recorded: len(r.changes)}
	if r.broken != nil {
		report.add(Incomplete, 0, s.Root, "the recording broke: %v", r.broken)
	}
	index := s.index()
	recorded := map[string]bool{}
	for _, c := range r.changes {
		recorded[c.UID+"/"+c.RV] = true
		index.find(report, c)
	}
	for _, m := range s.Messages {
		if !m.aboutObject() || !m.version() || !isDecimal(m.RV) || !r.selection.selects(m.Object) {
			continue
		}
		resource := m.Object.GroupResource()
		if compare(m.RV, r.begin[resource]) > 0 && compare(m.RV, r.end[resource]) <= 0 && !recorded[m.UID+"/"+m.RV] {
			report.add(Invented, m.Sequence, m.Subject, "version %s of uid %s was never there", m.RV, m.UID)
		}
	}
	return report
}

// index finds a stream's messages by what they carry.
type index struct {
	root     string
	versions map[string]*Message // by uid and version
	deleted  map[string]*Message // by uid
	known    map[string]bool     // uids
	gaps     map[string][][2]string
}

func (s *Stream) index() *index {
	x := &index{
		root: s.Root, versions: map[string]*Message{}, deleted: map[string]*Message{}, known: map[string]bool{},
		gaps: map[string][][2]string{},
	}
	for _, m := range s.Messages {
		if !m.aboutObject() {
			continue
		}
		x.known[m.UID] = true
		if m.version() {
			x.versions[m.UID+"/"+m.RV] = m
		}
		if m.Kind == "deleted" {
			x.deleted[m.UID] = m
		}
		if from, to, err := parseGap(m.Gap); err == nil {
			resource := m.Object.GroupResource()
			x.gaps[resource] = append(x.gaps[resource], [2]string{from, to})
		}
	}
	return x
}

// mayMiss reports whether a message says that a version of a resource may be missing.
func (x *index) mayMiss(resource, version string) bool {
	for _, gap := range x.gaps[resource] {
		if compare(gap[0], version) < 0 && compare(version, gap[1]) < 0 {
			return true
		}
	}
	return false
}

// find reports a recorded change that is not in the stream as it was.
func (x *index) find(report *Report, c Change) {
	subject := c.Object.Subject(x.root)
	resource := c.Object.GroupResource()
	var m *Message
	if c.Kind == "deleted" {
		m = x.deleted[c.UID]
		if m == nil {
			// An object that came and went within a gap leaves no trace; one that is known has to be seen off.
			if x.known[c.UID] || !x.mayMiss(resource, c.RV) {
				report.add(LostDelete, 0, subject, "the deletion of uid %s, version %s, is not in the stream", c.UID, c.RV)
			}
			return
		}
		if m.Reason != "watch" || m.RV != c.RV {
			return // the deletion was inferred; its body is the last known state
		}
	} else {
		m = x.versions[c.UID+"/"+c.RV]
		if m == nil {
			if !x.mayMiss(resource, c.RV) {
				report.add(Lost, 0, subject, "%s, uid %s, version %s, is not in the stream", c.Kind, c.UID, c.RV)
			}
			return
		}
	}
	if b, err := parseBody(m.data); err == nil && !m.reduced() && b.digest() != c.digest {
		report.add(Differs, m.Sequence, subject, "the body is not what the API server sent for version %s", c.RV)
	}
}
