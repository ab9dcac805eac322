package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/deltabridge/deltabridge/integration/harness"
)

// awaitNotReady waits until the bridge says that it is not ready and names each of the words, in /readyz?verbose and on
// one line of its log, and then looks whether it says so again and again.
func awaitNotReady(t *testing.T, b *harness.Bridge, words ...string) {
	t.Helper()
	all := func(text string) bool {
		for _, word := range words {
			if !strings.Contains(strings.ToLower(text), strings.ToLower(word)) {
				return false
			}
		}
		return true
	}
	harness.Eventually(t, harness.Patience, func() error {
		if !b.Running() {
			t.Fatalf("the bridge ended with code %d", b.ExitCode())
		}
		if err := b.Livez(t.Context()); err != nil {
			return err
		}
		status, text := b.Readyz(t)
		if status == http.StatusOK || !all(text) {
			return fmt.Errorf("/readyz does not say %q: %d\n%s", words, status, text)
		}
		for _, line := range b.Log() {
			if line.Level() != "INFO" && line.Level() != "DEBUG" && all(fmt.Sprint(line)) {
				return nil
			}
		}
		return fmt.Errorf("no warning in the log says %q", words)
	})
	requireNoStorm(t, b)
}

// healed waits until the bridge is ready, without having been restarted, and shows that it works.
func (r *rig) healed(b *harness.Bridge) {
	r.Helper()
	b.WaitReady(r)
	r.record()
	r.create(configMaps, r.configMap("a", "0"))
	r.setValue("a", 0, 3)
	r.delete(configMaps, r.ns, "a")
	r.requireStory(r.require(), r.object(configMaps, "a"),
		"added watch", "modified watch", "modified watch", "modified watch", "deleted watch")
}

func TestNATSAppearsLate(t *testing.T) {
	port := freePort(t)
	r := newRigWithout(t, configMaps)
	r.set("NATS_URL", fmt.Sprintf("nats://127.0.0.1:%d", port))
	b := r.launch()
	awaitNotReady(t, b, "nats", "NATS_URL")
	r.nats = harness.StartNATS(t, onPort(port))
	r.check.JS = r.nats.JetStream(t)
	r.healed(b)
}

func TestNATSRefusesTheUser(t *testing.T) {
	bridge := func(password string) *server.User { return &server.User{Username: "bridge", Password: password} }
	r := newRigOn(t, harness.StartNATS(t, harness.Users(bridge("other"))), configMaps)
	r.set("NATS_USER", "bridge", "NATS_PASSWORD", "the-bridges-own-password")
	b := r.launch()
	awaitNotReady(t, b, "nats", "NATS_USER")
	if strings.Contains(b.Stderr(), "the-bridges-own-password") {
		t.Error("the log has the password")
	}
	if err := r.nats.Reload(harness.Users(bridge("the-bridges-own-password"))); err != nil {
		t.Fatal(err)
	}
	r.healed(b)
}

func TestJetStreamIsOff(t *testing.T) {
	r := newRigOn(t, harness.StartNATS(t, harness.WithoutJetStream), configMaps)
	b := r.launch()
	awaitNotReady(t, b, "JetStream")
	r.nats.Stop()
	r.nats.Change(func(o *server.Options) { o.JetStream = true })
	if err := r.nats.Start(); err != nil {
		t.Fatal(err)
	}
	r.healed(b)
}

func TestNoPermissionToPublish(t *testing.T) {
	user := func(deny ...string) func(*server.Options) {
		u := &server.User{Username: "bridge", Password: "secret"}
		if len(deny) > 0 {
			u.Permissions = &server.Permissions{Publish: &server.SubjectPermission{Deny: deny}}
		}
		return harness.Users(u)
	}
	for name, deny := range map[string][]string{
		"to the stream's subjects": {"kube.>"},
		"to the stream's API":      {"$JS.API.>"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRigOn(t, harness.StartNATS(t, user(deny...)), configMaps)
			r.set("NATS_USER", "bridge", "NATS_PASSWORD", "secret")
			b := r.launch()
			awaitNotReady(t, b, "permission")
			if err := r.nats.Reload(user()); err != nil {
				t.Fatal(err)
			}
			r.healed(b)
		})
	}
}

func TestStreamDoesNotFit(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*jetstream.StreamConfig)
		words  []string
		mend   func(*rig) error
	}{
		"wrong subjects": {
			func(s *jetstream.StreamConfig) { s.Subjects = []string{"other.>"} },
			[]string{"KUBE", "other.>", "kube.main"},
			func(r *rig) error {
				_, err := r.check.JS.UpdateStream(r.Context(), r.stream(nil))
				return err
			},
		},
		"work queue": {
			func(s *jetstream.StreamConfig) { s.Retention = jetstream.WorkQueuePolicy },
			[]string{"KUBE", "retention"},
			func(r *rig) error { return r.check.JS.DeleteStream(r.Context(), "KUBE") },
		},
		"interest": {
			func(s *jetstream.StreamConfig) { s.Retention = jetstream.InterestPolicy },
			[]string{"KUBE", "retention"},
			func(r *rig) error { return r.check.JS.DeleteStream(r.Context(), "KUBE") },
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, configMaps)
			if _, err := r.check.JS.CreateStream(t.Context(), r.stream(c.change)); err != nil {
				t.Fatal(err)
			}
			b := r.launch()
			awaitNotReady(t, b, c.words...)
			if err := c.mend(r); err != nil {
				t.Fatal(err)
			}
			r.healed(b)
		})
	}
}

func TestStreamIsRequired(t *testing.T) {
	r := newRig(t, configMaps)
	r.set("BRIDGE_STREAM_MODE", "require")
	b := r.launch()
	awaitNotReady(t, b, "KUBE", "does not exist")
	if _, err := r.check.JS.CreateStream(t.Context(), r.stream(nil)); err != nil {
		t.Fatal(err)
	}
	r.healed(b)
}

func TestAPIServerAppearsLate(t *testing.T) {
	r, proxy := newProxyRig(t)
	proxy.Refuse()
	b := r.launch()
	awaitNotReady(t, b, "kubernetes")
	if err := proxy.Accept(); err != nil {
		t.Fatal(err)
	}
	r.healed(b)
}

func TestAPIServerRefusesTheUser(t *testing.T) {
	r, proxy := newProxyRig(t)
	proxy.Fail(harness.Fault{Path: "/*", Status: http.StatusUnauthorized, Reason: metav1.StatusReasonUnauthorized})
	b := r.launch()
	awaitNotReady(t, b, "kubernetes", "credentials", "KUBECONFIG")
	proxy.Heal()
	r.healed(b)
}
