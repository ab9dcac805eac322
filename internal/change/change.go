// Package change is the domain at the centre of the bridge: what happened to which object, and what the stream last
// said of it. Every other package speaks in these types; this one knows no technology but apimachinery's types.
package change

import (
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// Op says what a change does to an object. It is the last part of a message's ce-type.
type Op uint8

// The operations, in the words of the contract's ce-type.
const (
	// OpNone is the zero value: nothing is known of the object.
	OpNone Op = iota
	// OpAdded means that the object came into being.
	OpAdded
	// OpModified means that the object has a new version.
	OpModified
	// OpDeleted means that the object is gone; the body is its last known state.
	OpDeleted
	// OpLeft means that the object lives on but is no longer in the selection.
	OpLeft
	// OpSynced repeats an object's state; nothing changed.
	OpSynced
	// OpExpired means that a deleted object's subject is about to vanish.
	OpExpired
)

var opNames = [...]string{
	OpNone:     "",
	OpAdded:    "added",
	OpModified: "modified",
	OpDeleted:  "deleted",
	OpLeft:     "left",
	OpSynced:   "synced",
	OpExpired:  "expired",
}

// String returns the operation's name as it stands in ce-type, empty for OpNone.
func (o Op) String() string {
	if int(o) < len(opNames) {
		return opNames[o]
	}
	return ""
}

// ParseOp is the inverse of String. It reports false for a name that is none of the operations'.
func ParseOp(name string) (Op, bool) {
	for op, n := range opNames {
		if n == name && n != "" {
			return Op(op), true
		}
	}
	return OpNone, false
}

// Gone reports whether an object whose last message has this operation is absent from the selection.
func (o Op) Gone() bool { return o == OpDeleted || o == OpLeft || o == OpExpired }

// Reason says why a message exists; it is the value of ce-reason.
type Reason string

// The reasons of the contract.
const (
	ReasonWatch       Reason = "watch"        // delivered by the watch
	ReasonRelist      Reason = "relist"       // found by comparing a list with what was published
	ReasonMissing     Reason = "missing"      // deleted while nobody watched
	ReasonReplaced    Reason = "replaced"     // another uid took the name
	ReasonScope       Reason = "scope"        // entered or left the selection
	ReasonKindRemoved Reason = "kind-removed" // the resource itself was removed
	ReasonResync      Reason = "resync"       // the state, published again
	ReasonRepair      Reason = "repair"       // found to differ from the cluster
)

// ObjectRef names an object within one cluster. It has no version: a change of the served version does not make
// another object.
type ObjectRef struct {
	Group     string // API group, empty for the core group
	Resource  string // plural resource name
	Namespace string // empty for cluster-scoped objects
	Name      string
}

// GroupResource returns the resource that the object is one of.
func (r ObjectRef) GroupResource() schema.GroupResource {
	return schema.GroupResource{Group: r.Group, Resource: r.Resource}
}

// String returns the raw names as they stand in ce-subject: "deployments.apps/default/web", "nodes/ip-10-0-0-1".
func (r ObjectRef) String() string {
	s := r.GroupResource().String() + "/"
	if r.Namespace != "" {
		s += r.Namespace + "/"
	}
	return s + r.Name
}

// Gap is a range of a resource's versions, both ends exclusive of doubt: every version after From and before To may
// be missing from the stream. The zero value means that nothing is missing.
type Gap struct {
	From, To string
}

// IsZero reports whether the gap is empty.
func (g Gap) IsZero() bool { return g == Gap{} }

// String returns "<from>-<to>", the value of ce-gap.
func (g Gap) String() string {
	if g.IsZero() {
		return ""
	}
	return g.From + "-" + g.To
}

// Change is one thing that happened to one object, as the informer reported it. It is immutable once handed on; Raw
// is shared and must not be written to.
type Change struct {
	Op     Op
	Reason Reason
	Ref    ObjectRef
	GVK    schema.GroupVersionKind
	UID    types.UID
	RV     string // resourceVersion; for a deletion the version at which the object was gone
	Raw    []byte // the object's JSON, with apiVersion and kind, as the API server sent it
	// Run tells one resync from another: it is the same for all that one resync repeats, and for OpSynced never empty.
	Run string
	// Published says that Raw is taken from the stream, not from the API server: digests in it are final.
	Published bool
	Seen      time.Time
	Gap       Gap

	// Done, if set, is called exactly once, when the change needs no more work: it was acknowledged by the broker or
	// suppressed. It is called on a publisher goroutine and must not block.
	Done func()
}

// Stored is what the stream's last message on an object's subject says. It is the ledger's value.
type Stored struct {
	UID      types.UID
	RV       string
	Op       Op
	Sequence uint64 // the message's sequence in the stream
	Epoch    uint64 // the writer's epoch, zero if the message had none
}
