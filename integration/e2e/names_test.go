package e2e

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/deltabridge/deltabridge/integration/check"
)

// clusterRole returns a ClusterRole, whose name may hold nearly everything.
func clusterRole(name string) *unstructured.Unstructured {
	return with(object("rbac.authorization.k8s.io/v1", "ClusterRole", "", name), []any{}, "rules")
}

func clusterRoleObject(name string) check.Object {
	return check.Object{Group: clusterRoles.Group, Resource: clusterRoles.Resource, Name: name}
}

// TestNames is case C4.
func TestNames(t *testing.T) {
	r := newRig(t, configMaps, clusterRoles)
	r.start()
	subjects := map[string]string{}
	for _, name := range []string{"a.b", "a-b", "ab"} {
		r.create(configMaps, r.configMap(name, name))
		subjects[r.object(configMaps, name).String()] = ""
	}
	for _, name := range []string{"a.b", "a-b", "a_b", "a=5Fb", "*", ">", "with a space", "e2e:node", "_", "ü", "A.b", "$", "a=b"} {
		r.create(clusterRoles, clusterRole(name))
		r.patch(clusterRoles, "", name, `{"metadata":{"labels":{"a":"b"}}}`)
		subjects[clusterRoleObject(name).String()] = ""
	}
	s := r.require()
	seen := map[string]string{}
	for _, m := range s.Objects("") {
		name := m.Object.String()
		if _, ok := subjects[name]; ok {
			subjects[name] = m.Subject
		}
		if other, ok := seen[m.Subject]; ok && other != name {
			t.Errorf("%s and %s share the subject %s", name, other, m.Subject)
		}
		seen[m.Subject] = name
	}
	for name, subject := range subjects {
		if subject == "" {
			t.Errorf("%s has no message", name)
		}
	}
	// The API server's own.
	node := s.History(clusterRoleObject("system:node"))
	if len(node) == 0 || node[0].Subject != "kube.main.rbac_authorization_k8s_io.clusterroles._.system=3Anode" {
		t.Errorf("of system:node: %q", summary(node))
	}
}

// TestNamesAtTheLimits is case B3.
func TestNamesAtTheLimits(t *testing.T) {
	r := newRig(t, configMaps, clusterRoles)
	b := r.start()
	before := r.nats.Server().NumClients()

	longest := strings.Repeat("a.b-c.", 42) + "d" // 253 bytes, as long as most names may be
	r.create(configMaps, r.configMap(longest, "1"))
	var every strings.Builder
	for c := byte(1); c < 0x80; c++ {
		if c != '/' && c != '%' { // the two that the API server refuses
			every.WriteByte(c)
		}
	}
	names := []string{
		every.String(),
		every.String()[:len(every.String())/2] + strings.Repeat("é€😀", 10),
		" leading and trailing ", "line\r\nend: header", "line\r\n\r\nbody",
		strings.Repeat("~", 253),
		strings.Repeat(":", 341), strings.Repeat(":", 342), // their tokens have 1,023 and 1,026 bytes
		strings.Repeat(":", 2000),  // its token alone would be longer than a control line may be
		strings.Repeat("x", 10000), // longer than a header should be
		strings.Repeat("x", 9999) + "y",
	}
	for _, name := range names {
		r.create(clusterRoles, clusterRole(name))
		r.patch(clusterRoles, "", name, `{"metadata":{"labels":{"a":"b"}}}`)
		r.delete(clusterRoles, "", name)
	}
	r.create(configMaps, r.configMap("after", "1"))
	s := r.require()
	r.requireStory(s, r.object(configMaps, longest), "added watch")
	for _, name := range names {
		r.requireStory(s, clusterRoleObject(name), "added watch", "modified watch", "deleted watch")
	}
	if after := r.nats.Server().NumClients(); after != before {
		t.Errorf("NATS has %d clients, and had %d", after, before)
	}
	if n := b.Metric(t, "deltabridge_publish_retries_total"); n != 0 {
		t.Errorf("%v publishes were tried again", n)
	}
	if strings.Contains(b.Stderr(), "isconnect") {
		t.Errorf("the connection was closed:\n%s", b.Tail(20))
	}
}
