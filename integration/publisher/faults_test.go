package publisher

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/deltabridge/deltabridge/integration/harness"
	"github.com/deltabridge/deltabridge/internal/change"
	"github.com/deltabridge/deltabridge/internal/message"
)

// recording keeps what passes a proxy, and does with it what a plan says.
type recording struct {
	mu   sync.Mutex
	seen []harness.Published
	plan func(nth int, m harness.Published) harness.PublishAction // counts from one, by subject
	nth  map[string]int
}

func record(p *harness.NATSProxy, plan func(nth int, m harness.Published) harness.PublishAction) *recording {
	r := &recording{plan: plan, nth: map[string]int{}}
	p.Script(func(m harness.Published) harness.PublishAction {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.seen = append(r.seen, m)
		r.nth[m.Subject]++
		if r.plan == nil {
			return harness.Pass
		}
		return r.plan(r.nth[m.Subject], m)
	})
	return r
}

// of returns what was sent to a subject.
func (r *recording) of(subject string) []harness.Published {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(r.seen), func(m harness.Published) bool { return m.Subject != subject })
}

// TestOneVersionFails is case O1: version 10 fails once, in each way in which it can, while 11 waits.
func TestOneVersionFails(t *testing.T) {
	for name, action := range map[string]harness.PublishAction{
		"lost on its way":           harness.Drop,
		"acknowledgement lost":      harness.DropAck,
		"refused by the broker":     harness.Refuse,
		"connection cut right then": harness.Cut,
	} {
		t.Run(name, func(t *testing.T) {
			n := harness.StartNATS(t)
			proxy := harness.StartNATSProxy(t, n)
			r := start(t, setup{urls: []string{proxy.URL()}})
			w := newWorld(1, 10)
			for range 9 {
				r.Publish(w.touch("web"))
			}
			r.flush(t)
			failed := record(proxy, func(nth int, m harness.Published) harness.PublishAction {
				if nth == 1 && m.Subject == subject("web") {
					return action
				}
				return harness.Pass
			})
			r.Publish(w.touch("web"))
			r.Publish(w.touch("web"))
			r.Publish(w.touch("other"))
			r.flush(t)
			w.require(t, n.JetStream(t))

			copies := failed.of(subject("web"))
			if len(copies) != 3 {
				t.Fatalf("%d messages for two versions, of which one failed once", len(copies))
			}
			if !slices.Equal(headerLines(copies[0]), headerLines(copies[1])) || string(copies[0].Body) != string(copies[1].Body) {
				t.Errorf("sent again, it differs:\n%s%s\n%s%s", copies[0].Header, copies[0].Body, copies[1].Header, copies[1].Body)
			}
			if r.metrics.sum("retried") == 0 {
				t.Error("no retry was counted")
			}
		})
	}
}

// headerLines are a message's headers, whose order on the wire means nothing.
func headerLines(m harness.Published) []string {
	lines := strings.Split(strings.TrimSpace(m.Header), "\r\n")
	slices.Sort(lines)
	return lines
}

// TestManyFaults loses messages and acknowledgements and cuts connections under load.
func TestManyFaults(t *testing.T) {
	n := harness.StartNATS(t)
	proxy := harness.StartNATSProxy(t, n)
	r := start(t, setup{urls: []string{proxy.URL()}, pending: 256})
	w := newWorld(1, 100)
	sent := 0
	record(proxy, func(int, harness.Published) harness.PublishAction {
		switch sent++; {
		case sent%977 == 0:
			return harness.Cut
		case sent%97 == 0:
			return harness.Drop
		case sent%89 == 0:
			return harness.DropAck
		case sent%83 == 0:
			return harness.Refuse
		}
		return harness.Pass
	})
	for range 5000 {
		r.Publish(w.happen(fmt.Sprint("pod-", w.rng.IntN(500))))
	}
	r.flush(t)
	w.require(t, n.JetStream(t))
}

// TestDuplicateOfWhatIsGone: the broker remembers the id of a message that was purged; its acknowledgement is not
// believed.
func TestDuplicateOfWhatIsGone(t *testing.T) {
	n := harness.StartNATS(t)
	js := n.JetStream(t)
	first := start(t, setup{urls: []string{n.URL()}})
	w := newWorld(1, 10)
	first.Publish(w.touch("web"))
	first.flush(t)
	first.stop()
	purge(t, js, subject("web"))

	second := start(t, setup{urls: []string{n.URL()}})
	second.Publish(w.all[0])
	second.Publish(w.touch("web"))
	second.flush(t)
	s := w.require(t, js)
	if id, want := s.History(object("web"))[0].ID, fmt.Sprintf("uid-1/101/again/%d", second.epoch); id != want {
		t.Errorf("stored under the id %q, want %q", id, want)
	}
}

