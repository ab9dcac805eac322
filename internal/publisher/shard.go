package publisher

import (
	"container/heap"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/deltabridge/deltabridge/internal/change"
	"github.com/deltabridge/deltabridge/internal/message"
)

const (
	// holdMin and holdMax bound the pause between probes while the broker takes nothing.
	holdMin = 50 * time.Millisecond
	holdMax = 5 * time.Second
	// soon is the pause before the same message is sent again while the broker is busy with an earlier append.
	soon = 5 * time.Millisecond
	// soonAttempts is how often that is tried before the subject's last message is read instead.
	soonAttempts = 20
	// parkedRetry is how often an object that cannot be published for a reason of its own is tried again.
	parkedRetry = time.Minute
)

type eventKind uint8

const (
	evChange eventKind = iota // a change was accepted
	evAck                     // an append was answered with an acknowledgement
	evFail                    // an append was answered with an error, or not at all
	evRead                    // a read of the stream's leader has ended
	evWake                    // the connection came back
)

type event struct {
	kind    eventKind
	subject string
	change  *change.Change
	msg     *nats.Msg
	ack     *jetstream.PubAck
	err     error
	object  *object
	record  *record
}

// waiting is a change in an object's queue. Those that the publisher made itself are not counted and not reported.
type waiting struct {
	change *change.Change
	own    bool
}

// purpose says why a shard reads the stream for an object.
type purpose uint8

const (
	readNothing purpose = iota
	readLast            // another message is the subject's last: which?
	readBody            // a deletion without a body: the last known one
	readVerify          // an acknowledgement says duplicate: is that message still there?
)

// object is one object with changes that wait. It exists only while there are any; what outlasts it is in the ledger.
type object struct {
	subject string
	queue   []waiting

	// The append of the queue's head, once it is encoded. It is kept unchanged until its outcome is known, so that what
	// is sent again is byte for byte what was sent before.
	msg      *nats.Msg
	change   *change.Change // what msg says; the queue's head, or made of it
	id       string
	expected uint64
	size     int64
	sent     time.Time
	first    time.Time // when msg was sent first

	level    message.Level // how far the head had to be reduced
	again    bool          // the head's id must say again
	attempts int
	reading  purpose
	inFlight bool
	parked   bool      // set aside for a reason of its own
	queued   bool      // in the shard's ready list
	due      time.Time // when delayed: when to go on
	index    int       // in the heap of delayed objects, -1 if not there
}

// shard owns the objects whose subjects hash to it. Only its goroutine touches its fields, inbox apart.
type shard struct {
	p     *Publisher
	index int

	mu    sync.Mutex
	inbox []event
	woken chan struct{}

	objects map[string]*object
	flights map[*nats.Msg]*object
	ready   []*object // from head on: what can be sent, in order
	head    int
	delayed delayHeap

	inFlight      int
	inFlightBytes int64
	maxMessages   int
	maxBytes      int64
	window        int // how many may be in flight now; one while the broker takes nothing
	hold          time.Duration
	heldUntil     time.Time
	troubled      bool // a trouble is recorded for this shard
}

var publishOptions = []jetstream.PublishOpt{jetstream.WithRetryAttempts(0)} // retrying is ours

func newShard(p *Publisher, index, maxMessages int, maxBytes int64) *shard {
	return &shard{
		p:           p,
		index:       index,
		woken:       make(chan struct{}, 1),
		objects:     map[string]*object{},
		flights:     map[*nats.Msg]*object{},
		maxMessages: maxMessages,
		maxBytes:    maxBytes,
		window:      maxMessages,
	}
}

// post hands an event to the shard's goroutine. It does not block.
func (s *shard) post(e event) {
	s.mu.Lock()
	s.inbox = append(s.inbox, e)
	first := len(s.inbox) == 1
	s.mu.Unlock()
	if first {
		select {
		case s.woken <- struct{}{}:
		default:
		}
	}
}

func (s *shard) run(ctx context.Context) {
	var events []event
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		timer.Reset(s.nextDue())
		select {
		case <-ctx.Done():
			return
		case <-s.woken:
		case <-timer.C:
		}
		s.mu.Lock()
		events, s.inbox = s.inbox, events[:0]
		s.mu.Unlock()
		for i := range events {
			s.handle(&events[i])
			events[i] = event{}
		}
		s.wakeDelayed(time.Now())
		s.pump()
	}
}

// nextDue returns how long the shard may sleep when nothing reaches it.
func (s *shard) nextDue() time.Duration {
	next := time.Hour
	if len(s.delayed) > 0 {
		next = min(next, time.Until(s.delayed[0].due))
	}
	if s.head < len(s.ready) && !s.heldUntil.IsZero() {
		next = min(next, time.Until(s.heldUntil))
	}
	return max(next, 0)
}

