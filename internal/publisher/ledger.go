package publisher

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/deltabridge/deltabridge/internal/change"
	"github.com/deltabridge/deltabridge/internal/message"
)

// Ledger is where ReadLedger puts what it reads, and where the Publisher looks up and records each object's last
// message. It must be safe for concurrent use.
type Ledger interface {
	Get(subject string) (change.Stored, bool)
	Put(subject string, stored change.Stored)
	Forget(subject string)
}

// Foreign is a message on one of our subjects that is not one of ours.
type Foreign struct {
	Subject  string
	Sequence uint64
	Err      error
}

// ReadLedger reads the last message of every object's subject, headers only, into the ledger, which must be empty. It
// returns how many subjects it read and what on them is not ours, and does not return without an error before it has as
// many as the stream has subjects. While it runs, other writers may append; the ledger keeps the newest.
func ReadLedger(ctx context.Context, conn *Conn, stream string, scheme message.Scheme, ledger Ledger) (int, []Foreign, error) {
	foreign := map[string]Foreign{}
	read, err := eachLast(ctx, conn, stream, scheme.ObjectsFilter(), headersOnly, func(m jetstream.Msg, sequence uint64) bool {
		subject := m.Subject()
		_, had := foreign[subject]
		delete(foreign, subject)
		if !had {
			_, had = ledger.Get(subject)
		}
		stored, err := message.ParseStored(m.Headers(), subject, sequence)
		if err != nil {
			ledger.Forget(subject)
			foreign[subject] = Foreign{Subject: subject, Sequence: sequence, Err: err}
		} else {
			ledger.Put(subject, stored)
		}
		return !had
	})
	out := make([]Foreign, 0, len(foreign))
	for _, f := range foreign {
		out = append(out, f)
	}
	if err != nil {
		return read, out, fmt.Errorf("read the ledger: %w", err)
	}
	return read, out, nil
}

const (
	// lastPause is how long the broker may be silent while messages are still to come.
	lastPause = 30 * time.Second
	// consumerLife is how long the broker keeps the consumer of a reader that went away.
	consumerLife = time.Minute
)

// How much of each message eachLast reads.
const (
	headersOnly = true
	withBodies  = false
)

// eachLast calls f with the last message on each subject that the filter selects, and its sequence. A subject may come
// more than once, later messages later; f reports whether it is new, and those are counted. There is an error if fewer
// subjects came than the stream had at the beginning.
func eachLast(ctx context.Context, conn *Conn, stream, filter string, headersOnly bool, f func(m jetstream.Msg, sequence uint64) bool) (int, error) {
	js, err := conn.JetStream()
	if err != nil {
		return 0, err
	}
	expected, err := subjectCount(ctx, js, stream, filter)
	if err != nil {
		return 0, err
	}
	if expected == 0 {
		return 0, nil
	}
	consumer, err := js.OrderedConsumer(ctx, stream, jetstream.OrderedConsumerConfig{
		FilterSubjects:    []string{filter},
		DeliverPolicy:     jetstream.DeliverLastPerSubjectPolicy,
		HeadersOnly:       headersOnly,
		InactiveThreshold: consumerLife,
	})
	if err != nil {
		return 0, err
	}
	messages, err := consumer.Messages(jetstream.PullMaxMessages(4096))
	if err != nil {
		return 0, err
	}
	defer messages.Stop()
	stop := context.AfterFunc(ctx, messages.Stop)
	defer stop()
	read := 0
	for {
		m, err := messages.Next(jetstream.NextMaxWait(lastPause))
		if err != nil {
			if ctx.Err() != nil {
				return read, ctx.Err()
			}
			return read, fmt.Errorf("after %d of %d subjects: %w", read, expected, err)
		}
		meta, err := m.Metadata()
		if err != nil {
			return read, err
		}
		if f(m, meta.Sequence.Stream) {
			read++
		}
		if meta.NumPending == 0 {
			break
		}
	}
	if read < expected {
		return read, fmt.Errorf("got %d of %d subjects", read, expected)
	}
	return read, nil
}

// subjectCount asks the stream how many subjects match a filter.
func subjectCount(ctx context.Context, js jetstream.JetStream, stream, filter string) (int, error) {
	s, err := js.Stream(ctx, stream)
	if err != nil {
		return 0, fmt.Errorf("look up stream %s: %w", stream, err)
	}
	info, err := s.Info(ctx, jetstream.WithSubjectFilter(filter))
	if err != nil {
		return 0, fmt.Errorf("count the subjects of stream %s: %w", stream, err)
	}
	return len(info.State.Subjects), nil
}
