package publisher

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/deltabridge/deltabridge/internal/change"
	"github.com/deltabridge/deltabridge/internal/message"
)

// stored is one message in a model stream.
type stored struct {
	*record
	change.Stored
	before  *stored // the subject's last message when this one was stored, nil if there was none
	removed bool
}

// modelBroker is a stream and the way to it, both as bad as they can be. What the stream does is what a server does:
// ids are looked at before the compare-and-set, and remembered for a while even when the message is gone.
type modelBroker struct {
	t *testing.T

	mu        sync.Mutex
	rng       *rand.Rand
	h         handler
	connected bool
	waiting   map[*nats.Msg]bool // handed over and not answered
	inFlight  map[string]int     // copies that were not answered, by subject
	most      int                // how many subjects were in it at most
	bytes     int                // of what was not answered
	mostBytes int

	script     func(m *nats.Msg) scripted // what becomes of a message, beyond faults
	faults     faults
	sequence   uint64
	log        []*stored // everything that was ever stored, in order
	bySequence map[uint64]*stored
	last       map[string]*stored
	ids        map[string]remembered
	maxPayload int64
	slowRead   time.Duration
	denied     map[string]bool
	staged     map[string][]*nats.Msg // of batches, by id
	noBatches  bool
	batches    int // committed
	appends    int
	sent       []sent
	recreated  int // how often
}

// sent is one message as the client was given it.
type sent struct {
	*nats.Msg
	at time.Time
}

type remembered struct {
	sequence uint64
	until    time.Time
}

// scripted is what becomes of one message on its way. Its zero value lets it pass.
type scripted struct {
	drop, dropAck bool
	err           error         // the answer, instead of storing it
	slow          time.Duration // how much longer the answer takes
}

// faults are probabilities, and states that a test turns on and off.
type faults struct {
	dropPublish, dropAck, slowPublish, slowAck float64
	busy                                       float64 // 10164, 10158, 10163, 10008
	badRead                                    float64
	full, missing                              bool
}

const dedupeWindow = 2 * time.Minute

func newModelBroker(t *testing.T, seed uint64) *modelBroker {
	return &modelBroker{
		t: t, rng: rand.New(rand.NewPCG(seed, 1)), connected: true, maxPayload: 1 << 20,
		waiting: map[*nats.Msg]bool{}, inFlight: map[string]int{}, bySequence: map[uint64]*stored{},
		last: map[string]*stored{}, ids: map[string]remembered{}, denied: map[string]bool{}, staged: map[string][]*nats.Msg{},
	}
}

var _ broker = (*modelBroker)(nil)

func (b *modelBroker) attach(h handler) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.h = h
}

func (b *modelBroker) MaxPayload() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.maxPayload
}

func (b *modelBroker) setMaxPayload(size int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.maxPayload = size
}

// chance must be called with the lock held.
func (b *modelBroker) chance(p float64) bool { return p > 0 && b.rng.Float64() < p }

func (b *modelBroker) between(least, most time.Duration) time.Duration {
	return least + time.Duration(b.rng.Int64N(int64(most-least)))
}

func (b *modelBroker) publish(m *nats.Msg) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.connected {
		return ErrNotConnected
	}
	b.waiting[m] = true
	b.inFlight[m.Subject]++
	b.most = max(b.most, len(b.inFlight))
	b.bytes += m.Size()
	b.mostBytes = max(b.mostBytes, b.bytes)
	there, back := b.between(0, 2*time.Millisecond), b.between(0, 2*time.Millisecond)
	if b.chance(b.faults.slowPublish) {
		there = b.between(0, 20*time.Second) // it arrives even if the connection is lost meanwhile
	}
	if b.chance(b.faults.slowAck) {
		back = b.between(0, 20*time.Second)
	}
	dropPublish, dropAck := b.chance(b.faults.dropPublish), b.chance(b.faults.dropAck)
	b.sent = append(b.sent, sent{m, time.Now()})
	var plan scripted
	if b.script != nil {
		plan = b.script(m)
	}
	back += plan.slow
	dropAck = dropAck || plan.dropAck
	if dropPublish || plan.drop {
		return nil
	}
	recreated := b.recreated
	time.AfterFunc(there, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if recreated != b.recreated {
			return // see formerWriter: the sequences of two streams must not be taken for one another
		}
		if b.denied[m.Subject] {
			if h := b.h; h != nil {
				h.denied(m.Subject)
			}
			return
		}
		if b.faults.missing {
			b.answerAfter(back, m, nil, jetstream.ErrNoStreamResponse)
			return
		}
		if plan.err != nil {
			b.answerAfter(back, m, nil, plan.err)
			return
		}
		ack, err := b.apply(m)
		if !dropAck {
			b.answerAfter(back, m, ack, err)
		}
	})
	return nil
}

func (b *modelBroker) answerAfter(d time.Duration, m *nats.Msg, ack *jetstream.PubAck, err error) {
	time.AfterFunc(d, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.waiting[m] && b.connected {
			b.answer(m, ack, err)
		}
	})
}

