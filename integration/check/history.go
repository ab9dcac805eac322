package check

import (
	"fmt"
	"strings"
)

// nearby is how many messages before and after a violation are shown.
const nearby = 2

// Explain returns the violation with the messages of its subject that are next to it, one to a line: what there is
// tells more of a fault than what there is not.
func (s *Stream) Explain(v Violation) string {
	var b strings.Builder
	b.WriteString(v.String())
	var subject []*Message
	at := 0 // of the first message that is not before the violation
	for _, m := range s.Messages {
		if m.Subject != v.Subject {
			continue
		}
		subject = append(subject, m)
		if v.before(m) {
			at = len(subject)
		}
	}
	if len(subject) == 0 {
		b.WriteString("\n      the subject has no message")
	}
	for i := max(0, at-nearby); i < min(len(subject), at+nearby+1); i++ {
		fmt.Fprintf(&b, "\n      %s", subject[i].Summary())
	}
	return b.String()
}

// before reports whether a message of the violation's subject comes before what the violation is about.
func (v Violation) before(m *Message) bool {
	if v.Sequence != 0 {
		return m.Sequence < v.Sequence
	}
	return isDecimal(m.RV) && isDecimal(v.RV) && compare(m.RV, v.RV) < 0
}

// Summary returns the message's headers that matter, on one line.
func (m *Message) Summary() string {
	line := fmt.Sprintf("#%d %s rv=%s uid=%s epoch=%s", m.Sequence, m.Kind, m.RV, m.UID, m.Epoch)
	for name, value := range map[string]string{"reason": m.Reason, "gap": m.Gap} {
		if value != "" {
			line += " " + name + "=" + value
		}
	}
	if m.place != objectSubject {
		line += " " + string(m.Body)
	}
	return line + " at " + m.attribute("time")
}
