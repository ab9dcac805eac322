package publisher

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/deltabridge/deltabridge/integration/harness"
	"github.com/deltabridge/deltabridge/internal/change"
)

// eventuallyTrouble waits until the publisher is in trouble for a reason.
func (r *rig) eventuallyTrouble(t *testing.T, reason string) {
	t.Helper()
	harness.Eventually(t, harness.Patience, func() error {
		if trouble, ok := r.Trouble(); !ok || trouble.Reason != reason || trouble.Message == "" {
			return fmt.Errorf("trouble %v, %+v", ok, trouble)
		}
		return nil
	})
}

// well fails the test if the publisher, with nothing left to do, reports anything.
func (r *rig) well(t *testing.T) {
	t.Helper()
	harness.Eventually(t, harness.Patience, func() error {
		if trouble, ok := r.Trouble(); ok {
			return fmt.Errorf("trouble %+v", trouble)
		}
		if parked := r.Parked(); len(parked) > 0 {
			return fmt.Errorf("parked %v", parked)
		}
		return nil
	})
}

// TestStreamFull is case B1: a stream with discard=new at its limit.
func TestStreamFull(t *testing.T) {
	n := harness.StartNATS(t)
	js := n.JetStream(t)
	config := jetstream.StreamConfig{
		Name: stream, Subjects: []string{prefix + ".>"}, Discard: jetstream.DiscardNew, MaxMsgs: 500, AllowDirect: true,
	}
	if _, err := js.CreateStream(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	r := start(t, setup{urls: []string{n.URL()}})
	w := newWorld(1, 100)
	for i := range 2000 {
		r.Publish(w.touch(fmt.Sprint("pod-", i%400)))
	}
	r.eventuallyTrouble(t, "stream-full")
	appends := r.metrics.sum("retried 10077")
	time.Sleep(3 * time.Second)
	if n := r.metrics.sum("retried 10077") - appends; n > 100 {
		t.Errorf("%d attempts in three seconds", n)
	}
	if left, _ := r.Pending(); left < 1500 {
		t.Errorf("only %d changes are left", left)
	}
	config.MaxMsgs = -1
	if _, err := js.UpdateStream(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	r.flush(t)
	w.require(t, js)
	r.well(t)
}

// TestAccountLimits: the account has less storage than the changes need, and then more.
func TestAccountLimits(t *testing.T) {
	n := harness.StartNATS(t)
	limit := func(bytes int64) {
		t.Helper()
		limits := server.JetStreamAccountLimits{MaxMemory: bytes, MaxStore: bytes, MaxStreams: -1, MaxConsumers: -1, MemoryMaxStreamBytes: -1, StoreMaxStreamBytes: -1, MaxAckPending: -1}
		if err := n.Server().GlobalAccount().UpdateJetStreamLimits(map[string]server.JetStreamAccountLimits{"": limits}); err != nil {
			t.Fatal(err)
		}
	}
	limit(300 << 10)
	r := start(t, setup{urls: []string{n.URL()}})
	w := newWorld(1, 1000)
	for i := range 1000 {
		r.Publish(w.touch(fmt.Sprint("pod-", i%300)))
	}
	r.eventuallyTrouble(t, "no-resources")
	limit(1 << 30)
	r.flush(t)
	w.require(t, n.JetStream(t))
	r.well(t)
}

// TestSizeLimits: what is above the stream's limit, or the server's, is reduced, and nothing else waits for it.
func TestSizeLimits(t *testing.T) {
	for name, limit := range map[string]struct {
		server int32 // max_payload
		stream int32 // max_msg_size
		known  bool  // the publisher knows the stream's
	}{
		"of the server":                  {server: 8 << 10, stream: -1, known: true},
		"of the stream":                  {server: 1 << 20, stream: 8 << 10, known: true},
		"of the stream, lowered by then": {server: 1 << 20, stream: 8 << 10},
	} {
		t.Run(name, func(t *testing.T) {
			n := harness.StartNATS(t, func(o *server.Options) { o.MaxPayload = limit.server })
			js := n.JetStream(t)
			config := jetstream.StreamConfig{Name: stream, Subjects: []string{prefix + ".>"}, MaxMsgSize: limit.stream, AllowDirect: true}
			if _, err := js.CreateStream(t.Context(), config); err != nil {
				t.Fatal(err)
			}
			s := setup{urls: []string{n.URL()}}
			if !limit.known {
				s.maxMsgSize = 1 << 20
			}
			r := start(t, s)
			w, large := newWorld(1, 100), newWorld(2, 20<<10)
			for i := range 20 {
				r.Publish(w.touch("web"))
				c := large.touch(fmt.Sprint("large-", i))
				c.UID, c.RV = "large-"+c.UID, fmt.Sprint(1000+i)
				c.Raw = []byte(strings.NewReplacer(`"uid":"uid-`, `"uid":"large-uid-`, fmt.Sprintf(`"resourceVersion":"%d"`, 101+i), fmt.Sprintf(`"resourceVersion":"%d"`, 1000+i)).Replace(string(c.Raw)))
				r.Publish(c)
			}
			r.flush(t)
			st := read(t, js)
			if got := len(st.History(object("web"))); got != 20 {
				t.Errorf("%d messages about the small one", got)
			}
			for i := range 20 {
				m := st.History(object(fmt.Sprint("large-", i)))
				if len(m) != 1 || m[0].Header.Get("ce-oversize") != "metadata" || !strings.Contains(string(m[0].Body), fmt.Sprintf(`"resourceVersion":"%d"`, 1000+i)) {
					t.Fatalf("large-%d: %+v", i, m)
				}
			}
			if n := r.metrics.count("oversize metadata"); n != 20 {
				t.Errorf("counted %d", n)
			}
			r.well(t)
		})
	}
}

// TestStreamRecreated: the stream is deleted, and made again empty.
func TestStreamRecreated(t *testing.T) {
	n := harness.StartNATS(t)
	js := n.JetStream(t)
	r := start(t, setup{urls: []string{n.URL()}})
	w := newWorld(1, 100)
	for i := range 300 {
		r.Publish(w.touch(fmt.Sprint("pod-", i%100)))
	}
	r.flush(t)
	if err := js.DeleteStream(t.Context(), stream); err != nil {
		t.Fatal(err)
	}
	w.all = nil
	for i := range 300 {
		r.Publish(w.touch(fmt.Sprint("pod-", i%100)))
	}
	r.eventuallyTrouble(t, "no-stream")
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: stream, Subjects: []string{prefix + ".>"}, AllowDirect: true}); err != nil {
		t.Fatal(err)
	}
	r.flush(t)
	w.require(t, js)
	r.well(t)
}

