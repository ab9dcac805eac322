package check

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// Kind is a kind of violation.
type Kind string

// The kinds of violations.
const (
	// Inversion is an older version stored after a newer one, or an epoch that falls.
	Inversion Kind = "inversion"
	// Duplicate is one (uid, resourceVersion), one deletion, or one message id stored twice.
	Duplicate Kind = "duplicate"
	// Lost is a version of an object that is not in the stream though no message says that it may be missing.
	Lost Kind = "lost"
	// LostDelete is a deletion that is not in the stream.
	LostDelete Kind = "lost-delete"
	// Missing is a live object without a message, or whose last message says that it is gone.
	Missing Kind = "missing"
	// Stale is a last message that differs from the live object, or tells of one that is not there.
	Stale Kind = "stale"
	// Differs is a message whose body is not what the API server sent for that version.
	Differs Kind = "differs"
	// Invented is a version that the API server never sent.
	Invented Kind = "invented"
	// Lifecycle is a message that does not follow from the one before: another uid without a deletion, a change after
	// a deletion, an object that is added twice.
	Lifecycle Kind = "lifecycle"
	// Ahead is a change that is stored after a watermark that covers it.
	Ahead Kind = "watermark-ahead"
	// Unconditional is an append that did not name the sequence of the message before it.
	Unconditional Kind = "unconditional"
	// Reduced is a message whose body was too large and is not whole. It is right where a test makes it so.
	Reduced Kind = "reduced"
	// Malformed is a message that is not as the contract has it.
	Malformed Kind = "malformed"
	// Incomplete means that the check itself could not see everything.
	Incomplete Kind = "incomplete"
)

// Violation is one thing that is wrong.
type Violation struct {
	Kind     Kind
	Sequence uint64 // of the message, zero where there is none
	Subject  string
	Detail   string
	// UID and RV are what it is about, empty where it is not about a version.
	UID, RV string
}

// String returns the violation on one line.
func (v Violation) String() string {
	at := ""
	if v.Sequence != 0 {
		at = fmt.Sprintf(" #%d", v.Sequence)
	}
	return fmt.Sprintf("%s%s %s: %s", v.Kind, at, v.Subject, v.Detail)
}

// Report is what a check found.
type Report struct {
	Messages   int // about objects
	Subjects   int // of objects
	Watermarks int
	Writers    int
	Live       int // objects compared with the cluster
	Recorded   int // recorded changes that were looked for
	Gaps       int // messages that say that versions may be missing
	// MarkedHere and MarkedElsewhere count the recorded changes that are not in the stream, but inside a gap that a
	// message about the same object states, or only one about another object or the resource.
	MarkedHere, MarkedElsewhere int

	// Inversions to Incomplete count the violations of each kind.
	Inversions, Duplicates, Lost, LostDeletes, Missing, Stale, Differs, Invented, Lifecycle, Ahead, Unconditional,
	Reduced, Malformed, Incomplete int

	Violations []Violation
}

func (r *Report) add(kind Kind, sequence uint64, subject, format string, args ...any) {
	r.append(Violation{Kind: kind, Sequence: sequence, Subject: subject, Detail: fmt.Sprintf(format, args...)})
}

// addVersion is add for a violation that is about one version of an object.
func (r *Report) addVersion(kind Kind, sequence uint64, subject, uid, rv, format string, args ...any) {
	r.append(Violation{
		Kind: kind, Sequence: sequence, Subject: subject, UID: uid, RV: rv, Detail: fmt.Sprintf(format, args...),
	})
}

func (r *Report) append(v Violation) {
	r.Violations = append(r.Violations, v)
	*r.counter(v.Kind)++
}

func (r *Report) counter(kind Kind) *int {
	switch kind {
	case Inversion:
		return &r.Inversions
	case Duplicate:
		return &r.Duplicates
	case Lost:
		return &r.Lost
	case LostDelete:
		return &r.LostDeletes
	case Missing:
		return &r.Missing
	case Stale:
		return &r.Stale
	case Differs:
		return &r.Differs
	case Invented:
		return &r.Invented
	case Lifecycle:
		return &r.Lifecycle
	case Ahead:
		return &r.Ahead
	case Unconditional:
		return &r.Unconditional
	case Reduced:
		return &r.Reduced
	case Malformed:
		return &r.Malformed
	case Incomplete:
		return &r.Incomplete
	}
	panic("check: no counter for " + string(kind))
}

// merge adds another report's findings.
func (r *Report) merge(other *Report) {
	r.Messages = max(r.Messages, other.Messages)
	r.Subjects = max(r.Subjects, other.Subjects)
	r.Watermarks = max(r.Watermarks, other.Watermarks)
	r.Writers = max(r.Writers, other.Writers)
	r.Live = max(r.Live, other.Live)
	r.Recorded = max(r.Recorded, other.Recorded)
	r.Gaps = max(r.Gaps, other.Gaps)
	r.MarkedHere = max(r.MarkedHere, other.MarkedHere)
	r.MarkedElsewhere = max(r.MarkedElsewhere, other.MarkedElsewhere)
	for _, v := range other.Violations {
		r.append(v)
	}
}

// Drop forgets the violations of some kinds.
func (r *Report) Drop(kinds ...Kind) {
	r.Violations = slices.DeleteFunc(r.Violations, func(v Violation) bool { return slices.Contains(kinds, v.Kind) })
	for _, kind := range kinds {
		*r.counter(kind) = 0
	}
}

// Only returns the violations of the given kinds.
func (r *Report) Only(kinds ...Kind) []Violation {
	var found []Violation
	for _, v := range r.Violations {
		if slices.Contains(kinds, v.Kind) {
			found = append(found, v)
		}
	}
	return found
}

// maxListed bounds how many violations a report prints.
const maxListed = 40

// String returns what was checked and the violations, the first ones in full.
func (r *Report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d messages on %d subjects, %d watermarks, %d writer records, %d live objects, %d recorded changes: ",
		r.Messages, r.Subjects, r.Watermarks, r.Writers, r.Live, r.Recorded)
	if len(r.Violations) == 0 {
		b.WriteString("no violation")
		return b.String()
	}
	fmt.Fprintf(&b, "%d violations", len(r.Violations))
	for _, kind := range []Kind{
		Inversion, Duplicate, Lost, LostDelete, Missing, Stale, Differs, Invented, Lifecycle, Ahead, Unconditional,
		Reduced, Malformed, Incomplete,
	} {
		if n := *r.counter(kind); n > 0 {
			fmt.Fprintf(&b, ", %d %s", n, kind)
		}
	}
	for i, v := range r.Violations {
		if i == maxListed {
			fmt.Fprintf(&b, "\n  and %d more", len(r.Violations)-maxListed)
			break
		}
		fmt.Fprintf(&b, "\n  %s", v)
	}
	return b.String()
}

// Require ends the test unless messages were checked and nothing is wrong.
func (r *Report) Require(t testing.TB) {
	t.Helper()
	if r.Messages == 0 {
		t.Fatal("check: there is no message to check")
	}
	if len(r.Violations) > 0 {
		t.Fatalf("check: %s", r)
	}
	t.Logf("check: %s", r)
}
