package chart

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/deltabridge/deltabridge/internal/config"
)

// TestTemplate lints and renders the chart with each file of values.
func TestTemplate(t *testing.T) {
	for name, path := range valuesFiles(t) {
		t.Run(name, func(t *testing.T) {
			helm(t, nil, "lint", "--strict", chartDir(), "-f", path)
			got := render(t, "-f", path)
			// What is in files/ has tests of its own, and would drown the rest.
			for file, marker := range map[string]string{"alerts.yaml": "ALERTS", "dashboard.json": "DASHBOARD"} {
				content, err := os.ReadFile(filepath.Join(chartDir(), "files", file))
				if err != nil {
					t.Fatal(err)
				}
				for _, indent := range []string{"  ", "    "} {
					text := indent + strings.ReplaceAll(strings.TrimSpace(string(content)), "\n", "\n"+indent)
					got = strings.ReplaceAll(got, text, indent+marker)
				}
			}
			compare(t, filepath.Join("testdata", "golden", name+".yaml"), got)
		})
	}
}

// compare compares with a golden file, or writes it.
func compare(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("read the golden file (-update writes it): %v", err)
	}
	if got == string(want) {
		return
	}
	gotLines, wantLines := strings.Split(got, "\n"), strings.Split(string(want), "\n")
	at := 0
	for at < len(gotLines) && at < len(wantLines) && gotLines[at] == wantLines[at] {
		at++
	}
	line := func(lines []string) string {
		return strings.Join(lines[min(at, len(lines)):min(at+3, len(lines))], "\n")
	}
	t.Errorf("%s is out of date (-update writes it anew); line %d is now\n%s\nand was\n%s", path, at+1, line(gotLines), line(wantLines))
}

// TestRefusals renders the chart with values that cannot work.
func TestRefusals(t *testing.T) {
	for set, want := range map[string]string{
		"replicas=2,leaderElection.enabled=false": "/leaderElection/enabled",
		"replicas=-1":           "/replicas",
		"unknown=1":             "additional properties 'unknown' not allowed",
		"watch.unknown=1":       "additional properties 'unknown' not allowed",
		"nats.creds.password=x": "additional properties 'password' not allowed",
		"nats.creds.secret=a,nats.token.secret=b":                             "/nats",
		"nats.user.secret=a,nats.nkey.secret=b":                               "/nats",
		"nats.urls={nats://user:password@host}":                               "/nats/urls/0",
		"nats.urls=null":                                                      "/nats/context/secret",
		"nats.tls.ca.secret=a,nats.tls.ca.configMap=b":                        "/nats/tls/ca",
		"metrics.serviceMonitor.enabled=true,metrics.podMonitor.enabled=true": "/metrics/podMonitor/enabled",
		"metrics.serviceMonitor.enabled=true,metrics.service.enabled=false":   "/metrics/service/enabled",
		"stream.nack.enabled=true,stream.mode=manage":                         "/stream/mode",
		"stream.nack.enabled=true,stream.maxBytes=10Gi":                       "/stream/maxBytes",
		"stream.name=a=b":                                                     "/stream/name",
		"stream.replicas=6":                                                   "/stream/replicas",
		"cluster=a.b":                                                         "/cluster",
		"kube.context=admin":                                                  "/kube/kubeconfig/secret",
		"rbac.clusterResources={nodes}":                                       "/rbac/clusterResources",
		"livenessProbe.exec.command={true}":                                   "additional properties 'exec' not allowed",
		"shutdownGraceSeconds=20s":                                            "/shutdownGraceSeconds",
		"watch.resources={Pods}":                                              "/watch/resources/0",
		"watch.resources={pods/status}":                                       "/watch/resources/0",
		"watch.resources={po}":                                                `the group of "po" is not known here`,
		"watch.namespaces={a},watch.resources={nodes}":                        `"nodes" is not namespaced`,
		"watch.namespaces={a},watch.excludeNamespaces={a}":                    `"a" is in watch.namespaces, too`,
	} {
		t.Run(set, func(t *testing.T) {
			_, stderr, err := runHelm(t, nil, "template", release, chartDir(), "--set", set)
			var exit *exec.ExitError
			if !errors.As(err, &exit) || !strings.Contains(stderr, want) {
				t.Errorf("--set %s: %v\n%s\nwant a refusal with %q", set, err, stderr, want)
			}
		})
	}
}

// TestVariables holds the chart's default values to the bridge's, and the rendered environment to what the bridge takes.
func TestVariables(t *testing.T) {
	given := map[string]bool{}
	for name, path := range valuesFiles(t) {
		objects := parse(t, render(t, "-f", path))
		var environ []string
		for variable, value := range variables(t, objects) {
			environ = append(environ, variable+"="+value)
			given[variable] = true
		}
		container := bridgeContainer(t, only(t, objects, "Deployment"))
		env, _, _ := unstructured.NestedSlice(container, "env")
		for _, entry := range env {
			variable := entry.(map[string]any)["name"].(string)
			given[variable] = true
			if variable != "POD_NAMESPACE" && variable != "GOMEMLIMIT" {
				environ = append(environ, variable+"=0123456789abcdef")
			}
		}
		c, warnings, err := config.Load(environ)
		if err != nil || len(warnings) > 0 {
			t.Errorf("%s: the bridge does not take the environment: %v, warnings %v", name, err, warnings)
			continue
		}
		if name == "defaults" {
			for _, s := range c.Redacted() {
				if !s.Default && s.Name != "NATS_URL" { // a pod has no NATS on loopback
					t.Errorf("the chart's default of %s is %s, which is not the bridge's", s.Name, s.Value)
				}
			}
		}
	}
	for _, extra := range [][]string{
		{"--set", "nats.nkey.secret=a"}, {"--set", "nats.token.secret=a"}, {"--set", "nats.context.secret=a"},
	} {
		objects := parse(t, render(t, extra...))
		for variable := range variables(t, objects) {
			given[variable] = true
		}
		env, _, _ := unstructured.NestedSlice(bridgeContainer(t, only(t, objects, "Deployment")), "env")
		for _, entry := range env {
			given[entry.(map[string]any)["name"].(string)] = true
		}
	}
	for _, s := range new(config.Config).Redacted() {
		if !given[s.Name] {
			t.Errorf("no value of the chart sets %s", s.Name)
		}
	}
}

