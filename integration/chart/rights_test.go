package chart

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/deltabridge/deltabridge/integration/harness"
)

// right is one verb on one resource of a rule, which a test takes away.
type right struct {
	resource, verb string
	named          bool // in a rule that names objects
}

// none takes nothing away.
var none = right{}

// installed is a release whose objects exist as far as a bridge without a kubelet needs them.
type installed struct {
	api     *api
	objects []*unstructured.Unstructured
	env     map[string]string
	lost    right
}

// watched is what the releases watch: of the core, of a group, and a custom resource. None of it is namespaces, whose own
// rule would cover that to list them.
const watched = "watch.resources={configmaps,deployments.apps,gears.chart.deltabridge.io}"

// install creates what the chart renders for a cluster of this name, less a right, and returns the environment that the
// container of the Deployment has: as rendered, but that the server listens on loopback, and that a kubeconfig holds
// what a kubelet would mount, a token of the chart's ServiceAccount.
func install(t *testing.T, a *api, natsURL, cluster string, lost right, set ...string) *installed {
	t.Helper()
	port, err := harness.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	args := []string{
		"--set", watched, "--set", "fullnameOverride=" + cluster, "--set", "cluster=" + cluster, "--set", "nats.urls={" + natsURL + "}",
		"--set", "httpPort=" + strconv.Itoa(port), "--set", "replicas=2", "--set", "leaderElection.leaseDurationSeconds=3",
		// One stream takes a version of an object once, also under the name of another cluster.
		"--set", "stream.name=" + cluster, "--set", "stream.subjectPrefix=" + cluster,
	}
	for _, s := range set {
		args = append(args, "--set", s)
	}
	r := &installed{api: a, objects: parse(t, render(t, args...)), lost: lost}
	taken := r.take(t, lost)
	if lost != none && taken != 1 {
		t.Fatalf("%d rules hold the right %v, want one", taken, lost)
	}
	for _, o := range r.objects {
		if slices.Contains([]string{"ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "ConfigMap", "Deployment"}, o.GetKind()) {
			if _, err := a.resource(t, o).Create(t.Context(), o, metav1.CreateOptions{}); err != nil {
				t.Fatalf("create %s %s: %v", o.GetKind(), o.GetName(), err)
			}
		}
	}
	r.env = r.environment(t)
	r.env["KUBECONFIG"] = r.kubeconfig(t)
	r.env["BRIDGE_HTTP_ADDR"] = "127.0.0.1" + r.env["BRIDGE_HTTP_ADDR"]
	return r
}

// take removes a right from the rules and returns how many held it.
func (r *installed) take(t *testing.T, lost right) (taken int) {
	t.Helper()
	for _, o := range r.objects {
		rules, _, _ := unstructured.NestedSlice(o.Object, "rules")
		var kept []any
		for _, rule := range rules {
			rule := rule.(map[string]any)
			resources, _, _ := unstructured.NestedStringSlice(rule, "resources")
			verbs, _, _ := unstructured.NestedStringSlice(rule, "verbs")
			_, named := rule["resourceNames"]
			if !slices.Contains(resources, lost.resource) || !slices.Contains(verbs, lost.verb) || named != lost.named {
				kept = append(kept, rule)
				continue
			}
			taken++
			if len(resources) > 1 {
				t.Fatalf("a rule with several resources: %v", rule)
			}
			if verbs = slices.DeleteFunc(verbs, func(v string) bool { return v == lost.verb }); len(verbs) > 0 {
				rest := map[string]any{"verbs": toAny(verbs)}
				for field, value := range rule {
					if field != "verbs" {
						rest[field] = value
					}
				}
				kept = append(kept, rest)
			}
		}
		if rules != nil {
			o.Object["rules"] = kept
		}
	}
	return taken
}

func toAny(texts []string) []any {
	out := make([]any, len(texts))
	for i, text := range texts {
		out[i] = text
	}
	return out
}

// environment resolves the container's env and envFrom as a kubelet does.
func (r *installed) environment(t *testing.T) map[string]string {
	t.Helper()
	container := bridgeContainer(t, only(t, r.objects, "Deployment"))
	env := map[string]string{}
	sources, _, _ := unstructured.NestedSlice(container, "envFrom")
	for _, source := range sources {
		name, found, _ := unstructured.NestedString(source.(map[string]any), "configMapRef", "name")
		if !found || name != only(t, r.objects, "ConfigMap").GetName() {
			t.Fatalf("a source of variables that this test does not know: %v", source)
		}
		for variable, value := range variables(t, r.objects) {
			env[variable] = value
		}
	}
	entries, _, _ := unstructured.NestedSlice(container, "env")
	for _, entry := range entries {
		entry := entry.(map[string]any)
		path, _, _ := unstructured.NestedString(entry, "valueFrom", "fieldRef", "fieldPath")
		if path != "metadata.namespace" {
			t.Fatalf("a variable that this test does not know: %v", entry)
		}
		env[entry["name"].(string)] = releaseNamespace
	}
	return env
}

// kubeconfig writes one with a token of the ServiceAccount.
func (r *installed) kubeconfig(t *testing.T) string {
	t.Helper()
	admin := r.api.plane.Config()
	client, err := kubernetes.NewForConfig(admin)
	if err != nil {
		t.Fatal(err)
	}
	account, _, _ := unstructured.NestedString(only(t, r.objects, "Deployment").Object, "spec", "template", "spec", "serviceAccountName")
	token, err := client.CoreV1().ServiceAccounts(releaseNamespace).CreateToken(t.Context(), account, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("create a token of the ServiceAccount %s: %v", account, err)
	}
	config := clientcmdapi.NewConfig()
	config.Clusters["c"] = &clientcmdapi.Cluster{Server: admin.Host, CertificateAuthorityData: admin.CAData}
	config.AuthInfos["c"] = &clientcmdapi.AuthInfo{Token: token.Status.Token}
	config.Contexts["c"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "c"}
	config.CurrentContext = "c"
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		t.Fatal(err)
	}
	return path
}

