package message

import (
	"bytes"
	"fmt"
	"unicode/utf8"

	"github.com/deltabridge/deltabridge/internal/jsonscan"
)

// edit replaces the bytes [start,end) of a text. The edits of one text are in order and do not overlap.
type edit struct {
	start, end int
	text       []byte
}

// editor finds, in one pass over an object's JSON, what a rule tree removes or redacts. It changes nothing itself: the
// edits are applied while the text is copied to where it goes, and a text without edits need not be copied at all.
type editor struct {
	raw     []byte
	edits   []edit
	walker  jsonscan.Walker
	secrets *redactor // used by rules that redact
}

// cut removes [start,end).
func (e *editor) cut(start, end int) { e.replace(start, end, nil) }

// replace puts text in the place of [start,end).
func (e *editor) replace(start, end int, text []byte) {
	if e.edits == nil {
		e.edits = make([]edit, 0, 4)
	}
	e.edits = append(e.edits, edit{start, end, text})
}

// members walks the object at i. visit consumes each member's value and says whether the member is to go. It returns
// how many members stay.
//
// A member goes together with the white space and the comma between it and the member before it, or, if none before it
// stays, the member after it; so that what stays is well-formed and otherwise byte for byte as it came.
func (e *editor) members(i int, visit func(key []byte, value int) (end int, drop bool, err error)) (end, kept int, err error) {
	leading := -1 // where members begin that go and that none which stays precedes
	last := -1    // end of the member before
	end, err = e.walker.Object(e.raw, i, func(key []byte, keyStart, value int) (int, error) {
		if leading >= 0 {
			e.cut(leading, keyStart)
			leading = -1
		}
		before := len(e.edits)
		valueEnd, drop, visitErr := visit(key, value)
		switch {
		case visitErr != nil:
			return valueEnd, visitErr
		case !drop:
			kept++
		case kept == 0:
			e.edits = e.edits[:before]
			leading = keyStart
		default:
			e.edits = e.edits[:before]
			e.cut(last, valueEnd)
		}
		last = valueEnd
		return valueEnd, nil
	})
	if err == nil && leading >= 0 {
		e.cut(leading, last)
	}
	return end, kept, err
}

// value consumes a member's value at i by the rule for the member, which may be nil, and says whether it is to go.
func (e *editor) value(i int, r *rule) (end int, drop bool, err error) {
	switch {
	case r == nil:
		end, err = e.walker.Skip(e.raw, i)
	case r.remove:
		end, err = e.walker.Skip(e.raw, i)
		return end, true, err
	case e.raw[i] == '{':
		end, _, err = e.members(i, func(name []byte, value int) (int, bool, error) {
			inner := r.child(name)
			if r.redact == redactNothing || inner != nil && inner.remove {
				return e.value(value, inner)
			}
			valueEnd, skipErr := e.walker.Skip(e.raw, value)
			if skipErr == nil {
				e.replace(value, valueEnd, e.secrets.text(r.redact, name, e.raw[value:valueEnd]))
			}
			return valueEnd, false, skipErr
		})
	default:
		end, err = e.walker.Skip(e.raw, i)
		if err == nil && r.guard && e.raw[i] != 'n' {
			e.replace(i, end, []byte("null"))
		}
	}
	return end, false, err
}

// finish checks that only white space follows the value that ended at end.
func (e *editor) finish(end int) error {
	if end = jsonscan.SkipSpace(e.raw, end); end != len(e.raw) {
		return fmt.Errorf("%d bytes follow the object", len(e.raw)-end)
	}
	return nil
}

// applyEdits appends raw[start:end] to dst with the edits, all of which lie in it.
func applyEdits(dst, raw []byte, start, end int, edits []edit) []byte {
	for _, ed := range edits {
		dst = append(dst, raw[start:ed.start]...)
		dst = append(dst, ed.text...)
		start = ed.end
	}
	return append(dst, raw[start:end]...)
}

// grownBy returns by how many bytes the edits make a text longer.
func grownBy(edits []edit) int {
	n := 0
	for _, ed := range edits {
		n += len(ed.text) - (ed.end - ed.start)
	}
	return n
}

// appendQuoted appends s as a JSON string. Bytes that are not UTF-8 become U+FFFD, as in encoding/json.
func appendQuoted[T string | []byte](dst []byte, s T) []byte {
	dst = append(dst, '"')
	plain := 0 // start of what is not yet appended
	for i := 0; i < len(s); {
		c := s[i]
		if c >= utf8.RuneSelf {
			r, size := utf8.DecodeRuneInString(string(s[i:min(i+utf8.UTFMax, len(s))]))
			if r == utf8.RuneError && size == 1 {
				dst = append(dst, s[plain:i]...)
				dst = append(dst, `\ufffd`...)
				plain = i + 1
			}
			i += size
			continue
		}
		if c < ' ' || c == '"' || c == '\\' || c == 0x7f {
			dst = append(dst, s[plain:i]...)
			switch c {
			case '"', '\\':
				dst = append(dst, '\\', c)
			case '\n':
				dst = append(dst, '\\', 'n')
			default:
				dst = append(dst, '\\', 'u', '0', '0', upperHex[c>>4], upperHex[c&0xf])
			}
			plain = i + 1
		}
		i++
	}
	dst = append(dst, s[plain:]...)
	return append(dst, '"')
}

// foldEqual reports whether a name means the same to a reader that, like encoding/json, ignores the case of letters.
func foldEqual(a []byte, b string) bool { return bytes.EqualFold(a, []byte(b)) }
