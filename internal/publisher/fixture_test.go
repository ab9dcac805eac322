package publisher

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/deltabridge/deltabridge/internal/change"
	"github.com/deltabridge/deltabridge/internal/message"
)

var testScheme = message.Scheme{Prefix: "kube", Cluster: "test"}

const testStream = "KUBE"

func testEncoder(t testing.TB, epoch uint64) *message.Encoder {
	t.Helper()
	e, err := message.NewEncoder(message.Options{
		Scheme: testScheme, Stream: testStream, Secrets: message.SecretsPlain, Epoch: epoch,
	})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// testLedger is a ledger like the real one, which this package must not import.
type testLedger struct {
	mu      sync.Mutex
	entries map[string]change.Stored
}

func newTestLedger() *testLedger { return &testLedger{entries: map[string]change.Stored{}} }

func (l *testLedger) Get(subject string) (change.Stored, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s, ok := l.entries[subject]
	return s, ok
}

func (l *testLedger) Put(subject string, stored change.Stored) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if old, ok := l.entries[subject]; ok && old.Sequence > stored.Sequence {
		return
	}
	l.entries[subject] = stored
}

func (l *testLedger) Forget(subject string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.entries, subject)
}

// testMetrics counts.
type testMetrics struct {
	mu     sync.Mutex
	counts map[string]int
}

func newTestMetrics() *testMetrics { return &testMetrics{counts: map[string]int{}} }

func (m *testMetrics) add(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.counts[name]++
}

func (m *testMetrics) count(name string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.counts[name]
}

func (m *testMetrics) Published(_ schema.GroupResource, op string, _ time.Time, _ time.Duration) {
	m.add("published " + op)
}
func (m *testMetrics) Suppressed(_ schema.GroupResource, reason string) {
	m.add("suppressed " + reason)
}
func (m *testMetrics) Retried(code string)    { m.add("retried " + code) }
func (m *testMetrics) Oversize(action string) { m.add("oversize " + action) }
func (m *testMetrics) Fenced()                { m.add("fenced") }

// fixture is a publisher in front of a model.
type fixture struct {
	*Publisher
	broker  *modelBroker
	metrics *testMetrics
	ledger  *testLedger
	ran     chan struct{}
	stop    context.CancelFunc
}

func newFixture(t *testing.T, seed uint64, changes ...func(*Options)) *fixture {
	t.Helper()
	f := &fixture{broker: newModelBroker(t, seed), metrics: newTestMetrics(), ledger: newTestLedger()}
	o := Options{
		Stream: testStream, MaxMsgSize: -1, Scheme: testScheme, Encoder: testEncoder(t, 7), Ledger: f.ledger, Epoch: 7,
		MaxPending: 64, MaxPendingBytes: 64 << 20, Batches: true, Metrics: f.metrics, Log: slog.New(slog.DiscardHandler),
	}
	for _, c := range changes {
		c(&o)
	}
	f.Publisher = New(o)
	f.Publisher.broker = f.broker
	return f
}

// start runs the publisher until the test's end.
func (f *fixture) start(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	f.stop, f.ran = cancel, make(chan struct{})
	go func() {
		defer close(f.ran)
		f.Run(ctx)
	}()
	t.Cleanup(f.end)
}

func (f *fixture) end() {
	f.stop()
	<-f.ran
}

// flush waits until everything is done, and fails the test if that takes longer than an hour.
func (f *fixture) flush(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	if left := f.Flush(ctx); left != 0 {
		t.Errorf("%d changes are stuck; parked: %v", left, f.Parked())
		for _, s := range f.shards {
			for subject, o := range s.objects {
				t.Errorf("shard %d: %s: queue %d, queued %v, in flight %v, reading %d, delayed %v",
					s.index, subject, len(o.queue), o.queued, o.flight != nil, o.reading, o.index >= 0)
			}
		}
	}
}

// atRest fails the test if the publisher, with nothing to do, still holds something.
func (f *fixture) atRest(t *testing.T) {
	t.Helper()
	synctest.Wait()
	for _, s := range f.shards {
		if len(s.objects) != 0 || s.ready.len() != 0 || s.flights.first != nil || s.flights.last != nil || len(s.delayed) != 0 ||
			s.inFlight != 0 || s.inFlightBytes != 0 || s.reading != 0 || s.denied != 0 {
			t.Errorf("shard %d is not at rest: %d objects, %d ready, %d delayed, %d in flight (%d bytes), %d reading, %d denied",
				s.index, len(s.objects), s.ready.len(), len(s.delayed), s.inFlight, s.inFlightBytes, s.reading, s.denied)
		}
	}
	if messages, bytes := f.Pending(); messages != 0 || bytes != 0 {
		t.Errorf("pending: %d changes, %d bytes", messages, bytes)
	}
	if trouble, ok := f.Trouble(); ok {
		t.Errorf("trouble remains: %+v", trouble)
	}
	if parked := f.Parked(); len(parked) > 0 {
		t.Errorf("parked remain: %v", parked)
	}
}

var podGVK = schema.GroupVersionKind{Version: "v1", Kind: "Pod"}

// pod returns a change of a pod, with a body unless it is a deletion that nobody watched.
func pod(op change.Op, name, uid string, rv int) *change.Change {
	c := &change.Change{
		Op: op, Reason: change.ReasonWatch, GVK: podGVK, UID: types.UID(uid), RV: strconv.Itoa(rv), Seen: time.Now(),
		Ref: change.ObjectRef{Resource: "pods", Namespace: "default", Name: name},
	}
	c.Raw = fmt.Appendf(nil, `{"kind":"Pod","apiVersion":"v1","metadata":{"name":%q,"namespace":"default","uid":%q,"resourceVersion":"%d"},"spec":{}}`, name, uid, rv)
	return c
}

func podSubject(name string) string {
	return testScheme.Subject(change.ObjectRef{Resource: "pods", Namespace: "default", Name: name})
}

func equalHistory(t *testing.T, f *fixture, name string, want ...string) {
	t.Helper()
	if got := f.broker.history(podSubject(name)); !slices.Equal(got, want) {
		t.Errorf("%s: stored %q, want %q", name, got, want)
	}
}

// lineCounter is a log that counts its lines.
type lineCounter struct{ n atomic.Int64 }

func (l *lineCounter) Write(b []byte) (int, error) {
	l.n.Add(1)
	return len(b), nil
}

func (l *lineCounter) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }
