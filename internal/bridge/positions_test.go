package bridge_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/deltabridge/deltabridge/internal/change"
	"github.com/deltabridge/deltabridge/internal/informer"
	"github.com/deltabridge/deltabridge/internal/message"
	"github.com/deltabridge/deltabridge/internal/publisher"
)

// fakeCheckpoint is a Checkpoint whose content is set by the test.
type fakeCheckpoint struct {
	mu       sync.Mutex
	objects  []informer.Known
	found    message.Watermark
	void     string
	err      error
	appended []string
	stored   map[change.ObjectRef]change.Stored
}

func (c *fakeCheckpoint) Stored(ref change.ObjectRef) (change.Stored, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	stored, known := c.stored[ref]
	return stored, known
}

func (c *fakeCheckpoint) Subjects(schema.GroupResource) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.objects)
}

func (c *fakeCheckpoint) Resources() []schema.GroupResource { return nil }

func (c *fakeCheckpoint) Objects(schema.GroupResource) []informer.Known {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.objects
}

func (c *fakeCheckpoint) Watermark(schema.GroupResource) (message.Watermark, string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.found, c.void
}

func (c *fakeCheckpoint) Append(_ context.Context, w message.Watermark) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return c.err
	}
	text := fmt.Sprintf("%s %s %s", w.GroupResource(), w.RV, w.ClusterUID)
	if w.Gap != "" {
		text += " gap " + w.Gap
	}
	c.appended = append(c.appended, text)
	return nil
}

func (c *fakeCheckpoint) set(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
}

// next returns the watermarks since the last call.
func (c *fakeCheckpoint) next() []string {
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	appended := c.appended
	c.appended = nil
	return appended
}

var pods = schema.GroupResource{Resource: "pods"}

func open(t *testing.T, w *world, gr schema.GroupResource, n int) (informer.Origin, []informer.Feed) {
	t.Helper()
	s, _ := w.source()
	origin, feeds, err := s.feeds.Open(t.Context(), gr, n)
	if err != nil {
		t.Fatal(err)
	}
	return origin, feeds
}

func at(version string) *change.Change {
	return &change.Change{Op: change.OpModified, Ref: change.ObjectRef{Resource: "pods", Name: "p" + version}, RV: version}
}

func expectMarks(t *testing.T, w *world, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, w.broker.checkpoint.next()); diff != "" {
		t.Errorf("watermarks differ (-want +got):\n%s", diff)
	}
}

// A watermark follows the acknowledgement of everything up to its version, never runs ahead of it, and is not written
// more often than the interval; the first one and the one after a list are written at once.
func TestWatermarksFollowAcknowledgements(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		stop := w.run()
		origin, feeds := open(t, w, pods, 1)
		if origin.Reason != "first" || origin.Version != "" || origin.Since != "" {
			t.Errorf("origin %+v, want that of a resource of which nothing is known", origin)
		}
		feed := feeds[0]
		listed := []*change.Change{at("90"), at("10"), at("50")}
		for _, c := range listed {
			feed.Take(c, false)
		}
		feed.Mark("100", change.Gap{})
		listed[1].Done()
		listed[0].Done()
		expectMarks(t, w)
		listed[2].Done()
		expectMarks(t, w, "pods 100 c1") // at once: a crash before it would leave no position

		first, second := at("101"), at("102")
		feed.Take(first, true)
		feed.Take(second, true)
		second.Done()
		rest(time.Minute)
		expectMarks(t, w)
		first.Done()
		expectMarks(t, w)
		rest(10 * time.Second)
		expectMarks(t, w, "pods 102 c1")
		rest(time.Hour) // nothing has moved
		expectMarks(t, w)
		feed.Mark("110", change.Gap{}) // a bookmark
		rest(10 * time.Second)
		expectMarks(t, w, "pods 110 c1")

		relisted := at("150")
		feed.Take(relisted, false)
		feed.Mark("200", change.Gap{From: "110", To: "200"})
		expectMarks(t, w)
		relisted.Done()
		expectMarks(t, w, "pods 200 c1 gap 110-200")

		for _, status := range w.Watermarks() {
			if status.Version != "200" || !status.Time.Equal(time.Now()) {
				t.Errorf("status %+v", status)
			}
		}
		stop()
	})
}

// A resource that is followed namespace by namespace is published up to the least of their versions.
func TestWatermarkIsTheLeastOfSeveral(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		stop := w.run()
		_, feeds := open(t, w, pods, 2)
		feeds[0].Mark("1000", change.Gap{})
		expectMarks(t, w)
		feeds[1].Mark("999", change.Gap{})
		expectMarks(t, w, "pods 999 c1")
		stop()
	})
}

