package informer

import (
	"context"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/rest"

	"github.com/deltabridge/deltabridge/internal/change"
	"github.com/deltabridge/deltabridge/internal/jsonscan"
)

// currentVersion asks the API server for a resource's present version, at the least cost: a list of one object, which
// is a consistent read.
func currentVersion(ctx context.Context, client rest.Interface, r Resource, namespace string) (string, error) {
	options := &metav1.ListOptions{Limit: 1}
	body, err := fetch(ctx, client.Get().AbsPath(r.path(namespace)...).VersionedParams(options, metav1.ParameterCodec))
	if err != nil {
		return "", err
	}
	list, err := scanList(body, r.apiVersion(), r.Kind, "", nil)
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
	if behind(served, origin.Version) {
		m.options.Feeds.Rewound(f.resource.GVR.GroupResource(), origin.Version, served)
		return false
	}
	return true
}

// leave tells of the objects that the stream has and that are not in the selection any more: they have left it, or are
// gone, which a look at each one tells.
func (m *Manager) leave(ctx context.Context, f *follower, namespaces []string, origin Origin, feed Feed) {
	for _, k := range origin.Objects {
		if m.selected(namespaces, k.Namespace) {
			continue
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
		lives, version, err := m.lives(ctx, f, k)
		switch {
		case err != nil:
			return // the context has ended
		case !lives:
			c.Op, c.Reason, c.Gap = change.OpDeleted, change.ReasonMissing, change.Gap{From: k.RV, To: version}
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

// lives looks whether an object is still there. One that may not be looked at is taken to live: what is not selected any
// more has at least left. version is one at which the object was gone, if it was.
func (m *Manager) lives(ctx context.Context, f *follower, k Known) (lives bool, version string, err error) {
	request := m.client.Get().AbsPath(append(f.resource.path(k.Namespace), k.Name)...)
	err = f.retry(ctx, func() (string, error) {
		body, failure := fetch(ctx, request)
		switch {
		case apierrors.IsNotFound(failure):
			lives = false
			version, failure = currentVersion(ctx, m.client, f.resource, k.Namespace)
			if apierrors.IsForbidden(failure) || apierrors.IsNotFound(failure) {
				version, failure = k.RV, nil
			}
			return "list", failure
		case apierrors.IsForbidden(failure):
			lives = true
			return "", nil
		case failure != nil:
			return "get", failure
		}
		var meta metadata
		var walker jsonscan.Walker
		if _, failure = scanObject(&walker, body, 0, &meta); failure != nil {
			return "get", fmt.Errorf("read %s/%s: %w", k.Namespace, k.Name, failure)
		}
		lives, version = string(meta.uid) == string(k.UID), string(meta.rv)
		return "", nil
	})
	return lives, version, err
}
