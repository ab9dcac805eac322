package chart

import (
	"os"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"

	"github.com/deltabridge/deltabridge/integration/harness"
)

// api is the API server that the tests share, and what finds the resource of a kind there.
type api struct {
	plane  *harness.ControlPlane
	mapper *restmapper.DeferredDiscoveryRESTMapper
}

// startAPI returns the shared API server, with the definitions in testdata and the namespaces that values name.
func startAPI(t *testing.T) *api {
	t.Helper()
	plane := harness.Plane(t)
	client, err := discovery.NewDiscoveryClientForConfig(plane.Config())
	if err != nil {
		t.Fatal(err)
	}
	a := &api{plane: plane, mapper: restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(client))}
	definitions, err := os.ReadFile("testdata/crds.yaml")
	if err != nil {
		t.Fatal(err)
	}
	objects := parse(t, string(definitions))
	for _, name := range []string{releaseNamespace, "team-a", "team-b"} {
		namespace := &unstructured.Unstructured{}
		namespace.SetAPIVersion("v1")
		namespace.SetKind("Namespace")
		namespace.SetName(name)
		objects = append(objects, namespace)
	}
	for _, o := range objects {
		if _, err := a.resource(t, o).Create(t.Context(), o, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatalf("create %s %s: %v", o.GetKind(), o.GetName(), err)
		}
	}
	harness.Eventually(t, harness.Patience, func() error {
		a.mapper.Reset()
		for _, kind := range []schema.GroupKind{
			{Group: "monitoring.coreos.com", Kind: "ServiceMonitor"}, {Group: "monitoring.coreos.com", Kind: "PodMonitor"},
			{Group: "monitoring.coreos.com", Kind: "PrometheusRule"}, {Group: "jetstream.nats.io", Kind: "Stream"},
			{Group: "chart.deltabridge.io", Kind: "Gear"},
		} {
			if _, err := a.mapper.RESTMapping(kind); err != nil {
				return err
			}
		}
		return nil
	})
	return a
}

// resource returns the client of an object's resource, in its namespace or else that of the release.
func (a *api) resource(t *testing.T, o *unstructured.Unstructured) dynamic.ResourceInterface {
	t.Helper()
	gvk := o.GroupVersionKind()
	mapping, err := a.mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		t.Fatalf("find the resource of %s: %v", gvk, err)
	}
	resource := a.plane.Dynamic().Resource(mapping.Resource)
	if mapping.Scope.Name() != meta.RESTScopeNameNamespace {
		return resource
	}
	if o.GetNamespace() == "" {
		t.Errorf("%s %s names no namespace", o.GetKind(), o.GetName())
	}
	return resource.Namespace(o.GetNamespace())
}

// TestAccepted has the API server check every object that the chart makes, with unknown fields refused.
func TestAccepted(t *testing.T) {
	a := startAPI(t)
	kinds := map[string]bool{}
	for name, path := range valuesFiles(t) {
		for _, o := range parse(t, render(t, "-f", path)) {
			kinds[o.GetKind()] = true
			options := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}, FieldValidation: metav1.FieldValidationStrict}
			if _, err := a.resource(t, o).Create(t.Context(), o, options); err != nil {
				t.Errorf("%s: %s %s: %v", name, o.GetKind(), o.GetName(), err)
			}
		}
	}
	for _, kind := range []string{
		"ClusterRole", "ClusterRoleBinding", "ConfigMap", "Deployment", "NetworkPolicy", "Pod", "PodDisruptionBudget", "PodMonitor",
		"PrometheusRule", "Role", "RoleBinding", "Service", "ServiceAccount", "ServiceMonitor", "Stream",
	} {
		if !kinds[kind] {
			t.Errorf("no values of the matrix make a %s", kind)
		}
	}
}

// TestLifecycle installs, upgrades, rolls back and uninstalls a release.
func TestLifecycle(t *testing.T) {
	a := startAPI(t)
	env := []string{"KUBECONFIG=" + a.plane.Kubeconfig()}
	const name = "lifecycle"
	run := func(args ...string) {
		t.Helper()
		helm(t, env, append(args, "--namespace", releaseNamespace)...)
	}
	objects := parse(t, render(t, "--set", "fullnameOverride="+name, "--set", "replicas=2"))
	deployment, configMap := only(t, objects, "Deployment"), only(t, objects, "ConfigMap")
	state := func() (sum, level string) {
		t.Helper()
		d, err := a.resource(t, deployment).Get(t.Context(), deployment.GetName(), metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		c, err := a.resource(t, configMap).Get(t.Context(), configMap.GetName(), metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		sum, _, _ = unstructured.NestedString(d.Object, "spec", "template", "metadata", "annotations", "checksum/config")
		level, _, _ = unstructured.NestedString(c.Object, "data", "BRIDGE_LOG_LEVEL")
		return sum, level
	}

	run("install", name, chartDir(), "--set", "fullnameOverride="+name, "--set", "replicas=2")
	firstSum, firstLevel := state()
	if firstSum == "" || firstLevel != "info" {
		t.Errorf("installed: checksum %q, level %q", firstSum, firstLevel)
	}
	run("upgrade", name, chartDir(), "--reuse-values", "--set", "log.level=debug")
	if sum, level := state(); sum == firstSum || level != "debug" {
		t.Errorf("upgraded: checksum %q (was %q), level %q", sum, firstSum, level)
	}
	run("rollback", name, "1")
	if sum, level := state(); sum != firstSum || level != firstLevel {
		t.Errorf("rolled back: checksum %q (was %q), level %q", sum, firstSum, level)
	}
	run("uninstall", name)
	for _, o := range objects {
		if o.GetKind() == "Pod" {
			continue // of helm test, which did not run
		}
		harness.Eventually(t, harness.Patience, func() error {
			_, err := a.resource(t, o).Get(t.Context(), o.GetName(), metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return nil
			}
			return &leftover{o, err}
		})
	}
}

// leftover says that an object is there though its release is not.
type leftover struct {
	object *unstructured.Unstructured
	err    error
}

// Error says which object it is.
func (l *leftover) Error() string {
	if l.err != nil {
		return l.err.Error()
	}
	return l.object.GetKind() + " " + l.object.GetName() + " is left"
}
