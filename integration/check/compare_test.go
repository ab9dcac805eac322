package check

import (
	"encoding/json"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var testSelection = Selection{Resources: []schema.GroupVersionResource{{Version: "v1", Resource: "configmaps"}}}

// parsed returns the decoded body of what the fixture makes of an object.
func (f *fixture) parsed(object Object, uid, version string, change func(map[string]any)) *body {
	f.t.Helper()
	fields := f.body(object, uid, version)
	if change != nil {
		change(fields)
	}
	b, err := parseBody(f.encode(fields))
	if err != nil {
		f.t.Fatal(err)
	}
	return b
}

// live returns an object of the cluster as the fixture makes it.
func (f *fixture) live(object Object, uid, version string, change func(map[string]any)) liveObject {
	b := f.parsed(object, uid, version, change)
	return liveObject{uid: b.uid, version: b.version, canonical: b.canonical()}
}

func TestCompareState(t *testing.T) {
	a, b := configMap("a"), configMap("b")
	// The API server's object has fields that the bridge removes.
	unstripped := func(fields map[string]any) {
		metadata := fields["metadata"].(map[string]any)
		metadata["managedFields"] = []any{map[string]any{"manager": "x"}}
		metadata["annotations"] = map[string]any{lastApplied: "{}"}
	}
	for name, c := range map[string]struct {
		build func(*fixture, map[Object]liveObject)
		want  []Kind
	}{
		"equal": {func(f *fixture, live map[Object]liveObject) {
			f.added("a", "a1", 10)
			f.life("b", 20)
			live[a] = f.live(a, "a1", "10", unstripped)
		}, nil},
		"no message": {func(f *fixture, live map[Object]liveObject) {
			live[a] = f.live(a, "a1", "10", nil)
		}, []Kind{Missing}},
		"deleted but alive": {func(f *fixture, live map[Object]liveObject) {
			f.life("a", 10)
			live[a] = f.live(a, "a2", "20", nil)
		}, []Kind{Missing}},
		"older version": {func(f *fixture, live map[Object]liveObject) {
			f.added("a", "a1", 10)
			live[a] = f.live(a, "a1", "11", nil)
		}, []Kind{Stale}},
		"another uid": {func(f *fixture, live map[Object]liveObject) {
			f.added("a", "a1", 10)
			live[a] = f.live(a, "a2", "10", nil)
		}, []Kind{Stale}},
		"deletion missed": {func(f *fixture, _ map[Object]liveObject) {
			f.added("b", "b1", 10)
		}, []Kind{Stale}},
		"another content": {func(f *fixture, live map[Object]liveObject) {
			f.added("a", "a1", 10)
			live[a] = f.live(a, "a1", "10", func(fields map[string]any) { fields["data"] = map[string]any{"version": 10} })
		}, []Kind{Differs}},
		"one resource of two": {func(f *fixture, live map[Object]liveObject) {
			f.append(spec{
				object: Object{Resource: "secrets", Namespace: "x", Name: "not selected"}, kind: "added", uid: "s", rv: "1",
			})
			f.added("b", "b1", 10)
			live[b] = f.live(b, "b1", "10", nil)
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			state := &State{selection: testSelection, objects: map[Object]liveObject{}}
			c.build(f, state.objects)
			requireKinds(t, f.stream.CompareState(state), c.want)
		})
	}
}

func TestCompareRecording(t *testing.T) {
	a := configMap("a")
	change := func(f *fixture, kind, version string) Change {
		return Change{Object: a, Kind: kind, UID: "a1", RV: version, digest: f.parsed(a, "a1", version, nil).digest()}
	}
	whole := func(f *fixture) []Change {
		return []Change{change(f, "added", "10"), change(f, "modified", "12"), change(f, "deleted", "14")}
	}
	gap := func(from, to string) func(nats.Header, map[string]any) { return header("ce-gap", from+"-"+to) }
	for name, c := range map[string]struct {
		build   func(*fixture)
		changes func(*fixture) []Change
		want    []Kind
	}{
		"all there": {func(f *fixture) {
			f.added("a", "a1", 10)
			f.modified("a", "a1", 12)
			f.deleted("a", "a1", 14)
		}, whole, nil},
		"version lost": {func(f *fixture) {
			f.added("a", "a1", 10)
			f.deleted("a", "a1", 14)
		}, whole, []Kind{Lost}},
		"version lost beside a gap": {func(f *fixture) {
			f.append(spec{object: a, kind: "added", uid: "a1", rv: "10", change: gap("5", "12")})
			f.deleted("a", "a1", 14)
		}, whole, []Kind{Lost}},
		"version lost in a gap": {func(f *fixture) {
			f.append(spec{object: a, kind: "added", uid: "a1", rv: "10", change: gap("5", "13")})
			f.deleted("a", "a1", 14)
		}, whole, nil},
		"deletion lost": {func(f *fixture) {
			f.added("a", "a1", 10)
			f.modified("a", "a1", 12)
		}, whole, []Kind{LostDelete}},
		"deletion of a known object lost in a gap": {func(f *fixture) {
			f.added("a", "a1", 10)
			f.append(spec{object: a, kind: "modified", uid: "a1", rv: "12", change: gap("5", "20")})
		}, whole, []Kind{LostDelete}},
		"whole life lost in a gap": {func(f *fixture) {
			f.append(spec{object: configMap("b"), kind: "added", uid: "b1", rv: "3", change: gap("5", "20")})
		}, whole, nil},
		"whole life lost at a gap's end": {func(f *fixture) {
			f.append(spec{object: configMap("b"), kind: "added", uid: "b1", rv: "3", change: gap("5", "14")})
		}, whole, nil},
		"whole life lost in a watermark's gap": {func(f *fixture) {
			f.watermark("20", "1", func(body map[string]any) { body["gap"] = "5-20" })
		}, whole, nil},
		"version stored after a watermark that covers it": {func(f *fixture) {
			f.added("a", "a1", 10)
			f.watermark("12", "1", nil)
			f.append(spec{object: a, kind: "modified", uid: "a1", rv: "12", reason: "relist"})
			f.deleted("a", "a1", 14)
		}, whole, []Kind{Ahead}},
		"deletion inferred after a watermark that covers it": {func(f *fixture) {
			f.added("a", "a1", 10)
			f.modified("a", "a1", 12)
			f.watermark("20", "1", nil)
			f.append(spec{object: a, kind: "deleted", uid: "a1", rv: "12", reason: "missing"})
		}, whole, []Kind{Ahead}},
		"gap stated after a watermark that covers it": {func(f *fixture) {
			f.added("a", "a1", 10)
			f.watermark("12", "1", nil)
			f.append(spec{object: a, kind: "deleted", uid: "a1", rv: "14", change: gap("10", "14")})
		}, whole, []Kind{Ahead}},
		"gap stated before a watermark that covers it": {func(f *fixture) {
			f.added("a", "a1", 10)
			f.append(spec{object: a, kind: "deleted", uid: "a1", rv: "14", change: gap("10", "14")})
			f.watermark("14", "1", nil)
		}, whole, nil},
		"watermark below": {func(f *fixture) {
			f.added("a", "a1", 10)
			f.watermark("11", "1", nil)
			f.modified("a", "a1", 12)
			f.watermark("13", "1", nil)
			f.deleted("a", "a1", 14)
		}, whole, nil},
		"deletion inferred": {func(f *fixture) {
			f.added("a", "a1", 10)
			f.modified("a", "a1", 12)
			f.append(spec{object: a, kind: "deleted", uid: "a1", rv: "12", reason: "missing"})
		}, whole, nil},
		"another content": {func(f *fixture) {
			f.added("a", "a1", 10)
			f.append(spec{object: a, kind: "modified", uid: "a1", rv: "12", change: func(_ nats.Header, body map[string]any) {
				body["data"] = map[string]any{"version": "11"}
			}})
			f.deleted("a", "a1", 14)
		}, whole, []Kind{Differs}},
		"deletion with another content": {func(f *fixture) {
			f.added("a", "a1", 10)
			f.modified("a", "a1", 12)
			f.append(spec{object: a, kind: "deleted", uid: "a1", rv: "14", bodyVersion: "12"})
		}, whole, []Kind{Differs}},
		"version invented": {func(f *fixture) {
			f.added("a", "a1", 10)
			f.modified("a", "a1", 11)
			f.modified("a", "a1", 12)
			f.deleted("a", "a1", 14)
		}, whole, []Kind{Invented}},
		"before the recording": {func(f *fixture) {
			f.added("a", "a1", 2)
		}, func(*fixture) []Change { return nil }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			c.build(f)
			recording := &Recording{
				selection: testSelection,
				changes:   c.changes(f),
				begin:     map[string]string{"configmaps": "3"},
				end:       map[string]string{"configmaps": "14"},
			}
			requireKinds(t, f.stream.CompareRecording(recording), c.want)
		})
	}
}

