package publisher

import (
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
)

// verdict is the outcome of decide.
type verdict struct {
	action action
	reason string         // why it is suppressed
	change *change.Change // what to publish, or what to publish first; may be the change given
}

// decide compares a change with the last message on its subject, and says what becomes of it. It is where guarantees
// 1 and 3 are made: only a newer version follows an older one, and what is there is not appended again. It is pure.
//
// An object's history on its subject is always added, modified…, deleted, and again: so what follows nothing or a
// deletion is published as added, whatever the cache made of it, and another uid under the same name first has its
// predecessor's deletion published.
func decide(stored change.Stored, known bool, c *change.Change) verdict {
	live := known && !stored.Op.Gone()
	order := 1
	if known {
		order = compareVersions(c.RV, stored.RV)
	}
	sameUID := known && stored.UID == c.UID
	switch {
	case !known:
		return publishAs(c, firstOp(c.Op), c.Gap)
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
			RV:     stored.RV,
			Seen:   c.Seen,
			Gap:    change.Gap{From: stored.RV, To: c.RV},
		}}
	case c.Op == change.OpDeleted && live:
		if order < 0 {
			// The uid is gone for good, whatever version this source knew it by.
			gone := *c
			gone.RV = stored.RV
			c = &gone
		}
		return verdict{action: actPublish, change: c}
	case c.Op == change.OpDeleted && sameUID:
		return verdict{action: actSuppress, reason: suppressGone}
	case c.Op == change.OpDeleted:
		if order <= 0 {
			return verdict{action: actSuppress, reason: suppressOlder}
		}
		return verdict{action: actPublish, change: c}
	case live && order == 0:
		return verdict{action: actSuppress, reason: suppressUnchanged}
	case order < 0 || (order == 0 && !sameUID):
		return verdict{action: actSuppress, reason: suppressOlder}
	case live:
		gap := c.Gap
		if c.Reason == change.ReasonRelist {
			gap = change.Gap{From: stored.RV, To: c.RV}
		}
		return publishAs(c, change.OpModified, gap)
	}
	return publishAs(c, change.OpAdded, c.Gap)
}

// firstOp is the operation of the first message on a subject.
func firstOp(op change.Op) change.Op {
	if op == change.OpModified {
		return change.OpAdded
	}
	return op
}

func publishAs(c *change.Change, op change.Op, gap change.Gap) verdict {
	if c.Op != op || c.Gap != gap {
		as := *c
		as.Op, as.Gap = op, gap
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
