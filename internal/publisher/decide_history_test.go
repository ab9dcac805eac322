package publisher

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/deltabridge/deltabridge/internal/change"
)

// After a restore from a backup, versions of the history before tell only whether two are the same.
func TestDecideAfterARewind(t *testing.T) {
	const rewound = 7
	before := change.Stored{UID: "a", RV: "900", Op: change.OpModified, Sequence: 1, Epoch: 6}
	dead := before
	dead.Op = change.OpDeleted
	since := before
	since.Epoch = rewound
	at := func(op change.Op, uid types.UID, rv string) *change.Change {
		return &change.Change{Op: op, UID: uid, RV: rv, Reason: change.ReasonRelist}
	}
	for name, c := range map[string]struct {
		stored change.Stored
		change *change.Change
		action action
		reason string
		op     change.Op
	}{
		"a state from before the backup comes back": {before, at(change.OpModified, "a", "20"), actPublish, "", change.OpModified},
		"the same state":                                {before, at(change.OpModified, "a", "900"), actSuppress, suppressUnchanged, 0},
		"an object comes back to life":                  {dead, at(change.OpAdded, "a", "20"), actPublish, "", change.OpAdded},
		"an object takes a dead one's name":             {dead, at(change.OpAdded, "b", "20"), actPublish, "", change.OpAdded},
		"an object was replaced in the backup":          {before, at(change.OpAdded, "b", "20"), actPrecede, "", change.OpDeleted},
		"an object is not in the backup":                {before, at(change.OpDeleted, "a", "900"), actPublish, "", change.OpDeleted},
		"a version of the present history stays in use": {since, at(change.OpModified, "a", "20"), actSuppress, suppressOlder, 0},
	} {
		v := decide(c.stored, true, c.change, rewound)
		op := change.OpNone
		if v.change != nil {
			op = v.change.Op
		}
		if v.action != c.action || v.reason != c.reason || op != c.op {
			t.Errorf("%s: action %d, reason %q, %s; want %d, %q, %s", name, v.action, v.reason, op, c.action, c.reason, c.op)
		}
	}
}

// What was stored in the other history has the same id, and its version is no end of a range of this one's.
func TestDecideAfterARewindSaysSo(t *testing.T) {
	before := change.Stored{UID: "a", RV: "900", Op: change.OpModified, Sequence: 1, Epoch: 6}
	c := &change.Change{Op: change.OpModified, UID: "a", RV: "20", Reason: change.ReasonRelist}
	if v := decide(before, true, c, 7); !v.again || v.change.Gap != (change.Gap{From: "0", To: "20"}) {
		t.Errorf("again %t, gap %s; want it again, and 0-20", v.again, v.change.Gap)
	}
	// Deletions have versions of the present history, below whatever takes the name.
	b := &change.Change{Op: change.OpAdded, UID: "b", RV: "20", Reason: change.ReasonRelist}
	if v := decide(before, true, b, 7); v.action != actPrecede || v.change.RV != "19" {
		t.Errorf("replaced at %s, want 19", v.change.RV)
	}
	later := &change.Change{Op: change.OpAdded, UID: "b", RV: "950", Reason: change.ReasonRelist}
	v := decide(before, true, later, 7)
	if v.action != actPrecede || v.change.RV != "900" {
		t.Errorf("replaced at %s, want 900", v.change.RV)
	}
	if own := decide(before, true, v.change, 7); own.action != actPublish || own.change.RV != "900" {
		t.Errorf("the predecessor's deletion is published at %s, want 900, below its successor's", own.change.RV)
	}
	d := &change.Change{Op: change.OpDeleted, UID: "a", RV: "900", Reason: change.ReasonMissing, Gap: change.Gap{From: "900", To: "33"}}
	if v := decide(before, true, d, 7); v.action != actPublish || v.change.RV != "33" || v.change.Gap.From != "0" {
		t.Errorf("missing at %s, gap %s, want 33, 0-33", v.change.RV, v.change.Gap)
	}
	c.RV = "901"
	if v := decide(before, true, c, 7); v.again || v.change.Gap != (change.Gap{From: "900", To: "901"}) {
		t.Errorf("again %t, gap %s of a version that the other history did not have", v.again, v.change.Gap)
	}
}

func TestDecideSynced(t *testing.T) {
	live := change.Stored{UID: "a", RV: "5", Op: change.OpModified, Sequence: 1}
	synced := live
	synced.Op = change.OpSynced
	dead := live
	dead.Op = change.OpDeleted
	other := live
	other.UID = "b"
	for name, c := range map[string]struct {
		stored change.Stored
		known  bool
		rv     string
		action action
		op     change.Op
		reason string
	}{
		"the state that is there":          {live, true, "5", actPublish, change.OpSynced, string(change.ReasonResync)},
		"again":                            {synced, true, "5", actPublish, change.OpSynced, string(change.ReasonResync)},
		"its change is still on its way":   {live, true, "6", actSuppress, 0, suppressOvertaken},
		"it has changed since":             {live, true, "4", actSuppress, 0, suppressOvertaken},
		"it is gone by now":                {dead, true, "5", actSuppress, 0, suppressOvertaken},
		"another has its name":             {other, true, "5", actSuppress, 0, suppressOvertaken},
		"the stream has forgotten the one": {change.Stored{}, false, "5", actPublish, change.OpAdded, string(change.ReasonRepair)},
	} {
		v := decide(c.stored, c.known, &change.Change{Op: change.OpSynced, UID: "a", RV: c.rv, Reason: change.ReasonResync}, 0)
		op, reason := change.OpNone, v.reason
		if v.change != nil {
			op, reason = v.change.Op, string(v.change.Reason)
		}
		if v.action != c.action || op != c.op || reason != c.reason {
			t.Errorf("%s: action %d, %s, %q; want %d, %s, %q", name, v.action, op, reason, c.action, c.op, c.reason)
		}
	}
	// A change that comes after a repetition is one like any other.
	if v := decide(synced, true, &change.Change{Op: change.OpModified, UID: "a", RV: "6"}, 0); v.action != actPublish || v.change.Op != change.OpModified {
		t.Errorf("after a repetition: %+v", v)
	}
}

