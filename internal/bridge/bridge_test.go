package bridge_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/deltabridge/deltabridge/internal/bridge"
	"github.com/deltabridge/deltabridge/internal/change"
	"github.com/deltabridge/deltabridge/internal/informer"
	"github.com/deltabridge/deltabridge/internal/publisher"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// events records what happens in which order.
type events struct {
	mu   sync.Mutex
	list []string
}

func (e *events) add(name string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.list = append(e.list, name)
}

func (e *events) String() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return strings.Join(e.list, " ")
}

// broker is a Broker whose answers are set by the test.
type broker struct {
	events *events
	mu     sync.Mutex
	stream func() (publisher.StreamInfo, error)
	resume func() error
	conn   error
	pubs   []*fakePublisher
	flush  func(context.Context) int64

	checkpoint fakeCheckpoint
	rewound    []bool // what each session was told
}

func (b *broker) Run(ctx context.Context) {
	<-ctx.Done()
	b.events.add("disconnected")
}

func (b *broker) Err() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.conn
}

func (b *broker) WaitConnected(ctx context.Context) error { return ctx.Err() }

func (b *broker) EnsureStream(context.Context) (publisher.StreamInfo, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.stream()
}

func (b *broker) Resume(_ context.Context, _ publisher.StreamInfo, rewound bool) (bridge.Publisher, bridge.Resumed, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.resume != nil {
		if err := b.resume(); err != nil {
			return nil, bridge.Resumed{}, err
		}
	}
	p := &fakePublisher{events: b.events, fenced: make(chan struct{}), flush: b.flush}
	b.pubs = append(b.pubs, p)
	b.rewound = append(b.rewound, rewound)
	return p, bridge.Resumed{Epoch: uint64(len(b.pubs)), Subjects: 3, ClusterUID: "c1", Checkpoint: &b.checkpoint}, nil
}

func (b *broker) last() *fakePublisher {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.pubs[len(b.pubs)-1]
}

func (b *broker) set(f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f()
}

type fakePublisher struct {
	events *events
	fenced chan struct{}
	flush  func(context.Context) int64

	mu      sync.Mutex
	taken   []*change.Change
	trouble publisher.Trouble
	parked  map[string]string
	maxSize int64

	messages, bytes int64 // that wait, beside the two that always do
}

func (p *fakePublisher) Run(ctx context.Context) {
	<-ctx.Done()
	p.events.add("publisher-stopped")
}

func (p *fakePublisher) Publish(c *change.Change) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken = append(p.taken, c)
}

func (p *fakePublisher) Flush(ctx context.Context) int64 {
	p.events.add("flush")
	if p.flush == nil {
		return 0
	}
	return p.flush(ctx)
}

func (p *fakePublisher) Pending() (messages, bytes int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return 2 + p.messages, 10 + p.bytes
}

// load sets how much more waits.
func (p *fakePublisher) load(messages, bytes int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.messages, p.bytes = messages, bytes
}

// published returns what was taken so far.
func (p *fakePublisher) published() []*change.Change {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.taken)
}

func (p *fakePublisher) Trouble() (publisher.Trouble, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.trouble, p.trouble.Reason != ""
}

func (p *fakePublisher) Parked() map[string]string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.parked
}

func (p *fakePublisher) SetBatches(bool) {}

func (p *fakePublisher) SetMaxMsgSize(size int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.maxSize = size
}

func (p *fakePublisher) Fenced() <-chan struct{} { return p.fenced }

type source struct {
	events   *events
	feeds    informer.Feeds
	slow     time.Duration // how long the intake takes to stop
	mu       sync.Mutex
	overview informer.Overview
	resyncing
}

func (s *source) Run(ctx context.Context) {
	s.events.add("intake")
	<-ctx.Done()
	s.mu.Lock()
	slow := s.slow
	s.mu.Unlock()
	time.Sleep(slow)
	// What an informer still has when it is told to stop is handed on.
	_, feeds, err := s.feeds.Open(context.Background(), schema.GroupResource{Resource: "pods"}, 1)
	if err != nil {
		panic(err)
	}
	feeds[0].Take(&change.Change{Op: change.OpAdded, Ref: change.ObjectRef{Resource: "pods", Name: "last"}, Gap: change.Gap{From: "1", To: "2"}}, false)
	s.events.add("intake-stopped")
}

func (s *source) Overview() informer.Overview {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.overview
}

type metrics struct{ received, gaps int }

func (m *metrics) Received(schema.GroupResource, string, time.Time) { m.received++ }
func (m *metrics) Gap(schema.GroupResource)                         { m.gaps++ }

// world is a bridge over fakes.
type world struct {
	*bridge.Bridge
	events  *events
	broker  *broker
	metrics *metrics
	log     *logBuffer

	mu      sync.Mutex
	sources []*source
	refuse  error // what making a source fails with
}

