package bridge_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/deltabridge/deltabridge/internal/bridge"
)

// election is an Elector that the test decides.
type election struct {
	events *events
	turn   chan struct{} // lets the next term begin

	mu      sync.Mutex
	leading bool
	holder  string
	err     error
	lose    func()
}

func (e *election) Run(ctx context.Context, lead func(ctx, lease context.Context)) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-e.turn:
		}
		lease, endLease := context.WithCancel(context.WithoutCancel(ctx))
		term, endTerm := context.WithCancel(ctx)
		e.set(func() {
			e.leading, e.holder = true, "me"
			e.lose = func() {
				e.set(func() { e.leading = false })
				endLease()
				endTerm()
			}
		})
		lead(term, lease)
		e.events.add("term-ended")
		e.set(func() { e.leading, e.holder = false, "another" })
		endTerm()
		endLease()
	}
}

func (e *election) set(f func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	f()
}

func (e *election) Leading() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.leading
}

func (e *election) Holder() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.holder
}

func (e *election) Err() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.err
}

func newElection() (*world, *election) {
	e := &election{turn: make(chan struct{})}
	w := newWorldWith(e)
	e.events = w.events
	return w, e
}

// begin lets a term begin and everything that it sets going.
func (e *election) begin() {
	e.turn <- struct{}{}
	synctest.Wait()
}

func TestStandby(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, e := newElection()
		stop := w.run()
		for _, c := range []struct {
			holder string
			err    error
			want   bridge.Check
		}{
			{"", nil, bridge.Check{OK: true, Message: "standby, nobody leads"}},
			{"pod-7", nil, bridge.Check{OK: true, Message: "standby, pod-7 leads"}},
			{"pod-7", errors.New("leases is forbidden"), bridge.Check{Message: "standby, and cannot take over: leases is forbidden"}},
		} {
			c.want.Name = "leader"
			e.set(func() { e.holder, e.err = c.holder, c.err })
			if got := w.check("leader"); got != c.want || w.Status().Ready != c.want.OK || len(w.Ready()) != 2 {
				t.Errorf("checks %+v, want %+v and NATS", w.Ready(), c.want)
			}
			if s := w.Status().Leader; s == nil || s.Leading || s.Holder != c.holder || (s.Error == "") != (c.err == nil) {
				t.Errorf("status %+v", s)
			}
		}
		w.broker.set(func() { w.broker.conn = errors.New("no NATS server answers") })
		e.set(func() { e.err = nil })
		if w.Status().Ready || w.Leader() {
			t.Error("ready without NATS, or leading")
		}
		if len(w.broker.pubs) != 0 || w.events.String() != "" {
			t.Errorf("a standby took %d epochs and did %s", len(w.broker.pubs), w.events)
		}
		if left := stop(); left != 0 || w.events.String() != "disconnected" {
			t.Errorf("%d left, events %s", left, w.events)
		}
	})
}

func TestTermEndsWithTheDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, e := newElection()
		w.broker.flush = func(context.Context) int64 { return 3 }
		stop := w.run()
		e.begin()
		if c := w.check("leader"); !c.OK || c.Message != "leading" || !w.Leader() || !w.Status().Ready {
			t.Errorf("checks %+v", w.Ready())
		}
		e.set(func() { e.err = errors.New("no answer") })
		if c := w.check("leader"); !c.OK || c.Message != "leading, but renewal fails: no answer" {
			t.Errorf("check %+v", c)
		}
		if left := stop(); left != 3 {
			t.Errorf("%d changes left, want the 3 of the drain", left)
		}
		if want := "intake intake-stopped flush publisher-stopped term-ended disconnected"; w.events.String() != want {
			t.Errorf("order: %s\nwant:  %s", w.events, want)
		}
	})
}

// L1 and L2: the publisher stops before anything else does, without a flush; the next term begins anew.
func TestLostLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, e := newElection()
		stop := w.run()
		for term := range 3 {
			w.events.list = nil
			e.begin()
			if s := w.Status(); !s.Ready || s.Epoch != uint64(term+1) || !w.Leader() {
				t.Errorf("status %+v", s)
			}
			source, _ := w.source()
			source.mu.Lock()
			source.slow = time.Second // the informers take their time
			source.mu.Unlock()
			e.lose()
			synctest.Wait()
			if w.Leader() {
				t.Error("says that it publishes")
			}
			rest(time.Minute)
			if want := "intake publisher-stopped intake-stopped term-ended"; w.events.String() != want {
				t.Errorf("order: %s\nwant:  %s", w.events, want)
			}
			if m, _ := w.Pending(); m != 0 || !w.Status().Ready || len(w.Resources()) != 0 || w.Status().Epoch != 0 {
				t.Errorf("a standby shows what it was: %+v", w.Status())
			}
		}
		if left := stop(); left != 0 {
			t.Errorf("%d changes left; they are the next leader's", left)
		}
	})
}

func TestLeaseLostInTheFlush(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, e := newElection()
		w.broker.flush = func(ctx context.Context) int64 {
			<-ctx.Done()
			return 5
		}
		stop := w.run()
		e.begin()
		begin := time.Now()
		time.AfterFunc(3*time.Second, e.lose)
		if left := stop(); left != 5 || time.Since(begin) != 3*time.Second {
			t.Errorf("%d left after %s, want 5 after 3s", left, time.Since(begin))
		}
	})
}

func TestLeaseLostWhileAPhaseFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, e := newElection()
		w.broker.resume = func() error { return errors.New("no permission to publish") }
		stop := w.run()
		e.begin()
		rest(time.Minute)
		if c := w.check("ledger"); c.OK {
			t.Errorf("check %+v", c)
		}
		e.lose()
		synctest.Wait()
		if c := w.check("leader"); !w.Status().Ready || c.Message != "standby, another leads" {
			t.Errorf("checks %+v", w.Ready())
		}
		w.broker.set(func() { w.broker.resume = nil })
		e.begin()
		if !w.Status().Ready {
			t.Errorf("checks %+v", w.Ready())
		}
		stop()
	})
}

// With an election a fenced bridge makes way, and is there again when its turn comes.
func TestFencedLeaderStepsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, e := newElection()
		stop := w.run()
		e.begin()
		close(w.broker.last().fenced)
		rest(time.Minute)
		if want := "intake intake-stopped publisher-stopped term-ended"; w.events.String() != want {
			t.Errorf("order: %s\nwant:  %s", w.events, want)
		}
		if !w.Status().Ready || w.Leader() {
			t.Errorf("checks %+v", w.Ready())
		}
		e.begin()
		if s := w.Status(); !s.Ready || s.Epoch != 2 || !w.Leader() {
			t.Errorf("status %+v", s)
		}
		if left := stop(); left != 0 {
			t.Errorf("%d left", left)
		}
	})
}
