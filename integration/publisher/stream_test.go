package publisher

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/deltabridge/deltabridge/integration/harness"
	"github.com/deltabridge/deltabridge/internal/checkpoint"
	"github.com/deltabridge/deltabridge/internal/message"
	"github.com/deltabridge/deltabridge/internal/publisher"
)

func contextWithTimeout(t *testing.T, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(t.Context(), d)
}

// TestLedger reads 20,000 subjects, with some on which is a message that is not ours.
func TestLedger(t *testing.T) {
	n := harness.StartNATS(t)
	js := n.JetStream(t)
	r := start(t, setup{urls: []string{n.URL()}})
	w := newWorld(1, 10)
	const objects = 20000
	for i := range objects {
		r.Publish(w.touch(fmt.Sprint("pod-", i)))
	}
	for i := range 1000 { // some have a history
		r.Publish(w.touch(fmt.Sprint("pod-", i)))
	}
	for i := range 500 { // some are gone
		r.Publish(w.remove(fmt.Sprint("pod-", i)))
	}
	r.flush(t)
	for i := range 10 {
		if _, err := js.Publish(t.Context(), subject(fmt.Sprint("foreign-", i)), []byte("not ours")); err != nil {
			t.Fatal(err)
		}
	}
	// Messages elsewhere are not objects'.
	for _, s := range []string{prefix + ".main.core.pods", prefix + ".other.core.pods.default.web", prefix + ".main.a.b.c.d.e"} {
		if _, err := js.Publish(t.Context(), s, nil); err != nil {
			t.Fatal(err)
		}
	}
	second := start(t, setup{urls: []string{n.URL()}})
	if second.subjects != objects+10 || len(second.foreign) != 10 || second.ledger.Len() != objects {
		t.Errorf("%d subjects, %d foreign, %d entries", second.subjects, len(second.foreign), second.ledger.Len())
	}
	for _, f := range second.foreign {
		if !strings.Contains(f.Subject, "foreign-") || f.Sequence == 0 || f.Err == nil {
			t.Errorf("foreign: %+v", f)
		}
	}
	for i := 0; i < objects; i += 777 {
		name := subject(fmt.Sprint("pod-", i))
		want, _ := r.ledger.Get(name)
		if got, ok := second.ledger.Get(name); !ok || got != want {
			t.Errorf("%s: read %+v, written %+v", name, got, want)
		}
	}

	// An unfinished read is an error, not a short ledger.
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, _, err := publisher.ReadLedger(ctx, second.conn, stream, scheme, checkpoint.NewLedger()); err == nil {
		t.Error("a read that was cut short succeeded")
	}
}

// TestEpochs lets contenders take epochs at once: no two get the same, and the records say so.
func TestEpochs(t *testing.T) {
	n := harness.StartNATS(t)
	start(t, setup{urls: []string{n.URL()}}).stop()
	const contenders, each = 4, 15
	var mu sync.Mutex
	owners := map[uint64]int{}
	var running sync.WaitGroup
	for c := range contenders {
		conn, _ := connect(t, setup{urls: []string{n.URL()}})
		encoder := newEncoder(t)
		running.Go(func() {
			last := uint64(0)
			for range each {
				epoch, err := takeEpoch(t, conn, encoder, fmt.Sprint("contender-", c))
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				if owner, taken := owners[epoch]; taken || epoch <= last {
					t.Errorf("contender %d has epoch %d after %d; owner %d", c, epoch, last, owner)
				}
				owners[epoch] = c
				mu.Unlock()
				last = epoch
			}
		})
	}
	running.Wait()
	report := read(t, n.JetStream(t)).Verify()
	if report.Writers != contenders*each+1 || len(report.Violations) > 0 {
		t.Errorf("%s", report)
	}
}

