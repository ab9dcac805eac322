package informer

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/deltabridge/deltabridge/internal/change"
	"github.com/deltabridge/deltabridge/internal/jsonscan"
)

// surveyPage is how many objects are fetched at once: what a survey holds in memory.
const surveyPage = 500

// Scope says what of the selected objects is meant.
type Scope struct {
	Resource  schema.GroupResource
	Namespace string // empty for all that are selected
	Selector  string // of labels, empty for all
}

// Page is a part of a fresh, consistent list of one resource.
type Page struct {
	// Version is that of the whole list.
	Version string
	// States are the page's objects as they are at Version: synced, with the reason repair.
	States []*change.Change
	// Covers, set on the last page of a list, tells of which namespaces the list has every selected object. A resource
	// that is followed namespace by namespace has a list for each.
	Covers func(namespace string) bool
}

// Targets returns the resources that are meant by names, or all that are followed if there are none, in alphabetical
// order. A name is "resource", "resource.group", "resource.version.group" or a kind in lower case. With a namespace only
// namespaced ones are meant. The error, for a user, says which name is unknown, and what there is.
func (m *Manager) Targets(names []string, namespace string) ([]schema.GroupResource, error) {
	m.mu.Lock()
	followed := make([]Resource, 0, len(m.running))
	for _, f := range m.running {
		followed = append(followed, f.resource)
	}
	m.mu.Unlock()
	slices.SortFunc(followed, func(a, b Resource) int { return strings.Compare(a.String(), b.String()) })
	var out []schema.GroupResource
	for _, name := range names {
		r, err := pick(followed, name)
		switch {
		case err != nil:
			return nil, err
		case namespace != "" && !r.Namespaced:
			return nil, fmt.Errorf("%s have no namespaces, leave the namespace out", r)
		}
		out = append(out, r.GVR.GroupResource())
	}
	if len(names) == 0 {
		for _, r := range followed {
			if namespace == "" || r.Namespaced {
				out = append(out, r.GVR.GroupResource())
			}
		}
	}
	slices.SortFunc(out, func(a, b schema.GroupResource) int { return strings.Compare(a.String(), b.String()) })
	return slices.Compact(out), nil
}

