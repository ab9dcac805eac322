package check

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"
)

var (
	kinds   = []string{"added", "modified", "deleted", "left", "synced", "expired"}
	reasons = []string{"watch", "relist", "missing", "replaced", "scope", "kind-removed", "resync", "repair"}

	again = regexp.MustCompile(`/again/[0-9]+$`)
)

// problems returns what of a message about an object is not as the contract has it.
func (s *Stream) problems(m *Message) []string {
	var found []string
	bad := func(format string, args ...any) { found = append(found, fmt.Sprintf(format, args...)) }
	equal := func(name, got, want string) {
		if got != want {
			bad("%s is %q and not %q", name, got, want)
		}
	}

	equal("ce-specversion", m.attribute("specversion"), "1.0")
	if !slices.Contains(kinds, m.Kind) || m.attribute("type") != "io.deltabridge."+m.Kind {
		bad("ce-type is %q", m.attribute("type"))
	}
	equal("ce-source", m.attribute("source"), "/clusters/"+s.Cluster)
	if got := m.attribute("subject"); !names(m, got) {
		bad("ce-subject is %q and not %q", got, m.Object.String())
	}
	if at, err := time.Parse(time.RFC3339Nano, m.attribute("time")); err != nil || !strings.HasSuffix(m.attribute("time"), "Z") {
		bad("ce-time is %q and not RFC 3339 UTC", m.attribute("time"))
	} else if at.After(time.Now().Add(time.Hour)) || at.Before(time.Now().Add(-24*time.Hour)) {
		bad("ce-time %s is not when the bridge saw it", m.attribute("time"))
	}
	if !slices.Contains(reasons, m.Reason) {
		bad("ce-reason is %q", m.Reason)
	}
	if !isDecimal(m.RV) {
		bad("ce-rv is %q and not a number", m.RV)
	}
	if m.UID == "" {
		bad("ce-uid is empty")
	}
	if m.Gap != "" {
		if _, _, err := parseGap(m.Gap); err != nil {
			bad("ce-gap is %q: %v", m.Gap, err)
		}
	}

	id := again.ReplaceAllString(m.ID, "")
	switch m.Kind {
	case "added", "modified":
		equal("ce-id", id, m.UID+"/"+m.RV)
	case "deleted", "expired":
		equal("ce-id", id, m.UID+"/"+m.Kind)
	case "left":
		equal("ce-id", id, m.UID+"/"+m.RV+"/left")
	case "synced":
		if run, ok := strings.CutPrefix(id, m.UID+"/"+m.RV+"/sync/"); !ok || run == "" {
			bad("ce-id is %q", id)
		}
	}
	equal("Nats-Msg-Id", m.Header.Get("Nats-Msg-Id"), m.ID)

	for name, want := range map[string]string{
		"KV-Operation": map[string]string{"deleted": "DEL", "left": "DEL", "expired": "PURGE"}[m.Kind],
		"Nats-Rollup":  map[string]string{"expired": "sub"}[m.Kind],
	} {
		equal(name, m.Header.Get(name), want)
	}
	if ttl := m.Header.Get("Nats-TTL"); (ttl != "") != (m.Kind == "expired") {
		bad("Nats-TTL is %q", ttl)
	}
	return append(append(found, s.contentProblems(m)...), bodyProblems(m)...)
}

// contentProblems returns what is wrong with the content mode.
func (s *Stream) contentProblems(m *Message) []string {
	var found []string
	if !m.structured() {
		if got := m.Header.Get("content-type"); got != "application/json" {
			found = append(found, fmt.Sprintf("content-type is %q and not %q", got, "application/json"))
		}
		return found
	}
	for _, name := range []string{"type", "uid", "rv", "epoch"} {
		if header := m.Header.Get("ce-" + name); header != m.attribute(name) {
			found = append(found, fmt.Sprintf("header ce-%s is %q, the envelope says %q", name, header, m.attribute(name)))
		}
	}
	if got, _ := m.event["datacontenttype"].(string); got != "application/json" {
		found = append(found, fmt.Sprintf("datacontenttype is %q and not %q", got, "application/json"))
	}
	return found
}

