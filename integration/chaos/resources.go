package chaos

import (
	"context"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/deltabridge/deltabridge/integration/check"
)

// resource is a kind of objects that the load changes.
type resource struct {
	schema.GroupVersionResource
	kind   string
	prefix string // of its keys in the store
	status bool   // whether it has a status of its own
	// spec returns the fields of an object, or of a patch that changes it.
	spec func(value, pad string) map[string]any
}

func (r resource) plural() string { return r.GroupResource().String() }

// widgetGroup is the group of the custom resource.
const widgetGroup = "chaos.deltabridge.io"

var resources = []resource{
	{
		GroupVersionResource: schema.GroupVersionResource{Version: "v1", Resource: "configmaps"},
		kind:                 "ConfigMap", prefix: "/registry/configmaps/",
		spec: func(value, pad string) map[string]any {
			return map[string]any{"data": map[string]any{"value": value, "pad": pad}}
		},
	},
	{
		GroupVersionResource: schema.GroupVersionResource{Version: "v1", Resource: "services"},
		kind:                 "Service", prefix: "/registry/services/specs/",
		spec: func(value, _ string) map[string]any {
			return map[string]any{"spec": map[string]any{
				"clusterIP": "None", "selector": map[string]any{"value": value},
				"ports": []any{map[string]any{"port": int64(80), "protocol": "TCP", "targetPort": int64(80)}},
			}}
		},
	},
	{
		GroupVersionResource: schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"},
		kind:                 "Deployment", prefix: "/registry/deployments/", status: true,
		spec: func(value, pad string) map[string]any {
			return map[string]any{"spec": map[string]any{
				"selector": map[string]any{"matchLabels": map[string]any{"app": "chaos"}},
				"template": map[string]any{
					"metadata": map[string]any{
						"labels": map[string]any{"app": "chaos"}, "annotations": map[string]any{"value": value, "pad": pad},
					},
					"spec": map[string]any{"containers": []any{map[string]any{"name": "c", "image": "example.com/c:1"}}},
				},
			}}
		},
	},
	{
		GroupVersionResource: schema.GroupVersionResource{Group: widgetGroup, Version: "v1", Resource: "widgets"},
		kind:                 "Widget", prefix: "/registry/" + widgetGroup + "/widgets/", status: true,
		spec: func(value, pad string) map[string]any {
			return map[string]any{"spec": map[string]any{"value": value, "pad": pad}}
		},
	},
}

// selection is what the checks are about: everything of the resources, also what nobody here made.
func selection() check.Selection {
	var s check.Selection
	for _, r := range resources {
		s.Resources = append(s.Resources, r.GroupVersionResource)
	}
	return s
}

// prefixes tells where the store has the resources' objects.
func prefixes() map[schema.GroupVersionResource]string {
	all := map[schema.GroupVersionResource]string{}
	for _, r := range resources {
		all[r.GroupVersionResource] = r.prefix
	}
	return all
}

// resourceNames is the value of BRIDGE_RESOURCES.
func resourceNames() string {
	var names []string
	for _, r := range resources {
		names = append(names, r.plural())
	}
	return strings.Join(names, ",")
}

// object returns a new object of a resource.
func (r resource) object(namespace, name, value string, size int) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: r.spec(value, strings.Repeat("x", size))}
	u.SetGroupVersionKind(r.GroupVersion().WithKind(r.kind))
	u.SetNamespace(namespace)
	u.SetName(name)
	return u
}

var (
	crds          = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	allNamespaces = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
)

// createCustomResource makes the API server serve widgets, and waits until it does.
func createCustomResource(ctx context.Context, client dynamic.Interface) error {
	anything := map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}
	definition := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": "widgets." + widgetGroup},
		"spec": map[string]any{
			"group": widgetGroup, "scope": "Namespaced",
			"names": map[string]any{"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
			"versions": []any{map[string]any{
				"name": "v1", "served": true, "storage": true,
				"subresources": map[string]any{"status": map[string]any{}},
				"schema": map[string]any{"openAPIV3Schema": map[string]any{
					"type": "object", "properties": map[string]any{"spec": anything, "status": anything},
				}},
			}},
		},
	}}
	_, err := client.Resource(crds).Create(ctx, definition, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create the custom resource: %w", err)
	}
	widgets := client.Resource(resources[len(resources)-1].GroupVersionResource)
	for {
		if _, err = widgets.List(ctx, metav1.ListOptions{}); err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the custom resource: %w", err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// createNamespace creates a round's namespace.
func createNamespace(ctx context.Context, client dynamic.Interface, name string) error {
	u := &unstructured.Unstructured{}
	u.SetAPIVersion("v1")
	u.SetKind("Namespace")
	u.SetName(name)
	if _, err := client.Resource(allNamespaces).Create(ctx, u, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create namespace %s: %w", name, err)
	}
	return nil
}

// deleteAll deletes a namespace's objects, so that the next round does not find them.
func deleteAll(ctx context.Context, client dynamic.Interface, namespace string) error {
	background := metav1.DeletePropagationBackground // nothing runs that would let go of finalizers
	for _, r := range resources {
		all := client.Resource(r.GroupVersionResource).Namespace(namespace)
		list, err := all.List(ctx, metav1.ListOptions{})
		if err != nil {
			return fmt.Errorf("list %s: %w", r.plural(), err)
		}
		for _, u := range list.Items {
			err := all.Delete(ctx, u.GetName(), metav1.DeleteOptions{PropagationPolicy: &background})
			if err != nil && !apierrors.IsNotFound(err) {
				return fmt.Errorf("delete %s %s: %w", r.plural(), u.GetName(), err)
			}
		}
	}
	return nil
}
