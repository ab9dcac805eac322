package message_test

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"strings"
	"testing"

	"github.com/deltabridge/deltabridge/internal/change"
	"github.com/deltabridge/deltabridge/internal/message"
)

// plain is what must not be seen, and what it looks like in data.
const plain = "tr0ub4dor&3"

var encoded = base64.StdEncoding.EncodeToString([]byte(plain))

// leak returns what of the value can be seen in a message, whichever way it is written.
func leak(m *message.Message) string {
	all := []string{m.Subject, m.ID, string(m.Body)}
	for name, values := range m.Header {
		all = append(all, name)
		all = append(all, values...)
	}
	var b strings.Builder
	for _, s := range all {
		b.WriteString(s)
		b.WriteByte('\n')
		if decoded, err := message.DecodeHeaderValue(s); err == nil {
			b.WriteString(decoded)
		}
	}
	text := strings.ReplaceAll(b.String(), `\u0026`, "&")
	for _, form := range []string{plain, encoded, hex.EncodeToString([]byte(plain)), plain[2:8]} {
		if i := strings.Index(text, form); i >= 0 {
			return text[max(0, i-40):min(len(text), i+40)]
		}
	}
	return ""
}

// digest is what SecretsDigest promises.
func digest(uid, name, value string) string {
	mac := hmac.New(sha256.New, secretKey)
	mac.Write([]byte(uid + "\x00"))
	mac.Write(binary.BigEndian.AppendUint32(nil, uint32(len(name))))
	mac.Write([]byte(name + value))
	return "hmac-sha256:" + hex.EncodeToString(mac.Sum(nil))
}

func TestSecretsDoNotLeak(t *testing.T) {
	shapes := map[string]string{
		"data":                   `{"kind":"Secret","apiVersion":"v1","metadata":{"name":"login"},"data":{"password":"ENC"},"type":"Opaque"}`,
		"stringData":             `{"metadata":{"name":"login"},"stringData":{"password":"PLAIN"}}`,
		"both":                   `{"data":{"password":"ENC"},"stringData":{"password":"PLAIN"}}`,
		"several":                `{"data":{"a":"ENC","b":"ENC","c":""}}`,
		"not base64":             `{"data":{"password":"PLAIN"}}`,
		"twice":                  `{"data":{"a":"ENC"},"data":{"a":"ENC","a":"ENC"}}`,
		"escaped name":           `{"d\u0061ta":{"a":"ENC"},"stringD\u0061ta":{"a":"PLAIN"}}`,
		"other case":             `{"Data":{"a":"ENC"},"STRINGDATA":{"a":"PLAIN"},"\u017ftringData":{"a":"PLAIN"}}`,
		"escaped value":          `{"stringData":{"a":"\u0074r0ub4dor\u00263"},"data":{"a":"\u0074r0ub4dor&3"}}`,
		"array":                  `{"data":["ENC"],"stringData":[{"a":"PLAIN"}]}`,
		"string":                 `{"data":"ENC","stringData":"PLAIN"}`,
		"nested":                 `{"data":{"a":{"b":"ENC"},"c":["ENC"]},"stringData":{"a":{"b":"PLAIN"},"c":[["PLAIN"]]}}`,
		"annotation":             `{"metadata":{"annotations":{"kubectl.kubernetes.io/last-applied-configuration":"{\"stringData\":{\"a\":\"PLAIN\"}}","x":"y"}}}`,
		"escaped annotation":     `{"metad\u0061ta":{"annotations":{"kubectl.kubernetes.io\/last-applied-configuration":"PLAIN"}}}`,
		"annotation, odd case":   `{"Metadata":{"Annotations":{"kubectl.kubernetes.io/last-applied-configuration":"PLAIN"}}}`,
		"annotations an array":   `{"metadata":{"annotations":["PLAIN"]}}`,
		"annotations a string":   `{"metadata":{"annotations":"ENC"}}`,
		"metadata an array":      `{"metadata":[{"annotations":"ENC"}]}`,
		"annotations twice":      `{"metadata":{"annotations":{"kubectl.kubernetes.io/last-applied-configuration":"PLAIN"},"annotations":{"kubectl.kubernetes.io/last-applied-configuration":"PLAIN"}}}`,
		"annotation, not a text": `{"metadata":{"annotations":{"kubectl.kubernetes.io/last-applied-configuration":{"a":"ENC"}}}}`,
	}
	for name, shape := range shapes {
		raw := strings.NewReplacer("ENC", encoded, "PLAIN", plain).Replace(shape)
		for _, mode := range []message.SecretsMode{message.SecretsDigest, message.SecretsOmit} {
			for _, isStructured := range []bool{false, true} {
				for _, strip := range [][]message.StripPath{nil, defaultStrip, {{"Metadata", "x"}, {"DATA", "q"}}} {
					e := newEncoder(t, func(o *message.Options) { o.Secrets, o.Structured, o.Strip = mode, isStructured, strip })
					for level := message.LevelObject; level <= message.LevelNone; level++ {
						m, err := e.Reduce(secretChange(raw), 0, level)
						if err != nil {
							t.Fatalf("%s: %v", name, err)
						}
						if seen := leak(m); seen != "" {
							t.Errorf("%s, %s, structured %v, %s: %s", name, mode, isStructured, level, seen)
						}
						if len(m.Body) > 0 && !json.Valid(m.Body) {
							t.Errorf("%s, %s: not JSON: %s", name, mode, m.Body)
						}
					}
				}
			}
		}
	}
	// The control: the same search finds what is plain.
	e := newEncoder(t, func(o *message.Options) { o.Secrets, o.SecretsKey, o.Strip = message.SecretsPlain, nil, nil })
	for name, shape := range shapes {
		raw := strings.NewReplacer("ENC", encoded, "PLAIN", plain).Replace(shape)
		m := encode(t, e, secretChange(raw))
		if leak(m) == "" {
			t.Errorf("%s: the value is not found where it is plain", name)
		}
	}
}

