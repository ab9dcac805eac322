package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/deltabridge/deltabridge/internal/change"
	"github.com/deltabridge/deltabridge/internal/checkpoint"
	"github.com/deltabridge/deltabridge/internal/message"
	"github.com/deltabridge/deltabridge/internal/publisher"
)

const (
	// coldObjects is how many objects the published changes are spread over.
	coldObjects = 10000
	// hotObjects is how many they are spread over where versions of one object wait for each other.
	hotObjects = 10
	// window is how many publishes are in flight, the bridge's default.
	window = 2048
)

// streams counts the streams made, each row's run has one of its own.
var streams atomic.Int64

// withStream makes a stream with the bridge's settings for f, and deletes it.
func withStream(ctx context.Context, url, subjects string, f func(stream string) error) error {
	nc, err := nats.Connect(url)
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	name := "BENCH" + strconv.FormatInt(streams.Add(1), 10)
	_, err = js.CreateStream(ctx, jetstream.StreamConfig{
		Name: name, Subjects: []string{subjects}, MaxMsgsPerSubject: 16, AllowDirect: true, AllowRollup: true, AllowMsgTTL: true, AllowAtomicPublish: true,
	})
	if err != nil {
		return err
	}
	return errors.Join(f(name), js.DeleteStream(ctx, name))
}

// plainPublish hands messages to the client's asynchronous publishing, without a thought for order or duplicates.
func plainPublish(ctx context.Context, url string, p payload, events int, messages func(p payload) func(i int) *nats.Msg) (result, error) {
	next := messages(p)
	var out result
	err := withStream(ctx, url, "plain.>", func(string) error {
		nc, err := nats.Connect(url)
		if err != nil {
			return err
		}
		defer nc.Close()
		var failed atomic.Int64
		js, err := jetstream.New(nc, jetstream.WithPublishAsyncMaxPending(window),
			jetstream.WithPublishAsyncErrHandler(func(jetstream.JetStream, *nats.Msg, error) { failed.Add(1) }))
		if err != nil {
			return err
		}
		out, err = measure(events, func() error {
			for i := range events {
				if _, sendErr := js.PublishMsgAsync(next(i), jetstream.WithStallWait(time.Minute)); sendErr != nil {
					return sendErr
				}
			}
			<-js.PublishAsyncComplete()
			return nil
		})
		if n := failed.Load(); n > 0 {
			return errors.Join(err, fmt.Errorf("%d publishes failed", n))
		}
		return err
	})
	return out, err
}

// bareMessages are bodies and nothing else.
func bareMessages(p payload) func(int) *nats.Msg {
	body, subjects := p.json(0), plainSubjects(p)
	return func(i int) *nats.Msg { return &nats.Msg{Subject: subjects[i%coldObjects], Data: body} }
}

// sameMessages have what the publisher's have: the attributes that make a body an event, and an id. Only what the
// publisher's are made for is missing, the condition on the subject's last message.
func sameMessages(p payload) func(int) *nats.Msg {
	body, subjects := p.json(0), plainSubjects(p)
	return func(i int) *nats.Msg {
		uid := fmt.Sprintf("3f6d0c1e-0000-4000-8000-%012d", i%coldObjects)
		rv := strconv.Itoa(1000000000 + i)
		id := uid + "/" + rv
		return &nats.Msg{Subject: subjects[i%coldObjects], Data: body, Header: nats.Header{
			"Nats-Msg-Id": {id}, "ce-id": {id}, "ce-uid": {uid}, "ce-rv": {rv},
			"ce-specversion": {"1.0"}, "ce-type": {message.Type(change.OpModified)}, "ce-source": {"/clusters/main"},
			"ce-subject": {fmt.Sprintf("%s/default/object-%04d", p.resource.GVR.Resource, i%objects)},
			"ce-time":    {time.Now().UTC().Format(time.RFC3339Nano)}, "content-type": {message.ContentJSON},
			"ce-gvk": {"v1/" + p.resource.Kind}, "ce-reason": {string(change.ReasonWatch)}, "ce-epoch": {"1"},
		}}
	}
}

func plainSubjects(p payload) []string {
	subjects := make([]string, coldObjects)
	for i := range subjects {
		subjects[i] = fmt.Sprintf("plain.main.core.%s.default.object-%04d", p.resource.GVR.Resource, i)
	}
	return subjects
}

// ourPublisher gives the same bodies to the publisher, as changes of so many objects.
func ourPublisher(ctx context.Context, url string, p payload, events, objects int) (result, error) {
	raw := p.json(0)
	scheme := message.Scheme{Prefix: "ours", Cluster: "main"}
	var out result
	err := withStream(ctx, url, "ours.>", func(stream string) error {
		log := slog.New(slog.NewTextHandler(io.Discard, nil))
		encoder, err := message.NewEncoder(message.Options{Scheme: scheme, Stream: stream, Secrets: message.SecretsOmit, Epoch: 1})
		if err != nil {
			return err
		}
		running, cancel := context.WithCancel(ctx)
		var wg sync.WaitGroup
		defer wg.Wait()
		defer cancel()
		conn := publisher.NewConn(publisher.ConnOptions{URLs: []string{url}, Name: "bench", MaxPending: window}, log)
		wg.Go(func() { conn.Run(running) })
		if err = conn.WaitConnected(ctx); err != nil {
			return err
		}
		pub := publisher.New(publisher.Options{
			Conn: conn, Stream: stream, MaxMsgSize: -1, Scheme: scheme, Encoder: encoder, Ledger: checkpoint.NewLedger(), Epoch: 1,
			MaxPending: window, MaxPendingBytes: 64 << 20, Batches: true, Metrics: noMetrics{}, Log: log,
		})
		wg.Go(func() { pub.Run(running) })
		changes := make([]*change.Change, events)
		for i := range changes {
			changes[i] = &change.Change{
				Op: change.OpModified, Reason: change.ReasonWatch,
				Ref: change.ObjectRef{Resource: p.resource.GVR.Resource, Namespace: "default", Name: fmt.Sprintf("object-%04d", i%objects)},
				GVK: schema.GroupVersionKind{Version: "v1", Kind: p.resource.Kind},
				UID: types.UID(fmt.Sprintf("3f6d0c1e-0000-4000-8000-%012d", i%objects)), RV: strconv.Itoa(1000000000 + i),
				Raw: raw, Seen: time.Now(),
			}
		}
		out, err = measure(events, func() error {
			for _, c := range changes {
				pub.Publish(c)
			}
			if left := pub.Flush(ctx); left > 0 {
				return fmt.Errorf("%d changes were not published", left)
			}
			return nil
		})
		return err
	})
	return out, err
}
