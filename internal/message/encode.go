// Package message says what the bridge writes into the stream: subjects, ids, headers and bodies of the messages that
// tell what happened to an object, and how they are read back. It works on the bytes that the API server sent and never
// decodes an object. It knows the broker's conventions, but not its client.
package message

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"

	"github.com/deltabridge/deltabridge/internal/change"
)

// Options configure an Encoder.
type Options struct {
	Scheme     Scheme
	Stream     string      // the stream that must take the messages
	Structured bool        // CloudEvents' structured content mode instead of binary
	Strip      []StripPath // what is removed from every object
	Secrets    SecretsMode // what becomes of the values of Secrets
	SecretsKey []byte      // key of SecretsDigest; the digests of one key compare, so it should last
	Epoch      uint64      // see SetEpoch
}

// Encoder makes messages of changes. It is safe for concurrent use.
type Encoder struct {
	scheme     Scheme
	stream     string
	source     string
	structured bool
	rules      rule // for every object but Secrets
	secret     rule // for Secrets
	secrets    SecretsMode
	secretsKey []byte
	epoch      atomic.Pointer[epoch]
}

type epoch struct {
	n    uint64
	text string
}

// NewEncoder returns an encoder, or an error that names every option that is wrong.
func NewEncoder(o Options) (*Encoder, error) {
	faults := []error{o.Scheme.Validate(), o.Secrets.validate(o.SecretsKey)}
	if o.Stream == "" || EncodeHeaderValue(o.Stream) != o.Stream {
		faults = append(faults, fmt.Errorf("stream name %q is empty or has a character that no stream's name has", o.Stream))
	}
	if err := errors.Join(faults...); err != nil {
		return nil, fmt.Errorf("message encoder: %w", err)
	}
	e := &Encoder{
		scheme:     o.Scheme,
		stream:     o.Stream,
		source:     "/clusters/" + o.Scheme.Cluster,
		structured: o.Structured,
		secrets:    o.Secrets,
		secretsKey: bytes.Clone(o.SecretsKey),
	}
	e.rules.strip(o.Strip)
	if o.Secrets != SecretsPlain {
		e.secret.guardSecrets()
	}
	e.secret.strip(o.Strip)
	e.SetEpoch(o.Epoch)
	return e, nil
}

// SetEpoch sets the writer's epoch for the messages encoded from now on. It is known only after the writer record has
// been appended, and must be set before the first Encode.
func (e *Encoder) SetEpoch(n uint64) {
	e.epoch.Store(&epoch{n, strconv.FormatUint(n, 10)})
}

// Level says how much of an object a message holds. Each level is smaller than the one before; the headers are the same.
type Level uint8

// The levels, from the largest.
const (
	// LevelObject is the whole object, less what is stripped and redacted.
	LevelObject Level = iota
	// LevelMetadata is the object's kind, apiVersion and metadata, less what is stripped and redacted.
	LevelMetadata
	// LevelIdentity is kind, apiVersion, and of the metadata name, namespace, uid and resourceVersion.
	LevelIdentity
	// LevelNone is no body (in structured mode an envelope without data).
	LevelNone
)

var levelNames = [...]string{"object", "metadata", "identity", "none"}

// String returns the level's name, which for all but LevelObject is the value of ce-oversize.
func (l Level) String() string {
	if int(l) < len(levelNames) {
		return levelNames[l]
	}
	return "level " + strconv.Itoa(int(l))
}

// Message is a message for the stream. It may be sent any number of times. Body may be the change's Raw and must not be
// written to. The message is its holder's alone: Expect changes it.
type Message struct {
	Subject string
	ID      string // ce-id and Nats-Msg-Id
	Header  map[string][]string
	Body    []byte
	// Level is what of the object is in the body. It is LevelObject too for the smaller body of a change of which no
	// state is known, for then nothing was left out.
	Level Level

	base             string // ID without what Again appended
	baseEnd, idClose int    // in an envelope: where base ends, and the id's closing quote
}

