package main

import (
	"slices"
	"testing"
)

func TestDiff(t *testing.T) {
	for _, test := range []struct {
		name, before, after string
		want                []string
	}{
		{"equal", `{"data":{"a":"1"}}`, `{"data":{"a":"1"}}`, nil},
		{"version only", `{"metadata":{"resourceVersion":"1","generation":1}}`, `{"metadata":{"resourceVersion":"2","generation":2}}`, nil},
		{"changed", `{"data":{"color":"red"}}`, `{"data":{"color":"blue"}}`, []string{`data.color: "red" → "blue"`}},
		{"added and removed", `{"data":{"a":"1"}}`, `{"data":{"b":"<2>"}}`, []string{`-data.a`, `+data.b: "<2>"`}},
		{"subtree added", `{"metadata":{}}`, `{"metadata":{"labels":{"app":"web"}}}`, []string{`+metadata.labels: {"app":"web"}`}},
		{"large number", `{"n":9007199254740993}`, `{"n":9007199254740992}`, []string{`n: 9007199254740993 → 9007199254740992`}},
		{"other type", `{"a":{"b":1}}`, `{"a":[1]}`, []string{`a: {"b":1} → [1]`}},
		{"list by position", `{"a":[1,2]}`, `{"a":[1,3,4]}`, []string{`a[1]: 2 → 3`, `+a[2]: 4`}},
		{"list by name",
			`{"c":[{"name":"x","v":1},{"name":"y","v":2}]}`, `{"c":[{"name":"y","v":3},{"name":"x","v":1}]}`,
			[]string{`c[y].v: 2 → 3`}},
		{"list by type",
			`{"c":[{"type":"Ready","status":"False"}]}`, `{"c":[{"type":"Ready","status":"True"}]}`,
			[]string{`c[Ready].status: "False" → "True"`}},
		{"names not unique", `{"c":[{"name":"x"},{"name":"x"}]}`, `{"c":[{"name":"x"},{"name":"z"}]}`, []string{`c[1].name: "x" → "z"`}},
		{"long value", `{}`, `{"a":"0123456789012345678901234567890123456789"}`, []string{`+a: "0123456789012345678901234567890123…`}},
		{"equal where it is shown",
			`{"a":"0123456789012345678901234567890123456789-1"}`, `{"a":"0123456789012345678901234567890123456789-2"}`,
			[]string{`a: "0123456789012345678901234567890123… → "0123456789012345678901234567890123…`}},
		{"empty key", `{"":1}`, `{"":2}`, []string{`: 1 → 2`}},
	} {
		t.Run(test.name, func(t *testing.T) {
			edits, err := diff([]byte(test.before), []byte(test.after))
			if err != nil {
				t.Fatal(err)
			}
			if got := texts(edits); !slices.Equal(got, test.want) {
				t.Errorf("got  %q\nwant %q", got, test.want)
			}
		})
	}
	if _, err := diff([]byte(`{}`), []byte(`{`)); err == nil {
		t.Error("no error for a body that is not JSON")
	}
}

func TestContent(t *testing.T) {
	edits, err := content([]byte(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"},"status":{"phase":"Pending"},
		"spec":{"containers":[{"name":"web","image":"web:1"}],"volumes":[]}}`))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{`+spec.containers[web].image: "web:1"`, `+spec.containers[web].name: "web"`, `+spec.volumes: []`}
	if got := texts(edits); !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func TestTelling(t *testing.T) {
	few := []edit{{path: "a"}, {path: "spec.replicas"}, {path: "c"}}
	if got := telling(few); !slices.Equal(got, few) {
		t.Errorf("got %v, want all that there is room for", got)
	}
	many := append(few, edit{path: "spec.containers[web].image"})
	if got, want := telling(many), []edit{many[1], many[3]}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	plain := []edit{{path: "a"}, {path: "b"}, {path: "c"}, {path: "d"}}
	if got := telling(plain); !slices.Equal(got, plain[:maxEdits]) {
		t.Errorf("got %v, want the first", got)
	}
}

func texts(edits []edit) []string {
	var out []string
	for _, e := range edits {
		out = append(out, e.String())
	}
	return out
}
