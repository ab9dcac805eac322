package checkpoint_test

import (
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