func purge(t *testing.T, js jetstream.JetStream, subject string) {
	t.Helper()
	handle, err := js.Stream(t.Context(), stream)
	if err != nil {
		t.Fatal(err)
	}
	if err := handle.Purge(t.Context(), jetstream.WithPurgeSubject(subject)); err != nil {
		t.Fatal(err)
	}
}

// TestWrongLastSequence: what is found in the place of the message that was expected decides.
func TestWrongLastSequence(t *testing.T) {
	// other appends what another writer of the given epoch would.
	other := func(t *testing.T, js jetstream.JetStream, epoch uint64, c *change.Change) {
		t.Helper()
		e, err := message.NewEncoder(message.Options{Scheme: scheme, Stream: stream, Secrets: message.SecretsOmit, Epoch: epoch})
		if err != nil {
			t.Fatal(err)
		}
		handle, err := js.Stream(t.Context(), stream)
		if err != nil {
			t.Fatal(err)
		}
		last := uint64(0)
		if m, lastErr := handle.GetLastMsgForSubject(t.Context(), subject("web")); lastErr == nil {
			last = m.Sequence
		}
		m, err := e.Encode(c, last)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := js.PublishMsg(t.Context(), &nats.Msg{Subject: m.Subject, Header: m.Header, Data: m.Body}); err != nil {
			t.Fatal(err)
		}
	}
	begin := func(t *testing.T, epochs int) (*rig, *world, jetstream.JetStream) {
		n := harness.StartNATS(t)
		for range epochs {
			start(t, setup{urls: []string{n.URL()}}).stop()
		}
		r := start(t, setup{urls: []string{n.URL()}})
		w := newWorld(1, 10)
		r.Publish(w.touch("web"))
		r.flush(t)
		return r, w, n.JetStream(t)
	}
	t.Run("ours", func(t *testing.T) {
		r, w, js := begin(t, 0)
		c := w.touch("web")
		other(t, js, r.epoch, c)
		r.Publish(c)
		r.Publish(w.touch("web"))
		r.flush(t)
		requireStory(t, w.require(t, js), "web", "added 101", "modified 102", "modified 103")
	})
	t.Run("absent", func(t *testing.T) {
		r, w, js := begin(t, 0)
		purge(t, js, subject("web"))
		r.Publish(w.touch("web"))
		r.flush(t)
		requireStory(t, read(t, js), "web", "added 102")
	})
	t.Run("the one before", func(t *testing.T) {
		r, w, js := begin(t, 0)
		r.Publish(w.touch("web"))
		r.flush(t)
		handle, err := js.Stream(t.Context(), stream)
		if err != nil {
			t.Fatal(err)
		}
		last, err := handle.GetLastMsgForSubject(t.Context(), subject("web"))
		if err != nil {
			t.Fatal(err)
		}
		if err := handle.DeleteMsg(t.Context(), last.Sequence); err != nil {
			t.Fatal(err)
		}
		r.Publish(w.touch("web"))
		r.flush(t)
		requireStory(t, read(t, js), "web", "added 101", "modified 103")
	})
	t.Run("older by a former writer", func(t *testing.T) {
		r, w, js := begin(t, 3)
		purge(t, js, subject("web")) // epochs must not fall on a subject
		other(t, js, r.epoch-1, w.touch("web"))
		r.Publish(w.touch("web"))
		r.flush(t)
		if got := story(read(t, js), "web"); !slices.Equal(got, []string{"modified 102", "modified 103"}) {
			t.Errorf("stored %q", got)
		}
	})
	t.Run("newer by a former writer", func(t *testing.T) {
		r, w, js := begin(t, 3)
		purge(t, js, subject("web"))
		older, newer := w.touch("web"), w.touch("web")
		other(t, js, r.epoch-1, newer)
		r.Publish(older)
		r.Publish(newer)
		r.Publish(w.touch("web"))
		r.flush(t)
		if got := story(read(t, js), "web"); !slices.Equal(got, []string{"modified 103", "modified 104"}) {
			t.Errorf("stored %q", got)
		}
	})
	t.Run("of a higher epoch", func(t *testing.T) {
		r, w, js := begin(t, 0)
		c := w.touch("web")
		other(t, js, r.epoch+1, c)
		r.Publish(c) // the very same
		select {
		case <-r.Fenced():
		case <-time.After(harness.Patience):
			t.Fatal("not fenced")
		}
		r.Publish(w.touch("web"))
		for i := range 100 {
			r.Publish(w.touch(fmt.Sprint("pod-", i)))
		}
		harness.Never(t, time.Second, func() error {
			if n := len(read(t, js).Objects("")); n != 2 {
				return fmt.Errorf("%d messages", n)
			}
			return nil
		})
		if left := r.Flush(t.Context()); left != 102 { // with the one that met it
			t.Errorf("%d changes are left", left)
		}
	})
	t.Run("foreign", func(t *testing.T) {
		n := harness.StartNATS(t)
		js := n.JetStream(t)
		r := start(t, setup{urls: []string{n.URL()}})
		if _, err := js.Publish(t.Context(), subject("web"), []byte("not ours")); err != nil {
			t.Fatal(err)
		}
		w := newWorld(1, 10)
		r.Publish(w.touch("web"))
		for i := range 100 {
			r.Publish(w.touch(fmt.Sprint("pod-", i)))
		}
		harness.Eventually(t, harness.Patience, func() error {
			if left, _ := r.Pending(); left != 1 {
				return fmt.Errorf("%d changes wait", left)
			}
			return nil
		})
		if why := r.Parked()[subject("web")]; !strings.Contains(why, "not one of ours") {
			t.Errorf("parked: %q", why)
		}
		handle, err := js.Stream(t.Context(), stream)
		if err != nil {
			t.Fatal(err)
		}
		if m, err := handle.GetLastMsgForSubject(t.Context(), subject("web")); err != nil || string(m.Data) != "not ours" {
			t.Errorf("it was written over: %v, %v", m, err)
		}
	})
}

