package informer

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/deltabridge/deltabridge/internal/change"
)

// Feed takes what one informer has to tell. Its methods are called one at a time: Take and Mark in the order of the
// informer's notifications, on the goroutine of its listener, Repeat in between. They must not block for long: client-go
// buffers without bound behind a listener.
type Feed interface {
	// Take hands on a change. A change that the watch brought moves the position to its version once it and all before
	// it are done; one that a list caused does not: the Mark that follows the list does. The feed must see to it that the
	// change's Done, if it is set, is called once when it needs no more work.
	Take(c *change.Change, moves bool)
	// Mark says that every change up to the version has been taken. gap is the range of versions of which only the net
	// difference was, if the last list left one.
	Mark(version string, gap change.Gap)
	// Repeat hands on a state that is no news: it moves no position. It returns false, and has not taken it, while changes
	// wait to be published, for those go first; it is offered again later.
	Repeat(c *change.Change) bool
}

// Feeds is where the informers' changes go, and what they begin with.
type Feeds interface {
	// Open begins a new life of a resource with n informers, and returns what they begin with and a feed for each. It
	// blocks until nothing that feeds of a former life have taken is under way; the error means that the context has ended.
	Open(ctx context.Context, gr schema.GroupResource, n int) (Origin, []Feed, error)
	// Resources returns the resources of which there is an object according to the stream.
	Resources() []schema.GroupResource
	// Rewound says that the API server is behind the version up to which the stream has the resource's changes: the
	// cluster was restored from a backup. The feeds are void from then on.
	Rewound(gr schema.GroupResource, published, served string)
}

// Known is an object that is in the cluster according to the last message on its subject.
type Known struct {
	Namespace string // empty for a cluster-scoped object
	Name      string
	UID       types.UID
	RV        string // resourceVersion
}

// Origin is what the stream holds of a resource when its informers start.
type Origin struct {
	Objects []Known
	// Version is the version from which the watch resumes: the stream has every change up to it. It is empty where
	// there is none to rely on; then a list is compared with Objects.
	Version string
	// Since is, without a Version, the last version that was ever known to be published, "0" for an unknown one, and
	// empty where nothing was published yet, so that nothing can have been missed.
	Since string
	// Reason says why there is no Version, in a word: first, no-watermark, scope, forgotten, other-cluster, rewind, unreadable, not-comparable.
	Reason string
	// OtherHistory says that Since is of a history that the cluster has left: the API server may be behind it.
	OtherHistory bool
	// Entered tells, if it is set, whether objects of a namespace were outside of what was selected before.
	Entered func(namespace string) bool
}

// unknownVersion is Origin.Since where something was published and it is not known up to which version.
const unknownVersion = "0"

// resumes reports whether the watch can go on where a former one was.
func (o *Origin) resumes() bool { return o.Version != "" }

// in returns the part of the origin that concerns the informer of a namespace, empty for all, with a filter for
// namespaces, which may be nil.
func (o Origin) in(namespace string, keep func(string) bool) Origin {
	objects := make([]Known, 0, len(o.Objects))
	for _, k := range o.Objects {
		if (namespace == "" || k.Namespace == namespace) && (keep == nil || keep(k.Namespace)) {
			objects = append(objects, k)
		}
	}
	o.Objects = objects
	return o
}

// stubsOf returns the known objects as the cache holds them: without a state.
func (lw *ListWatch) stubsOf(objects []Known) []*Object {
	out := make([]*Object, 0, len(objects))
	kind := newTypeMeta(lw.resource.apiVersion(), lw.resource.Kind)
	for _, k := range objects { // each by itself, so that one that is replaced does not stay for the others' sake
		out = append(out, &Object{namespace: k.Namespace, name: k.Name, uid: k.UID, rv: k.RV, kind: kind})
	}
	return out
}

// prime makes the first list come from what the stream holds, where a watch can resume; else the cache is given what the
// stream holds, so that client-go's own comparison of a list with its cache finds what is to be published.
func (in *informer) prime(origin Origin) error {
	in.entered = origin.Entered
	stubs := in.lw.stubsOf(origin.Objects)
	in.lw.prime(&origin, stubs)
	if origin.resumes() {
		return nil
	}
	for _, stub := range stubs {
		if err := in.shared.GetIndexer().Add(stub); err != nil {
			return err
		}
	}
	in.objects.Store(int64(len(stubs)))
	return nil
}