// bodyProblems returns what is wrong with the object in the message.
func bodyProblems(m *Message) []string {
	if m.Kind == "expired" {
		return nil // it says nothing of the object
	}
	b, err := parseBody(m.data)
	if err != nil {
		return []string{err.Error()}
	}
	var found []string
	bad := func(format string, args ...any) { found = append(found, fmt.Sprintf(format, args...)) }
	if b.apiVersion == "" || b.kind == "" {
		bad("the body has apiVersion %q and kind %q", b.apiVersion, b.kind)
	}
	if gvk := m.attribute("gvk"); gvk != b.apiVersion+"/"+b.kind {
		bad("ce-gvk is %q and not %q as in the body", gvk, b.apiVersion+"/"+b.kind)
	}
	if group, _, grouped := strings.Cut(b.apiVersion, "/"); grouped && group != m.Object.Group || !grouped && m.Object.Group != "" {
		bad("the body's apiVersion %q is not of group %q", b.apiVersion, m.Object.Group)
	}
	if b.name != m.Object.Name || b.namespace != m.Object.Namespace {
		bad("the body is of %q in namespace %q", b.name, b.namespace)
	}
	if b.uid != m.UID {
		bad("the body's uid is %q, ce-uid is %q", b.uid, m.UID)
	}
	switch {
	case !isDecimal(b.version):
		bad("the body's resourceVersion is %q", b.version)
	case m.gone():
		// The body is the last known state; the deletion's own version can be later.
		if isDecimal(m.RV) && compare(b.version, m.RV) > 0 {
			bad("the body's resourceVersion %s is later than ce-rv %s", b.version, m.RV)
		}
	case b.version != m.RV:
		bad("the body's resourceVersion is %s, ce-rv is %s", b.version, m.RV)
	}
	return found
}

// longestHeaderName is the longest name, encoded, that stands in ce-subject as it is.
const longestHeaderName = 8 << 10

// names reports whether a ce-subject names the message's object. In a header the raw names are percent-encoded as
// CloudEvents has it, and a name that is too long for a header is represented by its token.
func names(m *Message, subject string) bool {
	if !m.structured() {
		if strings.ContainsFunc(subject, func(r rune) bool { return r <= ' ' || r > '~' || r == '"' }) {
			return false
		}
		decoded, err := url.PathUnescape(subject)
		if err != nil {
			return false
		}
		subject = decoded
	}
	object := m.Object
	if len(object.Name) > longestHeaderName/3 && subject != object.String() {
		object.Name = nameToken(object.Name)
	}
	return subject == object.String()
}

// parseRecord decodes a watermark or a writer record and returns what is wrong with it. The named fields must be there.
func parseRecord(m *Message, kind string, fields ...string) (map[string]any, []string) {
	var found []string
	bad := func(format string, args ...any) { found = append(found, fmt.Sprintf(format, args...)) }
	if m.Kind != kind {
		bad("ce-type is %q", m.attribute("type"))
	}
	decoder := json.NewDecoder(bytes.NewReader(m.data))
	decoder.UseNumber()
	var record map[string]any
	if err := decoder.Decode(&record); err != nil {
		bad("the body is no JSON object: %v", err)
		return nil, found
	}
	if format := fmt.Sprint(record["format"]); format != "1" {
		bad("the body's format is %s and not 1", format)
	}
	if epoch := fmt.Sprint(record["epoch"]); epoch != m.Epoch {
		bad("the body's epoch is %s, ce-epoch is %s", epoch, m.Epoch)
	}
	for _, field := range fields {
		if _, ok := record[field]; !ok {
			bad("the body has no %s", field)
		}
	}
	return record, found
}
