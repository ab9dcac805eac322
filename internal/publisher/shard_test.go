package publisher

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/deltabridge/deltabridge/internal/change"
	"github.com/deltabridge/deltabridge/internal/message"
)

// scenario runs a test of a publisher in front of a model, in time that only passes where nothing else can happen.
func scenario(t *testing.T, body func(t *testing.T, f *fixture), changes ...func(*Options)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, 1, changes...)
		f.start(t)
		body(t, f)
		synctest.Wait()
		f.broker.check()
		f.end()
	})
}

// known stores an object's first version before the publisher knows of anything.
func known(f *fixture, t *testing.T, name, uid string, rv int) {
	t.Helper()
	f.broker.append(t, 7, pod(change.OpAdded, name, uid, rv))
	s := f.broker.last[podSubject(name)]
	f.ledger.Put(s.subject, s.Stored)
}

// nth returns a script for the nth message on a subject, counted from one.
func nth(subject string, n int, plan scripted) func(*nats.Msg) scripted {
	seen := 0
	return func(m *nats.Msg) scripted {
		if m.Subject == subject {
			if seen++; seen == n {
				return plan
			}
		}
		return scripted{}
	}
}

// TestVersionFailsOnceWhileTheNextWaits: whatever happens to version 10, 11 comes after it, and each once.
func TestVersionFailsOnceWhileTheNextWaits(t *testing.T) {
	for name, plan := range map[string]scripted{
		"lost on its way":          {drop: true},
		"acknowledgement lost":     {dropAck: true},
		"acknowledgement late":     {slow: 5 * time.Second},
		"stream full":              {err: apiError(10077)},
		"account limit":            {err: apiError(10002)},
		"too many requests":        {err: apiError(10167)},
		"busy with an earlier one": {err: apiError(10164)},
		"id in process":            {err: apiError(10158)},
		"no leader":                {err: apiError(10008)},
		"no stream":                {err: jetstream.ErrNoStreamResponse},
		"conflict that is none":    {err: apiError(10071)},
		"unknown error":            {err: apiError(19999)},
		"answer that is no answer": {err: jetstream.ErrInvalidJSAck},
	} {
		t.Run(name, func(t *testing.T) {
			scenario(t, func(t *testing.T, f *fixture) {
				known(f, t, "web", "a", 9)
				f.broker.plan(nth(podSubject("web"), 1, plan))
				f.Publish(pod(change.OpModified, "web", "a", 10))
				f.Publish(pod(change.OpModified, "web", "a", 11))
				f.flush(t)
				equalHistory(t, f, "web", "added a/9", "modified a/10", "modified a/11")
				f.atRest(t)
			})
		})
	}
}

func TestWhatIsSentAgainIsTheSame(t *testing.T) {
	scenario(t, func(t *testing.T, f *fixture) {
		f.broker.plan(func(m *nats.Msg) scripted { return scripted{dropAck: len(f.broker.sent) < 3} })
		f.Publish(pod(change.OpAdded, "web", "a", 1))
		f.flush(t)
		copies := f.broker.copies(podSubject("web"))
		if len(copies) < 3 {
			t.Fatalf("sent %d times", len(copies))
		}
		for _, c := range copies[1:] {
			if c.Msg == copies[0].Msg {
				t.Error("two copies cannot be told apart")
			}
			if !bytes.Equal(c.Data, copies[0].Data) || !maps.EqualFunc(c.Header, copies[0].Header, slices.Equal) {
				t.Errorf("sent again, it differs: %v %s", c.Header, c.Data)
			}
		}
		equalHistory(t, f, "web", "added a/1")
		if n := f.metrics.count("published added"); n != 1 {
			t.Errorf("counted as published %d times", n)
		}
	})
}

// TestDuplicateOfWhatIsGone: the broker remembers the id of a message that somebody removed. Its acknowledgement proves
// nothing, and the message goes again under an id that says so.
func TestDuplicateOfWhatIsGone(t *testing.T) {
	scenario(t, func(t *testing.T, f *fixture) {
		f.Publish(pod(change.OpAdded, "web", "a", 1))
		f.flush(t)
		f.broker.remove(podSubject("web"), 1)
		f.ledger.Forget(podSubject("web")) // as a new session finds it
		f.Publish(pod(change.OpAdded, "web", "a", 1))
		f.flush(t)
		equalHistory(t, f, "web", "added a/1")
		if id := f.broker.last[podSubject("web")].id(); id != "a/1/again/7" {
			t.Errorf("stored under the id %q", id)
		}

		// And once more, while even that id is remembered: it waits until the broker forgets, without a storm.
		f.broker.remove(podSubject("web"), 1)
		f.ledger.Forget(podSubject("web"))
		f.Publish(pod(change.OpAdded, "web", "a", 1))
		f.Publish(pod(change.OpAdded, "other", "b", 2))
		before := f.broker.appendsSoFar()
		begin := time.Now()
		f.flush(t)
		equalHistory(t, f, "web", "added a/1")
		equalHistory(t, f, "other", "added b/2")
		if n := f.broker.appendsSoFar() - before; n > 30 {
			t.Errorf("%d appends in %s", n, time.Since(begin))
		}
		f.atRest(t)
	})
}