func newEncoder(t *testing.T) *message.Encoder {
	t.Helper()
	e, err := message.NewEncoder(message.Options{Scheme: scheme, Stream: stream, Secrets: message.SecretsOmit})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// TestEpochSurvivesItsRecord: a stream with limits forgets the writer records first. The epochs in the objects' messages
// still count, and so does the broker's memory for ids.
func TestEpochSurvivesItsRecord(t *testing.T) {
	n := harness.StartNATS(t)
	js := n.JetStream(t)
	for range 3 {
		start(t, setup{urls: []string{n.URL()}, holder: "same"}).stop()
	}
	r := start(t, setup{urls: []string{n.URL()}, holder: "same"})
	w := newWorld(1, 10)
	r.Publish(w.touch("web"))
	r.flush(t)
	purge(t, js, scheme.WriterSubject())
	second := start(t, setup{urls: []string{n.URL()}, holder: "same"})
	if second.epoch <= r.epoch {
		t.Errorf("epoch %d after %d", second.epoch, r.epoch)
	}
	second.Publish(w.touch("web"))
	second.flush(t)
	requireStory(t, read(t, js), "web", "added 101", "modified 102")

	// Nothing is left but the ids of the records, which would be epochs 1, 2, …
	purge(t, js, ">")
	third := start(t, setup{urls: []string{n.URL()}, holder: "same"})
	records := 0
	for _, m := range read(t, js).Messages {
		if m.Epoch == fmt.Sprint(third.epoch) {
			records++
		}
	}
	if records != 1 {
		t.Errorf("epoch %d has %d records", third.epoch, records)
	}
}

// TestEnsureStream covers what the bridge may do to the stream in each mode, and what it says when it cannot.
func TestEnsureStream(t *testing.T) {
	type outcome struct {
		err      string // part of the error, empty for none
		warnings int
		config   func(jetstream.StreamConfig) bool
	}
	fits := jetstream.StreamConfig{Name: stream, Subjects: []string{"kube.main", "kube.main.>"}, AllowDirect: true, AllowRollup: true, AllowMsgTTL: true, AllowAtomicPublish: true}
	with := func(change func(*jetstream.StreamConfig)) *jetstream.StreamConfig {
		c := fits
		change(&c)
		return &c
	}
	for name, c := range map[string]struct {
		have   *jetstream.StreamConfig
		mode   publisher.StreamMode
		server func(*server.Options)
		want   outcome
	}{
		"create":                            {mode: publisher.StreamCreate, want: outcome{config: func(c jetstream.StreamConfig) bool { return c.AllowAtomicPublish && c.MaxMsgsPerSubject == -1 }}},
		"create leaves what is there":       {have: with(func(c *jetstream.StreamConfig) { c.MaxMsgsPerSubject = 5 }), mode: publisher.StreamCreate, want: outcome{config: func(c jetstream.StreamConfig) bool { return c.MaxMsgsPerSubject == 5 }}},
		"manage creates":                    {mode: publisher.StreamManage, want: outcome{}},
		"manage updates":                    {have: with(func(c *jetstream.StreamConfig) { c.MaxMsgsPerSubject, c.AllowMsgTTL = 5, false }), mode: publisher.StreamManage, want: outcome{config: func(c jetstream.StreamConfig) bool { return c.MaxMsgsPerSubject == -1 && c.AllowMsgTTL }}},
		"manage adds subjects":              {have: with(func(c *jetstream.StreamConfig) { c.Subjects = []string{"other.>"} }), mode: publisher.StreamManage, want: outcome{config: func(c jetstream.StreamConfig) bool { return len(c.Subjects) == 2 }}},
		"require":                           {have: &fits, mode: publisher.StreamRequire, want: outcome{}},
		"require what is missing":           {mode: publisher.StreamRequire, want: outcome{err: "does not exist, and BRIDGE_STREAM_MODE=require"}},
		"wrong subjects":                    {have: with(func(c *jetstream.StreamConfig) { c.Subjects = []string{"other.>"} }), mode: publisher.StreamCreate, want: outcome{err: "takes other.>, not kube.main"}},
		"wrong retention":                   {have: with(func(c *jetstream.StreamConfig) { c.Retention = jetstream.InterestPolicy }), mode: publisher.StreamCreate, want: outcome{err: "interest retention"}},
		"another stream has the subjects":   {have: with(func(c *jetstream.StreamConfig) { c.Name = "OTHER" }), mode: publisher.StreamCreate, want: outcome{err: "another stream already takes the subjects"}},
		"weaker":                            {have: with(func(c *jetstream.StreamConfig) { c.MaxAge, c.AllowAtomicPublish = time.Hour, false }), mode: publisher.StreamRequire, want: outcome{warnings: 2}},
		"more replicas than there are":      {mode: publisher.StreamCreate, want: outcome{err: "create stream KUBE"}},
		"JetStream off":                     {mode: publisher.StreamCreate, server: harness.WithoutJetStream, want: outcome{err: "JetStream is not enabled"}},
		"no permission for JetStream's API": {mode: publisher.StreamCreate, server: harness.Users(bridgeUser("$JS.API.>")), want: outcome{err: "may lack permission for $JS.API"}},
	} {
		t.Run(name, func(t *testing.T) {
			var changes []func(*server.Options)
			if c.server != nil {
				changes = append(changes, c.server)
			}
			n := harness.StartNATS(t, changes...)
			if c.have != nil {
				if _, err := n.JetStream(t).CreateStream(t.Context(), *c.have); err != nil {
					t.Fatal(err)
				}
			}
			conn, _ := connect(t, setup{urls: []string{n.URL()}, user: "bridge"})
			o := streamOptions()
			o.Mode, o.Storage = c.mode, jetstream.FileStorage
			if strings.Contains(name, "replicas") {
				o.Replicas = 3
			}
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			info, err := publisher.EnsureStream(ctx, conn, o)
			switch {
			case c.want.err != "":
				if err == nil || !strings.Contains(err.Error(), c.want.err) {
					t.Errorf("got %v, want %q", err, c.want.err)
				}
				return
			case err != nil:
				t.Fatal(err)
			}
			if len(info.Warnings) != c.want.warnings || info.Created.IsZero() || info.MaxMsgSize != -1 {
				t.Errorf("%+v", info)
			}
			handle, err := n.JetStream(t).Stream(t.Context(), stream)
			if err != nil {
				t.Fatal(err)
			}
			if c.want.config != nil && !c.want.config(handle.CachedInfo().Config) {
				t.Errorf("the stream is %+v", handle.CachedInfo().Config)
			}
		})
	}
}

// TestNoGoroutineStays: what a connection and a publisher started ends with them, also after faults.
func TestNoGoroutineStays(t *testing.T) {
	n := harness.StartNATS(t)
	proxy := harness.StartNATSProxy(t, n)
	start(t, setup{urls: []string{n.URL()}}).stop() // the server has a stream, and what it runs for it
	before := goleak.IgnoreCurrent()
	r := start(t, setup{urls: []string{proxy.URL()}})
	w := newWorld(1, 10)
	sent := 0
	proxy.Script(func(harness.Published) harness.PublishAction {
		switch sent++; {
		case sent%400 == 0:
			return harness.Cut
		case sent%50 == 0:
			return harness.DropAck
		}
		return harness.Pass
	})
	for i := range 2000 {
		r.Publish(w.touch(fmt.Sprint("pod-", i%300)))
	}
	r.flush(t)
	proxy.Script(func(harness.Published) harness.PublishAction { return harness.DropAck })
	for i := range 100 {
		r.Publish(w.touch(fmt.Sprint("pod-", i)))
	}
	time.Sleep(100 * time.Millisecond)
	js, err := r.conn.JetStream()
	if err != nil {
		t.Fatal(err)
	}
	r.stop()
	if !js.Conn().IsClosed() {
		t.Error("the connection is open")
	}
	if err := goleak.Find(before); err != nil {
		t.Error(err)
	}
}
