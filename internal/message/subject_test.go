package message_test

import (
	"errors"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/deltabridge/deltabridge/internal/change"
	"github.com/deltabridge/deltabridge/internal/message"
)

func TestEscapeToken(t *testing.T) {
	tokens := map[string]string{}
	for _, c := range []struct{ raw, token string }{
		{"a.b", "a_b"},
		{"a-b", "a-b"},
		{"a_b", "a=5Fb"},
		{"system:node", "system=3Anode"},
		{"*", "=2A"},
		{">", "=3E"},
		{"with space", "with=20space"},
		{"tab\tand\nnewline\r", "tab=09and=0Anewline=0D"},
		{"größe", "gr=C3=B6=C3=9Fe"},
		{"=", "=3D"},
		{"=2A", "=3D2A"},
		{"_", "=5F"},
		{".", "_"},
		{"..", "__"},
		{"$SYS", "=24SYS"},
		{"A-Z.0", "A-Z_0"},
		{"\x00\xff", "=00=FF"},
		{"ip-10-0-0-1.ec2.internal", "ip-10-0-0-1_ec2_internal"},
	} {
		if got := message.EscapeToken(c.raw); got != c.token {
			t.Errorf("EscapeToken(%q) = %q, want %q", c.raw, got, c.token)
		}
		if got := string(message.AppendToken([]byte("x."), c.raw)); got != "x."+c.token {
			t.Errorf("AppendToken(%q) = %q, want %q", c.raw, got, "x."+c.token)
		}
		if got, err := message.UnescapeToken(c.token); err != nil || got != c.raw {
			t.Errorf("UnescapeToken(%q) = %q, %v, want %q", c.token, got, err, c.raw)
		}
		if other, twice := tokens[c.token]; twice {
			t.Errorf("%q and %q have the same token", other, c.raw)
		}
		tokens[c.token] = c.raw
	}
}

func TestUnescapeTokenRefuses(t *testing.T) {
	for _, token := range []string{
		"", "=", "=4", "a=", "=zz", "=3a", "=H", "=41", "=2E", "=2D", "a.b", "a b", "*", ">", "a:b", "ü", "=2",
		"x=H" + strings.Repeat("0", 63), "x=H" + strings.Repeat("a", 64), "x=H" + strings.Repeat("0", 65),
	} {
		if raw, err := message.UnescapeToken(token); !errors.Is(err, message.ErrToken) {
			t.Errorf("UnescapeToken(%q) = %q, %v, want ErrToken", token, raw, err)
		}
	}
}

// checkLegal fails for what is not a token of a NATS subject and of a key-value key.
func checkLegal(t *testing.T, token string) {
	t.Helper()
	if token == "" {
		t.Error("an empty token")
	}
	const legal = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_="
	if rest := strings.Trim(token, legal); rest != "" {
		t.Errorf("token %.200q has %q", token, rest)
	}
}

func FuzzToken(f *testing.F) {
	for _, s := range []string{"", "a.b", "a_b", "=2E", "=H", "_", "*", ">", "system:node", "a b", "\r\n", "größe", "\xff", strings.Repeat("ü", 300)} {
		f.Add(s, s+"x")
		f.Add(s, message.EscapeToken(s))
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		token := message.EscapeToken(a)
		if a != "" {
			checkLegal(t, token)
			if raw, err := message.UnescapeToken(token); err != nil || raw != a {
				t.Errorf("%q became %q became %q, %v", a, token, raw, err)
			}
		}
		if (token == message.EscapeToken(b)) != (a == b) {
			t.Errorf("tokens of %q and %q: %q, %q", a, b, token, message.EscapeToken(b))
		}
		// Whatever is accepted as a token is one.
		if raw, err := message.UnescapeToken(b); err == nil && message.EscapeToken(raw) != b {
			t.Errorf("UnescapeToken accepts %q for %q, whose token is %q", b, raw, message.EscapeToken(raw))
		}
	})
}