// TestLateDuplicateOfWhatIsGone: neither does an acknowledgement that comes after the append was given up.
func TestLateDuplicateOfWhatIsGone(t *testing.T) {
	scenario(t, func(t *testing.T, f *fixture) {
		f.Publish(pod(change.OpAdded, "web", "a", 1))
		f.flush(t)
		f.broker.remove(podSubject("web"), 1)
		f.ledger.Forget(podSubject("web"))
		f.broker.plan(func(*nats.Msg) scripted { return scripted{slow: 4 * time.Second} })
		f.Publish(pod(change.OpAdded, "web", "a", 1))
		time.Sleep(5 * time.Second)
		f.broker.plan(nil)
		f.flush(t)
		equalHistory(t, f, "web", "added a/1")
		f.atRest(t)
	})
}

// TestDuplicateFromAnEarlierLife: the id belongs to a message before the one that the append follows.
func TestDuplicateFromAnEarlierLife(t *testing.T) {
	scenario(t, func(t *testing.T, f *fixture) {
		f.Publish(pod(change.OpAdded, "web", "a", 1))
		f.Publish(pod(change.OpDeleted, "web", "a", 1)) // an error: it comes back as it was
		f.flush(t)
		f.Publish(pod(change.OpAdded, "web", "a", 1))
		f.flush(t)
		if got := f.broker.history(podSubject("web")); len(got) != 3 || got[2] != "added a/1" {
			t.Errorf("stored %q", got)
		}
		if id := f.broker.last[podSubject("web")].id(); id != "a/1/again/7" {
			t.Errorf("stored under the id %q", id)
		}
		f.broker.log = nil // a restored version is not for check
	})
}

