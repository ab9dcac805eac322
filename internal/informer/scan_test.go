package informer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// The reference decodes into maps, so that names are exact and the last of equal names counts; a value of another type
// than it should have counts as absent.

type referenceMeta struct {
	APIVersion, Kind         string
	Namespace, Name, UID, RV string
	InitialEventsEnd         bool
}

func referenceObject(raw json.RawMessage) (map[string]json.RawMessage, bool) {
	var m map[string]json.RawMessage
	if json.Unmarshal(raw, &m) != nil || m == nil {
		return nil, false
	}
	return m, true
}

func referenceString(raw json.RawMessage) string {
	var s string
	if len(raw) == 0 || json.Unmarshal(raw, &s) != nil {
		return ""
	}
	return s
}

func referenceMetadata(object map[string]json.RawMessage) referenceMeta {
	meta, _ := referenceObject(object["metadata"])
	return referenceMeta{
		APIVersion: referenceString(object["apiVersion"]), Kind: referenceString(object["kind"]),
		Namespace: referenceString(meta["namespace"]), Name: referenceString(meta["name"]),
		UID: referenceString(meta["uid"]), RV: referenceString(meta["resourceVersion"]),
	}
}

func (m *metadata) reference() referenceMeta {
	return referenceMeta{
		APIVersion: string(m.apiVersion), Kind: string(m.kind), Namespace: string(m.namespace), Name: string(m.name),
		UID: string(m.uid), RV: string(m.rv),
	}
}

// compact returns JSON without white space, to compare texts that a RawMessage may have trimmed.
func compact(t *testing.T, raw []byte) string {
	t.Helper()
	var b bytes.Buffer
	if err := json.Compact(&b, raw); err != nil {
		t.Fatalf("%q: %v", raw, err)
	}
	return b.String()
}

func checkFrame(t *testing.T, line []byte) {
	t.Helper()
	before := bytes.Clone(line)
	var f frame
	err := scanFrame(line, &f)
	if !bytes.Equal(before, line) {
		t.Fatalf("scanFrame wrote to %q", before)
	}
	top, ok := referenceObject(line)
	object, isObject := referenceObject(top["object"])
	typ := referenceString(top["type"])
	if want := ok && isObject && typ != ""; want != (err == nil) {
		t.Fatalf("scanFrame(%q) = %v, the reference accepts: %t", line, err, want)
	}
	if err != nil {
		return
	}
	if string(f.typ) != typ {
		t.Fatalf("type of %q is %q, want %q", line, f.typ, typ)
	}
	if diff := cmp.Diff(referenceMetadata(object), f.meta.reference()); diff != "" {
		t.Fatalf("metadata of %q differs (-want +got):\n%s", line, diff)
	}
	if got, want := compact(t, line[f.start:f.end]), compact(t, top["object"]); got != want {
		t.Fatalf("object of %q is %q, want %q", line, got, want)
	}
}

func frameSeeds(t testing.TB) [][]byte {
	t.Helper()
	var seeds [][]byte
	files, err := filepath.Glob("testdata/*.frames")
	if err != nil || len(files) == 0 {
		t.Fatalf("no recorded frames in testdata: %v", err)
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range bytes.Lines(content) {
			seeds = append(seeds, line)
		}
	}
	for _, text := range []string{
		``, `{}`, `null`, `[]`, `{"type":"ADDED"}`, `{"type":"ADDED","object":{}}`, `{"type":"ADDED","object":null}`,
		`{"type":null,"object":{}}`, `{"type":5,"type":"ADDED","object":[],"object":{}}`, `{"type":"","object":{}}`,
		`{"type":"ADDED","object":{},"object":7}`, `{"type":"ADDED","object":{}} {}`, `{"type":"ADDED","object":{}}}`,
		`{"Type":"ADDED","object":{}}`, `{"type":"ADDED","Object":{}}`, `{"\u0074ype":"A\u0044DED","object":{}}`,
		`{"type":"ADDED","object":{"metadata":{"name":"a\"b\u00e9\ud83d\ude00","namespace":null,"uid":7,"resourceVersion":"1"}}}`,
		`{"type":"ADDED","object":{"metadata":{"name":"a"},"metadata":{"uid":"b"}}}`,
		`{"type":"ADDED","object":{"metadata":{"name":"a"},"metadata":null}}`,
		`{"type":"ADDED","object":{"metadata":"x","kind":{"kind":"y"},"apiVersion":["v1"]}}`,
		`{"type":"BOOKMARK","object":{"metadata":{"annotations":{"k8s.io/initial-events-end":"true"}}}}`,
		"{\"type\":\"ADDED\",\"object\":{\"metadata\":{\"name\":\"\xff\"}}}", "\t{\n\"type\" : \"X\" , \"object\" : { } }\r\n",
		`{"type":"ADDED","object":` + strings.Repeat(`{"a":`, 9998) + `{}` + strings.Repeat(`}`, 9998) + `}`,
		`{"type":"ADDED","object":` + strings.Repeat(`{"a":`, 9999) + `{}` + strings.Repeat(`}`, 9999) + `}`,
		`{"type":"ADDED","object":{"kind":` + strings.Repeat(`[`, 9998) + strings.Repeat(`]`, 9998) + `}}`,
		`{"type":"ADDED","object":{"kind":` + strings.Repeat(`[`, 9999) + strings.Repeat(`]`, 9999) + `}}`,
	} {
		seeds = append(seeds, []byte(text))
	}
	return seeds
}

