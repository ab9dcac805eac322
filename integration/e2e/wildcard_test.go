package e2e

import (
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
)

// leftOut is what "*" does not stand for.
var leftOut = []schema.GroupResource{
	{Resource: "secrets"}, {Resource: "events"}, {Group: "events.k8s.io", Resource: "events"},
	{Group: "coordination.k8s.io", Resource: "leases"}, {Resource: "endpoints"},
	{Group: "discovery.k8s.io", Resource: "endpointslices"},
}

// served returns the resources that can be listed and watched, each in the API server's preferred version, and the
// version that the bridge's bodies are in.
func (r *rig) served() []schema.GroupVersionResource {
	r.Helper()
	client, err := discovery.NewDiscoveryClientForConfig(r.plane.Config())
	if err != nil {
		r.Fatal(err)
	}
	lists, err := client.ServerPreferredResources()
	if err != nil {
		r.Fatal(err)
	}
	var resources []schema.GroupVersionResource
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			r.Fatal(err)
		}
		for _, resource := range list.APIResources {
			if slices.Contains(resource.Verbs, "list") && slices.Contains(resource.Verbs, "watch") && !strings.Contains(resource.Name, "/") {
				resources = append(resources, gv.WithResource(resource.Name))
			}
		}
	}
	return resources
}

// TestEverything follows all that "*" stands for, a resource among it that comes while the bridge runs.
func TestEverything(t *testing.T) {
	r := newRig(t)
	for _, resource := range r.served() {
		if !slices.Contains(leftOut, resource.GroupResource()) {
			r.check.Selection.Resources = append(r.check.Selection.Resources, resource)
		}
	}
	if n := len(r.check.Selection.Resources); n < 30 {
		t.Fatalf("the API server has %d resources", n)
	}
	r.set("BRIDGE_RESOURCES", "*")
	r.start()
	r.create(configMaps, r.configMap("a", "0"))
	r.create(deployments, r.deployment("d"))
	r.create(secrets, with(object("v1", "Secret", r.ns, "s"), "hidden", "stringData", "password"))
	widgets := r.customResource("all.example.com", "widgets", "Widget", "Namespaced")
	r.create(widgets, custom(widgets, "Widget", r.ns, "w"))
	r.awaitMessages(r.object(widgets, "w"), 1)
	r.check.Selection.Resources = append(r.check.Selection.Resources, widgets)
	r.patch(widgets, r.ns, "w", `{"spec":{"size":2}}`)
	s := r.require()
	for _, m := range s.Objects("") {
		if slices.Contains(leftOut, schema.GroupResource{Group: m.Object.Group, Resource: m.Object.Resource}) {
			t.Errorf("%s is in the stream", m.Object)
		}
	}
}

// TestGrammarOfResources selects by group, by version and by exclusion.
func TestGrammarOfResources(t *testing.T) {
	replicaSets := schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "replicasets"}
	statefulSets := schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "statefulsets"}
	daemonSets := schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "daemonsets"}
	revisions := schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "controllerrevisions"}
	r := newRig(t, configMaps, deployments, statefulSets, daemonSets, revisions)
	r.set("BRIDGE_RESOURCES", "configmaps,*.apps,-replicasets.apps,deployments.v1.apps")
	r.start()
	r.create(configMaps, r.configMap("a", "0"))
	r.create(deployments, r.deployment("d"))
	replicaSet := with(r.deployment("r"), "ReplicaSet", "kind")
	r.create(replicaSets, replicaSet)
	s := r.require()
	r.requireStory(s, r.object(deployments, "d"), "added watch")
	if len(s.Objects("replicasets.apps")) > 0 {
		t.Error("an excluded resource is in the stream")
	}
}
