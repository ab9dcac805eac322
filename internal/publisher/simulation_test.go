package publisher

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/deltabridge/deltabridge/internal/change"
	"github.com/deltabridge/deltabridge/internal/message"
)

// world makes the changes of some objects, as a cluster would.
type world struct {
	rng     *rand.Rand
	rv      int
	uids    int
	names   []string
	uid     map[string]string // of the live objects
	version map[string]int
	changes map[string][]*change.Change // all that happened, by name
}

func newWorld(seed uint64, objects int) *world {
	w := &world{
		rng: rand.New(rand.NewPCG(seed, 2)), uid: map[string]string{}, version: map[string]int{},
		changes: map[string][]*change.Change{},
	}
	for i := range objects {
		w.names = append(w.names, fmt.Sprintf("pod-%d", i))
	}
	return w
}

// happen lets something happen to an object and returns what the informer would make of it.
func (w *world) happen(name string, mayDelete bool) []*change.Change {
	w.rv++
	uid, live := w.uid[name]
	var out []*change.Change
	switch {
	case !live:
		w.uids++
		uid = fmt.Sprintf("uid-%d", w.uids)
		w.uid[name] = uid
		out = append(out, pod(change.OpAdded, name, uid, w.rv))
	case mayDelete && w.rng.IntN(8) == 0:
		delete(w.uid, name)
		c := pod(change.OpDeleted, name, uid, w.rv)
		if w.rng.IntN(2) == 0 { // found missing by a list
			c.Raw, c.Reason, c.RV = nil, change.ReasonMissing, fmt.Sprint(w.version[name])
		}
		out = append(out, c)
	case mayDelete && w.rng.IntN(16) == 0: // another uid under the same name; nobody saw the deletion
		w.uids++
		uid = fmt.Sprintf("uid-%d", w.uids)
		w.uid[name] = uid
		c := pod(change.OpModified, name, uid, w.rv)
		c.Reason = change.ReasonRelist
		out = append(out, c)
	default:
		out = append(out, pod(change.OpModified, name, uid, w.rv))
		if w.rng.IntN(10) == 0 { // a list delivers the same version again
			out = append(out, pod(change.OpModified, name, uid, w.rv))
		}
	}
	w.version[name] = w.rv
	w.changes[name] = append(w.changes[name], out...)
	return out
}

// repeated returns what a resync would hand on now of an object: its state, or, as a list that takes its time has it, one
// that it had before.
func (w *world) repeated(name string, run int) []*change.Change {
	all := w.changes[name]
	if len(all) == 0 {
		return nil
	}
	c := *all[max(0, len(all)-1-w.rng.IntN(4))]
	if c.Op.Gone() {
		return nil
	}
	c.Op, c.Reason, c.Run = change.OpSynced, change.ReasonResync, strconv.Itoa(run)
	if w.rng.IntN(2) == 0 {
		c.Reason = change.ReasonRepair
	} else if w.rng.IntN(2) == 0 {
		c.Raw = nil // known from the stream only
	}
	return []*change.Change{&c}
}

// formerWriter appends what a former leader, which sees the same changes, would append next: the last of the changes, if
// the one before it is what the stream has.
func formerWriter(t *testing.T, b *modelBroker, encoder *message.Encoder, changes []*change.Change) {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := changes[len(changes)-1]
	if b.recreated > 0 {
		// In a new stream, and by chance, another writer's message could have the very sequence that we know from the
		// old one. That a stream was replaced is for the session to notice, which then begins anew.
		return
	}
	if len(changes) > 1 {
		before, last := changes[len(changes)-2], b.last[testScheme.Subject(c.Ref)]
		if last == nil || last.UID != before.UID || last.RV != before.RV || last.Op.Gone() != before.Op.Gone() {
			return
		}
	}
	last, known := b.last[testScheme.Subject(c.Ref)], false
	var stored change.Stored
	if last != nil {
		stored, known = last.Stored, true
		if stored.Epoch > 6 {
			return // it would be fenced
		}
	}
	v := decide(stored, known, c, 0)
	if v.action != actPublish || len(v.change.Raw) == 0 {
		return
	}
	m, err := encoder.Encode(v.change, stored.Sequence)
	if err != nil {
		t.Error(err)
		return
	}
	if r, ok := b.ids[m.ID]; ok && time.Now().Before(r.until) {
		return
	}
	b.store(&nats.Msg{Subject: m.Subject, Header: m.Header, Data: m.Body})
}

// TestSimulation lets everything go wrong that can, at once and in random order, and then checks the guarantees on all
// that was ever stored.
func TestSimulation(t *testing.T) {
	seeds := 60
	if testing.Short() {
		seeds = 10
	}
	if text := os.Getenv("PUBLISHER_SEEDS"); text != "" { // for a long search
		seeds, _ = strconv.Atoi(text)
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { simulate(t, uint64(seed)) })
		})
	}
}

