package publisher

import (
	"container/heap"
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/deltabridge/deltabridge/internal/change"
)

const (
	// holdMin and holdMax bound the pause between probes while the broker takes nothing.
	holdMin = 50 * time.Millisecond
	holdMax = 5 * time.Second
	// patience is how long an append may go without an answer before it is sent again. A stream leader that steps down
	// drops what it had queued without a word, so without a limit an append would wait for ever. A leader that is merely
	// slower than that is not sent everything twice: an answer that comes late counts, and the shard only probes.
	patience = 3 * time.Second
)

type eventKind uint8

const (
	evChange eventKind = iota // a change was accepted
	evAck                     // an append was answered with an acknowledgement
	evFail                    // an append was answered with an error, or its connection was lost
	evDenied                  // the server refused us to publish on a subject
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

// shard owns the objects whose subjects hash to it. Only its goroutine touches its fields, inbox apart.
//
// An object with changes that wait is in exactly one place: in the ready list, in flight, in a read, or in the delay
// heap. It gets from one to the next only in the methods below and in outcome.go.
type shard struct {
	p     *Publisher
	index int

	mu    sync.Mutex
	inbox []event
	woken chan struct{}

	objects map[string]*object
	ready   queue[*object] // what can be sent, in order
	flights flightList     // what is in flight, in the order of sending
	delayed delayHeap

	inFlight      int
	inFlightBytes int64
	reading       int
	maxMessages   int
	maxBytes      int64
	window        *window   // how many may be in flight now; one after the broker took nothing
	batchesAfter  time.Time // no batches until then
	hold          time.Duration
	heldUntil     time.Time

	stores   uint64    // appends stored so far
	alive    time.Time // when the latest append that was stored had been sent
	blamed   int       // objects that failed since then, and may not be to blame themselves
	refused  int       // objects that were denied for the first time since then
	denied   int       // objects that are set aside because they were denied
	troubled bool      // a trouble is recorded for this shard
}

func newShard(p *Publisher, index, maxMessages int, maxBytes int64) *shard {
	return &shard{
		p:           p,
		index:       index,
		woken:       make(chan struct{}, 1),
		objects:     map[string]*object{},
		maxMessages: maxMessages,
		maxBytes:    maxBytes,
		window:      newWindow(maxMessages, maxBytes),
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
		timer.Reset(s.sleep(time.Now()))
		select {
		case <-ctx.Done():
			return
		case <-s.woken:
		case <-timer.C:
		}
		if ctx.Err() != nil {
			return // select picks at random, and a leader that lost its lease must send nothing more
		}
		s.mu.Lock()
		events, s.inbox = s.inbox, events[:0]
		s.mu.Unlock()
		for i := range events {
			s.handle(&events[i])
			events[i] = event{}
		}
		now := time.Now()
		s.expire(now)
		s.wakeDelayed(now)
		s.pump(now)
		if s.troubled && len(s.objects) == 0 {
			s.relieved() // nothing waits, so nothing is held up
		}
	}
}

// sleep returns how long the shard has nothing to do if nothing reaches it.
func (s *shard) sleep(now time.Time) time.Duration {
	next := time.Hour
	until := func(t time.Time) { next = min(next, t.Sub(now)) }
	if len(s.delayed) > 0 {
		until(s.delayed[0].due)
	}
	if s.ready.len() > 0 && !s.heldUntil.IsZero() {
		until(s.heldUntil)
	}
	if o := s.flights.first; o != nil {
		until(o.sent.Add(patience))
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
		s.acked(e.msg, e.ack)
	case evFail:
		// The error of a copy that was given up says nothing of the one that is under way.
		if o := s.objects[e.msg.Subject]; o != nil && o.flight == e.msg {
			s.land(o)
			s.react(o, e.err)
		}
	case evDenied:
		if o := s.objects[e.subject]; o != nil && o.flight != nil {
			s.land(o)
			s.react(o, &DeniedError{Subject: e.subject})
		}
	case evRead:
		s.reading--
		s.read(e.object, e.record, e.err)
	case evWake:
		s.heldUntil, s.hold = time.Time{}, 0
		// What was under way on the old connection will not be answered: the client says so where it has reconnected
		// by itself, and says nothing where it had given up.
		for o := s.flights.first; o != nil; o = s.flights.first {
			o.earlier = append(o.earlier, o.flight)
			s.land(o)
			s.makeReady(o)
		}
		for _, o := range s.delayed {
			o.due, o.index = time.Time{}, -1
			s.makeReady(o)
		}
		clear(s.delayed)
		s.delayed = s.delayed[:0]
	}
}

// launch notes that a copy of the object's append is in flight.
func (s *shard) launch(o *object, m *nats.Msg) {
	o.flight = m
	s.flights.push(o)
	o.flying = 1
	if o.batch != nil {
		o.flying = o.batch.messages
	}
	s.inFlight += o.flying
	s.inFlightBytes += o.size
}

// land takes the object's append out of flight.
func (s *shard) land(o *object) {
	o.flight = nil
	s.flights.remove(o)
	s.inFlight -= o.flying
	s.inFlightBytes -= o.size
}

// expire gives up waiting for appends that were not answered in time. An answer that still comes counts.
func (s *shard) expire(now time.Time) {
	for o := s.flights.first; o != nil && now.Sub(o.sent) >= patience; o = s.flights.first {
		o.earlier = append(o.earlier, o.flight)
		s.land(o)
		s.react(o, errAckTimeout)
	}
}

func (s *shard) makeReady(o *object) {
	if !o.queued {
		o.queued = true
		s.ready.push(o)
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
func (s *shard) pump(now time.Time) {
	if !s.heldUntil.IsZero() {
		if now.Before(s.heldUntil) {
			return
		}
		s.heldUntil = time.Time{}
	}
	for s.ready.len() > 0 && s.inFlight < s.window.messages && s.reading < s.maxMessages && s.heldUntil.IsZero() && !s.p.isFenced() {
		o := s.ready.first()
		o.queued = false
		if !s.step(o) {
			o.queued = true
			return
		}
		s.ready.pop()
	}
}

// pause keeps the shard from sending for a while that grows, and lets it probe with one message afterwards.
func (s *shard) pause(reason, text string) {
	s.trouble(reason, text)
	if !s.heldUntil.IsZero() {
		return // several appends of one burst fail together; they count once
	}
	s.hold = nextHold(s.hold)
	s.heldUntil = time.Now().Add(jitter(s.hold))
	s.window.close()
}

// flowing notes that the broker has stored an append: the window opens again, by one for each.
func (s *shard) flowing(o *object) {
	s.stores++
	s.blamed, s.refused = 0, 0
	if o.sent.After(s.alive) {
		s.alive = o.sent
	}
	s.window.grow()
	if s.troubled {
		s.relieved()
	}
}

func (s *shard) trouble(reason, text string) {
	s.troubled = true
	s.p.setTrouble(s.index, reason, text)
}

func (s *shard) relieved() {
	s.troubled, s.hold = false, 0
	s.p.clearTrouble(s.index)
}

// nextHold is the pause after one of the given length.
func nextHold(hold time.Duration) time.Duration { return min(max(2*hold, holdMin), holdMax) }

// jitter spreads a pause over half to one and a half times its length.
func jitter(d time.Duration) time.Duration {
	return d/2 + time.Duration(rand.Int64N(int64(d)+1))
}

// queue is a first-in-first-out list.
type queue[T any] struct {
	items []T
	head  int
}

func (q *queue[T]) len() int { return len(q.items) - q.head }

func (q *queue[T]) first() T { return q.items[q.head] }

func (q *queue[T]) push(item T) { q.items = append(q.items, item) }

func (q *queue[T]) pop() {
	var zero T
	q.items[q.head] = zero
	q.head++
	if q.head > len(q.items)/2 { // so that each item moves once, on average
		rest := copy(q.items, q.items[q.head:])
		clear(q.items[rest:])
		q.items, q.head = q.items[:rest], 0
	}
}

// flightList holds the objects in flight in the order in which they were sent. Landing takes one out wherever it is, so
// that the list keeps nothing alive.
type flightList struct{ first, last *object }

func (l *flightList) push(o *object) {
	o.before, o.after = l.last, nil
	if l.last == nil {
		l.first = o
	} else {
		l.last.after = o
	}
	l.last = o
}

func (l *flightList) remove(o *object) {
	if o.before == nil {
		l.first = o.after
	} else {
		o.before.after = o.after
	}
	if o.after == nil {
		l.last = o.before
	} else {
		o.after.before = o.before
	}
	o.before, o.after = nil, nil
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
