package informer

import (
	"context"
	"regexp"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/deltabridge/deltabridge/internal/change"
)

// removalPatience is how long a resource must be absent from discovery, while the API server says that it is ready,
// before its objects are taken to be gone. A server that starts may not have all of its custom resources yet.
const removalPatience = 15 * time.Second

// removals finds resources that the API server does not have any more, of which the stream has objects. A definition
// that is deleted takes its objects with it, and the API server tells so, but not to those who were not watching.
// Only the goroutine of Manager.Run uses it.
type removals struct {
	absent map[schema.GroupResource]time.Time     // since when
	told   map[schema.GroupResource]chan struct{} // closed when their objects' deletions have been handed on
	// doubted is why resources that are not served are not taken to be gone, as it was last logged.
	doubted map[schema.GroupResource]string
}

// noteRemovals compares what the stream has with what the API server has. It reports whether a resource is absent and it is
// not sure yet that it is gone.
func (m *Manager) noteRemovals(ctx context.Context, wanted map[schema.GroupResource]Resource) (unsure bool) {
	for _, gr := range m.options.Feeds.Resources() {
		if m.catalog.has(gr) || m.catalog.mayHave(gr.Group) || !selects(m.options.Patterns, gr) {
			delete(m.removals.absent, gr)
			continue
		}
		if _, told := m.removals.told[gr]; told {
			continue
		}
		since, known := m.removals.absent[gr]
		if !known {
			since = time.Now()
			m.removals.absent[gr] = since
		}
		if time.Since(since) < removalPatience || !m.ready(ctx) {
			unsure = true
			continue
		}
		if gone, why := m.definitionGone(ctx, gr); !gone {
			if m.removals.doubted[gr] != why {
				m.log.Warn("resource is not served any more, and it is not known that its objects are gone", "resource", gr.String(), "reason", why)
				m.removals.doubted[gr] = why
			}
			continue
		}
		delete(m.removals.absent, gr)
		done := make(chan struct{})
		m.removals.told[gr] = done
		m.background.Go(func() {
			defer close(done)
			m.removed(ctx, gr)
		})
	}
	for gr := range wanted {
		delete(m.removals.absent, gr)
		delete(m.removals.doubted, gr)
		if done, told := m.removals.told[gr]; told {
			select {
			case <-done:
				delete(m.removals.told, gr)
			default:
				delete(wanted, gr) // it is back already; first things first
				unsure = true
			}
		}
	}
	return unsure
}

// removed tells that all objects of a resource are gone.
func (m *Manager) removed(ctx context.Context, gr schema.GroupResource) {
	origin, feeds, err := m.options.Feeds.Open(ctx, gr, 1)
	if err != nil || len(origin.Objects) == 0 {
		return
	}
	m.log.Warn("resource was removed from the API server, and its objects with it", "resource", gr.String(), "objects", len(origin.Objects))
	// The versions of all resources of one store are of one sequence, so that another one's tells how far it may be.
	version, err := currentVersion(ctx, m.client, namespacesResource, "")
	for _, k := range origin.Objects {
		c := &change.Change{
			Op:     change.OpDeleted,
			Reason: change.ReasonKindRemoved,
			Ref:    change.ObjectRef{Group: gr.Group, Resource: gr.Resource, Namespace: k.Namespace, Name: k.Name},
			UID:    k.UID,
			RV:     k.RV,
			Seen:   time.Now(),
		}
		if err == nil {
			c.Gap = change.Gap{From: k.RV, To: version}
		}
		feeds[0].Take(c, false)
	}
}

// builtIn matches the groups that the API server itself serves, or not, by its flags; no definition tells of them.
var builtIn = regexp.MustCompile(`^[^.]*$|^(admissionregistration|apiextensions|apiregistration|authentication|authorization|certificates|coordination|discovery|events|flowcontrol\.apiserver|internal\.apiserver|networking|node|rbac\.authorization|resource|scheduling|storage|storagemigration)\.k8s\.io$`)

// definitionGone reports whether a resource's definition is gone, and its objects with it; else why that is not known. A
// resource that is just not served keeps its objects: a version that is switched off, an API server started with other
// flags, an aggregated API that is away.
func (m *Manager) definitionGone(ctx context.Context, gr schema.GroupResource) (gone bool, why string) {
	if builtIn.MatchString(gr.Group) {
		return false, "it is the API server's own"
	}
	ctx, cancel := context.WithTimeout(ctx, discoveryTimeout)
	defer cancel()
	_, err := fetch(ctx, m.client.Get().AbsPath("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/"+gr.Resource+"."+gr.Group))
	switch {
	case err == nil:
		return false, "its definition is still there"
	case apierrors.IsNotFound(err):
		return true, ""
	case apierrors.IsForbidden(err):
		return false, "the right to get customresourcedefinitions is missing"
	}
	return false, "its definition cannot be looked up"
}

// ready asks whether the API server has finished its start. One that does not let us ask is taken to have.
func (m *Manager) ready(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, discoveryTimeout)
	defer cancel()
	err := m.client.Get().AbsPath("/readyz").Do(ctx).Error()
	return err == nil || apierrors.IsForbidden(err) || apierrors.IsNotFound(err)
}

// has reports whether the API server has a resource in any version, and lets it be followed.
func (c Catalog) has(gr schema.GroupResource) bool {
	g, ok := c.group(gr.Group)
	if !ok {
		return false
	}
	_, ok = g.find(func(r *metav1.APIResource) bool { return r.Name == gr.Resource })
	return ok
}

// mayHave reports whether anything of a group could not be discovered.
func (c Catalog) mayHave(group string) bool {
	for gv := range c.Failed {
		if gv.Group == group {
			return true
		}
	}
	return false
}

// selects reports whether patterns select a resource that the API server does not have, by its plural name.
func selects(patterns []Pattern, gr schema.GroupResource) bool {
	resources := []metav1.APIResource{{Name: gr.Resource, Verbs: metav1.Verbs{"list", "watch"}}}
	group := CatalogGroup{Name: gr.Group, Versions: []CatalogVersion{{Version: "any", Resources: resources}}}
	for _, p := range patterns { // one may name a version
		if parts := strings.SplitN(p.Text, ".", 3); len(parts) == 3 {
			group.Versions = append(group.Versions, CatalogVersion{Version: parts[1], Resources: resources})
		}
	}
	return len(Select(patterns, Catalog{Groups: []CatalogGroup{group}}).Resources) > 0
}
