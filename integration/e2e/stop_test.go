package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/deltabridge/deltabridge/integration/harness"
)

// TestSignalDrains holds back the broker's answers, so that the drain has something to wait for.
func TestSignalDrains(t *testing.T) {
	r := newRig(t, configMaps)
	r.set("BRIDGE_SHUTDOWN_GRACE", "10m")
	proxy := harness.StartNATSProxy(t, r.nats)
	r.set("NATS_URL", proxy.URL())
	b := r.start()

	// From here on everything stands still between the bridge and NATS.
	gate := make(chan struct{})
	open := sync.OnceFunc(func() { close(gate) })
	defer open()
	proxy.Script(func(harness.Published) harness.PublishAction {
		<-gate
		return harness.Pass
	})
	const objects = 50
	for i := range objects {
		r.create(configMaps, r.configMap(fmt.Sprintf("c-%d", i), "0"))
	}
	harness.Eventually(t, harness.Patience, func() error {
		if n := b.Metric(t, "deltabridge_pending_messages"); n < objects {
			return fmt.Errorf("%v messages are pending", n)
		}
		return nil
	})
	if err := b.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, harness.Patience, func() error {
		if status, text := b.Readyz(t); status == http.StatusOK {
			return fmt.Errorf("still ready:\n%s", text)
		}
		return nil
	})
	harness.Never(t, time.Second, func() error {
		if !b.Running() {
			return errors.New("the bridge ended with changes pending")
		}
		return b.Livez(t.Context())
	})
	open()
	if code := b.WaitExit(t, harness.Patience); code != 0 {
		t.Errorf("the exit code is %d", code)
	}
	r.require()
	if n := r.objectMessages(); n < objects {
		t.Errorf("%d messages for %d objects", n, objects)
	}
}

// TestSignalUnderLoad stops and starts the bridge while the cluster changes.
func TestSignalUnderLoad(t *testing.T) {
	r := newRig(t, configMaps)
	b := r.start()
	for round := range 4 {
		for i := range 30 {
			r.create(configMaps, r.configMap(fmt.Sprintf("c-%d-%d", round, i), "0"))
		}
		r.stop(b)
		b = r.start()
	}
	r.require()
}

// stalled returns a bridge that has a change to publish and no broker to take it.
func stalled(t *testing.T, grace string) (*rig, *harness.Bridge) {
	t.Helper()
	r := newRig(t, configMaps)
	r.set("BRIDGE_SHUTDOWN_GRACE", grace)
	b := r.start()
	r.nats.Stop()
	r.create(configMaps, r.configMap("a", "0"))
	harness.Eventually(t, harness.Patience, func() error {
		if b.Metric(t, "deltabridge_pending_messages") == 0 {
			return errors.New("nothing is pending")
		}
		return nil
	})
	if err := b.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	return r, b
}

func TestSecondSignalExitsAtOnce(t *testing.T) {
	_, b := stalled(t, "1h")
	harness.Never(t, 2*time.Second, func() error {
		if !b.Running() {
			return errors.New("the bridge ended on the first signal")
		}
		return nil
	})
	if err := b.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := b.WaitExit(t, harness.Patience); code == 0 {
		t.Error("the exit code says that all is well")
	}
}

func TestGraceEnds(t *testing.T) {
	r, b := stalled(t, "2s")
	if code := b.WaitExit(t, harness.Patience); code != 1 {
		t.Errorf("exit code %d for a drain that was cut, want 1", code)
	}
	said := false
	for _, line := range b.Log() {
		said = said || line.Level() == "WARN" && line["changes"] == 1.0
	}
	if !said {
		t.Errorf("the log does not count what was left:\n%s", b.Tail(5))
	}
	if err := r.nats.Start(); err != nil {
		t.Fatal(err)
	}
	r.start() // what was cut is sent after the restart
	r.requireStory(r.require(), r.object(configMaps, "a"), "added watch")
}
