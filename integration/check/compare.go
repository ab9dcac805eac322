package check

import (
	"sort"
)

// CompareRecording checks that every recorded version is in the stream with the content that the API server sent, unless
// a message says that it may be missing; that no watermark was stored before what it covers; and that the stream has no
// version that was not recorded.
func (s *Stream) CompareRecording(r *Recording) *Report {
	r.mu.Lock()
	defer r.mu.Unlock()
	index := s.index()
	report := &Report{Recorded: len(r.changes), Gaps: index.stated}
	if r.broken != nil {
		report.add(Incomplete, 0, s.Root, "the recording broke: %v", r.broken)
	}
	recorded := map[string]bool{}
	for _, c := range r.changes {
		recorded[c.UID+"/"+c.RV] = true
		index.find(report, c)
	}
	for _, m := range s.Messages {
		if !m.aboutObject() || !m.version() || !isDecimal(m.RV) || !r.selection.selects(m.Object) {
			continue
		}
		resource := m.Object.GroupResource()
		if compare(m.RV, r.begin[resource]) > 0 && compare(m.RV, r.end[resource]) <= 0 && !recorded[m.UID+"/"+m.RV] {
			report.addVersion(Invented, m.Sequence, m.Subject, m.UID, m.RV,
				"version %s of uid %s was never there", m.RV, m.UID)
		}
	}
	return report
}

// index finds a stream's messages by what they carry.
type index struct {
	root     string
	versions map[string]*Message // by uid and version
	deleted  map[string]*Message // by uid
	known    map[string]bool     // uids
	gaps     map[string][]gap    // by resource
	stated   int                 // messages that state a gap
	marks    map[string][]coverage
}

// gap says that versions of a resource between two may be missing.
type gap struct {
	from, to string
	sequence uint64
	object   Object // whose message says so; without a name where a watermark does
}

// coverage is the highest version that a resource's watermarks cover at a sequence.
type coverage struct {
	version  string
	sequence uint64
}

func (s *Stream) index() *index {
	x := &index{
		root: s.Root, versions: map[string]*Message{}, deleted: map[string]*Message{}, known: map[string]bool{},
		gaps: map[string][]gap{}, marks: map[string][]coverage{},
	}
	for _, m := range s.Messages {
		switch m.place {
		case objectSubject:
			x.addObject(m)
		case watermarkSubject:
			x.addWatermark(m)
		}
	}
	return x
}

func (x *index) addObject(m *Message) {
	x.known[m.UID] = true
	if m.version() {
		x.versions[m.UID+"/"+m.RV] = m
	}
	if m.Kind == "deleted" {
		x.deleted[m.UID] = m
	}
	x.addGap(m, m.Gap)
}

func (x *index) addGap(m *Message, text string) {
	if from, to, err := parseGap(text); err == nil {
		resource := m.Object.GroupResource()
		x.gaps[resource] = append(x.gaps[resource], gap{from: from, to: to, sequence: m.Sequence, object: m.Object})
		x.stated++
	}
}

func (x *index) addWatermark(m *Message) {
	w, _ := parseRecord(m, "watermark")
	stated, _ := w["gap"].(string)
	x.addGap(m, stated)
	version, _ := w["rv"].(string)
	if !isDecimal(version) {
		return // Verify says so
	}
	resource := m.Object.GroupResource()
	marks := x.marks[resource]
	if n := len(marks); n == 0 || compare(version, marks[n-1].version) > 0 {
		x.marks[resource] = append(marks, coverage{version: version, sequence: m.Sequence})
	}
}

// firstMark returns the first watermark of a resource that covers a version.
func (x *index) firstMark(resource, version string) (coverage, bool) {
	marks := x.marks[resource]
	i := sort.Search(len(marks), func(i int) bool { return compare(marks[i].version, version) >= 0 })
	if i == len(marks) {
		return coverage{}, false
	}
	return marks[i], true
}

// marking is how the stream says that a version may be missing.
type marking struct {
	stated   bool
	here     bool   // by a message about the object itself
	sequence uint64 // of the first message that says so
}

// mayMiss tells whether a message says that a version may be missing. A deletion may be at a gap's end: of an object
// that came and went within the gap nothing is known.
func (x *index) mayMiss(c Change) marking {
	var found marking
	for _, g := range x.gaps[c.Object.GroupResource()] {
		end := compare(c.RV, g.to)
		if compare(g.from, c.RV) >= 0 || end > 0 || end == 0 && c.Kind != "deleted" {
			continue
		}
		if !found.stated {
			found.stated, found.sequence = true, g.sequence
		}
		found.here = found.here || g.object == c.Object
	}
	return found
}

// find reports a recorded change that is not in the stream as it was.
func (x *index) find(report *Report, c Change) {
	m := x.versions[c.UID+"/"+c.RV]
	if c.Kind == "deleted" {
		m = x.deleted[c.UID]
	}
	said := x.mayMiss(c)
	x.covered(report, c, m, said)
	if m == nil {
		x.missing(report, c, said)
		return
	}
	if c.Kind == "deleted" && (m.Reason != "watch" || m.RV != c.RV) {
		return // the deletion was inferred; its body is the last known state
	}
	if b, err := parseBody(m.data); err == nil && !m.reduced() && b.digest() != c.digest {
		report.addVersion(Differs, m.Sequence, m.Subject, c.UID, c.RV,
			"the body is not what the API server sent for version %s", c.RV)
	}
}

// missing reports or counts a change that is not in the stream.
func (x *index) missing(report *Report, c Change, said marking) {
	subject := c.Object.Subject(x.root)
	switch {
	// An object that came and went within a gap leaves no trace; one that is known has to be seen off.
	case c.Kind == "deleted" && (x.known[c.UID] || !said.stated):
		report.addVersion(LostDelete, 0, subject, c.UID, c.RV,
			"the deletion of uid %s, version %s, is not in the stream", c.UID, c.RV)
	case !said.stated:
		report.addVersion(Lost, 0, subject, c.UID, c.RV, "%s, uid %s, version %s, is not in the stream", c.Kind, c.UID, c.RV)
	case said.here:
		report.MarkedHere++
	default:
		report.MarkedElsewhere++
	}
}

// covered checks that when a watermark covered a change, the change was stored or a gap with it was stated. m is the
// change's message, nil where there is none.
func (x *index) covered(report *Report, c Change, m *Message, said marking) {
	mark, ok := x.firstMark(c.Object.GroupResource(), c.RV)
	if !ok || m != nil && m.Sequence < mark.sequence || said.stated && said.sequence <= mark.sequence {
		return
	}
	switch {
	case m != nil:
		report.addVersion(Ahead, m.Sequence, m.Subject, c.UID, c.RV,
			"%s, version %s, is covered by the watermark %s, #%d", c.Kind, c.RV, mark.version, mark.sequence)
	case said.stated:
		report.addVersion(Ahead, said.sequence, c.Object.Subject(x.root), c.UID, c.RV,
			"that version %s may be missing is said after the watermark %s, #%d, which covers it",
			c.RV, mark.version, mark.sequence)
	}
	// What is neither stored nor marked is reported as lost.
}
