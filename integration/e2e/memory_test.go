package e2e

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/deltabridge/deltabridge/integration/harness"
)

// resident returns a process's resident memory in bytes.
func resident(t *testing.T, pid int) int64 {
	t.Helper()
	f, err := os.Open(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		if runtime.GOOS != "linux" && os.Getenv("CI") == "" {
			t.Skip("the resident memory of a process is read from /proc, which this system has not")
		}
		t.Fatal("the resident memory of the bridge:", err)
	}
	defer func() { _ = f.Close() }()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if text, ok := strings.CutPrefix(lines.Text(), "VmRSS:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(text, "kB")), 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return kib << 10
		}
	}
	t.Fatal("no VmRSS")
	return 0
}

// churn updates config maps m-0 to m-(objects-1) in turn, rounds times each, with size bytes of data.
func (r *rig) churn(objects, rounds, size int) {
	r.Helper()
	config := rest.CopyConfig(r.plane.Config())
	config.QPS, config.Burst = -1, -1
	client := dynamic.NewForConfigOrDie(config).Resource(configMaps).Namespace(r.ns)
	data := strings.Repeat("x", size)
	group, ctx := errgroup.WithContext(r.Context())
	const writers = 8
	for writer := range writers {
		group.Go(func() error {
			for i := writer; i < objects*rounds; i += writers {
				patch := fmt.Sprintf(`{"data":{"value":"%d","filler":%q}}`, i, data)
				if _, err := client.Patch(ctx, fmt.Sprintf("m-%d", i%objects), types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		r.Fatal(err)
	}
}

// held reports what /statusz says of the resource's watch.
func held(ctx context.Context, b *harness.Bridge, t *testing.T, resource string) bool {
	t.Helper()
	for _, entry := range b.Status(t)["resources"].([]any) {
		if status := entry.(map[string]any); status["resource"] == resource {
			return status["held"] == true
		}
	}
	t.Fatalf("/statusz does not have %s", resource)
	return false
}

// TestBrokerAwayUnderLoad is case M1: the broker is away while 1,000 objects change again and again. Memory stays within
// the buffer; afterwards the last state of each object is in the stream, and what the API server has forgotten is marked.
func TestBrokerAwayUnderLoad(t *testing.T) {
	const objects, size = 1000, 3000
	r := newRig(t, configMaps)
	r.set("BRIDGE_BUFFER_BYTES", "4Mi")
	for i := range objects {
		r.create(configMaps, r.configMap(fmt.Sprintf("m-%d", i), "0"))
	}
	b := r.launch()
	b.WaitReady(t)
	r.churn(objects, 2, size)
	r.require()
	r.nats.Stop()

	r.churn(objects, 2, size) // more than the buffer holds
	harness.Eventually(t, harness.Patience, func() error {
		if !held(t.Context(), b, t, "configmaps") {
			return fmt.Errorf("the watch is not held")
		}
		return nil
	})
	before := resident(t, b.PID())
	r.churn(objects, 20, size)
	if pending := b.Metric(t, "deltabridge_pending_bytes"); pending > 4<<20 {
		t.Errorf("%.0f bytes of payload wait, more than BRIDGE_BUFFER_BYTES", pending)
	}
	// 60 MB of payload came meanwhile; what may grow is the runtime's own.
	if grown := resident(t, b.PID()) - before; grown > 16<<20 {
		t.Errorf("resident memory has grown by %d MiB in the outage", grown>>20)
	}
	if err := r.plane.RestartAPIServer(t.Context()); err != nil { // so that it has forgotten what it had to tell
		t.Fatal(err)
	}
	if err := r.nats.Start(); err != nil {
		t.Fatal(err)
	}
	r.check.JS = r.nats.JetStream(t)
	b.WaitReady(t)
	s := r.require()
	gaps := 0
	for i := range objects {
		history := s.History(r.object(configMaps, fmt.Sprintf("m-%d", i)))
		if last := history[len(history)-1]; last.Reason == "relist" {
			requireGap(t, last, history[len(history)-2].RV, last.RV)
			gaps++
		}
	}
	if gaps == 0 {
		t.Error("no message says that versions are missing")
	}
	if held(t.Context(), b, t, "configmaps") {
		t.Error("the watch is still held")
	}
}

// TestEveryVersionAfterAnOutage: what the API server still has when the broker comes back is published version by version,
// although only a fraction of it fits into memory.
func TestEveryVersionAfterAnOutage(t *testing.T) {
	const objects, rounds, size = 50, 60, 3000
	r := newRig(t, configMaps)
	r.set("BRIDGE_BUFFER_BYTES", "1Mi")
	for i := range objects {
		r.create(configMaps, r.configMap(fmt.Sprintf("m-%d", i), "0"))
	}
	b := r.start()
	r.nats.Stop()
	r.churn(objects, rounds, size)
	harness.Eventually(t, harness.Patience, func() error {
		if !held(t.Context(), b, t, "configmaps") {
			return fmt.Errorf("the watch is not held")
		}
		return nil
	})
	if err := r.nats.Start(); err != nil {
		t.Fatal(err)
	}
	r.check.JS = r.nats.JetStream(t)
	b.WaitReady(t)
	s := r.require()
	for i := range objects {
		if n := len(s.History(r.object(configMaps, fmt.Sprintf("m-%d", i)))); n != rounds+1 {
			t.Errorf("m-%d has %d messages, want one for each of its %d versions", i, n, rounds+1)
		}
	}
}
