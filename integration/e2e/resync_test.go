package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/deltabridge/deltabridge/integration/check"
	"github.com/deltabridge/deltabridge/integration/harness"
)

// only returns the messages of a kind.
func only(messages []*check.Message, kind string) []*check.Message {
	var found []*check.Message
	for _, m := range messages {
		if m.Kind == kind {
			found = append(found, m)
		}
	}
	return found
}

// awaitSynced waits until an object has n repetitions more than before.
func (r *rig) awaitSynced(o check.Object, n int) {
	r.Helper()
	harness.Eventually(r, harness.Patience, func() error {
		s, err := r.readStream(r.Context())
		if err != nil {
			return err
		}
		if got := len(only(s.History(o), "synced")); got < n {
			return fmt.Errorf("%d repetitions of %s, want %d", got, o, n)
		}
		return nil
	})
}

// runOf returns the run in a repetition's id.
func runOf(m *check.Message) string {
	_, run, _ := strings.Cut(m.ID, "/sync/")
	return run
}

// requireRuns checks that no run repeats an object twice.
func (r *rig) requireRuns(s *check.Stream) {
	r.Helper()
	seen := map[string]bool{}
	for _, m := range only(s.Objects(""), "synced") {
		key := m.Object.String() + " " + runOf(m)
		if seen[key] || strings.Contains(m.ID, "/again/") {
			r.Errorf("run %s repeats %s twice", runOf(m), m.Object)
		}
		seen[key] = true
	}
}

// TestPeriodResync has every live object published again each period, before and after a restart: then the bridge knows
// the objects from the stream only, and repeats what is there.
func TestPeriodResync(t *testing.T) {
	r := newRig(t, configMaps, namespaces)
	r.set("BRIDGE_RESYNC_PERIOD", "2s")
	b := r.start()
	names := []string{"a", "b", "c"}
	for _, name := range names {
		r.create(configMaps, r.configMap(name, "0"))
	}
	r.create(configMaps, r.configMap("gone", "0"))
	r.delete(configMaps, r.ns, "gone")
	r.setValue("a", 0, 5)
	for _, name := range names {
		r.awaitSynced(r.object(configMaps, name), 2)
	}
	r.awaitSynced(check.Object{Resource: "namespaces", Name: r.ns}, 2)
	if n := b.Metric(t, "deltabridge_events_received_total", `op="synced"`); n != 0 {
		t.Errorf("%v repetitions are counted as changes", n)
	}
	if n := b.Metric(t, "deltabridge_messages_published_total", `op="synced"`); n < 8 {
		t.Errorf("%v repetitions are counted as published", n)
	}
	r.stop(b)
	s := r.require()
	before := map[string]int{}
	for _, name := range names {
		before[name] = len(only(s.History(r.object(configMaps, name)), "synced"))
	}
	epoch := s.Messages[len(s.Messages)-1].Epoch

	b = r.start()
	for _, name := range names {
		r.awaitSynced(r.object(configMaps, name), before[name]+2)
	}
	r.setValue("b", 0, 1)
	r.awaitSynced(r.object(configMaps, "b"), before["b"]+3)
	r.stop(b)
	s = r.require()
	r.requireRuns(s)
	for _, m := range s.Objects("") {
		if m.Epoch != epoch && m.Kind != "synced" && m.Object != r.object(configMaps, "b") {
			t.Errorf("the restart published %s %s of %s", m.Kind, m.Reason, m.Object)
		}
		if m.Kind == "synced" && m.Reason != "resync" {
			t.Errorf("a repetition of %s has the reason %q", m.Object, m.Reason)
		}
	}
}

