package bridge_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/deltabridge/deltabridge/internal/bridge"
	"github.com/deltabridge/deltabridge/internal/change"
	"github.com/deltabridge/deltabridge/internal/informer"
)

// A repetition waits while changes do, and is no change: it is not counted and moves no position.
func TestRepetitionsWaitForChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		stop := w.run()
		_, feeds := open(t, w, pods, 1)
		p := w.broker.last()
		feeds[0].Mark("100", change.Gap{})
		expectMarks(t, w, "pods 100 c1")
		repeat := at("90")
		p.load(1000, 0)
		if feeds[0].Repeat(repeat) || len(p.published()) != 0 {
			t.Error("taken although changes wait")
		}
		p.load(1, 1<<30)
		if feeds[0].Repeat(repeat) {
			t.Error("taken although much waits")
		}
		p.load(3, 1000)
		if !feeds[0].Repeat(repeat) || len(p.published()) != 1 {
			t.Error("not taken although next to nothing waits")
		}
		if w.metrics.received != 0 {
			t.Error("counted as a change")
		}
		rest(time.Minute)
		expectMarks(t, w)
		feeds[0].Mark("110", change.Gap{}) // it holds nothing up, either
		rest(time.Minute)
		expectMarks(t, w, "pods 110 c1")
		stop()
	})
}

// resyncing is the part of the fake source that resyncs use.
type resyncing struct {
	pages  []informer.Page
	failed error                     // what a survey of services ends with
	gone   map[string]bool           // names of objects that are not there
	held   atomic.Bool               // no repetition is taken
	repeat func(c *change.Change)    // what becomes of one that is taken
	asked  []informer.Scope          // the surveys
	hook   func(ctx context.Context) // called in each survey
}

func (s *resyncing) Targets(names []string, _ string) ([]schema.GroupResource, error) {
	var out []schema.GroupResource
	for _, name := range names {
		if name == "unknown" {
			return nil, errors.New("unknown is not followed")
		}
		out = append(out, schema.GroupResource{Resource: name})
	}
	return out, nil
}

func (s *resyncing) Survey(ctx context.Context, scope informer.Scope, run string, visit func(informer.Page) error) error {
	s.asked = append(s.asked, scope)
	if s.hook != nil {
		s.hook(ctx)
	}
	if scope.Resource.Resource == "services" {
		return s.failed
	}
	for _, page := range s.pages {
		for _, c := range page.States {
			c.Run = run
		}
		if err := visit(page); err != nil {
			return err
		}
	}
	return ctx.Err()
}

func (s *resyncing) Repeat(c *change.Change) (bool, error) {
	if s.held.Load() {
		return false, nil
	}
	s.repeat(c)
	return true, nil
}

func (s *resyncing) Missing(_ context.Context, gr schema.GroupResource, k informer.Known, version string) (*change.Change, error) {
	if !s.gone[k.Name] {
		return nil, nil
	}
	return &change.Change{
		Op: change.OpDeleted, Reason: change.ReasonRepair, UID: k.UID, RV: k.RV, Gap: change.Gap{From: k.RV, To: version},
		Ref: change.ObjectRef{Resource: gr.Resource, Namespace: k.Namespace, Name: k.Name},
	}, nil
}

// state is an object as a survey lists it.
func state(name, rv string) *change.Change {
	return &change.Change{
		Op: change.OpSynced, Reason: change.ReasonRepair, UID: types.UID("uid-" + name), RV: rv,
		Ref: change.ObjectRef{Resource: "pods", Name: name},
	}
}

// resyncWorld is a bridge with a source that lists, over a stream that holds what is stored.
type resyncWorld struct {
	*world
	stop   func() int64
	source *source
	feed   informer.Feed
	seq    uint64
}

// newResyncWorld returns a world whose resource is published up to the version.
func newResyncWorld(t *testing.T, published string) *resyncWorld {
	w := &resyncWorld{world: newWorld()}
	w.broker.checkpoint.stored = map[change.ObjectRef]change.Stored{}
	w.stop = w.run()
	w.source, _ = w.world.source()
	_, feeds := open(t, w.world, pods, 1)
	w.feed = feeds[0]
	w.feed.Mark(published, change.Gap{})
	w.source.repeat = func(c *change.Change) { go w.publish(c) }
	return w
}

