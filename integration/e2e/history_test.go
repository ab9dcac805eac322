package e2e

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/deltabridge/deltabridge/integration/check"
	"github.com/deltabridge/deltabridge/integration/harness"
)

// TestRewind restores the cluster from a backup. What was published since has never been: the stream is to end with what
// is.
func TestRewind(t *testing.T) {
	for name, running := range map[string]bool{"while stopped": false, "while running": true} {
		t.Run(name, func(t *testing.T) {
			r := newRigWithin(t, ownPlane(t), configMaps, deployments)
			r.on(harness.StartNATS(t))
			proxy := r.plane.StartProxy(t)
			proxy.EndWatchesAfter(8) // so that a bookmark comes soon, and silence means something
			r.set("KUBECONFIG", proxy.Kubeconfig(), "BRIDGE_WATCH_PROGRESS_DEADLINE", "12s", "BRIDGE_WATERMARK_INTERVAL", "500ms")
			for _, name := range []string{"unchanged", "changed", "revived"} {
				r.create(configMaps, r.configMap(name, "backed up"))
			}
			if err := r.plane.Backup(t.Context()); err != nil {
				t.Fatal(err)
			}
			b := r.launch()
			b.WaitReady(t)
			r.setValue("changed", 0, 3)
			r.delete(configMaps, r.ns, "revived")
			r.create(configMaps, r.configMap("never-been", "0"))
			for i := range 30 { // so that it takes a while until the versions are passed
				r.setValue("changed", 3+i, 1)
			}
			r.require()
			if !running {
				r.stop(b)
			} else {
				r.awaitBookmark()
			}
			if err := r.plane.Restore(t.Context()); err != nil {
				t.Fatal(err)
			}
			if !running {
				b = r.launch()
				b.WaitReady(t)
			}
			harness.Eventually(t, 2*harness.Patience, func() error {
				for _, line := range b.Log() {
					if line.Contains("restored from a backup") {
						return nil
					}
				}
				return errors.New("the rewind was not noticed")
			})
			b.WaitReady(t)
			r.create(configMaps, r.configMap("after", "0"))
			r.setValue("after", 0, 3)

			s, report := r.check.Run(t)
			// Versions fall and come again where the history begins anew, and that is what is right here.
			if wrong := report.Only(check.Missing, check.Stale, check.Differs, check.Unconditional, check.Ahead); len(wrong) > 0 {
				t.Errorf("after the restore: %v", wrong)
			}
			last := func(name string) *check.Message {
				m := s.History(r.object(configMaps, name))
				if len(m) == 0 {
					t.Fatalf("no message about %s", name)
				}
				return m[len(m)-1]
			}
			if m := last("changed"); m.Kind != "modified" || !strings.Contains(string(m.Data()), "backed up") || m.Gap == "" {
				t.Errorf("changed ends with %s, gap %q: %s", m.Kind, m.Gap, m.Data())
			}
			if m := last("revived"); m.Kind != "added" || !strings.Contains(string(m.Data()), "backed up") {
				t.Errorf("revived ends with %s: %s", m.Kind, m.Data())
			}
			if m := last("never-been"); m.Kind != "deleted" || m.Reason != "missing" {
				t.Errorf("never-been ends with %s %s", m.Kind, m.Reason)
			}
			if n := len(s.History(r.object(configMaps, "unchanged"))); n != 1 {
				t.Errorf("%d messages about what has not changed", n)
			}
			if n := len(s.History(r.object(configMaps, "after"))); n != 4 {
				t.Errorf("%d messages about what came after, want 4", n)
			}

			// A later start goes on in the new history.
			r.stop(b)
			before := r.objectMessages()
			r.setValue("after", 3, 1)
			b = r.launch()
			b.WaitReady(t)
			r.awaitMessages(r.object(configMaps, "after"), 5)
			if n := r.objectMessages() - before; n != 1 {
				t.Errorf("%d messages for one change and a restart", n)
			}
		})
	}
}

// awaitBookmark waits until the API server has told an idle watch its version: only then does silence mean anything.
func (r *rig) awaitBookmark() {
	r.Helper()
	s := r.check.Read(r)
	before := watermark(s, "deployments.apps")
	// A change of another resource moves what a bookmark tells.
	r.setValue("changed", 0, 1)
	harness.Eventually(r, harness.Patience, func() error {
		if now := watermark(r.check.Read(r), "deployments.apps"); now <= before {
			return fmt.Errorf("the idle resource's watermark is still %d", now)
		}
		return nil
	})
}

// TestAnotherClusterBehindTheName takes the bridge to another cluster.
func TestAnotherClusterBehindTheName(t *testing.T) {
	// A stream with limits may have forgotten who wrote last.
	for name, forgotten := range map[string]bool{"with a writer record": false, "without one": true} {
		t.Run(name, func(t *testing.T) { anotherCluster(t, forgotten) })
	}
}