// answer must be called with the lock held.
func (b *modelBroker) answer(m *nats.Msg, ack *jetstream.PubAck, err error) {
	delete(b.waiting, m)
	b.bytes -= m.Size()
	if b.inFlight[m.Subject]--; b.inFlight[m.Subject] == 0 {
		delete(b.inFlight, m.Subject)
	}
	switch {
	case b.h == nil:
	case err != nil:
		b.h.failed(m, err)
	default:
		b.h.acked(m, ack)
	}
}

func apiError(code int) error {
	return &jetstream.APIError{Code: 400, ErrorCode: jetstream.ErrorCode(code), Description: "scripted"}
}

// publishMember stages a message of a batch. One that is lost on the way makes the batch incomplete.
func (b *modelBroker) publishMember(m *nats.Msg) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.connected {
		return ErrNotConnected
	}
	if b.chance(b.faults.dropPublish) || b.denied[m.Subject] {
		return nil
	}
	staged := *m
	staged.Header = maps.Clone(m.Header)
	id := m.Header.Get(headerBatchID)
	b.staged[id] = append(b.staged[id], &staged)
	return nil
}

// applyBatch is what the stream does with the last message of a batch.
func (b *modelBroker) applyBatch(id string, m *nats.Msg) (*jetstream.PubAck, error) {
	all := append(b.staged[id], m)
	delete(b.staged, id)
	if b.noBatches {
		return nil, apiError(codeBatchDisabled)
	}
	for i, member := range all {
		if member.Header.Get(headerBatchSequence) != strconv.Itoa(i+1) {
			return nil, apiError(codeBatchIncomplete)
		}
		if r, ok := b.ids[member.Header.Get(jetstream.MsgIDHeader)]; ok && time.Now().Before(r.until) {
			return nil, apiError(codeBatchDuplicate)
		}
		expected, err := strconv.ParseUint(member.Header.Get(jetstream.ExpectedLastSubjSeqHeader), 10, 64)
		if (err == nil) != (i == 0) || member.Subject != m.Subject {
			b.t.Errorf("message %d of a batch on %s expects %q", i+1, member.Subject, member.Header.Get(jetstream.ExpectedLastSubjSeqHeader))
		}
		last := uint64(0)
		if l := b.last[m.Subject]; l != nil {
			last = l.sequence
		}
		if i == 0 && last != expected {
			return nil, apiError(10071)
		}
	}
	b.batches++
	ack := &jetstream.PubAck{Stream: testStream}
	for _, member := range all {
		ack.Sequence = b.store(member).sequence
	}
	return ack, nil
}

// apply is what the stream does with a message.
func (b *modelBroker) apply(m *nats.Msg) (*jetstream.PubAck, error) {
	b.appends++
	id := m.Header.Get(jetstream.MsgIDHeader)
	switch {
	case m.Header.Get(jetstream.ExpectedStreamHeader) != testStream:
		return nil, apiError(codeStreamMismatch)
	case b.faults.full:
		return nil, apiError(codeStoreFailed)
	case b.chance(b.faults.busy):
		codes := []int{10164, codeIDInProcess, codeSequenceNotReady, codeClusterNotAvail}
		return nil, apiError(codes[b.rng.IntN(len(codes))])
	}
	if batch := m.Header.Get(headerBatchID); batch != "" {
		return b.applyBatch(batch, m)
	}
	if r, ok := b.ids[id]; ok && time.Now().Before(r.until) {
		return &jetstream.PubAck{Stream: testStream, Sequence: r.sequence, Duplicate: true}, nil
	}
	expected, err := strconv.ParseUint(m.Header.Get(jetstream.ExpectedLastSubjSeqHeader), 10, 64)
	if err != nil {
		b.t.Errorf("append to %s without an expected sequence", m.Subject)
	}
	if last := b.last[m.Subject]; last != nil && last.sequence != expected || last == nil && expected != 0 {
		return nil, apiError(10071)
	}
	return &jetstream.PubAck{Stream: testStream, Sequence: b.store(m).sequence}, nil
}

// store must be called with the lock held.
func (b *modelBroker) store(m *nats.Msg) *stored {
	b.sequence++
	s := &stored{
		record: &record{subject: m.Subject, sequence: b.sequence, header: m.Header, body: m.Data},
		before: b.last[m.Subject],
	}
	if parsed, err := message.ParseStored(m.Header, m.Subject, b.sequence); err == nil {
		s.Stored = parsed
	}
	b.log = append(b.log, s)
	b.bySequence[b.sequence] = s
	b.last[m.Subject] = s
	if id := s.id(); id != "" {
		b.ids[id] = remembered{b.sequence, time.Now().Add(dedupeWindow)}
	}
	return s
}