// works returns nil if everything works for which the chart grants a right, that to deal with a removed definition apart.
func works(ctx context.Context, b *harness.Bridge, js jetstream.JetStream, cluster string) error {
	if err := b.Ready(ctx); err != nil {
		return err
	}
	status, err := statusOf(ctx, b)
	if err != nil {
		return err
	}
	if len(status.Resources) != 3 {
		return fmt.Errorf("%d resources, want 3", len(status.Resources))
	}
	for _, r := range status.Resources {
		if r.State != "watching" || !r.Synced {
			return fmt.Errorf("%s: %s %s", r.Resource, r.State, r.Verb)
		}
	}
	record, err := lastMessage(ctx, js, cluster, "")
	if err != nil {
		return fmt.Errorf("read the writer record: %w", err)
	}
	var writer struct{ ClusterUID string }
	if err := json.Unmarshal(record.Data, &writer); err != nil {
		return err
	}
	if writer.ClusterUID == "" {
		return fmt.Errorf("the cluster's uid is not known")
	}
	return nil
}

type status struct {
	Resources []struct {
		Resource, State, Verb string
		Synced                bool
	}
}

func statusOf(ctx context.Context, b *harness.Bridge) (status, error) {
	var out status
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, b.URL("/statusz"), nil)
	if err != nil {
		return out, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return out, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return out, err
	}
	return out, json.Unmarshal(body, &out)
}

// lastMessage reads the last message of a subject of the cluster, "" for that of its writer records.
func lastMessage(ctx context.Context, js jetstream.JetStream, cluster, subject string) (*jetstream.RawStreamMsg, error) {
	stream, err := js.Stream(ctx, cluster)
	if err != nil {
		return nil, err
	}
	return stream.GetLastMsgForSubject(ctx, cluster+"."+cluster+subject)
}

// TestRights runs the bridge with the rights that the chart grants and the environment that it renders: everything works,
// and of each right taken away something is missed.
func TestRights(t *testing.T) {
	a := startAPI(t)
	server := harness.StartNATS(t)
	js := server.JetStream(t)
	gear := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "chart.deltabridge.io/v1", "kind": "Gear", "metadata": map[string]any{"name": "gear", "namespace": "team-a"},
	}}
	if _, err := a.resource(t, gear).Create(t.Context(), gear, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}

	full := install(t, a, server.URL(), "full", none)
	bridge := harness.StartBridge(t, full.env)
	harness.Eventually(t, harness.Patience, func() error { return works(t.Context(), bridge, js, "full") })
	checkProbes(t, bridge, full)
	// It goes on leading: the Lease is renewed.
	harness.Never(t, 4*time.Second, func() error {
		if bridge.Metric(t, "deltabridge_leader") != 1 {
			return fmt.Errorf("it does not lead any more")
		}
		return nil
	})

	namespaced := install(t, a, server.URL(), "namespaced", none, "watch.namespaces={team-a,team-b}")
	inNamespaces := harness.StartBridge(t, namespaced.env)
	harness.Eventually(t, harness.Patience, func() error { return works(t.Context(), inNamespaces, js, "namespaced") })
	if roles := find(namespaced.objects, "ClusterRole"); len(roles) > 0 {
		t.Errorf("with watch.namespaces there is a ClusterRole %s", roles[0].GetName())
	}

	t.Run("less", func(t *testing.T) {
		for _, lost := range []struct {
			right
			missed string // in /readyz, /statusz or the log
		}{
			{right{"configmaps", "list", false}, "configmaps: forbidden list"},
			{right{"configmaps", "watch", false}, "configmaps: forbidden watch"},
			{right{"deployments", "list", false}, "deployments.apps: forbidden list"},
			{right{"deployments", "watch", false}, "deployments.apps: forbidden watch"},
			{right{"gears", "list", false}, "gears.chart.deltabridge.io: forbidden list"},
			{right{"gears", "watch", false}, "gears.chart.deltabridge.io: forbidden watch"},
			{right{"namespaces", "get", true}, "the cluster's uid is not known"},
			{right{"leases", "create", false}, "cannot create resource"},
			{right{"leases", "get", true}, "cannot get resource"},
			{right{"leases", "update", true}, "cannot update resource"},
		} {
			name := lost.resource + "-" + lost.verb
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				b := harness.StartBridge(t, install(t, a, server.URL(), name, lost.right).env)
				harness.Eventually(t, harness.Patience, func() error {
					err := works(t.Context(), b, js, name)
					text := b.Stderr()
					if err != nil {
						text += err.Error()
					}
					if !strings.Contains(text, lost.missed) {
						return fmt.Errorf("without the right nothing says %q, but: %w", lost.missed, err)
					}
					return nil
				})
			})
		}
	})
	removedDefinition(t, a, server, js, gear, bridge, full)
}

