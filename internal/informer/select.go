package informer

import (
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Pattern is one element of BRIDGE_RESOURCES.
type Pattern struct {
	Exclude bool
	// Text is "resource", "resource.group", "resource.version.group", "*.group" or "*".
	Text string
}

// Catalog is what discovery says: the groups in the API server's order, each with its versions in the server's order,
// and the resources of each version.
type Catalog struct {
	Groups []CatalogGroup
	// Failed holds the group versions that discovery could not read, an aggregated API that is down, say. What they
	// held before is unknown, not gone.
	Failed map[schema.GroupVersion]error
}

// CatalogGroup is one API group.
type CatalogGroup struct {
	Name     string
	Versions []CatalogVersion // the preferred one first
}

// CatalogVersion is one version of a group.
type CatalogVersion struct {
	Version   string
	Resources []metav1.APIResource
}

// Selection is the outcome of resolving patterns against a catalog.
type Selection struct {
	Resources []Resource
	// Missing are the patterns that name what the API server does not have, now.
	Missing []string
	// Unknown are the patterns that name nothing in what discovery could read, but may in what it could not.
	Unknown []Unknown
	// Warnings are facts about the patterns that the user should know, in full sentences.
	Warnings []string
}

// Unknown is a pattern of which it is not known whether the API server has what it names.
type Unknown struct {
	Pattern string
	Message string // why, in words for a user
}

// leftOutOfAll reports whether "*" leaves a resource out unless it is named: values of Secrets should not be published
// by accident, and the others change all the time without telling much.
func leftOutOfAll(gr schema.GroupResource) bool {
	switch gr {
	case schema.GroupResource{Resource: "secrets"},
		schema.GroupResource{Resource: "events"},
		schema.GroupResource{Resource: "endpoints"},
		schema.GroupResource{Group: "events.k8s.io", Resource: "events"},
		schema.GroupResource{Group: "discovery.k8s.io", Resource: "endpointslices"},
		schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}:
		return true
	}
	return gr.Group == "metrics.k8s.io"
}

var (
	coreEvents   = schema.GroupResource{Resource: "events"}
	eventsEvents = schema.GroupResource{Group: "events.k8s.io", Resource: "events"}
)

// Select resolves patterns against what discovery says. A resource is selected in one version: the one that a pattern
// names, else the group's preferred version, else the first that has it. The order of the result is the catalog's.
func Select(patterns []Pattern, catalog Catalog) Selection {
	var out Selection
	chosen := map[schema.GroupResource]Resource{}
	pinned := map[schema.GroupResource]string{}
	var excluded []Pattern
	for _, p := range patterns {
		if p.Exclude {
			excluded = append(excluded, p)
			continue
		}
		found := catalog.resolve(p.Text)
		if len(found) == 0 && p.Text != "*" {
			if why := catalog.unread(p.Text); why != "" {
				out.Unknown = append(out.Unknown, Unknown{Pattern: p.Text, Message: why})
			} else {
				out.Missing = append(out.Missing, p.Text)
			}
		}
		for _, m := range found {
			gr := m.resource.GVR.GroupResource()
			if p.Text == "*" && leftOutOfAll(gr) {
				continue
			}
			if version, ok := pinned[gr]; ok {
				if m.pinned && version != m.resource.GVR.Version {
					out.Warnings = append(out.Warnings, "BRIDGE_RESOURCES names "+gr.String()+" in two versions; "+version+" is used.")
				}
				continue
			}
			if m.pinned {
				pinned[gr] = m.resource.GVR.Version
			}
			chosen[gr] = m.resource
		}
	}
	for _, p := range excluded {
		for _, m := range catalog.resolve(p.Text) {
			gr := m.resource.GVR.GroupResource()
			if m.pinned && chosen[gr].GVR.Version != m.resource.GVR.Version {
				continue
			}
			delete(chosen, gr)
		}
	}
	if _, ok := chosen[coreEvents]; ok {
		if _, both := chosen[eventsEvents]; both {
			delete(chosen, eventsEvents)
			out.Warnings = append(out.Warnings, "events and events.events.k8s.io are the same objects; they are published once, as events.")
		}
	}
	for _, g := range catalog.Groups {
		var group []Resource
		for gr, r := range chosen {
			if gr.Group == g.Name {
				group = append(group, r)
			}
		}
		slices.SortFunc(group, func(a, b Resource) int { return strings.Compare(a.GVR.Resource, b.GVR.Resource) })
		out.Resources = append(out.Resources, group...)
	}
	return out
}

