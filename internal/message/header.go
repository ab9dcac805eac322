package message

import (
	"fmt"
	"strings"
	"time"

	"github.com/deltabridge/deltabridge/internal/change"
)

// The names of the headers. Those of CloudEvents are in the form of its NATS binding; the others are the broker's.
const (
	HeaderSpecVersion = "ce-specversion"
	HeaderType        = "ce-type"
	HeaderSource      = "ce-source"
	HeaderID          = "ce-id"
	HeaderSubject     = "ce-subject"
	HeaderTime        = "ce-time"
	HeaderContentType = "content-type"
	HeaderUID         = "ce-uid"
	HeaderRV          = "ce-rv"
	HeaderGVK         = "ce-gvk"
	HeaderReason      = "ce-reason"
	HeaderGap         = "ce-gap"
	HeaderEpoch       = "ce-epoch"
	// HeaderOversize is on a message whose body had to be reduced; its value is the Level.
	HeaderOversize = "ce-oversize"

	// HeaderKVOperation makes a key-value reader see a deletion.
	HeaderKVOperation = "KV-Operation"

	HeaderMsgID            = "Nats-Msg-Id"
	HeaderExpectedStream   = "Nats-Expected-Stream"
	HeaderExpectedSequence = "Nats-Expected-Last-Subject-Sequence"
	HeaderRollup           = "Nats-Rollup"
	HeaderTTL              = "Nats-TTL"
)

const (
	specVersion = "1.0"
	typePrefix  = "io.deltabridge."

	// TypeWriter is the ce-type of writer records.
	TypeWriter = typePrefix + "writer"
	// TypeWatermark is the ce-type of watermarks.
	TypeWatermark = typePrefix + "watermark"

	// ContentJSON is the content type of a body that is an object, a watermark or a writer record.
	ContentJSON = "application/json"
	// ContentEnvelope is the content type of a body that is an envelope of CloudEvents' structured mode.
	ContentEnvelope = "application/cloudevents+json"
)

// ExpiredTTL is how long an expired message stays, alone on its subject: long enough for followers that are slow or
// restart to see it, and for what is sourced from the stream to take it over.
const ExpiredTTL = 10 * time.Minute

// timeLayout is RFC 3339 with a fixed number of digits, as in Kubernetes' MicroTime, so that times sort as text.
const timeLayout = "2006-01-02T15:04:05.000000Z07:00"

// Type returns the ce-type of an object's message.
func Type(op change.Op) string {
	if op == change.OpNone || int(op) >= len(opTypes) {
		return ""
	}
	return opTypes[op]
}

var opTypes = func() (names [change.OpExpired + 1]string) {
	for op := change.OpAdded; op <= change.OpExpired; op++ {
		names[op] = typePrefix + op.String()
	}
	return names
}()

// ID returns the ce-id, which is also the broker's message id. The same change has the same id whoever sends it and
// however often. run tells one resync from another and is used for OpSynced only. uid and rv are written as header
// values. The id of a message that the broker holds for a duplicate of one that is gone ends differently; see
// Message.Again.
func ID(op change.Op, uid, rv, run string) string {
	return string(appendID(nil, op, uid, rv, run))
}

func appendID(dst []byte, op change.Op, uid, rv, run string) []byte {
	dst = appendHeaderValue(dst, uid)
	switch op {
	case change.OpDeleted: // the same deletion is known under different versions
		return append(dst, "/deleted"...)
	case change.OpExpired:
		return append(dst, "/expired"...)
	}
	dst = append(dst, '/')
	dst = appendHeaderValue(dst, rv)
	switch op {
	case change.OpLeft:
		dst = append(dst, "/left"...)
	case change.OpSynced:
		dst = append(dst, "/sync/"...)
		dst = appendHeaderValue(dst, run)
	}
	return dst
}

// keptInHeader tells the bytes that stand for themselves in a header's value: printable ASCII but the space, the
// double quote and the percent sign.
var keptInHeader = func() (kept [256]bool) {
	for c := '!'; c <= '~'; c++ {
		kept[c] = c != '"' && c != '%'
	}
	return kept
}()

// EncodeHeaderValue writes any string as a header's value, as CloudEvents prescribes for its HTTP and NATS bindings:
// each byte outside printable ASCII, the space, the double quote and the percent sign become "%" and two upper-case
// hexadecimal digits. So no name, whatever it holds, can end a header or begin another.
func EncodeHeaderValue(s string) string {
	for i := range len(s) {
		if !keptInHeader[s[i]] {
			return string(appendHeaderValue(make([]byte, 0, len(s)+16), s))
		}
	}
	return s
}

func appendHeaderValue(dst []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; keptInHeader[c] {
			dst = append(dst, c)
		} else {
			dst = append(dst, '%', upperHex[c>>4], upperHex[c&0xf])
		}
	}
	return dst
}

// DecodeHeaderValue is the inverse of EncodeHeaderValue. It takes percent-encoding in either case of letters, and of
// any byte, as other writers of CloudEvents may produce it; a percent sign that two digits do not follow is an error.
func DecodeHeaderValue(v string) (string, error) {
	if strings.IndexByte(v, '%') < 0 {
		return v, nil
	}
	raw := make([]byte, 0, len(v))
	for i := 0; i < len(v); i++ {
		if v[i] != '%' {
			raw = append(raw, v[i])
			continue
		}
		hi, lo := -1, -1
		if i+2 < len(v) {
			hi, lo = hexDigit(v[i+1]), hexDigit(v[i+2])
		}
		if hi < 0 || lo < 0 {
			return "", fmt.Errorf("header value %q: malformed percent-encoding at byte %d", v, i)
		}
		raw = append(raw, byte(hi<<4|lo))
		i += 2
	}
	return string(raw), nil
}

func hexDigit(c byte) int {
	if 'a' <= c && c <= 'f' {
		c -= 'a' - 'A'
	}
	return strings.IndexByte(upperHex, c)
}