func TestWrongLastSequence(t *testing.T) {
	t.Run("ours", func(t *testing.T) {
		// An earlier session stored it, and the broker has forgotten the id.
		scenario(t, func(t *testing.T, f *fixture) {
			known(f, t, "web", "a", 1)
			f.broker.append(t, 7, pod(change.OpModified, "web", "a", 2))
			clear(f.broker.ids)
			f.Publish(pod(change.OpModified, "web", "a", 2))
			f.Publish(pod(change.OpModified, "web", "a", 3))
			f.flush(t)
			equalHistory(t, f, "web", "added a/1", "modified a/2", "modified a/3")
		})
	})
	t.Run("a former writer's, the same", func(t *testing.T) {
		scenario(t, func(t *testing.T, f *fixture) {
			f.broker.append(t, 6, pod(change.OpAdded, "web", "a", 2))
			clear(f.broker.ids)
			f.Publish(pod(change.OpModified, "web", "a", 2))
			f.Publish(pod(change.OpModified, "web", "a", 3))
			f.flush(t)
			equalHistory(t, f, "web", "added a/2", "modified a/3")
			if n := f.metrics.count("published added") + f.metrics.count("published modified"); n != 1 {
				t.Errorf("counted as published %d times", n)
			}
		})
	})
	t.Run("absent", func(t *testing.T) {
		scenario(t, func(t *testing.T, f *fixture) {
			known(f, t, "web", "a", 1)
			f.broker.remove(podSubject("web"), 1)
			f.Publish(pod(change.OpModified, "web", "a", 2))
			f.flush(t)
			equalHistory(t, f, "web", "added a/2")
		})
	})
	t.Run("older by a former writer", func(t *testing.T) {
		scenario(t, func(t *testing.T, f *fixture) {
			known(f, t, "web", "a", 1)
			f.broker.append(t, 6, pod(change.OpModified, "web", "a", 2))
			f.broker.log[0].Epoch = 6
			f.Publish(pod(change.OpModified, "web", "a", 3))
			f.flush(t)
			equalHistory(t, f, "web", "added a/1", "modified a/2", "modified a/3")
		})
	})
	t.Run("newer by a former writer", func(t *testing.T) {
		scenario(t, func(t *testing.T, f *fixture) {
			f.broker.append(t, 6, pod(change.OpAdded, "web", "a", 9))
			f.Publish(pod(change.OpAdded, "web", "a", 3))
			f.Publish(pod(change.OpModified, "web", "a", 9))
			f.Publish(pod(change.OpModified, "web", "a", 10))
			f.flush(t)
			equalHistory(t, f, "web", "added a/9", "modified a/10")
		})
	})
	t.Run("a message before the one that was known", func(t *testing.T) {
		// Somebody removed the last one, or the broker lost it.
		scenario(t, func(t *testing.T, f *fixture) {
			known(f, t, "web", "a", 1)
			f.Publish(pod(change.OpModified, "web", "a", 2))
			f.flush(t)
			f.broker.remove(podSubject("web"), 1)
			f.Publish(pod(change.OpModified, "web", "a", 3))
			f.flush(t)
			equalHistory(t, f, "web", "added a/1", "modified a/3")
			if f.broker.appendsSoFar() > 5 {
				t.Errorf("%d appends", f.broker.appendsSoFar())
			}
		})
	})
	t.Run("although it is right", func(t *testing.T) {
		// As a server answers that cannot load the message.
		scenario(t, func(t *testing.T, f *fixture) {
			known(f, t, "web", "a", 1)
			ends := time.Now().Add(20 * time.Second)
			f.broker.plan(func(m *nats.Msg) scripted {
				if m.Subject == podSubject("web") && time.Now().Before(ends) {
					return scripted{err: apiError(10071)}
				}
				return scripted{}
			})
			f.Publish(pod(change.OpModified, "web", "a", 2))
			f.Publish(pod(change.OpModified, "other", "b", 2))
			f.flush(t)
			equalHistory(t, f, "web", "added a/1", "modified a/2")
			if n := len(f.broker.copies(podSubject("web"))); n > 20 {
				t.Errorf("%d appends", n)
			}
			f.atRest(t)
		})
	})
	t.Run("another stream of that name", func(t *testing.T) {
		scenario(t, func(t *testing.T, f *fixture) {
			for i := range 5 {
				known(f, t, fmt.Sprint("web-", i), "a", i+1)
			}
			f.broker.recreate()
			for round := range 2 {
				for i := range 5 {
					f.Publish(pod(change.OpModified, fmt.Sprint("web-", i), "a", 10*(round+1)+i))
				}
			}
			f.flush(t)
			for i := range 5 {
				equalHistory(t, f, fmt.Sprint("web-", i), fmt.Sprint("added a/1", i), fmt.Sprint("modified a/2", i))
			}
		})
	})
}

// TestForeignMessageIsNotWrittenOver: the object waits, is named, and goes on when the message is gone.
func TestForeignMessageIsNotWrittenOver(t *testing.T) {
	scenario(t, func(t *testing.T, f *fixture) {
		subject := podSubject("web")
		f.broker.mu.Lock()
		f.broker.store(&nats.Msg{Subject: subject, Header: nats.Header{"x": {"y"}}, Data: []byte("not ours")})
		f.broker.mu.Unlock()
		f.Publish(pod(change.OpAdded, "web", "a", 1))
		for i := range 100 {
			f.Publish(pod(change.OpAdded, fmt.Sprint("other-", i), "b", i+2))
		}
		time.Sleep(time.Second)
		if n, _ := f.Pending(); n != 1 {
			t.Errorf("%d changes wait, want 1", n)
		}
		if why := f.Parked()[subject]; !strings.Contains(why, "not one of ours") {
			t.Errorf("parked: %q", why)
		}
		if trouble, ok := f.Trouble(); ok {
			t.Errorf("one object makes trouble for all: %+v", trouble)
		}
		f.Publish(pod(change.OpModified, "web", "a", 200))
		time.Sleep(10 * time.Minute)
		if n := len(f.broker.copies(subject)); n > 30 {
			t.Errorf("tried %d times in ten minutes", n)
		}
		if last := f.broker.last[subject]; string(last.body) != "not ours" {
			t.Error("it was written over")
		}
		f.broker.remove(subject, 1)
		f.broker.mu.Lock()
		f.broker.log = slices.DeleteFunc(f.broker.log, func(s *stored) bool { return string(s.body) == "not ours" })
		f.broker.mu.Unlock()
		f.flush(t)
		equalHistory(t, f, "web", "added a/1", "modified a/200")
		f.atRest(t)
	})
}

