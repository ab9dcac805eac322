package publisher

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/deltabridge/deltabridge/internal/message"
)

// appendRecord appends a writer record or a watermark and waits for the outcome. It returns the sequence of the stored
// message, or 0 without an error if it was not stored: because another message is the subject's last, or because the
// broker takes it for a duplicate of a message that is gone. After an error it is not known whether it was stored; the
// same message may be appended again, and is stored once.
func appendRecord(ctx context.Context, conn *Conn, stream string, m *message.Message, expected uint64) (uint64, error) {
	js, err := conn.JetStream()
	if err != nil {
		return 0, err
	}
	attempt, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	sent := time.Now()
	ack, err := js.PublishMsg(attempt, toNATS(m))
	if err == nil && !ack.Duplicate {
		return ack.Sequence, nil
	}
	if err != nil {
		if conn.deniedSince(m.Subject, sent) {
			return 0, &DeniedError{Subject: m.Subject}
		}
		var api *jetstream.APIError
		if r, _ := classify(err); !errors.As(err, &api) || (r != reactReread && r != reactSoon) {
			return 0, fmt.Errorf("append to %s: %w", m.Subject, err)
		}
	}
	// Refused or a duplicate: an earlier copy of it may be what is there.
	last, err := conn.leaderRead(ctx, stream, leaderRequest{LastBySubject: m.Subject})
	if err != nil {
		return 0, err
	}
	if last != nil && last.id() == m.ID && last.sequence > expected {
		return last.sequence, nil
	}
	return 0, nil
}
