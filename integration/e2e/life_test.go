package e2e

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/deltabridge/deltabridge/integration/check"
)

func TestAdd(t *testing.T) {
	r := newRig(t, configMaps)
	r.create(configMaps, r.configMap("before", "there before the bridge"))
	r.start()
	r.create(configMaps, r.configMap("after", "made while the bridge runs"))
	s := r.require()
	if m := s.History(r.object(configMaps, "before")); len(m) != 1 || m[0].Kind != "added" {
		t.Errorf("of the object that was there: %q", summary(m))
	}
	r.requireStory(s, r.object(configMaps, "after"), "added watch")
}

func TestUpdate(t *testing.T) {
	r := newRig(t, configMaps)
	r.start()
	r.create(configMaps, r.configMap("a", "0"))
	r.setValue("a", 0, 3)
	// What the bridge removes by default is in the cluster and not in the stream.
	r.patch(configMaps, r.ns, "a", `{"metadata":{"annotations":{"kubectl.kubernetes.io/last-applied-configuration":"{\"x\":1}","kept":"yes"}}}`)
	s := r.require()
	messages := r.requireStory(s, r.object(configMaps, "a"),
		"added watch", "modified watch", "modified watch", "modified watch", "modified watch")
	for _, m := range messages {
		for _, field := range []string{"managedFields", "last-applied-configuration"} {
			if strings.Contains(string(m.Data()), field) {
				t.Errorf("version %s has %s: %s", m.RV, field, m.Data())
			}
		}
	}
	if last := string(messages[4].Data()); !strings.Contains(last, `"kept":"yes"`) || !strings.Contains(last, `"value":"3"`) {
		t.Errorf("the last message's body is %s", last)
	}
}

func TestDelete(t *testing.T) {
	r := newRig(t, configMaps)
	r.start()
	r.create(configMaps, r.configMap("a", "last words"))
	r.delete(configMaps, r.ns, "a")
	messages := r.requireStory(r.require(), r.object(configMaps, "a"), "added watch", "deleted watch")
	if body := string(messages[1].Data()); !strings.Contains(body, "last words") {
		t.Errorf("the deletion's body is %s", body)
	}
}

func TestDeleteWithFinalizer(t *testing.T) {
	r := newRig(t, configMaps)
	r.start()
	r.create(configMaps, with(r.configMap("a", "x"), []any{"example.com/wait"}, "metadata", "finalizers"))
	r.delete(configMaps, r.ns, "a")
	r.patch(configMaps, r.ns, "a", `{"metadata":{"finalizers":null}}`)
	r.requireStory(r.require(), r.object(configMaps, "a"), "added watch", "modified watch", "deleted watch")
}

func TestDeleteAndRecreate(t *testing.T) {
	r := newRig(t, configMaps)
	r.start()
	const lives = 5
	var want []string
	uids := map[string]bool{}
	for range lives {
		uids[string(r.create(configMaps, r.configMap("a", "x")).GetUID())] = true
		r.delete(configMaps, r.ns, "a")
		want = append(want, "added watch", "deleted watch")
	}
	for i, m := range r.requireStory(r.require(), r.object(configMaps, "a"), want...) {
		if !uids[m.UID] {
			t.Errorf("message %d is of uid %s, which never was", i, m.UID)
		}
	}
	if len(uids) != lives {
		t.Errorf("%d uids for %d lives", len(uids), lives)
	}
}

func TestStatusSubresource(t *testing.T) {
	r := newRig(t, pods, deployments)
	r.start()
	r.create(pods, r.pod("p"))
	r.create(deployments, r.deployment("d"))
	r.patch(pods, r.ns, "p", `{"status":{"phase":"Running","podIP":"10.1.2.3"}}`, "status")
	r.patch(deployments, r.ns, "d", `{"status":{"replicas":1,"observedGeneration":1}}`, "status")
	s := r.require()
	for o, want := range map[check.Object]string{
		r.object(pods, "p"):        `"podIP":"10.1.2.3"`,
		r.object(deployments, "d"): `"replicas":1`,
	} {
		messages := r.requireStory(s, o, "added watch", "modified watch")
		if body := string(messages[1].Data()); !strings.Contains(body, want) {
			t.Errorf("%s: no %s in %s", o, want, body)
		}
	}
}

func TestCustomResource(t *testing.T) {
	widgets := schema.GroupVersionResource{Group: "life.example.com", Version: "v1", Resource: "widgets"}
	r := newRig(t, widgets)
	r.customResource(widgets.Group, "widgets", "Widget", "Namespaced")
	r.start()
	r.create(widgets, custom(widgets, "Widget", r.ns, "w"))
	r.patch(widgets, r.ns, "w", `{"spec":{"size":9007199254740993,"text":"<&> \u2028 ü"}}`)
	r.patch(widgets, r.ns, "w", `{"status":{"ok":true}}`, "status")
	r.delete(widgets, r.ns, "w")
	r.create(widgets, custom(widgets, "Widget", r.ns, "stays"))
	s := r.require()
	messages := r.requireStory(s, r.object(widgets, "w"), "added watch", "modified watch", "modified watch", "deleted watch")
	if gvk := messages[0].Header.Get("ce-gvk"); gvk != "life.example.com/v1/Widget" {
		t.Errorf("ce-gvk is %q", gvk)
	}
	if body := string(messages[1].Data()); !strings.Contains(body, "9007199254740993") {
		t.Errorf("a large number did not survive: %s", body)
	}
	r.requireStory(s, r.object(widgets, "stays"), "added watch")
}

