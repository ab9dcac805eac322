// Package publisher appends changes to a JetStream stream: in order for each object, once each, and never by guess.
//
// What makes it so is compare-and-set. Each append names the sequence of the message that the publisher knows as the
// subject's last, and the broker refuses it if that is not so. An append whose outcome is unknown is sent again, byte
// for byte the same; whichever copy arrives first is stored, and the other is refused or recognised by its id.
//
// Objects are spread over shards by subject. A shard is one goroutine that owns the state of its objects; everything
// reaches it as events, so that there is nothing to lock and nothing that callbacks could block on.
package publisher

import (
	"context"
	"hash/maphash"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/deltabridge/deltabridge/internal/change"
	"github.com/deltabridge/deltabridge/internal/message"
)

// Encoder turns changes into messages. It must be safe for concurrent use.
type Encoder interface {
	// Reduce returns the message for a change that follows the message with the given sequence on its subject, zero for
	// none, with as much of the object as the level says.
	Reduce(c *change.Change, expectedLastSeq uint64, level message.Level) (*message.Message, error)
}

// Metrics is what the publisher counts. Its methods must not block.
type Metrics interface {
	Published(gr schema.GroupResource, op string, seen time.Time, took time.Duration)
	Suppressed(gr schema.GroupResource, reason string)
	Retried(code string)
	Oversize(action string)
	Fenced()
}

// Options configure a Publisher.
type Options struct {
	Conn       *Conn
	Stream     string
	MaxMsgSize int64 // the stream's own limit in bytes, -1 for none; see SetMaxMsgSize
	Scheme     message.Scheme
	Encoder    Encoder
	Ledger     Ledger
	Epoch      uint64
	// Rewound is the first epoch of the cluster's present history, zero if it has only one; see message.WriterRecord.
	Rewound uint64
	// Batches says that the stream takes atomic batches; see SetBatches.
	Batches bool
	// MaxPending bounds the appends in flight; MaxPendingBytes their size. A message larger than that goes alone.
	MaxPending      int
	MaxPendingBytes int64
	Metrics         Metrics
	Log             *slog.Logger
}

// broker is what the shards need of the connection to NATS.
type broker interface {
	// publish hands a message to the client. The outcome comes to the handler with the same pointer, at most once and
	// perhaps never: a connection that closes takes what was under way with it.
	publish(m *nats.Msg) error
	// publishMember hands a message to the client that is a part of an atomic batch and not its last. Nothing tells of its
	// outcome but that of the batch.
	publishMember(m *nats.Msg) error
	// leaderRead reads a message at the stream's leader, nil if there is none.
	leaderRead(ctx context.Context, stream string, request leaderRequest) (*record, error)
	// MaxPayload is the largest message that the server takes, zero if that is not known.
	MaxPayload() int64
	// attach makes h the one to be told of outcomes; nil ends it.
	attach(h handler)
}

// Publisher appends changes to a stream. Make it with New, start it with Run.
type Publisher struct {
	options    Options
	broker     broker
	shards     []*shard
	seed       maphash.Seed
	readers    chan struct{} // bounds the reads of the stream's leader under way
	reads      sync.WaitGroup
	ctx        context.Context // ends the reads; set by Run
	maxMsgSize atomic.Int64
	batches    atomic.Bool

	pending      atomic.Int64 // changes accepted and not done
	pendingBytes atomic.Int64 // their objects' size
	idle         chan struct{}

	fenced     chan struct{}
	fencedOnce sync.Once

	mu      sync.Mutex
	trouble map[int]Trouble // by shard
	parked  map[string]string
}

// Trouble is why nothing, or not all, can be published at the moment.
type Trouble struct {
	// Reason is short and constant: disconnected, timeout, unavailable, no-stream, no-permission, stream-full,
	// no-resources, overloaded, refused.
	Reason  string
	Message string // in words for a user
	Since   time.Time
}

const (
	// maxShards bounds the shards; a shard more than there are cores gains nothing.
	maxShards = 4
	// shardBytes is the least of MaxPendingBytes that a shard is given. It is above what servers usually take as one
	// message, so that messages that go alone, one in each shard, stay within the bound together.
	shardBytes = 8 << 20
)

// New returns a Publisher that takes changes at once and appends them when it runs.
func New(o Options) *Publisher {
	p := &Publisher{
		options: o,
		broker:  o.Conn,
		seed:    maphash.MakeSeed(),
		readers: make(chan struct{}, 64),
		idle:    make(chan struct{}, 1),
		fenced:  make(chan struct{}),
		trouble: map[int]Trouble{},
		parked:  map[string]string{},
	}
	p.maxMsgSize.Store(o.MaxMsgSize)
	p.batches.Store(o.Batches)
	n := max(1, min(maxShards, runtime.GOMAXPROCS(0), o.MaxPending, int(o.MaxPendingBytes/shardBytes)))
	for i := range n {
		p.shards = append(p.shards, newShard(p, i, max(1, o.MaxPending/n), max(1, o.MaxPendingBytes/int64(n))))
	}
	return p
}

// Run appends until the context ends, and returns when its goroutines have. Changes that are not done by then are
// dropped from memory; what was stored of them is in the stream, and the rest is found by comparing again.
func (p *Publisher) Run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	p.ctx = ctx
	p.broker.attach(p)
	defer p.broker.attach(nil)
	var wg sync.WaitGroup
	for _, s := range p.shards {
		wg.Go(func() { s.run(ctx) })
	}
	wg.Wait()
	p.reads.Wait()
}