func TestSubject(t *testing.T) {
	for _, c := range []struct {
		ref     change.ObjectRef
		subject string
	}{
		{change.ObjectRef{Group: "rbac.authorization.k8s.io", Resource: "clusterroles", Name: "system:node"}, "kube.prod.rbac_authorization_k8s_io.clusterroles._.system=3Anode"},
		{change.ObjectRef{Resource: "nodes", Name: "ip-10-0-0-1.ec2.internal"}, "kube.prod.core.nodes._.ip-10-0-0-1_ec2_internal"},
		{change.ObjectRef{Group: "apps", Resource: "deployments", Namespace: "default", Name: "web"}, "kube.prod.apps.deployments.default.web"},
		{change.ObjectRef{Group: "rbac.authorization.k8s.io", Resource: "roles", Namespace: "a-b", Name: "*"}, "kube.prod.rbac_authorization_k8s_io.roles.a-b.=2A"},
		{change.ObjectRef{Resource: "pods", Namespace: "_", Name: "_"}, "kube.prod.core.pods.=5F.=5F"},
	} {
		if got := scheme.Subject(c.ref); got != c.subject {
			t.Errorf("Subject(%v) = %q, want %q", c.ref, got, c.subject)
		}
		if got, err := scheme.Parse(c.subject); err != nil || got != c.ref {
			t.Errorf("Parse(%q) = %v, %v, want %v", c.subject, got, err, c.ref)
		}
	}
	for got, want := range map[string]string{
		scheme.WriterSubject(): "kube.prod",
		scheme.ObjectsFilter(): "kube.prod.*.*.*.*",
		scheme.All():           "kube.prod.>",
		scheme.ResourceSubject(schema.GroupResource{Resource: "pods"}):                                                     "kube.prod.core.pods",
		scheme.ResourceSubject(schema.GroupResource{Group: "networking.k8s.io", Resource: "ingresses"}):                    "kube.prod.networking_k8s_io.ingresses",
		message.Scheme{Prefix: "a.b", Cluster: "c"}.Subject(change.ObjectRef{Resource: "pods", Namespace: "d", Name: "e"}): "a.b.c.core.pods.d.e",
	} {
		if got != want {
			t.Errorf("subject %q, want %q", got, want)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for _, subject := range []string{
		"", "kube", "kube.prod", "kube.prod.core.pods", "kube.prod.core.pods.default", "kube.prod.core.pods.default.web.x",
		"kube.other.core.pods.default.web", "other.prod.core.pods.default.web", "kube.prod.core.pods.default.",
		"kube.prod..pods.default.web", "kube.prod.core.pods.a b.web", "kube.prod.core.pods.default.=41",
		"kube.prod.core.pods.default." + strings.Repeat("a", message.MaxNameToken+1),
		"kube.prod.core.pods.=H" + strings.Repeat("0", 64) + ".web",
	} {
		ref, err := scheme.Parse(subject)
		if ref != (change.ObjectRef{}) || err == nil {
			t.Errorf("Parse(%.100q) = %v, %v, want an error", subject, ref, err)
		}
	}
}

// TestLongNames holds that no name, however long, makes a control line that closes the connection.
func TestLongNames(t *testing.T) {
	ref := change.ObjectRef{Group: "rbac.authorization.k8s.io", Resource: "clusterroles"}
	stem := scheme.ResourceSubject(ref.GroupResource()) + "._."
	for _, c := range []struct {
		name   string
		prefix string // of the name's token, if it is hashed
	}{
		{name: strings.Repeat("a", message.MaxNameToken)},
		{name: strings.Repeat(":", message.MaxNameToken/3)},
		{name: strings.Repeat("a", message.MaxNameToken+1), prefix: strings.Repeat("a", 256)},
		{name: strings.Repeat("a", message.MaxNameToken) + ".", prefix: strings.Repeat("a", 256)},
		{name: strings.Repeat(":", message.MaxNameToken/3+1), prefix: strings.Repeat("=3A", 85)},
		{name: "a" + strings.Repeat(":", 400), prefix: "a" + strings.Repeat("=3A", 85)},
		{name: "ab" + strings.Repeat(":", 400), prefix: "ab" + strings.Repeat("=3A", 84)},
		{name: "ab" + strings.Repeat("ü", 1<<19), prefix: "ab" + strings.Repeat("=C3=BC", 42)},
	} {
		ref.Name = c.name
		subject := scheme.Subject(ref)
		token, ok := strings.CutPrefix(subject, stem)
		if !ok {
			t.Fatalf("subject %.100q does not begin with %q", subject, stem)
		}
		checkLegal(t, token)
		got, err := scheme.Parse(subject)
		if c.prefix == "" {
			if err != nil || got != ref {
				t.Errorf("a name of %d bytes does not come back: %v", len(c.name), err)
			}
			continue
		}
		hash, ok := strings.CutPrefix(token, c.prefix+"=H")
		if !ok || len(hash) != 64 {
			t.Errorf("token %q, want %q, =H and 64 digits", token, c.prefix)
		}
		if _, err = message.UnescapeToken(token); !errors.Is(err, message.ErrHashedToken) {
			t.Errorf("UnescapeToken(%q): %v, want ErrHashedToken", token, err)
		}
		_, err = scheme.Parse(subject)
		want := ref
		want.Name = ""
		if !errors.Is(err, message.ErrHashedToken) || got != want {
			t.Errorf("Parse(%q) = %v, %v, want all but the name and ErrHashedToken", subject, got, err)
		}
		ref.Name += "x"
		if scheme.Subject(ref) == subject {
			t.Errorf("two names of %d bytes share the subject %q", len(c.name), subject)
		}
	}
	// printf aaaa… | sha256sum
	ref.Name = strings.Repeat("a", 1025)
	if want := stem + strings.Repeat("a", 256) + "=H4A82297889EB505CF6B5CBDF69977AFAB4632D6557539782F657BD7DC78091A5"; scheme.Subject(ref) != want {
		t.Errorf("subject %q, want %q", scheme.Subject(ref), want)
	}
}

func FuzzSubject(f *testing.F) {
	f.Add("apps", "deployments", "default", "web", "default", "web2")
	f.Add("", "clusterroles", "", "system:node", "system", "node")
	f.Add("core", "a.b", ".", "_", "_", "*")
	f.Add("", "pods", "a", "b.c", "a.b", "c")
	f.Add("g", "r", "n", strings.Repeat("ü", 300), "n", strings.Repeat("ü", 301))
	f.Fuzz(func(t *testing.T, group, resource, namespace, name, namespace2, name2 string) {
		// What cannot be: see coreGroup and noNamespace.
		if group == "core" {
			group = "core.example.com"
		}
		a := change.ObjectRef{Group: group, Resource: resource + "s", Namespace: strings.ReplaceAll(namespace, ".", "-"), Name: name + "s"}
		b := change.ObjectRef{Group: group, Resource: resource + "s", Namespace: strings.ReplaceAll(namespace2, ".", "-"), Name: name2 + "s"}
		subject := scheme.Subject(a)
		tokens := strings.Split(subject, ".")
		if len(tokens) != 6 {
			t.Fatalf("subject %q of %q has %d tokens", subject, a, len(tokens))
		}
		for _, token := range tokens {
			checkLegal(t, token)
		}
		if len(tokens[5]) > message.MaxNameToken {
			t.Errorf("name token of %d bytes", len(tokens[5]))
		}
		want := a
		got, err := scheme.Parse(subject)
		if errors.Is(err, message.ErrHashedToken) && len(message.EscapeToken(a.Name)) > message.MaxNameToken {
			want.Name, err = "", nil
		}
		if err != nil || got != want {
			t.Errorf("%q became %q became %q, %v", a, subject, got, err)
		}
		if (scheme.Subject(b) == subject) != (a == b) {
			t.Errorf("subjects of %q and %q: %q, %q", a, b, subject, scheme.Subject(b))
		}
	})
}

func TestSchemeValidate(t *testing.T) {
	for _, s := range []message.Scheme{
		scheme, {Prefix: "a.b-c_d", Cluster: "A-0"}, {Prefix: "k", Cluster: strings.Repeat("a", 63)},
	} {
		if err := s.Validate(); err != nil {
			t.Errorf("%q: %v", s, err)
		}
	}
	for _, s := range []message.Scheme{
		{}, {Prefix: "kube"}, {Cluster: "prod"}, {Prefix: "kube.", Cluster: "prod"}, {Prefix: ".kube", Cluster: "prod"},
		{Prefix: "a..b", Cluster: "prod"}, {Prefix: "a.*", Cluster: "prod"}, {Prefix: "a.>", Cluster: "prod"},
		{Prefix: "a b", Cluster: "prod"}, {Prefix: "a\r\n", Cluster: "prod"}, {Prefix: "ü", Cluster: "prod"},
		{Prefix: strings.Repeat("a", 257), Cluster: "prod"}, {Prefix: "$KV", Cluster: "prod"},
		{Prefix: "kube", Cluster: "a.b"}, {Prefix: "kube", Cluster: "a_b"},
		{Prefix: "kube", Cluster: "*"}, {Prefix: "kube", Cluster: strings.Repeat("a", 64)},
	} {
		if err := s.Validate(); err == nil {
			t.Errorf("%q was accepted", s)
		}
	}
}

func TestSubjectAllocations(t *testing.T) {
	ref := deploymentChange(change.OpAdded, "").Ref
	if n := testing.AllocsPerRun(100, func() { _ = scheme.Subject(ref) }); n > 1 {
		t.Errorf("Subject: %v allocations, want the string only", n)
	}
	var buf [64]byte
	if n := testing.AllocsPerRun(100, func() { _ = message.AppendToken(buf[:0], "system:node") }); n != 0 {
		t.Errorf("AppendToken: %v allocations, want none", n)
	}
	if n := testing.AllocsPerRun(100, func() { _ = message.EscapeToken("web-1") }); n != 0 {
		t.Errorf("EscapeToken of a plain name: %v allocations, want none", n)
	}
}