// TestDeletionWithoutBody takes the last published state.
func TestDeletionWithoutBody(t *testing.T) {
	deletion := func(uid string, rv int) *change.Change {
		c := pod(change.OpDeleted, "web", uid, rv)
		c.Raw, c.Reason = nil, change.ReasonMissing
		return c
	}
	t.Run("whole", func(t *testing.T) {
		encoder := &recorder{}
		scenario(t, func(t *testing.T, f *fixture) {
			added := pod(change.OpAdded, "web", "a", 1)
			f.Publish(added)
			f.Publish(deletion("a", 1))
			f.flush(t)
			if last := f.broker.last[podSubject("web")]; last.Op != change.OpDeleted || !bytes.Equal(last.body, added.Raw) {
				t.Errorf("%s with the body %s", last.Op, last.body)
			}
			if n := f.metrics.count("published deleted"); n != 1 {
				t.Errorf("counted as published %d times", n)
			}
			if made := encoder.made; len(made) != 2 || made[0].Published || !made[1].Published {
				t.Errorf("the encoder was not told that the body comes from the stream: %+v", made)
			}
		}, func(o *Options) { encoder.Encoder, o.Encoder = o.Encoder, encoder })
	})
	t.Run("reduced", func(t *testing.T) {
		scenario(t, func(t *testing.T, f *fixture) {
			big := pod(change.OpAdded, "web", "a", 1)
			big.Raw = append(big.Raw[:len(big.Raw)-1], `,"data":"`+strings.Repeat("x", 2000)+`"}`...)
			f.broker.setMaxPayload(2000)
			f.Publish(big)
			f.flush(t)
			f.broker.setMaxPayload(1 << 20)
			f.Publish(deletion("a", 1))
			f.flush(t)
			last := f.broker.last[podSubject("web")]
			if last.header.Get(message.HeaderOversize) != "metadata" || !bytes.Contains(last.body, []byte(`"uid":"a"`)) {
				t.Errorf("ce-oversize %q, body %s", last.header.Get(message.HeaderOversize), last.body)
			}
		})
	})
	t.Run("of another object", func(t *testing.T) {
		// The stream was replaced, and the sequence that we know is another object's now.
		scenario(t, func(t *testing.T, f *fixture) {
			known(f, t, "web", "a", 1)
			f.broker.recreate()
			f.broker.append(t, 7, pod(change.OpAdded, "web", "b", 5))
			f.Publish(deletion("a", 1))
			f.flush(t)
			// It matches by chance and cannot be told; but its body is not the other's.
			if last := f.broker.last[podSubject("web")]; bytes.Contains(last.body, []byte(`"uid":"b"`)) {
				t.Errorf("the deletion of a has the body %s", last.body)
			}
			f.broker.log = nil
		})
	})
	t.Run("unreadable", func(t *testing.T) {
		scenario(t, func(t *testing.T, f *fixture) {
			f.Publish(pod(change.OpAdded, "web", "a", 1))
			f.flush(t)
			f.broker.set(func(f *faults) { f.badRead = 1 })
			f.Publish(deletion("a", 1))
			time.Sleep(time.Minute)
			f.broker.set(func(f *faults) { f.badRead = 0 })
			f.flush(t)
			equalHistory(t, f, "web", "added a/1", "deleted a/1") // with the body, as check makes sure
			f.atRest(t)
		})
	})
}

// recorder is an encoder that keeps what it was given.
type recorder struct {
	Encoder
	mu   sync.Mutex
	made []change.Change
}

func (r *recorder) Reduce(c *change.Change, expectedLastSeq uint64, level message.Level) (*message.Message, error) {
	r.mu.Lock()
	r.made = append(r.made, *c)
	r.mu.Unlock()
	return r.Encoder.Reduce(c, expectedLastSeq, level)
}

func TestReplacedObject(t *testing.T) {
	scenario(t, func(t *testing.T, f *fixture) {
		f.Publish(pod(change.OpAdded, "web", "a", 1))
		f.Publish(pod(change.OpModified, "web", "b", 5))
		f.Publish(pod(change.OpModified, "web", "b", 6))
		f.flush(t)
		equalHistory(t, f, "web", "added a/1", "deleted a/1", "added b/5", "modified b/6")
		m := f.broker.log[1]
		if m.header.Get(message.HeaderReason) != "replaced" || !bytes.Contains(m.body, []byte(`"uid":"a"`)) {
			t.Errorf("reason %q, body %s", m.header.Get(message.HeaderReason), m.body)
		}
		f.atRest(t)
	})
}

