package message_test

import (
	"strings"
	"testing"

	"github.com/deltabridge/deltabridge/internal/change"
	"github.com/deltabridge/deltabridge/internal/message"
)

func TestHeaderValue(t *testing.T) {
	for raw, want := range map[string]string{
		"":                                "",
		"deployments.apps/default/web":    "deployments.apps/default/web",
		"nodes/ip-10-0-0-1.ec2.internal":  "nodes/ip-10-0-0-1.ec2.internal",
		"clusterroles/system:node":        "clusterroles/system:node",
		"a b":                             "a%20b",
		"a\"b":                            "a%22b",
		"a%b":                             "a%25b",
		"a\r\nNats-Rollup: all":           "a%0D%0ANats-Rollup:%20all",
		"€😀":                              "%E2%82%AC%F0%9F%98%80",
		"\x00\x7f\xff":                    "%00%7F%FF",
		"!#$&'()*+,-./:;<=>?@[\\]^_`{|}~": "!#$&'()*+,-./:;<=>?@[\\]^_`{|}~",
	} {
		if got := message.EncodeHeaderValue(raw); got != want {
			t.Errorf("EncodeHeaderValue(%q) = %q, want %q", raw, got, want)
		}
		if got, err := message.DecodeHeaderValue(want); err != nil || got != raw {
			t.Errorf("DecodeHeaderValue(%q) = %q, %v, want %q", want, got, err, raw)
		}
	}
	for v, want := range map[string]string{"%c3%a9": "é", "%41": "A", "a b": "a b"} {
		if got, err := message.DecodeHeaderValue(v); err != nil || got != want {
			t.Errorf("DecodeHeaderValue(%q) = %q, %v, want %q", v, got, err, want)
		}
	}
	for _, v := range []string{"%", "a%", "%4", "%4g", "%g4", "%%41"} {
		if got, err := message.DecodeHeaderValue(v); err == nil {
			t.Errorf("DecodeHeaderValue(%q) = %q", v, got)
		}
	}
}

func FuzzHeaderValue(f *testing.F) {
	for _, s := range []string{"", "web", "a b", "%", "%25", "\r\n", "é", "\xff"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		v := message.EncodeHeaderValue(raw)
		for i := range len(v) {
			if c := v[i]; c <= ' ' || c > '~' || c == '"' {
				t.Errorf("%q became %q with the byte %q", raw, v, c)
			}
		}
		if got, err := message.DecodeHeaderValue(v); err != nil || got != raw {
			t.Errorf("%q became %q became %q, %v", raw, v, got, err)
		}
		if got, err := message.DecodeHeaderValue(raw); err == nil && !strings.Contains(raw, "%") && got != raw {
			t.Errorf("DecodeHeaderValue(%q) = %q", raw, got)
		}
	})
}

func TestID(t *testing.T) {
	for op, want := range map[change.Op]string{
		change.OpAdded:    "u1/42",
		change.OpModified: "u1/42",
		change.OpDeleted:  "u1/deleted",
		change.OpLeft:     "u1/42/left",
		change.OpSynced:   "u1/42/sync/r7",
		change.OpExpired:  "u1/expired",
	} {
		if got := message.ID(op, "u1", "42", "r7"); got != want {
			t.Errorf("ID(%s) = %q, want %q", op, got, want)
		}
	}
	if got, want := message.ID(change.OpAdded, "u\r\n", "4 2", ""), "u%0D%0A/4%202"; got != want {
		t.Errorf("ID = %q, want %q", got, want)
	}
}
