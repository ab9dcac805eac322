package checkpoint

import "sync"

// Ticket stands for one change that a Tracker waits for.
type Ticket uint64

// Tracker knows up to which version everything is done, of changes that begin in order and are done in any order. It
// compares no versions: their order is the order in which they are told. It is safe for concurrent use; the zero value
// is ready and knows no position.
//
// Changes of a watch come in the order of versions, so that each one moves the position to its own. Those that a list
// causes do not: they begin without a version, and the Mark that follows the list moves the position, once all of them
// are done. A change that is never done holds the position where it is, whatever comes after it.
type Tracker struct {
	mu       sync.Mutex
	entries  []entry // what is not known to be done up to here, in order; the first one is not done
	first    Ticket  // ticket of entries[0]
	position string
}

// entry is a change or a mark. An empty version moves nothing.
type entry struct {
	version string
	done    bool
}

// Begin says that a change was taken which moves the position to the version once it and all before it are done; an
// empty version leaves the position where it is. Done must be called with the ticket, once.
func (t *Tracker) Begin(version string) Ticket {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.entries = append(t.entries, entry{version: version})
	return t.first + Ticket(len(t.entries)-1)
}

// Mark says that every change up to the version has been taken.
func (t *Tracker) Mark(version string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch n := len(t.entries); {
	case n == 0:
		t.position = version
	case t.entries[n-1].done: // nothing was taken since the last one
		t.entries[n-1].version = version
	default:
		t.entries = append(t.entries, entry{version: version, done: true})
	}
}

// Done says that a change needs no more work. It reports whether the position has moved.
func (t *Tracker) Done(ticket Ticket) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.entries[ticket-t.first].done = true
	passed, moved := 0, false
	for passed < len(t.entries) && t.entries[passed].done {
		if version := t.entries[passed].version; version != "" {
			t.position, moved = version, true
		}
		passed++
	}
	t.entries = t.entries[passed:]
	t.first += Ticket(passed)
	if len(t.entries) == 0 {
		t.entries = nil // or append would keep what was passed alive
	}
	return moved
}

// Position returns the version up to which everything is done, empty if none is known.
func (t *Tracker) Position() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.position
}

// Waiting reports whether a change is not done yet.
func (t *Tracker) Waiting() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.entries) > 0
}
