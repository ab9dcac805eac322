package publisher

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/deltabridge/deltabridge/internal/change"
)

// promptBroker stores nothing and acknowledges at once: what remains is the publisher's own work.
type promptBroker struct {
	h        atomic.Pointer[handler]
	sequence atomic.Uint64
}

func (b *promptBroker) attach(h handler) { b.h.Store(&h) }

func (b *promptBroker) publish(m *nats.Msg) error {
	(*b.h.Load()).acked(m, &jetstream.PubAck{Stream: testStream, Sequence: b.sequence.Add(1)})
	return nil
}

func (b *promptBroker) publishMember(*nats.Msg) error {
	b.sequence.Add(1)
	return nil
}

func (b *promptBroker) leaderRead(context.Context, string, leaderRequest) (*record, error) {
	return nil, nil
}

func (b *promptBroker) MaxPayload() int64 { return 1 << 20 }

// BenchmarkPublish is the way of a change through the publisher, from Publish to the call of Done, with the encoder and a
// ledger and without a broker.
func BenchmarkPublish(b *testing.B) {
	for _, objects := range []int{10, 10000} {
		b.Run(fmt.Sprint(objects, " objects"), func(b *testing.B) {
			p := New(Options{
				Stream: testStream, MaxMsgSize: -1, Scheme: testScheme, Encoder: testEncoder(b, 7), Ledger: newTestLedger(), Epoch: 7,
				MaxPending: 2048, MaxPendingBytes: 64 << 20, Metrics: newTestMetrics(), Log: slog.New(slog.DiscardHandler),
			})
			p.broker = &promptBroker{}
			ctx, cancel := context.WithCancel(context.Background())
			var running sync.WaitGroup
			running.Go(func() { p.Run(ctx) })
			names := make([]string, objects)
			for i := range names {
				names[i] = fmt.Sprintf("web-%05d", i)
			}
			const waiting = 1024 // at once
			room := make(chan struct{}, waiting)
			done := func() { <-room }
			i := 0
			b.ReportAllocs()
			for b.Loop() {
				room <- struct{}{}
				i++
				name := names[i%objects]
				c := pod(change.OpModified, name, name, i)
				c.Done = done
				p.Publish(c)
			}
			if left := p.Flush(ctx); left != 0 {
				b.Errorf("%d changes were not published", left)
			}
			cancel()
			running.Wait()
		})
	}
}
