package bridge_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/deltabridge/deltabridge/internal/bridge"
	"github.com/deltabridge/deltabridge/internal/informer"
	"github.com/deltabridge/deltabridge/internal/publisher"
)

// Whoever sends requests or elects leaders by the probes must see the stop before it is over.
func TestNotReadyFromTheSignalOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		stop := w.run()
		source, _ := w.source()
		source.mu.Lock()
		source.slow = 10 * time.Second
		source.mu.Unlock()
		done := make(chan struct{})
		go func() {
			defer close(done)
			stop()
		}()
		synctest.Wait()
		if w.events.String() != "intake" {
			t.Errorf("events %s, want the intake still to be stopping", w.events)
		}
		if c := w.check("shutdown"); c.OK || c.Message == "" || w.Status().Ready {
			t.Errorf("ready while the intake stops: %+v", w.Ready())
		}
		<-done
	})
}

// The grace bounds the whole stop: what the intake takes of it, the publisher does not have.
func TestGraceBeginsWithTheSignal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.broker.flush = func(ctx context.Context) int64 {
			<-ctx.Done()
			return 7
		}
		stop := w.run()
		rest(time.Hour) // the grace is not that of the start
		source, _ := w.source()
		source.mu.Lock()
		source.slow = 5 * time.Second
		source.mu.Unlock()
		begin := time.Now()
		if left := stop(); left != 7 {
			t.Errorf("%d changes left, want 7", left)
		}
		if took := time.Since(begin); took != 20*time.Second {
			t.Errorf("the stop took %s, want the grace of 20s", took)
		}
	})
}

// What cannot be made into a client now may be later: a certificate that is mounted late. Meanwhile the epoch is kept,
// for each one taken is a message in the stream.
func TestSourceCannotBeMade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.refuse = errors.New("open /etc/ca.crt: no such file")
		stop := w.run()
		rest(10 * time.Minute)
		if c := w.check("kubernetes"); c.OK || c.Message != "open /etc/ca.crt: no such file" || w.Status().Ready {
			t.Errorf("check %+v", c)
		}
		if n := strings.Count(w.log.String(), "no such file"); n != 1 {
			t.Errorf("logged %d times:\n%s", n, w.log)
		}
		if n := len(w.broker.pubs); n != 1 {
			t.Errorf("%d epochs were taken, want 1", n)
		}
		w.set(func() { w.refuse = nil })
		rest(time.Minute)
		if s := w.Status(); !s.Ready || s.Epoch != 1 {
			t.Errorf("status %+v, checks %+v", s, w.Ready())
		}
		stop()
	})
}

func TestStopWhileTheSourceCannotBeMade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.refuse = errors.New("no")
		stop := w.run()
		rest(time.Minute)
		begin := time.Now()
		if left := stop(); left != 0 || time.Since(begin) > 0 {
			t.Errorf("%d left after %s", left, time.Since(begin))
		}
	})
}

// A failure whose text differs each time is one failure.
func TestChangingTextsAreNoStorm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		n := 0
		w.broker.stream = func() (publisher.StreamInfo, error) {
			n++
			return publisher.StreamInfo{}, fmt.Errorf("read tcp 127.0.0.1:%d: connection reset", 40000+n)
		}
		stop := w.run()
		rest(10 * time.Minute)
		attempts := 0
		w.broker.set(func() { attempts = n })
		if attempts < 30 {
			t.Errorf("%d attempts", attempts)
		}
		if lines := strings.Count(w.log.String(), "connection reset"); lines < 1 || lines > 11 {
			t.Errorf("%d lines in ten minutes:\n%s", lines, w.log)
		}
		if c := w.check("stream"); !strings.HasSuffix(c.Message, fmt.Sprintf("%d: connection reset", 40000+attempts)) {
			t.Errorf("the probe shows %q, not the last failure", c.Message)
		}
		stop()
	})
}

// What a fenced writer held is not reported as published.
func TestFencedReportsWhatWasLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		stop := w.run()
		close(w.broker.last().fenced)
		rest(time.Minute)
		if left := stop(); left != 2 {
			t.Errorf("%d changes left, want the 2 that were pending", left)
		}
		if strings.Contains(w.events.String(), "flush") {
			t.Errorf("a fenced publisher was asked to flush: %s", w.events)
		}
	})
}

func TestStreamLimitIsPassedOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		stop := w.run()
		w.broker.set(func() {
			w.broker.stream = func() (publisher.StreamInfo, error) {
				return publisher.StreamInfo{Created: created, MaxMsgSize: 4000}, nil
			}
		})
		rest(time.Minute)
		stop()
		if p := w.broker.last(); p.maxSize != 4000 {
			t.Errorf("limit %d, want 4000", p.maxSize)
		}
	})
}

