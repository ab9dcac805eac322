package publisher

import (
	"context"
	"errors"
	"strconv"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Server error codes that nats.go has no constant for. They are JetStream's err_code values.
const (
	codeAccountResources   = 10002 // resource limits exceeded for account
	codeClusterNotLeader   = 10008 // JetStream cluster not leader / temporarily unavailable
	codeInsufficient       = 10023 // insufficient resources
	codeStorageExceeded    = 10047 // insufficient storage resources available
	codeMessageTooLarge    = 10054 // message size exceeds maximum allowed
	codeStreamMismatch     = 10060 // expected stream does not match
	codeStoreFailed        = 10077 // maximum bytes, messages, … exceeded
	codeHeaderTooLarge     = 10097 // header size exceeds 64 KiB
	codeSealed             = 10109 // invalid operation on sealed stream
	codeIDInProcess        = 10158 // duplicate message id is in process
	codeSubjectsOverlap    = 10065 // subjects overlap with an existing stream
	codeWrongLastInProcess = 10164 // wrong last sequence, another append in process
	codeTooManyRequests    = 10167 // too many requests
)

// reaction is what an error of an append calls for.
type reaction uint8

const (
	// reactResend: it is not known whether the message was stored. The identical message is sent again after a pause;
	// its id and the expected sequence make that harmless.
	reactResend reaction = iota
	// reactSoon: the broker is still busy with an earlier append; the same message goes again in milliseconds. Never a
	// fence.
	reactSoon
	// reactReread: the subject's last message is not the one we expected: read it at the stream's leader and decide.
	reactReread
	// reactHold: the broker takes nothing now: keep everything, probe with one message at a time.
	reactHold
	// reactReduce: the message is above a limit of client, server or stream: the next step of the size ladder.
	reactReduce
	// reactMissing: there is no stream, or not the one we know.
	reactMissing
)

// classify maps an error of an append to the reaction it calls for and the code under which it is counted. An error
// that it does not know holds: nothing is dropped.
func classify(err error) (reaction, string) {
	var api *jetstream.APIError
	if errors.As(err, &api) {
		code := strconv.Itoa(int(api.ErrorCode))
		switch api.ErrorCode {
		case jetstream.JSErrCodeStreamWrongLastSequence:
			return reactReread, code
		case codeWrongLastInProcess, codeIDInProcess:
			return reactSoon, code
		case codeMessageTooLarge, codeHeaderTooLarge:
			return reactReduce, code
		case jetstream.JSErrCodeStreamNotFound, jetstream.JSErrCodeJetStreamNotEnabled,
			jetstream.JSErrCodeJetStreamNotEnabledForAccount, codeStreamMismatch, codeSealed:
			return reactMissing, code
		case codeClusterNotLeader:
			return reactResend, code
		}
		return reactHold, code // stream full, account or server out of resources, 429, and what is new to us
	}
	switch {
	case errors.Is(err, nats.ErrMaxPayload):
		return reactReduce, "max_payload"
	case errors.Is(err, jetstream.ErrAsyncPublishTimeout), errors.Is(err, nats.ErrTimeout), errors.Is(err, context.DeadlineExceeded):
		return reactResend, "timeout"
	case errors.Is(err, jetstream.ErrNoStreamResponse), errors.Is(err, nats.ErrNoResponders):
		return reactMissing, "no_responders"
	case errors.Is(err, nats.ErrDisconnected):
		return reactResend, "disconnected"
	}
	return reactHold, "client"
}
