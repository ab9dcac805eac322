package chaos

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"k8s.io/client-go/dynamic"

	"github.com/deltabridge/deltabridge/integration/harness"
)

// natsNodes is how many servers keep the stream.
const natsNodes = 3

// Arena is the servers on which rounds are fought out, one after the other: a control plane, a NATS cluster, and a proxy
// in front of each server. Bridges reach them through the proxies only; the load, the recording and the checks do not use
// those.
type Arena struct {
	// Lenient leaves out what is a matter of form: a bridge of somebody else's need not have it.
	Lenient bool

	plane      *harness.ControlPlane
	client     dynamic.Interface
	nats       *harness.NATSCluster
	js         jetstream.JetStream
	apiProxy   *harness.TCPProxy
	natsProxy  []*harness.TCPProxy
	kubeconfig string // through the proxy
	rounds     int
}

// NewArena starts the servers. The test's end stops them.
func NewArena(t testing.TB) *Arena {
	t.Helper()
	plane, err := harness.StartControlPlane(t.Context(), harness.ControlPlaneConfig{APIServerFlags: []string{
		"--storage-media-type=application/json",        // so that the recording can read the store
		"--shutdown-watch-termination-grace-period=2s", // a restart is a fault here, not a rollout
	}})
	if err != nil {
		t.Fatalf("start the control plane: %v", err)
	}
	a := &Arena{plane: plane, client: plane.Dynamic()}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the control plane's log ends:\n%s", plane.Log())
		}
		if err := plane.Stop(); err != nil {
			t.Errorf("stop the control plane: %v", err)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), harness.Patience)
	defer cancel()
	if err := createCustomResource(ctx, a.client); err != nil {
		t.Fatal(err)
	}
	a.nats = harness.StartNATSCluster(t, natsNodes, harness.HideNodes)
	a.js = a.nats.JetStream(t)
	a.apiProxy = harness.StartTCPProxy(t, plane.APIAddr())
	a.kubeconfig = plane.KubeconfigVia(t, a.apiProxy.Addr())
	for _, node := range a.nats.Nodes {
		a.natsProxy = append(a.natsProxy, harness.StartTCPProxy(t, strings.TrimPrefix(node.URL(), "nats://")))
	}
	return a
}

// natsURLs returns the proxies' addresses.
func (a *Arena) natsURLs() string {
	var urls []string
	for _, p := range a.natsProxy {
		urls = append(urls, "nats://"+p.Addr())
	}
	return strings.Join(urls, ",")
}

// clean removes what a round leaves.
func (a *Arena) clean(ctx context.Context, namespace string, streams ...string) error {
	errs := []error{deleteAll(ctx, a.client, namespace)}
	for _, stream := range streams {
		if err := a.js.DeleteStream(ctx, stream); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