func (s *shard) handle(e *event) {
	switch e.kind {
	case evChange:
		o := s.objects[e.subject]
		if o == nil {
			o = &object{subject: e.subject, index: -1}
			s.objects[e.subject] = o
		}
		o.queue = append(o.queue, waiting{change: e.change})
		if len(o.queue) == 1 {
			s.makeReady(o)
		}
	case evAck:
		if o := s.landed(e.msg); o != nil {
			s.acked(o, e.ack)
		}
	case evFail:
		if o := s.landed(e.msg); o != nil {
			s.failed(o, e.err)
		}
	case evRead:
		s.read(e.object, e.record, e.err)
	case evWake:
		s.heldUntil, s.hold = time.Time{}, 0
	}
}

// landed takes an append out of the flight list; nil if it is not there, being of an earlier connection.
func (s *shard) landed(m *nats.Msg) *object {
	o := s.flights[m]
	if o == nil {
		return nil
	}
	delete(s.flights, m)
	o.inFlight = false
	s.inFlight--
	s.inFlightBytes -= o.size
	return o
}

func (s *shard) makeReady(o *object) {
	if !o.queued {
		o.queued = true
		s.ready = append(s.ready, o)
	}
}

func (s *shard) delay(o *object, d time.Duration) {
	o.due = time.Now().Add(jitter(d))
	heap.Push(&s.delayed, o)
}

func (s *shard) wakeDelayed(now time.Time) {
	for len(s.delayed) > 0 && !s.delayed[0].due.After(now) {
		s.makeReady(heap.Pop(&s.delayed).(*object))
	}
}

// pump sends what is ready while the window has room.
func (s *shard) pump() {
	if s.p.isFenced() {
		return
	}
	if !s.heldUntil.IsZero() {
		if time.Now().Before(s.heldUntil) {
			return
		}
		s.heldUntil = time.Time{}
	}
	for s.head < len(s.ready) && s.inFlight < s.window && s.heldUntil.IsZero() {
		o := s.ready[s.head]
		o.queued = false
		if !s.step(o) {
			o.queued = true
			break
		}
		s.ready[s.head] = nil
		s.head++
	}
	if s.head > len(s.ready)/2 {
		rest := copy(s.ready, s.ready[s.head:])
		clear(s.ready[rest:])
		s.ready, s.head = s.ready[:rest], 0
	}
}

// step does what the head of an object's queue calls for, until the object waits for something or has nothing left. It
// returns false if the object must stay ready because the window is full or the connection takes nothing.
func (s *shard) step(o *object) bool {
	for len(o.queue) > 0 {
		if o.msg == nil {
			waits, ok := s.prepare(o)
			if waits {
				return true
			}
			if !ok {
				continue
			}
		}
		return s.send(o)
	}
	delete(s.objects, o.subject)
	return true
}

// prepare decides what becomes of the queue's head and encodes it. waits is true if the object waits for a read or for
// time to pass; ready is false if the head is done with.
func (s *shard) prepare(o *object) (waits, ready bool) {
	head := o.queue[0]
	stored, known := s.p.options.Ledger.Get(o.subject)
	v := decide(stored, known, head.change)
	switch v.action {
	case actSuppress:
		s.p.options.Metrics.Suppressed(head.change.Ref.GroupResource(), v.reason)
		s.finish(o)
		return false, false
	case actPrecede:
		o.queue = append([]waiting{{change: v.change, own: true}}, o.queue...)
		return false, false
	}
	if len(v.change.Raw) == 0 && v.change.Op == change.OpDeleted && known && o.reading == readNothing && o.change == nil {
		o.reading, o.change = readBody, v.change
		s.p.read(s, o, leaderRequest{Sequence: stored.Sequence})
		return true, false
	}
	if o.change != nil && len(v.change.Raw) == 0 {
		v.change = o.change // with the body that was read for it
	}
	if err := s.encode(o, v.change, stored.Sequence); err != nil {
		s.park(o, err)
		return true, false
	}
	return false, true
}

// encode makes the append of a change, reduced as far as the limits ask for.
func (s *shard) encode(o *object, c *change.Change, expected uint64) error {
	limit := s.p.limit()
	for {
		m, err := s.p.options.Encoder.Reduce(c, expected, o.level)
		if err != nil {
			return err
		}
		if o.again {
			m = m.Again(s.p.options.Epoch)
		}
		size := int64(m.Size())
		if limit > 0 && size > limit {
			if !s.reduce(o) {
				return fmt.Errorf("even without a body the message for %s has %d bytes, and the broker takes %d; raise max_payload or max_msg_size", c.Ref, size, limit)
			}
			continue
		}
		o.msg = &nats.Msg{Subject: m.Subject, Header: nats.Header(m.Header), Data: m.Body}
		o.change, o.id, o.expected, o.size = c, m.ID, expected, size
		o.first = time.Time{}
		return nil
	}
}

