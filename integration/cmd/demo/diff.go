package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxValue is how many characters of a value are shown.
const maxValue = 36

// maxEdits is how many fields of one change are shown.
const maxEdits = 3

// mark says what happened to a field.
type mark byte

const (
	changed mark = '~'
	added   mark = '+'
	removed mark = '-'
)

// edit is one field's difference between two bodies. Values are compact JSON, shortened.
type edit struct {
	mark     mark
	path     string
	old, new string
}

// String returns the edit as it is shown without colours: `data.color: "red" → "blue"`, `+data.size: 3`, `-data.size`.
func (e edit) String() string {
	switch e.mark {
	case added:
		return "+" + e.path + ": " + e.new
	case removed:
		return "-" + e.path
	default:
		return e.path + ": " + e.old + " → " + e.new
	}
}

// silent are fields that change with everything and say nothing.
var silent = []string{
	"metadata.resourceVersion", "metadata.managedFields", "metadata.generation", "metadata.creationTimestamp",
	"metadata.uid",
}

// diff returns the fields in which two bodies differ, in order of their paths.
func diff(before, after []byte) ([]edit, error) {
	a, err := decode(before)
	if err != nil {
		return nil, err
	}
	b, err := decode(after)
	if err != nil {
		return nil, err
	}
	var edits []edit
	compare("", a, b, &edits)
	return edits, nil
}

// content returns what is in a new object besides its identity and its status, as fields that were added.
func content(body []byte) ([]edit, error) {
	object, err := decode(body)
	if err != nil {
		return nil, err
	}
	fields, _ := object.(map[string]any)
	var edits []edit
	for _, key := range sortedKeys(fields) {
		switch key {
		case "apiVersion", "kind", "metadata", "status":
		default:
			leaves(key, fields[key], &edits)
		}
	}
	return edits, nil
}

// tellingNames are fields that say much of an object, among all those that the API server fills in.
var tellingNames = []string{"replicas", "readyReplicas", "image", "clusterIP", "schedule", "nodeName", "phase"}

// telling returns the edits to show where there is no room for all: the telling ones if there are any.
func telling(edits []edit) []edit {
	if len(edits) <= maxEdits {
		return edits
	}
	var found []edit
	for _, e := range edits {
		if name := e.path[strings.LastIndexByte(e.path, '.')+1:]; slices.Contains(tellingNames, name) {
			found = append(found, e)
		}
	}
	if len(found) == 0 {
		found = edits
	}
	return found[:min(maxEdits, len(found))]
}

// decode keeps numbers as they are written.
func decode(body []byte) (any, error) {
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.UseNumber()
	var value any
	if err := decoder.Decode(&value); err != nil {
		return nil, fmt.Errorf("decode a body: %w", err)
	}
	return value, nil
}

// compare appends the differences of two values that are both there.
func compare(path string, a, b any, edits *[]edit) {
	if slices.Contains(silent, path) {
		return
	}
	x, y, ok := asFields(a, b)
	if !ok {
		if before, after := render(a), render(b); before != after {
			*edits = append(*edits, edit{mark: changed, path: path, old: shorten(before), new: shorten(after)})
		}
		return
	}
	for _, key := range sortedKeys(x, y) {
		before, had := x[key]
		after, has := y[key]
		at := join(path, key)
		switch {
		case had && has:
			compare(at, before, after, edits)
		case slices.Contains(silent, at):
		case has:
			*edits = append(*edits, edit{mark: added, path: at, new: shorten(render(after))})
		default:
			*edits = append(*edits, edit{mark: removed, path: at, old: shorten(render(before))})
		}
	}
}

// asFields returns two objects, or two lists, as fields by name. It reports false for what has none.
func asFields(a, b any) (x, y map[string]any, ok bool) {
	switch a := a.(type) {
	case map[string]any:
		b, ok := b.(map[string]any)
		return a, b, ok
	case []any:
		b, ok := b.([]any)
		if !ok {
			return nil, nil, false
		}
		key := listKey(a, b)
		return asMap(a, key), asMap(b, key), true
	}
	return nil, nil, false
}

// listKey returns the field by which the items of both lists are known: Kubernetes's lists of objects mostly have a
// name or a type in each. It is empty where the position must do.
func listKey(lists ...[]any) string {
	for _, key := range []string{"name", "type"} {
		if !slices.ContainsFunc(lists, func(list []any) bool { return !keyed(list, key) }) {
			return key
		}
	}
	return ""
}

// keyed reports whether a list's items can be told apart by a field.
func keyed(list []any, key string) bool {
	seen := map[string]bool{}
	for _, item := range list {
		fields, _ := item.(map[string]any)
		name, ok := fields[key].(string)
		if !ok || seen[name] {
			return false
		}
		seen[name] = true
	}
	return true
}

func asMap(list []any, key string) map[string]any {
	fields := make(map[string]any, len(list))
	for i, item := range list {
		name := strconv.Itoa(i)
		if key != "" {
			name, _ = item.(map[string]any)[key].(string)
		}
		fields["["+name+"]"] = item
	}
	return fields
}

// leaves appends every value below a path as an added field.
func leaves(path string, value any, edits *[]edit) {
	fields, ok := value.(map[string]any)
	if list, isList := value.([]any); isList {
		fields, ok = asMap(list, listKey(list)), true
	}
	if !ok || len(fields) == 0 {
		*edits = append(*edits, edit{mark: added, path: path, new: shorten(render(value))})
		return
	}
	for _, key := range sortedKeys(fields) {
		leaves(join(path, key), fields[key], edits)
	}
}

func join(path, key string) string {
	if path == "" || key[:min(1, len(key))] == "[" {
		return path + key
	}
	return path + "." + key
}

func render(value any) string {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return err.Error() // cannot be: it was decoded from JSON
	}
	return string(bytes.TrimSpace(out.Bytes()))
}

func shorten(text string) string {
	if utf8.RuneCountInString(text) <= maxValue {
		return text
	}
	return string([]rune(text)[:maxValue-1]) + "…"
}

func sortedKeys(maps ...map[string]any) []string {
	var keys []string
	for _, m := range maps {
		for key := range m {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}
