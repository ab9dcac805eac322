package publisher

import (
	"fmt"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/deltabridge/deltabridge/integration/harness"
)

// TestOrderOfThousandsOfObjects publishes the interleaved changes of many objects, in both content modes and for
// windows of every kind.
func TestOrderOfThousandsOfObjects(t *testing.T) {
	for name, s := range map[string]setup{
		"default":           {},
		"structured":        {structured: true},
		"one in flight":     {pending: 1},
		"little memory":     {bytes: 64 << 10},
		"three, one a time": {pending: 3, bytes: 1},
	} {
		t.Run(name, func(t *testing.T) {
			n := harness.StartNATS(t)
			s.urls = []string{n.URL()}
			r := start(t, s)
			objects, changes := 3000, 20000
			if s.pending > 0 {
				objects, changes = 300, 3000
			}
			w := newWorld(1, 500)
			for range changes {
				r.Publish(w.happen(fmt.Sprint("pod-", w.rng.IntN(objects))))
			}
			r.flush(t)
			w.require(t, n.JetStream(t))
			if n := r.metrics.sum("published"); n != changes {
				t.Errorf("%d were counted as published, want %d", n, changes)
			}
			if n := r.metrics.sum("retried"); n > 0 {
				t.Errorf("%d appends had to be sent again: %v", n, r.metrics.counts)
			}
		})
	}
}

// TestOrderInAReplicatedStream is where the broker answers with errors of its own for appends in process.
func TestOrderInAReplicatedStream(t *testing.T) {
	c := harness.StartNATSCluster(t, 3)
	options := streamOptions()
	options.Replicas, options.Storage = 3, jetstream.FileStorage
	r := start(t, setup{urls: []string{c.URLs()}, options: options})
	w := newWorld(1, 500)
	for range 10000 {
		r.Publish(w.happen(fmt.Sprint("pod-", w.rng.IntN(1000))))
	}
	r.flush(t)
	w.require(t, c.JetStream(t))
}

// TestRestartSendsNothingAgain: a second session, which is given the same objects as the first list would, finds
// everything in the stream; and each session has an epoch of its own.
func TestRestartSendsNothingAgain(t *testing.T) {
	n := harness.StartNATS(t)
	first := start(t, setup{urls: []string{n.URL()}})
	w := newWorld(1, 100)
	for i := range 500 {
		first.Publish(w.touch(fmt.Sprint("pod-", i)))
	}
	first.flush(t)
	first.stop()

	second := start(t, setup{urls: []string{n.URL()}})
	if second.epoch != first.epoch+1 || second.subjects != 500 {
		t.Errorf("epoch %d after %d, %d subjects", second.epoch, first.epoch, second.subjects)
	}
	for _, c := range w.all {
		second.Publish(c)
	}
	second.Publish(w.touch("pod-7"))
	second.flush(t)
	w.require(t, n.JetStream(t))
	if n := second.metrics.count("suppressed unchanged"); n != 500 {
		t.Errorf("%d were suppressed", n)
	}
}

// TestFormerWriterIsFenced lets a former writer go on beside the new one, on the same changes. It meets the new one's
// messages and stops; what it stored until then is what its successor would have written, once.
func TestFormerWriterIsFenced(t *testing.T) {
	n := harness.StartNATS(t)
	former := start(t, setup{urls: []string{n.URL()}})
	w := newWorld(1, 200)
	objects := 200
	for range 2000 {
		former.Publish(w.happen(fmt.Sprint("pod-", w.rng.IntN(objects))))
	}
	var successor *rig
	known := len(w.all)
	successor = start(t, setup{urls: []string{n.URL()}})
	// The successor's first list, and then the same for both.
	for _, c := range w.all[:known] {
		successor.Publish(c)
	}
	for range 4000 {
		c := w.happen(fmt.Sprint("pod-", w.rng.IntN(objects)))
		former.Publish(c)
		successor.Publish(c)
	}
	successor.flush(t)
	harness.Eventually(t, harness.Patience, func() error {
		select {
		case <-former.Fenced():
			return nil
		default:
			return fmt.Errorf("the former writer still publishes")
		}
	})
	w.require(t, n.JetStream(t))
	if successor.metrics.count("fenced") > 0 {
		t.Error("the new writer is fenced")
	}
}
