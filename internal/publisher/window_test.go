package publisher

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/deltabridge/deltabridge/internal/change"
	"github.com/deltabridge/deltabridge/internal/message"
)

// publishMany publishes the first version of n objects.
func publishMany(f *fixture, prefix string, n int) {
	for i := range n {
		f.Publish(pod(change.OpAdded, fmt.Sprint(prefix, "-", i), fmt.Sprint(prefix, "-", i), i+1))
	}
}

func TestWindowBounds(t *testing.T) {
	for _, pending := range []int{1, 2, 3, 7, 64} {
		scenario(t, func(t *testing.T, f *fixture) {
			publishMany(f, "web", 500)
			f.flush(t)
			if f.broker.most > pending || f.broker.most < min(pending, len(f.shards)) {
				t.Errorf("MaxPending %d: %d were in flight", pending, f.broker.most)
			}
		}, func(o *Options) { o.MaxPending = pending })
	}
}

func TestWindowBoundsBytes(t *testing.T) {
	large := func(i, size int) *change.Change {
		c := pod(change.OpAdded, fmt.Sprint("web-", i), "a", i+1)
		c.Raw = append(c.Raw[:len(c.Raw)-1], `,"data":"`+strings.Repeat("x", size)+`"}`...)
		return c
	}
	const bound = 100 << 10
	for name, size := range map[string]int{"many fit": 1 << 10, "few fit": 40 << 10, "each goes alone": 150 << 10} {
		t.Run(name, func(t *testing.T) {
			scenario(t, func(t *testing.T, f *fixture) {
				for i := range 200 {
					f.Publish(large(i, size))
				}
				f.flush(t)
				if f.broker.mostBytes > max(bound, size+8<<10) {
					t.Errorf("%d bytes were in flight", f.broker.mostBytes)
				}
				if size > bound && f.broker.most > 1 {
					t.Errorf("%d that are larger than the bound were in flight", f.broker.most)
				}
				if f.broker.mostBytes < min(bound/2, size) {
					t.Errorf("only %d bytes were in flight", f.broker.mostBytes)
				}
			}, func(o *Options) { o.MaxPendingBytes = bound })
		})
	}
}

// TestStreamFull: while the broker takes nothing it is probed now and then, nothing is lost, and all of it comes in order
// afterwards.
func TestStreamFull(t *testing.T) {
	scenario(t, func(t *testing.T, f *fixture) {
		f.broker.set(func(f *faults) { f.full = true })
		publishMany(f, "web", 200)
		for i := range 200 {
			f.Publish(pod(change.OpModified, fmt.Sprint("web-", i), fmt.Sprint("web-", i), 1000+i))
		}
		time.Sleep(time.Minute)
		trouble, ok := f.Trouble()
		if !ok || trouble.Reason != "stream-full" || time.Since(trouble.Since) < 59*time.Second || !strings.Contains(trouble.Message, testStream) {
			t.Errorf("trouble %+v", trouble)
		}
		before := f.broker.appendsSoFar()
		if before > 200 {
			t.Errorf("%d appends in the first minute", before)
		}
		time.Sleep(time.Minute)
		if n := f.broker.appendsSoFar() - before; n < 10 || n > 30*len(f.shards) {
			t.Errorf("%d probes in a minute", n)
		}
		if len(f.Parked()) > 0 {
			t.Errorf("parked: %v", f.Parked())
		}
		f.broker.set(func(f *faults) { f.full = false })
		begin := time.Now()
		f.flush(t)
		if took := time.Since(begin); took > 10*time.Second {
			t.Errorf("it took %s to go on", took)
		}
		for i := range 200 {
			equalHistory(t, f, fmt.Sprint("web-", i), fmt.Sprintf("added web-%d/%d", i, i+1), fmt.Sprintf("modified web-%d/%d", i, 1000+i))
		}
		f.atRest(t)
	})
}

