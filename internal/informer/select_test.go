package informer

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// catalogOf builds a catalog from lines: a group and its version, the preferred one first, then resources, each as
// "plural/singular/short,short". A plural that begins with ! can neither be listed nor watched.
func catalogOf(lines ...string) Catalog {
	var c Catalog
	for _, line := range lines {
		fields := strings.Fields(line)
		gv, err := schema.ParseGroupVersion(fields[0])
		if err != nil {
			panic(err)
		}
		v := CatalogVersion{Version: gv.Version}
		for _, field := range fields[1:] {
			parts := strings.Split(field+"//", "/")
			plural, dead := strings.CutPrefix(parts[0], "!")
			r := metav1.APIResource{Name: plural, SingularName: parts[1], Kind: plural, Namespaced: true, Verbs: everyVerb}
			if dead {
				r.Verbs = []string{"get", "list"}
			}
			if parts[2] != "" {
				r.ShortNames = strings.Split(parts[2], ",")
			}
			v.Resources = append(v.Resources, r)
			v.Resources = append(v.Resources, metav1.APIResource{Name: plural + "/status", Kind: plural, Verbs: everyVerb})
		}
		i := slices.IndexFunc(c.Groups, func(g CatalogGroup) bool { return g.Name == gv.Group })
		if i < 0 {
			i = len(c.Groups)
			c.Groups = append(c.Groups, CatalogGroup{Name: gv.Group})
		}
		c.Groups[i].Versions = append(c.Groups[i].Versions, v)
	}
	return c
}

// realistic is what a cluster has: core and built-in groups, custom resources of which two share a plural with others,
// and the metrics API.
func realistic() Catalog {
	return catalogOf(
		"v1 pods/pod/po services/service/svc configmaps/configmap/cm secrets/secret namespaces/namespace/ns nodes/node/no events/event/ev endpoints/endpoints/ep !bindings/binding",
		"apps/v1 deployments/deployment/deploy statefulsets/statefulset/sts replicasets/replicaset/rs",
		"apps/v1beta1 deployments/deployment/deploy controllerrevisions/controllerrevision",
		"batch/v1 jobs/job cronjobs/cronjob/cj",
		"batch/v1beta1 cronjobs/cronjob/cj",
		"networking.k8s.io/v1 ingresses/ingress/ing",
		"coordination.k8s.io/v1 leases/lease",
		"discovery.k8s.io/v1 endpointslices/endpointslice",
		"events.k8s.io/v1 events/event/ev",
		"authorization.k8s.io/v1 !subjectaccessreviews/subjectaccessreview",
		"example.com/v1 widgets/widget/wd backups/backup",
		"example.com/v2 widgets/widget/wd",
		"other.io/v1 widgets/widget/wd pods/pod secrets/secret",
		"v1.odd.io/v1 things/thing",
		"metrics.k8s.io/v1beta1 !pods/pod !nodes/node",
	)
}

func names(resources []Resource) string {
	var out []string
	for _, r := range resources {
		out = append(out, r.GVR.Version+":"+r.String())
	}
	return strings.Join(out, " ")
}

func patternsOf(text string) []Pattern {
	var out []Pattern
	for _, item := range strings.Split(text, ",") {
		name, exclude := strings.CutPrefix(item, "-")
		out = append(out, Pattern{Exclude: exclude, Text: name})
	}
	return out
}

