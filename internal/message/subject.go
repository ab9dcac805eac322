package message

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/deltabridge/deltabridge/internal/change"
)

const (
	// MaxNameToken is the longest escaped name that stands in a subject as it is. The API server bounds most names at
	// 253 bytes, but not those of RBAC objects, and a NATS server closes a connection whose control line (subject,
	// reply subject and sizes) is longer than 4,096 bytes. A longer name is cut and completed by a hash.
	MaxNameToken = 1024

	// maxPrefix bounds a scheme's prefix, and maxSubject a whole subject, which leaves room in the control line, and in the
	// subjects of the broker's own API that contain another. Names of groups and resources that Kubernetes itself
	// allows stay far below; the discovery of an aggregated API could say anything.
	maxPrefix  = 256
	maxSubject = 3072

	// hashedPrefix is how much of the escaped text of such a name its token keeps, so that people can recognise it.
	hashedPrefix = 256
	// hashMark separates that text from the hash. Escaping never yields it: H is no hexadecimal digit.
	hashMark = "=H"

	// coreGroup stands for the empty group. No resource that objects can be made of has a group of that name: a
	// custom resource's group contains a dot, and Kubernetes' own groups without a dot do not include it.
	coreGroup = "core"
	// noNamespace stands for the absence of a namespace. It would be the token of a namespace named ".", but their
	// names have no dot; and one named "_", which is not legal either, would have the token "=5F".
	noNamespace = "_"
)

var (
	// ErrToken is wrapped by the errors for a subject token, or a whole subject, that this package cannot have made.
	ErrToken = errors.New("not a subject of the bridge")

	// ErrHashedToken is returned for the token of a name that was too long for a subject. The name cannot be told
	// from it; the message's ce-subject and body have it.
	ErrHashedToken = errors.New("the name was too long for the subject, which has only its hash")
)

const upperHex = "0123456789ABCDEF"

// keptInToken tells the bytes that stand for themselves in a token.
var keptInToken = func() (kept [256]bool) {
	for c := range len(kept) {
		kept[c] = 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-'
	}
	return kept
}()

// EscapeToken makes a subject token of any string: it keeps [A-Za-z0-9-], writes "." as "_", and every other byte (also
// "_" and "=") as "=" and two upper-case hexadecimal digits. Different strings have different tokens, and each is
// legal in a NATS subject and in a key of a key-value bucket, unless the string is empty.
func EscapeToken(s string) string {
	for i := range len(s) {
		if !keptInToken[s[i]] {
			return string(AppendToken(make([]byte, 0, len(s)+16), s))
		}
	}
	return s
}

// AppendToken appends EscapeToken(s) to dst.
func AppendToken(dst []byte, s string) []byte {
	for i := range len(s) {
		switch c := s[i]; {
		case keptInToken[c]:
			dst = append(dst, c)
		case c == '.':
			dst = append(dst, '_')
		default:
			dst = append(dst, '=', upperHex[c>>4], upperHex[c&0xf])
		}
	}
	return dst
}

// UnescapeToken is the inverse of EscapeToken. It returns ErrHashedToken for the token of a name that was too long,
// and an error that wraps ErrToken for anything that EscapeToken does not yield, the empty token included.
func UnescapeToken(t string) (string, error) {
	if t == "" {
		return "", fmt.Errorf("%w: an empty token", ErrToken)
	}
	raw := make([]byte, 0, len(t))
	for i := 0; i < len(t); i++ {
		switch c := t[i]; {
		case keptInToken[c]:
			raw = append(raw, c)
		case c == '_':
			raw = append(raw, '.')
		case c == '=':
			if isHash(t[i:]) {
				return "", ErrHashedToken
			}
			if i+2 >= len(t) {
				return "", fmt.Errorf("%w: token %q ends within an escape", ErrToken, t)
			}
			hi, lo := strings.IndexByte(upperHex, t[i+1]), strings.IndexByte(upperHex, t[i+2])
			b := byte(hi<<4 | lo)
			if hi < 0 || lo < 0 || keptInToken[b] || b == '.' {
				return "", fmt.Errorf("%w: token %q has the escape %q", ErrToken, t, t[i:i+3])
			}
			raw = append(raw, b)
			i += 2
		default:
			return "", fmt.Errorf("%w: token %q has the byte %q", ErrToken, t, c)
		}
	}
	return string(raw), nil
}

// isHash reports whether s is what ends the token of a name that was too long.
func isHash(s string) bool {
	hash, ok := strings.CutPrefix(s, hashMark)
	return ok && len(hash) == 2*sha256.Size && strings.Trim(hash, upperHex) == ""
}

// appendName appends the token of an object's name: the escaped name, or, where that is longer than MaxNameToken, its
// beginning, "=H" and the SHA-256 of the raw name in upper-case hexadecimal digits.
func appendName(dst []byte, name string) []byte {
	start := len(dst)
	dst = AppendToken(dst, name)
	if len(dst)-start <= MaxNameToken {
		return dst
	}
	end := start + hashedPrefix
	for back := 1; back <= 2; back++ { // not within an escape
		if dst[end-back] == '=' {
			end -= back
		}
	}
	sum := sha256.Sum256([]byte(name))
	dst = append(dst[:end], hashMark...)
	for _, c := range sum {
		dst = append(dst, upperHex[c>>4], upperHex[c&0xf])
	}
	return dst
}

