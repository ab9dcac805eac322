package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/deltabridge/deltabridge/integration/check"
	"github.com/deltabridge/deltabridge/integration/harness"
)

var leaseResource = schema.GroupVersionResource{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}

// newElectedRig is newRig for bridges that elect a leader by a Lease in the test's namespace.
func newElectedRig(t *testing.T, duration string) *rig {
	t.Helper()
	r := newRig(t, configMaps)
	r.set("BRIDGE_LEADER_ELECT", "true", "BRIDGE_LEASE_NAMESPACE", r.ns, "BRIDGE_LEASE_DURATION", duration)
	return r
}

// launchWith starts a bridge whose environment differs in some variables.
func (r *rig) launchWith(pairs ...string) *harness.Bridge {
	r.Helper()
	env := maps.Clone(r.env)
	for i := 0; i < len(pairs); i += 2 {
		env[pairs[i]] = pairs[i+1]
	}
	return harness.StartBridge(r, env)
}

// leads waits until a bridge leads and is ready.
func (r *rig) leads(b *harness.Bridge) {
	r.Helper()
	harness.Eventually(r, harness.Patience, func() error {
		if err := b.Ready(r.Context()); err != nil {
			return err
		}
		if b.Metric(r, "deltabridge_leader") != 1 {
			return errors.New("the bridge does not lead")
		}
		return nil
	})
}

// standsBy waits until a bridge is ready as a standby, which has nothing left of when it led.
func (r *rig) standsBy(b *harness.Bridge) {
	r.Helper()
	harness.Eventually(r, harness.Patience, func() error {
		if err := b.Ready(r.Context()); err != nil {
			return err
		}
		_, text := b.Readyz(r)
		if !strings.Contains(text, "[+] leader: standby, ") || !strings.Contains(text, " leads") {
			return fmt.Errorf("not a standby:\n%s", text)
		}
		return nil
	})
	if b.Metric(r, "deltabridge_leader") != 0 || b.Metric(r, "deltabridge_nats_connected") != 1 {
		r.Errorf("a standby's metrics:\n%s", b.Metrics(r))
	}
}

// pair starts two bridges with environments that differ; the first leads, and the recording has begun.
func (r *rig) pair(first, second []string) (leader, standby *harness.Bridge) {
	r.Helper()
	leader = r.launchWith(first...)
	r.leads(leader)
	standby = r.launchWith(second...)
	r.standsBy(standby)
	r.record()
	return leader, standby
}

// identity returns the name with which a bridge stands for election.
func (r *rig) identity(leader *harness.Bridge) string {
	r.Helper()
	status, _ := leader.Status(r)["leader"].(map[string]any)
	holder, _ := status["holder"].(string)
	if status["leading"] != true || holder == "" {
		r.Fatalf("the leader's status is %v", status)
	}
	return holder
}

// lease returns the holder that the Lease names.
func (r *rig) lease() string {
	r.Helper()
	u, err := r.client.Resource(leaseResource).Namespace(r.ns).Get(r.Context(), "deltabridge-main", metav1.GetOptions{})
	if err != nil {
		r.Fatal(err)
	}
	holder, _, err := unstructured.NestedString(u.Object, "spec", "holderIdentity")
	if err != nil {
		r.Fatal(err)
	}
	return holder
}

// loggedAt returns when a bridge logged a message for the last time; false if it never did.
func loggedAt(t testing.TB, b *harness.Bridge, message string) (time.Time, bool) {
	t.Helper()
	var at time.Time
	found := false
	for _, line := range b.Log() {
		if line.Message() != message {
			continue
		}
		text, _ := line["time"].(string)
		parsed, err := time.Parse(time.RFC3339Nano, text)
		if err != nil {
			t.Fatalf("time of the log line %v: %v", line, err)
		}
		at, found = parsed, true
	}
	return at, found
}

