package informer

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
)

// discoveryDoc is what the scripted API server says that it has.
type discoveryDoc struct {
	groups []apiGroup
	legacy bool     // one document for each group version, as before aggregated discovery
	stale  []string // group versions that it cannot tell the resources of
}

type apiGroup struct {
	name     string
	versions []apiVersion
}

type apiVersion struct {
	name      string
	resources []apiResource
}

type apiResource struct {
	name, kind, singular string
	short                []string
	cluster              bool // cluster-scoped
	verbs                []string
}

var everyVerb = []string{"create", "delete", "get", "list", "patch", "update", "watch"}

func standardGroups() []apiGroup {
	return []apiGroup{
		{"", []apiVersion{{"v1", []apiResource{
			{name: "configmaps", kind: "ConfigMap", singular: "configmap", short: []string{"cm"}, verbs: everyVerb},
			{name: "namespaces", kind: "Namespace", singular: "namespace", cluster: true, verbs: everyVerb},
		}}}},
		{"apps", []apiVersion{{"v1", []apiResource{
			{name: "deployments", kind: "Deployment", singular: "deployment", verbs: everyVerb},
		}}}},
	}
}

func widgets(versions ...string) apiGroup {
	g := apiGroup{name: "example.com"}
	for _, v := range versions {
		g.versions = append(g.versions, apiVersion{v, []apiResource{{name: "widgets", kind: "Widget", singular: "widget", verbs: everyVerb}}})
	}
	return g
}

func (a *api) serveDiscovery(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	d := a.discovery
	a.mu.Unlock()
	aggregated := !d.legacy && strings.Contains(r.Header.Get("Accept"), "as=APIGroupDiscoveryList")
	var body any
	contentType := "application/json"
	switch path := strings.Trim(r.URL.Path, "/"); {
	case aggregated && (path == "api" || path == "apis"):
		contentType = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
		body = d.aggregated(path == "api")
	case path == "api":
		body = map[string]any{"kind": "APIVersions", "versions": []string{"v1"}}
	case path == "apis":
		body = d.groupList()
	default:
		gv := strings.TrimPrefix(strings.TrimPrefix(path, "apis/"), "api/")
		list := d.resourceList(gv)
		if list == nil {
			refuse(w, http.StatusServiceUnavailable, "ServiceUnavailable", "the server is currently unable to handle the request")
			return
		}
		body = list
	}
	w.Header().Set("Content-Type", contentType)
	_ = json.NewEncoder(w).Encode(body)
}

func groupVersion(group, version string) string {
	return strings.TrimPrefix(group+"/"+version, "/")
}

func (d discoveryDoc) aggregated(core bool) any {
	var items []any
	for _, g := range d.groups {
		if (g.name == "") != core {
			continue
		}
		var versions []any
		for _, v := range g.versions {
			version := map[string]any{"version": v.name, "freshness": "Current"}
			if slices.Contains(d.stale, groupVersion(g.name, v.name)) {
				version["freshness"] = "Stale"
			} else {
				var resources []any
				for _, r := range v.resources {
					scope := "Namespaced"
					if r.cluster {
						scope = "Cluster"
					}
					resources = append(resources, map[string]any{
						"resource": r.name, "singularResource": r.singular, "shortNames": r.short, "scope": scope, "verbs": r.verbs,
						"responseKind": map[string]any{"group": g.name, "version": v.name, "kind": r.kind},
					})
				}
				version["resources"] = resources
			}
			versions = append(versions, version)
		}
		items = append(items, map[string]any{"metadata": map[string]any{"name": g.name}, "versions": versions})
	}
	return map[string]any{"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": map[string]any{}, "items": items}
}

func (d discoveryDoc) groupList() any {
	groups := []any{}
	for _, g := range d.groups {
		if g.name == "" {
			continue
		}
		var versions []any
		for _, v := range g.versions {
			versions = append(versions, map[string]any{"groupVersion": groupVersion(g.name, v.name), "version": v.name})
		}
		groups = append(groups, map[string]any{"name": g.name, "versions": versions, "preferredVersion": versions[0]})
	}
	return map[string]any{"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
}

// resourceList returns nil for what cannot be told.
func (d discoveryDoc) resourceList(gv string) any {
	if slices.Contains(d.stale, gv) {
		return nil
	}
	for _, g := range d.groups {
		for _, v := range g.versions {
			if groupVersion(g.name, v.name) != gv {
				continue
			}
			resources := []any{}
			for _, r := range v.resources {
				resources = append(resources, map[string]any{
					"name": r.name, "singularName": r.singular, "shortNames": r.short, "namespaced": !r.cluster,
					"kind": r.kind, "verbs": r.verbs,
				})
			}
			return map[string]any{"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": gv, "resources": resources}
		}
	}
	return nil
}