// TestSlowLeader: everything takes longer than the publisher's patience lasts.
func TestSlowLeader(t *testing.T) {
	n := harness.StartNATS(t)
	proxy := harness.StartNATSProxy(t, n)
	r := start(t, setup{urls: []string{proxy.URL()}, pending: 64})
	w := newWorld(1, 10)
	slow := 0
	proxy.Script(func(harness.Published) harness.PublishAction {
		if slow++; slow == 1 || slow == 300 {
			time.Sleep(4 * time.Second) // the connection stands still
		}
		return harness.Pass
	})
	for i := range 600 {
		r.Publish(w.touch(fmt.Sprint("pod-", i%300)))
	}
	r.flush(t)
	w.require(t, n.JetStream(t))
}

// TestWindow counts what is in flight where nothing is ever answered.
func TestWindow(t *testing.T) {
	for _, c := range []struct {
		name        string
		pending     int
		bytes       int64
		padding     int
		least, most int
		mostB       int
		objects     int
	}{
		{name: "messages", pending: 100, padding: 10, least: 100, most: 100, mostB: 1 << 30, objects: 500},
		{name: "one", pending: 1, padding: 10, least: 1, most: 1, mostB: 1 << 30, objects: 50},
		{name: "bytes", pending: 1000, bytes: 200 << 10, padding: 10 << 10, least: 10, most: 20, mostB: 200 << 10, objects: 100},
		{name: "one that is larger than the bound", pending: 1000, bytes: 100 << 10, padding: 300 << 10, least: 1, most: 1, mostB: 400 << 10, objects: 10},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := harness.StartNATS(t)
			proxy := harness.StartNATSProxy(t, n)
			r := start(t, setup{urls: []string{proxy.URL()}, pending: c.pending, bytes: c.bytes})
			w := newWorld(1, c.padding)
			seen := record(proxy, func(int, harness.Published) harness.PublishAction { return harness.DropAck })
			for i := range c.objects {
				r.Publish(w.touch(fmt.Sprint("pod-", i)))
			}
			time.Sleep(time.Second) // well below the time after which it would send again
			seen.mu.Lock()
			messages, bytes := len(seen.seen), 0
			for _, m := range seen.seen {
				bytes += len(m.Header) + len(m.Body)
			}
			seen.mu.Unlock()
			if messages < c.least || messages > c.most || bytes > c.mostB {
				t.Errorf("%d messages of %d bytes in flight", messages, bytes)
			}
			proxy.Script(nil)
			r.flush(t)
			w.require(t, n.JetStream(t))
		})
	}
}