// pick returns the resource that a name means. A name without a group means the core group's first.
func pick(followed []Resource, name string) (Resource, error) {
	var found []Resource
	for _, r := range followed {
		full := r.GVR.Resource + "." + r.GVR.Version + "." + r.GVR.Group
		switch {
		case name == r.String() || name == full:
			return r, nil
		case name == r.GVR.Resource || name == strings.ToLower(r.Kind):
			found = append(found, r)
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return Resource{}, fmt.Errorf("resource %q is not one that the bridge follows; it follows %s", name, join(followed))
	}
	return Resource{}, fmt.Errorf("resource %q is ambiguous, it may be %s", name, join(found))
}

func join(resources []Resource) string {
	if len(resources) == 0 {
		return "none"
	}
	names := make([]string, 0, len(resources))
	for _, r := range resources {
		names = append(names, r.String())
	}
	return strings.Join(names, ", ")
}

// follower returns what follows a resource; the error says that nothing does.
func (m *Manager) follower(gr schema.GroupResource) (*follower, []*informer, error) {
	m.mu.Lock()
	f := m.running[gr]
	m.mu.Unlock()
	if f == nil {
		return nil, nil, fmt.Errorf("%s is not followed any more", gr)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f, slices.Clone(f.informers), nil
}

// Survey reads a fresh, consistent list of what the scope says, a page at a time, and calls visit for each page. The run
// stands in every state. It blocks; the error is that of a request, of visit, or says for a user why there is no list.
func (m *Manager) Survey(ctx context.Context, s Scope, run string, visit func(Page) error) error {
	f, informers, err := m.follower(s.Resource)
	if err != nil {
		return err
	}
	if status := f.status(); !status.Synced {
		return fmt.Errorf("%s is not followed at the moment: %s %s", s.Resource, status.State, status.Message)
	}
	covered := false
	for _, in := range informers {
		if !in.covers(s.Namespace) {
			continue
		}
		covered = true
		if err := m.surveyOne(ctx, in, s, run, visit); err != nil {
			return err
		}
	}
	if !covered {
		return fmt.Errorf("namespace %q is not one that the bridge follows", s.Namespace)
	}
	return nil
}

// covers reports whether the informer has to do with a namespace; the empty one stands for all.
func (in *informer) covers(namespace string) bool {
	if in.namespace != "" {
		return namespace == "" || namespace == in.namespace
	}
	return namespace == "" || in.lw.keep == nil || in.lw.keep(namespace)
}

// surveyOne reads the list of one informer.
func (m *Manager) surveyOne(ctx context.Context, in *informer, s Scope, run string, visit func(Page) error) error {
	namespace := in.namespace
	if namespace == "" {
		namespace = s.Namespace
	}
	// Without a version the list is a consistent read; the pages after the first are of the same version.
	options := metav1.ListOptions{LabelSelector: s.Selector, Limit: surveyPage}
	for {
		list, err := readList(ctx, m.client, in.resource, namespace, options, in.lw.keep)
		if err != nil {
			return fmt.Errorf("list %s: %w", in.resource, err)
		}
		page := Page{Version: list.ResourceVersion, States: make([]*change.Change, 0, len(list.Items))}
		for _, item := range list.Items {
			c := (*listener)(in).change(change.OpSynced, change.ReasonRepair, item.(*Object))
			c.Run = run
			page.States = append(page.States, c)
		}
		if list.Continue == "" {
			page.Covers = func(ns string) bool {
				return (namespace == "" || ns == namespace) && (in.lw.keep == nil || in.lw.keep(ns))
			}
		}
		if err := visit(page); err != nil || list.Continue == "" {
			return err
		}
		options.Continue = list.Continue
	}
}

// readList fetches one page.
func readList(ctx context.Context, client rest.Interface, r Resource, namespace string, options metav1.ListOptions, keep func(string) bool) (*List, error) {
	body, err := fetch(ctx, client.Get().AbsPath(r.path(namespace)...).VersionedParams(&options, metav1.ParameterCodec))
	if err != nil {
		return nil, err
	}
	return scanList(body, r.apiVersion(), r.Kind, keep)
}

// Repeat hands a state, or the deletion of what is gone, to the feed of its informer, in turn with the informer's changes.
// It returns false if the feed does not take it now, and an error if the resource is not followed any more.
func (m *Manager) Repeat(c *change.Change) (bool, error) {
	_, informers, err := m.follower(c.Ref.GroupResource())
	if err != nil {
		return false, err
	}
	for _, in := range informers {
		if in.namespace == "" || in.namespace == c.Ref.Namespace {
			in.order.Lock()
			defer in.order.Unlock()
			return in.feed.Repeat(c), nil
		}
	}
	return false, fmt.Errorf("%s is not followed any more", c.Ref)
}

// Missing looks whether an object that a list at the version did not have is gone. It returns its deletion, with the
// reason repair, or nil if it lives. It blocks for the request.
func (m *Manager) Missing(ctx context.Context, gr schema.GroupResource, k Known, version string) (*change.Change, error) {
	f, _, err := m.follower(gr)
	if err != nil {
		return nil, err
	}
	lives, err := m.present(ctx, f.resource, k)
	if err != nil {
		return nil, fmt.Errorf("look for %s %s/%s: %w", gr, k.Namespace, k.Name, err)
	}
	if lives {
		return nil, nil
	}
	return &change.Change{
		Op:     change.OpDeleted,
		Reason: change.ReasonRepair,
		Ref:    change.ObjectRef{Group: gr.Group, Resource: gr.Resource, Namespace: k.Namespace, Name: k.Name},
		GVK:    f.resource.gvk(),
		UID:    k.UID,
		RV:     k.RV,
		Seen:   time.Now(),
		Gap:    change.Gap{From: k.RV, To: version},
	}, nil
}

// present asks the API server whether an object is there. The right to list is enough.
func (m *Manager) present(ctx context.Context, r Resource, k Known) (bool, error) {
	body, err := fetch(ctx, m.client.Get().AbsPath(append(r.path(k.Namespace), k.Name)...))
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case apierrors.IsForbidden(err):
		options := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", k.Name).String()}
		list, listErr := readList(ctx, m.client, r, k.Namespace, options, nil)
		if listErr != nil {
			return false, listErr
		}
		return len(list.Items) > 0 && list.Items[0].(*Object).uid == k.UID, nil
	case err != nil:
		return false, err
	}
	var meta metadata
	var walker jsonscan.Walker
	if _, err := scanObject(&walker, body, 0, &meta); err != nil {
		return false, err
	}
	return string(meta.uid) == string(k.UID), nil
}
