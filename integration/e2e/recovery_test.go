package e2e

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/deltabridge/deltabridge/integration/check"
	"github.com/deltabridge/deltabridge/integration/harness"
)

// watermark returns the version of the last watermark of a resource, zero for none.
func watermark(s *check.Stream, gr string) int {
	version := 0
	for _, m := range s.Messages {
		if m.Kind == "watermark" && m.Object.GroupResource() == gr {
			version, _ = strconv.Atoi(m.RV)
		}
	}
	return version
}

// TestMissedWhileStopped is case R2: what happened meanwhile comes as it happened, and nothing else does.
func TestMissedWhileStopped(t *testing.T) {
	r := newRig(t, configMaps, deployments)
	b := r.start()
	r.create(configMaps, r.configMap("b", "last words"))
	r.create(configMaps, r.configMap("c", "0"))
	r.create(configMaps, r.configMap("unchanged", "0"))
	r.create(configMaps, r.configMap("gone-before", "0"))
	r.create(deployments, r.deployment("web"))
	r.delete(configMaps, r.ns, "gone-before")
	r.require()
	r.stop(b)
	before := r.objectMessages()

	r.create(configMaps, r.configMap("a", "0"))
	r.setValue("c", 0, 2)
	r.patch(configMaps, r.ns, "b", `{"data":{"value":"very last words"}}`)
	r.delete(configMaps, r.ns, "b")
	r.create(configMaps, r.configMap("passing", "0"))
	r.delete(configMaps, r.ns, "passing")
	r.create(configMaps, r.configMap("gone-before", "again"))
	b = r.start()
	s := r.require()
	r.requireStory(s, r.object(configMaps, "a"), "added watch")
	r.requireStory(s, r.object(configMaps, "c"), "added watch", "modified watch", "modified watch")
	r.requireStory(s, r.object(configMaps, "passing"), "added watch", "deleted watch")
	r.requireStory(s, r.object(configMaps, "gone-before"), "added watch", "deleted watch", "added watch")
	deleted := r.requireStory(s, r.object(configMaps, "b"), "added watch", "modified watch", "deleted watch")[2]
	if body := string(deleted.Data()); !strings.Contains(body, "very last words") {
		t.Errorf("the deletion's body is not the last object: %s", body)
	}
	if n := len(s.Objects("")) - before; n != 8 {
		t.Errorf("%d messages for 8 changes", n)
	}
	for _, m := range s.Objects("") {
		if m.Gap != "" {
			t.Errorf("#%d %s says that versions may be missing: %s", m.Sequence, m.Object, m.Gap)
		}
	}
	if n := b.Metric(t, "deltabridge_relists_total"); n != 0 {
		t.Errorf("%v relists, want a watch that resumes", n)
	}
}

// TestKilledAmongManyChanges is case R3.
func TestKilledAmongManyChanges(t *testing.T) {
	const writers, objects, rounds = 8, 25, 50 // 10,000 changes
	r := newRig(t, configMaps)
	b := r.start()
	var load sync.WaitGroup
	for w := range writers {
		for i := range objects {
			r.create(configMaps, r.configMap(fmt.Sprintf("c-%d-%d", w, i), "0"))
		}
		load.Go(func() {
			for round := range rounds {
				for i := range objects {
					r.setValue(fmt.Sprintf("c-%d-%d", w, i), round, 1)
				}
			}
		})
	}
	for range 3 {
		harness.Eventually(t, harness.Patience, func() error {
			if b.Metric(t, "deltabridge_messages_published_total") < writers*objects {
				return errors.New("not enough was published yet")
			}
			return nil
		})
		if err := b.Kill(); err != nil {
			t.Fatal(err)
		}
		b = r.start()
	}
	load.Wait()
	s := r.require()
	for _, m := range s.Objects("configmaps") {
		if m.Gap != "" && m.Object.Namespace == r.ns {
			t.Fatalf("#%d: versions may be missing: %s, although the API server had them all", m.Sequence, m.Gap)
		}
	}
	if n := len(s.Objects("configmaps")); n < writers*objects*(rounds+1) {
		t.Errorf("%d messages, want every version", n)
	}
}

