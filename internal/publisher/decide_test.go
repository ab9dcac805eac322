package publisher

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/deltabridge/deltabridge/internal/change"
)

// TestDecide goes through every kind of last message, every operation and every order of versions.
func TestDecide(t *testing.T) {
	const a, b = types.UID("a"), types.UID("b")
	at := func(op change.Op, uid types.UID, rv string) *change.Stored {
		return &change.Stored{UID: uid, RV: rv, Op: op, Sequence: 1}
	}
	type outcome struct {
		action action
		reason string
		op     change.Op
		uid    types.UID
		rv     string
	}
	publish := func(op change.Op, uid types.UID, rv string) outcome {
		return outcome{action: actPublish, op: op, uid: uid, rv: rv}
	}
	suppress := func(reason string) outcome { return outcome{action: actSuppress, reason: reason} }
	precede := func(uid types.UID, rv string) outcome {
		return outcome{action: actPrecede, op: change.OpDeleted, uid: uid, rv: rv}
	}
	for _, c := range []struct {
		stored *change.Stored
		op     change.Op
		uid    types.UID
		rv     string
		want   outcome
	}{
		// Nothing is known of the subject.
		{nil, change.OpAdded, a, "5", publish(change.OpAdded, a, "5")},
		{nil, change.OpModified, a, "5", publish(change.OpAdded, a, "5")},
		{nil, change.OpDeleted, a, "5", publish(change.OpDeleted, a, "5")},

		// The same object is there and lives.
		{at(change.OpAdded, a, "5"), change.OpAdded, a, "4", suppress(suppressOlder)},
		{at(change.OpAdded, a, "5"), change.OpModified, a, "4", suppress(suppressOlder)},
		{at(change.OpAdded, a, "5"), change.OpDeleted, a, "4", publish(change.OpDeleted, a, "5")},
		{at(change.OpAdded, a, "5"), change.OpAdded, a, "5", suppress(suppressUnchanged)},
		{at(change.OpAdded, a, "5"), change.OpModified, a, "5", suppress(suppressUnchanged)},
		{at(change.OpAdded, a, "5"), change.OpDeleted, a, "5", publish(change.OpDeleted, a, "5")},
		{at(change.OpAdded, a, "5"), change.OpAdded, a, "6", publish(change.OpModified, a, "6")},
		{at(change.OpAdded, a, "5"), change.OpModified, a, "6", publish(change.OpModified, a, "6")},
		{at(change.OpAdded, a, "5"), change.OpDeleted, a, "6", publish(change.OpDeleted, a, "6")},
		{at(change.OpModified, a, "5"), change.OpModified, a, "5", suppress(suppressUnchanged)},
		{at(change.OpModified, a, "5"), change.OpModified, a, "6", publish(change.OpModified, a, "6")},
		{at(change.OpModified, a, "5"), change.OpDeleted, a, "6", publish(change.OpDeleted, a, "6")},
		// Versions are numbers of any length, not text.
		{at(change.OpModified, a, "9"), change.OpModified, a, "10", publish(change.OpModified, a, "10")},
		{at(change.OpModified, a, "10"), change.OpModified, a, "9", suppress(suppressOlder)},
		{at(change.OpModified, a, "99999999999999999999"), change.OpModified, a, "100000000000000000000", publish(change.OpModified, a, "100000000000000000000")},
		// Versions that do not compare are newer when they differ.
		{at(change.OpModified, a, "x"), change.OpModified, a, "x", suppress(suppressUnchanged)},
		{at(change.OpModified, a, "x"), change.OpModified, a, "w", publish(change.OpModified, a, "w")},

		// Another object is there and lives: its deletion comes first, unless it is the newer one.
		{at(change.OpModified, b, "5"), change.OpAdded, a, "4", suppress(suppressOlder)},
		{at(change.OpModified, b, "5"), change.OpModified, a, "4", suppress(suppressOlder)},
		{at(change.OpModified, b, "5"), change.OpDeleted, a, "4", suppress(suppressOlder)},
		{at(change.OpModified, b, "5"), change.OpAdded, a, "6", precede(b, "5")},
		{at(change.OpModified, b, "5"), change.OpModified, a, "6", precede(b, "5")},
		{at(change.OpModified, b, "5"), change.OpDeleted, a, "6", precede(b, "5")},

		// The same object is gone.
		{at(change.OpDeleted, a, "5"), change.OpAdded, a, "4", suppress(suppressOlder)},
		{at(change.OpDeleted, a, "5"), change.OpModified, a, "4", suppress(suppressOlder)},
		{at(change.OpDeleted, a, "5"), change.OpDeleted, a, "4", suppress(suppressGone)},
		{at(change.OpDeleted, a, "5"), change.OpDeleted, a, "5", suppress(suppressGone)},
		{at(change.OpDeleted, a, "5"), change.OpDeleted, a, "6", suppress(suppressGone)},
		// It is back all the same: its deletion was an error, or a restore undid it.
		{at(change.OpDeleted, a, "5"), change.OpAdded, a, "5", publish(change.OpAdded, a, "5")},
		{at(change.OpDeleted, a, "5"), change.OpModified, a, "6", publish(change.OpAdded, a, "6")},

		// Another object is gone.
		{at(change.OpDeleted, b, "5"), change.OpAdded, a, "4", suppress(suppressOlder)},
		{at(change.OpDeleted, b, "5"), change.OpModified, a, "4", suppress(suppressOlder)},
		{at(change.OpDeleted, b, "5"), change.OpDeleted, a, "4", suppress(suppressOlder)},
		{at(change.OpDeleted, b, "5"), change.OpAdded, a, "5", suppress(suppressOlder)},
		{at(change.OpDeleted, b, "5"), change.OpDeleted, a, "5", suppress(suppressOlder)},
		{at(change.OpDeleted, b, "5"), change.OpAdded, a, "6", publish(change.OpAdded, a, "6")},
		{at(change.OpDeleted, b, "5"), change.OpModified, a, "6", publish(change.OpAdded, a, "6")},
		{at(change.OpDeleted, b, "5"), change.OpDeleted, a, "6", publish(change.OpDeleted, a, "6")},
		{at(change.OpLeft, b, "5"), change.OpModified, a, "6", publish(change.OpAdded, a, "6")},
		{at(change.OpExpired, b, "5"), change.OpModified, a, "6", publish(change.OpAdded, a, "6")},
	} {
		given := &change.Change{Op: c.op, UID: c.uid, RV: c.rv, Reason: change.ReasonWatch, Raw: []byte("{}")}
		before := *given
		stored := change.Stored{}
		if c.stored != nil {
			stored = *c.stored
		}
		v := decide(stored, c.stored != nil, given, 0)
		got := outcome{action: v.action, reason: v.reason}
		if v.change != nil {
			got.op, got.uid, got.rv = v.change.Op, v.change.UID, v.change.RV
		}
		name := fmt.Sprintf("%s %s/%s after %v", c.op, c.uid, c.rv, c.stored)
		if got != c.want {
			t.Errorf("%s: got %+v, want %+v", name, got, c.want)
		}
		if diff := cmp.Diff(before, *given, cmp.Comparer(func(a, b func()) bool { return (a == nil) == (b == nil) })); diff != "" {
			t.Errorf("%s: the change itself was changed:\n%s", name, diff)
		}
	}
}

