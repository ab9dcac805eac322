package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// follower reads the stream as any program may: a plain ordered consumer, and the messages' headers.
type follower struct {
	terminal *terminal
	stream   jetstream.Stream
	subjects string
	counts   map[string]int
}

// newFollower waits until the stream is there, which the bridge creates.
func newFollower(ctx context.Context, conn *nats.Conn, stream, subjects string, t *terminal) (*follower, error) {
	js, err := jetstream.New(conn)
	if err != nil {
		return nil, fmt.Errorf("make a JetStream client: %w", err)
	}
	handle, err := js.Stream(ctx, stream)
	if err != nil {
		return nil, fmt.Errorf("find stream %s: %w", stream, err)
	}
	return &follower{terminal: t, stream: handle, subjects: subjects, counts: map[string]int{}}, nil
}

// run shows every message, from the first one stored, until the context ends.
func (f *follower) run(ctx context.Context) error {
	consumer, err := f.stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{FilterSubjects: []string{f.subjects}})
	if err != nil {
		return fmt.Errorf("read stream: %w", err)
	}
	messages, err := consumer.Messages()
	if err != nil {
		return fmt.Errorf("read stream: %w", err)
	}
	defer messages.Stop()
	for {
		message, err := messages.Next(jetstream.NextContext(ctx))
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, jetstream.ErrNoHeartbeat):
			continue // the consumer makes itself anew
		case err != nil:
			return fmt.Errorf("read stream: %w", err)
		}
		f.show(ctx, message)
	}
}

// show prints one message.
func (f *follower) show(ctx context.Context, message jetstream.Msg) {
	headers := message.Headers()
	r := row{
		at:      time.Now(),
		op:      strings.TrimPrefix(headers.Get("ce-type"), "io.deltabridge."),
		subject: message.Subject(),
		version: headers.Get("ce-rv"),
	}
	f.counts[r.op]++
	body := message.Data()
	previous := f.previous(ctx, headers)
	switch {
	case r.op == "writer" || r.op == "watermark":
		r.note = shorten(string(body))
	case r.op == "deleted":
		r.note = lifetime(body, r.at)
	case previous == nil || r.op == "added":
		r.edits, r.more, r.note = some(content(body))
	default:
		r.edits, r.more, r.note = some(diff(previous, body))
	}
	if reason := headers.Get("ce-reason"); reason != "" && reason != "watch" {
		r.note = strings.TrimSpace(r.note + " (" + reason + ")")
	}
	if gap := headers.Get("ce-gap"); gap != "" {
		r.note = strings.TrimSpace(r.note + " (gap " + gap + ")")
	}
	f.terminal.message(r)
}

// some returns the edits that are shown, and how many are not.
func some(edits []edit, err error) (shown []edit, more int, note string) {
	if err != nil {
		return nil, 0, err.Error()
	}
	shown = telling(edits)
	return shown, len(edits) - len(shown), ""
}

// previous returns the body of the message before this one on its subject. Its sequence is in the header by which the
// bridge made the broker refuse anything but the next message. It is nil where there was none, or where it is forgotten.
func (f *follower) previous(ctx context.Context, headers nats.Header) []byte {
	sequence, err := strconv.ParseUint(headers.Get("Nats-Expected-Last-Subject-Sequence"), 10, 64)
	if err != nil || sequence == 0 {
		return nil
	}
	message, err := f.stream.GetMsg(ctx, sequence)
	if err != nil {
		return nil
	}
	return message.Data
}

// lifetime says how long an object lived.
func lifetime(body []byte, end time.Time) string {
	var object struct {
		Metadata struct{ CreationTimestamp time.Time }
	}
	if err := json.Unmarshal(body, &object); err != nil || object.Metadata.CreationTimestamp.IsZero() {
		return ""
	}
	lived := end.Sub(object.Metadata.CreationTimestamp).Truncate(time.Second)
	return "lived " + max(lived, 0).String()
}

// summary says how many messages of each type were shown. It must not be called while run runs.
func (f *follower) summary() string {
	total := 0
	var parts []string
	for _, op := range slices.Sorted(maps.Keys(f.counts)) {
		total += f.counts[op]
		parts = append(parts, fmt.Sprintf("%d %s", f.counts[op], op))
	}
	return fmt.Sprintf("%d messages: %s", total, strings.Join(parts, ", "))
}