// While NATS is away the stream is not asked for, and the session goes on.
func TestBrokerAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		stop := w.run()
		asked := 0
		w.broker.set(func() {
			w.broker.conn = errors.New("no NATS server answers; check NATS_URL")
			w.broker.stream = func() (publisher.StreamInfo, error) {
				asked++
				return publisher.StreamInfo{Created: created}, nil
			}
		})
		rest(5 * time.Minute)
		if c := w.check("nats"); c.OK || !strings.Contains(c.Message, "NATS_URL") || w.Connected() || w.Status().Ready {
			t.Errorf("check %+v", c)
		}
		w.broker.set(func() {
			if asked != 0 {
				t.Errorf("the stream was asked for %d times", asked)
			}
			w.broker.conn = nil
		})
		rest(time.Minute)
		if _, made := w.source(); !w.Connected() || !w.Status().Ready || made != 1 {
			t.Errorf("%d sources, checks %+v", made, w.Ready())
		}
		stop()
		if asked == 0 {
			t.Error("the stream was not asked for again")
		}
	})
}

func TestReadinessOfTheSource(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	tests := []struct {
		name     string
		overview informer.Overview
		want     bridge.Check
		ready    bool
	}{
		{"being asked", informer.Overview{}, bridge.Check{Name: "kubernetes", Message: "the API server is being asked what it has"}, false},
		{"unusable", informer.Overview{Message: "the API server cannot be reached"}, bridge.Check{Name: "kubernetes", Message: "the API server cannot be reached"}, false},
		{"list came, not handed over", informer.Overview{Reached: true, Resources: []informer.ResourceStatus{
			{Resource: pods, Status: informer.Status{State: informer.StateStarting, Position: "9"}},
		}}, bridge.Check{Name: "resource pods", Message: "starting: the first list is under way"}, false},
		{"synced, and the watch fails", informer.Overview{Reached: true, Resources: []informer.ResourceStatus{
			{Resource: pods, Status: informer.Status{State: informer.StateFailing, Synced: true, Settled: true, Verb: "watch", Message: "503"}},
		}}, bridge.Check{Name: "resource pods", OK: true, Message: "failing: watch: 503"}, true},
		{"one namespace forbidden, another starting", informer.Overview{Reached: true, Resources: []informer.ResourceStatus{
			{Resource: pods, Status: informer.Status{State: informer.StateForbidden, Verb: "list", Message: "no"}},
		}}, bridge.Check{Name: "resource pods", Message: "forbidden: list: no"}, false},
		{"unknown", informer.Overview{Reached: true, Unknown: []informer.Unknown{{Pattern: "widgets.example.com", Message: "example.com/v1: down"}}},
			bridge.Check{Name: "resource widgets.example.com", OK: true, Message: "unknown: its API group cannot be discovered: example.com/v1: down"}, true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				stop := w.run()
				w.show(test.overview)
				if got := w.check(test.want.Name); got != test.want || w.Status().Ready != test.ready {
					t.Errorf("check %+v, ready %t, want %+v, %t", got, w.Status().Ready, test.want, test.ready)
				}
				if len(w.Status().Unknown) != len(test.overview.Unknown) || len(w.Resources()) != len(test.overview.Resources) {
					t.Errorf("status %+v", w.Status())
				}
				stop()
			})
		})
	}
}

// A permission that covers few subjects parks every object of the others: the probe must not grow with them.
func TestParkedObjectsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		stop := w.run()
		parked := map[string]string{}
		for i := range 1000 {
			parked[fmt.Sprintf("kube.main.core.pods.default.p%04d", i)] = "no permission"
		}
		p := w.broker.last()
		p.mu.Lock()
		p.parked = parked
		p.mu.Unlock()
		var shown []string
		for _, c := range w.Ready() {
			if strings.HasPrefix(c.Name, "object") {
				shown = append(shown, c.Name+": "+c.Message)
			}
		}
		if len(shown) != 21 || shown[0] != "object kube.main.core.pods.default.p0000: not published: no permission" || shown[20] != "objects: 980 more are not published" {
			t.Errorf("%d lines: %q", len(shown), shown)
		}
		if !w.Status().Ready {
			t.Error("objects with a trouble of their own make the bridge unready")
		}
		stop()
	})
}

// Before there is a session, everything can be asked for.
func TestStatusBeforeTheSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.broker.stream = func() (publisher.StreamInfo, error) { return publisher.StreamInfo{}, errors.New("no stream") }
		stop := w.run()
		if s := w.Status(); s.Ready || s.Resources == nil || w.Leader() || len(w.Resources()) != 0 {
			t.Errorf("status %+v, leader %t", s, w.Leader())
		}
		if m, b := w.Pending(); m != 0 || b != 0 {
			t.Errorf("pending %d, %d", m, b)
		}
		if c := w.check("kubernetes"); c.OK || c.Message != "waiting for the stream" {
			t.Errorf("check %+v", c)
		}
		stop()
	})
}
