package message

import (
	"errors"
	"fmt"

	"github.com/deltabridge/deltabridge/internal/change"
	"github.com/deltabridge/deltabridge/internal/jsonscan"
)

// maxHeaderName bounds an object's name within ce-subject, percent-encoded. The broker refuses headers of more than 64
// KiB, and a name of the kinds that have no limit must not make a message that could never be stored.
const maxHeaderName = 8 << 10

var errNoObject = errors.New("not a JSON object")

// body is what of a change's object goes into its message.
type body struct {
	change *change.Change
	shown  Level // what of the object is shown
	known  bool  // false if nothing is shown but what the change itself says

	editor
	open  int    // index of the object's brace
	front []byte // what is put in after it

	kind, apiVersion []byte // as JSON strings, where the object says them
	metadata         part
}

// part is a range of the object's bytes and, of the edits, those in it.
type part struct {
	start, end       int
	editFrom, editTo int
}

// scan finds what of the object is shown on a level, and everything that is changed in it.
func (e *Encoder) scan(b *body, level Level) error {
	c := b.change
	if b.shown = min(level, LevelNone); b.shown == LevelNone {
		return nil
	}
	if len(c.Raw) == 0 || b.shown == LevelIdentity {
		if b.shown == LevelMetadata {
			b.shown = LevelIdentity
		}
		return nil
	}
	b.known = true
	b.raw = c.Raw
	rules := &e.rules
	if isSecret(c.Ref) {
		rules = &e.secret
		b.secrets = &redactor{e.secrets, e.secretsKey, string(c.UID), c.Published}
	}
	start := jsonscan.SkipSpace(b.raw, 0)
	if start == len(b.raw) || b.raw[start] != '{' {
		return errNoObject
	}
	b.open = start
	hasKind, hasAPIVersion := false, false
	end, kept, err := b.members(start, func(key []byte, value int) (int, bool, error) {
		switch string(key) {
		case "kind":
			hasKind = true
			valueEnd, typeErr := b.typeMeta(value, &b.kind, appendKind)
			return valueEnd, false, typeErr
		case "apiVersion":
			hasAPIVersion = true
			valueEnd, typeErr := b.typeMeta(value, &b.apiVersion, appendAPIVersion)
			return valueEnd, false, typeErr
		case "metadata":
			from := len(b.edits)
			valueEnd, drop, metaErr := b.value(value, rules.child(key))
			if !drop {
				b.metadata = part{value, valueEnd, from, len(b.edits)}
			}
			return valueEnd, drop, metaErr
		}
		return b.value(value, rules.child(key))
	})
	if err == nil {
		err = b.finish(end)
	}
	if err != nil {
		return fmt.Errorf("body: %w", err)
	}
	if !hasKind || !hasAPIVersion {
		b.front = b.typeMetaText(hasKind, hasAPIVersion, kept > 0)
	}
	if b.shown == LevelMetadata && (b.metadata.end == 0 || b.raw[b.metadata.start] != '{') {
		b.shown, b.known = LevelIdentity, false
	}
	return nil
}

// typeMeta consumes the value of kind or apiVersion and keeps it in text, or, if it says nothing, puts in what the change
// says.
func (b *body) typeMeta(i int, text *[]byte, appendOwn func([]byte, *change.Change) []byte) (int, error) {
	end, err := b.walker.Skip(b.raw, i)
	if err != nil {
		return end, err
	}
	if b.raw[i] == '"' && end-i > len(`""`) {
		*text = b.raw[i:end:end]
	} else {
		b.replace(i, end, appendOwn(nil, b.change))
	}
	return end, nil
}

// typeMetaText is what is put in at the front of an object that lacks its kind or apiVersion. Items of a list do.
func (b *body) typeMetaText(hasKind, hasAPIVersion, others bool) []byte {
	text := make([]byte, 0, 128)
	if !hasKind {
		text = append(text, `"kind":`...)
		text = append(appendKind(text, b.change), ',')
	}
	if !hasAPIVersion {
		text = append(text, `"apiVersion":`...)
		text = append(appendAPIVersion(text, b.change), ',')
	}
	if !others {
		text = text[:len(text)-1]
	}
	return text
}

// appendKind appends a change's kind as a JSON string.
func appendKind(dst []byte, c *change.Change) []byte { return appendQuoted(dst, c.GVK.Kind) }