func TestSecretsKeepTheirShape(t *testing.T) {
	uid := string(secretChange("").UID)
	data := func(name, value string) string {
		return base64.StdEncoding.EncodeToString([]byte(digest(uid, name, value)))
	}
	raw := `{"kind":"Secret","apiVersion":"v1","metadata":{"name":"login","annotations":{"kubectl.kubernetes.io/last-applied-configuration":"x","y":"z"}},` +
		`"data":{"user":"` + base64.StdEncoding.EncodeToString([]byte("root")) + `","e\u0061":"","n":1},"stringData":{"user":"root"},"immutable":true,"type":"Opaque"}`
	for _, c := range []struct {
		mode       message.SecretsMode
		data, text string
	}{
		{message.SecretsDigest, `{"user":"` + data("user", "root") + `","e\u0061":"` + data("ea", "") + `","n":"` + data("n", "1") + `"}`, `{"user":"` + digest(uid, "user", "root") + `"}`},
		{message.SecretsOmit, `{"user":"","e\u0061":"","n":""}`, `{"user":""}`},
	} {
		e := newEncoder(t, func(o *message.Options) { o.Secrets, o.Strip = c.mode, nil })
		want := `{"kind":"Secret","apiVersion":"v1","metadata":{"name":"login","annotations":{"y":"z"}},"data":` + c.data + `,"stringData":` + c.text + `,"immutable":true,"type":"Opaque"}`
		if got := string(encode(t, e, secretChange(raw)).Body); got != want {
			t.Errorf("%s:\ngot  %s\nwant %s", c.mode, got, want)
		}
	}
	e := newEncoder(t, func(o *message.Options) { o.Secrets, o.SecretsKey, o.Strip = message.SecretsPlain, nil, nil })
	if got := string(encode(t, e, secretChange(raw)).Body); got != raw {
		t.Errorf("plain: got %s", got)
	}
	// Only Secrets of the core group are redacted.
	for _, adjust := range []func(*change.Change){
		func(c *change.Change) { c.Ref.Group = "example.com" },
		func(c *change.Change) { c.Ref.Resource = "configmaps" },
	} {
		c := secretChange(raw)
		adjust(c)
		if got := string(encode(t, newEncoder(t, func(o *message.Options) { o.Strip = nil }), c).Body); got != raw {
			t.Errorf("%s was redacted: %s", c.Ref, got)
		}
	}
}

