package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"

	"github.com/deltabridge/deltabridge/integration/harness"
)

// restartObjects is how many unchanged objects a restart meets.
const restartObjects = 50_000

// restartNamespace is where they are.
const restartNamespace = "restart"

// restarts measures how long a bridge takes that is started again and finds nothing changed, beside the first sync of an
// informer that lists. It makes its objects when it is first used.
type restarts struct {
	whole    *wholeBridge
	nats     string
	prepared bool
	stream   jetstream.Stream
}

func (r *restarts) launch() (*harness.Bridge, error) {
	path, err := harness.BridgeBinary()
	if err != nil {
		return nil, err
	}
	return harness.LaunchBridge(path, map[string]string{
		"KUBECONFIG": r.whole.plane.Kubeconfig(), "NATS_URL": r.nats, "BRIDGE_RESOURCES": "configmaps",
		"BRIDGE_NAMESPACES": restartNamespace, "BRIDGE_STREAM": "RESTART", "BRIDGE_SUBJECT_PREFIX": "restart",
	})
}

// run launches a bridge, waits until it is ready, and stops it; wall and CPU are those until it was ready.
func (r *restarts) run(ctx context.Context) (result, error) {
	begin := time.Now()
	b, err := r.launch()
	if err != nil {
		return result{}, err
	}
	err = eventually(ctx, func() error { return b.Ready(ctx) })
	res := result{Events: restartObjects, Wall: time.Since(begin), CPU: processCPU(b.PID())}
	err = errors.Join(err, b.Signal(syscall.SIGINT))
	select {
	case <-b.Done():
	case <-time.After(time.Minute):
		err = errors.Join(err, errors.New("the bridge does not stop"), b.Kill())
	}
	return res, err
}

// prepare makes the objects and has a bridge publish them.
func (r *restarts) prepare(ctx context.Context) error {
	if r.prepared {
		return nil
	}
	fmt.Fprintf(os.Stderr, "creating %d objects and publishing them\n", restartObjects)
	config := r.whole.plane.Config()
	config.QPS, config.Burst = -1, -1
	client := dynamic.NewForConfigOrDie(config)
	namespace := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": restartNamespace},
	}}
	if _, err := client.Resource(configMaps.GroupVersion().WithResource("namespaces")).Create(ctx, namespace, metav1.CreateOptions{}); err != nil {
		return err
	}
	group, creating := errgroup.WithContext(ctx)
	const writers = 8
	for writer := range writers {
		group.Go(func() error {
			for i := writer; i < restartObjects; i += writers {
				object, err := unstructuredOf(configMap(i))
				if err != nil {
					return err
				}
				object.SetNamespace(restartNamespace)
				if _, err := client.Resource(configMaps).Namespace(restartNamespace).Create(creating, object, metav1.CreateOptions{}); err != nil {
					return fmt.Errorf("create %s: %w", object.GetName(), err)
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	if _, err := r.run(ctx); err != nil {
		return err
	}
	nc, err := nats.Connect(r.nats)
	if err != nil {
		return err
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	r.stream, err = js.Stream(ctx, "RESTART")
	r.prepared = err == nil
	return err
}

// published returns how many messages about objects there are.
func (r *restarts) published(ctx context.Context) (uint64, error) {
	info, err := r.stream.Info(ctx, jetstream.WithSubjectFilter("restart.*.*.*.*.*"))
	if err != nil {
		return 0, err
	}
	n := uint64(0)
	for _, messages := range info.State.Subjects {
		n += messages
	}
	return n, nil
}

// bridge starts the bridge again; it is an error if that publishes anything.
func (r *restarts) bridge(ctx context.Context) (result, error) {
	if err := r.prepare(ctx); err != nil {
		return result{}, err
	}
	before, err := r.published(ctx)
	if err != nil {
		return result{}, err
	}
	res, err := r.run(ctx)
	if err != nil {
		return result{}, err
	}
	after, err := r.published(ctx)
	if err == nil && (before < restartObjects || after != before) {
		err = fmt.Errorf("%d messages before the restart, %d after it, of %d unchanged objects", before, after, restartObjects)
	}
	return res, err
}

// informer is a dynamic informer's first sync of the same objects.
func (r *restarts) informer(ctx context.Context) (result, error) {
	if err := r.prepare(ctx); err != nil {
		return result{}, err
	}
	config := r.whole.plane.Config()
	config.QPS, config.Burst = -1, -1
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	return measure(restartObjects, func() error {
		factory := dynamicinformer.NewFilteredDynamicSharedInformerFactory(dynamic.NewForConfigOrDie(config), 0, restartNamespace, nil)
		informer := factory.ForResource(configMaps).Informer()
		factory.Start(ctx.Done())
		for resource, synced := range factory.WaitForCacheSync(ctx.Done()) {
			if !synced {
				return fmt.Errorf("%s did not sync", resource)
			}
		}
		if n := len(informer.GetStore().ListKeys()); n < restartObjects {
			return fmt.Errorf("the informer has %d objects", n)
		}
		cancel()
		factory.Shutdown()
		return nil
	})
}