func (b *modelBroker) leaderRead(ctx context.Context, _ string, request leaderRequest) (*record, error) {
	b.mu.Lock()
	pause := b.between(0, 2*time.Millisecond) + b.slowRead
	bad := b.chance(b.faults.badRead) || !b.connected || b.faults.missing
	b.mu.Unlock()
	sleep(ctx, pause)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if bad {
		sleep(ctx, readTimeout)
		return nil, errors.New("scripted: no answer")
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	found := b.bySequence[request.Sequence]
	if request.LastBySubject != "" {
		found = b.last[request.LastBySubject]
	}
	if found == nil {
		return nil, nil
	}
	return found.record, nil
}

// remove takes the last n messages off a subject, as an operator might.
func (b *modelBroker) remove(subject string, n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for s := b.last[subject]; s != nil && n > 0; s = b.last[subject] {
		s.removed = true
		delete(b.bySequence, s.sequence)
		if b.last[subject] = s.before; s.before == nil || s.before.removed {
			delete(b.last, subject)
		}
		n--
	}
}

// recreate replaces the stream by an empty one.
func (b *modelBroker) recreate() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.log {
		s.removed = true
	}
	clear(b.bySequence)
	clear(b.last)
	clear(b.ids)
	b.sequence = 0
	b.recreated++
}

// disconnect cuts the connection. told says whether the client reports what was under way; it does not where it gives
// up altogether.
func (b *modelBroker) disconnect(told bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.connected = false
	for m := range maps.Clone(b.waiting) {
		if told {
			b.answer(m, nil, nats.ErrDisconnected)
		} else {
			delete(b.waiting, m)
		}
	}
	clear(b.inFlight)
	b.bytes = 0
}

func (b *modelBroker) reconnect() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.connected = true
	if b.h != nil {
		b.h.wake()
	}
}

func (b *modelBroker) set(f func(*faults)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f(&b.faults)
}

func (b *modelBroker) deny(subject string, on bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.denied[subject] = on
}

// plan sets what becomes of messages to come.
func (b *modelBroker) plan(script func(m *nats.Msg) scripted) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.script = script
}

// append stores a message of somebody else's.
func (b *modelBroker) append(t *testing.T, epoch uint64, c *change.Change) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	expected := uint64(0)
	if last := b.last[testScheme.Subject(c.Ref)]; last != nil {
		expected = last.sequence
	}
	m, err := testEncoder(t, epoch).Encode(c, expected)
	if err != nil {
		t.Fatal(err)
	}
	b.store(toNATS(m))
}

func (b *modelBroker) sentSoFar() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.sent)
}

func (b *modelBroker) appendsSoFar() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.appends
}

// copies returns what the client was given for a subject, in order.
func (b *modelBroker) copies(subject string) []sent {
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []sent
	for _, s := range b.sent {
		if s.Subject == subject {
			out = append(out, s)
		}
	}
	return out
}

// history returns what is stored on a subject, as "op uid/rv" each.
func (b *modelBroker) history(subject string) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []string
	for _, s := range b.log {
		if s.subject == subject && !s.removed {
			out = append(out, fmt.Sprintf("%s %s/%s", s.Op, s.UID, s.RV))
		}
	}
	return out
}

// check verifies everything that was ever stored.
func (b *modelBroker) check() {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	versions := map[string]*stored{}
	for _, s := range b.log {
		at := fmt.Sprintf("message %d on %s (%s %s/%s epoch %d)", s.sequence, s.subject, s.Op, s.UID, s.RV, s.Epoch)
		key := s.subject + " " + string(s.UID) + "/" + s.RV
		if s.Op == change.OpDeleted {
			key = s.subject + " " + string(s.UID) + "/deleted"
		}
		if s.Op == change.OpSynced {
			key = s.id()
		}
		if twice := versions[key]; twice != nil && !twice.removed {
			b.t.Errorf("%s: stored before as message %d", at, twice.sequence)
		}
		versions[key] = s
		p := s.before
		if p == nil {
			if s.Op != change.OpAdded && s.Op != change.OpDeleted {
				b.t.Errorf("%s: first on its subject", at)
			}
			continue
		}
		order := compareVersions(s.RV, p.RV)
		switch {
		case s.Epoch < p.Epoch:
			b.t.Errorf("%s: after epoch %d", at, p.Epoch)
		case s.Op == change.OpSynced && (order != 0 || s.UID != p.UID || p.Op.Gone()):
			b.t.Errorf("%s: repeats a state that is not the last, after %s %s/%s", at, p.Op, p.UID, p.RV)
		case order < 0 || order == 0 && s.Op != change.OpDeleted && s.Op != change.OpSynced:
			b.t.Errorf("%s: after version %s", at, p.RV)
		case p.Op.Gone() && s.UID == p.UID:
			b.t.Errorf("%s: after the deletion of the same uid", at)
		case p.Op.Gone() && s.Op == change.OpModified, !p.Op.Gone() && s.Op == change.OpAdded, !p.Op.Gone() && s.UID != p.UID:
			b.t.Errorf("%s: after %s %s/%s", at, p.Op, p.UID, p.RV)
		}
		reason := change.Reason(s.header.Get(message.HeaderReason))
		unwatched := reason == change.ReasonMissing || reason == change.ReasonReplaced
		if unwatched && !p.Op.Gone() && s.UID == p.UID && !bytes.Equal(s.body, p.body) {
			b.t.Errorf("%s: its body %s is not the last known one, %s of message %d", at, s.body, p.body, p.sequence)
		}
	}
}
