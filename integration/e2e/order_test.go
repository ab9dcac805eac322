package e2e

import (
	"context"
	"flag"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/deltabridge/deltabridge/integration/check"
	"github.com/deltabridge/deltabridge/integration/harness"
	"github.com/deltabridge/deltabridge/integration/naive"
)

var loadTime = flag.Duration("load", 20*time.Second, "how long the cluster is changed while the stream's leaders step down")

// TestOneVersionFails is case O1: version 10 of an object fails once, in each of the ways in which a publish can fail,
// while later ones wait.
func TestOneVersionFails(t *testing.T) {
	for name, action := range map[string]harness.PublishAction{
		"lost on its way":         harness.Drop,
		"acknowledgement lost":    harness.DropAck,
		"refused by the broker":   harness.Refuse,
		"connection cut after it": harness.Cut,
	} {
		t.Run(name, func(t *testing.T) {
			const versions, later = 10, 5
			r := newRig(t, configMaps)
			proxy := harness.StartNATSProxy(t, r.nats)
			r.set("NATS_URL", proxy.URL())
			b := r.start()
			r.create(configMaps, r.configMap("a", "1"))
			r.setValue("a", 1, versions-2)
			r.awaitMessages(r.object(configMaps, "a"), versions-1)

			subject := r.object(configMaps, "a").Subject("kube.main")
			waiting := make(chan struct{})
			failed := false
			proxy.Script(func(m harness.Published) harness.PublishAction {
				if m.Subject != subject || failed {
					return harness.Pass
				}
				failed = true
				<-waiting // the connection stands still until there are later versions
				return action
			})
			r.setValue("a", versions-1, 1+later)
			close(waiting)
			s := r.require()
			if n := len(s.History(r.object(configMaps, "a"))); n != versions+later {
				t.Errorf("%d messages for %d versions", n, versions+later)
			}
			if !failed {
				t.Error("nothing failed")
			}
			if n := b.Metric(t, "deltabridge_publish_retries_total"); n == 0 {
				t.Error("no retry was counted")
			}
		})
	}
}

// The control's stream.
const (
	controlStream = "CONTROL"
	controlPrefix = "control"
)

// startControl runs the naive publisher on a stream of its own, beside the bridge, until the returned function is
// called.
func (r *rig) startControl(replicas int) (p *naive.Publisher, stop func()) {
	r.Helper()
	config := naive.StreamConfig(controlStream, controlPrefix, "main", replicas)
	if _, err := r.check.JS.CreateStream(r.Context(), config); err != nil {
		r.Fatal(err)
	}
	p = naive.New(naive.Options{
		Client: r.client, JS: r.check.JS, Resources: r.check.Selection.Resources,
		Stream: controlStream, Prefix: controlPrefix, Cluster: "main",
	})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		// An acknowledgement that is lost is never asked for again, so that waiting for all of them may be in vain.
		if err := p.Run(ctx, 5*time.Second); err != nil {
			r.Errorf("the control failed: %v", err)
		}
	})
	stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
	})
	r.Cleanup(stop)
	return p, stop
}

// control returns the check of the control's stream.
func (r *rig) control(timeout time.Duration) check.Case {
	c := r.check
	c.Stream, c.Prefix, c.Timeout = controlStream, controlPrefix, timeout
	return c
}

// TestControlIsRightWithoutFaults shows that what the control does wrong below is the faults' doing, and that the check
// reads the control's messages as it reads the bridge's.
func TestControlIsRightWithoutFaults(t *testing.T) {
	r := newRig(t, configMaps)
	r.create(configMaps, r.configMap("before", "0"))
	r.record()
	r.startControl(1)
	harness.Eventually(t, harness.Patience, func() error {
		if s := r.control(0).Read(t); len(s.History(r.object(configMaps, "before"))) == 0 {
			return fmt.Errorf("the control has not begun")
		}
		return nil
	})
	r.create(configMaps, r.configMap("a", "0"))
	r.setValue("a", 0, 50)
	r.create(configMaps, r.configMap("b", "0"))
	r.delete(configMaps, r.ns, "b")
	_, report := r.control(harness.Patience).Run(t)
	if report.Messages < 54 || report.Recorded < 53 {
		t.Errorf("checked too little: %s", report)
	}
	if n := report.Unconditional; n != report.Messages || n != len(report.Violations) {
		t.Errorf("want every append unconditional, and nothing else: %s", report)
	}
}

// TestLeaderStepsDown is case O2.
func TestLeaderStepsDown(t *testing.T) {
	const objects, writers = 40, 4
	cluster := harness.StartNATSCluster(t, 3)
	r := newRigWithout(t, configMaps)
	r.check.JS = cluster.JetStream(t)
	r.set("NATS_URL", cluster.URLs(), "BRIDGE_STREAM_REPLICAS", "3")
	for i := range objects {
		r.create(configMaps, with(r.configMap(fmt.Sprintf("o-%d", i), "0"), strings.Repeat("x", 1000), "data", "padding"))
	}
	b := r.start()
	control, stopControl := r.startControl(3)
	harness.Eventually(t, harness.Patience, func() error {
		if control.Published() < objects {
			return fmt.Errorf("the control has published %d messages", control.Published())
		}
		return nil
	})

	ctx, cancel := context.WithTimeout(t.Context(), *loadTime)
	defer cancel()
	var running sync.WaitGroup
	var changes, stepDowns atomic.Int64
	for w := range writers {
		running.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				name := fmt.Sprintf("o-%d", w+writers*(i%(objects/writers)))
				_, err := r.client.Resource(configMaps).Namespace(r.ns).Patch(ctx, name, types.MergePatchType,
					fmt.Appendf(nil, `{"data":{"value":"%d"}}`, i+1), metav1.PatchOptions{})
				if err != nil && ctx.Err() == nil {
					t.Errorf("change %s: %v", name, err)
					return
				}
				changes.Add(1)
			}
		})
	}
	running.Go(func() {
		for ctx.Err() == nil {
			for _, stream := range []string{"KUBE", controlStream} {
				// There may be no leader at the moment; what counts is how often it worked.
				if err := cluster.StepDown(stream); err == nil {
					stepDowns.Add(1)
				}
			}
			select {
			case <-time.After(700 * time.Millisecond):
			case <-ctx.Done():
			}
		}
	})
	running.Wait()
	t.Logf("%d changes, %d times a leader stepped down", changes.Load(), stepDowns.Load())
	if changes.Load() < 100 || stepDowns.Load() < 4 {
		t.Fatal("that is too little to show anything")
	}

	s := r.require()
	if n := len(s.Objects("")); n < int(changes.Load()) {
		t.Errorf("%d messages for %d changes", n, changes.Load())
	}
	t.Logf("the bridge sent %v times again", b.Metric(t, "deltabridge_publish_retries_total"))

	stopControl()
	_, report := r.control(5 * time.Second).Run(t)
	t.Logf("the control: %s", report)
	broken := report.Only(check.Inversion, check.Duplicate, check.Lost, check.LostDelete, check.Missing, check.Stale)
	if len(broken) == 0 {
		t.Error("the control broke nothing, so that the bridge's success proves nothing")
	}
}