// Encode makes the message of a change. expectedLastSeq is the stream sequence of the last message on the object's
// subject, zero if there is none: the broker refuses the message if that is not so. An error is final: the change lacks
// what a message must have, or its Raw is not one JSON object, and will fail again.
//
// The body is c.Raw as it came, less what is stripped and redacted; kind and apiVersion are put in where it has none. If
// c.Raw is empty, because no state of the object is known, the body is as on LevelIdentity.
func (e *Encoder) Encode(c *change.Change, expectedLastSeq uint64) (*Message, error) {
	return e.Reduce(c, expectedLastSeq, LevelObject)
}

// Reduce is Encode for a message that would be too large: it leaves out of the body what the level says, and says so in
// ce-oversize. The size falls with the level, to less than 32 KiB on LevelNone whatever the object's name.
func (e *Encoder) Reduce(c *change.Change, expectedLastSeq uint64, level Level) (*Message, error) {
	m, err := e.encode(c, expectedLastSeq, level)
	if err != nil {
		return nil, fmt.Errorf("encode %s of %.300q: %w", c.Op, c.Ref.String(), err)
	}
	return m, nil
}

func (e *Encoder) encode(c *change.Change, expectedLastSeq uint64, level Level) (*Message, error) {
	if err := validate(c); err != nil {
		return nil, err
	}
	b := body{change: c}
	if err := e.scan(&b, level); err != nil {
		return nil, err
	}
	ep := e.epoch.Load()
	ref := boundedRef(c.Ref)

	// All text that differs from message to message is made in one piece.
	var buf [1024]byte
	t := e.scheme.appendSubject(buf[:0], c.Ref)
	subjectEnd := len(t)
	if subjectEnd > maxSubject {
		return nil, fmt.Errorf("the subject has %d bytes, more than the %d that are safe to send", subjectEnd, maxSubject)
	}
	t = appendID(t, c.Op, string(c.UID), c.RV, c.Run)
	idEnd := len(t)
	t = c.Seen.UTC().AppendFormat(t, timeLayout)
	timeEnd := len(t)
	t = appendGVK(t, c)
	gvkEnd := len(t)
	t = strconv.AppendUint(t, expectedLastSeq, 10)
	sequenceEnd := len(t)
	t = appendRef(t, ref)
	text := string(t)

	m := &Message{Subject: text[:subjectEnd], ID: text[subjectEnd:idEnd], Level: b.shown}
	m.base = m.ID
	when, gvk := text[idEnd:timeEnd], text[timeEnd:gvkEnd]

	h := newHeader(20)
	h.set(HeaderMsgID, m.ID)
	h.set(HeaderExpectedStream, e.stream)
	h.set(HeaderExpectedSequence, text[gvkEnd:sequenceEnd])
	h.set(HeaderType, Type(c.Op))
	h.set(HeaderUID, EncodeHeaderValue(string(c.UID)))
	h.set(HeaderRV, EncodeHeaderValue(c.RV))
	h.set(HeaderEpoch, ep.text)
	switch c.Op {
	case change.OpDeleted, change.OpLeft:
		h.set(HeaderKVOperation, "DEL")
	case change.OpExpired:
		h.set(HeaderKVOperation, "PURGE")
		h.set(HeaderRollup, "sub")
		h.set(HeaderTTL, expiredTTL)
	}
	if b.shown != LevelObject {
		h.set(HeaderOversize, b.shown.String())
	}
	m.Header = h.header
	if e.structured {
		h.set(HeaderContentType, ContentEnvelope)
		e.envelope(m, &b, ref.String(), when, ep.text)
		return m, nil
	}
	h.set(HeaderSpecVersion, specVersion)
	h.set(HeaderSource, e.source)
	h.set(HeaderID, m.ID)
	h.set(HeaderSubject, text[sequenceEnd:])
	h.set(HeaderTime, when)
	h.set(HeaderGVK, gvk)
	if c.Reason != "" {
		h.set(HeaderReason, EncodeHeaderValue(string(c.Reason)))
	}
	if !c.Gap.IsZero() {
		h.set(HeaderGap, EncodeHeaderValue(c.Gap.String()))
	}
	if b.shown != LevelNone {
		h.set(HeaderContentType, ContentJSON)
		if m.Body = c.Raw; !b.untouched() {
			m.Body = b.appendTo(make([]byte, 0, b.size()))
		}
	}
	return m, nil
}

