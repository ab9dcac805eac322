package message_test

import (
	"bytes"
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/deltabridge/deltabridge/internal/message"
)

func TestParseStripPath(t *testing.T) {
	for text, want := range map[string]message.StripPath{
		"status":                 {"status"},
		"metadata.managedFields": {"metadata", "managedFields"},
		"metadata.annotations[kubectl.kubernetes.io/last-applied-configuration]": {"metadata", "annotations", "kubectl.kubernetes.io/last-applied-configuration"},
		"a[b.c][d].e":       {"a", "b.c", "d", "e"},
		"a[b[c]":            {"a", "b[c"},
		"data[a b,\"c\"].x": {"data", "a b,\"c\"", "x"},
		"metadata.name.x":   {"metadata", "name", "x"},
		"spec.kind":         {"spec", "kind"},
	} {
		got, err := message.ParseStripPath(text)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("ParseStripPath(%q) = %q, %v, want %q", text, got, err, want)
		}
	}
	for _, text := range []string{
		"", ".", "a.", ".a", "a..b", "[a]", "a[", "a[b", "a[]", "a]", "a[b]c", "a[b].", "a.[b]",
		"kind", "apiVersion", "metadata", "metadata.name", "metadata[namespace]", "metadata.uid", "metadata.resourceVersion",
	} {
		if got, err := message.ParseStripPath(text); err == nil || !strings.Contains(err.Error(), "strip path") {
			t.Errorf("ParseStripPath(%q) = %q, %v, want an error that says what it is about", text, got, err)
		}
	}
}

