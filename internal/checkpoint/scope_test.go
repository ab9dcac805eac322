package checkpoint_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/deltabridge/deltabridge/internal/checkpoint"
)

func TestScope(t *testing.T) {
	s := checkpoint.Scope{
		Namespaces: []string{"b", "a", "b"}, Exclude: []string{"x&y"},
		Form: map[string]string{"payload": "object", "strip": "metadata.managedFields,a[b=c]"},
	}
	same := checkpoint.Scope{Namespaces: []string{"a", "b"}, Exclude: s.Exclude, Form: s.Form}
	if s.String() != same.String() {
		t.Errorf("%q and %q are of equal scopes", s, same)
	}
	back, err := checkpoint.ParseScope(s.String())
	if diff := cmp.Diff(same, back); err != nil || diff != "" {
		t.Errorf("error %v, difference %s", err, diff)
	}
	for namespace, want := range map[string]bool{"": true, "a": true, "b": true, "c": false, "x&y": false} {
		if got := back.Selects(namespace); got != want {
			t.Errorf("selects %q: %t, want %t", namespace, got, want)
		}
	}
	all := checkpoint.Scope{Exclude: []string{"c"}}
	if !all.Selects("d") || all.Selects("c") {
		t.Error("a scope of all namespaces but one selects others")
	}
	if _, err := checkpoint.ParseScope("%zz"); err == nil {
		t.Error("read what is no scope")
	}
}
