package check

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
)

// Selection says which objects a check is about.
type Selection struct {
	// Resources are all resources that the bridge was asked for.
	Resources []schema.GroupVersionResource
	// Select tells the objects that count; nil means all.
	Select func(Object) bool
}

func (s Selection) selects(o Object) bool {
	return slices.ContainsFunc(s.Resources, func(r schema.GroupVersionResource) bool {
		return r.Group == o.Group && r.Resource == o.Resource
	}) && (s.Select == nil || s.Select(o))
}

// liveObject is an object of the cluster.
type liveObject struct {
	uid, version string
	canonical    []byte
}

// State is what a cluster holds.
type State struct {
	selection Selection
	objects   map[Object]liveObject
}

// ReadState lists the selected objects. The cluster must be at rest, for each resource is listed by itself.
func ReadState(ctx context.Context, client dynamic.Interface, selection Selection) (*State, error) {
	state := &State{selection: selection, objects: map[Object]liveObject{}}
	for _, resource := range selection.Resources {
		list, err := client.Resource(resource).List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", resource.GroupResource(), err)
		}
		for i := range list.Items {
			object, b, err := decode(resource, &list.Items[i])
			if err != nil {
				return nil, err
			}
			if selection.selects(object) {
				state.objects[object] = liveObject{uid: b.uid, version: b.version, canonical: b.canonical()}
			}
		}
	}
	return state, nil
}

// decode returns what a client's object is and holds, in the form in which bodies of messages are compared.
func decode(resource schema.GroupVersionResource, u *unstructured.Unstructured) (Object, *body, error) {
	object := Object{
		Group: resource.Group, Resource: resource.Resource, Namespace: u.GetNamespace(), Name: u.GetName(),
	}
	raw, err := u.MarshalJSON()
	if err != nil {
		return object, nil, fmt.Errorf("encode %s: %w", object, err)
	}
	b, err := parseBody(raw)
	if err != nil {
		return object, nil, fmt.Errorf("decode %s: %w", object, err)
	}
	return object, b, nil
}

// CompareState checks that the last message of every object's subject equals the object, that no object lacks a message,
// and that no message tells of an object that is not there.
func (s *Stream) CompareState(state *State) *Report {
	report := &Report{Live: len(state.objects)}
	last := s.last()
	for object, live := range state.objects {
		m := last[object]
		subject := object.Subject(s.Root)
		switch {
		case m == nil:
			report.addVersion(Missing, 0, subject, live.uid, live.version, "uid %s, version %s has no message", live.uid, live.version)
		case m.gone():
			report.addVersion(Missing, m.Sequence, subject, live.uid, live.version,
				"uid %s, version %s lives, the last message is %s of uid %s, version %s",
				live.uid, live.version, m.Kind, m.UID, m.RV)
		case m.UID != live.uid || m.RV != live.version:
			report.addVersion(Stale, m.Sequence, subject, live.uid, live.version,
				"the last message is %s of uid %s, version %s; the cluster has uid %s, version %s",
				m.Kind, m.UID, m.RV, live.uid, live.version)
		case !m.reduced():
			b, err := parseBody(m.data)
			if err != nil {
				continue // Verify says so
			}
			if got := b.canonical(); !bytes.Equal(got, live.canonical) {
				report.addVersion(Differs, m.Sequence, subject, m.UID, m.RV, "%s", difference(got, live.canonical))
			}
		}
	}
	for object, m := range last {
		if _, lives := state.objects[object]; !lives && !m.gone() && state.selection.selects(object) {
			report.addVersion(Stale, m.Sequence, m.Subject, m.UID, m.RV,
				"the last message is %s of uid %s, version %s; the cluster has no such object",
				m.Kind, m.UID, m.RV)
		}
	}
	slices.SortFunc(report.Violations, func(a, b Violation) int { return strings.Compare(a.Subject, b.Subject) })
	return report
}
