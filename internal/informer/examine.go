package informer

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Examination is what the API server lets us do, asked once.
type Examination struct {
	Resources []Examined
	// Missing, Unknown and Warnings are those of the Selection.
	Missing  []string
	Unknown  []Unknown
	Warnings []string
	// Definitions is why the definitions of custom resources cannot be read, by which a kind that was removed is told from
	// one that is not served for the moment; nil if they can.
	Definitions error
}

// Examined is a selected resource, and what of it is refused or fails; no Troubles if it can be followed.
type Examined struct {
	Resource Resource
	Troubles []Trouble
}

// Trouble is a verb that is refused or fails.
type Trouble struct {
	Verb      string // list or watch
	Namespace string // empty for the whole cluster
	Err       error
}

// Forbidden reports whether a right is missing.
func (t Trouble) Forbidden() bool { return apierrors.IsForbidden(t.Err) }

// Examine asks for what a run of the Manager would ask for: discovery, and a list of one object and a watch, closed at
// once, for each selected resource in each scope. An error means that the API server cannot be used at all. It must not be called
// while the Manager runs.
func (m *Manager) Examine(ctx context.Context) (Examination, error) {
	catalog, err := m.readCatalog(ctx)
	if err != nil {
		return Examination{}, err
	}
	selection := Select(m.options.Patterns, catalog)
	out := Examination{Missing: selection.Missing, Unknown: selection.Unknown, Warnings: selection.Warnings}
	for _, r := range selection.Resources {
		out.Resources = append(out.Resources, Examined{Resource: r, Troubles: m.examine(ctx, r)})
	}
	_, out.Definitions = fetch(ctx, m.client.Get().AbsPath("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/any.example.com"))
	if apierrors.IsNotFound(out.Definitions) {
		out.Definitions = nil
	}
	return out, ctx.Err()
}

// examine tries the whole cluster first, and each namespace only where that is refused, as Manager.scope does.
func (m *Manager) examine(ctx context.Context, r Resource) []Trouble {
	namespaces := m.options.Namespaces
	if !r.Namespaced || len(namespaces) == 0 {
		return m.tryVerbs(ctx, r, "")
	}
	if len(namespaces) > 1 && len(m.tryVerbs(ctx, r, "")) == 0 {
		return nil
	}
	var out []Trouble
	for _, ns := range namespaces {
		out = append(out, m.tryVerbs(ctx, r, ns)...)
	}
	return out
}

// tryVerbs tries both verbs, so that both are named where both are missing.
func (m *Manager) tryVerbs(ctx context.Context, r Resource, namespace string) []Trouble {
	var out []Trouble
	version, err := currentVersion(ctx, m.client, r, namespace)
	if err != nil {
		out = append(out, Trouble{Verb: "list", Namespace: namespace, Err: err})
	}
	second := int64(1)
	options := &metav1.ListOptions{Watch: true, ResourceVersion: version, TimeoutSeconds: &second}
	stream, err := m.client.Get().AbsPath(r.path(namespace)...).VersionedParams(options, metav1.ParameterCodec).Stream(ctx)
	if err != nil {
		return append(out, Trouble{Verb: "watch", Namespace: namespace, Err: err})
	}
	_ = stream.Close() // it was only opened to see whether it may be
	return out
}