// appendAPIVersion appends a change's apiVersion as a JSON string.
func appendAPIVersion(dst []byte, c *change.Change) []byte {
	return appendQuoted(dst, c.GVK.GroupVersion().String())
}

// untouched reports whether the body is the change's Raw as it is.
func (b *body) untouched() bool {
	return b.known && b.shown == LevelObject && len(b.edits) == 0 && len(b.front) == 0
}

// size returns how much room the body needs, short of what has to be escaped.
func (b *body) size() int {
	const names = len(`{"kind":,"apiVersion":,"metadata":{"name":"","namespace":"","uid":"","resourceVersion":""}}`)
	c := b.change
	types := names + len(b.kind) + len(b.apiVersion) + len(c.GVK.Group) + len(c.GVK.Version) + len(c.GVK.Kind)
	switch {
	case b.shown == LevelNone:
		return 0
	case !b.known:
		return types + len(c.Ref.Name) + len(c.Ref.Namespace) + len(c.UID) + len(c.RV)
	case b.shown == LevelMetadata:
		return types + b.metadata.end - b.metadata.start + grownBy(b.edits[b.metadata.editFrom:b.metadata.editTo])
	}
	return len(b.raw) + len(b.front) + grownBy(b.edits)
}

// appendTo appends the body to dst.
func (b *body) appendTo(dst []byte) []byte {
	if b.known && b.shown == LevelObject {
		dst = append(dst, b.raw[:b.open+1]...)
		dst = append(dst, b.front...)
		return applyEdits(dst, b.raw, b.open+1, len(b.raw), b.edits)
	}
	dst = append(dst, `{"kind":`...)
	if b.kind != nil {
		dst = append(dst, b.kind...)
	} else {
		dst = appendKind(dst, b.change)
	}
	dst = append(dst, `,"apiVersion":`...)
	if b.apiVersion != nil {
		dst = append(dst, b.apiVersion...)
	} else {
		dst = appendAPIVersion(dst, b.change)
	}
	dst = append(dst, `,"metadata":`...)
	if b.known {
		m := b.metadata
		dst = applyEdits(dst, b.raw, m.start, m.end, b.edits[m.editFrom:m.editTo])
		return append(dst, '}')
	}
	c := b.change
	dst = append(dst, `{"name":`...)
	dst = appendQuoted(dst, c.Ref.Name)
	if c.Ref.Namespace != "" {
		dst = append(dst, `,"namespace":`...)
		dst = appendQuoted(dst, c.Ref.Namespace)
	}
	dst = append(dst, `,"uid":`...)
	dst = appendQuoted(dst, string(c.UID))
	dst = append(dst, `,"resourceVersion":`...)
	dst = appendQuoted(dst, c.RV)
	return append(dst, '}', '}')
}

// contentType is the type of the body's data, empty if there is none.
func (b *body) contentType() string {
	if b.shown == LevelNone {
		return ""
	}
	return ContentJSON
}

// oversize is the value of ce-oversize, empty if the body was not reduced.
func (b *body) oversize() string {
	if b.shown == LevelObject {
		return ""
	}
	return b.shown.String()
}

// appendGVK appends the value of ce-gvk.
func appendGVK(dst []byte, c *change.Change) []byte {
	if c.GVK.Group != "" {
		dst = append(appendHeaderValue(dst, c.GVK.Group), '/')
	}
	dst = append(appendHeaderValue(dst, c.GVK.Version), '/')
	return appendHeaderValue(dst, c.GVK.Kind)
}

// appendRef appends the value of ce-subject, which is ref.String() as a header's value.
func appendRef(dst []byte, ref change.ObjectRef) []byte {
	dst = appendHeaderValue(dst, ref.Resource)
	if ref.Group != "" {
		dst = appendHeaderValue(append(dst, '.'), ref.Group)
	}
	dst = append(dst, '/')
	if ref.Namespace != "" {
		dst = append(appendHeaderValue(dst, ref.Namespace), '/')
	}
	return appendHeaderValue(dst, ref.Name)
}

// boundedRef puts its subject token in the place of a name that is too long for a header.
func boundedRef(ref change.ObjectRef) change.ObjectRef {
	if len(ref.Name) > maxHeaderName/3 && len(EncodeHeaderValue(ref.Name)) > maxHeaderName {
		ref.Name = string(appendName(nil, ref.Name))
	}
	return ref
}