// Scheme is the place of one cluster's messages in the space of subjects:
//
//	<prefix>.<cluster>                                        writer records
//	<prefix>.<cluster>.<group>.<resource>                     watermarks of a resource
//	<prefix>.<cluster>.<group>.<resource>.<namespace>.<name>  messages of an object
type Scheme struct {
	Prefix  string // first token or tokens, as they stand in the subject
	Cluster string // name of the cluster, of [A-Za-z0-9-]
}

// Validate reports what is wrong with the prefix or the cluster's name.
func (s Scheme) Validate() error {
	for token := range strings.SplitSeq(s.Prefix, ".") {
		if token == "" {
			return fmt.Errorf("subject prefix %q has an empty token", s.Prefix)
		}
		for i := range len(token) {
			if c := token[i]; c <= ' ' || c >= 0x7f || c == '*' || c == '>' {
				return fmt.Errorf("subject prefix %q has the byte %q", s.Prefix, c)
			}
		}
	}
	if len(s.Prefix) > maxPrefix {
		return fmt.Errorf("subject prefix has %d bytes, want at most %d", len(s.Prefix), maxPrefix)
	}
	if strings.HasPrefix(s.Prefix, "$") {
		return fmt.Errorf("subject prefix %q begins with $, which NATS keeps for itself", s.Prefix)
	}
	if s.Cluster == "" || len(s.Cluster) > 63 {
		return fmt.Errorf("cluster name %q has %d bytes, want 1 to 63", s.Cluster, len(s.Cluster))
	}
	for i := range len(s.Cluster) {
		if !keptInToken[s.Cluster[i]] {
			return fmt.Errorf("cluster name %q has the byte %q, want letters, digits and -", s.Cluster, s.Cluster[i])
		}
	}
	return nil
}

// WriterSubject returns the subject of the writer records.
func (s Scheme) WriterSubject() string { return s.Prefix + "." + s.Cluster }

// ObjectsFilter returns the filter that selects the messages of objects and nothing else.
func (s Scheme) ObjectsFilter() string { return s.WriterSubject() + ".*.*.*.*" }

// All returns the filter that selects the messages of objects and the watermarks. The writer records are on
// WriterSubject, which it does not select: a stream needs both.
func (s Scheme) All() string { return s.WriterSubject() + ".>" }

// ResourceSubject returns the subject of a resource's watermarks.
func (s Scheme) ResourceSubject(gr schema.GroupResource) string {
	return string(s.appendResource(make([]byte, 0, 128), gr.Group, gr.Resource))
}

// Subject returns the subject of an object's messages. ref must have a resource and a name.
func (s Scheme) Subject(ref change.ObjectRef) string {
	var buf [512]byte
	return string(s.appendSubject(buf[:0], ref))
}

func (s Scheme) appendResource(dst []byte, group, resource string) []byte {
	dst = append(dst, s.Prefix...)
	dst = append(dst, '.')
	dst = append(dst, s.Cluster...)
	dst = append(dst, '.')
	if group == "" {
		dst = append(dst, coreGroup...)
	} else {
		dst = AppendToken(dst, group)
	}
	dst = append(dst, '.')
	return AppendToken(dst, resource)
}

func (s Scheme) appendSubject(dst []byte, ref change.ObjectRef) []byte {
	dst = s.appendResource(dst, ref.Group, ref.Resource)
	dst = append(dst, '.')
	if ref.Namespace == "" {
		dst = append(dst, noNamespace...)
	} else {
		dst = AppendToken(dst, ref.Namespace)
	}
	dst = append(dst, '.')
	return appendName(dst, ref.Name)
}

// Parse is the inverse of Subject. If the error is ErrHashedToken, everything but the name is returned; any other
// error wraps ErrToken.
func (s Scheme) Parse(subject string) (change.ObjectRef, error) {
	rest, ok := strings.CutPrefix(subject, s.WriterSubject()+".")
	tokens := strings.Split(rest, ".")
	if !ok || len(tokens) != 4 {
		return change.ObjectRef{}, fmt.Errorf("%w: %q is not %s.<group>.<resource>.<namespace>.<name>", ErrToken, subject, s.WriterSubject())
	}
	var ref change.ObjectRef
	for i, field := range []*string{&ref.Group, &ref.Resource, &ref.Namespace, &ref.Name} {
		if i == 0 && tokens[i] == coreGroup || i == 2 && tokens[i] == noNamespace {
			continue
		}
		if i == 3 && len(tokens[i]) > MaxNameToken {
			return change.ObjectRef{}, fmt.Errorf("%w: the name's token has %d bytes", ErrToken, len(tokens[i]))
		}
		raw, err := UnescapeToken(tokens[i])
		if errors.Is(err, ErrHashedToken) && i == 3 {
			return ref, fmt.Errorf("subject %q: %w", subject, ErrHashedToken)
		}
		if err != nil {
			return change.ObjectRef{}, fmt.Errorf("subject %q: %w", subject, err)
		}
		*field = raw
	}
	return ref, nil
}