// TestPeriodResyncIsHeldWhileTheBrokerIsAway has several periods pass without a broker: nothing piles up, and what is
// changed meanwhile comes first.
func TestPeriodResyncIsHeldWhileTheBrokerIsAway(t *testing.T) {
	const objects = 200
	r := newRig(t, configMaps)
	r.set("BRIDGE_RESYNC_PERIOD", "1s")
	b := r.start()
	for i := range objects {
		r.create(configMaps, r.configMap(fmt.Sprintf("c-%d", i), "0"))
	}
	r.awaitSynced(r.object(configMaps, "c-199"), 1)
	r.nats.Stop()
	most := 0.0
	harness.Never(t, 10*time.Second, func() error {
		most = max(most, b.Metric(t, "deltabridge_pending_messages"))
		if most > 64 {
			return fmt.Errorf("%v messages are pending", most)
		}
		return nil
	})
	r.setValue("c-0", 0, 10)
	r.delete(configMaps, r.ns, "c-1")
	if err := r.nats.Start(); err != nil {
		t.Fatal(err)
	}
	r.check.JS = r.nats.JetStream(t)
	r.awaitMessages(r.object(configMaps, "c-0"), 11)
	t.Logf("at most %v messages were pending", most)
	requireNoStorm(t, b)
	r.stop(b)
	r.requireRuns(r.require())
}

// resync runs the command and returns its exit code and output.
func (r *rig) resync(args ...string) (code int, stdout, stderr string) {
	r.Helper()
	p := harness.StartBridge(r, maps.Clone(r.env), append([]string{"resync"}, args...)...)
	code = p.WaitExit(r, harness.Patience)
	return code, p.Stdout(), p.Stderr()
}

// requireResync runs the command, which must succeed with the counts of its last line.
func (r *rig) requireResync(want string, args ...string) {
	r.Helper()
	code, stdout, stderr := r.resync(args...)
	if code != 0 || !strings.Contains(stdout, "done: "+want) {
		r.Fatalf("bridge resync %q: code %d, want %q\n%s%s", args, code, want, stdout, stderr)
	}
}

// syncedSince returns the objects that were repeated after a sequence, by how often.
func (r *rig) syncedSince(sequence uint64) (times map[check.Object]int, last uint64) {
	r.Helper()
	times = map[check.Object]int{}
	s := r.check.Read(r)
	for _, m := range s.Messages {
		if m.Sequence > sequence && m.Kind == "synced" {
			times[m.Object]++
		}
		last = max(last, m.Sequence)
	}
	return times, last
}

// TestResyncOnRequest asks for a resource, a namespace, a selector and everything.
func TestResyncOnRequest(t *testing.T) {
	r := newRig(t, configMaps, services)
	other := r.ns + "-other"
	r.create(namespaces, object("v1", "Namespace", "", other))
	r.set("BRIDGE_NAMESPACES", r.ns+","+other)
	mine := func(o check.Object) bool { return o.Namespace == r.ns || o.Namespace == other }
	r.check.Selection.Select = mine
	b := r.start()
	r.create(configMaps, with(r.configMap("a", "0"), "x", "metadata", "labels", "app"))
	r.create(configMaps, r.configMap("b", "0"))
	r.create(configMaps, object("v1", "ConfigMap", other, "c"))
	r.create(services, with(object("v1", "Service", r.ns, "s"), []any{map[string]any{"port": int64(80)}}, "spec", "ports"))
	r.require()

	a, svc := r.object(configMaps, "a"), r.object(services, "s")
	_, last := r.syncedSince(0)
	var times map[check.Object]int
	for _, c := range []struct {
		want string
		args []string
		some []check.Object
	}{
		{"1 objects, 1 synced, 0 repaired, 0 deleted", []string{"--resource", "services"}, []check.Object{svc}},
		{"1 objects, 1 synced, 0 repaired, 0 deleted", []string{"--namespace", other}, nil},
		{"1 objects, 1 synced, 0 repaired, 0 deleted", []string{"--selector", "app in (x,y)"}, []check.Object{a}},
		{"2 objects, 2 synced, 0 repaired, 0 deleted", []string{"--resource=configmap", "--namespace", r.ns}, []check.Object{a}},
		{"4 objects, 4 synced, 0 repaired, 0 deleted", []string{"--resource", "services", "--resource", "configmaps"}, []check.Object{a, svc}},
		{"4 objects, 4 synced, 0 repaired, 0 deleted", nil, []check.Object{a, svc}},
	} {
		r.requireResync(c.want, c.args...)
		times, last = r.syncedSince(last)
		if fmt.Sprintf("%d ", len(times)) != c.want[:2] {
			t.Errorf("%q repeated %v", c.args, times)
		}
		for _, o := range c.some {
			if times[o] != 1 {
				t.Errorf("%q repeated %s %d times", c.args, o, times[o])
			}
		}
	}
	status, _ := b.Status(t)["resync"].(map[string]any)
	if status["done"] != true || status["total"] != 4.0 || status["synced"] != 4.0 {
		t.Errorf("status shows %v", status)
	}
	r.requireRuns(r.require())

	for _, c := range []struct {
		code int
		text string
		args []string
	}{
		{2, `resource "pods" is not one that the bridge follows; it follows configmaps, services`, []string{"--resource", "pods"}},
		{2, "--selector", []string{"--selector", "a=b=c"}},
		{2, "takes flags only", []string{"configmaps"}},
		{2, "not defined", []string{"--resources", "configmaps"}},
		{1, "not one that the bridge follows", []string{"--namespace", "kube-system"}},
	} {
		if code, stdout, stderr := r.resync(c.args...); code != c.code || !strings.Contains(stderr, c.text) {
			t.Errorf("%q: code %d, want %d and %q\n%s%s", c.args, code, c.code, c.text, stdout, stderr)
		}
	}
	if code, stdout, _ := r.resync("--help"); code != 0 || !strings.Contains(stdout, "--selector") {
		t.Errorf("--help: code %d\n%s", code, stdout)
	}
}

