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
	codeClusterNotAvail    = 10008 // JetStream system temporarily unavailable
	codeClusterNotLeader   = 10009 // JetStream cluster can not handle request
	codeInsufficient       = 10023 // insufficient resources
	codeMemoryExceeded     = 10028 // insufficient memory resources available
	codeNoAccount          = 10035 // account not found
	codeStorageExceeded    = 10047 // insufficient storage resources available
	codeStreamMismatch     = 10060 // expected stream does not match
	codeSubjectsOverlap    = 10065 // subjects overlap with an existing stream
	codeStoreFailed        = 10077 // maximum bytes, messages, … exceeded
	codeHeaderTooLarge     = 10097 // header size exceeds 64 KiB
	codeSealed             = 10109 // invalid operation on sealed stream
	codeStreamOffline      = 10118 // stream is offline
	codeIDInProcess        = 10158 // duplicate message id is in process
	codeSequenceNotReady   = 10163 // expected last sequence per subject temporarily unavailable
	codeTooManyRequests    = 10167 // too many requests
	codeBatchDisabled      = 10174 // atomic publish is disabled
	codeBatchNoSequence    = 10175 // atomic publish sequence is missing
	codeBatchIncomplete    = 10176 // atomic publish batch is incomplete
	codeBatchHeader        = 10177 // atomic publish unsupported header used
	codeBatchID            = 10179 // atomic publish batch ID is invalid
	codeBatchTooLarge      = 10199 // atomic publish batch is too large
	codeBatchCommit        = 10200 // atomic publish batch commit is invalid
	codeBatchDuplicate     = 10201 // atomic publish batch contains duplicate message id
	codeBatchesInFlight    = 10210 // atomic publish too many inflight
	codeStreamOfflineCause = 10194 // stream is offline: …
)

// errAckTimeout means that an append was not answered in time.
var errAckTimeout = errors.New("no acknowledgement in time")

// reaction is what an error of an append calls for.
type reaction uint8

const (
	// reactResend: it is not known whether the message was stored. The identical message is sent again; its id and the
	// expected sequence make that harmless.
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
	// reactSlower: the broker has too many requests: half as many at once from here on.
	reactSlower
	// reactUnbatch: the broker refuses a batch as such, for now or for what it is made of: its messages go one by one.
	reactUnbatch
	// reactNoBatches: the broker takes no batches, or has too many of them at the moment.
	reactNoBatches
	// reactDenied: the server does not permit us to publish on the subject.
	reactDenied
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
		case jetstream.JSErrCodeStreamWrongLastSequenceConstant, codeIDInProcess, codeSequenceNotReady:
			return reactSoon, code
		case jetstream.JSErrCodeStreamMessageExceedsMaximum, codeHeaderTooLarge:
			return reactReduce, code
		case jetstream.JSErrCodeStreamNotFound, jetstream.JSErrCodeJetStreamNotEnabled,
			jetstream.JSErrCodeJetStreamNotEnabledForAccount, codeNoAccount, codeStreamMismatch, codeSealed,
			codeStreamOffline, codeStreamOfflineCause:
			return reactMissing, code
		case codeClusterNotAvail, codeClusterNotLeader:
			return reactResend, code
		case codeTooManyRequests:
			return reactSlower, code
		case codeBatchDuplicate:
			return reactReread, code
		case codeBatchDisabled, codeBatchTooLarge, codeBatchesInFlight:
			return reactNoBatches, code
		case codeBatchNoSequence, codeBatchIncomplete, codeBatchHeader, codeBatchID, codeBatchCommit:
			return reactUnbatch, code
		}
		return reactHold, code // stream full, account or server out of resources, 429, and what is new to us
	}
	var denied *DeniedError
	switch {
	case errors.As(err, &denied):
		return reactDenied, "denied"
	case errors.Is(err, nats.ErrMaxPayload):
		return reactReduce, "max_payload"
	case errors.Is(err, errAckTimeout), errors.Is(err, jetstream.ErrAsyncPublishTimeout), errors.Is(err, nats.ErrTimeout),
		errors.Is(err, context.DeadlineExceeded):
		return reactResend, "timeout"
	case errors.Is(err, jetstream.ErrNoStreamResponse), errors.Is(err, nats.ErrNoResponders):
		return reactMissing, "no_responders"
	case errors.Is(err, ErrNotConnected), errors.Is(err, nats.ErrDisconnected), errors.Is(err, nats.ErrReconnectBufExceeded),
		errors.Is(err, nats.ErrConnectionClosed), errors.Is(err, nats.ErrConnectionDraining):
		return reactResend, "disconnected"
	}
	return reactHold, "client"
}

// troubleOf says in a word and in a sentence what a failed append, or a failed read of the stream, means for a user.
func troubleOf(stream string, r reaction, code string, err error) (reason, text string) {
	switch r {
	case reactMissing:
		return "no-stream", "stream " + stream + " does not answer; is it there, and does it have a leader? " + err.Error()
	case reactDenied:
		return "no-permission", err.Error()
	case reactResend:
		switch code {
		case "timeout":
			return "timeout", "stream " + stream + " does not acknowledge in time: " + err.Error()
		case "disconnected":
			return "disconnected", err.Error()
		}
		return "unavailable", "stream " + stream + " cannot take messages at the moment: " + err.Error()
	}
	held := "stream " + stream + " refuses messages, they are kept: " + err.Error()
	switch code {
	case strconv.Itoa(codeStoreFailed):
		return "stream-full", held
	case strconv.Itoa(codeAccountResources), strconv.Itoa(codeInsufficient), strconv.Itoa(codeMemoryExceeded),
		strconv.Itoa(codeStorageExceeded):
		return "no-resources", held
	case strconv.Itoa(codeTooManyRequests):
		return "overloaded", held
	}
	return "refused", held
}