// TestKilledAmongAList is case R5: the objects of a list do not come in the order of their versions, so the
// acknowledgement of one says nothing of another with a lower one.
func TestKilledAmongAList(t *testing.T) {
	r := newRig(t, configMaps)
	proxy := harness.StartNATSProxy(t, r.nats)
	for _, name := range []string{"b", "c", "a"} { // a has the highest version, b the lowest
		r.create(configMaps, r.configMap(name, "0"))
	}
	passed := false
	proxy.Script(func(m harness.Published) harness.PublishAction {
		switch {
		case !strings.Contains(m.Subject, ".configmaps"):
			return harness.Pass
		case strings.HasSuffix(m.Subject, "."+r.ns+".a"):
			passed = true
			return harness.Pass
		}
		return harness.Drop
	})
	r.set("NATS_URL", proxy.URL(), "BRIDGE_NAMESPACES", r.ns, "BRIDGE_WATERMARK_INTERVAL", "100ms")
	r.check.Selection.Select = func(o check.Object) bool { return o.Namespace == r.ns }
	b := r.launch()
	r.awaitMessages(r.object(configMaps, "a"), 1)
	time.Sleep(time.Second) // for watermarks that must not be written
	if err := b.Kill(); err != nil || !passed {
		t.Fatalf("killed: %v; passed %t", err, passed)
	}
	if s := r.check.Read(t); watermark(s, "configmaps") != 0 {
		t.Fatalf("the watermark is %d although two objects are not published", watermark(s, "configmaps"))
	}
	proxy.Script(nil)
	r.start()
	s := r.require()
	for _, name := range []string{"a", "b", "c"} {
		r.requireStory(s, r.object(configMaps, name), "added relist")
	}
}

// TestNothingAcknowledgedNothingMoved is the first half of case R6: while the broker takes no object's message, no
// position moves, however long.
func TestNothingAcknowledgedNothingMoved(t *testing.T) {
	r := newRig(t, configMaps)
	proxy := harness.StartNATSProxy(t, r.nats)
	r.set("NATS_URL", proxy.URL(), "BRIDGE_WATERMARK_INTERVAL", "100ms")
	b := r.start()
	r.create(configMaps, r.configMap("a", "0"))
	r.awaitMessages(r.object(configMaps, "a"), 1)
	proxy.Script(func(m harness.Published) harness.PublishAction {
		if strings.Contains(m.Subject, "."+r.ns+".") {
			return harness.Drop
		}
		return harness.Pass
	})
	version := r.patch(configMaps, r.ns, "a", `{"data":{"value":"1"}}`).GetResourceVersion()
	r.setValue("a", 1, 5)
	first, _ := strconv.Atoi(version)
	harness.Never(t, 5*time.Second, func() error {
		if s := r.check.Read(t); watermark(s, "configmaps") >= first {
			return fmt.Errorf("watermark %d covers version %d, which is not stored", watermark(s, "configmaps"), first)
		}
		return nil
	})
	if err := b.Kill(); err != nil {
		t.Fatal(err)
	}
	proxy.Script(nil)
	r.start()
	r.requireStory(r.require(), r.object(configMaps, "a"), append([]string{"added watch"}, repeat("modified watch", 6)...)...)
}

func repeat(text string, n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = text
	}
	return out
}