func TestDecideMarksGaps(t *testing.T) {
	live := change.Stored{UID: "a", RV: "5", Op: change.OpModified, Sequence: 1}
	gap := change.Gap{From: "3", To: "9"}
	for _, c := range []struct {
		name   string
		stored change.Stored
		known  bool
		change change.Change
		want   change.Gap
	}{
		{"a watched change has none", live, true, change.Change{Op: change.OpModified, UID: "a", RV: "7", Reason: change.ReasonWatch}, change.Gap{}},
		{"a watched change keeps its own", live, true, change.Change{Op: change.OpModified, UID: "a", RV: "9", Reason: change.ReasonWatch, Gap: gap}, gap},
		{"between what is stored and what a list found, versions may be missing", live, true,
			change.Change{Op: change.OpModified, UID: "a", RV: "9", Reason: change.ReasonRelist, Gap: gap}, change.Gap{From: "5", To: "9"}},
		{"a first message keeps its own", change.Stored{}, false, change.Change{Op: change.OpModified, UID: "a", RV: "9", Reason: change.ReasonRelist, Gap: gap}, gap},
		{"another object was replaced somewhere in between", live, true,
			change.Change{Op: change.OpAdded, UID: "b", RV: "9", Reason: change.ReasonWatch}, change.Gap{From: "5", To: "9"}},
	} {
		if got := decide(c.stored, c.known, &c.change, 0).change.Gap; got != c.want {
			t.Errorf("%s: gap %q, want %q", c.name, got, c.want)
		}
	}
}

