package publisher

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/deltabridge/deltabridge/internal/message"
)

// StreamState is what ExamineStream finds.
type StreamState struct {
	Exists   bool
	Outdated bool // EnsureStream would update it
	// Warnings are those of StreamInfo, as the stream is or would be after the update.
	Warnings []string
}

// ErrNoJetStream means that JetStream cannot be used on this server, for this account, or in this domain.
var ErrNoJetStream = errors.New("JetStream cannot be used")

// ExamineStream says whether EnsureStream would succeed, and writes nothing. Its errors are those of EnsureStream; one that is
// about JetStream as a whole wraps ErrNoJetStream.
func ExamineStream(ctx context.Context, conn *Conn, o StreamOptions) (StreamState, error) {
	js, err := conn.JetStream()
	if err != nil {
		return StreamState{}, err
	}
	stream, err := js.Stream(ctx, o.Name)
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound) && o.Mode == StreamRequire:
		_, err = EnsureStream(ctx, conn, o) // writes nothing in this mode
		return StreamState{}, err
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return StreamState{Warnings: streamWarnings(o.config())}, nil
	case err != nil:
		explained := explainStream(o, "look up", err)
		if errors.Is(err, jetstream.ErrJetStreamNotEnabled) || errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount) ||
			errors.Is(err, nats.ErrNoResponders) {
			explained = fmt.Errorf("%w: %w", ErrNoJetStream, explained)
		}
		return StreamState{}, explained
	}
	state, have := StreamState{Exists: true}, stream.CachedInfo().Config
	if o.Mode == StreamManage {
		have, state.Outdated = o.merge(have)
	}
	state.Warnings = streamWarnings(have)
	return state, checkStream(o, have)
}

// MayPublish asks whether we may publish on a subject of a stream, without anything being stored: the message names another
// stream, which the stream refuses. The error wraps a DeniedError where the server does not permit it.
func MayPublish(ctx context.Context, conn *Conn, stream, subject string) error {
	js, err := conn.JetStream()
	if err != nil {
		return err
	}
	m := nats.NewMsg(subject)
	m.Header.Set(nats.ExpectedStreamHdr, stream+"-refused-on-purpose")
	begin := time.Now()
	_, err = js.PublishMsg(ctx, m, jetstream.WithRetryAttempts(0))
	if conn.deniedSince(subject, begin) {
		return &DeniedError{Subject: subject}
	}
	var api *jetstream.APIError
	switch {
	case errors.As(err, &api) && api.ErrorCode == codeStreamMismatch:
		return nil
	case err == nil:
		return fmt.Errorf("a message on %s was stored by a stream that it was not meant for", subject)
	}
	return fmt.Errorf("publish on %s: %w", subject, err)
}

// LastWriter returns the last writer record on a subject of a stream, the zero value if there is none.
func LastWriter(ctx context.Context, conn *Conn, stream, subject string) (message.WriterRecord, error) {
	record, _, err := lastWriter(ctx, conn, stream, subject)
	return record, err
}
