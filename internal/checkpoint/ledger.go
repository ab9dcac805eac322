// Package checkpoint keeps what the stream is known to hold: the ledger, by subject, of each object's last message, and
// trackers of the version up to which everything is there. The stream itself is the checkpoint; the ledger is a copy of
// it in memory, read at start and moved by acknowledgements.
package checkpoint

import (
	"strings"
	"sync"

	"github.com/deltabridge/deltabridge/internal/change"
)

// Ledger maps an object's subject to what the last message on it says. It is safe for concurrent use, and its zero
// value is not: use NewLedger.
type Ledger struct {
	mu        sync.RWMutex
	resources map[string]map[string]change.Stored // by resource subject, then by the object's subject
	count     int
}

// NewLedger returns an empty ledger.
func NewLedger() *Ledger { return &Ledger{resources: map[string]map[string]change.Stored{}} }

// resourceOf returns the subject of the resource that an object's subject is one of: all but its last two tokens, which
// are namespace and name.
func resourceOf(subject string) string {
	if i := strings.LastIndexByte(subject, '.'); i >= 0 {
		subject = subject[:i]
	}
	if i := strings.LastIndexByte(subject, '.'); i >= 0 {
		subject = subject[:i]
	}
	return subject
}

// Get returns what is known of a subject; ok is false if the stream has no message on it.
func (l *Ledger) Get(subject string) (stored change.Stored, ok bool) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	stored, ok = l.resources[resourceOf(subject)][subject]
	return stored, ok
}

// Put records the last message of a subject.
func (l *Ledger) Put(subject string, stored change.Stored) {
	resource := resourceOf(subject)
	l.mu.Lock()
	defer l.mu.Unlock()
	entries := l.resources[resource]
	if entries == nil {
		entries = map[string]change.Stored{}
		l.resources[strings.Clone(resource)] = entries
	}
	before := len(entries)
	entries[subject] = stored
	l.count += len(entries) - before
}

// Forget removes a subject on which the stream was found to hold no message any more.
func (l *Ledger) Forget(subject string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	entries := l.resources[resourceOf(subject)]
	before := len(entries)
	delete(entries, subject)
	l.count += len(entries) - before
}

// Len returns how many subjects are known.
func (l *Ledger) Len() int {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.count
}

// Count returns how many subjects of the resource with the given subject are known.
func (l *Ledger) Count(resource string) int {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return len(l.resources[resource])
}

// Resources returns the subjects of the resources of which any object is there, in no particular order.
func (l *Ledger) Resources() []string {
	l.mu.RLock()
	defer l.mu.RUnlock()
	out := make([]string, 0, len(l.resources))
	for resource, entries := range l.resources {
		for _, stored := range entries {
			if !stored.Op.Gone() {
				out = append(out, resource)
				break
			}
		}
	}
	return out
}

// Each calls f for every known object of the resource with the given subject, in no particular order. The ledger is
// locked meanwhile: f must not call it.
func (l *Ledger) Each(resource string, f func(subject string, stored change.Stored)) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	for subject, stored := range l.resources[resource] {
		f(subject, stored)
	}
}
