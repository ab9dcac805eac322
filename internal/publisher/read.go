package publisher

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/deltabridge/deltabridge/internal/change"
	"github.com/deltabridge/deltabridge/internal/message"
)

// readTimeout bounds one read of the stream's leader.
const readTimeout = 5 * time.Second

// record is one stored message.
type record struct {
	subject  string
	sequence uint64
	header   nats.Header
	body     []byte
}

func (r *record) id() string { return r.header.Get(jetstream.MsgIDHeader) }

// leaderRead asks the stream's leader for one message: by sequence, or the last on a subject. It goes to the leader, not
// to any replica as a direct get would, because what a replica does not have yet is exactly what matters here. It
// returns nil without an error if there is no such message.
func (c *Conn) leaderRead(ctx context.Context, stream string, request leaderRequest) (*record, error) {
	js, err := c.JetStream()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	body, err := json.Marshal(request)
	if err != nil {
		return nil, fmt.Errorf("encode read request: %w", err)
	}
	answer, err := js.Conn().RequestWithContext(ctx, c.apiPrefix()+"STREAM.MSG.GET."+stream, body)
	if err != nil {
		return nil, fmt.Errorf("read from stream %s: %w", stream, err)
	}
	var got struct {
		Error   *jetstream.APIError `json:"error"`
		Message *struct {
			Subject  string `json:"subject"`
			Sequence uint64 `json:"seq"`
			Header   []byte `json:"hdrs"`
			Data     []byte `json:"data"`
		} `json:"message"`
	}
	if err := json.Unmarshal(answer.Data, &got); err != nil {
		return nil, fmt.Errorf("read from stream %s: answer: %w", stream, err)
	}
	if got.Error != nil {
		if got.Error.ErrorCode == jetstream.JSErrCodeMessageNotFound {
			return nil, nil
		}
		return nil, fmt.Errorf("read from stream %s: %w", stream, got.Error)
	}
	if got.Message == nil {
		return nil, fmt.Errorf("read from stream %s: the answer holds no message", stream)
	}
	r := &record{subject: got.Message.Subject, sequence: got.Message.Sequence, header: nats.Header{}, body: got.Message.Data}
	if len(got.Message.Header) > 0 {
		if r.header, err = nats.DecodeHeadersMsg(got.Message.Header); err != nil {
			return nil, fmt.Errorf("read from stream %s: header of message %d: %w", stream, r.sequence, err)
		}
	}
	return r, nil
}

// leaderRequest is the body of a STREAM.MSG.GET request.
type leaderRequest struct {
	Sequence      uint64 `json:"seq,omitempty"`
	LastBySubject string `json:"last_by_subj,omitempty"`
}

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

// ReadLedger reads the last message of every object's subject, headers only, into the ledger. It returns how many it
// read and those that are not ours, and does not return without an error before it has as many as the stream has
// subjects. While it runs, other writers may append; the ledger keeps the newest.
func ReadLedger(ctx context.Context, conn *Conn, stream string, scheme message.Scheme, ledger Ledger) (int, []Foreign, error) {
	js, err := conn.JetStream()
	if err != nil {
		return 0, nil, err
	}
	expected, err := subjectCount(ctx, js, stream, scheme.ObjectsFilter())
	if err != nil {
		return 0, nil, err
	}
	if expected == 0 {
		return 0, nil, nil
	}
	consumer, err := js.OrderedConsumer(ctx, stream, jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{scheme.ObjectsFilter()},
		DeliverPolicy:  jetstream.DeliverLastPerSubjectPolicy,
		HeadersOnly:    true,
	})
	if err != nil {
		return 0, nil, fmt.Errorf("read the ledger: %w", err)
	}
	messages, err := consumer.Messages(jetstream.PullMaxMessages(4096))
	if err != nil {
		return 0, nil, fmt.Errorf("read the ledger: %w", err)
	}
	defer messages.Stop()
	stop := context.AfterFunc(ctx, messages.Stop)
	defer stop()
	read := 0
	var foreign []Foreign
	for {
		m, err := messages.Next(jetstream.NextMaxWait(30 * time.Second))
		if err != nil {
			if ctx.Err() != nil {
				return read, foreign, ctx.Err()
			}
			return read, foreign, fmt.Errorf("read the ledger: after %d of %d subjects: %w", read, expected, err)
		}
		meta, err := m.Metadata()
		if err != nil {
			return read, foreign, fmt.Errorf("read the ledger: %w", err)
		}
		read++
		stored, err := message.ParseStored(m.Headers(), m.Subject(), meta.Sequence.Stream)
		if err != nil {
			foreign = append(foreign, Foreign{Subject: m.Subject(), Sequence: meta.Sequence.Stream, Err: err})
		} else {
			ledger.Put(m.Subject(), stored)
		}
		if meta.NumPending == 0 {
			break
		}
	}
	if read < expected {
		return read, foreign, fmt.Errorf("read the ledger: got %d of %d subjects", read, expected)
	}
	return read, foreign, nil
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

// AppendWriterRecord takes the next epoch: it reads the last writer record and appends a new one after it, under
// compare-and-set, so that two writers can never hold one epoch. It returns the epoch.
func AppendWriterRecord(ctx context.Context, conn *Conn, stream string, subject string, encode func(epoch, expectedLastSeq uint64) (*message.Message, error)) (uint64, error) {
	for {
		last, err := conn.leaderRead(ctx, stream, leaderRequest{LastBySubject: subject})
		if err != nil {
			return 0, err
		}
		var epoch, sequence uint64
		if last != nil {
			record, err := message.ParseWriterRecord(last.body)
			if err != nil {
				return 0, fmt.Errorf("message %d on %s is not a writer record that this version reads: %w", last.sequence, subject, err)
			}
			epoch, sequence = record.Epoch, last.sequence
		}
		m, err := encode(epoch+1, sequence)
		if err != nil {
			return 0, err
		}
		js, err := conn.JetStream()
		if err != nil {
			return 0, err
		}
		attempt, cancel := context.WithTimeout(ctx, readTimeout)
		sent := time.Now()
		_, err = js.PublishMsg(attempt, toNATS(m))
		cancel()
		if err == nil {
			return epoch + 1, nil
		}
		if conn.deniedSince(subject, sent) {
			return 0, &DeniedError{Subject: subject}
		}
		var api *jetstream.APIError
		if errors.As(err, &api) && (api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence || api.ErrorCode == codeWrongLastInProcess) {
			continue // another writer was faster; its epoch is the one to exceed
		}
		return 0, fmt.Errorf("append the writer record to %s: %w", subject, err)
	}
}

// DeniedError means that the NATS server does not permit us to publish on a subject.
type DeniedError struct{ Subject string }

// Error names the subject and what to grant.
func (e *DeniedError) Error() string {
	return fmt.Sprintf("no permission to publish on %s; grant the NATS user publish on the bridge's subjects", e.Subject)
}

func toNATS(m *message.Message) *nats.Msg {
	return &nats.Msg{Subject: m.Subject, Header: nats.Header(m.Header), Data: m.Body}
}
