// Package bridge is the straight line from an API server's watch to a stream's acknowledgement, and the life around it:
//
//	watch bytes ─▶ frame scanner ─▶ gate ─▶ Reflector ─▶ FIFO ─▶ Indexer  internal/informer and client-go
//	            ─▶ processor ─▶ listener ─▶ change                        internal/informer
//	            ─▶ feed ─▶ bridge.take ─▶ per-object queue                        here, internal/publisher
//	            ─▶ decide against the ledger ─▶ encode ─▶ subject         internal/publisher, internal/message
//	            ─▶ JetStream (compare-and-set) ─▶ ack ─▶ ledger           internal/publisher, internal/checkpoint
//	            ─▶ position ─▶ watermark                                  here, internal/checkpoint
package bridge

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/deltabridge/deltabridge/internal/change"
	"github.com/deltabridge/deltabridge/internal/checkpoint"
	"github.com/deltabridge/deltabridge/internal/informer"
	"github.com/deltabridge/deltabridge/internal/publisher"
)

// Source follows the cluster and hands every change to the feeds it was made with.
type Source interface {
	// Run returns when the context has ended and the last change was handed over.
	Run(context.Context)
	// Overview tells how each selected resource is doing.
	Overview() informer.Overview
	// What a resync on request needs; informer.Manager says what each of them does.
	Targets(names []string, namespace string) ([]schema.GroupResource, error)
	Survey(ctx context.Context, s informer.Scope, run string, visit func(informer.Page) error) error
	Repeat(*change.Change) (bool, error)
	Missing(ctx context.Context, gr schema.GroupResource, k informer.Known, version string) (*change.Change, error)
}

// Publisher appends changes to the stream.
type Publisher interface {
	Run(context.Context)
	Publish(*change.Change)
	Flush(context.Context) int64
	Pending() (messages, bytes int64)
	Trouble() (publisher.Trouble, bool)
	Parked() map[string]string
	Fenced() <-chan struct{}
	// SetMaxMsgSize says that the stream's own limit has changed, SetBatches whether it takes atomic batches.
	SetMaxMsgSize(int64)
	SetBatches(bool)
}

// Broker is the connection to NATS and the stream on it.
type Broker interface {
	// Run keeps a connection until the context ends.
	Run(context.Context)
	// Err returns why there is no connection, nil if there is one.
	Err() error
	WaitConnected(context.Context) error
	// EnsureStream makes sure that the stream exists and fits.
	EnsureStream(context.Context) (publisher.StreamInfo, error)
	// Resume takes a new epoch and reads what the stream holds into a new ledger; it returns the publisher that goes on
	// from there. rewound says that the cluster was found to be behind what is published.
	Resume(ctx context.Context, stream publisher.StreamInfo, rewound bool) (Publisher, Resumed, error)
}

// Resumed says what Resume found.
type Resumed struct {
	Epoch      uint64
	Subjects   int // objects that the stream knows
	Foreign    []publisher.Foreign
	ClusterUID string // uid of the kube-system namespace, empty if it may not be read
	Checkpoint Checkpoint
}

// Metrics is what the bridge itself counts.
type Metrics interface {
	Received(gr schema.GroupResource, op string, seen time.Time)
	Gap(gr schema.GroupResource)
}

// Options configure a Bridge.
type Options struct {
	Broker Broker
	// NewSource makes the source of changes of one session.
	NewSource func(informer.Feeds) (Source, error)
	// Scope is what is published, and in which form.
	Scope checkpoint.Scope
	// WatermarkInterval is how often a position that has moved is written.
	WatermarkInterval time.Duration
	Metrics           Metrics
	// Elector is nil where no other process may run beside this one.
	Elector Elector
	// Grace bounds the drain.
	Grace time.Duration
	Log   *slog.Logger
}

// Bridge runs sessions. A session goes from knowing what the stream holds to the moment at which that knowledge is
// void: the stream was replaced by another, or the process stops. It is safe for concurrent use.
type Bridge struct {
	options Options
	log     *slog.Logger
	resyncs resyncs

	mu        sync.Mutex
	source    Source
	publisher Publisher
	positions *positions
	resumed   Resumed
	stream    publisher.StreamInfo
	phaseErr  map[string]error // by phase: what keeps the session from going on
	logged    map[string]failure
	draining  bool
	fenced    bool
}

// failure is the failure of a phase as it was last logged.
type failure struct {
	text string
	at   time.Time
}

// New returns a Bridge that does nothing until Run.
func New(o Options) *Bridge {
	return &Bridge{options: o, log: o.Log, phaseErr: map[string]error{}, logged: map[string]failure{}}
}

// errStreamReplaced ends a session: what was known of the stream is void.
var errStreamReplaced = errors.New("the stream is not the one that this session began with")

// errFenced ends the last session: another writer has taken over, and what this one still has, its successor publishes.
var errFenced = errors.New("another writer has taken over")