func TestSelect(t *testing.T) {
	const everything = "v1:configmaps v1:namespaces v1:nodes v1:pods v1:services " +
		"v1beta1:controllerrevisions.apps v1:deployments.apps v1:replicasets.apps v1:statefulsets.apps " +
		"v1:cronjobs.batch v1:jobs.batch v1:ingresses.networking.k8s.io " +
		"v1:backups.example.com v1:widgets.example.com v1:pods.other.io v1:secrets.other.io v1:widgets.other.io v1:things.v1.odd.io"
	const twice = "events and events.events.k8s.io are the same objects; they are published once, as events."
	tests := []struct {
		patterns string
		want     string
		missing  string
		warnings []string
	}{
		{patterns: "pods", want: "v1:pods"},
		{patterns: "pod", want: "v1:pods"},
		{patterns: "po", want: "v1:pods"},
		{patterns: "pods.v1.", want: "v1:pods"},
		{patterns: "po.v1.", want: "v1:pods"},
		{patterns: "pods.other.io", want: "v1:pods.other.io"},
		{patterns: "pods.v1.other.io", want: "v1:pods.other.io"},
		{patterns: "pods,pods.other.io", want: "v1:pods v1:pods.other.io"},
		{patterns: "pods.metrics.k8s.io", missing: "pods.metrics.k8s.io"},
		{patterns: "deployments.apps", want: "v1:deployments.apps"},
		{patterns: "deploy.apps", want: "v1:deployments.apps"},
		{patterns: "deployments.v1beta1.apps", want: "v1beta1:deployments.apps"},
		{patterns: "deployments.v2.apps", missing: "deployments.v2.apps"},
		{patterns: "deployments", want: "v1:deployments.apps"},
		{patterns: "controllerrevisions.apps", want: "v1beta1:controllerrevisions.apps"},
		{patterns: "controllerrevisions.v1.apps", missing: "controllerrevisions.v1.apps"},
		{patterns: "deployments.apps,deployments.v1beta1.apps", want: "v1beta1:deployments.apps"},
		{patterns: "deployments.v1beta1.apps,deployments.apps", want: "v1beta1:deployments.apps"},
		{patterns: "*,deployments.v1beta1.apps", want: strings.Replace(everything, "v1:deployments.apps", "v1beta1:deployments.apps", 1)},
		{
			patterns: "deployments.v1beta1.apps,deployments.v1.apps", want: "v1beta1:deployments.apps",
			warnings: []string{"BRIDGE_RESOURCES names deployments.apps in two versions; v1beta1 is used."},
		},
		{patterns: "widgets", want: "v1:widgets.example.com"},
		{patterns: "wd", want: "v1:widgets.example.com"},
		{patterns: "widgets.other.io,widgets.example.com", want: "v1:widgets.example.com v1:widgets.other.io"},
		{patterns: "widgets.v2.example.com", want: "v2:widgets.example.com"},
		{patterns: "things.v1.odd.io", want: "v1:things.v1.odd.io"}, // a group that begins like a version
		{patterns: "things.v1.v1.odd.io", want: "v1:things.v1.odd.io"},
		{patterns: "*.apps", want: "v1beta1:controllerrevisions.apps v1:deployments.apps v1:replicasets.apps v1:statefulsets.apps"},
		{patterns: "*.batch,-cronjobs.batch", want: "v1:jobs.batch"},
		{patterns: "*.none.io,pods", want: "v1:pods", missing: "*.none.io"},
		{patterns: "*.metrics.k8s.io", missing: "*.metrics.k8s.io"},
		{patterns: "*", want: everything},
		{patterns: "*,secrets", want: strings.Replace(everything, "v1:services", "v1:secrets v1:services", 1)},
		{patterns: "secrets,*,-secrets", want: everything},
		{patterns: "*,leases", want: strings.Replace(everything, "v1:backups.", "v1:leases.coordination.k8s.io v1:backups.", 1)},
		{patterns: "*.coordination.k8s.io", want: "v1:leases.coordination.k8s.io"},
		{patterns: "*,endpointslices,endpoints", want: strings.NewReplacer(
			"v1:namespaces", "v1:endpoints v1:namespaces", "v1:backups.", "v1:endpointslices.discovery.k8s.io v1:backups.").Replace(everything)},
		{patterns: "*,-*.other.io", want: strings.Replace(everything, "v1:pods.other.io v1:secrets.other.io v1:widgets.other.io ", "", 1)},
		{patterns: "*,-po,-deployments.v1.apps", want: strings.NewReplacer("v1:pods v1:serv", "v1:serv", "v1:deployments.apps ", "").Replace(everything)},
		{patterns: "*,-deployments.v1beta1.apps", want: everything}, // not the version that is selected
		{patterns: "-pods,pods,nodes", want: "v1:nodes"},            // the order does not matter
		{patterns: "pods,-nothing", want: "v1:pods"},
		{patterns: "events", want: "v1:events"},
		{patterns: "ev", want: "v1:events"},
		{patterns: "events.events.k8s.io", want: "v1:events.events.k8s.io"},
		{patterns: "events,events.events.k8s.io", want: "v1:events", warnings: []string{twice}},
		{patterns: "*,events.events.k8s.io,ev", want: strings.Replace(everything, "v1:namespaces", "v1:events v1:namespaces", 1), warnings: []string{twice}},
		{patterns: "events,events.events.k8s.io,-events.v1.", want: "v1:events.events.k8s.io"},
		{patterns: "bindings", missing: "bindings"},
		{patterns: "gadgets,pods,gadgets.example.com", want: "v1:pods", missing: "gadgets gadgets.example.com"},
		{patterns: "pods/status", missing: "pods/status"},
	}
	for _, test := range tests {
		t.Run(test.patterns, func(t *testing.T) {
			got := Select(patternsOf(test.patterns), realistic())
			if diff := cmp.Diff(test.want, names(got.Resources)); diff != "" {
				t.Errorf("resources differ (-want +got):\n%s", diff)
			}
			if missing := strings.Join(got.Missing, " "); missing != test.missing {
				t.Errorf("missing %q, want %q", missing, test.missing)
			}
			if diff := cmp.Diff(test.warnings, got.Warnings); diff != "" {
				t.Errorf("warnings differ (-want +got):\n%s", diff)
			}
			if len(got.Unknown) > 0 {
				t.Errorf("unknown %v, want none", got.Unknown)
			}
		})
	}
}