// set changes the world under its lock.
func (w *world) set(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

// source returns the last one that was made, and how many were.
func (w *world) source() (s *source, made int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if made = len(w.sources); made > 0 {
		s = w.sources[made-1]
	}
	return s, made
}

// show sets what the source says of its resources.
func (w *world) show(o informer.Overview) {
	s, _ := w.source()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.overview = o
}

// logBuffer is a log that is read while it is written to.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

var created = time.Unix(1700000000, 0)

func newWorld() *world { return newWorldWith(nil) }

// newWorldWith is newWorld with an election; nil is none.
func newWorldWith(e bridge.Elector) *world {
	w := &world{events: &events{}, metrics: &metrics{}, log: &logBuffer{}}
	w.broker = &broker{events: w.events, stream: func() (publisher.StreamInfo, error) {
		return publisher.StreamInfo{Created: created, Warnings: []string{"max_age is set."}}, nil
	}}
	w.Bridge = bridge.New(bridge.Options{
		Broker: w.broker,
		NewSource: func(feeds informer.Feeds) (bridge.Source, error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			if w.refuse != nil {
				return nil, w.refuse
			}
			s := &source{events: w.events, feeds: feeds, overview: informer.Overview{Reached: true}}
			w.sources = append(w.sources, s)
			return s, nil
		},
		WatermarkInterval: 10 * time.Second,

		Metrics: w.metrics,
		Elector: e,
		Grace:   20 * time.Second,
		Log:     slog.New(slog.NewTextHandler(w.log, &slog.HandlerOptions{ReplaceAttr: withoutTime})),
	})
	return w
}

func withoutTime(_ []string, a slog.Attr) slog.Attr {
	if a.Key == slog.TimeKey {
		return slog.Attr{}
	}
	return a
}

// run runs the bridge in the bubble and returns how to stop it, which returns how many changes were left.
func (w *world) run() (stop func() int64) {
	ctx, cancel := context.WithCancel(context.Background())
	left := make(chan int64)
	go func() { left <- w.Run(ctx) }()
	synctest.Wait()
	return func() int64 {
		cancel()
		return <-left
	}
}

func (w *world) check(name string) bridge.Check {
	for _, c := range w.Ready() {
		if c.Name == name {
			return c
		}
	}
	return bridge.Check{Name: "none called " + name}
}

// rest lets time pass, and then everything that it set going.
func rest(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func TestStopIsTheReverseOfStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		stop := w.run()
		if s := w.Status(); !s.Ready || s.Epoch != 1 || s.Known != 3 || s.Pending.Messages != 2 {
			t.Errorf("status %+v", s)
		}
		if left := stop(); left != 0 {
			t.Errorf("%d changes left", left)
		}
		if want := "intake intake-stopped flush publisher-stopped disconnected"; w.events.String() != want {
			t.Errorf("order: %s\nwant:  %s", w.events, want)
		}
		if p := w.broker.last(); len(p.taken) != 1 || p.taken[0].Ref.Name != "last" || w.metrics.received != 1 || w.metrics.gaps != 1 {
			t.Errorf("what the informers handed over at the end: %v; received %d, gaps %d", p.taken, w.metrics.received, w.metrics.gaps)
		}
		if c := w.check("shutdown"); c.OK || w.Status().Ready {
			t.Errorf("ready while stopping: %+v", c)
		}
		if !strings.Contains(w.log.String(), "max_age is set.") {
			t.Errorf("the stream's warning is not logged:\n%s", w.log)
		}
	})
}

func TestDrainEndsWithTheGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.broker.flush = func(ctx context.Context) int64 {
			<-ctx.Done()
			return 41
		}
		stop := w.run()
		begin := time.Now()
		if left := stop(); left != 41 {
			t.Errorf("%d changes left, want 41", left)
		}
		if took := time.Since(begin); took != 20*time.Second {
			t.Errorf("the drain took %s, want the grace of 20s", took)
		}
	})
}

func TestPhasesAreRetriedAndLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		good := w.broker.stream
		w.broker.stream = func() (publisher.StreamInfo, error) { return publisher.StreamInfo{}, errors.New("stream has no room") }
		w.broker.resume = func() error { return errors.New("no permission to publish") }
		stop := w.run()
		rest(5 * time.Minute)
		if c := w.check("stream"); c.OK || c.Message != "stream has no room" {
			t.Errorf("check %+v", c)
		}
		if n := strings.Count(w.log.String(), "stream has no room"); n != 1 {
			t.Errorf("logged %d times:\n%s", n, w.log)
		}
		w.broker.set(func() { w.broker.stream = good })
		rest(time.Minute)
		if c := w.check("ledger"); c.OK || c.Message != "no permission to publish" || !w.check("stream").OK {
			t.Errorf("checks %+v", w.Ready())
		}
		w.broker.set(func() { w.broker.resume = nil })
		rest(time.Minute)
		if !w.Status().Ready {
			t.Errorf("not ready: %+v", w.Ready())
		}
		if n := strings.Count(w.log.String(), "phase recovered"); n != 2 {
			t.Errorf("recovery logged %d times:\n%s", n, w.log)
		}
		stop()
	})
}

func TestStopWhileAPhaseFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.broker.stream = func() (publisher.StreamInfo, error) { return publisher.StreamInfo{}, errors.New("no") }
		stop := w.run()
		rest(time.Minute)
		begin := time.Now()
		stop()
		if took := time.Since(begin); took > time.Second {
			t.Errorf("stopping took %s", took)
		}
	})
}

