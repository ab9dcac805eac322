// Package checkpoint keeps what the stream is known to hold: the ledger, by subject, of each object's last message.
// The stream itself is the checkpoint; the ledger is a copy of it in memory, read at start and moved by
// acknowledgements.
package checkpoint

import (
	"sync"

	"github.com/deltabridge/deltabridge/internal/change"
)

// Ledger maps an object's subject to what the last message on it says. It is safe for concurrent use, and its zero
// value is not: use NewLedger.
type Ledger struct {
	mu      sync.RWMutex
	entries map[string]change.Stored
}

// NewLedger returns an empty ledger.
func NewLedger() *Ledger { return &Ledger{entries: map[string]change.Stored{}} }

// Get returns what is known of a subject; ok is false if the stream has no message on it.
func (l *Ledger) Get(subject string) (stored change.Stored, ok bool) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	stored, ok = l.entries[subject]
	return stored, ok
}

// Put records the last message of a subject.
func (l *Ledger) Put(subject string, stored change.Stored) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.entries[subject] = stored
}

// Forget removes a subject on which the stream was found to hold no message any more.
func (l *Ledger) Forget(subject string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.entries, subject)
}

// Len returns how many subjects are known.
func (l *Ledger) Len() int {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return len(l.entries)
}