// TestScanFrameOfSeeds also proves that the recorded frames are frames.
func TestScanFrameOfSeeds(t *testing.T) {
	for _, seed := range frameSeeds(t) {
		checkFrame(t, seed)
		if bytes.HasSuffix(seed, []byte("\n")) && bytes.HasPrefix(seed, []byte(`{"type"`)) {
			var f frame
			if err := scanFrame(seed, &f); err != nil || len(f.meta.rv) == 0 && string(f.typ) != "ERROR" {
				t.Errorf("recorded frame %.80q: version %q, error %v", seed, f.meta.rv, err)
			}
		}
	}
}

func FuzzScanFrame(f *testing.F) {
	for _, seed := range frameSeeds(f) {
		if len(seed) < 5000 { // variants of the others are slow to try, and tell no more
			f.Add(seed)
		}
	}
	f.Fuzz(func(t *testing.T, line []byte) { checkFrame(t, line) })
}

const (
	listAPIVersion = "example.com/v1"
	listKind       = "Widget"
)

// referenceList is the list as encoding/json reads it, and whether it is one.
func referenceList(body []byte, keep func(string) bool) (rv, next string, items []map[string]json.RawMessage, ok bool) {
	top, ok := referenceObject(body)
	if !ok {
		return "", "", nil, false
	}
	meta, _ := referenceObject(top["metadata"])
	rv, next = referenceString(meta["resourceVersion"]), referenceString(meta["continue"])
	_, has := top["items"]
	if rv == "" || !has && !strings.HasSuffix(referenceString(top["kind"]), "List") {
		return "", "", nil, false
	}
	// The last one counts, but each must be a list of objects: where one is not, something else is wrong.
	for _, raw := range occurrences(body, "items") {
		var all []json.RawMessage
		if json.Unmarshal(raw, &all) != nil {
			return "", "", nil, false
		}
		items = nil
		for _, one := range all {
			item, isObject := referenceObject(one)
			m := referenceMetadata(item)
			if !isObject || m.Name == "" || m.RV == "" {
				return "", "", nil, false
			}
			if keep == nil || keep(m.Namespace) {
				items = append(items, item)
			}
		}
	}
	return rv, next, items, true
}

// occurrences returns the values of every member of that name in an object.
func occurrences(object []byte, name string) []json.RawMessage {
	var out []json.RawMessage
	d := json.NewDecoder(bytes.NewReader(object))
	if _, err := d.Token(); err != nil {
		return nil
	}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return nil
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return nil
		}
		if key == name {
			out = append(out, value)
		}
	}
	return out
}

func checkList(t *testing.T, body []byte) {
	t.Helper()
	for name, keep := range map[string]func(string) bool{
		"all": nil, "some": func(ns string) bool { return ns != "a" },
	} {
		list, err := scanList(body, listAPIVersion, listKind, keep)
		rv, next, items, ok := referenceList(body, keep)
		if ok != (err == nil) {
			t.Fatalf("%s: scanList(%q) = %v, the reference accepts: %t", name, body, err, ok)
		}
		if err != nil {
			return
		}
		if list.ResourceVersion != rv || list.Continue != next || len(list.Items) != len(items) {
			t.Fatalf("%s: list of %q has version %q, continue %q, %d items; want %q, %q, %d",
				name, body, list.ResourceVersion, list.Continue, len(list.Items), rv, next, len(items))
		}
		for i, item := range items {
			checkItem(t, item, list.Items[i].(*Object))
		}
	}
}

