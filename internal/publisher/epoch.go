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

// AppendWriterRecord takes the next epoch: it reads the last writer record and appends a new one after it, under
// compare-and-set, so that two writers can never hold one epoch. It returns the epoch.
func AppendWriterRecord(ctx context.Context, conn *Conn, stream string, subject string, encode func(epoch, expectedLastSeq uint64) (*message.Message, error)) (uint64, error) {
	for floor := uint64(0); ; sleep(ctx, soon) {
		epoch, sequence, err := lastEpoch(ctx, conn, stream, subject)
		if err != nil {
			return 0, err
		}
		epoch = max(epoch, floor) + 1
		m, err := encode(epoch, sequence)
		if err != nil {
			return 0, err
		}
		stored, err := appendRecord(ctx, conn, stream, m)
		switch {
		case err != nil:
			return 0, err
		case stored:
			return epoch, nil
		}
		floor = epoch // its id may be remembered for a message that is gone; the next epoch's is not
	}
}

// lastEpoch returns the highest epoch that anybody has taken, and the sequence of the last writer record, zero if there
// is none. A stream with limits removes its oldest messages first, and a writer record may be just that; then the
// objects' messages are asked.
func lastEpoch(ctx context.Context, conn *Conn, stream, subject string) (epoch, sequence uint64, err error) {
	last, err := conn.leaderRead(ctx, stream, leaderRequest{LastBySubject: subject})
	if err != nil {
		return 0, 0, err
	}
	if last != nil {
		record, parseErr := message.ParseWriterRecord(last.body)
		if parseErr != nil {
			return 0, 0, fmt.Errorf("message %d on %s is not a writer record that this version reads: %w", last.sequence, subject, parseErr)
		}
		return record.Epoch, last.sequence, nil
	}
	_, err = eachLast(ctx, conn, stream, subject+".*.*.*.*", func(subject string, header nats.Header, sequence uint64) bool {
		if stored, parseErr := message.ParseStored(header, subject, sequence); parseErr == nil {
			epoch = max(epoch, stored.Epoch)
		}
		return true
	})
	return epoch, 0, err
}

// appendRecord appends a writer record. It returns false without an error if another writer was faster, or if the broker
// takes the record for a duplicate of a message that is gone.
func appendRecord(ctx context.Context, conn *Conn, stream string, m *message.Message) (bool, error) {
	js, err := conn.JetStream()
	if err != nil {
		return false, err
	}
	attempt, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	sent := time.Now()
	ack, err := js.PublishMsg(attempt, toNATS(m))
	if err == nil && ack.Duplicate {
		last, readErr := conn.leaderRead(ctx, stream, leaderRequest{LastBySubject: m.Subject})
		return last != nil && last.id() == m.ID, readErr
	}
	if err == nil {
		return true, nil
	}
	if conn.deniedSince(m.Subject, sent) {
		return false, &DeniedError{Subject: m.Subject}
	}
	var api *jetstream.APIError
	if errors.As(err, &api) {
		switch r, _ := classify(err); r {
		case reactReread, reactSoon:
			return false, nil
		}
	}
	return false, fmt.Errorf("append the writer record to %s: %w", m.Subject, err)
}
