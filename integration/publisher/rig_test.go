// Package publisher tests the bridge's publisher against real NATS servers, and against a proxy in front of one that loses
// what a script says.
package publisher

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/deltabridge/deltabridge/integration/check"
	"github.com/deltabridge/deltabridge/integration/harness"
	"github.com/deltabridge/deltabridge/internal/change"
	"github.com/deltabridge/deltabridge/internal/checkpoint"
	"github.com/deltabridge/deltabridge/internal/message"
	"github.com/deltabridge/deltabridge/internal/publisher"
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }

const (
	stream  = "KUBE"
	prefix  = "kube"
	cluster = "main"
)

var scheme = message.Scheme{Prefix: prefix, Cluster: cluster}

// metrics counts what the publisher reports.
type metrics struct {
	mu     sync.Mutex
	counts map[string]int
}

func (m *metrics) add(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.counts[name]++
}

func (m *metrics) count(name string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.counts[name]
}

// sum returns the sum of the counts whose names begin with a text.
func (m *metrics) sum(beginning string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := 0
	for name, count := range m.counts {
		if strings.HasPrefix(name, beginning) {
			n += count
		}
	}
	return n
}

func (m *metrics) Published(_ schema.GroupResource, op string, _ time.Time, _ time.Duration) {
	m.add("published " + op)
}
func (m *metrics) Suppressed(_ schema.GroupResource, reason string) { m.add("suppressed " + reason) }
func (m *metrics) Retried(code string)                              { m.add("retried " + code) }
func (m *metrics) Oversize(action string)                           { m.add("oversize " + action) }
func (m *metrics) Fenced()                                          { m.add("fenced") }

// setup is what a publisher is made with; its zero value is right for most tests.
type setup struct {
	urls       []string
	user       string // its password is the same
	pending    int
	bytes      int64
	maxMsgSize int64
	structured bool
	options    publisher.StreamOptions
	holder     string
	keepStream bool // the stream is there, and not looked at
}

// rig is a publisher as the bridge runs it, from the stream's check to the ledger.
type rig struct {
	*publisher.Publisher
	conn     *publisher.Conn
	encoder  *message.Encoder
	ledger   *checkpoint.Ledger
	metrics  *metrics
	epoch    uint64
	subjects int
	foreign  []publisher.Foreign
	stop     func()
}

// connect runs a connection until the test's end, or until stop.
func connect(t testing.TB, s setup) (conn *publisher.Conn, stop func()) {
	t.Helper()
	conn = publisher.NewConn(publisher.ConnOptions{
		URLs: s.urls, Name: "test", User: s.user, Password: s.user, MaxPending: max(s.pending, 1),
	}, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { conn.Run(ctx) })
	stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
	})
	t.Cleanup(stop)
	wait, done := context.WithTimeout(t.Context(), harness.Patience)
	defer done()
	if err := conn.WaitConnected(wait); err != nil {
		t.Fatalf("connect: %v: %v", err, conn.Err())
	}
	return conn, stop
}

func streamOptions() publisher.StreamOptions {
	return publisher.StreamOptions{
		Name: stream, Mode: publisher.StreamCreate, Subjects: []string{prefix + ".>"},
		Needs: []string{scheme.WriterSubject(), scheme.All()}, Replicas: 1, Storage: jetstream.MemoryStorage,
		History: -1, MaxBytes: -1,
	}
}

// start makes a publisher and runs it until the test's end, or until stop.
func start(t testing.TB, s setup) *rig {
	t.Helper()
	if s.pending == 0 {
		s.pending = 2048
	}
	if s.bytes == 0 {
		s.bytes = 64 << 20
	}
	if s.options.Name == "" {
		s.options = streamOptions()
	}
	if s.holder == "" {
		s.holder = fmt.Sprintf("%s_%d", t.Name(), rand.Int64())
	}
	r := &rig{ledger: checkpoint.NewLedger(), metrics: &metrics{counts: map[string]int{}}}
	var disconnect func()
	r.conn, disconnect = connect(t, s)
	size := int64(-1)
	if !s.keepStream {
		info, err := publisher.EnsureStream(t.Context(), r.conn, s.options)
		if err != nil {
			t.Fatalf("make the stream: %v", err)
		}
		size = info.MaxMsgSize
	}
	if s.maxMsgSize != 0 {
		size = s.maxMsgSize
	}
	var err error
	r.encoder, err = message.NewEncoder(message.Options{
		Scheme: scheme, Stream: stream, Structured: s.structured, Secrets: message.SecretsOmit,
	})
	if err != nil {
		t.Fatal(err)
	}
	r.epoch, err = takeEpoch(t, r.conn, r.encoder, s.holder)
	if err != nil {
		t.Fatalf("take an epoch: %v", err)
	}
	r.encoder.SetEpoch(r.epoch)
	r.subjects, r.foreign, err = publisher.ReadLedger(t.Context(), r.conn, stream, scheme, r.ledger)
	if err != nil {
		t.Fatalf("read the ledger: %v", err)
	}
	r.Publisher = publisher.New(publisher.Options{
		Conn: r.conn, Stream: stream, MaxMsgSize: size, Scheme: scheme, Encoder: r.encoder, Ledger: r.ledger,
		Epoch: r.epoch, MaxPending: s.pending, MaxPendingBytes: s.bytes, Batches: true, Metrics: r.metrics,
		Log: slog.New(slog.DiscardHandler),
	})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { r.Run(ctx) })
	r.stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
		disconnect()
	})
	t.Cleanup(r.stop)
	return r
}