// store makes the stream's last message about an object.
func (w *resyncWorld) store(c *change.Change, op change.Op, rv string) {
	w.broker.checkpoint.set(func() {
		w.seq++
		w.broker.checkpoint.stored[c.Ref] = change.Stored{UID: c.UID, RV: rv, Op: op, Sequence: w.seq}
	})
}

// publish does what the publisher does with a state.
func (w *resyncWorld) publish(c *change.Change) {
	stored, known := w.broker.checkpoint.Stored(c.Ref)
	switch {
	case c.Op == change.OpDeleted:
		w.store(c, change.OpDeleted, c.RV)
	case !known:
		w.store(c, change.OpAdded, c.RV)
	case stored.RV == c.RV:
		w.store(c, change.OpSynced, c.RV)
	case stored.RV < c.RV:
		w.store(c, change.OpModified, c.RV)
	}
	c.Done()
}

func ignore(bridge.ResyncProgress) {}

// What the stream has is synced; what it has lost, added, or kept although it is gone is repaired; what is newer there
// is left alone.
func TestResyncCompares(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newResyncWorld(t, "90")
		same, older, lost, newer := state("same", "10"), state("older", "20"), state("lost", "30"), state("newer", "40")
		w.store(same, change.OpModified, "10")
		w.store(older, change.OpModified, "15")
		w.store(newer, change.OpModified, "50")
		ghost, later, alive := state("ghost", "60"), state("later", "95"), state("alive", "61")
		for _, c := range []*change.Change{ghost, later, alive} {
			w.store(c, change.OpModified, c.RV)
			w.broker.checkpoint.set(func() {
				w.broker.checkpoint.objects = append(w.broker.checkpoint.objects, informer.Known{Name: c.Ref.Name, UID: c.UID, RV: c.RV})
			})
		}
		w.source.gone = map[string]bool{"ghost": true, "later": true}
		w.source.pages = []informer.Page{
			{Version: "90", States: []*change.Change{same, older}},
			{Version: "90", States: []*change.Change{lost, newer}, Covers: func(string) bool { return true }},
		}
		var reports []bridge.ResyncProgress
		done, err := w.Resync(t.Context(), bridge.ResyncRequest{Resources: []string{"pods"}, Namespace: "n"}, func(p bridge.ResyncProgress) { reports = append(reports, p) })
		if err != nil || !done.Done || done.Total != 4 || done.Synced != 1 || done.Repaired != 2 || done.Deleted != 1 || done.Overtaken != 1 {
			t.Errorf("%+v, %v", done, err)
		}
		if len(reports) == 0 || reports[0].Done {
			t.Errorf("reports %+v", reports)
		}
		if stored, _ := w.broker.checkpoint.Stored(later.Ref); stored.Op.Gone() {
			t.Error("what is newer than the list was deleted")
		}
		if s := w.Status().Resync; s == nil || !s.Done || s.Total != 4 {
			t.Errorf("status %+v", s)
		}
		if w.source.asked[0] != (informer.Scope{Resource: pods, Namespace: "n"}) {
			t.Errorf("asked for %+v", w.source.asked[0])
		}
		w.stop()
	})
}

// What the stream does not have may be on its way: it is waited for until the position has passed it, and not for ever.
func TestResyncWaitsForTheWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newResyncWorld(t, "50")
		onItsWay := state("p", "80")
		w.store(onItsWay, change.OpModified, "40")
		w.source.pages = []informer.Page{{Version: "90", States: []*change.Change{onItsWay}, Covers: func(string) bool { return true }}}
		request := bridge.ResyncRequest{Resources: []string{"pods"}}
		begin := time.Now()
		time.AfterFunc(time.Minute, func() { w.store(onItsWay, change.OpModified, "80") })
		done, err := w.Resync(t.Context(), request, ignore)
		if err != nil || done.Synced != 1 || done.Repaired != 0 || time.Since(begin) < time.Minute {
			t.Errorf("its change came: %+v, %v, after %s", done, err, time.Since(begin))
		}
		w.store(onItsWay, change.OpModified, "40")
		time.AfterFunc(time.Minute, func() { w.feed.Mark("85", change.Gap{}) })
		if done, err = w.Resync(t.Context(), request, ignore); err != nil || done.Repaired != 1 {
			t.Errorf("its change is lost: %+v, %v", done, err)
		}
		late := state("q", "88")
		w.source.pages[0].States = []*change.Change{late}
		if done, err = w.Resync(t.Context(), request, ignore); err == nil || !strings.Contains(err.Error(), "version 88") || done.Error != err.Error() || done.Repaired != 0 {
			t.Errorf("nothing comes: %+v, %v", done, err)
		}
		w.stop()
	})
}

