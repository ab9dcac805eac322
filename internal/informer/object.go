package informer

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// Object is one Kubernetes object as the informer carries and caches it: what client-go needs to know of its
// metadata, and its JSON untouched. It satisfies runtime.Object and metav1.Object, so that Reflector, FIFO and Indexer
// work on it as on any typed object, without decoding the rest.
//
// An Object is immutable once it has left the scanner: the cache, the FIFO and the listeners share it. The setters of
// metav1.Object therefore do nothing.
type Object struct {
	namespace  string
	name       string
	uid        types.UID
	rv         string
	apiVersion string
	kind       string

	raw []byte

	// listed marks an object that came from a list, or from the initial events of a streaming list: it is a state, not
	// an event, and versions may lie between it and what was known before.
	listed bool
	// since is, for a listed object, the version up to which the watch had been followed before that list; empty for
	// the first list.
	since string
	// initialEventsEnd marks the bookmark that ends a streaming list.
	initialEventsEnd bool

	// stub marks an object that is known from the stream only: it has no state.
	stub bool
	// mark is set for a sentinel, which is no object at all: see ListWatch.sentinel.
	mark *mark
}

var (
	_ runtime.Object = (*Object)(nil)
	_ metav1.Object  = (*Object)(nil)
)

// Raw returns the object's JSON, with apiVersion and kind, as the API server sent it. It must not be written to.
func (o *Object) Raw() []byte { return o.raw }

// GroupVersionKind returns the object's apiVersion and kind.
func (o *Object) GroupVersionKind() schema.GroupVersionKind {
	return schema.FromAPIVersionAndKind(o.apiVersion, o.kind)
}

// SetGroupVersionKind does nothing: an Object is immutable.
func (o *Object) SetGroupVersionKind(schema.GroupVersionKind) {}

// GetObjectKind returns the object itself, which knows its kind.
func (o *Object) GetObjectKind() schema.ObjectKind { return o }

// DeepCopyObject returns a copy that shares the raw JSON, since nobody writes to it.
func (o *Object) DeepCopyObject() runtime.Object {
	c := *o
	return &c
}

// GetNamespace returns the namespace, empty for a cluster-scoped object.
func (o *Object) GetNamespace() string { return o.namespace }

// GetName returns the name.
func (o *Object) GetName() string { return o.name }

// GetUID returns the uid.
func (o *Object) GetUID() types.UID { return o.uid }

// GetResourceVersion returns the resourceVersion.
func (o *Object) GetResourceVersion() string { return o.rv }

var initialEventsEndAnnotations = map[string]string{metav1.InitialEventsAnnotationKey: "true"}

// GetAnnotations returns only what the Reflector asks a bookmark for: whether it ends the initial events.
func (o *Object) GetAnnotations() map[string]string {
	if o.initialEventsEnd {
		return initialEventsEndAnnotations
	}
	return nil
}

// The rest of metav1.Object is not carried: its getters return nothing, and the setters do nothing.

// SetNamespace does nothing: an Object is immutable.
func (o *Object) SetNamespace(string) {}

// SetName does nothing: an Object is immutable.
func (o *Object) SetName(string) {}

// GetGenerateName returns nothing: the field is not carried.
func (o *Object) GetGenerateName() string { return "" }

// SetGenerateName does nothing: an Object is immutable.
func (o *Object) SetGenerateName(string) {}

// SetUID does nothing: an Object is immutable.
func (o *Object) SetUID(types.UID) {}

// SetResourceVersion does nothing: an Object is immutable.
func (o *Object) SetResourceVersion(string) {}

// GetGeneration returns nothing: the field is not carried.
func (o *Object) GetGeneration() int64 { return 0 }

// SetGeneration does nothing: an Object is immutable.
func (o *Object) SetGeneration(int64) {}

// GetSelfLink returns nothing: the field is not carried.
func (o *Object) GetSelfLink() string { return "" }

// SetSelfLink does nothing: an Object is immutable.
func (o *Object) SetSelfLink(string) {}

// GetCreationTimestamp returns nothing: the field is not carried.
func (o *Object) GetCreationTimestamp() metav1.Time { return metav1.Time{} }

// SetCreationTimestamp does nothing: an Object is immutable.
func (o *Object) SetCreationTimestamp(metav1.Time) {}

// GetDeletionTimestamp returns nothing: the field is not carried.
func (o *Object) GetDeletionTimestamp() *metav1.Time { return nil }

// SetDeletionTimestamp does nothing: an Object is immutable.
func (o *Object) SetDeletionTimestamp(*metav1.Time) {}

// GetDeletionGracePeriodSeconds returns nothing: the field is not carried.
func (o *Object) GetDeletionGracePeriodSeconds() *int64 { return nil }

// SetDeletionGracePeriodSeconds does nothing: an Object is immutable.
func (o *Object) SetDeletionGracePeriodSeconds(*int64) {}

// GetLabels returns nothing: the field is not carried.
func (o *Object) GetLabels() map[string]string { return nil }

// SetLabels does nothing: an Object is immutable.
func (o *Object) SetLabels(map[string]string) {}

// SetAnnotations does nothing: an Object is immutable.
func (o *Object) SetAnnotations(map[string]string) {}

// GetFinalizers returns nothing: the field is not carried.
func (o *Object) GetFinalizers() []string { return nil }

// SetFinalizers does nothing: an Object is immutable.
func (o *Object) SetFinalizers([]string) {}

// GetOwnerReferences returns nothing: the field is not carried.
func (o *Object) GetOwnerReferences() []metav1.OwnerReference { return nil }

// SetOwnerReferences does nothing: an Object is immutable.
func (o *Object) SetOwnerReferences([]metav1.OwnerReference) {}

// GetManagedFields returns nothing: the field is not carried.
func (o *Object) GetManagedFields() []metav1.ManagedFieldsEntry { return nil }

// SetManagedFields does nothing: an Object is immutable.
func (o *Object) SetManagedFields([]metav1.ManagedFieldsEntry) {}

// List is a page of objects as ListWithContext returns it.
type List struct {
	metav1.TypeMeta
	metav1.ListMeta
	Items []runtime.Object
}

var (
	_ runtime.Object          = (*List)(nil)
	_ metav1.ListMetaAccessor = (*List)(nil)
)

// GetListMeta returns the list's resourceVersion and continue token.
func (l *List) GetListMeta() metav1.ListInterface { return &l.ListMeta }

// DeepCopyObject returns a copy that shares the items, since nobody writes to them.
func (l *List) DeepCopyObject() runtime.Object {
	c := *l
	c.Items = append([]runtime.Object(nil), l.Items...)
	return &c
}

// interned keeps one copy of the strings that most objects of a resource share: apiVersion, kind and namespace. It
// belongs to one scanner and is not safe for concurrent use.
type interned struct {
	last [4]string
	next int
	all  map[string]string
}

func (n *interned) get(b []byte) string {
	if len(b) == 0 {
		return ""
	}
	for _, s := range n.last {
		if s == string(b) {
			return s
		}
	}
	s, ok := n.all[string(b)]
	if !ok {
		if n.all == nil {
			n.all = make(map[string]string)
		}
		s = string(b)
		n.all[s] = s
	}
	n.last[n.next] = s
	n.next = (n.next + 1) % len(n.last)
	return s
}
