package message

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"fmt"

	"github.com/deltabridge/deltabridge/internal/change"
	"github.com/deltabridge/deltabridge/internal/jsonscan"
)

// SecretsMode says what becomes of the values in the data and stringData of Secrets.
type SecretsMode string

// The values of BRIDGE_SECRETS.
const (
	// SecretsDigest replaces each value by a keyed digest: that a value changed shows, the value does not. The text is
	// DigestPrefix and 64 hexadecimal digits; in data it is base64-encoded as any value there, so that the object is
	// still a Secret.
	//
	// The digest is HMAC-SHA256 over the uid, a zero byte, the length of the value's name as four big-endian bytes, the
	// name, and the value; so equal values of different Secrets, or under different names, do not show as equal. The
	// value is what data's base64 encodes, or the text as it stands where it is not base64.
	SecretsDigest SecretsMode = "digest"
	// SecretsOmit replaces each value by the empty string. The names stay.
	SecretsOmit SecretsMode = "omit"
	// SecretsPlain leaves Secrets as they are.
	SecretsPlain SecretsMode = "plain"
)

// DigestPrefix begins every digest of a Secret's value.
const DigestPrefix = "hmac-sha256:"

// minSecretsKey is the least length of a digest's key: with a shorter one, likely values could be tried.
const minSecretsKey = 16

// lastApplied is the annotation in which kubectl keeps the whole object as it was applied, values included.
const lastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// validate reports an unknown mode, and a key that cannot keep its secret.
func (m SecretsMode) validate(key []byte) error {
	switch m {
	case SecretsDigest:
		if len(key) < minSecretsKey {
			return fmt.Errorf("key for digests of Secret values has %d bytes, want %d or more", len(key), minSecretsKey)
		}
	case SecretsOmit, SecretsPlain:
	default:
		return fmt.Errorf("mode for Secrets is %q, want %s, %s or %s", string(m), SecretsDigest, SecretsOmit, SecretsPlain)
	}
	return nil
}

// isSecret reports whether an object is a Secret.
func isSecret(ref change.ObjectRef) bool { return ref.Group == "" && ref.Resource == "secrets" }

// redaction says in which form a replaced value stands.
type redaction uint8

const (
	redactNothing redaction = iota
	redactData              // base64, as in data
	redactText              // plain, as in stringData
)

// guardSecrets adds rules that let no value of a Secret pass, whatever its shape. They must be added before others, so
// that those for the same members join them.
func (r *rule) guardSecrets() {
	r.at([]string{"metadata", "annotations", lastApplied}, true).remove = true
	r.at([]string{"data"}, true).redact = redactData
	r.at([]string{"stringData"}, true).redact = redactText
}

// redactor makes what stands in the place of one Secret's values.
type redactor struct {
	mode SecretsMode
	key  []byte
	uid  string
	// published says that the values come from the stream: what is a digest already stays, for the digest of a digest
	// would look like a change. What is none, because another mode published it, is replaced all the same.
	published bool
}

// isDigest reports whether a value has the form of our digests.
func isDigest(value []byte) bool {
	text, ok := bytes.CutPrefix(value, []byte(DigestPrefix))
	if !ok || len(text) != hex.EncodedLen(sha256.Size) {
		return false
	}
	_, err := hex.AppendDecode(nil, text)
	return err == nil
}

// text returns the JSON that replaces a value. What is not a string is digested as its JSON text: it has no place in a
// Secret, but must not pass either.
func (r *redactor) text(form redaction, name, literal []byte) []byte {
	if r.mode != SecretsDigest {
		return []byte(`""`)
	}
	value := literal
	if literal[0] == '"' {
		value, _, _ = jsonscan.String(literal, 0) // it was validated
		if form == redactData {
			if decoded, err := base64.StdEncoding.AppendDecode(nil, value); err == nil {
				value = decoded
			}
		}
	}
	if r.published && isDigest(value) {
		return literal
	}
	mac := hmac.New(sha256.New, r.key)
	mac.Write([]byte(r.uid))
	mac.Write([]byte{0})
	mac.Write(binary.BigEndian.AppendUint32(nil, uint32(len(name))))
	mac.Write(name)
	mac.Write(value)
	digest := hex.AppendEncode([]byte(DigestPrefix), mac.Sum(nil))
	if form == redactData {
		digest = base64.StdEncoding.AppendEncode(nil, digest)
	}
	return append(append([]byte{'"'}, digest...), '"')
}