func TestDecideReplacedNamesThePredecessor(t *testing.T) {
	c := pod(change.OpAdded, "web", "b", 9)
	v := decide(change.Stored{UID: "a", RV: "5", Op: change.OpModified, Sequence: 3}, true, c, 0)
	want := &change.Change{
		Op: change.OpDeleted, Reason: change.ReasonReplaced, Ref: c.Ref, GVK: c.GVK, UID: "a", RV: "5", Seen: c.Seen,
		Gap: change.Gap{From: "5", To: "9"},
	}
	if diff := cmp.Diff(want, v.change); v.action != actPrecede || diff != "" {
		t.Errorf("action %d, change (-want +got):\n%s", v.action, diff)
	}
}

// FuzzDecide applies any sequence of changes of one object's name to a model of its subject.
func FuzzDecide(f *testing.F) {
	f.Add(uint64(1), 10)
	f.Fuzz(func(t *testing.T, seed uint64, steps int) { applyRandomChanges(t, seed, steps) })
}

func TestDecideProperties(t *testing.T) {
	for seed := range uint64(3000) {
		applyRandomChanges(t, seed, 60)
	}
}

// applyRandomChanges delivers changes as sloppily as caches and lists can: late, twice, with versions and deletions left
// out, under the wrong operation. Only the truth comes last, as after every relist.
func applyRandomChanges(t *testing.T, seed uint64, steps int) {
	rng := rand.New(rand.NewPCG(seed, 1))
	type state struct {
		uid  types.UID
		rv   int
		live bool
	}
	var happened []state
	uids := 0
	now := state{}
	for i := range min(max(steps, 1), 200) {
		switch {
		case !now.live || rng.IntN(8) == 0:
			uids++
			now = state{types.UID(fmt.Sprint("uid-", uids)), i + 1, true}
		case rng.IntN(5) == 0:
			now = state{now.uid, i + 1, false}
		default:
			now.rv = i + 1
		}
		happened = append(happened, now)
	}
	deliver := func(s state) *change.Change {
		op := []change.Op{change.OpAdded, change.OpModified}[rng.IntN(2)]
		if !s.live {
			op = change.OpDeleted
		}
		reason := []change.Reason{change.ReasonWatch, change.ReasonRelist}[rng.IntN(2)]
		return &change.Change{Op: op, UID: s.uid, RV: fmt.Sprint(s.rv), Reason: reason}
	}
	var delivered []*change.Change
	for i, s := range happened {
		switch rng.IntN(6) {
		case 0: // missed
		case 1: // twice, or late
			delivered = append(delivered, deliver(s), deliver(happened[rng.IntN(i+1)]))
		default:
			delivered = append(delivered, deliver(s))
		}
	}
	delivered = append(delivered, deliver(now))

	var stream []change.Stored
	seen := map[string]bool{}
	for i := 0; i < len(delivered); i++ {
		c := delivered[i]
		var last change.Stored
		if len(stream) > 0 {
			last = stream[len(stream)-1]
		}
		v := decide(last, len(stream) > 0, c, 0)
		switch v.action {
		case actSuppress:
			continue
		case actPrecede:
			i--
		}
		s := change.Stored{UID: v.change.UID, RV: v.change.RV, Op: v.change.Op, Sequence: uint64(len(stream) + 1)}
		at := fmt.Sprintf("seed %d: %s %s/%s after %+v", seed, s.Op, s.UID, s.RV, last)
		order := compareVersions(s.RV, last.RV)
		switch {
		case len(stream) == 0:
			if s.Op == change.OpModified {
				t.Fatalf("%s: the first message", at)
			}
		case order < 0 || order == 0 && s.Op != change.OpDeleted:
			t.Fatalf("%s: versions fall or repeat", at)
		case last.Op == change.OpDeleted && s.Op == change.OpModified,
			last.Op != change.OpDeleted && s.Op == change.OpAdded,
			last.Op != change.OpDeleted && s.UID != last.UID,
			last.Op == change.OpDeleted && s.UID == last.UID:
			t.Fatalf("%s: not added, modified…, deleted", at)
		}
		key := fmt.Sprint(s.UID, "/", s.RV)
		if s.Op == change.OpDeleted {
			key = fmt.Sprint(s.UID, "/deleted")
		}
		if seen[key] {
			t.Fatalf("%s: stored twice", at)
		}
		seen[key] = true
		stream = append(stream, s)
	}
	last := stream[len(stream)-1]
	if last.UID != now.uid || last.Op.Gone() == now.live || now.live && last.RV != fmt.Sprint(now.rv) {
		t.Fatalf("seed %d: the last message is %+v, the truth %+v", seed, last, now)
	}
}