func TestSelectKeepsWhatAResourceIs(t *testing.T) {
	c := realistic()
	c.Groups[0].Versions[0].Resources[0].Kind = "Pod"
	got := Select([]Pattern{{Text: "po"}}, c).Resources
	want := []Resource{{GVR: schema.GroupVersionResource{Version: "v1", Resource: "pods"}, Kind: "Pod", Namespaced: true}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("selection differs (-want +got):\n%s", diff)
	}
}

// What discovery could not read is not gone: it is as it was before, or unknown.
func TestPartialDiscovery(t *testing.T) {
	down := errors.New("the server is unable to handle the request")
	without := func(c Catalog, gv schema.GroupVersion, keepVersion bool) Catalog {
		out := Catalog{Failed: map[schema.GroupVersion]error{gv: down}}
		for _, g := range c.Groups {
			if g.Name == gv.Group {
				g.Versions = slices.Clone(g.Versions)
				i := slices.IndexFunc(g.Versions, func(v CatalogVersion) bool { return v.Version == gv.Version })
				if keepVersion {
					g.Versions[i].Resources = nil
				} else {
					g.Versions = slices.Delete(g.Versions, i, i+1)
				}
			}
			out.Groups = append(out.Groups, g)
		}
		return out
	}
	const patterns = "widgets,deployments.apps,backups,things,*.batch"
	before := Select(patternsOf(patterns), realistic())
	if len(before.Missing) > 0 {
		t.Fatalf("missing %v", before.Missing)
	}
	for _, gv := range []schema.GroupVersion{
		{Group: "example.com", Version: "v1"}, {Group: "apps", Version: "v1"}, {Group: "v1.odd.io", Version: "v1"}, {Group: "batch", Version: "v1"},
	} {
		for _, keepVersion := range []bool{true, false} {
			now := without(realistic(), gv, keepVersion)
			got := Select(patternsOf(patterns), now.remember(realistic()))
			if diff := cmp.Diff(before, got); diff != "" {
				t.Errorf("%s fails: the selection changes (-before +now):\n%s", gv, diff)
			}
			// A second failure in a row knows no less.
			if diff := cmp.Diff(before, Select(patternsOf(patterns), now.remember(now.remember(realistic())))); diff != "" {
				t.Errorf("%s fails twice: the selection changes (-before +now):\n%s", gv, diff)
			}
		}
	}
	t.Run("a group that is no longer listed", func(t *testing.T) {
		now := without(realistic(), schema.GroupVersion{Group: "v1.odd.io", Version: "v1"}, true)
		now.Groups = slices.DeleteFunc(now.Groups, func(g CatalogGroup) bool { return g.Name == "v1.odd.io" })
		if got := Select(patternsOf("things"), now.remember(realistic())); names(got.Resources) != "v1:things.v1.odd.io" {
			t.Errorf("selection %+v", got)
		}
	})
	t.Run("at the start", func(t *testing.T) {
		now := without(realistic(), schema.GroupVersion{Group: "v1.odd.io", Version: "v1"}, false)
		got := Select(patternsOf("things,things.v1.odd.io,things.v1.v1.odd.io,*.v1.odd.io,gadgets.example.com,pods"), now.remember(Catalog{}))
		const why = "v1.odd.io/v1: the server is unable to handle the request"
		want := []Unknown{{"things", why}, {"things.v1.odd.io", why}, {"things.v1.v1.odd.io", why}, {"*.v1.odd.io", why}}
		if diff := cmp.Diff(want, got.Unknown); diff != "" {
			t.Errorf("unknown differs (-want +got):\n%s", diff)
		}
		if names(got.Resources) != "v1:pods" || strings.Join(got.Missing, " ") != "gadgets.example.com" {
			t.Errorf("resources %s, missing %v", names(got.Resources), got.Missing)
		}
	})
	t.Run("gone at last", func(t *testing.T) {
		now := without(realistic(), schema.GroupVersion{Group: "v1.odd.io", Version: "v1"}, true)
		gone := realistic()
		gone.Groups = slices.DeleteFunc(gone.Groups, func(g CatalogGroup) bool { return g.Name == "v1.odd.io" })
		got := Select(patternsOf("things"), gone.remember(now.remember(realistic())))
		if len(got.Resources) > 0 || len(got.Missing) != 1 || len(got.Unknown) > 0 {
			t.Errorf("selection %+v, want it missing", got)
		}
	})
}