func checkItem(t *testing.T, item map[string]json.RawMessage, o *Object) {
	t.Helper()
	want := referenceMetadata(item)
	if want.Kind == "" {
		want.Kind = listKind
	}
	if want.APIVersion == "" {
		want.APIVersion = listAPIVersion
	}
	got := referenceMeta{
		APIVersion: o.kind.apiVersion, Kind: o.kind.gvk.Kind, Namespace: o.namespace, Name: o.name, UID: string(o.uid), RV: o.rv,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("item differs (-want +got):\n%s", diff)
	}
	decoded, ok := referenceObject(o.raw())
	if !ok {
		t.Fatalf("item's JSON %q is none", o.raw())
	}
	for _, key := range []string{"kind", "apiVersion"} {
		if _, has := item[key]; has {
			continue // what is there is left as it is
		}
		if referenceString(decoded[key]) == "" {
			t.Fatalf("item's JSON %q has no %s", o.raw(), key)
		}
		delete(decoded, key)
	}
	if len(decoded) != len(item) {
		t.Fatalf("item's JSON %q has not the members %v", o.raw(), item)
	}
	for key, value := range item {
		if string(decoded[key]) != string(value) {
			t.Fatalf("member %q of the item's JSON is %q, want %q", key, decoded[key], value)
		}
	}
}

func listSeeds(t testing.TB) [][]byte {
	t.Helper()
	var seeds [][]byte
	files, err := filepath.Glob("testdata/*.list.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("no recorded lists in testdata: %v", err)
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		seeds = append(seeds, content)
	}
	for _, text := range []string{
		``, `{}`, `null`, `[]`, `{"metadata":{"resourceVersion":"5"},"items":[]}`, `{"metadata":{"resourceVersion":"5"},"items":null}`,
		`{"metadata":{"resourceVersion":"5"}}`, `{"kind":"WidgetList","metadata":{"resourceVersion":"5"}}`,
		`{"kind":"Widget","metadata":{"resourceVersion":"5","name":"one"}}`, `{"metadata":{"resourceVersion":"5"},"items":{}}`,
		`{"metadata":{"resourceVersion":"5"},"items":"x"}`, `{"metadata":{"resourceVersion":""},"items":[]}`,
		`{"metadata":{"ResourceVersion":"5"},"items":[]}`, `{"metadata":{"resourceVersion":"5"},"metadata":{"continue":"c"},"items":[]}`,
		`{"items":[{"metadata":{"name":"x","resourceVersion":"1","namespace":"a"}},{"metadata":{"name":"y","resourceVersion":"2"}}],"metadata":{"resourceVersion":"5","continue":"next","remainingItemCount":3}}`,
		`{"metadata":{"resourceVersion":"5"},"items":[{"kind":"K","metadata":{"name":"x","resourceVersion":"1"}},{"apiVersion":"v","metadata":{"name":"x","resourceVersion":"1"}}]}`,
		`{"metadata":{"resourceVersion":"5"},"items":[null]}`, `{"metadata":{"resourceVersion":"5"},"items":[{}]}`,
		`{"metadata":{"resourceVersion":"5"},"items":[{ }, 3]}`, `{"metadata":{"resourceVersion":"5"},"items":[{"metadata":{"name":"x"}}]}`,
		`{"metadata":{"resourceVersion":"5"},"items":[{"metadata":{"name":"x","resourceVersion":"1"},"kind":null}]}`,
		`{"kind":"Status","status":"Failure","metadata":{},"code":403}`, `{"metadata":{"resourceVersion":"5"},"items":[]} x`,
	} {
		seeds = append(seeds, []byte(text))
	}
	return seeds
}

func TestScanListOfSeeds(t *testing.T) {
	for _, seed := range listSeeds(t) {
		checkList(t, seed)
	}
}

func FuzzScanList(f *testing.F) {
	for _, seed := range listSeeds(f) {
		if len(seed) < 5000 {
			f.Add(seed)
		}
	}
	f.Fuzz(func(t *testing.T, body []byte) { checkList(t, body) })
}

// An answer that is taken for an empty list deletes every object of the resource, so nothing else may be.
func TestScanListRefusesWhatIsNoList(t *testing.T) {
	for _, body := range []string{
		`{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","code":403}`,
		`{"kind":"Widget","apiVersion":"example.com/v1","metadata":{"name":"one","resourceVersion":"5"}}`,
		`{"kind":"WidgetList","apiVersion":"example.com/v1","metadata":{"resourceVersion":"5"},"items":{}}`,
		`{"kind":"WidgetList","apiVersion":"example.com/v1","items":[]}`,
		`{"kind":"WidgetList","apiVersion":"example.com/v1","metadata":{"resourceVersion":"5"},"items":[]`,
		`<html>Please log in</html>`, `"ok"`, ``,
	} {
		if list, err := scanList([]byte(body), listAPIVersion, listKind, nil); err == nil {
			t.Errorf("scanList(%q) = %d items, want an error", body, len(list.Items))
		}
	}
}