// TestResyncRepairs takes messages out of the stream, in each of the ways that matter, and asks for a repair.
func TestResyncRepairs(t *testing.T) {
	r := newRig(t, configMaps)
	r.start()
	for _, name := range []string{"whole", "purged", "cut", "undead"} {
		r.create(configMaps, r.configMap(name, "0"))
		r.setValue(name, 0, 2)
	}
	r.delete(configMaps, r.ns, "undead")
	s := r.require()
	stream, err := r.check.JS.Stream(t.Context(), "KUBE")
	if err != nil {
		t.Fatal(err)
	}
	subject := func(name string) string { return r.object(configMaps, name).Subject("kube.main") }
	if err := stream.Purge(t.Context(), jetstream.WithPurgeSubject(subject("purged"))); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"cut", "undead"} {
		h := s.History(r.object(configMaps, name))
		if err := stream.DeleteMsg(t.Context(), h[len(h)-1].Sequence); err != nil {
			t.Fatal(err)
		}
	}
	r.check.Recording = nil // what was removed is missed

	code, stdout, stderr := r.resync("--namespace", r.ns)
	if code != 0 || !strings.Contains(stdout, "done: 3 objects, 1 synced, 2 repaired") {
		t.Fatalf("code %d\n%s%s", code, stdout, stderr)
	}
	s = r.check.Read(t)
	r.requireStory(s, r.object(configMaps, "whole"), "added watch", "modified watch", "modified watch", "synced resync")
	r.requireStory(s, r.object(configMaps, "purged"), "added repair")
	cut := r.requireStory(s, r.object(configMaps, "cut"), "added watch", "modified watch", "modified repair")
	if gap := cut[2].Gap; gap != cut[1].RV+"-"+cut[2].RV {
		t.Errorf("the repair has the gap %q", gap)
	}
	// That a deletion is gone from the stream is not known to the bridge that published it; the next one finds it out.
	r.requireStory(s, r.object(configMaps, "undead"), "added watch", "modified watch", "modified watch")
}

// TestResyncRepairsADeletion removes a deletion from the stream while no bridge runs. The next one resumes the watch
// where it was, so that only a resync finds that the object is gone.
func TestResyncRepairsADeletion(t *testing.T) {
	r := newRig(t, configMaps)
	b := r.start()
	r.create(configMaps, r.configMap("undead", "0"))
	r.setValue("undead", 0, 1)
	r.delete(configMaps, r.ns, "undead")
	r.create(configMaps, r.configMap("other", "0"))
	r.awaitMessages(r.object(configMaps, "other"), 1)
	r.stop(b)
	s := r.require()
	h := s.History(r.object(configMaps, "undead"))
	stream, err := r.check.JS.Stream(t.Context(), "KUBE")
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.DeleteMsg(t.Context(), h[len(h)-1].Sequence); err != nil {
		t.Fatal(err)
	}
	r.check.Recording = nil
	r.start()
	r.check.Recording = nil
	r.requireResync("0 objects, 0 synced, 0 repaired, 0 deleted", "--namespace", r.ns, "--selector", "a=b")
	r.requireResync("1 objects, 1 synced, 0 repaired, 1 deleted", "--namespace", r.ns)
	s = r.require()
	r.requireStory(s, r.object(configMaps, "undead"), "added watch", "modified watch", "deleted repair")
}