// errRewound ends a session: the cluster was restored from a backup, so that versions published before say nothing of
// what is newer.
var errRewound = errors.New("the API server is behind what was published")

// Run bridges until the context ends; it then stops the intake, publishes what is left for at most the grace period,
// and returns how many changes were left.
func (b *Bridge) Run(ctx context.Context) int64 {
	// Not ready from the first moment of the stop on, so that whoever asks has the time to turn away.
	defer context.AfterFunc(ctx, b.setDraining)()
	// The connection outlives the intake, so that what was taken can still be published.
	connection, disconnect := context.WithCancel(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	wg.Go(func() { b.options.Broker.Run(connection) })
	defer wg.Wait()
	defer disconnect()
	return b.lead(ctx)
}

// sessions runs one session after another until the context ends, or another writer has taken over and leader election
// says when to come back. The lease ends when nothing more may be sent; the context has then ended, too.
func (b *Bridge) sessions(ctx, lease context.Context) int64 {
	rewound := false
	rewinds := newBackoff()
	for {
		left, err := b.session(ctx, lease, rewound)
		rewound = errors.Is(err, errRewound)
		switch {
		case ctx.Err() != nil:
			return left
		case errors.Is(err, errFenced) && b.options.Elector != nil:
			b.log.Warn("another writer has taken over, stepping down")
			return left
		case errors.Is(err, errFenced):
			// It stays up, not ready, and says so: taking the next epoch would only start a tug of war.
			<-ctx.Done()
			return left
		case rewound: // said where it was found
			b.begin(nil, nil, nil)     // not ready from here on
			pause(ctx, rewinds.Step()) // longer each time, should it be found again and again
		case errors.Is(err, errStreamReplaced):
			b.log.Warn("stream was replaced, starting over from what it holds now")
		case err != nil:
			b.log.Error("session ended, starting over", "error", err)
			pause(ctx, time.Second)
		}
		b.begin(nil, nil, nil)
	}
}

// session runs from reading the stream to its replacement or the end of the context. It returns how many changes were
// not published. When the lease ends, the publisher stops at once, whatever is left, and also in the middle of a flush.
func (b *Bridge) session(ctx, lease context.Context, rewound bool) (int64, error) {
	p, resumed, err := b.resume(ctx, rewound)
	if err != nil {
		return 0, err
	}
	intake, stopIntake := context.WithCancelCause(ctx)
	defer stopIntake(nil)
	positions := &positions{
		checkpoint: resumed.Checkpoint, scope: b.options.Scope, clusterUID: resumed.ClusterUID,
		take: b.take(p), repeat: repeat(p), stop: stopIntake, log: b.log,
		stuck: func() bool {
			_, trouble := p.Trouble()
			return !trouble && len(p.Parked()) > 0
		},
		wake: make(chan struct{}, 1), resources: map[schema.GroupResource]*position{},
	}
	source, err := b.newSource(ctx, positions)
	if err != nil {
		return 0, err
	}
	b.begin(source, p, positions)
	b.resyncs.open(intake)

	// The order of the end is the reverse of the order of the start: intake, then publisher.
	publishing, stopPublishing := context.WithCancel(lease)
	defer stopPublishing()
	grace, endGrace := outlive(ctx, lease, b.options.Grace)
	defer endGrace()
	var publish, take sync.WaitGroup
	publish.Go(func() { p.Run(publishing) })
	take.Go(func() { source.Run(intake) })
	take.Go(func() { positions.run(intake, b.options.WatermarkInterval) })
	take.Go(func() { b.watchStream(intake, p, stopIntake) })
	take.Go(func() { b.watchPublisher(intake, p, stopIntake) })
	take.Wait()
	b.resyncs.wait()

	left := int64(0)
	switch cause := context.Cause(intake); {
	case errors.Is(cause, errFenced):
		b.setFenced()
		left, _ = p.Pending()
	case lease.Err() != nil:
		left, _ = p.Pending()
	case ctx.Err() != nil:
		b.setDraining()
		left = p.Flush(grace)
		positions.write(grace, false)
	}
	stopPublishing()
	publish.Wait()
	return left, context.Cause(intake)
}

// newSource makes the session's source of changes. It tries until it succeeds, for a file that a client needs may come
// later; an error means that the context has ended.
func (b *Bridge) newSource(ctx context.Context, feeds informer.Feeds) (Source, error) {
	backoff := newBackoff()
	for {
		source, err := b.options.NewSource(feeds)
		b.phase("informers", err)
		if err == nil {
			return source, nil
		}
		if !pause(ctx, backoff.Step()) {
			return nil, ctx.Err()
		}
	}
}

// outlive returns a context that ends the given time after ctx does, or with the lease.
func outlive(ctx, lease context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	late, cancel := context.WithCancel(lease)
	forget := context.AfterFunc(ctx, func() {
		pause(late, d)
		cancel()
	})
	return late, func() {
		forget()
		cancel()
	}
}

// take is where a change enters the line. It is called by an informer's listener and does not block.
func (b *Bridge) take(p Publisher) func(*change.Change) {
	return func(c *change.Change) {
		gr := c.Ref.GroupResource()
		b.options.Metrics.Received(gr, c.Op.String(), c.Seen)
		if !c.Gap.IsZero() {
			b.options.Metrics.Gap(gr)
		}
		p.Publish(c)
	}
}

// resume brings a session to the point at which changes can be taken: connected, with a stream that fits, an epoch of
// its own, and the ledger read. It tries until it succeeds or the context ends.
func (b *Bridge) resume(ctx context.Context, rewound bool) (Publisher, Resumed, error) {
	backoff := newBackoff()
	for {
		if err := b.options.Broker.WaitConnected(ctx); err != nil {
			return nil, Resumed{}, err
		}
		stream, err := b.options.Broker.EnsureStream(ctx)
		b.phase("stream", err)
		if err == nil {
			p, resumed, err := b.options.Broker.Resume(ctx, stream, rewound)
			b.phase("resume", err)
			if err == nil {
				b.resumedWith(stream, resumed)
				return p, resumed, nil
			}
		}
		if !pause(ctx, backoff.Step()) {
			return nil, Resumed{}, ctx.Err()
		}
	}
}

func (b *Bridge) resumedWith(stream publisher.StreamInfo, resumed Resumed) {
	for _, w := range stream.Warnings {
		b.log.Warn("stream weakens a guarantee", "warning", w)
	}
	for _, f := range resumed.Foreign {
		b.log.Error("message on one of our subjects is not ours and is not written over",
			"subject", f.Subject, "sequence", f.Sequence, "error", f.Err)
	}
	b.log.Info("publishing", "epoch", resumed.Epoch, "knownObjects", resumed.Subjects)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stream, b.resumed = stream, resumed
}

// streamPeriod is how often the stream is looked at. It finds what no append would: a stream that was replaced while
// nothing changes in the cluster.
const streamPeriod = 10 * time.Second

// watchStream ends the session when the stream has been replaced, and reports when it no longer fits.
func (b *Bridge) watchStream(ctx context.Context, p Publisher, stop context.CancelCauseFunc) {
	b.mu.Lock()
	created := b.stream.Created
	b.mu.Unlock()
	for pause(ctx, streamPeriod) {
		if b.options.Broker.Err() != nil {
			continue
		}
		info, err := b.options.Broker.EnsureStream(ctx)
		if ctx.Err() != nil {
			return
		}
		b.phase("stream", err)
		if err != nil {
			continue
		}
		if !info.Created.Equal(created) {
			stop(errStreamReplaced)
			return
		}
		p.SetMaxMsgSize(info.MaxMsgSize)
		p.SetBatches(info.Batches)
	}
}

// watchPublisher logs the publisher's trouble once it lasts, and its end; and stops the intake when another writer has
// taken over.
func (b *Bridge) watchPublisher(ctx context.Context, p Publisher, stop context.CancelCauseFunc) {
	logged := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.Fenced():
			stop(errFenced)
			return
		case <-time.After(time.Second):
		}
		trouble, ok := p.Trouble()
		switch {
		case ok && trouble.Reason != logged && time.Since(trouble.Since) > troublePatience:
			logged = trouble.Reason
			b.log.Warn("changes cannot be published, they are kept", "reason", trouble.Reason, "message", trouble.Message)
		case !ok && logged != "":
			logged = ""
			b.log.Info("changes are published again")
		}
	}
}

// troublePatience is how long trouble may last before it is logged and makes the bridge not ready. Shorter trouble is
// a stream's election or a reconnect.
const troublePatience = 5 * time.Second

func (b *Bridge) begin(source Source, p Publisher, positions *positions) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.source, b.publisher, b.positions = source, p, positions
}

func (b *Bridge) setFenced() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fenced = true
}

func (b *Bridge) setDraining() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.draining = true
}

// phaseLogPeriod is how often a phase whose failures have different texts is logged at most: a text may differ each time
// by a port, say.
const phaseLogPeriod = time.Minute

// phase records the outcome of a phase and logs a failure once.
func (b *Bridge) phase(name string, err error) {
	if errors.Is(err, context.Canceled) {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	last, failed := b.logged[name]
	if err == nil {
		if failed {
			b.log.Info("phase recovered", "phase", name)
		}
		delete(b.phaseErr, name)
		delete(b.logged, name)
		return
	}
	b.phaseErr[name] = err
	if !failed || (err.Error() != last.text && time.Since(last.at) >= phaseLogPeriod) {
		b.logged[name] = failure{text: err.Error(), at: time.Now()}
		b.log.Warn("not ready, trying again", "phase", name, "error", err)
	}
}