// TestTakeoverAfterSignal ends the leader as a pod is ended. The other one need not wait for the lease to run out, which
// is what the short grace of a rolling update asks for.
func TestTakeoverAfterSignal(t *testing.T) {
	r := newElectedRig(t, "15s")
	proxy := harness.StartNATSProxy(t, r.nats)
	leader, standby := r.pair([]string{"NATS_URL", proxy.URL()}, nil)
	identity := r.identity(leader)
	if status, _ := standby.Status(t)["leader"].(map[string]any); status["leading"] != false || status["holder"] != identity {
		t.Errorf("the standby's status is %v, the leader %s", status, identity)
	}
	r.create(configMaps, r.configMap("before", "0"))
	r.awaitMessages(r.object(configMaps, "before"), 1)

	// The drain has something to wait for.
	gate := make(chan struct{})
	open := sync.OnceFunc(func() { close(gate) })
	defer open()
	proxy.Script(func(harness.Published) harness.PublishAction {
		<-gate
		return harness.Pass
	})
	const objects = 20
	for i := range objects {
		r.create(configMaps, r.configMap(fmt.Sprintf("c-%d", i), "0"))
	}
	harness.Eventually(t, harness.Patience, func() error {
		if n := leader.Metric(t, "deltabridge_pending_messages"); n < objects {
			return fmt.Errorf("%v messages are pending", n)
		}
		return nil
	})
	if err := leader.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	harness.Never(t, 4*time.Second, func() error {
		if !leader.Running() || r.lease() != identity || standby.Metric(t, "deltabridge_leader") != 0 {
			return fmt.Errorf("running %t, the lease is %q", leader.Running(), r.lease())
		}
		return nil
	})
	open()
	if code := leader.WaitExit(t, harness.Patience); code != 0 {
		t.Errorf("the exit code is %d", code)
	}
	if holder := r.lease(); holder == identity {
		t.Error("the lease was not released")
	}
	ended := time.Now()
	r.leads(standby)
	t.Logf("the other led %s after the leader's end", time.Since(ended).Round(time.Millisecond))
	r.setValue("before", 0, 3)
	s := r.require()
	if n := len(s.Objects("")); n < objects+4 {
		t.Errorf("%d messages", n)
	}
}

// TestTakeoverAfterKill ends the leader without a word, in the middle of a burst.
func TestTakeoverAfterKill(t *testing.T) {
	r := newElectedRig(t, "6s")
	leader, standby := r.pair(nil, nil)
	endBurst := r.burst(24)
	published := leader.Metric(t, "deltabridge_messages_published_total")
	harness.Eventually(t, harness.Patience, func() error {
		if n := leader.Metric(t, "deltabridge_messages_published_total") - published; n < 50 {
			return fmt.Errorf("%v messages", n)
		}
		return nil
	})
	if err := leader.Kill(); err != nil {
		t.Fatal(err)
	}
	killed := time.Now()
	r.leads(standby)
	t.Logf("the other led %s after the leader was killed", time.Since(killed).Round(time.Millisecond))
	endBurst()
	r.requireEpochs(r.require(), 2)
}

// burst creates so many objects, and when the stream has them begins to change one after the other, until the returned
// function is called.
func (r *rig) burst(objects int) (end func()) {
	r.Helper()
	const writers = 3
	for i := range objects {
		r.create(configMaps, r.configMap(fmt.Sprintf("c-%d", i), "0"))
	}
	for i := range objects {
		r.awaitMessages(r.object(configMaps, fmt.Sprintf("c-%d", i)), 1)
	}
	ctx, cancel := context.WithCancel(r.Context())
	var running sync.WaitGroup
	for w := range writers {
		running.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				name := fmt.Sprintf("c-%d", w+writers*(i%(objects/writers)))
				if err := r.change(ctx, name, i+1); err != nil && ctx.Err() == nil {
					r.Errorf("change %s: %v", name, err)
					return
				}
				time.Sleep(10 * time.Millisecond)
			}
		})
	}
	end = sync.OnceFunc(func() {
		cancel()
		running.Wait()
	})
	r.Cleanup(end)
	return end
}

