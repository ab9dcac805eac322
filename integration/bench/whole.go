package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/deltabridge/deltabridge/integration/harness"
)

// wholeBridge is a control plane and the bridge's own binary. A backlog is made while the bridge is stopped (SIGSTOP): its
// watch is then either buffered, or ended by the API server and opened again from the last version. Both are what happens
// to a bridge that was away for a while.
type wholeBridge struct {
	plane  *harness.ControlPlane
	bridge *harness.Bridge
	nc     *nats.Conn
	stream jetstream.Stream
	names  []string
	client dynamic.ResourceInterface
}

var configMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}

const backlogObjects = 500

func newWholeBridge(ctx context.Context, natsURL string) (*wholeBridge, error) {
	fmt.Fprintln(os.Stderr, "starting a control plane and the bridge")
	plane, err := harness.StartControlPlane(ctx, harness.ControlPlaneConfig{})
	if err != nil {
		return nil, err
	}
	w := &wholeBridge{plane: plane}
	if err := w.start(ctx, natsURL); err != nil {
		w.stop()
		return nil, err
	}
	return w, nil
}

func (w *wholeBridge) start(ctx context.Context, natsURL string) error {
	config := w.plane.Config()
	config.QPS, config.Burst = -1, -1
	w.client = dynamic.NewForConfigOrDie(rest.CopyConfig(config)).Resource(configMaps).Namespace("default")
	for i := range backlogObjects {
		object, err := unstructuredOf(configMap(i))
		if err != nil {
			return err
		}
		if _, err := w.client.Create(ctx, object, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("create %s: %w", object.GetName(), err)
		}
		w.names = append(w.names, object.GetName())
	}
	path, err := harness.BridgeBinary()
	if err != nil {
		return err
	}
	if w.bridge, err = harness.LaunchBridge(path, map[string]string{
		"KUBECONFIG": w.plane.Kubeconfig(), "NATS_URL": natsURL, "BRIDGE_RESOURCES": "configmaps", "BRIDGE_STREAM_HISTORY": "-1",
		"BRIDGE_NAMESPACES": "default",
	}); err != nil {
		return err
	}
	if err = eventually(ctx, func() error { return w.bridge.Ready(ctx) }); err != nil {
		return err
	}
	if w.nc, err = nats.Connect(natsURL); err != nil {
		return err
	}
	js, err := jetstream.New(w.nc)
	if err != nil {
		return err
	}
	w.stream, err = js.Stream(ctx, "KUBE")
	return err
}

func (w *wholeBridge) stop() {
	var errs []error
	if w.bridge != nil {
		errs = append(errs, w.bridge.Signal(syscall.SIGCONT), w.bridge.Stop(30*time.Second))
	}
	if w.nc != nil {
		w.nc.Close()
	}
	if err := errors.Join(append(errs, w.plane.Stop(), harness.Cleanup())...); err != nil {
		fmt.Fprintln(os.Stderr, "bench: stopping the bridge and the control plane:", err)
	}
}

func (w *wholeBridge) messages(ctx context.Context) (int, error) {
	info, err := w.stream.Info(ctx)
	if err != nil {
		return 0, err
	}
	return int(info.State.Msgs), nil
}

// drain stops the bridge, makes as many updates, and measures from its going on until all of them are in the stream. A
// backlog that did not arrive version by version is an error: it would have been another measurement.
func (w *wholeBridge) drain(ctx context.Context, events int) (result, error) {
	before, err := w.messages(ctx)
	if err != nil {
		return result{}, err
	}
	if err = w.bridge.Signal(syscall.SIGSTOP); err != nil {
		return result{}, err
	}
	err = w.update(ctx, events)
	cpu := processCPU(w.bridge.PID())
	begin := time.Now()
	if err = errors.Join(err, w.bridge.Signal(syscall.SIGCONT)); err != nil {
		return result{}, err
	}
	arrived := 0
	for arrived < events {
		if time.Since(begin) > 3*time.Minute {
			return result{}, fmt.Errorf("only %d of %d updates arrived; the rest was lost to a relist", arrived, events)
		}
		time.Sleep(2 * time.Millisecond)
		now, err := w.messages(ctx)
		if err != nil {
			return result{}, err
		}
		arrived = now - before
	}
	return result{Events: events, Wall: time.Since(begin), CPU: processCPU(w.bridge.PID()) - cpu}, nil
}

// update makes events updates, as fast as the API server takes them.
func (w *wholeBridge) update(ctx context.Context, events int) error {
	group, ctx := errgroup.WithContext(ctx)
	const writers = 8
	for writer := range writers {
		group.Go(func() error {
			for i := writer; i < events; i += writers {
				patch := fmt.Sprintf(`{"data":{"round":"%d"}}`, rand.Int64())
				if _, err := w.client.Patch(ctx, w.names[i%len(w.names)], types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
					return fmt.Errorf("update %s: %w", w.names[i%len(w.names)], err)
				}
			}
			return nil
		})
	}
	return group.Wait()
}

func unstructuredOf(o any) (*unstructured.Unstructured, error) {
	object, err := toUnstructured(o)
	if err != nil {
		return nil, err
	}
	u := &unstructured.Unstructured{Object: object}
	u.SetResourceVersion("")
	u.SetUID("")
	u.SetManagedFields(nil)
	return u, nil
}

// processCPU returns another process's user and system time.
func processCPU(pid int) time.Duration {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	fields := strings.Fields(rest)
	const utime, stime, ticksPerSecond = 11, 12, 100
	user, _ := strconv.Atoi(fields[utime])
	system, _ := strconv.Atoi(fields[stime])
	return time.Duration(user+system) * time.Second / ticksPerSecond
}

func eventually(ctx context.Context, f func() error) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		err := f()
		if err == nil || ctx.Err() != nil {
			return err
		}
		time.Sleep(50 * time.Millisecond)
	}
}