// TestDigests holds what shows in a digest: that a value changed, and nothing across names, Secrets and keys.
func TestDigests(t *testing.T) {
	body := func(uid, name, value string, key []byte) string {
		c := secretChange(`{"stringData":{"` + name + `":"` + value + `"}}`)
		c.UID = "0b5d7a1e-0000-4000-8000-00000000000" + "2"
		if uid != "" {
			c.UID = c.UID[:35] + "3"
		}
		m := encode(t, newEncoder(t, func(o *message.Options) { o.SecretsKey = key }), c)
		_, digest, _ := bytes.Cut(m.Body, []byte(message.DigestPrefix))
		return string(digest)
	}
	same := body("", "a", "x", secretKey)
	if len(same) < 64 || same != body("", "a", "x", secretKey) {
		t.Errorf("digest %q is not stable", same)
	}
	for what, other := range map[string]string{
		"value": body("", "a", "y", secretKey),
		"name":  body("", "b", "x", secretKey),
		"uid":   body("3", "a", "x", secretKey),
		"key":   body("", "a", "x", bytes.Repeat([]byte("k"), 32)),
		"cut":   body("", "ax", "", secretKey),
	} {
		if other == same {
			t.Errorf("another %s has the same digest", what)
		}
	}
}

// A deletion made of the last published state goes through the encoder a second time.
func TestDigestsOfPublishedStateStay(t *testing.T) {
	first := encode(t, newEncoder(t), secretChange(`{"data":{"a":"`+encoded+`"},"stringData":{"b":"x"}}`))
	c := secretChange(string(first.Body))
	c.Op, c.Published = change.OpDeleted, true
	if again := encode(t, newEncoder(t), c); string(again.Body) != string(first.Body) {
		t.Errorf("published as\n%s\nthe deletion has\n%s", first.Body, again.Body)
	}
	// What was published in plain under another setting is not published in plain again.
	c.Raw = []byte(`{"data":{"a":"` + encoded + `"},"stringData":{"b":"` + plain + `"}}`)
	if found := leak(encode(t, newEncoder(t), c)); found != "" {
		t.Errorf("the value is seen in %q", found)
	}
	// Nothing that comes from the API server passes for a digest.
	c.Raw, c.Published = first.Body, false
	if again := encode(t, newEncoder(t), c); string(again.Body) == string(first.Body) {
		t.Error("a value that looks like a digest was published as it is")
	}
}

func FuzzSecrets(f *testing.F) {
	f.Add([]byte(`{"data":{"a":"`+encoded+`"}}`), []byte(`{"metadata":{"annotations":{}}}`))
	f.Add([]byte(`{"metadata":{"annotations":{"kubectl.kubernetes.io/last-applied-configuration":"x"}}}`), []byte(`{"stringData":null,"data":[]}`))
	f.Add([]byte(`{"Data":{"a":{}}}`), []byte(`{"data":{"a":"b"},"data":{"c":0}}`))
	f.Fuzz(func(t *testing.T, raw, other []byte) {
		e := newEncoder(t, func(o *message.Options) { o.Secrets = message.SecretsOmit })
		for _, raw := range [][]byte{raw, other} {
			m, err := e.Encode(secretChange(string(raw)), 0)
			if err != nil {
				continue
			}
			// encoding/json ignores the case of names, and takes the last of equal ones: what it sees is what most readers see.
			var secret struct {
				Metadata struct {
					Annotations map[string]any
				}
				Data       map[string]any
				StringData map[string]any
			}
			if err = json.Unmarshal(m.Body, &secret); err != nil {
				t.Fatalf("%q became %q: %v", raw, m.Body, err)
			}
			for _, values := range []map[string]any{secret.Data, secret.StringData} {
				for name, value := range values {
					if value != "" {
						t.Errorf("%q became %q, where %q is %v", raw, m.Body, name, value)
					}
				}
			}
			if _, has := secret.Metadata.Annotations["kubectl.kubernetes.io/last-applied-configuration"]; has {
				t.Errorf("%q became %q, with the annotation", raw, m.Body)
			}
		}
	})
}