// TestRefusalOfOneObject: what the broker refuses of one object alone does not slow the others down for longer than it
// takes to find out.
func TestRefusalOfOneObject(t *testing.T) {
	for name, plan := range map[string]scripted{
		"stream full for it": {err: apiError(10077)}, // messages per subject, or too little room for a large one
		"unknown error":      {err: apiError(19999)},
		"no leader":          {err: apiError(10008)},
		"lost every time":    {drop: true},
	} {
		t.Run(name, func(t *testing.T) {
			scenario(t, func(t *testing.T, f *fixture) {
				bad := podSubject("bad")
				f.broker.plan(func(m *nats.Msg) scripted {
					if m.Subject == bad {
						return plan
					}
					return scripted{}
				})
				f.Publish(pod(change.OpAdded, "bad", "bad", 1))
				f.Publish(pod(change.OpModified, "bad", "bad", 2))
				time.Sleep(10 * time.Minute)
				for minute := range 10 {
					begin := time.Now()
					publishMany(f, fmt.Sprint("web-", minute), 1000)
					for n, _ := f.Pending(); n > 2; n, _ = f.Pending() {
						time.Sleep(time.Millisecond)
					}
					if took := time.Since(begin); took > 500*time.Millisecond {
						t.Errorf("minute %d: a thousand others took %s", minute, took)
					}
					time.Sleep(time.Minute)
				}
				if trouble, ok := f.Trouble(); ok {
					t.Errorf("one object makes trouble for all: %+v", trouble)
				}
				if f.Parked()[bad] == "" {
					t.Errorf("it is not named; parked: %v", f.Parked())
				}
				synctest.Wait()
				for _, s := range f.shards {
					if s.window.messages != s.maxMessages {
						t.Errorf("shard %d has a window of %d", s.index, s.window.messages)
					}
				}
				f.broker.plan(nil)
				f.flush(t)
				equalHistory(t, f, "bad", "added bad/1", "modified bad/2")
				f.atRest(t)
			})
		})
	}
}

// TestPermissionDeniedForOneObject: the object waits and is named; the others have the whole window.
func TestPermissionDeniedForOneObject(t *testing.T) {
	scenario(t, func(t *testing.T, f *fixture) {
		bad := podSubject("bad")
		f.broker.deny(bad, true)
		f.Publish(pod(change.OpAdded, "bad", "bad", 1))
		f.Publish(pod(change.OpModified, "bad", "bad", 2))
		time.Sleep(time.Second)
		for minute := range 5 {
			begin := time.Now()
			publishMany(f, fmt.Sprint("web-", minute), 1000)
			for n, _ := f.Pending(); n > 2; n, _ = f.Pending() {
				time.Sleep(time.Millisecond)
			}
			if took := time.Since(begin); took > 200*time.Millisecond {
				t.Errorf("minute %d: a thousand others took %s", minute, took)
			}
			time.Sleep(time.Minute)
		}
		if trouble, ok := f.Trouble(); ok {
			t.Errorf("one object makes trouble for all: %+v", trouble)
		}
		if why := f.Parked()[bad]; !strings.Contains(why, "no permission to publish on "+bad) {
			t.Errorf("parked: %q", why)
		}
		if n := len(f.broker.copies(bad)); n < 5 || n > 30 {
			t.Errorf("tried %d times in five minutes", n)
		}
		f.broker.deny(bad, false)
		begin := time.Now()
		f.flush(t)
		if took := time.Since(begin); took > time.Minute {
			t.Errorf("it took %s to find the grant", took)
		}
		equalHistory(t, f, "bad", "added bad/1", "modified bad/2")
		f.atRest(t)
	})
}

// TestPermissionDeniedForAll is trouble, found at once, and healed by a grant without a reconnect.
func TestPermissionDeniedForAll(t *testing.T) {
	scenario(t, func(t *testing.T, f *fixture) {
		const n = 6000
		for i := range n {
			f.broker.denied[podSubject(fmt.Sprint("web-", i))] = true
		}
		publishMany(f, "web", n)
		time.Sleep(2 * time.Second)
		if trouble, ok := f.Trouble(); !ok || trouble.Reason != "no-permission" {
			t.Errorf("trouble %+v", trouble)
		}
		before := f.broker.sentSoFar()
		time.Sleep(10 * time.Minute)
		if probes := f.broker.sentSoFar() - before; probes > 10*60*70*len(f.shards) {
			t.Errorf("%d probes in ten minutes", probes)
		}
		if trouble, ok := f.Trouble(); !ok || time.Since(trouble.Since) < 10*time.Minute {
			t.Errorf("trouble %+v", trouble)
		}
		f.broker.mu.Lock()
		clear(f.broker.denied)
		f.broker.mu.Unlock()
		begin := time.Now()
		f.flush(t)
		if took := time.Since(begin); took > 2*time.Minute {
			t.Errorf("it took %s to find the grant", took)
		}
		f.atRest(t)
	})
}

// TestReconnectEndsEveryWait: a grant that comes with a reconnect, as new credentials do, is found at once.
func TestReconnectEndsEveryWait(t *testing.T) {
	scenario(t, func(t *testing.T, f *fixture) {
		f.broker.deny(podSubject("bad"), true)
		f.Publish(pod(change.OpAdded, "bad", "bad", 1))
		time.Sleep(5 * time.Minute)
		f.broker.deny(podSubject("bad"), false)
		f.broker.disconnect(true)
		f.broker.reconnect()
		begin := time.Now()
		f.flush(t)
		if took := time.Since(begin); took > 100*time.Millisecond {
			t.Errorf("it took %s", took)
		}
		f.atRest(t)
	})
}

