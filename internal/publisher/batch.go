package publisher

import (
	"crypto/rand"
	"encoding/hex"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/deltabridge/deltabridge/internal/change"
	"github.com/deltabridge/deltabridge/internal/message"
)

// Many waiting versions of one object leave as one atomic batch: the server stores all of them, in order, or none. The
// batch says once after which message it belongs; the server itself keeps its messages together.
const (
	// batchLeast is how many messages make a batch worth its while: the server stages each one in a store of its own.
	batchLeast = 4
	// batchMost bounds the messages of a batch; servers take 1,000 unless told otherwise. batchBytes bounds their size.
	batchMost  = 500
	batchBytes = 4 << 20
	// batchPause is how long a shard sends no batches after the server has refused one because of its own limits.
	batchPause = 5 * time.Second
)

// Headers of atomic batches, which nats.go has no constants for.
const (
	headerBatchID       = "Nats-Batch-Id"
	headerBatchSequence = "Nats-Batch-Sequence"
	headerBatchCommit   = "Nats-Batch-Commit"
)

// batched is one change of a batch. The first one is in the object's own fields, too.
type batched struct {
	msg    *nats.Msg      // nil for a change that is suppressed
	change *change.Change // what msg says
	id     string
	reason string // why it is suppressed
}

// batch is what of an object's queue, from the head on, is appended at once.
type batch struct {
	items    []batched
	messages int
	size     int64 // of all messages, header blocks included
}

// last returns the batch's last message.
func (b *batch) last() *batched {
	for i := len(b.items) - 1; i > 0; i-- {
		if b.items[i].msg != nil {
			return &b.items[i]
		}
	}
	return &b.items[0]
}

// gather makes a batch of the encoded head and what waits behind it, if that is worth it. The changes after the head
// are decided upon as if those before them were stored, for they will be, or none is.
func (s *shard) gather(o *object) {
	limit := s.p.limit()
	if !s.p.batches.Load() || o.single || s.window.messages < batchLeast || len(o.queue) < batchLeast || o.again || o.level != message.LevelObject {
		return
	}
	if time.Now().Before(s.batchesAfter) {
		return
	}
	b := &batch{items: []batched{{msg: o.msg, change: o.change, id: o.id}}, messages: 1, size: o.size}
	stored := storedBy(o.change, s.p.options.Epoch)
	for _, w := range o.queue[1:min(len(o.queue), batchMost)] {
		v := decide(stored, true, w.change, s.p.options.Rewound)
		if v.action == actSuppress {
			b.items = append(b.items, batched{change: w.change, reason: v.reason})
			continue
		}
		if v.action != actPublish || v.again || len(v.change.Raw) == 0 {
			break // it has to be prepared by itself
		}
		m, err := s.p.options.Encoder.Reduce(v.change, 0, message.LevelObject)
		if err != nil {
			break
		}
		delete(m.Header, message.HeaderExpectedSequence) // the server refuses it on all but the first
		size := int64(m.Size()) + batchHeaders
		if limit > 0 && size > limit || b.size+size > min(batchBytes, s.maxBytes) {
			break
		}
		b.items = append(b.items, batched{msg: toNATS(m), change: v.change, id: m.ID})
		b.size += size
		b.messages++
		stored = storedBy(v.change, s.p.options.Epoch)
	}
	if b.messages < batchLeast || limit > 0 && o.size+batchHeaders > limit {
		return
	}
	o.batch, o.id, o.size = b, b.last().id, b.size
}

// batchHeaders is how much the headers of a batch add to each of its messages at most.
const batchHeaders = int64(len(headerBatchID+": \r\n"+headerBatchSequence+": 1000\r\n"+headerBatchCommit+": 1\r\n") + 2*batchIDBytes)

const batchIDBytes = 16

// storedBy returns what the last message on a subject says once a change is stored.
func storedBy(c *change.Change, epoch uint64) change.Stored {
	return change.Stored{UID: c.UID, RV: c.RV, Op: c.Op, Epoch: epoch}
}

// sendBatch hands a batch to the client, under a new id: what arrived of an earlier copy must not be taken for a part of
// this one. It returns the message whose acknowledgement is that of the batch.
func (s *shard) sendBatch(b *batch) (*nats.Msg, error) {
	var random [batchIDBytes]byte
	_, _ = rand.Read(random[:]) // never fails
	id, n := []string{hex.EncodeToString(random[:])}, 0
	for i := range b.items {
		m := b.items[i].msg
		if m == nil {
			continue
		}
		n++
		m.Header[headerBatchID] = id
		m.Header[headerBatchSequence] = []string{strconv.Itoa(n)}
		if n < b.messages {
			if err := s.p.broker.publishMember(m); err != nil {
				return nil, err
			}
			continue
		}
		m.Header[headerBatchCommit] = []string{"1"}
		commit := *m
		return &commit, s.p.broker.publish(&commit)
	}
	return nil, nil // not reached: the first item has a message
}

// storedBatch records that the stream has all of the object's batch, the last message of which has the given sequence.
func (s *shard) storedBatch(o *object, stored change.Stored) {
	b := o.batch
	s.p.options.Ledger.Put(o.subject, stored)
	ours := stored.Epoch == s.p.options.Epoch
	took := time.Since(o.first)
	for i := range b.items {
		c := b.items[i].change
		switch {
		case b.items[i].msg == nil:
			s.p.options.Metrics.Suppressed(c.Ref.GroupResource(), b.items[i].reason)
		case ours:
			s.p.options.Metrics.Published(c.Ref.GroupResource(), c.Op.String(), c.Seen, took)
		default:
			s.p.options.Metrics.Suppressed(c.Ref.GroupResource(), suppressUnchanged)
		}
		s.finish(o)
	}
	s.flowing(o)
	s.next(o)
}

// unbatch gives up the object's batch: its head goes by itself, then the rest is tried again.
func (o *object) unbatch() {
	o.reset()
	o.single = true
}
