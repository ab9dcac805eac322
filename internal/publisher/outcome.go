package publisher

import (
	"encoding/json"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/deltabridge/deltabridge/internal/change"
	"github.com/deltabridge/deltabridge/internal/message"
)

const (
	// soon is the pause before the same message is sent again while the broker is busy with an earlier append.
	soon = 5 * time.Millisecond
	// soonAttempts is how often that is tried before the subject's last message is read instead.
	soonAttempts = 20
	// overloadAttempts is how often an append is tried again, with the window halved, while the broker has too many
	// requests, before the broker counts as one that takes nothing.
	overloadAttempts = 5
	// parkedRetry is how often an object that cannot be published for a reason of its own is tried again.
	parkedRetry = time.Minute

	// setbackMin and setbackMax bound the pause of an object whose appends fail while those of others do not.
	setbackMin = 10 * time.Millisecond
	setbackMax = parkedRetry
	// setbacksReported is after how many of them, and reportedAfter after how long, the object is reported. A stream
	// whose leader steps down again and again can lose a message several times.
	setbacksReported = 6
	reportedAfter    = 10 * time.Second
	// blamedObjects is how many objects must fail in a row, with nothing stored in between, for it to be the broker.
	blamedObjects = 3

	// deniedMin and deniedMax bound the pause of an object that the server denies us to publish. The server does not
	// say when that changes. deniedSpacing keeps many such objects from becoming a load, and the server's log from
	// filling with them.
	deniedMin     = time.Second
	deniedMax     = 30 * time.Second
	deniedSpacing = 20 * time.Millisecond
)

// react does what the failure of an object's append calls for.
func (s *shard) react(o *object, err error) {
	r, code := classify(err)
	s.p.options.Metrics.Retried(code)
	if o.batch != nil {
		switch r {
		case reactNoBatches:
			s.batchesAfter = time.Now().Add(batchPause)
			fallthrough
		case reactUnbatch, reactReduce: // nothing of it is stored
			o.unbatch()
			s.makeReady(o)
			return
		case reactHold:
			o.unbatch() // one message may be taken where many are not
		}
	}
	switch r {
	case reactSoon:
		if o.soon++; o.soon < soonAttempts {
			s.delay(o, soon)
			return
		}
		o.soon = 0
		s.startRead(o, readLast, leaderRequest{LastBySubject: o.subject})
	case reactReread:
		s.startRead(o, readLast, leaderRequest{LastBySubject: o.subject})
	case reactReduce:
		o.reset()
		if !s.reduce(o) {
			s.park(o, fmt.Errorf("even without a body the message for %s is too large for the broker: %w", o.subject, err))
			return
		}
		s.makeReady(o)
	case reactDenied:
		s.deny(o, err)
	case reactSlower:
		s.window.congested(o.sent, time.Now())
		if o.overloads++; o.overloads < overloadAttempts {
			s.delay(o, backoff(o.overloads, setbackMin, setbackMax))
			return
		}
		o.overloads = 0
		reason, text := troubleOf(s.p.options.Stream, r, code, err)
		s.setBack(o, reason, text)
	default:
		reason, text := troubleOf(s.p.options.Stream, r, code, err)
		s.setBack(o, reason, text)
	}
}

// setBack handles a failure that may be the broker's or the object's own. The object is to blame once others were stored
// although it failed: between two of its failures, or after it had been sent. The broker is to blame once several objects
// failed that are not, and nothing was stored in between: then the shard waits, else only the object does.
func (s *shard) setBack(o *object, reason, text string) {
	if o.sent.Before(s.alive) || (o.failures > 0 && s.stores > o.storesThen) {
		o.culprit = true
	}
	if o.failures == 0 {
		o.failing = time.Now()
	}
	if !o.culprit && (o.failures == 0 || s.stores > o.storesThen) {
		s.blamed++
	}
	o.failures++
	o.storesThen = s.stores
	switch {
	case o.culprit:
		s.aside(o, reason+": "+text, setbackMax)
	case s.blamed < blamedObjects:
		s.trouble(reason, text)
		s.aside(o, reason+": "+text, holdMax)
	default:
		s.pause(reason, text)
		s.makeReady(o)
	}
}

// aside lets an object wait while others go on, longer each time. Its append stays as it is.
func (s *shard) aside(o *object, why string, most time.Duration) {
	o.setbacks++
	if o.culprit && o.setbacks >= setbacksReported && time.Since(o.failing) > reportedAfter {
		s.report(o, why)
	}
	s.delay(o, backoff(o.setbacks, setbackMin, most))
}

// deny lets an object wait that the server denies us to publish. The message was not stored, but an earlier copy of it
// may have been, so it stays as it is.
func (s *shard) deny(o *object, err error) {
	if o.denials == 0 {
		s.denied++
		s.refused++
		if s.refused >= blamedObjects {
			s.trouble("no-permission", err.Error())
		}
	}
	o.denials++
	s.report(o, err.Error())
	s.delay(o, max(backoff(o.denials, deniedMin, deniedMax), time.Duration(s.denied)*deniedSpacing))
}

// park sets an object aside that cannot be published for a reason of its own. It is not dropped: it is reported, and
// tried again from the start after a while.
func (s *shard) park(o *object, err error) {
	o.reset()
	o.level = message.LevelObject
	s.report(o, err.Error())
	s.delay(o, parkedRetry)
}