// TestShortInterruption: what was under way does not wait until it would count as lost.
func TestShortInterruption(t *testing.T) {
	for name, told := range map[string]bool{"the client reports it": true, "the client gave up": false} {
		t.Run(name, func(t *testing.T) {
			scenario(t, func(t *testing.T, f *fixture) {
				f.broker.plan(func(*nats.Msg) scripted { return scripted{slow: time.Second} })
				publishMany(f, "web", 200)
				time.Sleep(500 * time.Millisecond)
				f.broker.disconnect(told)
				f.broker.plan(nil)
				f.broker.reconnect()
				begin := time.Now()
				f.flush(t)
				if took := time.Since(begin); took > time.Second {
					t.Errorf("it took %s to go on", took)
				}
				f.atRest(t)
			})
		})
	}
}

func TestMissingStream(t *testing.T) {
	scenario(t, func(t *testing.T, f *fixture) {
		f.broker.set(func(f *faults) { f.missing = true })
		publishMany(f, "web", 100)
		time.Sleep(time.Minute)
		if trouble, ok := f.Trouble(); !ok || trouble.Reason != "no-stream" {
			t.Errorf("trouble %+v", trouble)
		}
		if n := f.broker.sentSoFar(); n > 200 {
			t.Errorf("%d appends in a minute", n)
		}
		f.broker.set(func(f *faults) { f.missing = false })
		f.flush(t)
		f.atRest(t)
	})
}

// TestDisconnected: nothing is handed to the client while there is no connection, and what was under way goes again.
func TestDisconnected(t *testing.T) {
	for name, told := range map[string]bool{"the client reports it": true, "the client gave up": false} {
		t.Run(name, func(t *testing.T) {
			scenario(t, func(t *testing.T, f *fixture) {
				f.broker.plan(func(*nats.Msg) scripted { return scripted{slow: time.Second} })
				publishMany(f, "web", 200)
				time.Sleep(500 * time.Millisecond)
				f.broker.disconnect(told)
				f.broker.plan(nil)
				time.Sleep(time.Minute)
				if trouble, ok := f.Trouble(); !ok || trouble.Reason != "disconnected" {
					t.Errorf("trouble %+v", trouble)
				}
				f.broker.reconnect()
				begin := time.Now()
				f.flush(t)
				if took := time.Since(begin); took > time.Second {
					t.Errorf("it took %s to go on", took)
				}
				for i := range 200 {
					equalHistory(t, f, fmt.Sprint("web-", i), fmt.Sprintf("added web-%d/%d", i, i+1))
				}
				f.atRest(t)
			})
		})
	}
}

// TestSlowBroker: a leader that answers later than patience lasts still gets everything done, and is not sent
// everything again and again.
func TestSlowBroker(t *testing.T) {
	for _, slow := range []time.Duration{2 * time.Second, 4 * time.Second, 10 * time.Second, 20 * time.Second} {
		t.Run(slow.String(), func(t *testing.T) {
			scenario(t, func(t *testing.T, f *fixture) {
				f.broker.plan(func(*nats.Msg) scripted { return scripted{slow: slow} })
				const n = 400
				publishMany(f, "web", n)
				begin := time.Now()
				f.flush(t)
				// The window is 64; beyond it everything waits for the answers of what is in flight.
				if took := time.Since(begin); took > 5*n/64*slow+time.Minute {
					t.Errorf("it took %s", took)
				}
				if sent := f.broker.sentSoFar(); sent > 2*n {
					t.Errorf("%d messages were sent %d times", n, sent)
				}
				f.atRest(t)
			})
		})
	}
}

// TestLostBurst: a leader that steps down drops what it has queued. All of it goes again after the least patience, for
// later appends show that the broker is not slow.
func TestLostBurst(t *testing.T) {
	scenario(t, func(t *testing.T, f *fixture) {
		f.broker.plan(func(*nats.Msg) scripted { return scripted{drop: true} })
		publishMany(f, "web", 60)
		time.Sleep(10 * time.Millisecond)
		f.broker.plan(nil)
		publishMany(f, "other", 60)
		begin := time.Now()
		f.flush(t)
		if took := time.Since(begin); took > patience+time.Second {
			t.Errorf("it took %s", took)
		}
		f.atRest(t)
	})
}