func anotherCluster(t *testing.T, forgotten bool) {
	r := newRig(t, configMaps)
	b := r.start()
	r.create(configMaps, r.configMap("a", "0"))
	r.require()
	r.stop(b)
	if forgotten {
		stream, err := r.check.JS.Stream(t.Context(), "KUBE")
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Purge(t.Context(), jetstream.WithPurgeSubject("kube.main")); err != nil {
			t.Fatal(err)
		}
	}
	before := len(r.check.Read(t).Messages)

	other := newRigWithin(t, ownPlane(t), configMaps)
	other.on(r.nats)
	other.ns = r.ns + "-other"
	other.create(namespaces, object("v1", "Namespace", "", other.ns))
	other.create(configMaps, other.configMap("b", "0"))
	b = other.launch()
	harness.Eventually(t, harness.Patience, func() error { return b.Livez(t.Context()) })
	uid := ""
	harness.Eventually(t, harness.Patience, func() error {
		status, text := b.Readyz(t)
		_, rest, found := strings.Cut(text, "BRIDGE_ACCEPT_CLUSTER_UID=")
		if status == 200 || !found {
			return fmt.Errorf("the bridge says %d:\n%s", status, text)
		}
		uid = strings.Fields(rest)[0]
		return nil
	})
	if n := len(r.check.Read(t).Messages); n != before {
		t.Errorf("%d messages of another cluster were written", n-before)
	}
	requireNoStorm(t, b)
	if err := b.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	b.WaitExit(t, harness.Patience)

	other.set("BRIDGE_ACCEPT_CLUSTER_UID", uid)
	b = other.launch()
	b.WaitReady(t)
	s, report := other.check.Run(t)
	if wrong := report.Only(check.Missing, check.Stale, check.Differs, check.Duplicate, check.Unconditional); len(wrong) > 0 {
		t.Errorf("after the take-over: %v", wrong)
		for _, m := range s.Objects("") {
			t.Logf("#%d %s %s %s uid %s rv %s gap %s epoch %s", m.Sequence, m.Object, m.Kind, m.Reason, m.UID, m.RV, m.Gap, m.Epoch)
		}
	}
	if m := s.History(r.object(configMaps, "a")); m[len(m)-1].Kind != "deleted" {
		t.Errorf("the former cluster's object ends with %s", m[len(m)-1].Kind)
	}
	other.stop(b)
	// The variable may stay set.
	b = other.launch()
	b.WaitReady(t)
}

// TestScopeChange takes a namespace out of the selection and in again. What is not selected any more was not deleted.
func TestScopeChange(t *testing.T) {
	r := newRig(t, configMaps)
	aside := r.ns + "-aside"
	r.create(namespaces, object("v1", "Namespace", "", aside))
	in := func(namespace, name string) check.Object {
		o := r.object(configMaps, name)
		o.Namespace = namespace
		return o
	}
	b := r.start()
	r.create(configMaps, r.configMap("stays", "0"))
	for _, name := range []string{"lives", "deleted", "changed"} {
		u := r.configMap(name, "0")
		u.SetNamespace(aside)
		r.create(configMaps, u)
	}
	r.require()
	r.check.Recording.Stop()
	r.check.Recording = nil
	r.stop(b)

	r.delete(configMaps, aside, "deleted")
	r.set("BRIDGE_EXCLUDE_NAMESPACES", aside)
	b = r.launch()
	b.WaitReady(t)
	r.awaitMessages(in(aside, "lives"), 2)
	r.awaitMessages(in(aside, "deleted"), 2)
	r.patch(configMaps, aside, "changed", `{"data":{"value":"1"}}`)
	r.setValue("stays", 0, 1)
	r.awaitMessages(in(r.ns, "stays"), 2)
	s := r.check.Read(t)
	left := r.requireStory(s, in(aside, "lives"), "added watch", "left scope")[1]
	if left.Header.Get("KV-Operation") != "DEL" || !strings.Contains(string(left.Data()), `"value":"0"`) {
		t.Errorf("left: %v %s", left.Header, left.Data())
	}
	r.requireStory(s, in(aside, "changed"), "added watch", "left scope")
	r.requireStory(s, in(aside, "deleted"), "added watch", "deleted missing")
	r.stop(b)

	r.set("BRIDGE_EXCLUDE_NAMESPACES", "")
	b = r.launch()
	b.WaitReady(t)
	r.awaitMessages(in(aside, "lives"), 3)
	r.awaitMessages(in(aside, "changed"), 3)
	s = r.check.Read(t)
	r.requireStory(s, in(aside, "changed"), "added watch", "left scope", "added scope")
	r.requireStory(s, in(aside, "lives"), "added watch", "left scope", "added scope")
	r.requireStory(s, in(r.ns, "stays"), "added watch", "modified watch")
	r.stop(b)
}

