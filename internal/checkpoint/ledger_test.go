package checkpoint_test

import (
	"maps"
	"slices"
	"strconv"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/deltabridge/deltabridge/internal/change"
	"github.com/deltabridge/deltabridge/internal/checkpoint"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestLedger(t *testing.T) {
	l := checkpoint.NewLedger()
	if got, ok := l.Get("a"); ok || got != (change.Stored{}) {
		t.Errorf("an empty ledger knows %+v", got)
	}
	first := change.Stored{UID: "u", RV: "1", Op: change.OpAdded, Sequence: 4, Epoch: 1}
	l.Put("a", first)
	l.Put("b", change.Stored{UID: "v", RV: "2", Op: change.OpDeleted, Sequence: 5})
	if got, ok := l.Get("a"); !ok || got != first {
		t.Errorf("got %+v, want %+v", got, first)
	}
	// The last message of a subject may become an earlier one, when somebody removes the last.
	earlier := change.Stored{UID: "u", RV: "0", Op: change.OpAdded, Sequence: 2}
	l.Put("a", earlier)
	if got, _ := l.Get("a"); got != earlier {
		t.Errorf("got %+v, want %+v", got, earlier)
	}
	l.Forget("a")
	if _, ok := l.Get("a"); ok || l.Len() != 1 {
		t.Errorf("forgotten, and yet known; %d subjects", l.Len())
	}
}

func TestLedgerKnowsTheObjectsOfAResource(t *testing.T) {
	l := checkpoint.NewLedger()
	for i, subject := range []string{"kube.a.core.pods.x.one", "kube.a.core.pods.y.two", "kube.a.apps.pods.x.one", "kube.a.core.nodes._.n"} {
		l.Put(subject, change.Stored{Sequence: uint64(i + 1)})
	}
	l.Put("kube.a.core.pods.x.one", change.Stored{Sequence: 9})
	l.Forget("kube.a.core.nodes._.n")
	got := map[string]uint64{}
	l.Each("kube.a.core.pods", func(subject string, stored change.Stored) { got[subject] = stored.Sequence })
	want := map[string]uint64{"kube.a.core.pods.x.one": 9, "kube.a.core.pods.y.two": 2}
	if !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	l.Put("kube.a.core.gone.x.one", change.Stored{Op: change.OpDeleted})
	if n := l.Count("kube.a.core.pods"); n != 2 {
		t.Errorf("%d pods, want 2", n)
	}
	resources := l.Resources()
	slices.Sort(resources)
	if want := []string{"kube.a.apps.pods", "kube.a.core.pods"}; !slices.Equal(resources, want) || l.Len() != 4 {
		t.Errorf("got %v and %d objects, want %v and 4", resources, l.Len(), want)
	}
}

func TestLedgerIsSafeForConcurrentUse(t *testing.T) {
	l := checkpoint.NewLedger()
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for i := range 1000 {
				subject := strconv.Itoa(i % 50)
				l.Put(subject, change.Stored{Sequence: uint64(w*1000 + i)})
				l.Get(subject)
				l.Len()
			}
		})
	}
	wg.Wait()
	if l.Len() != 50 {
		t.Errorf("%d subjects, want 50", l.Len())
	}
}
