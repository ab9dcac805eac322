package message

import (
	"fmt"
	"strings"

	"github.com/deltabridge/deltabridge/internal/jsonscan"
)

// StripPath names a member of every object, or a member of a member and so on, that is removed before anything is
// stored or sent: the names from the object inwards. Names match exactly. Arrays are not entered.
type StripPath []string

// neverStripped are the members without which a message could not be understood, or not be told from another.
var neverStripped = []string{
	"apiVersion", "kind", "metadata", "metadata.name", "metadata.namespace", "metadata.uid", "metadata.resourceVersion",
}

// ParseStripPath reads a path in the form of BRIDGE_STRIP: names separated by dots, and names that themselves contain a
// dot in brackets, as in metadata.annotations[kubectl.kubernetes.io/last-applied-configuration]. A name in brackets is
// taken as it stands up to the closing bracket. It refuses paths whose removal would take away what identifies an object.
func ParseStripPath(text string) (StripPath, error) {
	var path StripPath
	for rest := text; rest != "" || len(path) == 0; {
		var name string
		if inner, bracket := strings.CutPrefix(rest, "["); bracket && len(path) > 0 {
			var closed bool
			if name, rest, closed = strings.Cut(inner, "]"); !closed {
				return nil, fmt.Errorf("strip path %q: a bracket is not closed", text)
			}
			if rest != "" && rest[0] != '.' && rest[0] != '[' {
				return nil, fmt.Errorf("strip path %q: want . or [ after a bracket", text)
			}
		} else {
			if len(path) > 0 {
				rest = rest[1:] // the dot that ended the name before
			}
			end := strings.IndexAny(rest, ".[]")
			if end < 0 {
				end = len(rest)
			}
			if end < len(rest) && rest[end] == ']' {
				return nil, fmt.Errorf("strip path %q: a bracket is closed that was not opened", text)
			}
			name, rest = rest[:end], rest[end:]
		}
		if name == "" {
			return nil, fmt.Errorf("strip path %q: a name is empty", text)
		}
		path = append(path, name)
	}
	for _, kept := range neverStripped {
		if strings.Join(path, ".") == kept {
			return nil, fmt.Errorf("strip path %q: %s identifies the object and is always kept", text, kept)
		}
	}
	return path, nil
}

// rule says what happens to a member of an object. A nil rule leaves it as it is.
type rule struct {
	remove bool // take it away
	// guard marks the way to what must never pass. Its name matches whatever the case of its letters, for some readers
	// ignore that; and where it is neither an object nor null, it becomes null.
	guard    bool
	redact   redaction // replace the values of its members
	children []namedRule
}

type namedRule struct {
	name string
	rule *rule
}

// child returns the rule for the member of that name. There are few: comparing beats hashing.
func (r *rule) child(name []byte) *rule {
	for i := range r.children {
		if c := &r.children[i]; string(name) == c.name || c.rule.guard && foldEqual(name, c.name) {
			return c.rule
		}
	}
	return nil
}

// at returns the rule at a path, which it makes.
func (r *rule) at(path []string, guard bool) *rule {
	for _, name := range path {
		c := r.child([]byte(name))
		if c == nil {
			c = &rule{}
			r.children = append(r.children, namedRule{name, c})
		}
		c.guard = c.guard || guard
		r = c
	}
	return r
}

// strip adds rules that remove the paths.
func (r *rule) strip(paths []StripPath) {
	for _, path := range paths {
		if len(path) > 0 {
			r.at(path, false).remove = true
		}
	}
}

// Stripper removes members from objects. It is safe for concurrent use.
type Stripper struct {
	root rule
}

// NewStripper returns a Stripper of the paths. Empty paths are ignored.
func NewStripper(paths ...StripPath) *Stripper {
	s := &Stripper{}
	s.root.strip(paths)
	return s
}

// Strip appends raw, which is one JSON object, to dst, less the members that a path names. What stays is byte for byte
// as it came; an object that becomes empty stays as {}. Of members with equal names each is removed or entered. If there is
// nothing to remove, it returns raw itself and leaves dst alone.
func (s *Stripper) Strip(dst, raw []byte) ([]byte, error) {
	e := editor{raw: raw}
	start := jsonscan.SkipSpace(raw, 0)
	if start == len(raw) || raw[start] != '{' {
		return nil, fmt.Errorf("strip: %w", errNoObject)
	}
	end, _, err := e.value(start, &s.root)
	if err == nil {
		err = e.finish(end)
	}
	if err != nil {
		return nil, fmt.Errorf("strip: %w", err)
	}
	if len(e.edits) == 0 {
		return raw, nil
	}
	return applyEdits(dst, raw, 0, len(raw), e.edits), nil
}