// TestCompareRecordingCounts tells what is marked by a message about the object from what is marked by others.
func TestCompareRecordingCounts(t *testing.T) {
	f := newFixture(t)
	f.added("a", "a1", 10)
	f.append(spec{object: configMap("a"), kind: "modified", uid: "a1", rv: "14", change: header("ce-gap", "10-14")})
	recording := &Recording{
		selection: testSelection,
		changes: []Change{
			{Object: configMap("a"), Kind: "modified", UID: "a1", RV: "11"},
			{Object: configMap("b"), Kind: "added", UID: "b1", RV: "12"},
			{Object: configMap("b"), Kind: "deleted", UID: "b1", RV: "13"},
		},
		begin: map[string]string{"configmaps": "15"}, end: map[string]string{"configmaps": "15"},
	}
	report := f.stream.CompareRecording(recording)
	if len(report.Violations) > 0 || report.Gaps != 1 || report.MarkedHere != 1 || report.MarkedElsewhere != 2 {
		t.Errorf("%d gaps, %d marked here, %d elsewhere: %s", report.Gaps, report.MarkedHere, report.MarkedElsewhere, report)
	}
}

// TestExplain shows the messages around what is missing.
func TestExplain(t *testing.T) {
	f := newFixture(t)
	f.added("a", "a1", 10)
	f.modified("a", "a1", 11)
	f.modified("a", "a1", 12)
	f.modified("b", "b1", 13)
	f.modified("a", "a1", 15)
	text := f.stream.Explain(Violation{Kind: Lost, Subject: configMap("a").Subject(testRoot), UID: "a1", RV: "14"})
	for want, there := range map[string]bool{"rv=10": false, "rv=11": true, "rv=12": true, "rv=13": false, "rv=15": true} {
		if strings.Contains(text, want) != there {
			t.Errorf("%s: %t is wrong in\n%s", want, !there, text)
		}
	}
}

