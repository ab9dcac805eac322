package publisher

import (
	"fmt"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/deltabridge/deltabridge/internal/change"
)

// burst publishes n versions of an object that waits behind its first one, and returns its whole history.
func burst(f *fixture, name string, n int) []string {
	history := make([]string, 0, n)
	for i := range n {
		op := change.OpModified
		if i == 0 {
			op = change.OpAdded
		}
		f.Publish(pod(op, name, name, i+1))
		history = append(history, fmt.Sprintf("%s %s/%d", op, name, i+1))
	}
	return history
}

// Many waiting versions of one object leave as a few batches, in order, and the ledger knows the last one's place.
func TestBatch(t *testing.T) {
	scenario(t, func(t *testing.T, f *fixture) {
		want := burst(f, "web", 1200)
		f.Publish(pod(change.OpAdded, "other", "other", 1))
		f.flush(t)
		equalHistory(t, f, "web", want...)
		equalHistory(t, f, "other", "added other/1")
		if f.broker.batches < 2 || f.broker.appends > 10 {
			t.Errorf("%d batches in %d appends", f.broker.batches, f.broker.appends)
		}
		last := f.broker.last[podSubject("web")]
		if stored, _ := f.ledger.Get(podSubject("web")); stored != last.Stored {
			t.Errorf("the ledger says %+v, the stream %+v", stored, last.Stored)
		}
		if n := f.metrics.count("published modified"); n != 1199 {
			t.Errorf("%d counted", n)
		}
		f.atRest(t)
	})
}

// Everything that can become of an object in one queue: what the stream has is left out, what must be prepared by itself
// ends the batch, and the next one goes on behind it.
func TestBatchOfManyKinds(t *testing.T) {
	scenario(t, func(t *testing.T, f *fixture) {
		known(f, t, "web", "a", 3)
		f.broker.set(func(f *faults) { f.full = true })
		for rv := 1; rv <= 9; rv++ { // the first three are in the stream
			f.Publish(pod(change.OpModified, "web", "a", rv))
		}
		f.Publish(pod(change.OpModified, "web", "a", 9))
		missing := pod(change.OpDeleted, "web", "a", 9)
		missing.Reason, missing.Raw = change.ReasonMissing, nil
		f.Publish(missing)
		for rv := 11; rv <= 15; rv++ {
			f.Publish(pod(change.OpModified, "web", "b", rv))
		}
		for rv := 16; rv <= 20; rv++ { // another uid in the middle
			f.Publish(pod(change.OpModified, "web", "c", rv))
		}
		f.Publish(pod(change.OpDeleted, "web", "c", 21))
		time.Sleep(time.Second)
		f.broker.set(func(f *faults) { f.full = false })
		f.flush(t)
		want := []string{"added a/3"}
		for rv := 4; rv <= 9; rv++ {
			want = append(want, "modified a/"+strconv.Itoa(rv))
		}
		want = append(want, "deleted a/9", "added b/11", "modified b/12", "modified b/13", "modified b/14", "modified b/15", "deleted b/15",
			"added c/16", "modified c/17", "modified c/18", "modified c/19", "modified c/20", "deleted c/21")
		equalHistory(t, f, "web", want...)
		f.broker.check()
		f.atRest(t)
	})
}

// Whatever becomes of a batch, all of its messages are stored once, in order.
func TestBatchFails(t *testing.T) {
	subject := podSubject("web")
	for name, c := range map[string]struct {
		script  func(f *fixture)
		batches int // at least
		most    int // -1 for any number
	}{
		"its acknowledgement is lost": {func(f *fixture) { f.broker.plan(nth(subject, 1, scripted{dropAck: true})) }, 1, 3},
		"it is lost":                  {func(f *fixture) { f.broker.plan(nth(subject, 1, scripted{drop: true})) }, 1, -1},
		"its answer comes late":       {func(f *fixture) { f.broker.plan(nth(subject, 1, scripted{slow: patience + time.Second})) }, 1, -1},
		"it is incomplete":            {func(f *fixture) { f.broker.plan(nth(subject, 1, scripted{err: apiError(codeBatchIncomplete)})) }, 1, -1},
		"too many are in flight":      {func(f *fixture) { f.broker.plan(nth(subject, 1, scripted{err: apiError(codeBatchesInFlight)})) }, 0, -1},
		"it has a duplicate":          {func(f *fixture) { f.broker.plan(nth(subject, 1, scripted{err: apiError(codeBatchDuplicate)})) }, 1, -1},
		"the stream is full for it":   {func(f *fixture) { f.broker.plan(nth(subject, 1, scripted{err: apiError(codeStoreFailed)})) }, 0, -1},
		"it is too large":             {func(f *fixture) { f.broker.plan(nth(subject, 1, scripted{err: apiError(10054)})) }, 1, -1},
		"the stream takes none":       {func(f *fixture) { f.broker.noBatches = true }, 0, 0},
		"another one was first": {func(f *fixture) {
			f.broker.append(f.broker.t, 7, pod(change.OpAdded, "web", "web", 1))
			f.broker.append(f.broker.t, 7, pod(change.OpModified, "web", "web", 2))
		}, 1, -1},
	} {
		t.Run(name, func(t *testing.T) {
			scenario(t, func(t *testing.T, f *fixture) {
				c.script(f)
				want := burst(f, "web", 60)
				f.flush(t)
				equalHistory(t, f, "web", want...)
				if n := f.broker.batches; n < c.batches || c.most >= 0 && n > c.most {
					t.Errorf("%d batches", n)
				}
				f.broker.check()
				f.atRest(t)
			})
		})
	}
}