// TestLateAnswers: the answer to a copy that was given up arrives in each state that its object can be in by then.
func TestLateAnswers(t *testing.T) {
	t.Run("a later copy is in flight", func(t *testing.T) {
		scenario(t, func(t *testing.T, f *fixture) {
			f.broker.plan(nth(podSubject("web"), 1, scripted{slow: 4 * time.Second}))
			f.Publish(pod(change.OpAdded, "web", "a", 1))
			time.Sleep(2 * time.Second)
			f.broker.plan(func(*nats.Msg) scripted { return scripted{dropAck: true} }) // the later copies
			time.Sleep(3 * time.Second)
			f.broker.plan(nil)
			f.Publish(pod(change.OpModified, "web", "a", 2))
			begin := time.Now()
			f.flush(t)
			if took := time.Since(begin); took > time.Second {
				t.Errorf("it took %s: the late answer was not used", took)
			}
			equalHistory(t, f, "web", "added a/1", "modified a/2")
			f.atRest(t)
		})
	})
	t.Run("a read is under way", func(t *testing.T) {
		scenario(t, func(t *testing.T, f *fixture) {
			f.broker.slowRead = 2 * time.Second
			copies := 0
			f.broker.plan(func(*nats.Msg) scripted {
				switch copies++; copies {
				case 1:
					return scripted{slow: 4 * time.Second}
				case 2:
					return scripted{err: apiError(10071)}
				}
				return scripted{slow: time.Second}
			})
			f.Publish(pod(change.OpAdded, "web", "a", 1))
			f.Publish(pod(change.OpModified, "web", "a", 2))
			f.flush(t)
			equalHistory(t, f, "web", "added a/1", "modified a/2")
			f.atRest(t)
		})
	})
	t.Run("the object is delayed", func(t *testing.T) {
		scenario(t, func(t *testing.T, f *fixture) {
			known(f, t, "web", "a", 1)
			f.broker.plan(func(*nats.Msg) scripted {
				if len(f.broker.sent) == 1 {
					return scripted{slow: 4 * time.Second}
				}
				return scripted{err: apiError(10008)}
			})
			f.Publish(pod(change.OpModified, "web", "a", 2))
			time.Sleep(5 * time.Second)
			if n, _ := f.Pending(); n != 0 {
				t.Error("the late answer was not used")
			}
			f.broker.plan(nil)
			f.Publish(pod(change.OpModified, "web", "a", 3))
			f.flush(t)
			equalHistory(t, f, "web", "added a/1", "modified a/2", "modified a/3")
			f.atRest(t)
		})
	})
	t.Run("the object is ready, in a shard that is held", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := newFixture(t, 1, func(o *Options) { o.MaxPending = 1 })
			s := f.shards[0]
			f.broker.plan(func(*nats.Msg) scripted { return scripted{drop: true} })
			turn := func() {
				s.expire(time.Now())
				s.wakeDelayed(time.Now())
				s.pump(time.Now())
			}
			f.Publish(pod(change.OpAdded, "web", "a", 1))
			s.handle(&s.inbox[0])
			turn()
			first := f.broker.copies(podSubject("web"))[0].Msg
			time.Sleep(patience)
			turn()
			time.Sleep(time.Second)
			s.heldUntil = time.Now().Add(time.Hour)
			turn()
			o := s.objects[podSubject("web")]
			if o == nil || !o.queued {
				t.Fatalf("the object is not ready: %+v", o)
			}
			s.acked(first, &jetstream.PubAck{Stream: testStream, Sequence: 1})
			if n, _ := f.Pending(); n != 0 {
				t.Error("the late answer was not used")
			}
			f.Publish(pod(change.OpModified, "web", "a", 2))
			s.handle(&s.inbox[1])
			s.heldUntil = time.Time{}
			turn()
			if o := s.objects[podSubject("web")]; o == nil || o.flight == nil || o.expected != 1 {
				t.Errorf("the next version is not on its way: %+v", o)
			}
		})
	})
}

func TestEndWithAppendsInFlight(t *testing.T) {
	scenario(t, func(t *testing.T, f *fixture) {
		f.broker.set(func(f *faults) { f.dropAck = 1 })
		for i := range 10 {
			f.Publish(pod(change.OpAdded, fmt.Sprint("web-", i), "a", i+1))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begin := time.Now()
		if left := f.Flush(ctx); left != 10 || time.Since(begin) != time.Second {
			t.Errorf("%d left after %s", left, time.Since(begin))
		}
		begin = time.Now()
		f.end()
		if took := time.Since(begin); took > 0 {
			t.Errorf("it took %s to end", took)
		}
	})
}
