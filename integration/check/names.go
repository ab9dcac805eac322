package check

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// Object names an object within one cluster by its raw names.
type Object struct {
	Group, Resource, Namespace, Name string
}

// String returns the raw names as they stand in ce-subject.
func (o Object) String() string {
	s := o.GroupResource()
	if o.Namespace != "" {
		s += "/" + o.Namespace
	}
	return s + "/" + o.Name
}

// GroupResource returns "deployments.apps", or "pods" for the core group.
func (o Object) GroupResource() string {
	if o.Group == "" {
		return o.Resource
	}
	return o.Resource + "." + o.Group
}

// Subject returns the object's subject below root, which is "<prefix>.<cluster>".
func (o Object) Subject(root string) string {
	group, namespace := "core", "_"
	if o.Group != "" {
		group = escape(o.Group)
	}
	if o.Namespace != "" {
		namespace = escape(o.Namespace)
	}
	return strings.Join([]string{root, group, escape(o.Resource), namespace, nameToken(o.Name)}, ".")
}

const (
	longestToken = 1024 // of a name that stands in a subject as it is
	keptOfLong   = 256  // bytes of the escaped text of a longer one, at most
)

// nameToken returns the token of an object's name. One that is too long for a subject is cut, between two escapes, and
// completed by a hash.
func nameToken(name string) string {
	token := escape(name)
	if len(token) <= longestToken {
		return token
	}
	end := keptOfLong
	if i := strings.LastIndexByte(token[:end], '='); i > end-3 {
		end = i
	}
	return token[:end] + fmt.Sprintf("=H%X", sha256.Sum256([]byte(name)))
}

var hashed = regexp.MustCompile(`=H[0-9A-F]{64}$`)

// subjectKind says what a subject carries.
type subjectKind int

const (
	writerSubject subjectKind = iota
	watermarkSubject
	objectSubject
)

// parseSubject takes a subject below root apart. A watermark's subject has no namespace and no name. Where the subject
// has only a hash of the name, its token stands for it.
func parseSubject(root, subject string) (subjectKind, Object, error) {
	if subject == root {
		return writerSubject, Object{}, nil
	}
	rest, ok := strings.CutPrefix(subject, root+".")
	if !ok {
		return 0, Object{}, fmt.Errorf("the subject is not below %s", root)
	}
	tokens := strings.Split(rest, ".")
	if len(tokens) != 2 && len(tokens) != 4 {
		return 0, Object{}, fmt.Errorf("the subject has %d tokens after %s", len(tokens), root)
	}
	var names [4]string
	for i, token := range tokens {
		if i == 0 && token == "core" || i == 2 && token == "_" {
			continue
		}
		if i == 3 && hashed.MatchString(token) {
			names[i] = token
			continue
		}
		name, err := unescape(token)
		if err != nil {
			return 0, Object{}, fmt.Errorf("token %q: %w", token, err)
		}
		names[i] = name
	}
	object := Object{Group: names[0], Resource: names[1], Namespace: names[2], Name: names[3]}
	if len(tokens) == 2 {
		return watermarkSubject, object, nil
	}
	return objectSubject, object, nil
}

const upperHex = "0123456789ABCDEF"

func isPlain(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-'
}

func escape(name string) string {
	var b strings.Builder
	for i := range len(name) {
		switch c := name[i]; {
		case isPlain(c):
			b.WriteByte(c)
		case c == '.':
			b.WriteByte('_')
		default:
			b.WriteByte('=')
			b.WriteByte(upperHex[c>>4])
			b.WriteByte(upperHex[c&0xf])
		}
	}
	return b.String()
}

// unescape is the inverse of escape. What escape would write in another way is an error.
func unescape(token string) (string, error) {
	if token == "" {
		return "", errors.New("it is empty")
	}
	var b strings.Builder
	for i := 0; i < len(token); i++ {
		switch c := token[i]; {
		case isPlain(c):
			b.WriteByte(c)
		case c == '_':
			b.WriteByte('.')
		case c == '=' && i+2 < len(token):
			high, low := strings.IndexByte(upperHex, token[i+1]), strings.IndexByte(upperHex, token[i+2])
			if high < 0 || low < 0 {
				return "", fmt.Errorf("%q is no escaped byte", token[i:i+3])
			}
			decoded := byte(high<<4 | low)
			if isPlain(decoded) || decoded == '.' {
				return "", fmt.Errorf("%q is escaped without need", token[i:i+3])
			}
			b.WriteByte(decoded)
			i += 2
		default:
			return "", fmt.Errorf("byte %q is not allowed", c)
		}
	}
	return b.String(), nil
}

// isDecimal reports whether s is a number without a sign or needless zeros.
func isDecimal(s string) bool {
	if s == "" || len(s) > 1 && s[0] == '0' {
		return false
	}
	return strings.IndexFunc(s, func(r rune) bool { return r < '0' || r > '9' }) < 0
}

// compare compares two decimals of any size. Both must be isDecimal.
func compare(a, b string) int {
	if len(a) != len(b) {
		return len(a) - len(b)
	}
	return strings.Compare(a, b)
}