// A stream that was deleted and made again holds nothing of what was known.
func TestReplacedStreamStartsAnotherSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		stop := w.run()
		w.broker.set(func() {
			w.broker.stream = func() (publisher.StreamInfo, error) {
				return publisher.StreamInfo{Created: created.Add(time.Hour)}, nil
			}
		})
		rest(time.Minute)
		if _, made := w.source(); made != 2 || w.Status().Epoch != 2 || !w.Status().Ready {
			t.Errorf("%d sources, status %+v", made, w.Status())
		}
		if want := "intake intake-stopped publisher-stopped intake"; w.events.String() != want {
			t.Errorf("order: %s\nwant:  %s", w.events, want)
		}
		stop()
	})
}

// A stream that no longer fits makes the bridge unready, and no more than that.
func TestStreamThatNoLongerFits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		stop := w.run()
		good := w.broker.stream
		w.broker.set(func() {
			w.broker.stream = func() (publisher.StreamInfo, error) { return publisher.StreamInfo{}, errors.New("it is sealed") }
		})
		rest(time.Minute)
		if c := w.check("stream"); c.OK || c.Message != "it is sealed" {
			t.Errorf("check %+v", c)
		}
		w.broker.set(func() { w.broker.stream = good })
		rest(time.Minute)
		if _, made := w.source(); !w.Status().Ready || made != 1 {
			t.Errorf("%d sources, checks %+v", made, w.Ready())
		}
		stop()
	})
}

// The former writer stays up as what it is.
func TestFenced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		stop := w.run()
		if !w.Leader() {
			t.Error("not the writer at first")
		}
		close(w.broker.last().fenced)
		rest(10 * time.Minute)
		if c := w.check("publishing"); c.OK || !strings.Contains(c.Message, "another writer") {
			t.Errorf("check %+v", c)
		}
		if _, made := w.source(); w.Leader() || made != 1 {
			t.Errorf("leader %t, %d sources", w.Leader(), made)
		}
		if want := "intake intake-stopped publisher-stopped"; w.events.String() != want {
			t.Errorf("order: %s\nwant:  %s", w.events, want)
		}
		stop()
	})
}

func TestTroubleIsShownOnceItLasts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		stop := w.run()
		p := w.broker.last()
		trouble := func(tr publisher.Trouble) {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.trouble = tr
		}
		trouble(publisher.Trouble{Reason: "timeout", Message: "no answer", Since: time.Now()})
		rest(3 * time.Second)
		if !w.Status().Ready {
			t.Errorf("unready for what a reconnect takes: %+v", w.Ready())
		}
		rest(10 * time.Minute)
		if c := w.check("publishing"); c.OK || c.Message != "timeout: no answer" {
			t.Errorf("check %+v", c)
		}
		if s := w.Status(); s.Trouble == nil || s.Trouble.Reason != "timeout" {
			t.Errorf("status %+v", s)
		}
		trouble(publisher.Trouble{})
		rest(3 * time.Second)
		if !w.Status().Ready {
			t.Errorf("not ready: %+v", w.Ready())
		}
		for _, text := range []string{"changes cannot be published", "changes are published again"} {
			if n := strings.Count(w.log.String(), text); n != 1 {
				t.Errorf("%q logged %d times:\n%s", text, n, w.log)
			}
		}
		stop()
	})
}

func TestReadinessByResource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		stop := w.run()
		w.show(informer.Overview{Reached: true, Missing: []string{"widgets.example.com"}, Resources: []informer.ResourceStatus{
			{Resource: schema.GroupResource{Resource: "pods"}, Version: "v1", Status: informer.Status{State: informer.StateWatching, Synced: true, Settled: true, Objects: 2, Position: "9"}},
			{Resource: schema.GroupResource{Resource: "secrets"}, Version: "v1", Status: informer.Status{State: informer.StateForbidden, Settled: true, Verb: "list", Message: "secrets is forbidden"}},
		}})
		for name, want := range map[string]bridge.Check{
			"resource pods":                {OK: true, Message: "watching: 2 objects"},
			"resource secrets":             {OK: true, Message: "forbidden: list: secrets is forbidden"},
			"resource widgets.example.com": {OK: true, Message: "absent: the API server does not have it; it is followed once it does"},
			"kubernetes":                   {OK: true},
		} {
			want.Name = name
			if got := w.check(name); got != want {
				t.Errorf("%+v, want %+v", got, want)
			}
		}
		s := w.Status()
		if !s.Ready || len(s.Resources) != 2 || s.Resources[1].Verb != "list" || s.Resources[0].Position != "9" || len(s.Missing) != 1 {
			t.Errorf("status %+v", s)
		}
		w.show(informer.Overview{Reached: true, Resources: []informer.ResourceStatus{{Resource: schema.GroupResource{Resource: "pods"}, Status: informer.Status{State: informer.StateStarting}}}})
		if c := w.check("resource pods"); c.OK || w.Status().Ready {
			t.Errorf("ready before the first list: %+v", c)
		}
		stop()
	})
}