// Publish accepts a change. It does not block. Changes of one object must come in order, from one goroutine at a time.
func (p *Publisher) Publish(c *change.Change) {
	p.pending.Add(1)
	p.pendingBytes.Add(int64(len(c.Raw)))
	subject := p.options.Scheme.Subject(c.Ref)
	p.shard(subject).post(event{kind: evChange, subject: subject, change: c})
}

// SetMaxMsgSize says that the stream's own limit has changed, -1 for none. A limit that is too low makes messages smaller
// than they need be; one that is too high costs an attempt that the broker refuses.
func (p *Publisher) SetMaxMsgSize(size int64) { p.maxMsgSize.Store(size) }

// SetBatches says whether the stream takes atomic batches. If it is wrong, that costs an attempt that the broker refuses.
func (p *Publisher) SetBatches(on bool) { p.batches.Store(on) }

// Pending returns how many changes are accepted and not done, and the size of their objects in bytes.
func (p *Publisher) Pending() (messages, bytes int64) { return p.pending.Load(), p.pendingBytes.Load() }

// Flush blocks until every accepted change is done, the context ends, or another writer has taken over, after which
// nothing more is sent; it returns how many changes are left. One caller at a time may wait.
func (p *Publisher) Flush(ctx context.Context) int64 {
	for {
		left := p.pending.Load()
		if left == 0 {
			return 0
		}
		select {
		case <-ctx.Done():
			return left
		case <-p.fenced:
			return left
		case <-p.idle:
		}
	}
}

// Fenced is closed when the publisher has met a message of a newer epoch: another writer has taken over, and this one
// sends nothing more.
func (p *Publisher) Fenced() <-chan struct{} { return p.fenced }

func (p *Publisher) fence() {
	p.fencedOnce.Do(func() {
		close(p.fenced)
		p.options.Metrics.Fenced()
	})
}

func (p *Publisher) isFenced() bool {
	select {
	case <-p.fenced:
		return true
	default:
		return false
	}
}

// Trouble returns what has kept the publisher from publishing for the longest; false if all is well.
func (p *Publisher) Trouble() (Trouble, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var worst Trouble
	for _, t := range p.trouble {
		if worst.Reason == "" || t.Since.Before(worst.Since) {
			worst = t
		}
	}
	return worst, worst.Reason != ""
}

// Parked returns the objects that cannot be published for a reason of their own, by subject.
func (p *Publisher) Parked() map[string]string {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make(map[string]string, len(p.parked))
	for subject, why := range p.parked {
		out[subject] = why
	}
	return out
}

// setTrouble records a shard's trouble; the time of the first occurrence stays until the shard is out of it.
func (p *Publisher) setTrouble(shard int, reason, text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	t, ok := p.trouble[shard]
	if !ok {
		t.Since = time.Now()
	}
	t.Reason, t.Message = reason, text
	p.trouble[shard] = t
}

func (p *Publisher) clearTrouble(shard int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.trouble, shard)
}

// parkedLogged is how many parked objects are logged one by one; /statusz and Parked name all.
const parkedLogged = 10

// reportParked records why an object cannot be published, and logs the first ones.
func (p *Publisher) reportParked(subject, why string) {
	p.mu.Lock()
	_, had := p.parked[subject]
	p.parked[subject] = why
	n := len(p.parked)
	p.mu.Unlock()
	switch {
	case had || n > parkedLogged:
	case n == parkedLogged:
		p.options.Log.Error("object cannot be published, as more and more; the next ones are not logged", "subject", subject, "error", why)
	default:
		p.options.Log.Error("object cannot be published, others are not affected", "subject", subject, "error", why)
	}
}

func (p *Publisher) clearParked(subject string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.parked, subject)
}

// done finishes a change.
func (p *Publisher) done(c *change.Change) {
	p.pendingBytes.Add(-int64(len(c.Raw)))
	if p.pending.Add(-1) == 0 {
		select {
		case p.idle <- struct{}{}:
		default:
		}
	}
	if c.Done != nil {
		c.Done()
	}
}

func (p *Publisher) shard(subject string) *shard {
	return p.shards[maphash.String(p.seed, subject)%uint64(len(p.shards))]
}

var _ handler = (*Publisher)(nil)

// acked and failed are called by the NATS client for each append, on its goroutines.
func (p *Publisher) acked(m *nats.Msg, ack *jetstream.PubAck) {
	p.shard(m.Subject).post(event{kind: evAck, msg: m, ack: ack})
}

func (p *Publisher) failed(m *nats.Msg, err error) {
	p.shard(m.Subject).post(event{kind: evFail, msg: m, err: err})
}

// denied is called when the server has refused us to publish on a subject. It drops such a message without a word, so
// that nothing else tells of the append's end.
func (p *Publisher) denied(subject string) {
	p.shard(subject).post(event{kind: evDenied, subject: subject})
}

// wake is called when a connection came back.
func (p *Publisher) wake() {
	for _, s := range p.shards {
		s.post(event{kind: evWake})
	}
}

// read fetches a message from the stream's leader and posts the outcome to the object's shard.
func (p *Publisher) read(s *shard, o *object, request leaderRequest) {
	p.reads.Go(func() {
		select {
		case p.readers <- struct{}{}:
			defer func() { <-p.readers }()
		case <-p.ctx.Done():
			return
		}
		r, err := p.broker.leaderRead(p.ctx, p.options.Stream, request)
		s.post(event{kind: evRead, object: o, record: r, err: err})
	})
}

// limit returns the largest message that client, server and stream take, in bytes, header block included.
func (p *Publisher) limit() int64 {
	limit := p.broker.MaxPayload()
	if size := p.maxMsgSize.Load(); size >= 0 && (limit <= 0 || size < limit) {
		limit = size
	}
	return limit
}
