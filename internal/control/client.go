package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
)

// ErrNobody means that no bridge answers.
var ErrNobody = errors.New("no bridge answers")

// silence is how long a bridge may say nothing. It reports every half second, whatever it waits for.
const silence = 15 * time.Second

// A bridge that has just started, or taken over, answers a moment later.
const (
	askAgain = 250 * time.Millisecond
	askUntil = 3 * time.Second
)

// Resync asks the cluster's bridge for a resync, calls report for each answer, and blocks until the last one, which it
// returns. The error is an *Error of the bridge, wraps ErrNobody, or says that the answers ended.
func Resync(ctx context.Context, nc *nats.Conn, cluster string, request Request, report func(Progress)) (Progress, error) {
	deadline := time.Now().Add(askUntil)
	for {
		p, err := ask(ctx, nc, cluster, request, report)
		if !errors.Is(err, ErrNobody) || time.Now().After(deadline) {
			return p, err
		}
		select {
		case <-ctx.Done():
			return p, ctx.Err()
		case <-time.After(askAgain):
		}
	}
}

// ask sends the request once.
func ask(ctx context.Context, nc *nats.Conn, cluster string, request Request, report func(Progress)) (Progress, error) {
	request.Format = format
	body, err := json.Marshal(request)
	if err != nil {
		return Progress{}, fmt.Errorf("encode request: %w", err)
	}
	inbox := nc.NewInbox()
	answers, err := nc.SubscribeSync(inbox)
	if err != nil {
		return Progress{}, fmt.Errorf("subscribe for the answers: %w", err)
	}
	defer func() { _ = answers.Unsubscribe() }()
	if err := nc.PublishRequest(ResyncSubject(cluster), inbox, body); err != nil {
		return Progress{}, fmt.Errorf("send the request: %w", err)
	}
	for {
		p, err := next(ctx, answers, cluster)
		if err != nil || p.Done {
			return p, err
		}
		report(p)
	}
}

// next returns the next answer.
func next(ctx context.Context, answers *nats.Subscription, cluster string) (Progress, error) {
	quiet, cancel := context.WithTimeout(ctx, silence)
	defer cancel()
	m, err := answers.NextMsgWithContext(quiet)
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		return Progress{}, fmt.Errorf("%w for cluster %s: none is running, or the one that runs does not publish yet, is not connected to this NATS, or has BRIDGE_CONTROL=false", ErrNobody, cluster)
	case ctx.Err() != nil:
		return Progress{}, ctx.Err()
	case err != nil:
		return Progress{}, fmt.Errorf("the bridge says nothing any more, it may have stopped or lost its connection: %w", err)
	}
	var p Progress
	if text := m.Header.Get(micro.ErrorHeader); text != "" {
		_ = json.Unmarshal(m.Data, &p) // the counts so far, if there are any
		return p, &Error{Code: m.Header.Get(micro.ErrorCodeHeader), Description: text}
	}
	if err := json.Unmarshal(m.Data, &p); err != nil {
		return p, fmt.Errorf("the bridge's answer is not understood: %w", err)
	}
	if p.Format != format {
		return p, fmt.Errorf("the bridge answers in format %d, this program knows %d", p.Format, format)
	}
	return p, nil
}