// bridgeUser may do what the bridge needs, less what is denied.
func bridgeUser(deny ...string) *server.User {
	return &server.User{Username: "bridge", Password: "bridge", Permissions: &server.Permissions{
		Publish: &server.SubjectPermission{Deny: deny},
	}}
}

// TestPermissionDenied: on one subject, which is then named while the others go on; on all, which is trouble. Both end
// with the grant, without a reconnect.
func TestPermissionDenied(t *testing.T) {
	t.Run("one subject", func(t *testing.T) {
		n := harness.StartNATS(t, harness.Users(bridgeUser(subject("bad"))))
		r := start(t, setup{urls: []string{n.URL()}, user: "bridge"})
		w := newWorld(1, 100)
		r.Publish(w.touch("bad"))
		r.Publish(w.touch("bad"))
		for i := range 3000 {
			r.Publish(w.touch(fmt.Sprint("pod-", i%500)))
		}
		harness.Eventually(t, harness.Patience, func() error {
			if left, _ := r.Pending(); left != 2 {
				return fmt.Errorf("%d changes wait", left)
			}
			if why := r.Parked()[subject("bad")]; !strings.Contains(why, "no permission to publish on "+subject("bad")) {
				return fmt.Errorf("parked: %q", why)
			}
			return nil
		})
		if trouble, ok := r.Trouble(); ok {
			t.Errorf("one object makes trouble for all: %+v", trouble)
		}
		if err := n.Reload(harness.Users(bridgeUser())); err != nil {
			t.Fatal(err)
		}
		r.flush(t)
		w.require(t, n.JetStream(t))
		r.well(t)
	})
	t.Run("all objects", func(t *testing.T) {
		n := harness.StartNATS(t, harness.Users(bridgeUser(scheme.ObjectsFilter())))
		r := start(t, setup{urls: []string{n.URL()}, user: "bridge"})
		w := newWorld(1, 100)
		for i := range 300 {
			r.Publish(w.touch(fmt.Sprint("pod-", i)))
		}
		r.eventuallyTrouble(t, "no-permission")
		if err := n.Reload(harness.Users(bridgeUser())); err != nil {
			t.Fatal(err)
		}
		r.flush(t)
		w.require(t, n.JetStream(t))
		r.well(t)
	})
	t.Run("reading the stream", func(t *testing.T) {
		// Only the leader can say what a refused append met. Objects without a conflict go on.
		n := harness.StartNATS(t, harness.Users(bridgeUser()))
		js := n.JetStream(t)
		r := start(t, setup{urls: []string{n.URL()}, user: "bridge"})
		w := newWorld(1, 100)
		for i := range 10 {
			r.Publish(w.touch(fmt.Sprint("pod-", i)))
		}
		r.flush(t)
		purge(t, js, subject("pod-3"))
		if err := n.Reload(harness.Users(bridgeUser("$JS.API.STREAM.MSG.GET.>"))); err != nil {
			t.Fatal(err)
		}
		for range 20 {
			for i := range 10 {
				r.Publish(w.touch(fmt.Sprint("pod-", i)))
			}
		}
		harness.Eventually(t, harness.Patience, func() error {
			if left, _ := r.Pending(); left != 20 {
				return fmt.Errorf("%d changes wait", left)
			}
			return nil
		})
		if err := n.Reload(harness.Users(bridgeUser())); err != nil {
			t.Fatal(err)
		}
		r.flush(t)
		if got := len(read(t, js).History(object("pod-3"))); got != 20 {
			t.Errorf("%d messages about the object in conflict", got)
		}
		r.well(t)
	})
}