// reduce takes the next step of the size ladder; false at its end.
func (s *shard) reduce(o *object) bool {
	if o.level == message.LevelNone {
		return false
	}
	o.level++
	s.p.options.Metrics.Oversize(o.level.String())
	return true
}

// send appends the object's encoded message. It returns false if the window has no room for it or the client refuses.
func (s *shard) send(o *object) bool {
	if s.inFlight > 0 && s.inFlightBytes+o.size > s.maxBytes {
		return false
	}
	js, err := s.p.options.Conn.JetStream()
	if err != nil {
		s.pause("disconnected", err.Error())
		return false
	}
	o.sent = time.Now()
	if o.first.IsZero() {
		o.first = o.sent
	}
	s.flights[o.msg] = o
	if _, err := js.PublishMsgAsync(o.msg, publishOptions...); err != nil {
		delete(s.flights, o.msg)
		if errors.Is(err, nats.ErrMaxPayload) {
			s.react(o, err)
			return true
		}
		s.pause("disconnected", err.Error())
		return false
	}
	o.inFlight = true
	s.inFlight++
	s.inFlightBytes += o.size
	return true
}

// pause keeps the shard from sending for a while that grows, and lets it probe with one message afterwards.
func (s *shard) pause(reason, text string) {
	s.p.setTrouble(s.index, reason, text)
	s.troubled = true
	if !s.heldUntil.IsZero() {
		return // several appends of one burst fail together; they count once
	}
	s.hold = min(max(2*s.hold, holdMin), holdMax)
	s.heldUntil = time.Now().Add(jitter(s.hold))
	s.window = 1
}

// flowing notes that the broker stored something: the window opens again, step by step.
func (s *shard) flowing() {
	if s.window < s.maxMessages {
		s.window = min(s.maxMessages, s.window*2)
	}
	if s.troubled {
		s.troubled, s.hold = false, 0
		s.p.clearTrouble(s.index)
	}
}

// acked handles an acknowledgement.
func (s *shard) acked(o *object, ack *jetstream.PubAck) {
	if ack.Duplicate {
		// The broker remembers the id; that the message is still stored, and where, is another matter.
		o.reading = readVerify
		s.p.read(s, o, leaderRequest{Sequence: ack.Sequence})
		return
	}
	s.stored(o, ack.Sequence)
}

// stored records that the object's append is in the stream, and goes on with the next change.
func (s *shard) stored(o *object, sequence uint64) {
	c := o.change
	s.p.options.Ledger.Put(o.subject, change.Stored{UID: c.UID, RV: c.RV, Op: c.Op, Sequence: sequence, Epoch: s.p.options.Epoch})
	s.p.options.Metrics.Published(c.Ref.GroupResource(), c.Op.String(), c.Seen, time.Since(o.first))
	s.flowing()
	s.finish(o)
	s.next(o)
}

// finish takes the head off an object's queue.
func (s *shard) finish(o *object) {
	head := o.queue[0]
	o.queue[0] = waiting{}
	o.queue = o.queue[1:]
	s.reset(o)
	o.level, o.attempts, o.again = message.LevelObject, 0, false
	if o.parked {
		o.parked = false
		s.p.clearParked(o.subject)
	}
	if !head.own {
		s.p.done(head.change)
	}
}

// reset forgets the encoded append, so that the head is decided upon anew.
func (s *shard) reset(o *object) {
	o.msg, o.change, o.id, o.expected, o.size, o.reading = nil, nil, "", 0, 0, readNothing
}

// next makes an object ready if it has more, and lets it go if not.
func (s *shard) next(o *object) {
	if len(o.queue) > 0 {
		s.makeReady(o)
		return
	}
	delete(s.objects, o.subject)
}

// failed handles an append that was refused or not answered.
func (s *shard) failed(o *object, err error) { s.react(o, err) }

func (s *shard) react(o *object, err error) {
	reaction, code := classify(err)
	s.p.options.Metrics.Retried(code)
	o.attempts++
	switch reaction {
	case reactSoon:
		if o.attempts < soonAttempts {
			s.delay(o, soon)
			return
		}
		o.attempts = 0
		fallthrough
	case reactReread:
		o.reading = readLast
		s.p.read(s, o, leaderRequest{LastBySubject: o.subject})
		return
	case reactReduce:
		s.reset(o)
		if !s.reduce(o) {
			s.park(o, fmt.Errorf("even without a body the message for %s is too large for the broker: %w", o.subject, err))
			return
		}
	case reactResend:
		if s.p.options.Conn.deniedSince(o.subject, o.sent) {
			s.pause("no-permission", (&DeniedError{Subject: o.subject}).Error())
		} else {
			s.pause(code, "an append was not acknowledged: "+err.Error())
		}
	case reactMissing:
		s.pause("no-stream", fmt.Sprintf("stream %s does not answer; is it there, and does it have a leader? %s", s.p.options.Stream, err))
	case reactHold:
		s.pause("refused", fmt.Sprintf("stream %s refuses messages, they are held: %s", s.p.options.Stream, err))
	}
	s.makeReady(o)
}