func takeEpoch(t testing.TB, conn *publisher.Conn, encoder *message.Encoder, holder string) (uint64, error) {
	return publisher.AppendWriterRecord(t.Context(), conn, stream, scheme.WriterSubject(),
		func(_ message.WriterRecord, epoch, expectedLastSeq uint64) (*message.Message, error) {
			return encoder.EncodeWriter(message.WriterRecord{
				Epoch: epoch, Holder: holder, ClusterUID: "uid", Time: time.Now(),
			}, expectedLastSeq)
		})
}

// flush waits until everything is published and fails the test if that does not happen.
func (r *rig) flush(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), harness.Patience)
	defer cancel()
	if left := r.Flush(ctx); left > 0 {
		trouble, _ := r.Trouble()
		t.Fatalf("%d changes are left; trouble %+v, parked %v, connection %v", left, trouble, r.Parked(), r.conn.Err())
	}
}

// world makes changes of pods as a cluster would.
type world struct {
	rng     *rand.Rand
	rv      int
	uids    int
	padding string
	live    map[string]string // uids
	all     []*change.Change
}

func newWorld(seed uint64, padding int) *world {
	return &world{rng: rand.New(rand.NewPCG(seed, 1)), rv: 100, live: map[string]string{}, padding: strings.Repeat("x", padding)}
}

func (w *world) change(op change.Op, name, uid string) *change.Change {
	w.rv++
	c := &change.Change{
		Op: op, Reason: change.ReasonWatch, Ref: change.ObjectRef{Resource: "pods", Namespace: "default", Name: name},
		GVK: schema.GroupVersionKind{Version: "v1", Kind: "Pod"}, UID: types.UID(uid), RV: strconv.Itoa(w.rv), Seen: time.Now(),
	}
	c.Raw = fmt.Appendf(nil, `{"kind":"Pod","apiVersion":"v1","metadata":{"name":%q,"namespace":"default","uid":%q,"resourceVersion":%q},"spec":{"padding":%q}}`,
		name, uid, c.RV, w.padding)
	w.all = append(w.all, c)
	return c
}

// touch creates or modifies an object.
func (w *world) touch(name string) *change.Change {
	uid, live := w.live[name]
	if live {
		return w.change(change.OpModified, name, uid)
	}
	w.uids++
	uid = fmt.Sprintf("uid-%d", w.uids)
	w.live[name] = uid
	return w.change(change.OpAdded, name, uid)
}

func (w *world) remove(name string) *change.Change {
	uid := w.live[name]
	delete(w.live, name)
	return w.change(change.OpDeleted, name, uid)
}

// happen touches or, now and then, removes an object.
func (w *world) happen(name string) *change.Change {
	if _, live := w.live[name]; live && w.rng.IntN(10) == 0 {
		return w.remove(name)
	}
	return w.touch(name)
}

func subject(name string) string {
	return scheme.Subject(change.ObjectRef{Resource: "pods", Namespace: "default", Name: name})
}

func object(name string) check.Object {
	return check.Object{Resource: "pods", Namespace: "default", Name: name}
}

// read reads the stream back.
func read(t testing.TB, js jetstream.JetStream) *check.Stream {
	t.Helper()
	s, err := check.Read(t.Context(), js, stream, prefix, cluster)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// require reads the stream back and checks it, and that it has all that happened, once.
func (w *world) require(t testing.TB, js jetstream.JetStream) *check.Stream {
	t.Helper()
	s := read(t, js)
	report := s.Verify()
	report.Require(t)
	times := map[string]int{}
	for _, m := range s.Objects("") {
		key := m.UID + "/" + m.RV
		times[key]++
	}
	lost := 0
	for _, c := range w.all {
		if times[string(c.UID)+"/"+c.RV] != 1 {
			lost++
			if lost < 5 {
				t.Errorf("%s of %s, %s/%s, is stored %d times", c.Op, c.Ref, c.UID, c.RV, times[string(c.UID)+"/"+c.RV])
			}
		}
	}
	if lost > 0 || len(times) != len(w.all) {
		t.Fatalf("%d of %d changes are not stored exactly once; the stream has %d", lost, len(w.all), len(times))
	}
	return s
}

// story returns what the stream says of an object: "added 101".
func story(s *check.Stream, name string) []string {
	var out []string
	for _, m := range s.History(object(name)) {
		out = append(out, m.Kind+" "+m.RV)
	}
	return out
}

func requireStory(t testing.TB, s *check.Stream, name string, want ...string) {
	t.Helper()
	if got := story(s, name); strings.Join(got, ", ") != strings.Join(want, ", ") {
		t.Errorf("the messages about %s are %q, want %q", name, got, want)
	}
}
