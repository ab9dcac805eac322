package check

import (
	"fmt"
	"strconv"
)

// Verify checks what the stream alone can show.
func (s *Stream) Verify() *Report {
	v := &verifier{
		stream:   s,
		report:   &Report{},
		previous: map[string]*Message{},
		current:  map[Object]*Message{},
		ids:      map[string]uint64{},
		versions: map[string]uint64{},
		deleted:  map[string]uint64{},
		marks:    map[string]watermark{},
	}
	for _, m := range s.Messages {
		place, _, err := parseSubject(s.Root, m.Subject)
		if err != nil {
			v.add(Malformed, m, "%v", err)
			continue
		}
		v.conditional(m)
		v.epochs(m)
		switch place {
		case writerSubject:
			v.writer(m)
		case watermarkSubject:
			v.watermark(m)
		case objectSubject:
			v.object(m)
		}
		v.previous[m.Subject] = m
	}
	v.report.Subjects = len(v.current)
	return v.report
}

// verifier holds what is known of the stream before the message at hand.
type verifier struct {
	stream *Stream
	report *Report

	previous    map[string]*Message  // by subject
	current     map[Object]*Message  // last message that says something of an object
	ids         map[string]uint64    // sequence of the message with an id
	versions    map[string]uint64    // sequence of the message with a (uid, resourceVersion)
	deleted     map[string]uint64    // sequence of a uid's deletion
	marks       map[string]watermark // by resource
	writerEpoch string
}

// watermark is the highest version that a resource's watermarks cover.
type watermark struct {
	version, epoch string
	sequence       uint64
}

func (v *verifier) add(kind Kind, m *Message, format string, args ...any) {
	v.report.addVersion(kind, m.Sequence, m.Subject, m.UID, m.RV, format, args...)
}

// conditional checks that the message was appended on condition that the one before it was its subject's last.
func (v *verifier) conditional(m *Message) {
	if stream := m.Header.Get("Nats-Expected-Stream"); stream != v.stream.Name {
		v.add(Malformed, m, "Nats-Expected-Stream is %q and not %q", stream, v.stream.Name)
	}
	expected := m.Header.Get("Nats-Expected-Last-Subject-Sequence")
	if n := m.Header.Get("Nats-Batch-Sequence"); expected == "" && n != "" && n != "1" {
		return // a batch says once on what it builds
	}
	if !isDecimal(expected) {
		v.add(Unconditional, m, "Nats-Expected-Last-Subject-Sequence is %q", expected)
		return
	}
	previous := uint64(0)
	if p := v.previous[m.Subject]; p != nil {
		previous = p.Sequence
	} else if !v.stream.Complete {
		return
	}
	if expected != strconv.FormatUint(previous, 10) {
		v.add(Unconditional, m, "Nats-Expected-Last-Subject-Sequence is %s, the subject's last message was #%d",
			expected, previous)
	}
}

// epochs checks that a subject's epochs never fall.
func (v *verifier) epochs(m *Message) {
	if !isDecimal(m.Epoch) {
		v.add(Malformed, m, "ce-epoch is %q and not a number", m.Epoch)
		return
	}
	if p := v.previous[m.Subject]; p != nil && isDecimal(p.Epoch) && compare(m.Epoch, p.Epoch) < 0 {
		v.add(Inversion, m, "epoch %s after %s", m.Epoch, p.Epoch)
	}
}

// object checks a message about an object.
func (v *verifier) object(m *Message) {
	v.report.Messages++
	for _, problem := range v.stream.problems(m) {
		v.add(Malformed, m, "%s", problem)
	}
	if m.reduced() {
		v.add(Reduced, m, "the body is reduced: %s", m.attribute("oversize"))
	}
	if first, twice := v.ids[m.ID]; twice && m.ID != "" {
		v.add(Duplicate, m, "id %s is stored already as #%d", m.ID, first)
	} else {
		v.ids[m.ID] = m.Sequence
	}
	v.once(m)
	if isDecimal(m.RV) {
		v.follows(m)
		v.notCovered(m)
	}
	v.current[m.Object] = m
}

// once checks that no other message carries the same version or the same deletion.
func (v *verifier) once(m *Message) {
	switch {
	case m.version():
		key := m.UID + "/" + m.RV
		if first, twice := v.versions[key]; twice {
			v.add(Duplicate, m, "%s is stored already as #%d", key, first)
		} else {
			v.versions[key] = m.Sequence
		}
	case m.Kind == "deleted":
		if first, twice := v.deleted[m.UID]; twice {
			v.add(Duplicate, m, "the deletion of %s is stored already as #%d", m.UID, first)
		} else {
			v.deleted[m.UID] = m.Sequence
		}
	}
}