// A selector does not tell which absent objects it means, and versions that do not compare not which is older.
func TestResyncInventsNoDeletion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newResyncWorld(t, "90")
		ghost := state("ghost", "60")
		w.store(ghost, change.OpModified, "60")
		w.broker.checkpoint.set(func() {
			w.broker.checkpoint.objects = []informer.Known{{Name: "ghost", UID: ghost.UID, RV: "60"}}
		})
		w.source.gone = map[string]bool{"ghost": true}
		all := func(string) bool { return true }
		for name, c := range map[string]struct {
			page     informer.Page
			selector string
		}{
			"selector":         {informer.Page{Version: "90", Covers: all}, "a=b"},
			"opaque versions":  {informer.Page{Version: "v-x", Covers: all}, ""},
			"not covered":      {informer.Page{Version: "90", Covers: func(string) bool { return false }}, ""},
			"list from before": {informer.Page{Version: "59", Covers: all}, ""},
		} {
			w.source.pages = []informer.Page{c.page}
			done, err := w.Resync(t.Context(), bridge.ResyncRequest{Resources: []string{"pods"}, Selector: c.selector}, ignore)
			if err != nil || done.Deleted != 0 {
				t.Errorf("%s: %+v, %v", name, done, err)
			}
		}
		w.stop()
	})
}

func TestResyncRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newResyncWorld(t, "90")
		for _, bad := range []bridge.ResyncRequest{{Resources: []string{"unknown"}}, {Selector: "a=b=c"}} {
			if _, err := w.Resync(t.Context(), bad, ignore); !errors.Is(err, bridge.ErrBadRequest) {
				t.Errorf("%+v: %v", bad, err)
			}
		}
		// One at a time; and the end of the session ends it.
		w.source.pages = []informer.Page{{Version: "90", States: []*change.Change{state("a", "10")}}}
		w.source.held.Store(true)
		request := bridge.ResyncRequest{Resources: []string{"pods"}}
		first := make(chan error)
		go func() {
			_, err := w.Resync(context.Background(), request, ignore)
			first <- err
		}()
		rest(time.Second)
		if _, err := w.Resync(t.Context(), request, ignore); !errors.Is(err, bridge.ErrResyncRunning) {
			t.Errorf("a second one: %v", err)
		}
		stopped := make(chan int64)
		go func() { stopped <- w.stop() }()
		if err := <-first; !errors.Is(err, bridge.ErrNotPublishing) {
			t.Errorf("ended with the session: %v", err)
		}
		<-stopped
		if _, err := w.Resync(context.Background(), request, ignore); !errors.Is(err, bridge.ErrNotPublishing) {
			t.Errorf("after the end: %v", err)
		}
	})
}

// A broker that takes nothing is waited for, and not for ever; one resource's failure is no other one's.
func TestResyncOutlastsAndGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newResyncWorld(t, "90")
		w.source.failed = errors.New("services are forbidden")
		c := state("a", "10")
		w.store(c, change.OpModified, "10")
		w.source.pages = []informer.Page{{Version: "90", States: []*change.Change{c}, Covers: func(string) bool { return true }}}
		request := bridge.ResyncRequest{Resources: []string{"services", "pods"}}
		w.source.held.Store(true)
		time.AfterFunc(2*time.Minute, func() { w.source.held.Store(false) })
		done, err := w.Resync(t.Context(), request, ignore)
		if err == nil || err.Error() != "services are forbidden" || done.Synced != 1 {
			t.Errorf("%+v, %v", done, err)
		}
		w.source.held.Store(true)
		if _, err = w.Resync(t.Context(), request, ignore); err == nil || !strings.Contains(err.Error(), "nothing could be published") {
			t.Errorf("got %v", err)
		}
		w.stop()
	})
}
