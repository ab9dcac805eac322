package checkpoint

import (
	"fmt"
	"net/url"
	"slices"
)

// Scope is what of the resources is published, and in which form. It stands in each watermark: a position says something
// only of the scope that it was reached in.
type Scope struct {
	// Namespaces are the only ones selected; empty for all.
	Namespaces []string
	// Exclude are left out.
	Exclude []string
	// Form is what else decides on what is published, by name: payload, strip, secrets.
	Form map[string]string
}

const (
	scopeNamespaces = "namespace"
	scopeExclude    = "exclude"
)

// String returns the scope as text: equal scopes have equal texts.
func (s Scope) String() string {
	v := url.Values{}
	for name, value := range s.Form {
		v.Set(name, value)
	}
	for name, list := range map[string][]string{scopeNamespaces: s.Namespaces, scopeExclude: s.Exclude} {
		if list = slices.Sorted(slices.Values(list)); len(list) > 0 {
			v[name] = slices.Compact(list)
		}
	}
	return v.Encode()
}

// ParseScope is the inverse of String.
func ParseScope(text string) (Scope, error) {
	v, err := url.ParseQuery(text)
	if err != nil {
		return Scope{}, fmt.Errorf("scope %.100q: %w", text, err)
	}
	s := Scope{Namespaces: v[scopeNamespaces], Exclude: v[scopeExclude], Form: map[string]string{}}
	for name := range v {
		if name != scopeNamespaces && name != scopeExclude {
			s.Form[name] = v.Get(name)
		}
	}
	return s, nil
}

// Selects reports whether objects of the namespace are selected; those without one, the empty one, always are.
func (s Scope) Selects(namespace string) bool {
	if namespace == "" {
		return true
	}
	return (len(s.Namespaces) == 0 || slices.Contains(s.Namespaces, namespace)) && !slices.Contains(s.Exclude, namespace)
}
