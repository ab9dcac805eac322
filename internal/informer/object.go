package informer

import (
	"github.com/klauspost/compress/s2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// Object is one Kubernetes object as the informer carries and caches it: what client-go needs to know of its metadata. It
// satisfies runtime.Object and metav1.Object, so that Reflector, FIFO and Indexer work on it as on any typed object. There
// is one in the cache for each object of the cluster, so it is small; the JSON leaves it when the listener has seen it.
//
// Who it is never changes once it has left the scanner: the cache, the FIFO and the listeners share it. The setters of
// metav1.Object therefore do nothing.
type Object struct {
	namespace string
	name      string
	uid       types.UID
	rv        string
	kind      *typeMeta
	// load is what it carries. It is nil for a stub: an object of which only those facts are known.
	load *load
}

// load is what an Object carries on its way through client-go, and what of that stays in the cache. It is the listener's
// from the moment at which the object reaches it; until then nobody but the scanner looks at it.
type load struct {
	raw    []byte // the JSON, until the listener takes it
	packed []byte // the JSON, s2-compressed, where a resync will need it
	event  uint64 // number of the watch event in the informer's intake, zero for none
	mark   *mark  // set for a sentinel, which is no object at all: see ListWatch.sentinel
}

// typeMeta is what all objects of a kind share.
type typeMeta struct {
	apiVersion string
	gvk        schema.GroupVersionKind
}

func newTypeMeta(apiVersion, kind string) *typeMeta {
	return &typeMeta{apiVersion: apiVersion, gvk: schema.FromAPIVersionAndKind(apiVersion, kind)}
}

var (
	_ runtime.Object = (*Object)(nil)
	_ metav1.Object  = (*Object)(nil)
)

// raw returns the object's JSON, with apiVersion and kind, as the API server sent it; nil once the listener has it. It must
// not be written to.
func (o *Object) raw() []byte {
	if o.load == nil {
		return nil
	}
	return o.load.raw
}

// marks returns what a sentinel carries, nil for an object.
func (o *Object) marks() *mark {
	if o.load == nil {
		return nil
	}
	return o.load.mark
}

// pack keeps the JSON, compressed.
func pack(raw []byte) *load { return &load{packed: s2.Encode(nil, raw)} }

// unpack returns the JSON that was kept, nil for none.
func (l *load) unpack() ([]byte, error) {
	if l == nil || l.packed == nil {
		return nil, nil
	}
	return s2.Decode(nil, l.packed)
}

// GroupVersionKind returns the object's apiVersion and kind.
func (o *Object) GroupVersionKind() schema.GroupVersionKind {
	return o.kind.gvk
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

// GetAnnotations returns nothing: the field is not carried.
func (o *Object) GetAnnotations() map[string]string { return nil }

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

// interned keeps one copy of what most objects of a resource share: kind and namespace. It belongs to one scanner and is
// not safe for concurrent use.
type interned struct {
	last  string
	all   map[string]string
	kind  *typeMeta
	kinds map[string]*typeMeta // by apiVersion and kind
}

func (n *interned) namespace(b []byte) string {
	if n.last == string(b) {
		return n.last
	}
	s, ok := n.all[string(b)]
	if !ok {
		if n.all == nil {
			n.all = make(map[string]string)
		}
		s = string(b)
		n.all[s] = s
	}
	n.last = s
	return s
}

func (n *interned) typeMeta(apiVersion, kind []byte) *typeMeta {
	if t := n.kind; t != nil && t.apiVersion == string(apiVersion) && t.gvk.Kind == string(kind) {
		return t
	}
	key := string(apiVersion) + "\x00" + string(kind)
	t, ok := n.kinds[key]
	if !ok {
		if n.kinds == nil {
			n.kinds = make(map[string]*typeMeta)
		}
		t = newTypeMeta(string(apiVersion), string(kind))
		n.kinds[key] = t
	}
	n.kind = t
	return t
}