// A message of a batch whose id the broker remembers, although the message is gone, goes under another id.
func TestBatchWithARememberedID(t *testing.T) {
	scenario(t, func(t *testing.T, f *fixture) {
		want := burst(f, "web", 10)
		f.flush(t)
		f.broker.remove(podSubject("web"), 1<<30)
		f.ledger.Forget(podSubject("web"))
		burst(f, "web", 10)
		f.flush(t)
		equalHistory(t, f, "web", want...)
		f.atRest(t)
	})
}

// A connection that is lost takes half a batch with it.
func TestBatchIsCutOff(t *testing.T) {
	scenario(t, func(t *testing.T, f *fixture) {
		want := burst(f, "web", 400)
		time.Sleep(time.Millisecond)
		f.broker.disconnect(false)
		time.Sleep(time.Minute)
		f.broker.reconnect()
		f.flush(t)
		equalHistory(t, f, "web", want...)
		f.broker.check()
		f.atRest(t)
	})
}

// A batch stays within what may be in flight at once.
func TestBatchesAreBounded(t *testing.T) {
	const bound = 20 << 10
	scenario(t, func(t *testing.T, f *fixture) {
		for i := range 8 {
			burst(f, fmt.Sprint("web-", i), 200)
		}
		f.flush(t)
		f.atRest(t)
		sizes := map[string]int{}
		for _, m := range f.broker.log {
			if id := m.header.Get(headerBatchID); id != "" {
				sizes[id] += (&nats.Msg{Subject: m.subject, Header: m.header, Data: m.body}).Size()
			}
		}
		if len(sizes) == 0 {
			t.Error("no batches")
		}
		for id, size := range sizes {
			if size > bound+len(podSubject("web-0"))*batchMost {
				t.Errorf("batch %s has %d bytes", id, size)
			}
		}
	}, func(o *Options) { o.MaxPendingBytes = bound })
}

// Too many requests, or acknowledgements that take longer and longer, halve the window; it comes back by and by.
func TestWindowAdapts(t *testing.T) {
	for name, overload := range map[string]func(i int) scripted{
		"too many requests": func(int) scripted { return scripted{err: apiError(codeTooManyRequests)} },
		"rising acknowledgement time": func(i int) scripted {
			return scripted{slow: time.Duration(i) * 2 * time.Millisecond}
		},
	} {
		t.Run(name, func(t *testing.T) {
			scenario(t, func(t *testing.T, f *fixture) {
				publishMany(f, "before", 500)
				f.flush(t)
				// The plan is asked by the message's own shard, which alone may look at its window.
				s := f.shards[0]
				i, least := 0, s.maxMessages
				f.broker.plan(func(m *nats.Msg) scripted {
					i++
					if f.shard(m.Subject) == s {
						least = min(least, s.window.messages)
					}
					return overload(i)
				})
				publishMany(f, "web", 400)
				time.Sleep(2 * time.Second)
				f.broker.plan(func(*nats.Msg) scripted { return scripted{} })
				f.flush(t)
				synctest.Wait()
				if least > s.maxMessages/2 {
					t.Errorf("the window was never below %d of %d", least, s.maxMessages)
				}
				for round := range 20 {
					publishMany(f, fmt.Sprint("after-", round), 1000)
					f.flush(t)
				}
				synctest.Wait()
				if got := s.window.messages; got != s.maxMessages {
					t.Errorf("a window of %d of %d after it is over", got, s.maxMessages)
				}
				if len(f.Parked()) > 0 {
					t.Errorf("parked %v", f.Parked())
				}
				f.atRest(t)
			})
		})
	}
}

func TestWindow(t *testing.T) {
	now := time.Unix(1700000000, 0)
	w := newWindow(100, 1000)
	w.congested(now, now)
	w.congested(now.Add(-time.Second), now.Add(time.Second)) // sent before the cut
	if w.messages != 50 || w.bytes() != 500 {
		t.Errorf("halved once: %d messages, %d bytes", w.messages, w.bytes())
	}
	for range 50 {
		w.grow()
	}
	if w.messages != 51 {
		t.Errorf("%d messages after as many acknowledgements, want one more", w.messages)
	}
	w.close()
	for range 49 {
		w.grow()
	}
	if w.messages != 50 {
		t.Errorf("%d messages after an outage, want one for each acknowledgement", w.messages)
	}
	for range 100 {
		w.congested(now.Add(time.Hour), now)
	}
	if w.messages != 1 || w.bytes() != 10 {
		t.Errorf("%d messages, %d bytes at the least", w.messages, w.bytes())
	}
	// A broker that is slow, and always was, is not overloaded.
	w = newWindow(100, 1000)
	for i := range 1000 {
		at := now.Add(time.Duration(i) * time.Second)
		w.answered(at, at.Add(2*time.Second))
	}
	if w.messages != 100 {
		t.Errorf("%d messages with a steady acknowledgement time", w.messages)
	}
}
