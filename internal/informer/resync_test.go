package informer

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"
)

func resyncing(period time.Duration) func(*Options) {
	return func(o *Options) { o.ResyncPeriod = period }
}

// runsSince returns the runs of the repetitions since the last call.
func (s *sunk) runsSince() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	runs := s.runs
	s.runs = nil
	return runs
}

func (s *sunk) setBusy(busy bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busy = busy
}

// Each period every object is handed on once, marked as state, and the sentinel is not; the runs differ.
func TestResync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newAPI(t)
		want := []string{}
		for i := range 5 {
			rv := api.put("default", fmt.Sprintf("c%d", i), "0")
			want = append(want, fmt.Sprintf("synced configmaps/default/c%d %d resync", i, rv))
		}
		f := api.manage("configmaps", resyncing(time.Minute))
		f.next()
		f.marked()
		seen := map[string]bool{}
		for range 3 {
			settle(time.Minute)
			expectSet(t, "repetitions", f.next(), want...)
			runs := slices.Compact(f.runsSince())
			if len(runs) != 1 || runs[0] == "" || seen[runs[0]] {
				t.Errorf("runs %q, want one and a new one", runs)
			}
			seen[runs[0]] = true
		}
		if len(f.sunk.moved) > 0 {
			t.Errorf("repetitions move the position to %v", f.sunk.moved)
		}
	})
}

func TestNoResyncUnlessAskedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newAPI(t)
		api.put("default", "a", "0")
		f := api.manage("configmaps")
		f.next()
		settle(24 * time.Hour)
		expect(t, "changes", f.next())
	})
}

// While changes wait, nothing is repeated; what changes meanwhile is not repeated at all, what goes neither, and a
// resync that is held becomes part of the next.
func TestResyncIsHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newAPI(t)
		a := api.put("default", "a", "0")
		b := api.put("default", "b", "0")
		api.put("default", "c", "0")
		api.put("default", "d", "0")
		f := api.manage("configmaps", resyncing(time.Minute))
		f.next()
		f.setBusy(true)
		settle(3*time.Minute + time.Second)
		expect(t, "changes", f.next())
		text := strconv.Itoa
		changed := api.put("default", "c", "1")
		gone := api.remove("default", "d")
		synctest.Wait()
		expect(t, "changes", f.next(),
			"modified configmaps/default/c "+text(changed)+" watch", "deleted configmaps/default/d "+text(gone)+" watch")
		f.setBusy(false)
		settle(time.Second)
		expectSet(t, "repetitions", f.next(),
			"synced configmaps/default/a "+text(a)+" resync", "synced configmaps/default/b "+text(b)+" resync")
		if runs := slices.Compact(f.runsSince()); len(runs) != 1 {
			t.Errorf("runs %q, want the last one alone", runs)
		}
		settle(time.Minute)
		expectSet(t, "repetitions", f.next(), "synced configmaps/default/a "+text(a)+" resync",
			"synced configmaps/default/b "+text(b)+" resync", "synced configmaps/default/c "+text(changed)+" resync")
	})
}

// What is known from the stream only has no state here: it is read there.
func TestResyncOfWhatTheStreamHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newAPI(t)
		a := api.put("default", "a", "0")
		f := api.followKnowing(api.knowing(a, ""), resyncing(time.Minute))
		expect(t, "changes", f.next())
		settle(time.Minute)
		f.sunk.mu.Lock()
		defer f.sunk.mu.Unlock()
		if len(f.sunk.all) != 1 || f.sunk.all[0].Raw != nil || f.sunk.all[0].RV != strconv.Itoa(a) {
			t.Errorf("repeated %+v", f.sunk.all)
		}
	})
}

// A relist in between delivers what is unchanged once more, which is no resync.
func TestRelistIsNoResync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newAPI(t)
		a := api.put("default", "a", "0")
		f := api.manage("configmaps", resyncing(time.Minute))
		settle(time.Minute)
		f.next()
		api.compact()
		api.endWatches()
		settle(30 * time.Second)
		expect(t, "relists", f.counts.reasons(), "expired")
		expect(t, "changes", f.next())
		settle(2 * time.Minute)
		for _, line := range f.next() {
			if line != "synced configmaps/default/a "+strconv.Itoa(a)+" resync" {
				t.Errorf("got %q", line)
			}
		}
	})
}

// A resync that comes late, with the next one behind it, is another run: no id is used twice.
func TestRunsNeverHoldAnObjectTwice(t *testing.T) {
	r := newResync(time.Minute)
	now := time.Unix(1700000000, 0)
	a, b := &Object{name: "a", uid: "1"}, &Object{name: "b", uid: "2"}
	r.note(a, now)
	r.note(b, now.Add(time.Millisecond))
	first := r.pending[objectKey{name: "a"}].run
	if second := r.pending[objectKey{name: "b"}].run; second != first {
		t.Errorf("one resync is two runs, %s and %s", first, second)
	}
	r.note(a, now.Add(2*time.Millisecond))
	if again := r.pending[objectKey{name: "a"}].run; again == first {
		t.Error("a run holds an object twice")
	}
}