// TestResyncNeverOvertakes changes, creates and deletes objects while one resync follows the other.
func TestResyncNeverOvertakes(t *testing.T) {
	r := newRig(t, configMaps)
	r.set("BRIDGE_RESYNC_PERIOD", "1s")
	r.start()
	for i := range 30 {
		r.create(configMaps, r.configMap(fmt.Sprintf("o-%d", i), "0"))
	}
	var stop atomic.Bool
	var writer sync.WaitGroup
	writer.Go(func() {
		for i := 0; !stop.Load(); i++ {
			r.setValue(fmt.Sprintf("o-%d", i%30), i, 3)
			if i%10 == 0 {
				r.create(configMaps, r.configMap(fmt.Sprintf("t-%d", i), "0"))
				r.delete(configMaps, r.ns, fmt.Sprintf("t-%d", i))
			}
		}
	})
	for range 20 {
		if code, stdout, stderr := r.resync("--namespace", r.ns); code != 0 {
			t.Errorf("code %d\n%s%s", code, stdout, stderr)
		}
	}
	stop.Store(true)
	writer.Wait()
	s := r.require()
	r.requireRuns(s)
	t.Logf("%d repetitions among %d messages", len(only(s.Objects(""), "synced")), len(s.Objects("")))
	if len(only(s.Objects(""), "synced")) < 60 {
		t.Error("that is too little to show anything")
	}
	for _, m := range s.Objects("") {
		if m.Reason == "repair" {
			t.Errorf("%s %s of %s: nothing was to be repaired", m.Kind, m.RV, m.Object)
		}
	}
}

// TestOneResyncAtATime has one resync wait for an acknowledgement that is lost again and again, and asks for another.
func TestOneResyncAtATime(t *testing.T) {
	r := newRig(t, configMaps)
	proxy := harness.StartNATSProxy(t, r.nats)
	direct := r.env["NATS_URL"]
	r.set("NATS_URL", proxy.URL())
	b := r.start()
	r.create(configMaps, r.configMap("a", "0"))
	r.require()
	var hold atomic.Bool
	hold.Store(true)
	subject := r.object(configMaps, "a").Subject("kube.main")
	proxy.Script(func(m harness.Published) harness.PublishAction {
		if m.Subject == subject && hold.Load() {
			return harness.Drop
		}
		return harness.Pass
	})
	r.set("NATS_URL", direct)
	first := harness.StartBridge(t, maps.Clone(r.env), "resync", "--namespace", r.ns)
	harness.Eventually(t, harness.Patience, func() error {
		status, _ := b.Status(t)["resync"].(map[string]any)
		if status["total"] != 1.0 || status["done"] != false {
			return fmt.Errorf("status shows %v", status)
		}
		return nil
	})
	if code, stdout, stderr := r.resync(); code != 1 || !strings.Contains(stderr, "a resync is running already") {
		t.Errorf("code %d\n%s%s", code, stdout, stderr)
	}
	hold.Store(false)
	if code := first.WaitExit(t, harness.Patience); code != 0 || !strings.Contains(first.Stdout(), "configmaps: 1 objects") {
		t.Errorf("the first one: code %d\n%s%s", code, first.Stdout(), first.Stderr())
	}
	r.requireStory(r.require(), r.object(configMaps, "a"), "added watch", "synced resync")
}