// follows checks that the message can come after the one before it on its subject.
func (v *verifier) follows(m *Message) {
	before := v.current[m.Object]
	if before == nil {
		if v.stream.Complete && m.Kind != "added" {
			v.add(Lifecycle, m, "the subject's first message is %s", m.Kind)
		}
		return
	}
	if isDecimal(before.RV) {
		switch order := compare(m.RV, before.RV); {
		case order < 0:
			v.add(Inversion, m, "version %s after %s", m.RV, before.RV)
		case order == 0 && before.Kind != "left" && (m.version() || m.Reason == "watch"):
			// A deletion or a departure that nobody watched has no version of its own and repeats the one before; so
			// does what is no change at all.
			v.add(Inversion, m, "version %s twice, as %s and %s", m.RV, before.Kind, m.Kind)
		}
	}
	sameUID := m.UID == before.UID
	if m.Kind == "synced" {
		v.repeats(m, before)
		return
	}
	switch {
	case !sameUID && (m.Kind != "added" || before.Kind != "deleted" && before.Kind != "expired"):
		v.add(Lifecycle, m, "%s of uid %s after %s of uid %s", m.Kind, m.UID, before.Kind, before.UID)
	case sameUID && (before.Kind == "expired" || before.Kind == "deleted" && m.Kind != "expired"):
		v.add(Lifecycle, m, "%s after %s of the same uid", m.Kind, before.Kind)
	case sameUID && m.Kind == "added" && before.Kind != "left":
		v.add(Lifecycle, m, "added after %s of the same uid", before.Kind)
	case sameUID && before.Kind == "left" && m.Kind != "added" && m.Kind != "deleted":
		v.add(Lifecycle, m, "%s after left", m.Kind)
	case m.Kind == "expired" && before.Kind != "deleted":
		v.add(Lifecycle, m, "expired after %s", before.Kind)
	}
}

// repeats checks that a message that is no change says what the one before it said. What overtakes a change, or is
// made up, does not.
func (v *verifier) repeats(m, before *Message) {
	switch {
	case before.gone() || m.UID != before.UID:
		v.add(Lifecycle, m, "%s of uid %s after %s of uid %s", m.Kind, m.UID, before.Kind, before.UID)
		return
	case compare(m.RV, before.RV) > 0:
		v.add(Lifecycle, m, "version %s is repeated, the last one published is %s", m.RV, before.RV)
		return
	case m.RV != before.RV || m.reduced() || before.reduced() || m.Epoch != before.Epoch:
		return // another writer may strip and redact in another way
	}
	now, err := parseBody(m.data)
	if err != nil {
		return // said elsewhere
	}
	if then, err := parseBody(before.data); err == nil && now.digest() != then.digest() {
		v.add(Differs, m, "the repetition is not what it repeats, #%d", before.Sequence)
	}
}

// notCovered checks that no watermark said before that this change is stored.
func (v *verifier) notCovered(m *Message) {
	mark, ok := v.marks[m.Object.GroupResource()]
	if ok && m.Reason == "watch" && compare(m.RV, mark.version) <= 0 {
		v.add(Ahead, m, "version %s is covered by the watermark %s, #%d", m.RV, mark.version, mark.sequence)
	}
}

// watermark checks a watermark and notes what it covers.
func (v *verifier) watermark(m *Message) {
	v.report.Watermarks++
	w, problems := parseRecord(m, "watermark", "cluster", "clusterUID", "group", "resource", "scope", "rv", "time")
	if w != nil {
		for name, want := range map[string]string{
			"cluster": v.stream.Cluster, "group": m.Object.Group, "resource": m.Object.Resource,
		} {
			if got, _ := w[name].(string); got != want {
				problems = append(problems, fmt.Sprintf("the body's %s is %q and not %q", name, got, want))
			}
		}
		if gap, stated := w["gap"]; stated && gap != "" {
			if text, _ := gap.(string); gap != nil {
				if _, _, err := parseGap(text); err != nil {
					problems = append(problems, fmt.Sprintf("the body's gap is %v: %v", gap, err))
				}
			}
		}
		version, _ := w["rv"].(string)
		if isDecimal(version) {
			v.mark(m, version)
		} else {
			problems = append(problems, fmt.Sprintf("the body's rv is %q", version))
		}
	}
	for _, problem := range problems {
		v.add(Malformed, m, "%s", problem)
	}
}

func (v *verifier) mark(m *Message, version string) {
	resource := m.Object.GroupResource()
	before, ok := v.marks[resource]
	// A new epoch may begin again at a lower version, after the cluster's store was restored.
	if ok && before.epoch == m.Epoch && compare(version, before.version) < 0 {
		v.add(Inversion, m, "watermark %s after %s in the same epoch", version, before.version)
	}
	v.marks[resource] = watermark{version: version, epoch: m.Epoch, sequence: m.Sequence}
}

// writer checks a writer record.
func (v *verifier) writer(m *Message) {
	v.report.Writers++
	_, problems := parseRecord(m, "writer", "holder", "clusterUID", "time")
	for _, problem := range problems {
		v.add(Malformed, m, "%s", problem)
	}
	if isDecimal(m.Epoch) {
		if v.writerEpoch != "" && compare(m.Epoch, v.writerEpoch) <= 0 {
			v.add(Inversion, m, "a new writer has epoch %s, the one before had %s", m.Epoch, v.writerEpoch)
		}
		v.writerEpoch = m.Epoch
	}
}