// TestExpiredWatch is case R7: the API server has lost its watch cache, so that only the net difference can be told.
func TestExpiredWatch(t *testing.T) {
	for name, running := range map[string]bool{"while stopped": false, "while running": true} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, configMaps)
			proxy := r.plane.StartProxy(t)
			r.set("KUBECONFIG", proxy.Kubeconfig())
			b := r.start()
			kinds := map[string]int{"unchanged": 25, "changed": 10, "deleted": 10, "recreated": 5}
			each := func(kind string, n int, f func(name string)) {
				for i := range n {
					f(fmt.Sprintf("%s-%d", kind, i))
				}
			}
			for kind, n := range kinds {
				each(kind, n, func(name string) { r.create(configMaps, r.configMap(name, "last known")) })
			}
			r.require()
			r.check.Recording.Stop() // it cannot go on where it was either
			r.check.Recording = nil
			if running {
				proxy.Refuse()
			} else {
				r.stop(b)
			}
			before := r.objectMessages()
			each("changed", 10, func(name string) { r.setValue(name, 0, 3) })
			each("deleted", 10, func(name string) { r.delete(configMaps, r.ns, name) })
			each("recreated", 5, func(name string) {
				r.delete(configMaps, r.ns, name)
				r.create(configMaps, r.configMap(name, "new"))
			})
			each("new", 10, func(name string) { r.create(configMaps, r.configMap(name, "0")) })
			if err := r.plane.RestartAPIServer(t.Context()); err != nil {
				t.Fatal(err)
			}
			if running {
				if err := proxy.Accept(); err != nil {
					t.Fatal(err)
				}
			} else {
				b = r.launch()
				b.WaitReady(t)
			}
			s := r.require()
			each("unchanged", 25, func(name string) { r.requireStory(s, r.object(configMaps, name), "added watch") })
			each("changed", 10, func(name string) {
				m := r.requireStory(s, r.object(configMaps, name), "added watch", "modified relist")
				requireGap(t, m[1], m[0].RV, m[1].RV)
			})
			each("deleted", 10, func(name string) {
				m := r.requireStory(s, r.object(configMaps, name), "added watch", "deleted missing")
				requireGap(t, m[1], m[0].RV, "")
				if !strings.Contains(string(m[1].Data()), "last known") {
					t.Errorf("%s: the body is not the last known state: %s", name, m[1].Data())
				}
			})
			each("recreated", 5, func(name string) {
				m := r.requireStory(s, r.object(configMaps, name), "added watch", "deleted replaced", "added relist")
				requireGap(t, m[1], m[0].RV, m[2].RV)
				if m[1].UID != m[0].UID || m[2].UID == m[0].UID {
					t.Errorf("%s: uids %s, %s, %s", name, m[0].UID, m[1].UID, m[2].UID)
				}
			})
			each("new", 10, func(name string) {
				m := r.requireStory(s, r.object(configMaps, name), "added relist")
				if m[0].Gap == "" {
					t.Errorf("%s may have had earlier versions, and the message does not say so", name)
				}
			})
			fresh := 0
			for _, m := range s.Objects("configmaps")[before:] {
				if m.Object.Namespace == r.ns {
					fresh++
				}
			}
			if want := 10 + 10 + 5*2 + 10; fresh != want {
				t.Errorf("%d messages, want the net difference of %d", fresh, want)
			}
			if n := b.Metric(t, "deltabridge_relists_total", `reason="expired"`); n < 1 {
				t.Errorf("%v relists for an expired version are counted", n)
			}
			requireNoStorm(t, b)
		})
	}
}

func requireGap(t *testing.T, m *check.Message, from, to string) {
	t.Helper()
	gapFrom, gapTo, ok := strings.Cut(m.Gap, "-")
	if !ok || gapFrom != from || (to != "" && gapTo != to) {
		t.Errorf("#%d %s: gap %q, want %s-%s", m.Sequence, m.Object, m.Gap, from, to)
	}
}

// TestDeletedWhileCutOff is case D1: as long as the API server has the event, it is delivered as it was.
func TestDeletedWhileCutOff(t *testing.T) {
	r := newRig(t, configMaps)
	proxy := r.plane.StartProxy(t)
	r.set("KUBECONFIG", proxy.Kubeconfig())
	b := r.start()
	r.create(configMaps, r.configMap("d", "last known"))
	r.create(configMaps, r.configMap("stays", "0"))
	r.require()
	proxy.Refuse()
	r.delete(configMaps, r.ns, "d")
	harness.Eventually(t, harness.Patience, func() error {
		if status, text := b.Readyz(t); status == 200 {
			return fmt.Errorf("without an API server the bridge is ready:\n%s", text)
		}
		return nil
	})
	if err := proxy.Accept(); err != nil {
		t.Fatal(err)
	}
	s := r.require()
	messages := r.requireStory(s, r.object(configMaps, "d"), "added watch", "deleted watch")
	if !strings.Contains(string(messages[1].Data()), "last known") {
		t.Errorf("the body is not the last known state: %s", messages[1].Data())
	}
	b.WaitReady(t)
}