// TestNobodyToAsk explains why nobody answers, for each reason.
func TestNobodyToAsk(t *testing.T) {
	r := newRig(t, configMaps)
	want := "no bridge answers for cluster main"
	if code, _, stderr := r.resync(); code != 1 || !strings.Contains(stderr, want) || !strings.Contains(stderr, "BRIDGE_CONTROL=false") {
		t.Errorf("without a bridge: code %d\n%s", code, stderr)
	}
	r.set("BRIDGE_CONTROL", "false")
	b := r.start()
	if code, _, stderr := r.resync(); code != 1 || !strings.Contains(stderr, want) {
		t.Errorf("without the service: code %d\n%s", code, stderr)
	}
	r.stop(b)
	r.set("NATS_URL", "nats://127.0.0.1:1")
	if code, _, stderr := r.resync(); code != 1 || !strings.Contains(stderr, "check NATS_URL") {
		t.Errorf("without a broker: code %d\n%s", code, stderr)
	}
}

// ask sends a request and returns the first answer. It tries again while nobody answers: the service comes a moment after
// the bridge is ready.
func ask(t *testing.T, nc *nats.Conn, subject, body string) (m *nats.Msg) {
	t.Helper()
	harness.Eventually(t, harness.Patience, func() (err error) {
		m, err = nc.Request(subject, []byte(body), 10*time.Second)
		return err
	})
	return m
}

// TestControlService asks the micro service as any NATS client would, also after the broker was away, and when another
// bridge has taken over: only the one that publishes answers a resync.
func TestControlService(t *testing.T) {
	r := newRig(t, configMaps)
	first := r.start()
	nc := r.nats.Connect(t)
	var status struct {
		Cluster string `json:"cluster"`
		Ready   bool   `json:"ready"`
		Epoch   int    `json:"epoch"`
	}
	if err := json.Unmarshal(ask(t, nc, "deltabridge.main.status", "").Data, &status); err != nil || status.Cluster != "main" || !status.Ready {
		t.Errorf("status %+v, %v", status, err)
	}
	for body, text := range map[string]string{
		`{"resource":"pods"}`:    "unknown field",
		`{"format":9}`:           "format 9",
		`{"resources":["pods"]}`: "is not one that the bridge follows",
		`[]`:                     "not understood",
	} {
		m := ask(t, nc, "deltabridge.main.resync", body)
		if code := m.Header.Get("Nats-Service-Error-Code"); code != "400" || !strings.Contains(m.Header.Get("Nats-Service-Error"), text) {
			t.Errorf("%s: %v %s", body, m.Header, m.Data)
		}
	}
	if m := ask(t, nc, "$SRV.INFO.deltabridge", ""); !strings.Contains(string(m.Data), `"cluster":"main"`) {
		t.Errorf("the service is found as %s", m.Data)
	}

	r.nats.Stop()
	if err := r.nats.Start(); err != nil {
		t.Fatal(err)
	}
	r.check.JS = r.nats.JetStream(t)
	first.WaitReady(t)
	harness.Eventually(t, harness.Patience, func() error {
		if code, stdout, stderr := r.resync("--namespace", r.ns); code != 0 {
			return errors.New(stdout + stderr)
		}
		return nil
	})

	second := r.start()
	r.create(configMaps, r.configMap("a", "0"))
	harness.Eventually(t, harness.Patience, func() error {
		if _, text := first.Readyz(t); !strings.Contains(text, "another writer has taken over") {
			return errors.New(text)
		}
		return nil
	})
	nc = r.nats.Connect(t)
	harness.Eventually(t, harness.Patience, func() error {
		inbox, err := nc.SubscribeSync(nats.NewInbox())
		if err != nil {
			return err
		}
		defer func() { _ = inbox.Unsubscribe() }()
		if err := nc.PublishRequest("$SRV.INFO.deltabridge", inbox.Subject, nil); err != nil {
			return err
		}
		services, resyncs := 0, 0
		for m, err := inbox.NextMsg(2 * time.Second); err == nil; m, err = inbox.NextMsg(time.Second) {
			services++
			resyncs += strings.Count(string(m.Data), `"subject":"deltabridge.main.resync"`)
		}
		if services != 2 || resyncs != 1 {
			return fmt.Errorf("%d services, of which %d answer a resync", services, resyncs)
		}
		return nil
	})
	for range 4 {
		r.requireResync("1 objects, 1 synced, 0 repaired, 0 deleted", "--namespace", r.ns)
	}
	r.stop(second)
}