// bridgeContainer returns the container of a Deployment.
func bridgeContainer(t testing.TB, deployment *unstructured.Unstructured) map[string]any {
	t.Helper()
	containers, _, err := unstructured.NestedSlice(deployment.Object, "spec", "template", "spec", "containers")
	if err != nil || len(containers) != 1 {
		t.Fatalf("the pod has %d containers, want one: %v", len(containers), err)
	}
	return containers[0].(map[string]any)
}

// rulesOf returns the rules of all roles.
func rulesOf(t testing.TB, objects []*unstructured.Unstructured) []rbacv1.PolicyRule {
	t.Helper()
	var rules []rbacv1.PolicyRule
	for _, o := range slices.Concat(find(objects, "ClusterRole"), find(objects, "Role")) {
		var role rbacv1.Role
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &role); err != nil {
			t.Fatalf("read %s %s: %v", o.GetKind(), o.GetName(), err)
		}
		rules = append(rules, role.Rules...)
	}
	return rules
}

// TestReadingRights holds every right but that to the Lease to reading.
func TestReadingRights(t *testing.T) {
	for name, path := range valuesFiles(t) {
		for _, rule := range rulesOf(t, parse(t, render(t, "-f", path))) {
			if slices.Equal(rule.Resources, []string{"leases"}) && name != "wildcard" {
				continue
			}
			for _, verb := range rule.Verbs {
				if !slices.Contains([]string{"get", "list", "watch"}, verb) {
					t.Errorf("%s: the verb %s in %v", name, verb, rule)
				}
			}
		}
	}
	for _, rule := range rulesOf(t, parse(t, render(t))) {
		if slices.Contains(rule.Resources, "leases") {
			t.Errorf("without leader election there is a right to leases: %v", rule)
		}
	}
}

// TestEnableResource is case C2: a resource that is enabled in the values is one that the rights hold, to be read only.
func TestEnableResource(t *testing.T) {
	reads := func(group, resource string, args ...string) (verbs []string) {
		for _, rule := range rulesOf(t, parse(t, render(t, args...))) {
			if slices.Contains(rule.APIGroups, group) && slices.Contains(rule.Resources, resource) {
				verbs = append(verbs, rule.Verbs...)
			}
		}
		slices.Sort(verbs)
		return verbs
	}
	for _, r := range []struct{ named, group, resource string }{
		{"secrets", "", "secrets"},
		{"networkpolicies.networking.k8s.io", "networking.k8s.io", "networkpolicies"},
		{"gears.v1.chart.deltabridge.io", "chart.deltabridge.io", "gears"},
	} {
		if before := reads(r.group, r.resource); before != nil {
			t.Errorf("before: %s may %v", r.named, before)
		}
		enable := "watch.resources={pods," + r.named + "}"
		if after := reads(r.group, r.resource, "--set", enable); !slices.Equal(after, []string{"list", "watch"}) {
			t.Errorf("after: %s may %v, want list and watch", r.named, after)
		}
		after := reads(r.group, r.resource, "--set", enable, "--set", "watch.namespaces={default}")
		if !slices.Equal(after, []string{"list", "watch"}) {
			t.Errorf("in a namespace: %s may %v, want list and watch", r.named, after)
		}
	}
}

// TestChangeRolls is case C3: a value that changes the bridge's configuration changes the pod template.
func TestChangeRolls(t *testing.T) {
	template := func(args ...string) map[string]any {
		t.Helper()
		deployment := only(t, parse(t, render(t, args...)), "Deployment")
		content, _, err := unstructured.NestedMap(deployment.Object, "spec", "template")
		if err != nil {
			t.Fatal(err)
		}
		return content
	}
	sum := func(content map[string]any) string {
		value, _, _ := unstructured.NestedString(content, "metadata", "annotations", "checksum/config")
		return value
	}
	before := sum(template())
	if before == "" {
		t.Fatal("the pod template has no annotation checksum/config")
	}
	if again := sum(template()); again != before {
		t.Error("the same values give another checksum")
	}
	for _, set := range []string{
		"log.level=debug", "watch.resources={pods}", "watch.namespaces={default}", "cluster=other", "nats.urls={nats://other}",
		"stream.history=1", "shutdownGraceSeconds=5", "replicas=2", "kube.qps=1", "strip={status}",
	} {
		if sum(template("--set", set)) == before {
			t.Errorf("--set %s does not change the pod template", set)
		}
	}
	if sum(template("--set", "deploymentAnnotations.a=b")) != before {
		t.Error("an annotation of the Deployment rolls the pods")
	}
}
