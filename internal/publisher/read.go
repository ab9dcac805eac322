package publisher

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

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
	subject := c.apiPrefix() + "STREAM.MSG.GET." + stream
	asked := time.Now()
	answer, err := js.Conn().RequestWithContext(ctx, subject, body)
	if err != nil {
		if c.deniedSince(subject, asked) {
			err = &DeniedError{Subject: subject}
		}
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
	if err = json.Unmarshal(answer.Data, &got); err != nil {
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

// DeniedError means that the NATS server does not permit us to publish on a subject.
type DeniedError struct{ Subject string }

// Error names the subject and what to grant.
func (e *DeniedError) Error() string {
	return fmt.Sprintf("no permission to publish on %s; grant the NATS user publish on the bridge's subjects", e.Subject)
}

func toNATS(m *message.Message) *nats.Msg {
	return &nats.Msg{Subject: m.Subject, Header: nats.Header(m.Header), Data: m.Body}
}