// requireKinds ends the test unless the report has one violation of each wanted kind and no other.
func requireKinds(t *testing.T, report *Report, want []Kind) {
	t.Helper()
	var got []Kind
	for _, v := range report.Violations {
		got = append(got, v.Kind)
	}
	if !slices.Equal(got, want) {
		t.Fatalf("found %v, want %v: %s", got, want, report)
	}
}

func TestCanonicalKeepsWhatMatters(t *testing.T) {
	decode := func(text string) string {
		b, err := parseBody([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return string(b.canonical())
	}
	equal := [][2]string{
		{`{"metadata":{},"a":1.0,"b":1e3}`, `{"b":1000,"a":1,"metadata":{}}`},
		{`{"metadata":{"annotations":{"` + lastApplied + `":"x"}}}`, `{"metadata":{"managedFields":[]}}`},
	}
	for _, pair := range equal {
		if decode(pair[0]) != decode(pair[1]) {
			t.Errorf("%s and %s are told apart", pair[0], pair[1])
		}
	}
	different := [][2]string{
		{`{"metadata":{},"a":1}`, `{"metadata":{},"a":"1"}`},
		{`{"metadata":{},"a":12345678901234567890}`, `{"metadata":{},"a":12345678901234567891}`},
		{`{"metadata":{},"a":null}`, `{"metadata":{}}`},
		{`{"metadata":{"annotations":{"x":"y"}}}`, `{"metadata":{}}`},
	}
	for _, pair := range different {
		if decode(pair[0]) == decode(pair[1]) {
			t.Errorf("%s and %s are taken for equal", pair[0], pair[1])
		}
	}
	if !json.Valid([]byte(decode(`{"metadata":{}}`))) {
		t.Error("the canonical form is no JSON")
	}
}

// TestRequireFails shows that a report without messages, or with a violation, fails its test.
func TestRequireFails(t *testing.T) {
	for name, report := range map[string]*Report{"empty": {}, "violation": violated()} {
		failed := make(chan bool)
		go func() {
			p := &probe{TB: t}
			defer func() { failed <- p.failed }()
			report.Require(p)
		}()
		if !<-failed {
			t.Errorf("%s: Require lets it pass", name)
		}
	}
}

func violated() *Report {
	r := &Report{Messages: 1}
	r.add(Lost, 1, "subject", "detail")
	return r
}

// probe is a test that may fail.
type probe struct {
	testing.TB
	failed bool
}

func (p *probe) Helper() {}

func (p *probe) Fatal(...any) { p.fail() }

func (p *probe) Fatalf(string, ...any) { p.fail() }

func (p *probe) fail() {
	p.failed = true
	runtime.Goexit() // as a test's goroutine does
}

// TestDrop forgets what a check need not hold, and its number with it.
func TestDrop(t *testing.T) {
	r := violated()
	r.add(Malformed, 1, "subject", "detail")
	r.add(Unconditional, 1, "subject", "detail")
	r.Drop(Malformed, Unconditional)
	if requireKinds(t, r, []Kind{Lost}); r.Malformed+r.Unconditional != 0 || r.Lost != 1 {
		t.Errorf("the numbers still are %+v", r)
	}
}