func TestOrigin(t *testing.T) {
	known := []informer.Known{{Name: "a", UID: "u", RV: "3"}}
	valid := message.Watermark{Resource: "pods", RV: "70"}
	for name, c := range map[string]struct {
		objects                []informer.Known
		found                  message.Watermark
		void                   string
		version, since, reason string
	}{
		"nothing was ever published": {nil, message.Watermark{}, "", "", "", "first"},
		"resume":                     {known, valid, "", "70", "", ""},
		"resume, all objects gone":   {nil, valid, "", "70", "", ""},
		"killed before the first":    {known, message.Watermark{}, "", "", "0", "no-watermark"},
		"not readable":               {known, message.Watermark{}, "unreadable", "", "0", "unreadable"},
		"not readable, no objects":   {nil, message.Watermark{}, "unreadable", "", "0", "unreadable"},
		"rewind":                     {known, valid, "rewind", "", "70", "rewind"},
		"forgotten":                  {known, message.Watermark{RV: "70", Subjects: 2}, "", "", "70", "forgotten"},
		"more than before":           {known, message.Watermark{RV: "70", Subjects: 1}, "", "70", "", ""},
		"another scope":              {known, message.Watermark{RV: "70", Scope: "namespace=x"}, "", "", "70", "scope"},
		"versions do not compare":    {known, message.Watermark{RV: "abc"}, "", "", "abc", "not-comparable"},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld()
			w.broker.checkpoint.set(func() {
				w.broker.checkpoint.objects, w.broker.checkpoint.found, w.broker.checkpoint.void = c.objects, c.found, c.void
			})
			stop := w.run()
			origin, _ := open(t, w, pods, 1)
			if origin.Version != c.version || origin.Since != c.since || origin.Reason != c.reason || len(origin.Objects) != len(c.objects) {
				t.Errorf("%s: origin %+v", name, origin)
			}
			if c.reason == "scope" && (origin.Entered == nil || origin.Entered("x") || !origin.Entered("y")) {
				t.Errorf("%s: does not know what has entered the selection", name)
			}
			stop()
		})
	}
}

// A resource that comes again, or is served in another version, goes on where it was; but not before what was taken of
// it is done, for until then the ledger does not have it.
func TestReopenedResourceGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.broker.checkpoint.set(func() { w.broker.checkpoint.found = message.Watermark{RV: "5"} })
		stop := w.run()
		_, feeds := open(t, w, pods, 1)
		c := at("80")
		feeds[0].Take(c, true)
		reopened := make(chan informer.Origin)
		go func() {
			origin, _ := open(t, w, pods, 1)
			reopened <- origin
		}()
		rest(time.Minute)
		select {
		case origin := <-reopened:
			t.Fatalf("reopened at %+v although a change is under way", origin)
		default:
		}
		c.Done()
		if origin := <-reopened; origin.Version != "80" {
			t.Errorf("reopened at %+v, want 80", origin)
		}
		stop()
	})
}

func TestReopeningEndsWithTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		stop := w.run()
		_, feeds := open(t, w, pods, 1)
		feeds[0].Take(at("80"), true)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		s, _ := w.source()
		if _, _, err := s.feeds.Open(ctx, pods, 1); err == nil {
			t.Error("reopened although a change is under way")
		}
		s.feeds = nopFeeds{}
		stop()
	})
}

// nopFeeds lets the fake source stop without a change of its own.
type nopFeeds struct{ informer.Feeds }

func (nopFeeds) Open(context.Context, schema.GroupResource, int) (informer.Origin, []informer.Feed, error) {
	return informer.Origin{}, []informer.Feed{nopFeed{}}, nil
}

type nopFeed struct{}

func (nopFeed) Take(*change.Change, bool) {}
func (nopFeed) Mark(string, change.Gap)   {}

func (nopFeed) Repeat(*change.Change) bool { return true }

// What was acknowledged in the drain is not published again by whoever comes next.
func TestDrainEndsWithWatermarks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		c := at("300")
		w.broker.flush = func(context.Context) int64 {
			c.Done()
			return 0
		}
		stop := w.run()
		_, feeds := open(t, w, pods, 1)
		s, _ := w.source()
		s.feeds = nopFeeds{}
		feeds[0].Mark("299", change.Gap{})
		expectMarks(t, w, "pods 299 c1")
		feeds[0].Take(c, true)
		stop()
		expectMarks(t, w, "pods 300 c1")
	})
}

func TestWatermarkFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		cp := &w.broker.checkpoint
		stop := w.run()
		_, feeds := open(t, w, pods, 1)
		_, others := open(t, w, schema.GroupResource{Resource: "secrets"}, 1)
		cp.set(func() { cp.err = errors.New("no broker") })
		feeds[0].Mark("7", change.Gap{})
		rest(time.Hour)
		if n := strings.Count(w.log.String(), "no broker"); n != 1 {
			t.Errorf("logged %d times", n)
		}
		cp.set(func() { cp.err = nil })
		rest(10 * time.Second)
		expectMarks(t, w, "pods 7 c1")
		if !strings.Contains(w.log.String(), "watermark is written again") {
			t.Error("that they are written again is not logged")
		}
		// What is not ours on one subject is in nobody's way.
		cp.set(func() { cp.err = fmt.Errorf("%w: a letter", publisher.ErrForeign) })
		feeds[0].Mark("8", change.Gap{})
		others[0].Mark("8", change.Gap{})
		rest(time.Hour)
		if n := strings.Count(w.log.String(), "a letter"); n != 2 {
			t.Errorf("logged %d times, want once for each of two resources", n)
		}
		cp.set(func() { cp.err = publisher.ErrFenced })
		rest(10 * time.Second)
		if c := w.check("publishing"); c.OK || !strings.Contains(c.Message, "another writer") {
			t.Errorf("check %+v, want it fenced", c)
		}
		stop()
	})
}

// A cluster that was restored from a backup ends the session: the next one takes an epoch that begins a new history.
func TestRewindBeginsASessionThatKnows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		stop := w.run()
		s, _ := w.source()
		s.feeds.Rewound(pods, "900", "20")
		synctest.Wait()
		if w.Status().Ready {
			t.Error("ready although everything is to be compared anew")
		}
		rest(time.Minute)
		if diff := cmp.Diff([]bool{false, true}, w.broker.rewound); diff != "" {
			t.Errorf("sessions differ (-want +got):\n%s", diff)
		}
		if !strings.Contains(w.log.String(), "restored from a backup") {
			t.Error("not logged")
		}
		stop()
	})
}
