package informer

import (
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Resource is a resource that discovery has and that can be listed and watched.
type Resource struct {
	GVR        schema.GroupVersionResource
	Kind       string
	Namespaced bool
}

// String returns "resource" or "resource.group".
func (r Resource) String() string { return r.GVR.GroupResource().String() }

func (r Resource) apiVersion() string { return r.GVR.GroupVersion().String() }

func (r Resource) gvk() schema.GroupVersionKind { return r.GVR.GroupVersion().WithKind(r.Kind) }

// path returns the segments of the resource's URL, within the namespace if one is given.
func (r Resource) path(namespace string) []string {
	segments := []string{"/apis", r.GVR.Group, r.GVR.Version}
	if r.GVR.Group == "" {
		segments = []string{"/api", r.GVR.Version}
	}
	if namespace != "" {
		segments = append(segments, "namespaces", namespace)
	}
	return append(segments, r.GVR.Resource)
}

// followable reports whether discovery says that the resource can be listed and watched.
func followable(r *metav1.APIResource) bool {
	return slices.Contains(r.Verbs, "list") && slices.Contains(r.Verbs, "watch") && !strings.Contains(r.Name, "/")
}