// TestTroubleEndsWhenNothingWaits: the last change that waited turned out to be in the stream.
func TestTroubleEndsWhenNothingWaits(t *testing.T) {
	scenario(t, func(t *testing.T, f *fixture) {
		known(f, t, "web", "a", 1)
		f.broker.set(func(f *faults) { f.full = true })
		f.Publish(pod(change.OpModified, "web", "a", 2))
		time.Sleep(10 * time.Second)
		if _, ok := f.Trouble(); !ok {
			t.Fatal("no trouble")
		}
		f.broker.append(t, 7, pod(change.OpModified, "web", "a", 3)) // it reaches the stream by another way
		f.broker.set(func(f *faults) { f.full = false })
		f.flush(t)
		f.atRest(t)
	})
}

// TestFenced: a message of a higher epoch ends all sending, wherever it is met, even if it is just what was to be sent.
func TestFenced(t *testing.T) {
	for name, meet := range map[string]func(t *testing.T, f *fixture){
		"in a refused append": func(t *testing.T, f *fixture) {
			known(f, t, "web", "a", 1)
			f.broker.append(t, 8, pod(change.OpModified, "web", "a", 2))
			f.Publish(pod(change.OpModified, "web", "a", 3))
		},
		"in a refused append of the same version": func(t *testing.T, f *fixture) {
			known(f, t, "web", "a", 1)
			f.broker.append(t, 8, pod(change.OpModified, "web", "a", 2))
			clear(f.broker.ids)
			f.Publish(pod(change.OpModified, "web", "a", 2))
		},
		"in a duplicate": func(t *testing.T, f *fixture) {
			known(f, t, "web", "a", 1)
			f.broker.append(t, 8, pod(change.OpModified, "web", "a", 2))
			f.Publish(pod(change.OpModified, "web", "a", 2))
		},
		"in the ledger": func(t *testing.T, f *fixture) {
			// Another one took over before the ledger was read.
			f.broker.append(t, 8, pod(change.OpAdded, "web", "a", 2))
			f.ledger.Put(podSubject("web"), f.broker.last[podSubject("web")].Stored)
			f.Publish(pod(change.OpModified, "web", "a", 3))
		},
	} {
		t.Run(name, func(t *testing.T) {
			scenario(t, func(t *testing.T, f *fixture) {
				meet(t, f)
				select {
				case <-f.Fenced():
				case <-time.After(time.Hour):
					t.Fatal("not fenced")
				}
				synctest.Wait()
				before := f.broker.sentSoFar()
				publishMany(f, "other", 100)
				f.broker.disconnect(true)
				f.broker.reconnect()
				time.Sleep(time.Hour)
				if n := f.broker.sentSoFar() - before; n > 0 {
					t.Errorf("%d messages were sent after that", n)
				}
				if last := f.broker.last[podSubject("web")]; last.Epoch != 8 {
					t.Errorf("the last message is of epoch %d", last.Epoch)
				}
				begin := time.Now()
				ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
				defer cancel()
				if left := f.Flush(ctx); left == 0 || time.Since(begin) > 0 {
					t.Errorf("%d left, after %s", left, time.Since(begin))
				}
				if n := f.metrics.count("fenced"); n != 1 {
					t.Errorf("counted %d times", n)
				}
			})
		})
	}
}

// TestFencedWhileHeld: the shards rest although something is due.
func TestFencedWhileHeld(t *testing.T) {
	scenario(t, func(t *testing.T, f *fixture) {
		f.broker.set(func(f *faults) { f.full = true })
		publishMany(f, "web", 100)
		f.broker.deny(podSubject("denied"), true)
		f.Publish(pod(change.OpAdded, "denied", "d", 1000))
		time.Sleep(10 * time.Second)
		f.fence()
		time.Sleep(time.Hour)
	})
}