// TestWatermarkThatCannotBeRead puts in a watermark's place what this version cannot read. It is named, never guessed
// at, and the resource is compared.
func TestWatermarkThatCannotBeRead(t *testing.T) {
	good := `{"format":1,"cluster":"main","clusterUID":"%s","group":"","resource":"configmaps","scope":"","rv":"%s","time":"2026-01-02T03:04:05Z","epoch":1}`
	for name, c := range map[string]struct {
		typ, body   string
		overwritten bool
	}{
		"no JSON":       {"io.deltabridge.watermark", "a letter", false},
		"a newer one":   {"io.deltabridge.watermark", strings.Replace(good, `"format":1`, `"format":2`, 1), true},
		"another's":     {"io.deltabridge.watermark", strings.Replace(good, `"main"`, `"stage"`, 1), false},
		"no watermark":  {"com.example.letter", `{"hello":1}`, false},
		"a wrong scope": {"io.deltabridge.watermark", good, true},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, configMaps)
			b := r.start()
			r.create(configMaps, r.configMap("deleted", "0"))
			r.create(configMaps, r.configMap("unchanged", "0"))
			r.require()
			r.check.Recording.Stop()
			r.check.Recording = nil
			r.stop(b)
			r.delete(configMaps, r.ns, "deleted")

			system, err := r.client.Resource(namespaces).Get(t.Context(), "kube-system", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			body := c.body
			if strings.Contains(body, "%s") {
				body = fmt.Sprintf(body, system.GetUID(), "999999999")
				if c.overwritten && strings.Contains(body, `"format":1`) {
					body = strings.Replace(body, "999999999", "5", 1)
				}
			}
			m := nats.NewMsg("kube.main.core.configmaps")
			m.Header.Set("ce-type", c.typ)
			m.Data = []byte(body)
			ack, err := r.check.JS.PublishMsg(t.Context(), m)
			if err != nil {
				t.Fatal(err)
			}

			b = r.launch()
			b.WaitReady(t)
			r.awaitMessages(r.object(configMaps, "deleted"), 2)
			s := r.check.Read(t)
			r.requireStory(s, r.object(configMaps, "deleted"), "added watch", "deleted missing")
			r.requireStory(s, r.object(configMaps, "unchanged"), "added watch")
			stream, err := r.check.JS.Stream(t.Context(), "KUBE")
			if err != nil {
				t.Fatal(err)
			}
			check := func() error {
				last, err := stream.GetLastMsgForSubject(t.Context(), "kube.main.core.configmaps")
				switch {
				case err != nil:
					return err
				case c.overwritten != (last.Sequence > ack.Sequence):
					return fmt.Errorf("the last message is #%d, the one in the way is #%d", last.Sequence, ack.Sequence)
				}
				return nil
			}
			if c.overwritten {
				harness.Eventually(t, harness.Patience, check)
			} else if err := check(); err != nil {
				t.Error(err)
			}
			named := false
			for _, line := range b.Log() {
				named = named || line.Contains("kube.main.core.configmaps") && line.Contains(fmt.Sprint(ack.Sequence))
			}
			if !named && name != "a wrong scope" {
				t.Errorf("the log does not name subject and sequence %d", ack.Sequence)
			}
			requireNoStorm(t, b)
			r.stop(b)
		})
	}
}

// TestForgottenMessages takes messages out of the stream behind a stopped bridge's back.
func TestForgottenMessages(t *testing.T) {
	r := newRig(t, configMaps)
	b := r.start()
	for _, name := range []string{"kept", "forgotten"} {
		r.create(configMaps, r.configMap(name, "0"))
	}
	r.require()
	r.check.Recording.Stop()
	r.check.Recording = nil
	r.stop(b)
	stream, err := r.check.JS.Stream(t.Context(), "KUBE")
	if err != nil {
		t.Fatal(err)
	}
	subject := r.check.Read(t).History(r.object(configMaps, "forgotten"))[0].Subject
	if err := stream.Purge(t.Context(), jetstream.WithPurgeSubject(subject)); err != nil {
		t.Fatal(err)
	}
	b = r.launch()
	b.WaitReady(t)
	s := r.require()
	r.requireStory(s, r.object(configMaps, "forgotten"), "added relist")
	said := 0
	for _, line := range b.Log() {
		if line.Contains("forgotten") && line.Level() == "WARN" {
			said++
		}
	}
	if said != 1 {
		t.Errorf("it is said %d times that the stream has forgotten", said)
	}
	r.requireStory(s, r.object(configMaps, "kept"), "added watch")
}