// TestLeaderCutOffFromTheAPI is case L1.
func TestLeaderCutOffFromTheAPI(t *testing.T) {
	r := newElectedRig(t, "15s")
	api, nats := r.plane.StartProxy(t), harness.StartNATSProxy(t, r.nats)
	leader, standby := r.pair([]string{"KUBECONFIG", api.Kubeconfig(), "NATS_URL", nats.URL()}, nil)
	r.create(configMaps, r.configMap("a", "0"))
	r.awaitMessages(r.object(configMaps, "a"), 1)

	// The broker takes nothing from the leader for the moment, so that it tries again and again.
	var refusing atomic.Bool
	var sent, last atomic.Int64
	refusing.Store(true)
	nats.Script(func(m harness.Published) harness.PublishAction {
		if !strings.HasPrefix(m.Subject, "kube.") {
			return harness.Pass
		}
		sent.Add(1)
		last.Store(time.Now().UnixNano())
		if refusing.Load() {
			return harness.Refuse
		}
		return harness.Pass
	})
	r.setValue("a", 0, 3)
	harness.Eventually(t, harness.Patience, func() error {
		if sent.Load() < 3 {
			return errors.New("the leader does not try")
		}
		return nil
	})
	tried := sent.Load()
	api.Refuse()
	harness.Eventually(t, harness.Patience, func() error {
		if _, lost := loggedAt(t, leader, "lease lost, stopping to lead"); !lost {
			return errors.New("the leader has not noticed")
		}
		if n := leader.Metric(t, "deltabridge_pending_messages"); n != 0 {
			return fmt.Errorf("the former leader keeps %v messages", n)
		}
		return nil
	})
	if sent.Load() == tried {
		t.Error("the leader did not try until the lease was lost, so that its silence proves nothing")
	}
	refusing.Store(false) // now the broker would take it
	r.leads(standby)
	r.setValue("a", 3, 3)
	r.awaitMessages(r.object(configMaps, "a"), 5)
	silent := sent.Load()
	harness.Never(t, 2*time.Second, func() error {
		if n := sent.Load(); n != silent {
			return fmt.Errorf("the former leader has sent %d more", n-silent)
		}
		return nil
	})
	status, text := leader.Readyz(t)
	if status == http.StatusOK || !strings.Contains(text, "[-] leader: standby, and cannot take over: lease "+r.ns+"/deltabridge-main: ") ||
		!strings.Contains(text, "[+] nats") {
		t.Errorf("the former leader says %d:\n%s", status, text)
	}
	lost, _ := loggedAt(t, leader, "lease lost, stopping to lead")
	led, _ := loggedAt(t, standby, "leading")
	if sentLast := time.Unix(0, last.Load()); !lost.Before(led) || !sentLast.Before(led) {
		t.Errorf("lost at %s, sent last at %s, and the other led at %s", lost, sentLast, led)
	}
	if err := api.Accept(); err != nil {
		t.Fatal(err)
	}
	r.standsBy(leader)
	s := r.require()
	r.requireEpochs(s, 2)
}

// requireEpochs ends the test unless the messages are from at least n epochs. That none falls is the check's to say.
func (r *rig) requireEpochs(s *check.Stream, n int) {
	r.Helper()
	epochs := map[string]int{}
	for _, m := range s.Objects("") {
		epochs[m.Epoch]++
	}
	if len(epochs) < n {
		r.Fatalf("messages by epoch are %v, want at least %d epochs", epochs, n)
	}
}

