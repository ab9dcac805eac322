package e2e

import (
	"context"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/deltabridge/deltabridge/integration/harness"
)

// object returns an object with a name and nothing else.
func object(apiVersion, kind, namespace, name string) *unstructured.Unstructured {
	metadata := map[string]any{"name": name}
	if namespace != "" {
		metadata["namespace"] = namespace
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": apiVersion, "kind": kind, "metadata": metadata,
	}}
}

// with sets a field of an object and returns it.
func with(u *unstructured.Unstructured, value any, path ...string) *unstructured.Unstructured {
	if err := unstructured.SetNestedField(u.Object, value, path...); err != nil {
		panic(fmt.Sprintf("set %s: %v", strings.Join(path, "."), err))
	}
	return u
}

// configMap returns a ConfigMap of the test's namespace.
func (r *rig) configMap(name, value string) *unstructured.Unstructured {
	return with(object("v1", "ConfigMap", r.ns, name), value, "data", "value")
}

// pod returns a pod that no node runs.
func (r *rig) pod(name string) *unstructured.Unstructured {
	return with(object("v1", "Pod", r.ns, name), []any{map[string]any{"name": "c", "image": "none"}}, "spec", "containers")
}

// deployment returns a deployment that no controller looks at.
func (r *rig) deployment(name string) *unstructured.Unstructured {
	u := with(object("apps/v1", "Deployment", r.ns, name), map[string]any{"app": name}, "spec", "selector", "matchLabels")
	with(u, map[string]any{"app": name}, "spec", "template", "metadata", "labels")
	return with(u, []any{map[string]any{"name": "c", "image": "none"}}, "spec", "template", "spec", "containers")
}

// cleanup returns a context for what runs when the test's own is done.
func cleanup() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), harness.Patience)
}

// create creates an object, which the test's end removes, and returns it as it is stored.
func (r *rig) create(resource schema.GroupVersionResource, u *unstructured.Unstructured) *unstructured.Unstructured {
	r.Helper()
	client := r.client.Resource(resource).Namespace(u.GetNamespace())
	stored, err := client.Create(r.Context(), u, metav1.CreateOptions{})
	if err != nil {
		r.Fatalf("create %s %s: %v", resource.Resource, u.GetName(), err)
	}
	r.Cleanup(func() {
		ctx, cancel := cleanup()
		defer cancel()
		if err := client.Delete(ctx, u.GetName(), metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil && !apierrors.IsNotFound(err) {
			r.Errorf("remove %s %s: %v", resource.Resource, u.GetName(), err)
		}
	})
	return stored
}

// patch merges a JSON patch into an object, or into a subresource of it.
func (r *rig) patch(resource schema.GroupVersionResource, namespace, name, patch string, subresource ...string) *unstructured.Unstructured {
	r.Helper()
	stored, err := r.client.Resource(resource).Namespace(namespace).
		Patch(r.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, subresource...)
	if err != nil {
		r.Fatalf("patch %s %s: %v", resource.Resource, name, err)
	}
	return stored
}

// setValue sets the value of a ConfigMap of the test's namespace n times, to from+1, from+2 and so on.
func (r *rig) setValue(name string, from, n int) {
	r.Helper()
	for i := range n {
		r.patch(configMaps, r.ns, name, fmt.Sprintf(`{"data":{"value":"%d"}}`, from+i+1))
	}
}

// change sets the value of a ConfigMap of the test's namespace, for goroutines that are not the test's own.
func (r *rig) change(ctx context.Context, name string, value int) error {
	_, err := r.client.Resource(configMaps).Namespace(r.ns).Patch(ctx, name, types.MergePatchType,
		fmt.Appendf(nil, `{"data":{"value":"%d"}}`, value), metav1.PatchOptions{})
	return err
}

// delete removes an object at once.
func (r *rig) delete(resource schema.GroupVersionResource, namespace, name string) {
	r.Helper()
	err := r.client.Resource(resource).Namespace(namespace).
		Delete(r.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)})
	if err != nil {
		r.Fatalf("delete %s %s: %v", resource.Resource, name, err)
	}
}

// customResource creates a definition with a status subresource and returns its resource once it is served. The test's
// end removes it.
func (r *rig) customResource(group, plural, kind, scope string) schema.GroupVersionResource {
	r.Helper()
	resource := schema.GroupVersionResource{Group: group, Version: "v1", Resource: plural}
	anything := map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}
	u := object("apiextensions.k8s.io/v1", "CustomResourceDefinition", "", plural+"."+group)
	u.Object["spec"] = map[string]any{
		"group": group,
		"scope": scope,
		"names": map[string]any{
			"plural": plural, "singular": strings.ToLower(kind), "kind": kind, "listKind": kind + "List",
		},
		"versions": []any{map[string]any{
			"name": "v1", "served": true, "storage": true,
			"subresources": map[string]any{"status": map[string]any{}},
			"schema": map[string]any{"openAPIV3Schema": map[string]any{
				"type": "object", "properties": map[string]any{"spec": anything, "status": anything},
			}},
		}},
	}
	r.create(crds, u)
	harness.Eventually(r, harness.Patience, func() error {
		_, err := r.client.Resource(resource).List(r.Context(), metav1.ListOptions{})
		return err
	})
	r.Cleanup(func() { r.emptied(resource) })
	return resource
}

// emptied removes the objects of a custom resource before its definition is removed, so that the removal is quick.
func (r *rig) emptied(resource schema.GroupVersionResource) {
	ctx, cancel := cleanup()
	defer cancel()
	list, err := r.client.Resource(resource).List(ctx, metav1.ListOptions{})
	if err != nil {
		return // the test has removed the definition itself
	}
	for _, item := range list.Items {
		client := r.client.Resource(resource).Namespace(item.GetNamespace())
		if err := client.Delete(ctx, item.GetName(), metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			r.Errorf("remove %s %s: %v", resource.Resource, item.GetName(), err)
		}
	}
}

// custom returns an object of a custom resource.
func custom(resource schema.GroupVersionResource, kind, namespace, name string) *unstructured.Unstructured {
	u := object(resource.GroupVersion().String(), kind, namespace, name)
	return with(u, map[string]any{"size": int64(1), "ratio": 1.5, "when": time.Unix(0, 0).UTC().Format(time.RFC3339)}, "spec")
}