func TestDecideLeft(t *testing.T) {
	live := change.Stored{UID: "a", RV: "5", Op: change.OpModified, Sequence: 1}
	left := live
	left.Op = change.OpLeft
	for name, c := range map[string]struct {
		stored change.Stored
		change change.Change
		want   change.Op // none for a suppressed one
		reason change.Reason
	}{
		"it leaves":                   {live, change.Change{Op: change.OpLeft, UID: "a", RV: "5", Reason: change.ReasonScope}, change.OpLeft, change.ReasonScope},
		"it has left already":         {left, change.Change{Op: change.OpLeft, UID: "a", RV: "5", Reason: change.ReasonScope}, change.OpNone, ""},
		"it comes back unchanged":     {left, change.Change{Op: change.OpAdded, UID: "a", RV: "5", Reason: change.ReasonRelist}, change.OpAdded, change.ReasonScope},
		"it comes back changed":       {left, change.Change{Op: change.OpAdded, UID: "a", RV: "6", Reason: change.ReasonRelist}, change.OpAdded, change.ReasonScope},
		"it is deleted after it left": {left, change.Change{Op: change.OpDeleted, UID: "a", RV: "6", Reason: change.ReasonWatch}, change.OpDeleted, change.ReasonWatch},
		"another one has its name":    {left, change.Change{Op: change.OpAdded, UID: "b", RV: "6", Reason: change.ReasonWatch}, change.OpAdded, change.ReasonWatch},
		"a leave of a former object":  {live, change.Change{Op: change.OpLeft, UID: "a", RV: "4", Reason: change.ReasonScope}, change.OpLeft, change.ReasonScope},
		"a leave that came too late":  {left, change.Change{Op: change.OpLeft, UID: "b", RV: "9", Reason: change.ReasonScope}, change.OpNone, ""},
	} {
		v := decide(c.stored, true, &c.change, 0)
		op, reason := change.OpNone, change.Reason("")
		if v.action == actPublish {
			op, reason = v.change.Op, v.change.Reason
		}
		if op != c.want || reason != c.reason {
			t.Errorf("%s: %+v, want %s %s", name, v, c.want, c.reason)
		}
	}
}

// A repair follows only where all changes up to its version have been taken: what is older in the stream is lost there.
func TestDecideRepair(t *testing.T) {
	live := change.Stored{UID: "a", RV: "5", Op: change.OpModified, Sequence: 1}
	dead, left, other := live, live, live
	dead.Op, left.Op, other.UID = change.OpDeleted, change.OpLeft, "b"
	for name, c := range map[string]struct {
		stored change.Stored
		known  bool
		rv     string
		action action
		op     change.Op
		reason string
		gap    string
	}{
		"the state that is there":    {live, true, "5", actPublish, change.OpSynced, "resync", ""},
		"the stream has lost it":     {live, true, "8", actPublish, change.OpModified, "repair", "5-8"},
		"the stream has all lost":    {change.Stored{}, false, "8", actPublish, change.OpAdded, "repair", ""},
		"it has changed since":       {live, true, "4", actSuppress, 0, suppressOvertaken, ""},
		"it is gone by now":          {dead, true, "5", actSuppress, 0, suppressOvertaken, ""},
		"it is wrongly said gone":    {dead, true, "8", actPublish, change.OpAdded, "repair", ""},
		"it is wrongly said to left": {left, true, "8", actPublish, change.OpAdded, "scope", ""},
		"the one before is not gone": {other, true, "8", actPrecede, change.OpDeleted, "replaced", "5-8"},
		"another has its name":       {other, true, "4", actSuppress, 0, suppressOvertaken, ""},
	} {
		v := decide(c.stored, c.known, &change.Change{Op: change.OpSynced, UID: "a", RV: c.rv, Reason: change.ReasonRepair}, 0)
		op, reason, gap := change.OpNone, v.reason, ""
		if v.change != nil {
			op, reason, gap = v.change.Op, string(v.change.Reason), v.change.Gap.String()
		}
		if v.action != c.action || op != c.op || reason != c.reason || gap != c.gap {
			t.Errorf("%s: action %d, %s, %q, gap %q; want %d, %s, %q, %q", name, v.action, op, reason, gap, c.action, c.op, c.reason, c.gap)
		}
	}
}
