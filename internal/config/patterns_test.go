package config

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseResourcePattern(t *testing.T) {
	for _, item := range []string{
		"pods", "deployments.apps", "deployments.v1.apps", "ingresses.networking.k8s.io", "*", "*.apps",
		"*.networking.k8s.io", "pods.v1.", "-secrets", "-*.apps", "-deployments.v1.apps", "a-b.c-d", "1a.2b",
		strings.Repeat("a", 63) + "." + strings.Repeat("b", 63),
	} {
		p, err := ParseResourcePattern(item)
		if err != nil {
			t.Errorf("ParseResourcePattern(%q) = %v", item, err)
			continue
		}
		text, exclude := strings.CutPrefix(item, "-")
		if want := (ResourcePattern{Exclude: exclude, Text: text}); p != want {
			t.Errorf("ParseResourcePattern(%q) = %+v, want %+v", item, p, want)
		}
	}
	for _, item := range []string{
		"", "-", "--pods", "- pods", "-*", ".", "pods.", ".apps", "a..b", "*.", "**", "*.*", "a.*", "*a", "*.a.*",
		"po*", "Pods", "pods/status", "pod s", "pods.v1.apps.", "a_b", "-a-", "a.-b", "pods.v1..", "é", "$RESOURCES",
		`"pods"`, strings.Repeat("a", 64), strings.Repeat("a.", 200) + "a",
	} {
		p, err := ParseResourcePattern(item)
		if err == nil {
			t.Errorf("ParseResourcePattern(%q) = %+v, want an error", item, p)
		}
	}
}

func FuzzParseResourcePattern(f *testing.F) {
	for _, seed := range []string{"pods", "-secrets", "*", "*.apps", "deployments.v1.apps", "pods.v1.", "a/b", "", "-*", "a..b"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, item string) {
		p, err := ParseResourcePattern(item)
		if err != nil {
			if p != (ResourcePattern{}) {
				t.Errorf("ParseResourcePattern(%q) returns %+v with an error", item, p)
			}
			return
		}
		if p.String() != item {
			t.Errorf("ParseResourcePattern(%q).String() = %q", item, p.String())
		}
		rest, _ := strings.CutPrefix(p.Text, "*")
		if p.Text == "" || strings.Trim(rest, "abcdefghijklmnopqrstuvwxyz0123456789-.") != "" || strings.Contains(rest, "..") {
			t.Errorf("ParseResourcePattern(%q) accepts %q", item, p.Text)
		}
		var list ResourcePatterns
		if err = list.Decode("*, " + item + " ,"); err != nil {
			t.Errorf("%q is no item of a list: %v", item, err)
		} else if item != "*" && !slices.Equal(list, ResourcePatterns{{Text: "*"}, p}) {
			t.Errorf("list with %q = %+v", item, list)
		}
	})
}

func TestParseStripPath(t *testing.T) {
	for item, want := range map[string][]string{
		"status":                 {"status"},
		"metadata.managedFields": {"metadata", "managedFields"},
		"metadata.annotations[kubectl.kubernetes.io/last-applied-configuration]": {
			"metadata", "annotations", "kubectl.kubernetes.io/last-applied-configuration",
		},
		"metadata.labels[a]":       {"metadata", "labels", "a"},
		"data[a b, c].x-y[$d].e_f": {"data", "a b, c", "x-y", "$d", "e_f"},
		"a.$ref":                   {"a", "$ref"},
		"metadata.names":           {"metadata", "names"},
		"metadata[annotations]":    {"metadata", "annotations"},
		"spec.metadata.name":       {"spec", "metadata", "name"},
		"spec.kind":                {"spec", "kind"},
	} {
		p, err := ParseStripPath(item)
		if err != nil {
			t.Errorf("ParseStripPath(%q) = %v", item, err)
			continue
		}
		if diff := cmp.Diff(StripPath{Text: item, Steps: want}, p); diff != "" {
			t.Errorf("ParseStripPath(%q) differs (-want +got):\n%s", item, diff)
		}
	}
	for _, item := range []string{
		"", ".", "a.", ".a", "a..b", "a b", "[a]", "a[", "a[]", "a[b", "a]", "a[b]]", "a[b[c]]", "a[b][c]", "a[b]c",
		"a[b].", "a.[b]", "é", "a/b", "$.a b", "metadata", "metadata.name", "metadata.namespace", "metadata.uid",
		"metadata.resourceVersion", "metadata[name]", "metadata.uid.a", "metadata.uid[a]", "apiVersion", "kind",
	} {
		p, err := ParseStripPath(item)
		if err == nil {
			t.Errorf("ParseStripPath(%q) = %+v, want an error", item, p)
		}
	}
}

func TestStripPathsSplitOutsideKeys(t *testing.T) {
	var paths StripPaths
	if err := paths.Decode(" a[b, c] , d ,a[b, c],"); err != nil {
		t.Fatal(err)
	}
	want := StripPaths{{Text: "a[b, c]", Steps: []string{"a", "b, c"}}, {Text: "d", Steps: []string{"d"}}}
	if diff := cmp.Diff(want, paths); diff != "" {
		t.Errorf("paths differ (-want +got):\n%s", diff)
	}
}

func FuzzParseStripPath(f *testing.F) {
	for _, seed := range []string{
		"status", "metadata.managedFields", "metadata.annotations[kubectl.kubernetes.io/last-applied-configuration]",
		"data[a b, c].x", "metadata", "metadata[name]", "a[b[c]]", "a..b", "a[", "",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, item string) {
		p, err := ParseStripPath(item)
		if err != nil {
			if p.Text != "" || p.Steps != nil {
				t.Errorf("ParseStripPath(%q) returns %+v with an error", item, p)
			}
			return
		}
		if p.String() != item || len(p.Steps) == 0 || slices.Contains(p.Steps, "") {
			t.Errorf("ParseStripPath(%q) = %+v", item, p)
		}
		// Dots and brackets stand between steps; only a key may have dots of its own.
		without := func(cut, text string) string {
			return strings.Map(func(r rune) rune {
				if strings.ContainsRune(cut, r) {
					return -1
				}
				return r
			}, text)
		}
		if got, want := without(".", strings.Join(p.Steps, "")), without(".[]", item); got != want {
			t.Errorf("ParseStripPath(%q) has the steps %q", item, p.Steps)
		}
		first := strings.Join(p.Steps[:min(2, len(p.Steps))], ".")
		if len(p.Steps) == 1 && first == "metadata" || slices.Contains(keptFields, first) || slices.Contains(keptFields, p.Steps[0]) {
			t.Errorf("ParseStripPath(%q) removes what the bridge needs", item)
		}
		var list StripPaths
		if err = list.Decode(item + ", other"); err != nil || list[0].Text != item {
			t.Errorf("list with %q = %+v, %v", item, list, err)
		}
	})
}
