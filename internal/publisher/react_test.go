package publisher

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

func TestClassify(t *testing.T) {
	api := func(code int) error { return apiError(code) }
	for _, c := range []struct {
		err  error
		want reaction
		code string
	}{
		// A conflict on the subject.
		{api(10071), reactReread, "10071"},
		// The broker is busy with an earlier append to the subject, or of the same id.
		{api(10164), reactSoon, "10164"},
		{api(10158), reactSoon, "10158"},
		{api(10163), reactSoon, "10163"},
		// Too large for the stream, for a header, for the client.
		{api(10054), reactReduce, "10054"},
		{api(10097), reactReduce, "10097"},
		{nats.ErrMaxPayload, reactReduce, "max_payload"},
		// Full, out of resources, too fast.
		{api(10077), reactHold, "10077"},
		{api(10002), reactHold, "10002"},
		{api(10023), reactHold, "10023"},
		{api(10028), reactHold, "10028"},
		{api(10047), reactHold, "10047"},
		{api(10167), reactSlower, "10167"},
		// Batches.
		{api(10174), reactNoBatches, "10174"},
		{api(10199), reactNoBatches, "10199"},
		{api(10210), reactNoBatches, "10210"},
		{api(10176), reactUnbatch, "10176"},
		{api(10177), reactUnbatch, "10177"},
		{api(10201), reactReread, "10201"},
		// No stream, another stream, JetStream off.
		{api(10059), reactMissing, "10059"},
		{api(10060), reactMissing, "10060"},
		{api(10076), reactMissing, "10076"},
		{api(10039), reactMissing, "10039"},
		{api(10035), reactMissing, "10035"},
		{api(10109), reactMissing, "10109"},
		{api(10118), reactMissing, "10118"},
		{api(10194), reactMissing, "10194"},
		{jetstream.ErrNoStreamResponse, reactMissing, "no_responders"},
		{nats.ErrNoResponders, reactMissing, "no_responders"},
		// The outcome is unknown.
		{api(10008), reactResend, "10008"},
		{api(10009), reactResend, "10009"},
		{errAckTimeout, reactResend, "timeout"},
		{jetstream.ErrAsyncPublishTimeout, reactResend, "timeout"},
		{nats.ErrTimeout, reactResend, "timeout"},
		{context.DeadlineExceeded, reactResend, "timeout"},
		{nats.ErrDisconnected, reactResend, "disconnected"},
		{nats.ErrConnectionClosed, reactResend, "disconnected"},
		{nats.ErrReconnectBufExceeded, reactResend, "disconnected"},
		{nats.ErrConnectionDraining, reactResend, "disconnected"},
		{ErrNotConnected, reactResend, "disconnected"},
		{errors.Join(ErrNotConnected, nats.ErrNoServers), reactResend, "disconnected"},
		// No permission.
		{&DeniedError{Subject: "kube.x"}, reactDenied, "denied"},
		// What is not known keeps everything.
		{api(19999), reactHold, "19999"},
		{jetstream.ErrInvalidJSAck, reactHold, "client"},
		{errors.New("anything"), reactHold, "client"},
	} {
		for _, err := range []error{c.err, fmt.Errorf("wrapped: %w", c.err)} {
			if got, code := classify(err); got != c.want || code != c.code {
				t.Errorf("%v: got %d %q, want %d %q", err, got, code, c.want, c.code)
			}
		}
	}
}

func TestTroubleReasons(t *testing.T) {
	for _, c := range []struct {
		err  error
		want string
	}{
		{apiError(10077), "stream-full"},
		{apiError(10002), "no-resources"},
		{apiError(10023), "no-resources"},
		{apiError(10047), "no-resources"},
		{apiError(10028), "no-resources"},
		{apiError(10167), "overloaded"},
		{apiError(19999), "refused"},
		{apiError(10059), "no-stream"},
		{apiError(10008), "unavailable"},
		{jetstream.ErrNoStreamResponse, "no-stream"},
		{errAckTimeout, "timeout"},
		{ErrNotConnected, "disconnected"},
		{&DeniedError{Subject: "kube.x"}, "no-permission"},
	} {
		r, code := classify(c.err)
		reason, text := troubleOf("KUBE", r, code, c.err)
		if reason != c.want || text == "" {
			t.Errorf("%v: got %q (%q), want %q", c.err, reason, text, c.want)
		}
	}
}

func TestBackoff(t *testing.T) {
	for n, want := range map[int]time.Duration{
		0: 10, 1: 10, 2: 20, 3: 40, 4: 80, 5: 100, 6: 100, 1000: 100,
	} {
		if got := backoff(n, 10, 100); got != want {
			t.Errorf("after %d failures: %d, want %d", n, got, want)
		}
	}
}

func TestHoldGrowsToItsBound(t *testing.T) {
	hold := time.Duration(0)
	for range 20 {
		next := nextHold(hold)
		if next < hold || next < holdMin || next > holdMax {
			t.Fatalf("after %s: %s", hold, next)
		}
		hold = next
	}
	if hold != holdMax {
		t.Errorf("it ends at %s", hold)
	}
}

func TestJitterStaysAroundItsLength(t *testing.T) {
	const d = 100 * time.Millisecond
	least, most, sum := d, d, time.Duration(0)
	const n = 10000
	for range n {
		j := jitter(d)
		if j < d/2 || j > d/2+d {
			t.Fatalf("%s", j)
		}
		least, most, sum = min(least, j), max(most, j), sum+j
	}
	if least > 6*d/10 || most < 14*d/10 || sum/n < 9*d/10 || sum/n > 11*d/10 {
		t.Errorf("from %s to %s, %s on average", least, most, sum/n)
	}
	if jitter(0) != 0 {
		t.Error("no pause has a jitter")
	}
}

func TestQueueKeepsOrderAndLetsGo(t *testing.T) {
	var q queue[*int]
	next, want := 0, 0
	for round := range 1000 {
		for range round % 7 {
			n := next
			next++
			q.push(&n)
		}
		for range round % 5 {
			if q.len() == 0 {
				break
			}
			if got := *q.first(); got != want {
				t.Fatalf("got %d, want %d", got, want)
			}
			want++
			q.pop()
		}
		if q.len() != next-want {
			t.Fatalf("%d left, want %d", q.len(), next-want)
		}
		for _, item := range q.items[:q.head] {
			if item != nil {
				t.Fatal("what was taken is still held")
			}
		}
		if q.head > q.len()+1 {
			t.Fatalf("%d places of which %d are in use", len(q.items), q.len())
		}
	}
}

func TestFlightList(t *testing.T) {
	var l flightList
	var objects [5]object
	for i := range objects {
		l.push(&objects[i])
	}
	order := func() (out []int) {
		for o := l.first; o != nil; o = o.after {
			for i := range objects {
				if o == &objects[i] {
					out = append(out, i)
				}
			}
		}
		return out
	}
	for _, step := range []struct {
		remove int
		want   string
	}{{2, "[0 1 3 4]"}, {0, "[1 3 4]"}, {4, "[1 3]"}, {1, "[3]"}, {3, "[]"}} {
		l.remove(&objects[step.remove])
		if got := fmt.Sprint(order()); got != step.want {
			t.Errorf("without %d: %s, want %s", step.remove, got, step.want)
		}
	}
	if l.first != nil || l.last != nil {
		t.Error("the list is not empty")
	}
	l.push(&objects[2])
	if l.first != &objects[2] || l.last != l.first {
		t.Error("an object cannot come back")
	}
}
