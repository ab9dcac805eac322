package bridge_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/deltabridge/deltabridge/internal/change"
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