// Items must not keep the whole body in memory.
func TestScanListCopiesItems(t *testing.T) {
	body := []byte(`{"metadata":{"resourceVersion":"5"},"items":[{"metadata":{"name":"x","resourceVersion":"1"}}]}`)
	list, err := scanList(body, listAPIVersion, listKind, nil)
	if err != nil {
		t.Fatal(err)
	}
	clear(body)
	o := list.Items[0].(*Object)
	want := `{"kind":"Widget","apiVersion":"example.com/v1","metadata":{"name":"x","resourceVersion":"1"}}`
	if string(o.raw()) != want || o.GetName() != "x" || o.GetResourceVersion() != "1" {
		t.Errorf("item is %q, %s, %s, want %q", o.raw(), o.GetName(), o.GetResourceVersion(), want)
	}
}

func TestWithTypeMeta(t *testing.T) {
	tests := []struct{ in, want string }{
		{`{}`, `{"kind":"Widget","apiVersion":"example.com/v1"}`},
		{`{ }`, `{"kind":"Widget","apiVersion":"example.com/v1" }`},
		{`{"a":1}`, `{"kind":"Widget","apiVersion":"example.com/v1","a":1}`},
		{`{"kind":"K"}`, `{"apiVersion":"example.com/v1","kind":"K"}`},
		{`{"apiVersion":"v"}`, `{"kind":"Widget","apiVersion":"v"}`},
		{`{"kind":"K","apiVersion":"v"}`, `{"kind":"K","apiVersion":"v"}`},
	}
	for _, test := range tests {
		var m metadata
		if referenceValue, ok := referenceObject([]byte(test.in)); ok {
			m.kind, m.apiVersion = []byte(referenceString(referenceValue["kind"])), []byte(referenceString(referenceValue["apiVersion"]))
		}
		if got := string(withTypeMeta([]byte(test.in), &m, listAPIVersion, listKind)); got != test.want {
			t.Errorf("withTypeMeta(%s) = %s, want %s", test.in, got, test.want)
		}
	}
}

// sample returns a recorded watch event: of a pod of 8 kB, or of a config map of 1 kB.
func sample(t testing.TB, kind string) []byte {
	t.Helper()
	for _, seed := range frameSeeds(t) {
		if bytes.HasPrefix(seed, []byte(`{"type":"ADDED","object":{"kind":"`+kind+`"`)) {
			return seed
		}
	}
	t.Fatalf("testdata has no ADDED frame of a %s", kind)
	return nil
}

// A frame is scanned in place: only what is kept of it is allocated, by the caller.
func TestScanFrameAllocations(t *testing.T) {
	for _, kind := range []string{"Pod", "ConfigMap"} {
		line := sample(t, kind)
		var f frame
		if n := testing.AllocsPerRun(100, func() {
			if err := scanFrame(line, &f); err != nil {
				t.Fatal(err)
			}
		}); n > 0 {
			t.Errorf("scanFrame of a %s allocates %.0f times, want never", kind, n)
		}
	}
}

// BenchmarkDecode compares what an event costs here, from bytes to an Object, with decoding it as a dynamic informer
// does.
func BenchmarkDecode(b *testing.B) {
	for _, kind := range []string{"Pod", "ConfigMap"} {
		line := sample(b, kind)
		name := fmt.Sprintf("%s-%dkB", kind, (len(line)+500)/1000)
		b.Run(name+"/scan", func(b *testing.B) {
			var f frame
			var names interned
			b.SetBytes(int64(len(line)))
			b.ReportAllocs()
			for b.Loop() {
				if err := scanFrame(line, &f); err != nil {
					b.Fatal(err)
				}
				raw := withTypeMeta(line[f.start:f.end], &f.meta, "v1", kind)
				if o := names.object(&f.meta, raw); o.rv == "" {
					b.Fatal("no version")
				}
			}
		})
		b.Run(name+"/unstructured", func(b *testing.B) {
			b.SetBytes(int64(len(line)))
			b.ReportAllocs()
			for b.Loop() {
				var event struct {
					Type   string          `json:"type"`
					Object json.RawMessage `json:"object"`
				}
				if err := json.Unmarshal(line, &event); err != nil {
					b.Fatal(err)
				}
				var u unstructured.Unstructured
				if err := u.UnmarshalJSON(event.Object); err != nil {
					b.Fatal(err)
				}
				if u.GetResourceVersion() == "" {
					b.Fatal(errors.New("no version"))
				}
			}
		})
	}
}
