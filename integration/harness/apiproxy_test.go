package harness

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"
)

const (
	configMapsPath = "/api/v1/configmaps"
	defaultPath    = "/api/v1/namespaces/default/configmaps"
)

func remove(t *testing.T, client dynamic.ResourceInterface, name string) {
	t.Helper()
	// The test's own context is over when its cleanups run.
	if err := client.Delete(cleanupContext(t), name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		t.Error(err)
	}
}

// update sets a ConfigMap's value.
func update(t *testing.T, plane *ControlPlane, name, value string) string {
	t.Helper()
	client := plane.Dynamic().Resource(configMaps).Namespace(metav1.NamespaceDefault)
	u, err := client.Update(t.Context(), configMap(name, value), metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return u.GetResourceVersion()
}

// observer is an informer behind a proxy that notes the versions it is told of.
type observer struct {
	mu       sync.Mutex
	versions map[string]int
	synced   cache.InformerSynced
}

func observe(t *testing.T, proxy *APIProxy) *observer {
	t.Helper()
	client := dynamic.NewForConfigOrDie(proxy.Config()).Resource(configMaps)
	o := &observer{versions: map[string]int{}}
	informer := cache.NewSharedInformer(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			return client.List(ctx, options)
		},
		WatchFuncWithContext: client.Watch,
	}, &unstructured.Unstructured{}, 0)
	note := func(object any) {
		if u, ok := object.(*unstructured.Unstructured); ok {
			o.mu.Lock()
			o.versions[u.GetResourceVersion()]++
			o.mu.Unlock()
		}
	}
	if err := informer.SetWatchErrorHandler(func(*cache.Reflector, error) {}); err != nil {
		t.Fatal(err)
	}
	handler, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: note, UpdateFunc: func(_, object any) { note(object) },
	})
	if err != nil {
		t.Fatal(err)
	}
	o.synced = handler.HasSynced
	done := make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() { informer.Run(done) })
	t.Cleanup(func() {
		close(done)
		running.Wait()
	})
	Eventually(t, Patience, func() error {
		if !o.synced() {
			return errors.New("the informer has not synced")
		}
		return nil
	})
	return o
}

// sees waits until the informer has told of a version.
func (o *observer) sees(t *testing.T, version string) {
	t.Helper()
	Eventually(t, Patience, func() error {
		if o.count(version) == 0 {
			return fmt.Errorf("version %s was not seen", version)
		}
		return nil
	})
}

func (o *observer) count(version string) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.versions[version]
}

func TestProxyClosesWatchesAfterSomeEvents(t *testing.T) {
	plane := Plane(t)
	create(t, plane, "closed", "0")
	proxy := plane.StartProxy(t)
	o := observe(t, proxy)
	lists := proxy.Count("get", configMapsPath)
	proxy.CloseWatchesAfter(5)
	for i := range 23 {
		o.sees(t, update(t, plane, "closed", fmt.Sprint(i+1)))
	}
	watches := proxy.Watches(configMapsPath)
	if len(watches) < 4 {
		t.Fatalf("%d watches for 23 events, 5 each", len(watches))
	}
	for i, w := range watches[1:] {
		before := watches[i]
		if !before.Closed || before.Events > 5 && i > 0 {
			t.Errorf("watch %d: closed %t after %d events", i, before.Closed, before.Events)
		}
		if w.ResourceVersion != before.LastVersion {
			t.Errorf("watch %d begins at %s, the one before ended at %s", i+1, w.ResourceVersion, before.LastVersion)
		}
	}
	if now := proxy.Count("get", configMapsPath); now != lists {
		t.Errorf("%d lists more", now-lists)
	}
}

func TestProxyCorruptsAFrame(t *testing.T) {
	plane := Plane(t)
	create(t, plane, "corrupt", "0")
	proxy := plane.StartProxy(t)
	o := observe(t, proxy)
	proxy.CorruptFrame(configMapsPath)
	o.sees(t, update(t, plane, "corrupt", "1")) // on the watch that follows
	if n := len(proxy.Watches(configMapsPath)); n < 2 {
		t.Errorf("the informer got along with %d watches", n)
	}
}

func TestProxyBlackHolesWatches(t *testing.T) {
	plane := Plane(t)
	create(t, plane, "hole", "0")
	proxy := plane.StartProxy(t)
	o := observe(t, proxy)
	proxy.BlackHoleWatches(true)
	version := update(t, plane, "hole", "1")
	Never(t, time.Second, func() error {
		if o.count(version) > 0 {
			return errors.New("an event came out of the black hole")
		}
		return nil
	})
	proxy.BlackHoleWatches(false)
	o.sees(t, version)
}

func TestProxyAnswersWithFaults(t *testing.T) {
	proxy := Plane(t).StartProxy(t)
	list := func() error {
		client := dynamic.NewForConfigOrDie(proxy.Config()).Resource(configMaps).Namespace(metav1.NamespaceDefault)
		_, err := client.List(t.Context(), metav1.ListOptions{})
		return err
	}
	for _, c := range []struct {
		fault Fault
		is    func(error) bool
	}{
		{Fault{Status: 403, Reason: metav1.StatusReasonForbidden}, apierrors.IsForbidden},
		{Fault{Status: 410, Reason: metav1.StatusReasonExpired}, apierrors.IsResourceExpired},
		{Fault{Status: 500, Reason: metav1.StatusReasonInternalError}, apierrors.IsInternalError},
		{Fault{Status: 503, Reason: metav1.StatusReasonServiceUnavailable}, apierrors.IsServiceUnavailable},
		{Fault{Status: 504, Reason: metav1.StatusReasonTimeout}, apierrors.IsTimeout},
	} {
		c.fault.Path = defaultPath
		proxy.Fail(c.fault)
		if err := list(); !c.is(err) {
			t.Errorf("%d: got %v", c.fault.Status, err)
		}
		proxy.Heal()
		if err := list(); err != nil {
			t.Errorf("healed from %d: %v", c.fault.Status, err)
		}
	}
	before := proxy.Count("get", defaultPath)
	proxy.Fail(Fault{
		Verb: "get", Path: "/api/v1/*", Status: 429, Reason: metav1.StatusReasonTooManyRequests, RetryAfter: 1, Times: 2,
	})
	if err := list(); err != nil { // the client tries again by itself
		t.Errorf("after two answers of 429: %v", err)
	}
	if n := proxy.Count("get", defaultPath) - before; n != 3 {
		t.Errorf("%d requests, want 3", n)
	}
	statuses := map[int]int{}
	for _, r := range proxy.Requests()[before:] {
		statuses[r.Status]++
	}
	if statuses[429] != 2 || statuses[200] != 1 {
		t.Errorf("recorded %v", statuses)
	}
}

func TestProxyRefusesConnections(t *testing.T) {
	plane := Plane(t)
	create(t, plane, "refused", "0")
	proxy := plane.StartProxy(t)
	o := observe(t, proxy)
	proxy.Refuse()
	client := dynamic.NewForConfigOrDie(proxy.Config()).Resource(configMaps).Namespace(metav1.NamespaceDefault)
	if _, err := client.List(t.Context(), metav1.ListOptions{}); err == nil {
		t.Error("a connection was accepted")
	}
	version := update(t, plane, "refused", "1")
	if err := proxy.Accept(); err != nil {
		t.Fatal(err)
	}
	o.sees(t, version)
}
