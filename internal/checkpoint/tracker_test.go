package checkpoint_test

import (
	"math/rand/v2"
	"runtime"
	"strconv"
	"sync"
	"testing"

	"github.com/deltabridge/deltabridge/internal/checkpoint"
)

func TestTrackerMovesAlongTheDonePrefix(t *testing.T) {
	var tr checkpoint.Tracker
	ten, eleven, twelve := tr.Begin("10"), tr.Begin("11"), tr.Begin("12")
	at := func(want string) {
		t.Helper()
		if got := tr.Position(); got != want {
			t.Errorf("position %q, want %q", got, want)
		}
	}
	at("")
	if tr.Done(twelve) {
		t.Error("12 is done before 10, and the position has moved")
	}
	at("")
	if !tr.Done(ten) {
		t.Error("10 is done, and the position has not moved")
	}
	at("10")
	tr.Mark("20")
	at("10")
	tr.Done(eleven)
	at("20")
	if tr.Waiting() {
		t.Error("waits for nothing, and says it does")
	}
	tr.Mark("30")
	at("30")
}

// The objects of a list come in the order of their names: 90, 10, 50. Only the list's own version is a position.
func TestTrackerMovesOnlyPastAWholeList(t *testing.T) {
	var tr checkpoint.Tracker
	tr.Mark("5")
	listed := []checkpoint.Ticket{tr.Begin(""), tr.Begin(""), tr.Begin("")}
	tr.Mark("100")
	for i, ticket := range listed {
		if got := tr.Position(); got != "5" {
			t.Errorf("after %d of %d the position is %q, want 5", i, len(listed), got)
		}
		tr.Done(ticket)
	}
	if got := tr.Position(); got != "100" {
		t.Errorf("after the whole list the position is %q, want 100", got)
	}
}

func TestTrackerIsHeldByWhatIsNeverDone(t *testing.T) {
	var tr checkpoint.Tracker
	tr.Done(tr.Begin("1"))
	tr.Begin("2") // fails for good
	for v := 3; v < 1000; v++ {
		tr.Done(tr.Begin(strconv.Itoa(v)))
		tr.Mark(strconv.Itoa(v))
	}
	if got := tr.Position(); got != "1" || !tr.Waiting() {
		t.Errorf("position %q, want 1, for 2 is not done", got)
	}
}

// What is done behind something that is not costs nothing: an object that cannot be published holds the position for days.
func TestTrackerForgetsWhatIsDone(t *testing.T) {
	var tr checkpoint.Tracker
	tr.Begin("1")
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for v := range 200_000 {
		tr.Done(tr.Begin(strconv.Itoa(v)))
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 1<<20 {
		t.Errorf("200,000 changes that are done hold %d bytes", grown)
	}
	if tr.Position() != "" || !tr.Waiting() {
		t.Errorf("position %q, want none, for the first change is not done", tr.Position())
	}
}

// model is what a Tracker is to be, written the slow way: everything that was ever told, and the position found anew.
type model struct {
	versions []string
	done     []bool
}

func (m *model) begin(version string, done bool) int {
	m.versions, m.done = append(m.versions, version), append(m.done, done)
	return len(m.done) - 1
}

func (m *model) position() (position string, waiting bool) {
	for i, done := range m.done {
		if !done {
			return position, true
		}
		if m.versions[i] != "" {
			position = m.versions[i]
		}
	}
	return position, false
}

func TestTrackerAgreesWithItsModel(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		var tr checkpoint.Tracker
		var m model
		type open struct {
			ticket checkpoint.Ticket
			index  int
		}
		var opened []open
		version := 0
		for range 300 {
			version += r.IntN(3)
			text := strconv.Itoa(version)
			switch k := r.IntN(10); {
			case k < 4: // a change; one in three was caused by a list
				if r.IntN(3) == 0 {
					text = ""
				}
				opened = append(opened, open{tr.Begin(text), m.begin(text, false)})
			case k < 5:
				tr.Mark(text)
				m.begin(text, true)
			case len(opened) > 0: // in any order, some of them never
				i := r.IntN(len(opened))
				before, _ := m.position()
				m.done[opened[i].index] = true
				after, _ := m.position()
				if moved := tr.Done(opened[i].ticket); !moved && before != after {
					t.Fatalf("seed %d: moved from %q to %q and did not say so", seed, before, after)
				}
				opened = append(opened[:i], opened[i+1:]...)
			}
			want, waiting := m.position()
			if got := tr.Position(); got != want || tr.Waiting() != waiting {
				t.Fatalf("seed %d: position %q, waiting %t; want %q, %t", seed, got, tr.Waiting(), want, waiting)
			}
		}
	}
}

func TestTrackerIsSafeForConcurrentUse(t *testing.T) {
	var tr checkpoint.Tracker
	tickets := make(chan checkpoint.Ticket, 16)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for ticket := range tickets {
				tr.Done(ticket)
				tr.Position()
			}
		})
	}
	for v := range 1000 {
		tickets <- tr.Begin(strconv.Itoa(v))
	}
	close(tickets)
	wg.Wait()
	if got := tr.Position(); got != "999" || tr.Waiting() {
		t.Errorf("position %q, want 999", got)
	}
}