// report makes known that an object cannot be published.
func (s *shard) report(o *object, why string) {
	o.parked = true
	s.p.reportParked(o.subject, why)
}

// backoff returns the pause after the nth failure.
func backoff(n int, least, most time.Duration) time.Duration {
	for d := least; d < most; d *= 2 {
		if n--; n <= 0 {
			return d
		}
	}
	return most
}

// startRead reads the stream's leader for an object, which waits for the outcome.
func (s *shard) startRead(o *object, why purpose, request leaderRequest) {
	o.reading = why
	s.reading++
	s.p.read(s, o, request)
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
		reaction, code := classify(err)
		reason, text := troubleOf(s.p.options.Stream, reaction, code, err)
		s.setBack(o, reason, text)
		return
	}
	switch why {
	case readNothing:
	case readBody:
		s.haveBody(o, r)
	case readVerify:
		s.verified(o, r)
	case readLast:
		s.haveLast(o, r)
	}
}

// haveBody completes a change with the object's last published state; without one the message only names the object.
func (s *shard) haveBody(o *object, r *record) {
	c := *o.change
	if r != nil && r.subject == o.subject {
		if stored, err := message.ParseStored(r.header, r.subject, r.sequence); err == nil && stored.UID == c.UID {
			c.Raw, c.Published = bodyOf(r), true
			if c.GVK.Empty() {
				c.GVK = kindOf(c.Raw)
			}
			o.level = levelOf(r)
		}
	}
	o.change = &c
	s.makeReady(o)
}

// kindOf returns the kind of an object, empty if its JSON does not say.
func kindOf(raw []byte) schema.GroupVersionKind {
	var meta metav1.TypeMeta
	if err := json.Unmarshal(raw, &meta); err != nil {
		return schema.GroupVersionKind{}
	}
	return meta.GroupVersionKind()
}

// bodyOf returns the object in a stored message, whichever of the two content modes it has; nil if it has none.
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

// levelOf returns how far the body of a stored message had been reduced, so that what is made of it says so too.
func levelOf(r *record) message.Level {
	for level := message.LevelObject; level < message.LevelNone; level++ {
		if level.String() == r.header.Get(message.HeaderOversize) {
			return level
		}
	}
	return message.LevelObject // a body that was left out altogether is known no more than one that never was
}

// verified handles the message that an acknowledgement called a duplicate. If it is the one that we sent, stored after
// what we expected, all is done. If it is gone, or from an earlier life of the object, the append goes again under an
// id that says so.
func (s *shard) verified(o *object, r *record) {
	if r != nil && r.subject == o.subject && r.id() == o.id {
		stored, err := message.ParseStored(r.header, r.subject, r.sequence)
		switch {
		case err != nil:
			s.park(o, fmt.Errorf("message %d on %s has the id of one of ours and cannot be read: %w", r.sequence, r.subject, err))
			return
		case s.newer(o, stored):
			return
		case r.sequence > o.expected:
			s.stored(o, stored)
			return
		}
	}
	if o.batch != nil {
		o.unbatch()
		s.makeReady(o)
		return
	}
	before := o.again
	o.reset()
	o.again = true
	if before {
		// Even that id is remembered for a message that is gone. The broker forgets in time.
		o.culprit = true
		s.aside(o, "the broker holds it for a duplicate of a message that was removed", setbackMax)
		return
	}
	s.makeReady(o)
}

// haveLast handles the subject's last message after a refused compare-and-set.
func (s *shard) haveLast(o *object, r *record) {
	found := uint64(0)
	if r != nil {
		found = r.sequence
		stored, err := message.ParseStored(r.header, r.subject, r.sequence)
		switch {
		case err != nil:
			s.park(o, fmt.Errorf("message %d on %s is not one of ours and is not written over: %w", r.sequence, r.subject, err))
			return
		case s.newer(o, stored):
			return
		case r.id() == o.id && r.sequence > o.expected:
			s.stored(o, stored) // an earlier copy of this append arrived, or a former writer's
			return
		}
		// The leader's word counts even where it names an older message than was known: messages can be removed, and
		// streams be made anew.
		s.p.options.Ledger.Forget(o.subject)
		s.p.options.Ledger.Put(o.subject, stored)
	} else {
		s.p.options.Ledger.Forget(o.subject)
	}
	expected, batched := o.expected, o.batch != nil
	o.reset()
	if found == expected && batched {
		o.single = true // the broker holds one of it for a duplicate: by itself it will be told which
		s.makeReady(o)
		return
	}
	if found == expected {
		o.culprit = true
		s.aside(o, "the stream refuses an append after the very message that it says is the subject's last", setbackMax)
		return
	}
	s.makeReady(o)
}

// newer reports whether a message is of a newer epoch than ours, after which nothing more is sent. It comes before any
// other look at the message: even where the other writer has stored exactly what we were about to, what follows is its
// to write.
func (s *shard) newer(o *object, stored change.Stored) bool {
	if stored.Epoch <= s.p.options.Epoch {
		return false
	}
	s.p.options.Log.Error("another writer has taken over, nothing more is sent", "subject", o.subject,
		"sequence", stored.Sequence, "epoch", stored.Epoch, "ourEpoch", s.p.options.Epoch)
	s.p.fence()
	s.makeReady(o)
	return true
}