func TestStrip(t *testing.T) {
	paths := func(texts ...string) (paths []message.StripPath) {
		for _, text := range texts {
			p, err := message.ParseStripPath(text)
			if err != nil {
				t.Fatal(err)
			}
			paths = append(paths, p)
		}
		return paths
	}
	abc := paths("a", "b", "c")
	for _, c := range []struct {
		name      string
		paths     []message.StripPath
		raw, want string
	}{
		{"only member", paths("a"), `{"a":1}`, `{}`},
		{"first", paths("a"), `{"a":1,"x":2}`, `{"x":2}`},
		{"last", paths("a"), `{"x":2,"a":1}`, `{"x":2}`},
		{"middle", paths("a"), `{"x":2,"a":1,"y":3}`, `{"x":2,"y":3}`},
		{"all", abc, `{"a":1,"b":2,"c":3}`, `{}`},
		{"leading", abc, `{"a":1,"b":2,"x":3}`, `{"x":3}`},
		{"trailing", abc, `{"x":3,"a":1,"b":2}`, `{"x":3}`},
		{"every other", abc, `{"a":1,"x":1,"b":2,"y":2,"c":3}`, `{"x":1,"y":2}`},
		{"between", abc, `{"x":1,"a":1,"b":2,"y":2,"c":3,"z":3}`, `{"x":1,"y":2,"z":3}`},
		{"white space stays", paths("a"), " { \"a\" : 1 ,\n\t\"x\" : [ 2 ] } ", " { \"x\" : [ 2 ] } "},
		{"white space before the last", paths("a"), "{ \"x\" : 2 , \"a\" : 1 }\n", "{ \"x\" : 2 }\n"},
		{"white space around all", paths("a"), "{ \"a\" : 1 }", "{  }"},
		{"numbers and escapes stay", paths("a"), `{"a":0,"n":1.0e+00,"s":"\u003c\/"}`, `{"n":1.0e+00,"s":"\u003c\/"}`},
		{"equal names", paths("a"), `{"a":1,"x":2,"a":3}`, `{"x":2}`},
		{"escaped name", paths("abc"), `{"\u0061b\u0063":1,"x":2}`, `{"x":2}`},
		{"names match exactly", paths("ab"), `{"AB":1,"a":2,"abc":3,"ab ":4}`, `{"AB":1,"a":2,"abc":3,"ab ":4}`},
		{"nested", paths("m.a"), `{"m":{"a":{"deep":[1,{"a":2}]},"b":1},"a":2}`, `{"m":{"b":1},"a":2}`},
		{"emptied parent stays", paths("m.a"), `{"m":{"a":1}}`, `{"m":{}}`},
		{"bracketed name", paths("m.n[a.b/c]"), `{"m":{"n":{"a.b/c":"x","a":{"b/c":1}}}}`, `{"m":{"n":{"a":{"b/c":1}}}}`},
		{"arrays are not entered", paths("m.a"), `{"m":[{"a":1}]}`, `{"m":[{"a":1}]}`},
		{"not an object on the way", paths("m.a.b"), `{"m":{"a":"b"}}`, `{"m":{"a":"b"}}`},
		{"null on the way", paths("m.a"), `{"m":null}`, `{"m":null}`},
		{"parent and child", paths("m.a", "m"), `{"m":{"a":1},"x":1}`, `{"x":1}`},
		{"child of what goes first", paths("a.b", "a"), `{"a":{"b":1},"x":1}`, `{"x":1}`},
		{"child of what goes last", paths("a.b", "a"), `{"x":1,"a":{"b":1,"c":2}}`, `{"x":1}`},
		{"siblings", paths("m.a", "m.b"), `{"m":{"a":1,"b":2,"c":3}}`, `{"m":{"c":3}}`},
		{"equal parents", paths("m.a"), `{"m":{"a":1,"b":1},"m":{"a":2}}`, `{"m":{"b":1},"m":{}}`},
		{"dotted name is one name", paths("m.a"), `{"m.a":1}`, `{"m.a":1}`},
		{"empty object", paths("a"), `{}`, `{}`},
		{"empty path", []message.StripPath{{}}, `{"":1}`, `{"":1}`},
		{"empty name", []message.StripPath{{""}}, `{"":1}`, `{}`},
		{"defaults", defaultStrip, deployment, `{"kind":"Deployment","apiVersion":"apps/v1","metadata":{"name":"web","namespace":"default",` +
			`"uid":"0b5d7a1e-0000-4000-8000-000000000001","resourceVersion":"1042","labels":{"app":"web"},` +
			`"annotations":{"note":"a \u003c b"}},"spec":{"replicas":3},"status":{"ready":1.0}}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			raw := []byte(c.raw)
			got, err := message.NewStripper(c.paths...).Strip([]byte("before"), raw)
			if err != nil {
				t.Fatal(err)
			}
			if string(raw) != c.raw {
				t.Errorf("raw was written to: %s", raw)
			}
			if c.raw == c.want {
				if &got[0] != &raw[0] || len(got) != len(raw) {
					t.Errorf("got %s, want raw itself", got)
				}
				return
			}
			if string(got) != "before"+c.want {
				t.Errorf("got  %s\nwant before%s", got, c.want)
			}
		})
	}
}

func TestStripRefuses(t *testing.T) {
	s := message.NewStripper(defaultStrip...)
	for _, raw := range []string{
		"", " ", "null", `"a"`, "[]", "{", `{"a":}`, `{"metadata":{"managedFields":[}}`, `{"a":1}x`, `{"a":1}{}`, `{"metadata":{"managedFields":1,}}`,
	} {
		if got, err := s.Strip(nil, []byte(raw)); err == nil {
			t.Errorf("Strip(%q) = %q", raw, got)
		}
	}
}

// remove is what Strip means, on decoded values.
func remove(value any, path []string) {
	m, ok := value.(map[string]any)
	switch {
	case !ok:
	case len(path) == 1:
		delete(m, path[0])
	default:
		remove(m[path[0]], path[1:])
	}
}

func FuzzStrip(f *testing.F) {
	f.Add([]byte(deployment), "metadata.managedFields", "metadata.annotations[note]")
	f.Add([]byte(`{"a":1,"b":{"c":2,"d":[{"c":3}]},"e":null}`), "b.c", "e")
	f.Add([]byte(` { "a" : 1 , "a" : 2 , "x" : { "y" : 1 } , "b" : 3 } `), "a", "x.y")
	f.Add([]byte(`{"\u0061":1,"b":"\ud800","":0}`), "a", "b")
	f.Add([]byte(`{"a":{"a":{"a":{}}},"b":[]}`), "a.a.a", "a.a")
	f.Add([]byte(`{"a":{"x":1},"a":{"x":2,"y":3}}`), "a.x", "a.y")
	f.Fuzz(func(t *testing.T, raw []byte, text1, text2 string) {
		var paths []message.StripPath
		for _, text := range []string{text1, text2} {
			if p, err := message.ParseStripPath(text); err == nil {
				paths = append(paths, p)
			}
		}
		var want map[string]any
		wantErr := json.Unmarshal(raw, &want)
		got, err := message.NewStripper(paths...).Strip(nil, raw)
		if (err == nil) != (wantErr == nil && want != nil) {
			t.Fatalf("Strip(%q): %v, encoding/json says %v", raw, err, wantErr)
		}
		if err != nil {
			return
		}
		for _, path := range paths {
			remove(want, path)
		}
		var have map[string]any
		if err = json.Unmarshal(got, &have); err != nil {
			t.Fatalf("Strip(%q) = %q: %v", raw, got, err)
		}
		if !reflect.DeepEqual(have, want) {
			t.Errorf("Strip(%q, %q) = %q", raw, paths, got)
		}
		again, err := message.NewStripper(paths...).Strip(nil, got)
		if err != nil || !bytes.Equal(again, got) {
			t.Errorf("stripped twice: %q, %v, once: %q", again, err, got)
		}
	})
}