// removedDefinition takes the definition of a custom resource away while the bridges are down: one that has all rights, and
// two that miss one of the two rights that are for this.
func removedDefinition(t *testing.T, a *api, server *harness.NATS, js jetstream.JetStream, gear *unstructured.Unstructured, bridge *harness.Bridge, full *installed) {
	t.Helper()
	const subject = ".chart_deltabridge_io.gears.team-a.gear"
	blind := install(t, a, server.URL(), "blind", right{"customresourcedefinitions", "get", true})
	vague := install(t, a, server.URL(), "vague", right{"namespaces", "list", false})
	first := map[string]*harness.Bridge{"full": bridge, "blind": harness.StartBridge(t, blind.env), "vague": harness.StartBridge(t, vague.env)}
	for name, b := range first {
		harness.Eventually(t, harness.Patience, func() error { return works(t.Context(), b, js, name) })
		harness.Eventually(t, harness.Patience, func() error {
			_, err := lastMessage(t.Context(), js, name, subject)
			return err
		})
		if err := b.Stop(30 * time.Second); err != nil {
			t.Fatal(err)
		}
	}
	definitions := a.plane.Dynamic().Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	if err := definitions.Delete(t.Context(), "gears.chart.deltabridge.io", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	gears := a.resource(t, gear)
	harness.Eventually(t, harness.Patience, func() error {
		_, err := gears.Get(t.Context(), "gear", metav1.GetOptions{})
		_, definitionErr := definitions.Get(t.Context(), "gears.chart.deltabridge.io", metav1.GetOptions{})
		if apierrors.IsNotFound(err) && apierrors.IsNotFound(definitionErr) {
			return nil
		}
		return fmt.Errorf("the resource is still there: %w", errors.Join(err, definitionErr, errors.New("want both not found")))
	})

	harness.StartBridge(t, full.env)
	harness.StartBridge(t, vague.env)
	second := harness.StartBridge(t, blind.env)
	for name, gap := range map[string]bool{"full": true, "vague": false} {
		harness.Eventually(t, harness.Patience, func() error {
			m, err := lastMessage(t.Context(), js, name, subject)
			if err != nil {
				return err
			}
			if m.Header.Get("ce-reason") != "kind-removed" || (m.Header.Get("ce-gap") != "") != gap {
				return fmt.Errorf("%s: the last message has reason %q and gap %q, want kind-removed, and a gap: %t",
					name, m.Header.Get("ce-reason"), m.Header.Get("ce-gap"), gap)
			}
			return nil
		})
	}
	harness.Eventually(t, harness.Patience, func() error {
		const want = "the right to get customresourcedefinitions is missing"
		if !strings.Contains(second.Stderr(), want) {
			return fmt.Errorf("the log does not say that %s", want)
		}
		return nil
	})
}

// checkProbes asks what the rendered probes ask, at the rendered port.
func checkProbes(t *testing.T, b *harness.Bridge, r *installed) {
	t.Helper()
	container := bridgeContainer(t, only(t, r.objects, "Deployment"))
	ports, _, _ := unstructured.NestedSlice(container, "ports")
	if len(ports) != 1 {
		t.Fatalf("ports: %v", ports)
	}
	port := ports[0].(map[string]any)
	number := fmt.Sprint(port["containerPort"])
	for _, name := range []string{"startupProbe", "livenessProbe", "readinessProbe"} {
		path, _, _ := unstructured.NestedString(container, name, "httpGet", "path")
		if at, _, _ := unstructured.NestedString(container, name, "httpGet", "port"); at != port["name"] {
			t.Errorf("the %s asks at the port %q, which is none", name, at)
		}
		url := b.URL(path)
		if !strings.Contains(url, ":"+number+"/") {
			t.Errorf("the bridge serves %s, and the container's port is %s", url, number)
		}
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		response.Body.Close()
		if response.StatusCode != http.StatusOK {
			t.Errorf("%s: %s answers %s", name, path, response.Status)
		}
	}
}
