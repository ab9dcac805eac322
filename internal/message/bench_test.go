package message_test

import (
	"strings"
	"testing"

	"github.com/deltabridge/deltabridge/internal/message"
)

func BenchmarkAppendToken(b *testing.B) {
	var buf [256]byte
	for _, name := range []string{"web-5d9c7b8f6-abcde", "ip-10-0-0-1.ec2.internal", "system:controller:node-controller"} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				message.AppendToken(buf[:0], name)
			}
		})
	}
}

func BenchmarkSubject(b *testing.B) {
	ref := deploymentChange(0, "").Ref
	b.ReportAllocs()
	for b.Loop() {
		_ = scheme.Subject(ref)
	}
}

func BenchmarkEncode(b *testing.B) {
	bare := pod()
	bare.Raw = []byte(strings.Replace(string(bare.Raw), `"managedFields"`, `"otherFields"`, 1))
	for _, mode := range []string{"binary", "structured"} {
		e := newEncoder(b, func(o *message.Options) { o.Structured = mode == "structured" })
		b.Run(mode, func(b *testing.B) {
			c := pod()
			b.ReportAllocs()
			b.SetBytes(int64(len(c.Raw)))
			for b.Loop() {
				if _, err := e.Encode(c, 41); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(mode+"/nothing to strip", func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(bare.Raw)))
			for b.Loop() {
				if _, err := e.Encode(bare, 41); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
