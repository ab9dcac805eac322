package e2e

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/deltabridge/deltabridge/integration/check"
	"github.com/deltabridge/deltabridge/integration/harness"
)

// TestAbsentResource is case K1.
func TestAbsentResource(t *testing.T) {
	widgets := schema.GroupVersionResource{Group: "k1.example.com", Version: "v1", Resource: "widgets"}
	r := newRig(t, configMaps)
	r.set("BRIDGE_RESOURCES", "widgets.k1.example.com,configmaps")
	b := r.start()
	r.create(configMaps, r.configMap("a", "1"))
	r.require() // the others flow
	for name, text := range map[string]string{"/statusz": b.StatusText(t), "/readyz?verbose": second(b.Readyz(t))} {
		if !strings.Contains(text, "widgets.k1.example.com") {
			t.Errorf("%s does not name the absent resource:\n%s", name, text)
		}
	}

	r.customResource(widgets.Group, "widgets", "Widget", "Namespaced")
	r.create(widgets, custom(widgets, "Widget", r.ns, "w"))
	r.awaitMessages(r.object(widgets, "w"), 1)
	r.check.Selection.Resources = append(r.check.Selection.Resources, widgets)
	r.patch(widgets, r.ns, "w", `{"spec":{"size":2}}`)
	r.setValue("a", 1, 1)
	s := r.require()
	if m := s.History(r.object(widgets, "w")); len(m) != 2 || m[0].Kind != "added" || m[1].Kind != "modified" {
		t.Errorf("about the widget: %q", summary(m))
	}
}

func second(_ int, text string) string { return text }

// TestForbiddenResource is case K2.
func TestForbiddenResource(t *testing.T) {
	const user = "k2"
	r := newRig(t, configMaps)
	r.set("KUBECONFIG", r.plane.User(t, user), "BRIDGE_RESOURCES", "services,configmaps")
	grant := func(resource string) {
		t.Helper()
		if err := r.plane.Grant(t.Context(), user, "", rbacv1.PolicyRule{
			APIGroups: []string{""}, Resources: []string{resource}, Verbs: []string{"get", "list", "watch"},
		}); err != nil {
			t.Fatal(err)
		}
	}
	grant("configmaps")
	b := r.start()
	r.create(configMaps, r.configMap("a", "1"))
	r.create(services, with(object("v1", "Service", r.ns, "s"),
		[]any{map[string]any{"port": int64(80)}}, "spec", "ports"))
	r.require() // the others flow
	harness.Eventually(t, harness.Patience, func() error {
		for name, text := range map[string]string{"/statusz": b.StatusText(t), "/readyz?verbose": second(b.Readyz(t))} {
			if !strings.Contains(text, "services") || !strings.Contains(text, "list") && !strings.Contains(text, "watch") {
				return fmt.Errorf("%s does not name resource and verb:\n%s", name, text)
			}
		}
		return nil
	})
	requireNoStorm(t, b)

	grant("services")
	r.awaitMessages(r.object(services, "s"), 1)
	r.check.Selection.Resources = append(r.check.Selection.Resources, services)
	r.patch(services, r.ns, "s", `{"metadata":{"labels":{"a":"b"}}}`)
	r.setValue("a", 1, 1)
	s := r.require()
	if m := s.History(r.object(services, "s")); len(m) != 2 || m[0].Kind != "added" || m[1].Kind != "modified" {
		t.Errorf("about the service: %q", summary(m))
	}
	if b.ExitCode() != -1 {
		t.Error("the bridge was restarted")
	}
}

// TestWatchForbidden is the half of case K2 in which listing is allowed.
func TestWatchForbidden(t *testing.T) {
	const user = "k2-watch"
	r := newRig(t, configMaps)
	r.set("KUBECONFIG", r.plane.User(t, user), "BRIDGE_RESOURCES", "services,configmaps")
	for resource, verbs := range map[string][]string{"configmaps": {"list", "watch"}, "services": {"list"}} {
		if err := r.plane.Grant(t.Context(), user, "", rbacv1.PolicyRule{
			APIGroups: []string{""}, Resources: []string{resource}, Verbs: verbs,
		}); err != nil {
			t.Fatal(err)
		}
	}
	b := r.start()
	r.create(configMaps, r.configMap("a", "1"))
	r.require()
	harness.Eventually(t, harness.Patience, func() error {
		if text := b.StatusText(t); !strings.Contains(text, "services") || !strings.Contains(text, "watch") {
			return fmt.Errorf("/statusz does not name resource and verb:\n%s", text)
		}
		return nil
	})
	requireNoStorm(t, b)
}

// TestNamespacedRights is case K4.
func TestNamespacedRights(t *testing.T) {
	const user = "k4"
	r := newRig(t, configMaps)
	r.set("KUBECONFIG", r.plane.User(t, user), "BRIDGE_NAMESPACES", r.ns)
	r.check.Selection.Select = func(o check.Object) bool { return o.Namespace == r.ns }
	if err := r.plane.Grant(t.Context(), user, r.ns, rbacv1.PolicyRule{
		APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"list", "watch"},
	}); err != nil {
		t.Fatal(err)
	}
	r.start()
	r.create(configMaps, r.configMap("a", "1"))
	r.setValue("a", 1, 2)
	r.requireStory(r.require(), r.object(configMaps, "a"), "added watch", "modified watch", "modified watch")
}

// requireNoStorm looks for a while whether the bridge says the same thing again and again.
func requireNoStorm(t *testing.T, b *harness.Bridge) {
	t.Helper()
	const most = 8 // in that time, of the same message
	before := map[string]int{}
	for _, line := range b.Log() {
		before[line.Message()]++
	}
	harness.Never(t, 4*time.Second, func() error {
		now := map[string]int{}
		for _, line := range b.Log() {
			now[line.Message()]++
		}
		for message, n := range now {
			if n-before[message] > most {
				return fmt.Errorf("%q was logged %d times:\n%s", message, n-before[message], b.Tail(10))
			}
		}
		if !b.Running() {
			return errors.New("the bridge ended")
		}
		return nil
	})
}

// TestSamePluralInTwoGroups is case K5.
func TestSamePluralInTwoGroups(t *testing.T) {
	one := schema.GroupVersionResource{Group: "one.k5.example.com", Version: "v1", Resource: "widgets"}
	two := schema.GroupVersionResource{Group: "two.k5.example.com", Version: "v1", Resource: "widgets"}
	r := newRig(t, one, two)
	for _, resource := range []schema.GroupVersionResource{one, two} {
		r.customResource(resource.Group, "widgets", "Widget", "Namespaced")
	}
	b := r.start()
	for _, resource := range []schema.GroupVersionResource{one, two} {
		r.create(resource, custom(resource, "Widget", r.ns, "same"))
	}
	r.patch(one, r.ns, "same", `{"spec":{"size":2}}`)
	r.delete(two, r.ns, "same")
	s := r.require()
	r.requireStory(s, r.object(one, "same"), "added watch", "modified watch")
	r.requireStory(s, r.object(two, "same"), "added watch", "deleted watch")

	// Their ledgers are apart as well: a restart publishes nothing of either.
	r.stop(b)
	before := r.objectMessages()
	r.start()
	r.create(two, custom(two, "Widget", r.ns, "same"))
	r.awaitMessages(r.object(two, "same"), 3)
	s = r.require()
	if n := len(s.Objects("")) - before; n != 1 {
		t.Errorf("%d messages after the restart, want 1", n)
	}
}
