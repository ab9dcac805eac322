package informer

import (
	"context"
	"errors"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
)

// discoveryTimeout bounds the wait for an API server that accepts a connection and does not answer.
const discoveryTimeout = 30 * time.Second

// readCatalog asks the API server what it has, in one aggregated request where it can answer that.
func (m *Manager) readCatalog(ctx context.Context) (Catalog, error) {
	ctx, cancel := context.WithTimeout(ctx, discoveryTimeout)
	defer cancel()
	groups, lists, err := m.discovery.ServerGroupsAndResourcesWithContext(ctx)
	failed, partial := discovery.GroupDiscoveryFailedErrorGroups(err)
	if err != nil && !partial {
		return Catalog{}, explainReach(err)
	}
	if len(groups) == 0 {
		return Catalog{}, errors.New("the API server has no API groups; is KUBECONFIG's server a Kubernetes API server?")
	}
	resources := map[string][]metav1.APIResource{}
	for _, l := range lists {
		resources[l.GroupVersion] = l.APIResources
	}
	catalog := Catalog{Failed: failed}
	for _, g := range groups {
		group := CatalogGroup{Name: g.Name}
		versions := []metav1.GroupVersionForDiscovery{g.PreferredVersion}
		for _, v := range g.Versions {
			if v != g.PreferredVersion {
				versions = append(versions, v)
			}
		}
		for _, v := range versions {
			group.Versions = append(group.Versions, CatalogVersion{Version: v.Version, Resources: resources[v.GroupVersion]})
		}
		catalog.Groups = append(catalog.Groups, group)
	}
	return catalog, nil
}

// remember returns the catalog with what an earlier one knew of the group versions that discovery could not read now, so
// that nothing that runs is stopped, or taken to be in another version or group, because an API is down for a moment.
func (c Catalog) remember(before Catalog) Catalog {
	failed := func(group, version string) bool {
		_, ok := c.Failed[schema.GroupVersion{Group: group, Version: version}]
		return ok
	}
	out := Catalog{Groups: slices.Clone(c.Groups), Failed: c.Failed}
	for _, old := range before.Groups {
		if !slices.ContainsFunc(old.Versions, func(v CatalogVersion) bool { return failed(old.Name, v.Version) }) {
			continue
		}
		at := slices.IndexFunc(out.Groups, func(g CatalogGroup) bool { return g.Name == old.Name })
		if at < 0 {
			at = len(out.Groups)
			out.Groups = append(out.Groups, CatalogGroup{Name: old.Name})
		}
		// What is unknown keeps its place among the versions.
		now := out.Groups[at].Versions
		var versions []CatalogVersion
		for _, v := range old.Versions {
			if failed(old.Name, v.Version) {
				versions = append(versions, v)
			} else if i := slices.IndexFunc(now, func(n CatalogVersion) bool { return n.Version == v.Version }); i >= 0 {
				versions = append(versions, now[i])
			}
		}
		for _, v := range now {
			if !slices.ContainsFunc(versions, func(k CatalogVersion) bool { return k.Version == v.Version }) {
				versions = append(versions, v)
			}
		}
		out.Groups[at].Versions = versions
	}
	return out
}

// reachError means that the API server cannot be used at all. The advice says in a user's words what to do.
type reachError struct {
	advice string
	err    error
}

func (e *reachError) Error() string { return e.advice + ": " + e.err.Error() }

func (e *reachError) Unwrap() error { return e.err }

func explainReach(err error) error {
	advice := "the API server cannot be reached; check KUBECONFIG's server and the network"
	switch {
	case apierrors.IsUnauthorized(err):
		advice = "the API server does not accept the credentials; check KUBECONFIG or the service account's token"
	case apierrors.IsForbidden(err):
		advice = "discovery is forbidden; bind the ClusterRole system:discovery"
	case apierrors.IsNotFound(err):
		advice = "no Kubernetes API at this address; check KUBECONFIG's server"
	case answered(err):
		advice = "the API server does not answer as it should; it may be starting or overloaded"
	}
	return &reachError{advice: advice, err: err}
}