// match is a resource that a pattern resolves to, and whether the pattern named its version.
type match struct {
	resource Resource
	pinned   bool
}

// resolve finds what a pattern names, as kubectl does: the plural name, the singular or a short name; the first group
// in the server's order where no group is given; "a.b.c" is resource, version and group if there is such a version,
// else resource and group "b.c".
func (c Catalog) resolve(text string) []match {
	if text == "*" {
		var out []match
		for _, g := range c.Groups {
			out = append(out, g.all()...)
		}
		return out
	}
	name, rest, dotted := strings.Cut(text, ".")
	if !dotted {
		for _, test := range []func(*metav1.APIResource) bool{
			func(r *metav1.APIResource) bool { return r.Name == name },
			func(r *metav1.APIResource) bool { return r.SingularName == name },
			func(r *metav1.APIResource) bool { return slices.Contains(r.ShortNames, name) },
		} {
			for _, g := range c.Groups {
				if r, ok := g.find(test); ok {
					return []match{{resource: r}}
				}
			}
		}
		return nil
	}
	if name == "*" {
		if g, ok := c.group(rest); ok {
			return g.all()
		}
		return nil
	}
	named := func(r *metav1.APIResource) bool {
		return r.Name == name || r.SingularName == name || slices.Contains(r.ShortNames, name)
	}
	version, groupName, _ := strings.Cut(rest, ".")
	if g, ok := c.group(groupName); ok {
		for _, v := range g.Versions {
			if v.Version == version {
				if r, found := v.find(g.Name, named); found {
					return []match{{resource: r, pinned: true}}
				}
			}
		}
	}
	if g, ok := c.group(rest); ok {
		if r, found := g.find(named); found {
			return []match{{resource: r}}
		}
	}
	return nil
}

// unread says which of the group versions that discovery could not read may hold what a pattern names, and why it could
// not; empty if none may.
func (c Catalog) unread(text string) string {
	_, rest, dotted := strings.Cut(text, ".")
	_, group, _ := strings.Cut(rest, ".")
	var why []string
	for gv, err := range c.Failed {
		if !dotted || gv.Group == rest || gv.Group == group {
			why = append(why, gv.String()+": "+err.Error())
		}
	}
	slices.Sort(why)
	return strings.Join(why, "; ")
}

func (c Catalog) group(name string) (CatalogGroup, bool) {
	for _, g := range c.Groups {
		if g.Name == name {
			return g, true
		}
	}
	return CatalogGroup{}, false
}

// find returns the first followable resource that passes the test, in the order of the group's versions.
func (g CatalogGroup) find(test func(*metav1.APIResource) bool) (Resource, bool) {
	for _, v := range g.Versions {
		if r, ok := v.find(g.Name, test); ok {
			return r, true
		}
	}
	return Resource{}, false
}

// all returns every followable resource of the group, each once, in the first version that has it.
func (g CatalogGroup) all() []match {
	var out []match
	seen := map[string]bool{}
	for _, v := range g.Versions {
		for i := range v.Resources {
			r := &v.Resources[i]
			if seen[r.Name] || !followable(r) {
				continue
			}
			seen[r.Name] = true
			out = append(out, match{resource: v.resource(g.Name, r)})
		}
	}
	return out
}

func (v CatalogVersion) find(group string, test func(*metav1.APIResource) bool) (Resource, bool) {
	for i := range v.Resources {
		if r := &v.Resources[i]; followable(r) && test(r) {
			return v.resource(group, r), true
		}
	}
	return Resource{}, false
}

func (v CatalogVersion) resource(group string, r *metav1.APIResource) Resource {
	return Resource{
		GVR:        schema.GroupVersionResource{Group: group, Version: v.Version, Resource: r.Name},
		Kind:       r.Kind,
		Namespaced: r.Namespaced,
	}
}