func TestClusterScoped(t *testing.T) {
	gadgets := schema.GroupVersionResource{Group: "life.example.com", Version: "v1", Resource: "gadgets"}
	r := newRig(t, namespaces, nodes, clusterRoles, gadgets)
	r.customResource(gadgets.Group, "gadgets", "Gadget", "Cluster")
	r.start()
	r.create(nodes, object("v1", "Node", "", "ip-10-0-0-1.ec2.internal"))
	r.patch(nodes, "", "ip-10-0-0-1.ec2.internal", `{"metadata":{"labels":{"zone":"a"}}}`)
	r.create(gadgets, custom(gadgets, "Gadget", "", "g"))
	r.delete(gadgets, "", "g")
	s := r.require()
	node := check.Object{Resource: "nodes", Name: "ip-10-0-0-1.ec2.internal"}
	r.requireStory(s, node, "added watch", "modified watch")
	if got, want := s.History(node)[0].Subject, "kube.main.core.nodes._.ip-10-0-0-1_ec2_internal"; got != want {
		t.Errorf("the node's subject is %q, want %q", got, want)
	}
	r.requireStory(s, check.Object{Group: gadgets.Group, Resource: "gadgets", Name: "g"}, "added watch", "deleted watch")
	if len(s.Objects("clusterroles.rbac.authorization.k8s.io")) < 10 {
		t.Error("the API server's own cluster roles are not in the stream")
	}
}

func TestSecretValuesStay(t *testing.T) {
	const value, other = "correct-horse", "battery-staple"
	r := newRig(t, secrets)
	r.check.Selection.Select = func(check.Object) bool { return false } // their bodies are not the cluster's
	r.set("BRIDGE_LOG_LEVEL", "debug")
	b := r.start()
	secret := with(object("v1", "Secret", r.ns, "s"), value, "stringData", "password")
	secret.SetAnnotations(map[string]string{"kubectl.kubernetes.io/last-applied-configuration": value})
	r.create(secrets, secret)
	r.patch(secrets, r.ns, "s", `{"stringData":{"password":"`+other+`"}}`)
	r.delete(secrets, r.ns, "s")
	r.awaitMessages(r.object(secrets, "s"), 3)
	s := r.require()
	messages := r.requireStory(s, r.object(secrets, "s"), "added watch", "modified watch", "deleted watch")
	if digest(t, messages[0]) == digest(t, messages[1]) {
		t.Error("the change of the value does not show")
	}
	for _, forms := range []string{value, other, "Y29ycmVjdC1ob3JzZQ==", "YmF0dGVyeS1zdGFwbGU="} {
		for _, m := range s.Messages {
			for name, values := range m.Header {
				if strings.Contains(strings.Join(values, " "), forms) {
					t.Errorf("#%d: header %s has %q", m.Sequence, name, forms)
				}
			}
			if strings.Contains(string(m.Body), forms) {
				t.Errorf("#%d: the body has %q", m.Sequence, forms)
			}
		}
		if strings.Contains(b.Stderr()+b.Stdout()+b.StatusText(t)+b.Metrics(t), forms) {
			t.Errorf("the log, the status or the metrics have %q", forms)
		}
	}
}

// digest returns what stands in the place of the secret's password.
func digest(t *testing.T, m *check.Message) string {
	t.Helper()
	var u unstructured.Unstructured
	if err := u.UnmarshalJSON(m.Data()); err != nil {
		t.Fatal(err)
	}
	text, found, err := unstructured.NestedString(u.Object, "data", "password")
	if err != nil || !found || text == "" {
		t.Fatalf("the secret's password is %q, %t, %v", text, found, err)
	}
	return text
}

func TestStructuredMode(t *testing.T) {
	r := newRig(t, configMaps)
	r.set("BRIDGE_FORMAT", "structured")
	r.start()
	r.create(configMaps, r.configMap("a", "1"))
	r.setValue("a", 1, 1)
	r.delete(configMaps, r.ns, "a")
	s := r.require()
	for _, m := range r.requireStory(s, r.object(configMaps, "a"), "added watch", "modified watch", "deleted watch") {
		if got := m.Header.Get("content-type"); got != "application/cloudevents+json" {
			t.Errorf("content-type is %q", got)
		}
	}
}

func TestNamespacesAreSelected(t *testing.T) {
	for name, c := range map[string]struct{ variable, value string }{
		"named":    {"BRIDGE_NAMESPACES", ""},
		"excluded": {"BRIDGE_EXCLUDE_NAMESPACES", "kube-system,default"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, configMaps)
			value := c.value
			selected := func(o check.Object) bool { return o.Namespace != "kube-system" && o.Namespace != "default" }
			if value == "" {
				value = r.ns
				selected = func(o check.Object) bool { return o.Namespace == r.ns }
			}
			r.set(c.variable, value)
			r.check.Selection.Select = selected
			r.start()
			r.create(configMaps, r.configMap("in", "1"))
			r.create(configMaps, with(object("v1", "ConfigMap", "default", "out-"+name), "1", "data", "value"))
			r.setValue("in", 1, 2)
			s := r.require()
			r.requireStory(s, r.object(configMaps, "in"), "added watch", "modified watch", "modified watch")
			for _, m := range s.Objects("") {
				if !selected(m.Object) {
					t.Errorf("%s is not selected", m.Object)
				}
			}
		})
	}
}