// TestServerRestart stops and starts the server under load.
func TestServerRestart(t *testing.T) {
	n := harness.StartNATS(t)
	options := streamOptions()
	options.Storage = jetstream.FileStorage
	r := start(t, setup{urls: []string{n.URL()}, options: options, pending: 256})
	w := newWorld(1, 200)
	for range 3 {
		for range 3000 {
			r.Publish(w.happen(fmt.Sprint("pod-", w.rng.IntN(500))))
		}
		n.Stop()
		for range 500 {
			r.Publish(w.happen(fmt.Sprint("pod-", w.rng.IntN(500))))
		}
		r.eventuallyTrouble(t, "disconnected")
		if err := n.Start(); err != nil {
			t.Fatal(err)
		}
	}
	r.flush(t)
	w.require(t, n.JetStream(t))
	r.well(t)
}

// TestConnectionClosed: where the client gives up for good, a new connection is made; case B2: it finds the server at
// the other of its addresses.
func TestConnectionClosed(t *testing.T) {
	n := harness.StartNATS(t)
	other, err := harness.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	options := streamOptions()
	options.Storage = jetstream.FileStorage
	r := start(t, setup{urls: []string{n.URL(), fmt.Sprintf("nats://127.0.0.1:%d", other)}, options: options, pending: 256})
	w := newWorld(1, 200)
	publish := func(n int) {
		for range n {
			r.Publish(w.happen(fmt.Sprint("pod-", w.rng.IntN(500))))
		}
	}
	for range 3 {
		publish(2000)
		closeConnection(t, r)
		publish(100)
		r.flush(t)
	}
	publish(2000)
	closed := closeConnection(t, r)
	publish(100)
	<-closed
	n.Stop()
	n.Change(func(o *server.Options) { o.Port = other })
	publish(100)
	if err := n.Start(); err != nil {
		t.Fatal(err)
	}
	r.flush(t)
	w.require(t, n.JetStream(t))
	r.well(t)
}

// closeConnection closes the client's connection for good.
func closeConnection(t *testing.T, r *rig) <-chan nats.Status {
	t.Helper()
	js, err := r.conn.JetStream()
	if err != nil {
		t.Fatal(err)
	}
	closed := js.Conn().StatusChanged(nats.CLOSED)
	js.Conn().Close()
	return closed
}

// TestDeletionWithoutBody takes the last known state from the stream, in both content modes.
func TestDeletionWithoutBody(t *testing.T) {
	for _, structured := range []bool{false, true} {
		n := harness.StartNATS(t)
		r := start(t, setup{urls: []string{n.URL()}, structured: structured})
		w := newWorld(1, 50)
		for i := range 200 {
			r.Publish(w.touch(fmt.Sprint("pod-", i)))
		}
		for i := range 200 {
			c := w.remove(fmt.Sprint("pod-", i))
			c.Raw, c.Reason = nil, change.ReasonMissing
			r.Publish(c)
		}
		r.flush(t)
		s := w.require(t, n.JetStream(t))
		for i := range 200 {
			h := s.History(object(fmt.Sprint("pod-", i)))
			if len(h) != 2 || string(h[0].Data()) != string(h[1].Data()) {
				t.Fatalf("structured %v: the deletion of pod-%d has the body %s", structured, i, h[len(h)-1].Data())
			}
		}
	}
}

// TestEndWithAppendsInFlight: neither Flush nor Run waits longer than it is told to, and a new session finds the rest.
func TestEndWithAppendsInFlight(t *testing.T) {
	n := harness.StartNATS(t)
	proxy := harness.StartNATSProxy(t, n)
	first := start(t, setup{urls: []string{proxy.URL()}})
	w := newWorld(1, 100)
	seen := 0
	proxy.Script(func(harness.Published) harness.PublishAction {
		if seen++; seen%2 == 0 {
			return harness.Drop
		}
		return harness.DropAck
	})
	for i := range 400 {
		first.Publish(w.touch(fmt.Sprint("pod-", i%200)))
	}
	ctx, cancel := contextWithTimeout(t, 500*time.Millisecond)
	defer cancel()
	if left := first.Flush(ctx); left != 400 {
		t.Errorf("%d changes are left", left)
	}
	begin := time.Now()
	first.stop()
	if took := time.Since(begin); took > 10*time.Second {
		t.Errorf("it took %s to end", took)
	}
	proxy.Script(nil)

	second := start(t, setup{urls: []string{proxy.URL()}})
	for _, c := range w.all {
		second.Publish(c)
	}
	second.flush(t)
	w.require(t, n.JetStream(t))
}
