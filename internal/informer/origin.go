package informer

import (
	"context"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/rest"

	"github.com/deltabridge/deltabridge/internal/change"
)

// currentVersion asks the API server for a resource's present version, at the least cost: a list of one object, which
// is a consistent read.
func currentVersion(ctx context.Context, client rest.Interface, r Resource, namespace string) (string, error) {
	list, err := readList(ctx, client, r, namespace, metav1.ListOptions{Limit: 1}, nil)
	if err != nil {
		return "", err
	}
	return list.ResourceVersion, nil
}

// behind reports whether a version that the API server gave is older than one that it gave before. Versions that do not
// compare are never.
func behind(served, known string) bool {
	order, err := resourceversion.CompareResourceVersion(served, known)
	return err == nil && order < 0
}

// checkVersion compares the version to resume from with the one that the API server has. If the server is behind, it says
// so and returns false: a watch from a version in the server's future would be accepted, and events up to it dropped
// without a word. It returns false too when the context has ended.
func (m *Manager) checkVersion(ctx context.Context, f *follower, namespace string, origin *Origin) bool {
	served := ""
	err := f.retry(ctx, func() (string, error) {
		version, err := currentVersion(ctx, m.client, f.resource, namespace)
		served = version
		if apierrors.IsForbidden(err) {
			err = nil // the informer meets the same, and reports it
		}
		return "list", err
	})
	if err != nil {
		return false
	}
	if !behind(served, origin.Version) {
		return true
	}
	if m.rewound(ctx, f.resource, origin.Version, served) {
		return false
	}
	origin.Since, origin.Version, origin.Reason, origin.OtherHistory = origin.Version, "", "not-comparable", true
	return true
}

// rewound decides what it means that the API server is behind a version of a resource that it gave before. A cluster that was
// restored from a backup is behind in all that its store holds, and that is made known. An API whose own versions do not
// rise, as some aggregated ones', concerns nobody but itself.
func (m *Manager) rewound(ctx context.Context, r Resource, known, served string) bool {
	version, err := currentVersion(ctx, m.client, namespacesResource, "")
	if err == nil && !behind(version, known) {
		m.log.Warn("the versions of this API do not rise, it is compared instead of resumed", "resource", r.String(), "known", known, "served", served)
		return false
	}
	m.options.Feeds.Rewound(r.GVR.GroupResource(), known, served)
	return true
}

// namespacesResource is there in every cluster.
var namespacesResource = Resource{GVR: schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}, Kind: "Namespace"}

// leave tells of the objects that the stream has and that are not in the selection any more: they have left it, or are
// gone, which a list of their namespace tells.
func (m *Manager) leave(ctx context.Context, f *follower, namespaces []string, origin Origin, feed Feed) {
	aside := map[string]census{}
	for _, k := range origin.Objects {
		if m.selected(namespaces, k.Namespace) {
			continue
		}
		there, counted := aside[k.Namespace]
		if !counted {
			var err error
			if there, err = m.count(ctx, f, k.Namespace); err != nil {
				return // the context has ended
			}
			aside[k.Namespace] = there
		}
		c := &change.Change{
			Op:     change.OpLeft,
			Reason: change.ReasonScope,
			Ref: change.ObjectRef{
				Group: f.resource.GVR.Group, Resource: f.resource.GVR.Resource, Namespace: k.Namespace, Name: k.Name,
			},
			GVK:  f.resource.gvk(),
			UID:  k.UID,
			RV:   k.RV,
			Seen: time.Now(),
		}
		if there.known && there.uids[k.Name] != k.UID {
			c.Op, c.Reason, c.Gap = change.OpDeleted, change.ReasonMissing, change.Gap{From: k.RV, To: there.version}
		}
		feed.Take(c, false)
	}
}

// selected reports whether a namespace is one that the resource is requested in.
func (m *Manager) selected(requested []string, namespace string) bool {
	if len(requested) == 1 && requested[0] == "" {
		keep := m.keep("")
		return keep == nil || keep(namespace)
	}
	return slices.Contains(requested, namespace)
}

// census is who is there in a namespace.
type census struct {
	known   bool // we may list it
	version string
	uids    map[string]types.UID // by name
}

// count lists the objects of a namespace. What may not be listed is taken to live: what is not selected any more has at
// least left. The error means that the context has ended.
func (m *Manager) count(ctx context.Context, f *follower, namespace string) (census, error) {
	var out census
	err := f.retry(ctx, func() (string, error) {
		out = census{known: true, uids: map[string]types.UID{}}
		options := metav1.ListOptions{Limit: surveyPage}
		for {
			list, err := readList(ctx, m.client, f.resource, namespace, options, nil)
			switch {
			case apierrors.IsForbidden(err) || apierrors.IsNotFound(err):
				out = census{}
				return "", nil
			case err != nil:
				return "list", err
			}
			for _, item := range list.Items {
				o := item.(*Object)
				out.uids[o.name] = o.uid
			}
			out.version, options.Continue = list.ResourceVersion, list.Continue
			if list.Continue == "" {
				return "", nil
			}
		}
	})
	return out, err
}