// TestKindRemoved is case D4.
func TestKindRemoved(t *testing.T) {
	widgets := schema.GroupVersionResource{Group: "d4.example.com", Version: "v1", Resource: "widgets"}
	r := newRig(t, configMaps, widgets)
	r.customResource(widgets.Group, "widgets", "Widget", "Namespaced")
	b := r.start()
	names := []string{"a", "b", "c", "d", "e"}
	for _, name := range names {
		r.create(widgets, custom(widgets, "Widget", r.ns, name))
	}
	r.require()
	r.check.Recording.Stop()
	r.check.Recording = nil
	removeDefinition := func() {
		t.Helper()
		if err := r.client.Resource(crds).Delete(t.Context(), "widgets."+widgets.Group, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		harness.Eventually(t, harness.Patience, func() error {
			if _, err := r.client.Resource(widgets).List(t.Context(), metav1.ListOptions{}); err == nil {
				return errors.New("the resource is still served")
			}
			return nil
		})
	}
	removeDefinition()
	gone := func(n int) {
		t.Helper()
		for _, name := range names {
			r.awaitMessages(r.object(widgets, name), n)
			m := r.check.Read(t).History(r.object(widgets, name))
			if last := m[len(m)-1]; last.Kind != "deleted" || last.Reason != "watch" && last.Reason != "kind-removed" {
				t.Errorf("%s ends with %s %s", name, last.Kind, last.Reason)
			}
		}
	}
	gone(2)

	r.customResource(widgets.Group, "widgets", "Widget", "Namespaced")
	for _, name := range names {
		r.create(widgets, custom(widgets, "Widget", r.ns, name))
	}
	for _, name := range names {
		r.awaitMessages(r.object(widgets, name), 3)
	}
	requireNoStorm(t, b)

	// Once more, with nobody there to see it: the resource is missing at the next start.
	r.require()
	r.stop(b)
	removeDefinition()
	r.check.Selection.Resources = []schema.GroupVersionResource{configMaps}
	b = r.launch()
	gone(4)
	for _, name := range names {
		m := r.check.Read(t).History(r.object(widgets, name))
		if last := m[len(m)-1]; last.Reason != "kind-removed" || !strings.Contains(string(last.Data()), `"size"`) {
			t.Errorf("%s ends with reason %s and body %s", name, last.Reason, last.Data())
		}
	}
	b.WaitReady(t)
	requireNoStorm(t, b)
}

// TestSilentWatch is case S1: the connection leads nowhere any more, without being closed.
func TestSilentWatch(t *testing.T) {
	r := newRig(t, configMaps)
	proxy := r.plane.StartProxy(t)
	proxy.EndWatchesAfter(8) // so that a bookmark comes soon
	r.set("KUBECONFIG", proxy.Kubeconfig(), "BRIDGE_WATCH_PROGRESS_DEADLINE", "12s")
	b := r.start()
	r.create(configMaps, r.configMap("a", "0"))
	r.awaitMessages(r.object(configMaps, "a"), 1)
	harness.Eventually(t, harness.Patience, func() error {
		if len(proxy.Watches("/api/v1/configmaps")) < 3 {
			return errors.New("no watch has ended with a bookmark yet")
		}
		return nil
	})
	proxy.BlackHoleWatches(true)
	r.setValue("a", 0, 3)
	r.create(configMaps, r.configMap("b", "0"))
	r.delete(configMaps, r.ns, "b")
	harness.Eventually(t, harness.Patience, func() error {
		if status, text := b.Readyz(t); status == 200 || !strings.Contains(text, "configmaps") {
			return fmt.Errorf("nothing comes through, and the bridge says %d:\n%s", status, text)
		}
		return nil
	})
	proxy.BlackHoleWatches(false)
	s := r.require()
	r.requireStory(s, r.object(configMaps, "a"), "added watch", "modified watch", "modified watch", "modified watch")
	r.requireStory(s, r.object(configMaps, "b"), "added watch", "deleted watch")
	b.WaitReady(t)
	if n := b.Metric(t, "deltabridge_relists_total"); n != 0 {
		t.Errorf("%v relists, want none", n)
	}
	requireNoStorm(t, b)
}