// park sets an object aside that cannot be published for a reason of its own. It is not dropped: it is reported, and
// tried again after a while.
func (s *shard) park(o *object, err error) {
	s.reset(o)
	o.level, o.parked = message.LevelObject, true
	if s.p.setParked(o.subject, err.Error()) {
		s.p.options.Log.Error("object cannot be published, others are not affected", "subject", o.subject, "error", err)
	}
	s.delay(o, parkedRetry)
}

// read handles the end of a read of the stream's leader.
func (s *shard) read(o *object, r *record, err error) {
	why := o.reading
	o.reading = readNothing
	if err != nil {
		s.p.options.Metrics.Retried("read")
		if why == readBody {
			o.change = nil // ask for it again
		}
		// With an append still undecided the identical message goes again, and leads here again.
		s.pause("read", "the stream's leader cannot be read: "+err.Error())
		s.makeReady(o)
		return
	}
	switch why {
	case readNothing:
		return
	case readBody:
		s.haveBody(o, r)
	case readVerify:
		s.verified(o, r)
	case readLast:
		s.haveLast(o, r)
	}
}

// haveBody completes a deletion with the object's last published state; without one the deletion names the object.
func (s *shard) haveBody(o *object, r *record) {
	withBody := *o.change
	if r != nil && r.subject == o.subject {
		withBody.Raw = bodyOf(r)
	}
	o.change = &withBody
	s.makeReady(o)
}

// bodyOf returns the object in a stored message, whichever of the two content modes it has.
func bodyOf(r *record) []byte {
	if r.header.Get(message.HeaderContentType) != message.ContentEnvelope {
		return r.body
	}
	var envelope struct {
		Data json.RawMessage `json:"data"`
	}
	if err := json.Unmarshal(r.body, &envelope); err != nil {
		return nil
	}
	return envelope.Data
}

// verified handles the message that an acknowledgement called a duplicate. If it is the one that we sent, stored after
// what we expected, all is done. If it is gone, or from an earlier life of the object, the append goes again under an
// id that says so.
func (s *shard) verified(o *object, r *record) {
	if r != nil && r.subject == o.subject && r.id() == o.id && r.sequence > o.expected {
		s.stored(o, r.sequence)
		return
	}
	s.reset(o)
	o.again = true
	s.makeReady(o)
}

// haveLast handles the subject's last message after a refused compare-and-set.
func (s *shard) haveLast(o *object, r *record) {
	if r == nil {
		s.p.options.Ledger.Forget(o.subject)
		s.reset(o)
		s.makeReady(o)
		return
	}
	if r.id() == o.id && r.sequence > o.expected {
		s.stored(o, r.sequence) // an earlier copy of this append arrived
		return
	}
	stored, err := message.ParseStored(r.header, r.subject, r.sequence)
	if err != nil {
		s.park(o, fmt.Errorf("message %d on %s is not one of ours and is not written over: %w", r.sequence, r.subject, err))
		return
	}
	if stored.Epoch > s.p.options.Epoch {
		s.p.options.Log.Error("another writer has taken over, nothing more is sent", "subject", o.subject,
			"sequence", r.sequence, "epoch", stored.Epoch, "ourEpoch", s.p.options.Epoch)
		s.p.fence()
		return
	}
	s.p.options.Ledger.Put(o.subject, stored)
	s.reset(o)
	s.makeReady(o)
}

// jitter spreads a pause over half to one and a half times its length.
func jitter(d time.Duration) time.Duration {
	return d/2 + time.Duration(rand.Int64N(int64(d)+1))
}

// delayHeap orders delayed objects by when they are due.
type delayHeap []*object

func (h delayHeap) Len() int           { return len(h) }
func (h delayHeap) Less(i, j int) bool { return h[i].due.Before(h[j].due) }
func (h delayHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

// Push implements heap.Interface.
func (h *delayHeap) Push(x any) {
	o := x.(*object)
	o.index = len(*h)
	*h = append(*h, o)
}

// Pop implements heap.Interface.
func (h *delayHeap) Pop() any {
	old := *h
	o := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	o.index = -1
	return o
}
