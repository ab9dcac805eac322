package publisher

import (
	"container/heap"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/deltabridge/deltabridge/internal/change"
	"github.com/deltabridge/deltabridge/internal/message"
)

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
	readBody            // a change without a body: the last published one
	readVerify          // an acknowledgement says duplicate: is that message still there?
)

// object is one object with changes that wait. It exists only while there are any; what outlasts it is in the ledger.
type object struct {
	subject string
	queue   []waiting

	// The append of the queue's head, once it is encoded. It is kept unchanged until its outcome is known, so that what
	// is sent again is byte for byte what was sent before. Each send hands the client a copy of the struct: its address
	// tells which of them an outcome belongs to.
	msg      *nats.Msg
	change   *change.Change // what msg says; the queue's head, or made of it
	id       string
	expected uint64
	size     int64
	first    time.Time   // when msg was sent first
	flight   *nats.Msg   // the copy whose outcome is awaited, nil if none is
	earlier  []*nats.Msg // copies that were not answered in time, and still may be
	sent     time.Time   // when the latest copy was sent
	before   *object     // neighbours in the list of flights
	after    *object

	batch  *batch // the append, where it is more than the head; id is that of its last message, size that of all
	single bool   // the head must go by itself
	flying int    // how many messages the copy in flight is

	level  message.Level // how far the head had to be reduced
	again  bool          // the head's id must say again
	parked bool          // reported as set aside for a reason of its own

	overloads  int       // times in a row that the broker had too many requests
	soon       int       // times in a row that the broker was busy with an earlier append
	failures   int       // times that the append failed, whosever fault it was
	failing    time.Time // since when
	storesThen uint64    // how many appends the shard had stored at the last failure
	culprit    bool      // the fault is the object's own
	setbacks   int       // times that the object alone had to wait
	denials    int       // times that the server denied it

	reading purpose
	queued  bool      // in the shard's ready list
	due     time.Time // when delayed: when to go on
	index   int       // in the heap of delayed objects, -1 if not there
}

// forget takes a copy out of those that may still be answered, and reports whether it was one.
func (o *object) forget(m *nats.Msg) bool {
	i := slices.Index(o.earlier, m)
	if i < 0 {
		return false
	}
	o.earlier = slices.Delete(o.earlier, i, i+1)
	return true
}

// reset forgets the encoded append, so that the head is decided upon anew.
func (o *object) reset() {
	o.msg, o.change, o.id, o.expected, o.size, o.batch = nil, nil, "", 0, 0, nil
	o.first, o.earlier = time.Time{}, nil
}

// step does what the head of an object's queue calls for, until the object waits for something or has nothing left. It
// returns false if the object must stay first in line because the window is full or the connection takes nothing.
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
	if known && s.newer(o, stored) {
		return true, false // the ledger was read after another writer had taken over
	}
	v := decide(stored, known, head.change, s.p.options.Rewound)
	switch v.action {
	case actSuppress:
		s.p.options.Metrics.Suppressed(head.change.Ref.GroupResource(), v.reason)
		s.finish(o)
		return false, false
	case actPrecede:
		o.queue = slices.Insert(o.queue, 0, waiting{change: v.change, own: true})
		return false, false
	}
	if len(v.change.Raw) == 0 {
		// Deletions that nobody watched, objects that left the selection, and repetitions of what is not in the cache.
		if o.change == nil && known {
			o.change = v.change
			s.startRead(o, readBody, leaderRequest{Sequence: stored.Sequence})
			return true, false
		}
		if o.change != nil {
			v.change = o.change // with the body that was read for it
		}
		if head.change.Op == change.OpSynced && len(v.change.Raw) == 0 {
			// There is no state to repeat: neither the cache nor the stream has it.
			s.p.options.Metrics.Suppressed(head.change.Ref.GroupResource(), suppressNoState)
			s.finish(o)
			return false, false
		}
	}
	o.again = o.again || v.again
	if err := s.encode(o, v.change, stored.Sequence); err != nil {
		s.park(o, err)
		return true, false
	}
	s.gather(o)
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
		o.msg, o.change, o.id, o.expected, o.size = toNATS(m), c, m.ID, expected, size
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

// send appends the object's encoded message. It returns false if the window has no room for it or there is no
// connection.
func (s *shard) send(o *object) bool {
	if s.inFlight > 0 && s.inFlightBytes+o.size > s.window.bytes() {
		return false
	}
	now := time.Now()
	m, err := s.handOver(o)
	if err != nil {
		if r, code := classify(err); r == reactResend {
			s.pause(troubleOf(s.p.options.Stream, r, code, err))
			return false
		}
		s.react(o, err)
		return true
	}
	o.sent = now
	if o.first.IsZero() {
		o.first = now
	}
	s.launch(o, m)
	return true
}

// handOver gives the object's append to the client, and returns the message whose outcome is the append's.
func (s *shard) handOver(o *object) (*nats.Msg, error) {
	if o.batch != nil {
		return s.sendBatch(o.batch)
	}
	m := *o.msg
	return &m, s.p.broker.publish(&m)
}

// acked handles an acknowledgement.
func (s *shard) acked(m *nats.Msg, ack *jetstream.PubAck) {
	o := s.objects[m.Subject]
	switch {
	case o == nil:
		return // of an append whose outcome was known already
	case o.flight == m:
		s.window.answered(o.sent, time.Now())
		s.land(o)
		if ack.Duplicate {
			// The broker remembers the id; that the message is still stored, and where, is another matter.
			s.startRead(o, readVerify, leaderRequest{Sequence: ack.Sequence})
			return
		}
	case !o.forget(m) || ack.Duplicate || o.reading != readNothing:
		return // what is under way for the object tells more
	case o.flight != nil:
		s.land(o) // the later copy is refused or a duplicate
	case o.index >= 0:
		heap.Remove(&s.delayed, o.index)
	}
	c := o.change
	if o.batch != nil {
		c = o.batch.last().change
	}
	stored := storedBy(c, s.p.options.Epoch)
	stored.Sequence = ack.Sequence
	s.stored(o, stored)
}

// stored records that the stream has the object's append, the last message of which has the given sequence, and goes on
// with the next change.
func (s *shard) stored(o *object, stored change.Stored) {
	if o.batch != nil {
		s.storedBatch(o, stored)
		return
	}
	c := o.change
	s.p.options.Ledger.Put(o.subject, stored)
	if stored.Epoch == s.p.options.Epoch {
		s.p.options.Metrics.Published(c.Ref.GroupResource(), c.Op.String(), c.Seen, time.Since(o.first))
	} else { // a former writer was first
		s.p.options.Metrics.Suppressed(c.Ref.GroupResource(), suppressUnchanged)
	}
	s.flowing(o)
	s.finish(o)
	s.next(o)
}

// next goes on with an object whose append is done.
func (s *shard) next(o *object) {
	if len(o.queue) > 0 {
		s.makeReady(o)
	} else if !o.queued { // else step lets go of it, once it comes to it
		delete(s.objects, o.subject)
	}
}

// finish takes the head off an object's queue.
func (s *shard) finish(o *object) {
	head := o.queue[0]
	o.queue[0] = waiting{}
	o.queue = o.queue[1:]
	o.reset()
	if o.denials > 0 {
		s.denied--
	}
	o.level, o.again, o.single, o.culprit = message.LevelObject, false, false, false
	o.soon, o.overloads, o.failures, o.setbacks, o.denials = 0, 0, 0, 0, 0
	if o.parked {
		o.parked = false
		s.p.clearParked(o.subject)
	}
	if !head.own {
		s.p.done(head.change)
	}
}
