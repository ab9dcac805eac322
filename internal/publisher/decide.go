package publisher

import (
	"math/big"

	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/deltabridge/deltabridge/internal/change"
)

// action is what is to be done with the change at the head of an object's queue.
type action uint8

const (
	actPublish  action = iota // append it to the stream
	actSuppress               // nothing: the stream has it, or has something newer
	actPrecede                // append another change first, then decide again
)

// Reasons for suppressing a change, the values of messages_suppressed_total's label.
const (
	suppressUnchanged = "unchanged" // this very version is the subject's last message
	suppressOlder     = "older"     // the subject's last message is newer
	suppressGone      = "gone"      // the deletion is in the stream
	suppressNoState   = "no-state"  // of a resync: neither the cache nor the stream has the object's state
	suppressOvertaken = "overtaken" // of a resync: the object has changed since, and its change is published instead
)

// verdict is the outcome of decide.
type verdict struct {
	action action
	reason string         // why it is suppressed
	change *change.Change // what to publish, or what to publish first; may be the change given
	// again says that the stream may hold a message with the same id, of a history that the cluster has left.
	again bool
}

// decide compares a change with the last message on its subject, and says what becomes of it. It is where guarantees
// 1 and 3 are made: only a newer version follows an older one, and what is there is not appended again. It is pure.
//
// An object's history on its subject is always added, modified…, deleted, and again: so what follows nothing or a
// deletion is published as added, whatever the cache made of it, and another uid under the same name first has its
// predecessor's deletion published.
//
// A message with an epoch below rewound is of a history that the cluster has left, by a restore from a backup: its
// version tells whether it is the same as another one, and not which is newer. Then what comes is what counts.
func decide(stored change.Stored, known bool, c *change.Change, rewound uint64) verdict {
	v := compare(stored, known, c, rewound)
	if v.change == nil {
		return v
	}
	v.again = known && stored.Epoch < rewound && compareVersions(v.change.RV, stored.RV) <= 0
	if gap := v.change.Gap; !gap.IsZero() && compareVersions(gap.From, gap.To) > 0 {
		as := *v.change
		as.Gap.From = "0" // of another history, which says nothing of this one
		v.change = &as
	}
	return v
}

// compare is decide without regard to what a message says of gaps and histories.
func compare(stored change.Stored, known bool, c *change.Change, rewound uint64) verdict {
	live := known && !stored.Op.Gone()
	order := 1
	if known {
		order = compareVersions(c.RV, stored.RV)
		if order < 0 && stored.Epoch < rewound {
			order = 1
		}
	}
	sameUID := known && stored.UID == c.UID
	switch {
	case c.Op == change.OpSynced:
		return decideSynced(stored, known, order, c, rewound)
	case !known:
		return publishAs(c, firstOp(c.Op), c.Reason, c.Gap)
	case live && !sameUID:
		if order < 0 {
			return verdict{action: actSuppress, reason: suppressOlder}
		}
		return verdict{action: actPrecede, change: &change.Change{
			Op:     change.OpDeleted,
			Reason: change.ReasonReplaced,
			Ref:    c.Ref,
			GVK:    c.GVK,
			UID:    stored.UID,
			RV:     goneBefore(stored, c, rewound),
			Seen:   c.Seen,
			Gap:    change.Gap{From: stored.RV, To: c.RV},
		}}
	case c.Op.Gone() && live:
		if stored.Epoch < rewound && c.RV == stored.RV && c.Reason != change.ReasonReplaced && c.Gap.To != "" {
			// It was gone by then. What takes its name has a version of the present history, and must find a lower one.
			gone := *c
			gone.RV = c.Gap.To
			c = &gone
		}
		if order < 0 {
			// The uid is gone for good, whatever version this source knew it by.
			gone := *c
			gone.RV = stored.RV
			c = &gone
		}
		return verdict{action: actPublish, change: c}
	case c.Op == change.OpDeleted && stored.Op == change.OpLeft && sameUID:
		return verdict{action: actPublish, change: c} // it had left the selection, and now is gone
	case c.Op.Gone() && sameUID:
		return verdict{action: actSuppress, reason: suppressGone}
	case c.Op.Gone():
		if order <= 0 || c.Op == change.OpLeft {
			return verdict{action: actSuppress, reason: suppressOlder}
		}
		return verdict{action: actPublish, change: c}
	case live && order == 0:
		return verdict{action: actSuppress, reason: suppressUnchanged}
	case order < 0 || (order == 0 && !sameUID):
		return verdict{action: actSuppress, reason: suppressOlder}
	case live:
		gap := c.Gap
		if c.Reason == change.ReasonRelist || c.Reason == change.ReasonRepair {
			gap = change.Gap{From: stored.RV, To: c.RV}
		}
		return publishAs(c, change.OpModified, c.Reason, gap)
	case stored.Op == change.OpLeft && sameUID:
		return publishAs(c, change.OpAdded, change.ReasonScope, c.Gap)
	}
	return publishAs(c, change.OpAdded, c.Reason, c.Gap)
}

// goneBefore returns the version for the deletion of an object that another one has replaced: its last known one, or, where
// that is of another history, the last before its successor's.
func goneBefore(stored change.Stored, successor *change.Change, rewound uint64) string {
	if stored.Epoch >= rewound || compareVersions(stored.RV, successor.RV) < 0 {
		return stored.RV
	}
	n, ok := new(big.Int).SetString(successor.RV, 10)
	if !ok || n.Sign() <= 0 {
		return stored.RV
	}
	return n.Sub(n, big.NewInt(1)).String()
}

// decideSynced lets a state be repeated only where it is the one that the stream has. Where that is older, the change is on
// its way, and its place is before any repetition; unless the reason is repair, which says that all changes up to the
// state's version have been taken: then the stream has lost it.
func decideSynced(stored change.Stored, known bool, order int, c *change.Change, rewound uint64) verdict {
	sameUID := stored.UID == c.UID
	switch {
	case !known: // the stream has forgotten it
		return publishAs(c, change.OpAdded, change.ReasonRepair, c.Gap)
	case !stored.Op.Gone() && sameUID && order == 0:
		return publishAs(c, change.OpSynced, change.ReasonResync, c.Gap)
	case c.Reason == change.ReasonRepair && order > 0:
		as := *c
		as.Op = change.OpModified
		return compare(stored, known, &as, rewound)
	}
	return verdict{action: actSuppress, reason: suppressOvertaken}
}

// firstOp is the operation of the first message on a subject.
func firstOp(op change.Op) change.Op {
	if op == change.OpModified {
		return change.OpAdded
	}
	return op
}

func publishAs(c *change.Change, op change.Op, reason change.Reason, gap change.Gap) verdict {
	if c.Op != op || c.Reason != reason || c.Gap != gap {
		as := *c
		as.Op, as.Reason, as.Gap = op, reason, gap
		c = &as
	}
	return verdict{action: actPublish, change: c}
}

// compareVersions orders two versions of one resource: -1, 0 or 1. Versions that do not compare, which some aggregated
// APIs have, count as newer when they differ, for then the order in which they arrive is all there is.
func compareVersions(a, b string) int {
	if a == b {
		return 0
	}
	order, err := resourceversion.CompareResourceVersion(a, b)
	if err != nil {
		return 1
	}
	return order
}