// TestServiceIsNotPermitted has a user that may not subscribe to the service's subjects: the bridge works all the same,
// and its log names each of them once.
func TestServiceIsNotPermitted(t *testing.T) {
	user := &server.User{Username: "bridge", Password: "secret", Permissions: &server.Permissions{
		Subscribe: &server.SubjectPermission{Allow: []string{"_INBOX.>"}},
	}}
	r := newRigOn(t, harness.StartNATS(t, harness.Users(user)), configMaps)
	r.set("NATS_USER", "bridge", "NATS_PASSWORD", "secret")
	b := r.start()
	r.create(configMaps, r.configMap("a", "0"))
	r.require()
	r.nats.Stop()
	if err := r.nats.Start(); err != nil {
		t.Fatal(err)
	}
	r.check.JS = r.nats.JetStream(t)
	b.WaitReady(t)
	r.setValue("a", 0, 1)
	r.require()
	if code, _, stderr := r.resync(); code != 1 || !strings.Contains(stderr, "no bridge answers") {
		t.Errorf("code %d\n%s", code, stderr)
	}
	said := 0
	for _, line := range b.Log() {
		if line.Contains("deltabridge.main.resync") {
			said++
		}
	}
	if said != 1 {
		t.Errorf("that the service is not permitted was logged %d times", said)
	}
}

// TestResyncOfManyObjects reads several pages, and then finds all of them gone from the stream.
func TestResyncOfManyObjects(t *testing.T) {
	const objects = 1200
	r := newRig(t, configMaps)
	b := r.start()
	for i := range objects {
		r.create(configMaps, r.configMap(fmt.Sprintf("o-%d", i), "0"))
	}
	r.require()
	code, stdout, stderr := r.resync("--namespace", r.ns)
	if code != 0 || !strings.Contains(stdout, "done: 1200 objects, 1200 synced, 0 repaired, 0 deleted") {
		t.Fatalf("code %d\n%s%s", code, stdout, stderr)
	}
	if strings.Count(stdout, "configmaps: ") < 2 {
		t.Errorf("no progress was printed:\n%s", stdout)
	}
	r.requireRuns(r.require())
	stream, err := r.check.JS.Stream(t.Context(), "KUBE")
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Purge(t.Context(), jetstream.WithPurgeSubject("kube.main.core.configmaps."+r.ns+".*")); err != nil {
		t.Fatal(err)
	}
	r.check.Recording = nil
	r.requireResync("1200 objects, 0 synced, 1200 repaired, 0 deleted", "--namespace", r.ns)
	for _, m := range r.require().Objects("") {
		if m.Object.Namespace == r.ns && (m.Kind != "added" || m.Reason != "repair") {
			t.Errorf("%s %s of %s", m.Kind, m.Reason, m.Object)
		}
	}
	requireNoStorm(t, b)
}

// TestStandbyLeavesAResyncToTheLeader asks again and again while one of two replicas leads, and after the other has taken
// over: the request always reaches the one that publishes.
func TestStandbyLeavesAResyncToTheLeader(t *testing.T) {
	r := newElectedRig(t, "5s")
	leader, standby := r.pair(nil, nil)
	r.create(configMaps, r.configMap("a", "0"))
	r.awaitMessages(r.object(configMaps, "a"), 1)
	for range 4 {
		r.requireResync("1 objects, 1 synced, 0 repaired, 0 deleted", "--namespace", r.ns)
	}
	if status := leader.Status(t)["resync"]; status == nil {
		t.Error("the leader's status shows no resync")
	}
	if status := standby.Status(t)["resync"]; status != nil {
		t.Errorf("the standby's status shows %v", status)
	}
	r.stop(leader)
	r.leads(standby)
	for range 2 {
		r.requireResync("1 objects, 1 synced, 0 repaired, 0 deleted", "--namespace", r.ns)
	}
	r.requireRuns(r.require())
}
