package e2e

import (
	"context"
	"fmt"
	"maps"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/deltabridge/deltabridge/integration/check"
	"github.com/deltabridge/deltabridge/integration/harness"
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }

// The resources of the tests.
var (
	configMaps   = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	namespaces   = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	nodes        = schema.GroupVersionResource{Version: "v1", Resource: "nodes"}
	pods         = schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	secrets      = schema.GroupVersionResource{Version: "v1", Resource: "secrets"}
	services     = schema.GroupVersionResource{Version: "v1", Resource: "services"}
	deployments  = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
	clusterRoles = schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterroles"}
	crds         = schema.GroupVersionResource{
		Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions",
	}
)

// rig is what a test stands on: the API server, a NATS server, and what the bridge is asked to publish.
type rig struct {
	*testing.T
	plane  *harness.ControlPlane
	client dynamic.Interface
	nats   *harness.NATS
	env    map[string]string
	check  check.Case
	ns     string // the test's own namespace
}

var namespaceNumber atomic.Int64

// newRig starts a NATS server and prepares a bridge for the given resources.
func newRig(t *testing.T, resources ...schema.GroupVersionResource) *rig {
	t.Helper()
	return newRigOn(t, harness.StartNATS(t), resources...)
}

// newRigOn is newRig with a NATS server that the test has made to its needs.
func newRigOn(t *testing.T, n *harness.NATS, resources ...schema.GroupVersionResource) *rig {
	t.Helper()
	r := newRigWithout(t, resources...)
	r.on(n)
	return r
}

// on takes the rig's bridge to a NATS server.
func (r *rig) on(n *harness.NATS) {
	r.Helper()
	r.nats = n
	r.check.JS = n.JetStream(r)
	r.env["NATS_URL"] = n.URL()
}

// ownPlane starts a control plane that the test's end stops.
func ownPlane(t *testing.T) *harness.ControlPlane {
	t.Helper()
	plane, err := harness.StartControlPlane(t.Context(), harness.ControlPlaneConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := plane.Stop(); err != nil {
			t.Error(err)
		}
	})
	return plane
}

// newRigWithout is newRig without a NATS server.
func newRigWithout(t *testing.T, resources ...schema.GroupVersionResource) *rig {
	t.Helper()
	return newRigWithin(t, harness.Plane(t), resources...)
}

// newRigWithin is newRigWithout with a control plane that the test has for itself.
func newRigWithin(t *testing.T, plane *harness.ControlPlane, resources ...schema.GroupVersionResource) *rig {
	t.Helper()
	r := &rig{
		T:      t,
		plane:  plane,
		client: plane.Dynamic(),
		ns:     fmt.Sprintf("e2e-%d", namespaceNumber.Add(1)),
	}
	r.check = check.Case{Client: r.client, Selection: check.Selection{Resources: resources}, Timeout: harness.Patience}
	r.env = map[string]string{
		"KUBECONFIG":            plane.Kubeconfig(),
		"BRIDGE_RESOURCES":      resourceNames(resources),
		"BRIDGE_STREAM_HISTORY": "-1", // the check wants to see everything
	}
	r.create(namespaces, object("v1", "Namespace", "", r.ns))
	return r
}

func resourceNames(resources []schema.GroupVersionResource) string {
	names := make([]string, len(resources))
	for i, resource := range resources {
		names[i] = resource.GroupResource().String()
	}
	return strings.Join(names, ",")
}

// set changes the bridge's environment.
func (r *rig) set(pairs ...string) {
	for i := 0; i < len(pairs); i += 2 {
		r.env[pairs[i]] = pairs[i+1]
	}
}

// record begins to record what happens in the cluster; the check at the test's end compares. It must be called when the
// bridge is ready, for the bridge need not know what was there before it.
func (r *rig) record() {
	r.Helper()
	r.check.Recording = check.Record(r, r.client, r.check.Selection)
}

// launch starts a bridge and does not wait for it.
func (r *rig) launch() *harness.Bridge {
	r.Helper()
	return harness.StartBridge(r, maps.Clone(r.env))
}

// start starts a bridge, waits until it is ready, and begins to record.
func (r *rig) start() *harness.Bridge {
	r.Helper()
	b := r.launch()
	b.WaitReady(r)
	if r.check.Recording == nil {
		r.record()
	}
	return b
}

// stop ends a bridge the way a pod is ended and expects it to drain.
func (r *rig) stop(b *harness.Bridge) {
	r.Helper()
	if err := b.Signal(os.Interrupt); err != nil {
		r.Fatal(err)
	}
	if code := b.WaitExit(r, harness.Patience); code != 0 {
		r.Fatalf("the bridge ended with code %d", code)
	}
}

// require checks the whole stream.
func (r *rig) require() *check.Stream {
	r.Helper()
	return r.check.Require(r)
}

// object of the test's namespace.
func (r *rig) object(resource schema.GroupVersionResource, name string) check.Object {
	return check.Object{Group: resource.Group, Resource: resource.Resource, Namespace: r.ns, Name: name}
}

// summary returns what the messages say: "added watch".
func summary(messages []*check.Message) []string {
	lines := make([]string, len(messages))
	for i, m := range messages {
		lines[i] = m.Kind + " " + m.Reason
	}
	return lines
}

// requireStory ends the test unless an object's messages are as wanted.
func (r *rig) requireStory(s *check.Stream, o check.Object, want ...string) []*check.Message {
	r.Helper()
	messages := s.History(o)
	if got := summary(messages); strings.Join(got, ", ") != strings.Join(want, ", ") {
		r.Fatalf("the messages about %s are\n%q, want\n%q", o, got, want)
	}
	return messages
}

// awaitMessages waits until the stream has at least n messages about an object.
func (r *rig) awaitMessages(o check.Object, n int) {
	r.Helper()
	harness.Eventually(r, harness.Patience, func() error {
		s, err := r.readStream(r.Context())
		if err != nil {
			return err
		}
		if got := len(s.History(o)); got < n {
			return fmt.Errorf("%d messages about %s, want %d", got, o, n)
		}
		return nil
	})
}

func (r *rig) readStream(ctx context.Context) (*check.Stream, error) {
	return check.Read(ctx, r.check.JS, "KUBE", "kube", "main")
}

// objectMessages returns how many messages about objects the stream holds.
func (r *rig) objectMessages() int {
	r.Helper()
	return len(r.check.Read(r).Objects(""))
}

// stream returns the configuration of the bridge's stream as a user would make it, with changes.
func (r *rig) stream(change func(*jetstream.StreamConfig)) jetstream.StreamConfig {
	config := jetstream.StreamConfig{
		Name:              "KUBE",
		Subjects:          []string{"kube.main", "kube.main.>"},
		MaxMsgsPerSubject: -1,
		AllowRollup:       true, AllowMsgTTL: true, AllowDirect: true, AllowAtomicPublish: true,
	}
	if change != nil {
		change(&config)
	}
	return config
}

// onPort takes a NATS server to a port.
func onPort(port int) func(*server.Options) { return func(o *server.Options) { o.Port = port } }
