package publisher

import (
	"context"
	"fmt"
	"strconv"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/deltabridge/deltabridge/internal/message"
)

// AppendWriterRecord takes the next epoch: it reads the last writer record and appends a new one after it, under
// compare-and-set, so that two writers can never hold one epoch. encode makes the new one; it is given the last record,
// the zero value if there is none, and its error ends the attempt. AppendWriterRecord returns the epoch.
func AppendWriterRecord(ctx context.Context, conn *Conn, stream string, subject string, encode func(last message.WriterRecord, epoch, expectedLastSeq uint64) (*message.Message, error)) (uint64, error) {
	for floor := uint64(0); ; sleep(ctx, soon) {
		last, sequence, err := lastWriter(ctx, conn, stream, subject)
		if err != nil {
			return 0, err
		}
		epoch := max(last.Epoch, floor) + 1
		m, err := encode(last, epoch, sequence)
		if err != nil {
			return 0, err
		}
		stored, err := appendRecord(ctx, conn, stream, m, sequence)
		switch {
		case err != nil:
			return 0, fmt.Errorf("take an epoch: %w", err)
		case stored > 0:
			return epoch, nil
		}
		floor = epoch // its id may be remembered for a message that is gone; the next epoch's is not
	}
}

// lastWriter returns the last writer record and its sequence, zero if there is none. A stream with limits removes its
// oldest messages first, and a writer record may be just that; then the other messages are asked for the highest epoch that
// anybody has taken, which is all that is returned of it.
func lastWriter(ctx context.Context, conn *Conn, stream, subject string) (record message.WriterRecord, sequence uint64, err error) {
	last, err := conn.leaderRead(ctx, stream, leaderRequest{LastBySubject: subject})
	if err != nil {
		return record, 0, err
	}
	if last != nil {
		if record, err = message.ParseWriterRecord(last.body); err != nil {
			return record, 0, fmt.Errorf("message %d on %s is not a writer record that this version reads: %w", last.sequence, subject, err)
		}
		return record, last.sequence, nil
	}
	_, err = eachLast(ctx, conn, stream, subject+".>", headersOnly, func(m jetstream.Msg, _ uint64) bool {
		record.Epoch = max(record.Epoch, epochOf(m.Headers()))
		return true
	})
	return record, 0, err
}

// epochOf returns the epoch that a message's header names, zero if it names none.
func epochOf(header nats.Header) uint64 {
	epoch, err := strconv.ParseUint(header.Get(message.HeaderEpoch), 10, 64)
	if err != nil {
		return 0
	}
	return epoch
}
