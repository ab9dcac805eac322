package e2e

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/deltabridge/deltabridge/integration/check"
	"github.com/deltabridge/deltabridge/integration/harness"
)

// freePort returns a port on which nothing listens.
func freePort(t *testing.T) int {
	t.Helper()
	port, err := harness.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// TestBrokerComesBackElsewhere is case B2.
func TestBrokerComesBackElsewhere(t *testing.T) {
	const outage = 2 * time.Minute // within which a client with the library's defaults gives up
	here, there := freePort(t), freePort(t)
	r := newRigOn(t, harness.StartNATS(t, onPort(here)), configMaps)
	r.set("NATS_URL", fmt.Sprintf("nats://127.0.0.1:%d,nats://127.0.0.1:%d", here, there))
	b := r.start()
	for i := range 10 {
		r.create(configMaps, r.configMap(fmt.Sprintf("c-%d", i), "0"))
	}
	r.require()

	r.nats.Stop()
	change := 0
	harness.Never(t, outage, func() error {
		if change < 200 {
			r.setValue(fmt.Sprintf("c-%d", change%8), change, 1)
			change++
		}
		if !b.Running() {
			return errors.New("the bridge ended")
		}
		return b.Livez(t.Context())
	})
	r.delete(configMaps, r.ns, "c-9")
	if status, text := b.Readyz(t); status == 200 || !strings.Contains(text, "nats") {
		t.Errorf("without a broker the bridge says %d:\n%s", status, text)
	}
	requireNoStorm(t, b)

	r.nats.Change(onPort(there))
	if err := r.nats.Start(); err != nil {
		t.Fatal(err)
	}
	r.check.JS = r.nats.JetStream(t)
	b.WaitReady(t)
	r.setValue("c-8", 0, 1)
	r.require()
}

// TestBrokerRestartsAgainAndAgain cuts the connection while changes are in flight.
func TestBrokerRestartsAgainAndAgain(t *testing.T) {
	r := newRig(t, configMaps)
	r.start()
	for round := range 5 {
		for i := range 20 {
			r.create(configMaps, r.configMap(fmt.Sprintf("c-%d-%d", round, i), "0"))
		}
		r.nats.Stop()
		r.setValue(fmt.Sprintf("c-%d-0", round), 0, 10)
		if err := r.nats.Start(); err != nil {
			t.Fatal(err)
		}
	}
	r.require()
}

// TestStreamIsDeleted takes the stream, and with it all that was published, from under the running bridge.
func TestStreamIsDeleted(t *testing.T) {
	r := newRig(t, configMaps)
	b := r.start()
	r.create(configMaps, r.configMap("a", "0"))
	r.require()
	if err := r.check.JS.DeleteStream(t.Context(), "KUBE"); err != nil {
		t.Fatal(err)
	}
	r.setValue("a", 0, 3)
	// What the stream has forgotten cannot be asked for; the state can.
	r.check.Recording = nil
	harness.Eventually(t, harness.Patience, func() error {
		_, err := r.readStream(t.Context())
		return err
	})
	r.require()
	requireNoStorm(t, b)
}

// large returns a text that no compression makes small.
func large(n int) string {
	var b strings.Builder
	for i := 0; b.Len() < n; i++ {
		fmt.Fprintf(&b, "%x,", i*i*7919)
	}
	return b.String()[:n]
}

// TestLargeObject sends an object close to the default max_payload of NATS, whole.
func TestLargeObject(t *testing.T) {
	r := newRig(t, configMaps)
	r.start()
	r.create(configMaps, r.configMap("large", large(900<<10)))
	r.create(configMaps, r.configMap("small", "1"))
	r.patch(configMaps, r.ns, "large", `{"metadata":{"labels":{"a":"b"}}}`)
	r.delete(configMaps, r.ns, "large")
	s := r.require()
	for _, m := range r.requireStory(s, r.object(configMaps, "large"), "added watch", "modified watch", "deleted watch") {
		if len(m.Data()) < 900<<10 {
			t.Errorf("the body has %d bytes", len(m.Data()))
		}
	}
}

// TestTooLargeObject sends objects above the limit of the broker, and of the stream: their bodies are reduced, and nothing
// else is delayed.
func TestTooLargeObject(t *testing.T) {
	for name, c := range map[string]struct {
		size   int
		stream int32 // max_msg_size, zero for none
	}{
		"max_payload":  {1<<20 - 100, 0},
		"max_msg_size": {100 << 10, 16 << 10},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, configMaps)
			r.check.AllowReduced = true
			r.set("BRIDGE_OVERSIZE", "metadata")
			if c.stream > 0 {
				config := r.stream(func(s *jetstream.StreamConfig) { s.MaxMsgSize = c.stream })
				if _, err := r.check.JS.CreateStream(t.Context(), config); err != nil {
					t.Fatal(err)
				}
			}
			b := r.start()
			r.create(configMaps, r.configMap("a", "1"))
			r.create(configMaps, r.configMap("too-large", large(c.size)))
			r.create(configMaps, r.configMap("b", "1"))
			r.patch(configMaps, r.ns, "too-large", `{"metadata":{"labels":{"a":"b"}}}`)
			r.patch(configMaps, r.ns, "too-large", `{"data":{"value":"small again"}}`)
			s := r.require()
			messages := r.requireStory(s, r.object(configMaps, "too-large"), "added watch", "modified watch", "modified watch")
			for i, m := range messages {
				if isReduced := m.Header.Get("ce-oversize") != ""; isReduced != (i < 2) {
					t.Errorf("version %d is reduced: %t", i, isReduced)
				}
			}
			for _, other := range []string{"a", "b"} {
				for _, m := range s.History(check.Object{Resource: "configmaps", Namespace: r.ns, Name: other}) {
					if m.Header.Get("ce-oversize") != "" {
						t.Errorf("%s is reduced too", other)
					}
				}
			}
			if n := b.Metric(t, "deltabridge_oversize_total"); n < 2 {
				t.Errorf("deltabridge_oversize_total is %v", n)
			}
		})
	}
}
