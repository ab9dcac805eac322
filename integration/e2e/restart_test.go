package e2e

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// TestRestartPublishesNothing is case R1.
func TestRestartPublishesNothing(t *testing.T) {
	widgets := schema.GroupVersionResource{Group: "r1.example.com", Version: "v1", Resource: "widgets"}
	for name, resources := range map[string][]schema.GroupVersionResource{
		"one resource":      {configMaps},
		"several resources": {configMaps, pods, deployments, clusterRoles, namespaces, widgets},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, resources...)
			if len(resources) > 1 {
				r.customResource(widgets.Group, "widgets", "Widget", "Namespaced")
			}
			b := r.start()
			for i := range 3 {
				r.create(configMaps, r.configMap(fmt.Sprintf("unchanged-%d", i), "1"))
			}
			r.create(configMaps, r.configMap("changed", "0"))
			r.setValue("changed", 0, 5)
			r.create(configMaps, r.configMap("deleted", "0"))
			r.delete(configMaps, r.ns, "deleted")
			if len(resources) > 1 {
				r.create(widgets, custom(widgets, "Widget", r.ns, "w"))
				r.create(pods, r.pod("p"))
			}
			r.require()
			before := r.objectMessages()

			for range 3 {
				r.stop(b)
				b = r.start()
			}
			// When this change is there, every list has been compared with the stream.
			r.setValue("changed", 5, 1)
			r.awaitMessages(r.object(configMaps, "changed"), 7)
			r.stop(b)
			s := r.require()
			if n := len(s.Objects("")) - before; n != 1 {
				for _, m := range s.Objects("")[before:] {
					t.Logf("#%d %s %s %s %s", m.Sequence, m.Object, m.Kind, m.Reason, m.RV)
				}
				t.Errorf("%d messages for 1 change and 3 restarts", n)
			}
		})
	}
}

// TestRestartAfterAKill ends the bridge in the middle of changes. What was in flight must neither be lost nor stored
// twice.
func TestRestartAfterAKill(t *testing.T) {
	r := newRig(t, configMaps)
	b := r.start()
	for round := range 5 {
		for i := range 20 {
			r.create(configMaps, r.configMap(fmt.Sprintf("c-%d-%d", round, i), "0"))
		}
		if err := b.Kill(); err != nil {
			t.Fatal(err)
		}
		b = r.start()
	}
	r.require()
}
