package informer

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
)

const (
	// changeOverhead is what a change costs beside its object's JSON: the structs and strings of its way through
	// client-go and the publisher. It bounds the number of changes whose objects are tiny.
	changeOverhead = 1 << 10
	// holdPatience is how long an event waits for credit with its watch open. An unread watch fills the API server's
	// buffers and slows down its dispatching to all others.
	holdPatience = 5 * time.Second
	// reopenPoll is how often it is looked whether a watch that is held may be opened again.
	reopenPoll = 100 * time.Millisecond
)

// Gate bounds the bytes of the changes that are in memory, of all resources together: those that were read from the API
// server and are neither acknowledged by the broker nor known to need no publishing. An event takes credit when it leaves
// the watch, an object of a list before it is handed on; both give it back when they are done. What finds no credit
// stays with the API server. A Gate is safe for concurrent use.
type Gate struct {
	limit  int64
	used   atomic.Int64
	credit *semaphore.Weighted
}

// NewGate returns a Gate with a limit in bytes, which must be positive.
func NewGate(limit int64) *Gate { return &Gate{limit: limit, credit: semaphore.NewWeighted(limit)} }

// cost returns the credit that a change with an object of the given size takes. One that is larger than the limit takes
// all of it, so that it goes alone.
func (g *Gate) cost(size int) int64 { return min(int64(size)+changeOverhead, g.limit) }

// tryTake takes credit if there is enough and nobody waits for some.
func (g *Gate) tryTake(n int64) bool {
	if !g.credit.TryAcquire(n) {
		return false
	}
	g.used.Add(n)
	return true
}

// take blocks until there is enough credit, first come, first served. The error is the context's.
func (g *Gate) take(ctx context.Context, n int64) error {
	if err := g.credit.Acquire(ctx, n); err != nil {
		return err
	}
	g.used.Add(n)
	return nil
}

func (g *Gate) give(n int64) {
	if n > 0 {
		g.used.Add(-n)
		g.credit.Release(n)
	}
}

// Used returns the credit that is taken, in bytes.
func (g *Gate) Used() int64 { return g.used.Load() }

// awaitRoom blocks until half of the credit is free: a watch that was closed for want of it should not be closed again
// at once.
func (g *Gate) awaitRoom(ctx context.Context) error {
	for g.Used() > g.limit/2 {
		if !pause(ctx, reopenPoll) {
			return ctx.Err()
		}
	}
	return nil
}

// intake owns the credit of the events of one informer on their way from the watch to the listener. Events can get lost
// there: client-go swallows a replay of a version that it has, and what a stop leaves behind. But it keeps their order,
// so that an event that arrives tells that the earlier ones will not any more. It is safe for concurrent use.
type intake struct {
	gate *Gate

	mu     sync.Mutex
	last   uint64  // number of the last event that entered, counted from 1
	first  uint64  // number of the event of credits[0]
	credit []int64 // of the events under way, in order
	moved  chan struct{}
	closed bool
}

func newIntake(gate *Gate) *intake { return &intake{gate: gate, first: 1, moved: make(chan struct{})} }

// enter numbers an event for which the credit was taken.
func (in *intake) enter(credit int64) uint64 {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.closed {
		in.gate.give(credit)
		return 0
	}
	in.last++
	in.credit = append(in.credit, credit)
	return in.last
}

// arrive notes that an event has reached the listener, and gives back the credit of those that were lost before it. It
// returns the event's own, which the caller owns from then on.
func (in *intake) arrive(event uint64) int64 {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.closed || event < in.first || event > in.last {
		return 0
	}
	n := event - in.first
	lost := int64(0)
	for _, credit := range in.credit[:n] {
		lost += credit
	}
	own := in.credit[n]
	in.credit = in.credit[n+1:]
	in.first = event + 1
	if len(in.credit) == 0 {
		in.credit = nil // the array behind it has moved on with it
		close(in.moved)
		in.moved = make(chan struct{})
	}
	in.gate.give(lost)
	return own
}

// drained blocks until every event that has entered has arrived, or was lost before one that has. The error is the
// context's.
func (in *intake) drained(ctx context.Context) error {
	for {
		in.mu.Lock()
		done, moved := len(in.credit) == 0, in.moved
		in.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-moved:
		}
	}
}

// close gives back the credit of what is still under way. Nothing arrives any more.
func (in *intake) close() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.closed = true
	for _, credit := range in.credit {
		in.gate.give(credit)
	}
	in.credit = nil
}
