package informer

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/deltabridge/deltabridge/internal/change"
)

var configMapsResource = schema.GroupResource{Resource: "configmaps"}

// survey returns what the pages of a survey say, one line a state and one a list.
func (f *managed) survey(t *testing.T, s Scope) []string {
	t.Helper()
	var out []string
	err := f.m.Survey(t.Context(), s, "r1", func(p Page) error {
		for _, c := range p.States {
			if c.Run != "r1" || len(c.Raw) == 0 {
				t.Errorf("state %+v", c)
			}
			out = append(out, describeChange(c))
		}
		if p.Covers != nil {
			line := "list " + p.Version + " covers"
			for _, ns := range []string{"a", "b", "c"} {
				if p.Covers(ns) {
					line += " " + ns
				}
			}
			out = append(out, line)
		}
		return nil
	})
	if err != nil {
		t.Errorf("survey of %+v: %v", s, err)
	}
	return out
}

func TestSurvey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newAPI(t)
		a := api.put("a", "x", "0")
		b := api.put("b", "x", "0")
		c := api.put("c", "x", "0")
		api.configure(func() { api.pageSize = 2 })
		f := api.manage("configmaps", func(o *Options) { o.ExcludeNamespaces = []string{"c"} })
		f.next()
		text := strconv.Itoa
		line := func(ns string, rv int) string { return "synced configmaps/" + ns + "/x " + text(rv) + " repair" }
		expect(t, "states", f.survey(t, Scope{Resource: configMapsResource}), line("a", a), line("b", b), "list "+text(c)+" covers a b")
		expect(t, "states", f.survey(t, Scope{Resource: configMapsResource, Namespace: "b"}), line("b", b), "list "+text(c)+" covers b")
		f.survey(t, Scope{Resource: configMapsResource, Selector: "app=x"})
		last := api.seen("list")
		if q := last[len(last)-1].query; q.Get("labelSelector") != "app=x" || q.Get("resourceVersion") != "" {
			t.Errorf("asked with %v", q)
		}
		for _, s := range []Scope{{Resource: configMapsResource, Namespace: "c"}, {Resource: schema.GroupResource{Resource: "pods"}}} {
			if err := f.m.Survey(t.Context(), s, "r1", func(Page) error { return nil }); err == nil {
				t.Errorf("%+v is surveyed", s)
			}
		}
		stop := errors.New("stop")
		if err := f.m.Survey(t.Context(), Scope{Resource: configMapsResource}, "r1", func(Page) error { return stop }); !errors.Is(err, stop) {
			t.Errorf("got %v", err)
		}
		api.configure(func() { api.intercept = failing("configmaps", http.StatusForbidden, "Forbidden", "list") })
		if err := f.m.Survey(t.Context(), Scope{Resource: configMapsResource}, "r1", nil); err == nil || !strings.Contains(err.Error(), "list configmaps") {
			t.Errorf("got %v", err)
		}
	})
}

// A resource that is followed namespace by namespace is surveyed so.
func TestSurveyOfNamespaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newAPI(t)
		api.configure(func() {
			api.intercept = func(w http.ResponseWriter, r *request) bool {
				return r.namespace == "" && failing("configmaps", http.StatusForbidden, "Forbidden", "list", "watch")(w, r)
			}
		})
		a, b := api.put("a", "x", "0"), api.put("b", "x", "0")
		f := api.manage("configmaps", inNamespaces("a", "b"))
		f.next()
		text := strconv.Itoa
		expect(t, "states", f.survey(t, Scope{Resource: configMapsResource}),
			"synced configmaps/a/x "+text(a)+" repair", "list "+text(b)+" covers a",
			"synced configmaps/b/x "+text(b)+" repair", "list "+text(b)+" covers b")
		expect(t, "states", f.survey(t, Scope{Resource: configMapsResource, Namespace: "b"}),
			"synced configmaps/b/x "+text(b)+" repair", "list "+text(b)+" covers b")
		c := &change.Change{Op: change.OpSynced, Ref: change.ObjectRef{Resource: "configmaps", Namespace: "b", Name: "x"}}
		if taken, err := f.m.Repeat(c); !taken || err != nil {
			t.Errorf("not taken: %v", err)
		}
		f.setBusy(true)
		if taken, err := f.m.Repeat(c); taken || err != nil {
			t.Errorf("taken although busy: %v", err)
		}
		c.Ref.Namespace = "z"
		if _, err := f.m.Repeat(c); err == nil {
			t.Error("a state of a namespace that is not followed is taken")
		}
	})
}

func TestMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newAPI(t)
		api.put("a", "gone", "0")
		api.put("a", "again", "0")
		alive := api.put("a", "alive", "0")
		var known []Known
		for _, o := range api.objects {
			known = append(known, Known{Namespace: o.namespace, Name: o.name, UID: types.UID(o.uid), RV: strconv.Itoa(o.version)})
		}
		api.remove("a", "gone")
		api.remove("a", "again")
		api.put("a", "again", "1")
		f := api.manage("configmaps")
		forbidden := failing("configmaps", http.StatusForbidden, "Forbidden", "get")
		for _, intercept := range []func(http.ResponseWriter, *request) bool{nil, forbidden} {
			api.configure(func() { api.intercept = intercept })
			var got []string
			for _, k := range known {
				c, err := f.m.Missing(context.Background(), configMapsResource, k, "999")
				if err != nil {
					t.Fatal(err)
				}
				if c != nil {
					got = append(got, describeChange(c)+" "+c.GVK.Kind)
				}
			}
			expect(t, "deletions", got,
				"deleted configmaps/a/gone 101 repair gap 101-999 ConfigMap", "deleted configmaps/a/again 102 repair gap 102-999 ConfigMap")
		}
		api.configure(func() { api.intercept = failing("configmaps", 500, "InternalError", "get") })
		if c, err := f.m.Missing(context.Background(), configMapsResource, known[2], "999"); err == nil || c != nil {
			t.Errorf("alive at %d: %v, %v", alive, c, err)
		}
	})
}

func TestTargets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newAPI(t)
		api.configure(func() {
			api.discovery.groups = append(standardGroups(), widgets("v2"), apiGroup{"other.com", []apiVersion{{"v1", []apiResource{{name: "widgets", kind: "Widget", verbs: everyVerb}}}}})
		})
		f := api.manage("*")
		for _, c := range []struct {
			names     []string
			namespace string
			want      string
		}{
			{nil, "", "configmaps deployments.apps namespaces widgets.example.com widgets.other.com"},
			{nil, "a", "configmaps deployments.apps widgets.example.com widgets.other.com"},
			{[]string{"deployments", "configmap", "configmaps"}, "a", "configmaps deployments.apps"},
			{[]string{"deployments.v1.apps", "widgets.other.com"}, "", "deployments.apps widgets.other.com"},
			{[]string{"pods"}, "", `resource "pods" is not one that the bridge follows; it follows configmaps, deployments.apps, namespaces, widgets.example.com, widgets.other.com`},
			{[]string{"widgets"}, "", `resource "widgets" is ambiguous, it may be widgets.example.com, widgets.other.com`},
			{[]string{"namespaces"}, "a", "namespaces have no namespaces, leave the namespace out"},
		} {
			found, err := f.m.Targets(c.names, c.namespace)
			got := fmt.Sprint(err)
			if err == nil {
				names := []string{}
				for _, gr := range found {
					names = append(names, gr.String())
				}
				got = strings.Join(names, " ")
			}
			if got != c.want {
				t.Errorf("%q in %q: %s, want %s", c.names, c.namespace, got, c.want)
			}
		}
		if !slices.Contains(f.states(), "widgets.other.com v1 watching") {
			t.Errorf("states %q", f.states())
		}
	})
}
