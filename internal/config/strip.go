package config

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// StripPath is one item of BRIDGE_STRIP: the way from an object's root to a field that is removed.
type StripPath struct {
	// Text is the path as it was written.
	Text string
	// Steps are the names of the fields and keys on the way, at least one. A key of a map is a step like any other,
	// so metadata.annotations[a.io/b] has the steps metadata, annotations and a.io/b.
	Steps []string
}

// String returns Text.
func (p StripPath) String() string { return p.Text }

// keptFields are those without which a message could not be addressed, ordered or told apart.
var keptFields = []string{
	"apiVersion", "kind", "metadata.name", "metadata.namespace", "metadata.uid", "metadata.resourceVersion",
}

// fieldName admits what the schemas of Kubernetes use; other names can be written as keys.
var fieldName = regexp.MustCompile(`^[A-Za-z0-9_$-]+$`)

// ParseStripPath reads one item of BRIDGE_STRIP: field names joined by dots, each followed by at most one key in
// square brackets. A key is taken literally and holds anything but square brackets. The error quotes the item and
// says what is wrong; it is an error, too, to remove a field that the bridge needs.
func ParseStripPath(item string) (StripPath, error) {
	p := StripPath{Text: item}
	for rest, more := item, true; more; {
		end := strings.IndexAny(rest, ".[")
		name := rest
		if end >= 0 {
			name = rest[:end]
		}
		if !fieldName.MatchString(name) {
			return StripPath{}, fmt.Errorf("%q is no path: %q is not a field name", item, name)
		}
		p.Steps = append(p.Steps, name)
		rest = rest[len(name):]

		if key, ok := strings.CutPrefix(rest, "["); ok {
			length := strings.IndexAny(key, "[]")
			if length <= 0 || key[length] != ']' {
				return StripPath{}, fmt.Errorf("%q is no path: a key has the form [key], without brackets in it", item)
			}
			p.Steps = append(p.Steps, key[:length])
			rest = key[length+1:]
		}

		if more = rest != ""; more {
			var ok bool
			if rest, ok = strings.CutPrefix(rest, "."); !ok {
				return StripPath{}, fmt.Errorf("%q is no path: only a dot may follow a key", item)
			}
		}
	}

	if len(p.Steps) == 1 && p.Steps[0] == "metadata" {
		return StripPath{}, fmt.Errorf("%q is needed; name the fields below it", item)
	}
	for _, kept := range keptFields {
		steps := strings.Split(kept, ".")
		if len(p.Steps) >= len(steps) && slices.Equal(p.Steps[:len(steps)], steps) {
			return StripPath{}, fmt.Errorf("%q is needed to tell objects and versions apart", item)
		}
	}
	return p, nil
}

// StripPaths are the distinct items of BRIDGE_STRIP.
type StripPaths []StripPath

// Decode reads a comma list. A comma in a key does not separate.
func (p *StripPaths) Decode(text string) error {
	items, err := splitList(text, indexOutsideKeys)
	if err != nil {
		return err
	}
	var faults problems
	var paths StripPaths
	for _, item := range items {
		path, parseErr := ParseStripPath(item)
		if parseErr != nil {
			faults = append(faults, parseErr)
			continue
		}
		paths = append(paths, path)
	}
	*p = paths
	return faults.asError()
}

// String returns the comma list that Decode reads.
func (p StripPaths) String() string {
	texts := make([]string, len(p))
	for i, path := range p {
		texts[i] = path.Text
	}
	return strings.Join(texts, ",")
}

// indexOutsideKeys is strings.IndexByte for what is not in square brackets. A bracket that nothing closes reaches to
// the end, where ParseStripPath refuses it.
func indexOutsideKeys(text string, c byte) int {
	inKey := false
	for i := range len(text) {
		switch {
		case text[i] == '[':
			inKey = true
		case text[i] == ']':
			inKey = false
		case text[i] == c && !inKey:
			return i
		}
	}
	return -1
}
