package check

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Stream is what a stream held when it was read: the messages of one cluster, in the order in which they are stored.
type Stream struct {
	// Name is the stream's name.
	Name string
	// Root is the first tokens of every subject: "<prefix>.<cluster>".
	Root string
	// Cluster is the last of them.
	Cluster string
	// Messages are all messages at Root and below.
	Messages []*Message
	// Complete means that the stream never removed a message, so that the first one of a subject is the first there
	// ever was.
	Complete bool
}

// Message is one message, with what the contract says of its headers taken apart. Values that are absent are empty.
type Message struct {
	Sequence uint64
	Subject  string
	Header   nats.Header
	Body     []byte

	Kind   string // the last part of ce-type: "added", "watermark"
	Object Object // from the subject; without a name for a watermark
	ID     string
	UID    string
	RV     string
	Reason string
	Gap    string
	Epoch  string

	place subjectKind
	event map[string]any // the CloudEvents attributes, by name without "ce-"
	data  []byte         // the object's JSON, also in structured mode
}

// readPause is how long the broker may be silent while messages are still to come.
const readPause = 30 * time.Second

// Read reads the messages at "<prefix>.<cluster>" and below out of a stream.
func Read(ctx context.Context, js jetstream.JetStream, stream, prefix, cluster string) (*Stream, error) {
	s := &Stream{Name: stream, Root: prefix + "." + cluster, Cluster: cluster}
	handle, err := js.Stream(ctx, stream)
	if err != nil {
		return nil, fmt.Errorf("find stream %s: %w", stream, err)
	}
	info, err := handle.Info(ctx, jetstream.WithSubjectFilter(">"))
	if err != nil {
		return nil, fmt.Errorf("read the state of stream %s: %w", stream, err)
	}
	s.Complete = info.State.NumDeleted == 0 && info.State.FirstSeq <= 1
	want := uint64(0)
	for subject, n := range info.State.Subjects {
		if subject == s.Root || strings.HasPrefix(subject, s.Root+".") {
			want += n
		}
	}
	if want == 0 {
		return s, nil
	}
	consumer, err := handle.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{s.Root, s.Root + ".>"},
		DeliverPolicy:  jetstream.DeliverAllPolicy,
	})
	if err != nil {
		return nil, fmt.Errorf("read stream %s: %w", stream, err)
	}
	iterator, err := consumer.Messages()
	if err != nil {
		return nil, fmt.Errorf("read stream %s: %w", stream, err)
	}
	defer iterator.Stop()
	got := uint64(0) // of those that were there at the beginning
	for {
		m, err := iterator.Next(jetstream.NextMaxWait(readPause))
		if err != nil {
			return nil, fmt.Errorf("read stream %s after %d messages of %d: %w", stream, got, want, err)
		}
		meta, err := m.Metadata()
		if err != nil {
			return nil, fmt.Errorf("read stream %s: %w", stream, err)
		}
		s.Messages = append(s.Messages, NewMessage(s.Root, meta.Sequence.Stream, m.Subject(), m.Headers(), m.Data()))
		if meta.Sequence.Stream <= info.State.LastSeq {
			got++
		}
		if meta.NumPending == 0 {
			break
		}
	}
	if got != want && s.Complete {
		return nil, fmt.Errorf("read stream %s: got %d messages of %d", stream, got, want)
	}
	return s, nil
}

// NewMessage takes a message apart. What it cannot take apart stays empty, for [Stream.Verify] to find.
func NewMessage(root string, sequence uint64, subject string, header nats.Header, body []byte) *Message {
	m := &Message{Sequence: sequence, Subject: subject, Header: header, Body: body}
	if place, object, err := parseSubject(root, subject); err == nil {
		m.place, m.Object = place, object
	}
	m.event = map[string]any{}
	m.data = body
	if m.structured() {
		var envelope map[string]any
		if err := json.Unmarshal(body, &envelope); err == nil {
			m.event = envelope
		}
		var data struct {
			Data json.RawMessage `json:"data"`
		}
		// An envelope that cannot be decoded has no data, which is what is reported of it.
		_ = json.Unmarshal(body, &data)
		m.data = data.Data
	} else {
		for name, values := range header {
			if attribute, ok := strings.CutPrefix(strings.ToLower(name), "ce-"); ok && len(values) > 0 {
				m.event[attribute] = values[0]
			}
		}
	}
	if hashed.MatchString(m.Object.Name) {
		if b, err := parseBody(m.data); err == nil && nameToken(b.name) == m.Object.Name {
			m.Object.Name = b.name
		}
	}
	m.Kind, _ = strings.CutPrefix(m.attribute("type"), "io.deltabridge.")
	m.ID = m.attribute("id")
	m.UID = m.attribute("uid")
	m.RV = m.attribute("rv")
	m.Reason = m.attribute("reason")
	m.Gap = m.attribute("gap")
	m.Epoch = m.attribute("epoch")
	return m
}

// structured reports whether the body is a CloudEvents envelope.
func (m *Message) structured() bool {
	return strings.HasPrefix(m.Header.Get("content-type"), "application/cloudevents+json")
}

// attribute returns a CloudEvents attribute. In structured mode the header counts where the envelope has none.
func (m *Message) attribute(name string) string {
	switch value := m.event[name].(type) {
	case string:
		return value
	case float64:
		return fmt.Sprintf("%.0f", value)
	}
	return m.Header.Get("ce-" + name)
}

// aboutObject reports whether the message is about an object and says something of it.
func (m *Message) aboutObject() bool { return m.place == objectSubject }

// gone reports whether an object whose last message this is is not in the selection.
func (m *Message) gone() bool { return m.Kind == "deleted" || m.Kind == "left" || m.Kind == "expired" }

// version reports whether the message carries a version of its object that no other message may carry.
func (m *Message) version() bool { return m.Kind == "added" || m.Kind == "modified" }

// reduced reports whether the body was too large for the broker and is not whole.
func (m *Message) reduced() bool { return m.attribute("oversize") != "" }

// Data returns the object's JSON.
func (m *Message) Data() []byte { return m.data }

// Objects returns the messages about objects of a resource, "pods" or "deployments.apps"; all where it is empty.
func (s *Stream) Objects(groupResource string) []*Message {
	var found []*Message
	for _, m := range s.Messages {
		if m.aboutObject() && (groupResource == "" || m.Object.GroupResource() == groupResource) {
			found = append(found, m)
		}
	}
	return found
}

// History returns the messages about one object.
func (s *Stream) History(object Object) []*Message {
	var found []*Message
	for _, m := range s.Messages {
		if m.aboutObject() && m.Object == object {
			found = append(found, m)
		}
	}
	return found
}

// last returns the last message of every object's subject.
func (s *Stream) last() map[Object]*Message {
	last := map[Object]*Message{}
	for _, m := range s.Messages {
		if m.aboutObject() {
			last[m.Object] = m
		}
	}
	return last
}

// parseGap takes the value of ce-gap apart.
func parseGap(gap string) (from, to string, err error) {
	from, to, ok := strings.Cut(gap, "-")
	if !ok || !isDecimal(from) || !isDecimal(to) || compare(from, to) > 0 {
		return "", "", errors.New("it is not <from-rv>-<to-rv>")
	}
	return from, to, nil
}