// envelope makes the body of structured mode.
func (e *Encoder) envelope(m *Message, b *body, subject, when, epoch string) {
	c := b.change
	t := make([]byte, 0, 512+len(m.ID)+len(subject)+b.size())
	t = append(t, `{"specversion":"`+specVersion+`","id":`...)
	t = appendQuoted(t, m.ID)
	m.baseEnd = len(t) - 1
	m.idClose = m.baseEnd
	for _, attribute := range [...]struct{ name, value string }{
		{"source", e.source},
		{"type", Type(c.Op)},
		{"subject", subject},
		{"time", when},
		{"datacontenttype", b.contentType()},
		{"uid", string(c.UID)},
		{"rv", c.RV},
		{"gvk", string(appendGVK(nil, c))},
		{"reason", string(c.Reason)},
		{"gap", c.Gap.String()},
		{"epoch", epoch},
		{"oversize", b.oversize()},
	} {
		if attribute.value == "" {
			continue
		}
		t = append(t, ',', '"')
		t = append(t, attribute.name...)
		t = append(t, '"', ':')
		t = appendQuoted(t, attribute.value)
	}
	if b.shown != LevelNone {
		t = append(t, `,"data":`...)
		t = b.appendTo(t)
	}
	m.Body = append(t, '}')
}

// validate reports what a change lacks to be a message.
func validate(c *change.Change) error {
	switch {
	case Type(c.Op) == "":
		return errors.New("no operation")
	case c.Ref.Resource == "" || c.Ref.Name == "":
		return errors.New("no resource or no name")
	case c.Ref.Group == coreGroup || c.Ref.Namespace == ".":
		return errors.New("group core or namespace . would share a subject with other objects")
	case c.UID == "" || c.RV == "":
		return errors.New("no uid or no resourceVersion")
	case c.Op == change.OpSynced && c.Run == "":
		return errors.New("a repetition without the run that it is of")
	case c.GVK.Version == "" || c.GVK.Kind == "":
		return errors.New("no version or no kind")
	}
	return nil
}

// Expect sets the sequence that the broker must find as the subject's last, for another attempt to send m.
func (m *Message) Expect(lastSeq uint64) {
	m.Header[HeaderExpectedSequence] = []string{strconv.FormatUint(lastSeq, 10)}
}

// Again returns a copy of m whose id ends in /again/<epoch>: for a broker that takes m for a duplicate of a message that
// it no longer has. Body is shared where it does not contain the id.
func (m *Message) Again(epoch uint64) *Message {
	again := *m
	suffix := "/again/" + strconv.FormatUint(epoch, 10)
	again.ID = m.base + suffix
	again.Header = make(map[string][]string, len(m.Header))
	for name, values := range m.Header {
		again.Header[name] = values
	}
	again.Header[HeaderMsgID] = []string{again.ID}
	if _, binary := m.Header[HeaderID]; binary {
		again.Header[HeaderID] = again.Header[HeaderMsgID]
	}
	if m.baseEnd > 0 {
		again.Body = make([]byte, 0, len(m.Body)+len(suffix))
		again.Body = append(again.Body, m.Body[:m.baseEnd]...)
		again.Body = append(again.Body, suffix...)
		again.Body = append(again.Body, m.Body[m.idClose:]...)
		again.idClose = m.baseEnd + len(suffix)
	}
	return &again
}

// Size returns the bytes that the broker holds against max_payload and a stream's max_msg_size, which are those of the
// body and of the header block: the line "NATS/1.0", one line "name: value" per header and an empty line, each ended by
// two bytes. The subject does not count.
func (m *Message) Size() int {
	size := len("NATS/1.0\r\n\r\n") + len(m.Body)
	for name, values := range m.Header {
		for _, value := range values {
			size += len(name) + len(": ") + len(value) + len("\r\n")
		}
	}
	return size
}

// header collects a message's headers. All values share one backing array.
type header struct {
	header map[string][]string
	values []string
}

func newHeader(n int) header {
	return header{make(map[string][]string, n), make([]string, 0, n)}
}

func (h *header) set(name, value string) {
	h.values = append(h.values, value)
	n := len(h.values)
	h.header[name] = h.values[n-1 : n : n]
}

var expiredTTL = ExpiredTTL.String()