// TestLoseAndRegainTheLease is case L2, for two bridges in turn.
func TestLoseAndRegainTheLease(t *testing.T) {
	const rounds = 3
	r := newElectedRig(t, "6s")
	proxies := []*harness.APIProxy{r.plane.StartProxy(t), r.plane.StartProxy(t)}
	first, second := r.pair([]string{"KUBECONFIG", proxies[0].Kubeconfig()}, []string{"KUBECONFIG", proxies[1].Kubeconfig()})
	bridges := []*harness.Bridge{first, second}
	r.create(configMaps, r.configMap("a", "0"))
	for round := range 2 * rounds {
		former, next := round%2, (round+1)%2
		r.setValue("a", round, 1)
		proxies[former].Refuse()
		r.leads(bridges[next])
		if bridges[former].Metric(t, "deltabridge_leader") != 0 {
			t.Error("both lead")
		}
		r.create(configMaps, r.configMap(fmt.Sprintf("c-%d", round), "0"))
		r.awaitMessages(r.object(configMaps, fmt.Sprintf("c-%d", round)), 1)
		if err := proxies[former].Accept(); err != nil {
			t.Fatal(err)
		}
		r.standsBy(bridges[former])
	}
	r.requireEpochs(r.require(), 2*rounds)
	for i, b := range bridges {
		lost := 0
		for _, line := range b.Log() {
			if line.Message() == "lease lost, stopping to lead" {
				lost++
			}
		}
		if lost < rounds {
			t.Errorf("bridge %d lost the lease %d times, want %d", i, lost, rounds)
		}
	}
}

// TestStoppedLeader stops the leader with SIGSTOP in the middle of a burst and lets it go on after the takeover. What it
// had sent arrives late, and what it still believes is of no consequence.
func TestStoppedLeader(t *testing.T) {
	const objects = 24
	r := newElectedRig(t, "6s")
	proxy := harness.StartNATSProxy(t, r.nats)
	leader, standby := r.pair([]string{"NATS_URL", proxy.URL()}, nil)
	endBurst := r.burst(objects)

	// What the leader sends from here on arrives when the gate opens.
	gate := make(chan struct{})
	open := sync.OnceFunc(func() { close(gate) })
	defer open()
	var late atomic.Int64
	proxy.Script(func(m harness.Published) harness.PublishAction {
		<-gate
		if strings.HasPrefix(m.Subject, "kube.main.core.configmaps.") {
			late.Add(1)
		}
		return harness.Pass
	})
	harness.Eventually(t, harness.Patience, func() error {
		if n := leader.Metric(t, "deltabridge_pending_messages"); n < objects {
			return fmt.Errorf("%v messages are pending", n)
		}
		return nil
	})
	if err := leader.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	r.leads(standby)
	if err := leader.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	open()
	r.standsBy(leader)
	published := standby.Metric(t, "deltabridge_messages_published_total")
	harness.Eventually(t, harness.Patience, func() error {
		if n := standby.Metric(t, "deltabridge_messages_published_total") - published; n < 50 {
			return fmt.Errorf("%v messages since the former leader stands by", n)
		}
		return nil
	})
	endBurst()
	s := r.require()
	r.requireEpochs(s, 2)
	stored := int64(0)
	successor := false
	for _, m := range s.Objects("") {
		successor = successor || m.Epoch == "2"
		if successor && m.Epoch == "1" {
			stored++
		}
	}
	t.Logf("%d messages of the former leader reached the broker after the takeover, %d of them were refused", late.Load(), late.Load()-stored)
	if late.Load() == stored {
		t.Error("the broker refused nothing, so that this proves nothing")
	}
}

// TestRightsForTheLease gives a bridge the rights that the documentation names and no others, one after the other.
func TestRightsForTheLease(t *testing.T) {
	r := newElectedRig(t, "6s")
	user := r.ns + "-bridge"
	r.set("KUBECONFIG", r.plane.User(t, user))
	grant := func(namespace string, rule rbacv1.PolicyRule) {
		t.Helper()
		if err := r.plane.Grant(t.Context(), user, namespace, rule); err != nil {
			t.Fatal(err)
		}
	}
	grant("", rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"list", "watch"}})
	b := r.launch()
	harness.Eventually(t, harness.Patience, func() error {
		if err := b.Ready(t.Context()); !strings.Contains(fmt.Sprint(err), `cannot get resource "leases"`) {
			return fmt.Errorf("the missing right is not named: %w", err)
		}
		return nil
	})
	grant(r.ns, rbacv1.PolicyRule{
		APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, Verbs: []string{"get", "create", "update"},
	})
	r.leads(b)
	r.record()
	r.create(configMaps, r.configMap("a", "0"))
	r.require()
	r.stop(b)
	if holder := r.lease(); holder != "" {
		t.Errorf("the lease was not released: %q", holder)
	}
}
