package informer

import (
	"context"
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
	namespaces := Resource{GVR: schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}, Kind: "Namespace"}
	version, err := currentVersion(ctx, m.client, namespaces, "")
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