// TestSizeLadder: a message above a limit is reduced step by step, and one that cannot be waits alone.
func TestSizeLadder(t *testing.T) {
	large := func(name string, annotation, data int) *change.Change {
		c := pod(change.OpAdded, name, name, 1)
		raw := strings.TrimSuffix(string(c.Raw), `},"spec":{}}`) + `,"annotations":{"a":"` + strings.Repeat("x", annotation) + `"}},"data":"` + strings.Repeat("x", data) + `"}`
		c.Raw = []byte(raw)
		return c
	}
	oversize := func(f *fixture, name string) string {
		last := f.broker.last[podSubject(name)]
		if last == nil {
			return "not stored"
		}
		return last.header.Get(message.HeaderOversize)
	}
	for name, limit := range map[string]func(f *fixture){
		"of the server":                      func(f *fixture) { f.broker.setMaxPayload(4000) },
		"of the stream":                      func(f *fixture) { f.SetMaxMsgSize(4000) },
		"of the stream, which was not known": func(f *fixture) { f.broker.plan(tooLarge(4000)) },
	} {
		t.Run(name, func(t *testing.T) {
			scenario(t, func(t *testing.T, f *fixture) {
				limit(f)
				begin := time.Now()
				f.Publish(large("small", 10, 10))
				f.Publish(large("data", 10, 10000))
				f.Publish(large("annotation", 10000, 10000))
				publishMany(f, "other", 100)
				f.flush(t)
				if took := time.Since(begin); took > 200*time.Millisecond {
					t.Errorf("it took %s", took)
				}
				for name, want := range map[string]string{"small": "", "data": "metadata", "annotation": "identity", "other-7": ""} {
					if got := oversize(f, name); got != want {
						t.Errorf("%s: ce-oversize %q, want %q", name, got, want)
					}
				}
				if m, i := f.metrics.count("oversize metadata"), f.metrics.count("oversize identity"); m != 2 || i != 1 {
					t.Errorf("counted %d metadata, %d identity", m, i)
				}
				// The next version begins from the top.
				f.broker.setMaxPayload(1 << 20)
				f.SetMaxMsgSize(-1)
				f.broker.plan(nil)
				next := large("data", 10, 10000)
				next.RV = "2"
				f.Publish(next)
				f.flush(t)
				if got := oversize(f, "data"); got != "" {
					t.Errorf("the next version has ce-oversize %q", got)
				}
				f.atRest(t)
			})
		})
	}
	for name, limit := range map[string]func(f *fixture){
		"even without a body, of the server": func(f *fixture) { f.broker.setMaxPayload(100) },
		"even without a body, of the stream": func(f *fixture) {
			f.broker.plan(func(m *nats.Msg) scripted {
				if m.Subject == podSubject("large") {
					return scripted{err: apiError(10054)}
				}
				return scripted{}
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			scenario(t, func(t *testing.T, f *fixture) {
				limit(f)
				f.Publish(large("large", 10, 10))
				time.Sleep(10 * time.Minute)
				if why := f.Parked()[podSubject("large")]; !strings.Contains(why, "even without a body") {
					t.Errorf("parked: %q", why)
				}
				if n := f.broker.sentSoFar(); n > 20*4 {
					t.Errorf("%d appends in ten minutes", n)
				}
				f.broker.setMaxPayload(1 << 20)
				f.broker.plan(nil)
				f.flush(t)
				if got := oversize(f, "large"); got != "" {
					t.Errorf("ce-oversize %q", got)
				}
				f.atRest(t)
			})
		})
	}
}

// tooLarge refuses as a stream does whose max_msg_size was lowered.
func tooLarge(limit int) func(*nats.Msg) scripted {
	return func(m *nats.Msg) scripted {
		size := len(m.Data) + len("NATS/1.0\r\n\r\n")
		for name, values := range m.Header {
			size += len(name) + len(values[0]) + 4
		}
		if size > limit {
			return scripted{err: apiError(10054)}
		}
		return scripted{}
	}
}

// TestChangeThatCannotBeEncoded waits alone, and is named.
func TestChangeThatCannotBeEncoded(t *testing.T) {
	scenario(t, func(t *testing.T, f *fixture) {
		broken := pod(change.OpAdded, "broken", "b", 1)
		broken.Raw = []byte("not an object")
		f.Publish(broken)
		publishMany(f, "other", 100)
		time.Sleep(10 * time.Minute)
		if n, _ := f.Pending(); n != 1 || f.Parked()[podSubject("broken")] == "" {
			t.Errorf("%d changes wait; parked: %v", n, f.Parked())
		}
		if trouble, ok := f.Trouble(); ok {
			t.Errorf("trouble %+v", trouble)
		}
	})
}

// TestManyParkedObjectsDoNotFillTheLog is about the log of those whose broker refuses a whole resource.
func TestManyParkedObjectsDoNotFillTheLog(t *testing.T) {
	lines := &lineCounter{}
	scenario(t, func(t *testing.T, f *fixture) {
		for i := range 1000 {
			f.broker.denied[podSubject(fmt.Sprint("web-", i))] = true
		}
		publishMany(f, "web", 1000)
		time.Sleep(10 * time.Minute)
		if len(f.Parked()) != 1000 {
			t.Errorf("%d are parked", len(f.Parked()))
		}
		if n := lines.n.Load(); n == 0 || n > 2*parkedLogged {
			t.Errorf("%d lines of log", n)
		}
	}, func(o *Options) { o.Log = lines.logger() })
}
