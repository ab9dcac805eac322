package check

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
)

// lastApplied is the annotation that the bridge removes by default, as it does managedFields.
const lastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// body is an object's JSON, decoded.
type body struct {
	fields                           map[string]any
	apiVersion, kind                 string
	name, namespace, uid, version    string
	hasManagedFields, hasLastApplied bool
}

// parseBody decodes an object. It must be one JSON object and nothing else.
func parseBody(raw []byte) (*body, error) {
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	b := &body{}
	if err := decoder.Decode(&b.fields); err != nil {
		return nil, fmt.Errorf("the body is no JSON object: %w", err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("the body has more than one JSON value")
	}
	metadata, ok := b.fields["metadata"].(map[string]any)
	if !ok {
		return nil, errors.New("the body has no metadata")
	}
	b.apiVersion, _ = b.fields["apiVersion"].(string)
	b.kind, _ = b.fields["kind"].(string)
	b.name, _ = metadata["name"].(string)
	b.namespace, _ = metadata["namespace"].(string)
	b.uid, _ = metadata["uid"].(string)
	b.version, _ = metadata["resourceVersion"].(string)
	_, b.hasManagedFields = metadata["managedFields"]
	if annotations, ok := metadata["annotations"].(map[string]any); ok {
		_, b.hasLastApplied = annotations[lastApplied]
	}
	return b, nil
}

// canonical returns the object in one form for all its writers: less what the bridge removes by default, keys sorted,
// numbers written one way.
func (b *body) canonical() []byte {
	metadata, _ := b.fields["metadata"].(map[string]any)
	delete(metadata, "managedFields")
	if annotations, ok := metadata["annotations"].(map[string]any); ok {
		delete(annotations, lastApplied)
		if len(annotations) == 0 {
			delete(metadata, "annotations")
		}
	}
	out, err := json.Marshal(numbers(b.fields))
	if err != nil {
		panic(fmt.Sprintf("check: encode what was just decoded: %v", err))
	}
	return out
}

// digest returns a digest of the canonical form.
func (b *body) digest() [sha256.Size]byte { return sha256.Sum256(b.canonical()) }

// numbers rewrites every number in its shortest exact form, for the API server and a client may write one differently.
func numbers(value any) any {
	switch v := value.(type) {
	case map[string]any:
		for key, field := range v {
			v[key] = numbers(field)
		}
	case []any:
		for i, item := range v {
			v[i] = numbers(item)
		}
	case json.Number:
		if r, ok := new(big.Rat).SetString(v.String()); ok {
			return "number " + r.RatString()
		}
	}
	return value
}

// difference describes where two canonical forms first differ.
func difference(got, want []byte) string {
	i := 0
	for i < len(got) && i < len(want) && got[i] == want[i] {
		i++
	}
	cut := func(b []byte) []byte { return b[min(max(0, i-40), len(b)):min(i+60, len(b))] }
	return fmt.Sprintf("at byte %d: stored …%s…, want …%s…", i, cut(got), cut(want))
}
