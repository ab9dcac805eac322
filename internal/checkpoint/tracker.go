package checkpoint

import (
	"container/list"
	"sync"
)

// Ticket stands for one change that a Tracker waits for.
type Ticket struct{ element *list.Element }

// Tracker knows up to which version everything is done, of changes that begin in order and are done in any order. It
// compares no versions: their order is the order in which they are told. It is safe for concurrent use; the zero value
// is ready and knows no position.
//
// Changes of a watch come in the order of versions, so that each one moves the position to its own. Those that a list
// causes do not: they begin without a version, and the Mark that follows the list moves the position, once all of them
// are done. A change that is never done holds the position where it is, whatever comes after it; the memory that takes
// grows with what is not done, not with what is.
type Tracker struct {
	mu       sync.Mutex
	entries  list.List // of *entry: what is not known to be done up to here, in order; the first one is not done
	position string
}

// entry is a change, or a mark, or a run of those that are done. An empty version moves nothing. No two neighbours are done.
type entry struct {
	version string
	done    bool
}

// Begin says that a change was taken which moves the position to the version once it and all before it are done; an
// empty version leaves the position where it is. Done must be called with the ticket, once.
func (t *Tracker) Begin(version string) Ticket {
	t.mu.Lock()
	defer t.mu.Unlock()
	return Ticket{t.entries.PushBack(&entry{version: version})}
}

// Mark says that every change up to the version has been taken.
func (t *Tracker) Mark(version string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch last := entryOf(t.entries.Back()); {
	case last == nil:
		t.position = version
	case last.done:
		last.version = version
	default:
		t.entries.PushBack(&entry{version: version, done: true})
	}
}

// Done says that a change needs no more work. It reports whether the position has moved.
func (t *Tracker) Done(ticket Ticket) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	element := ticket.element
	e := entryOf(element)
	e.done = true
	if next := entryOf(element.Next()); next != nil && next.done {
		if next.version != "" {
			e.version = next.version
		}
		t.entries.Remove(element.Next())
	}
	if before := entryOf(element.Prev()); before != nil && before.done {
		if e.version == "" {
			e.version = before.version
		}
		t.entries.Remove(element.Prev())
	}
	if element != t.entries.Front() {
		return false
	}
	t.entries.Remove(element)
	if e.version == "" {
		return false
	}
	t.position = e.version
	return true
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
	return t.entries.Len() > 0
}

// entryOf returns what a list element holds, nil for no element.
func entryOf(element *list.Element) *entry {
	if element == nil {
		return nil
	}
	return element.Value.(*entry)
}