func simulate(t *testing.T, seed uint64) {
	f := newFixture(t, seed, func(o *Options) {
		o.MaxPending, o.Batches = []int{1, 3, 64}[seed%3], seed%4 < 2
	})
	b := f.broker
	former := testEncoder(t, 6)
	w := newWorld(seed, 12)
	rng := rand.New(rand.NewPCG(seed, 3))

	// done notes which changes are finished, and that they are in order for each object.
	var mu sync.Mutex
	done := map[*change.Change]int{}
	next := map[string]int{}
	publish := func(name string, cs []*change.Change) {
		for _, c := range cs {
			mu.Lock()
			place := next[name+" accepted"]
			next[name+" accepted"]++
			mu.Unlock()
			c.Done = func() {
				mu.Lock()
				defer mu.Unlock()
				done[c]++
				if next[name] != place {
					t.Errorf("%s: change %d is done before change %d", name, place, next[name])
				}
				next[name]++
			}
			f.Publish(c)
		}
	}

	b.faults = []faults{
		{dropPublish: 0.02, dropAck: 0.03, slowPublish: 0.02, slowAck: 0.02, busy: 0.03, badRead: 0.02},
		{slowPublish: 0.2, slowAck: 0.2, badRead: 0.1},
		{dropPublish: 0.1, dropAck: 0.2, slowPublish: 0.05, busy: 0.1},
		{slowAck: 0.5, busy: 0.2, badRead: 0.2},
	}[seed/2%4]
	// Only some runs take messages away: they give up part of what is checked.
	removes := seed%2 == 0
	f.start(t)
	var chaos sync.WaitGroup
	chaos.Go(func() {
		for range 40 {
			time.Sleep(time.Duration(rng.IntN(1500)) * time.Millisecond)
			name := w.names[rng.IntN(len(w.names))]
			switch rng.IntN(9) {
			case 0, 1:
				b.disconnect(rng.IntN(3) > 0)
				time.Sleep(time.Duration(rng.IntN(3000)) * time.Millisecond)
				b.reconnect()
			case 2:
				b.set(func(f *faults) { f.full = true })
				time.Sleep(time.Duration(rng.IntN(4000)) * time.Millisecond)
				b.set(func(f *faults) { f.full = false })
			case 3:
				b.set(func(f *faults) { f.missing = true })
				time.Sleep(time.Duration(rng.IntN(4000)) * time.Millisecond)
				b.set(func(f *faults) { f.missing = false })
			case 4:
				b.deny(podSubject(name), true)
			case 5:
				b.mu.Lock()
				clear(b.denied)
				b.mu.Unlock()
			case 6:
				if removes {
					b.remove(podSubject(name), 1+rng.IntN(3))
				}
			case 7:
				if removes {
					b.remove(podSubject(name), 1<<30)
				}
			case 8:
				if removes && rng.IntN(4) == 0 {
					b.recreate()
				}
			}
		}
	})
	for i := range 400 {
		time.Sleep(time.Duration(w.rng.IntN(200)) * time.Millisecond)
		name := w.names[w.rng.IntN(len(w.names))]
		cs := w.happen(name, true)
		if w.rng.IntN(4) == 0 {
			formerWriter(t, b, former, w.changes[name])
		}
		publish(name, cs)
		if w.rng.IntN(3) == 0 {
			other := w.names[w.rng.IntN(len(w.names))]
			publish(other, w.repeated(other, i))
		}
	}
	chaos.Wait()
	b.set(func(f *faults) { *f = faults{} })
	b.mu.Lock()
	clear(b.denied)
	b.mu.Unlock()
	healed := time.Now()
	f.flush(t)
	if took := time.Since(healed); took > 10*time.Minute {
		t.Errorf("it took %s to go on after all was well again", took)
	}
	// What was taken off a subject after its last change is not missed until the next one.
	for _, name := range w.names {
		publish(name, w.happen(name, false))
	}
	f.flush(t)
	f.atRest(t)
	b.check()

	ever := map[string]bool{}
	for _, s := range b.log {
		ever[string(s.UID)+"/"+s.RV] = true
		if s.Op == change.OpDeleted {
			ever[string(s.UID)+"/deleted"] = true
		}
	}
	for _, name := range w.names {
		last := b.last[podSubject(name)]
		want := w.changes[name][len(w.changes[name])-1]
		if last == nil || last.UID != want.UID || last.RV != want.RV || last.Op != change.OpAdded && last.Op != change.OpModified {
			t.Errorf("%s: the last message is %+v, want %s/%s", name, last, want.UID, want.RV)
		}
		for _, c := range w.changes[name] {
			if done[c] != 1 {
				t.Errorf("%s: %s %s/%s is done %d times", name, c.Op, c.UID, c.RV, done[c])
			}
			key := string(c.UID) + "/" + c.RV
			if c.Op == change.OpDeleted {
				key = string(c.UID) + "/deleted"
			}
			if !ever[key] {
				t.Errorf("%s: %s was never stored", name, key)
			}
		}
	}
	if f.metrics.count("fenced") > 0 {
		t.Error("fenced, without a newer writer")
	}
	if t.Failed() {
		t.Logf("%d appends, counts %v", b.appends, f.metrics.counts)
	}
	f.end()
}
