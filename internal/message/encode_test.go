package message_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/deltabridge/deltabridge/internal/change"
	"github.com/deltabridge/deltabridge/internal/message"
)

func TestNewEncoderRefuses(t *testing.T) {
	_, err := message.NewEncoder(message.Options{Scheme: message.Scheme{Prefix: "a b", Cluster: "c"}, Stream: "two words"})
	if err == nil {
		t.Fatal("accepted")
	}
	for _, want := range []string{"subject prefix", "stream name", "mode for Secrets"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q does not say %q", err, want)
		}
	}
	for _, adjust := range []func(*message.Options){
		func(o *message.Options) { o.SecretsKey = nil },
		func(o *message.Options) { o.SecretsKey = []byte("short") },
		func(o *message.Options) { o.Secrets = "none" },
		func(o *message.Options) { o.Stream = "" },
		func(o *message.Options) { o.Scheme.Cluster = "" },
	} {
		o := options()
		adjust(&o)
		if _, err = message.NewEncoder(o); err == nil {
			t.Errorf("%+v was accepted", o)
		}
	}
}

func TestEncodeRefuses(t *testing.T) {
	e := newEncoder(t)
	for name, adjust := range map[string]func(*change.Change){
		"op":              func(c *change.Change) { c.Op = change.OpNone },
		"unknown op":      func(c *change.Change) { c.Op = 200 },
		"name":            func(c *change.Change) { c.Ref.Name = "" },
		"resource":        func(c *change.Change) { c.Ref.Resource = "" },
		"group":           func(c *change.Change) { c.Ref.Group = "core" },
		"namespace":       func(c *change.Change) { c.Ref.Namespace = "." },
		"uid":             func(c *change.Change) { c.UID = "" },
		"rv":              func(c *change.Change) { c.RV = "" },
		"kind":            func(c *change.Change) { c.GVK.Kind = "" },
		"version":         func(c *change.Change) { c.GVK.Version = "" },
		"long subject":    func(c *change.Change) { c.Ref.Resource = strings.Repeat("r", 3100) },
		"not JSON":        func(c *change.Change) { c.Raw = []byte(`{"a":}`) },
		"not an object":   func(c *change.Change) { c.Raw = []byte(`[]`) },
		"white space":     func(c *change.Change) { c.Raw = []byte(` `) },
		"two objects":     func(c *change.Change) { c.Raw = []byte(`{}{}`) },
		"kind not closed": func(c *change.Change) { c.Raw = []byte(`{"kind":"a`) },
	} {
		c := deploymentChange(change.OpAdded, change.ReasonWatch)
		adjust(c)
		if m, err := e.Encode(c, 0); err == nil || !strings.Contains(err.Error(), "encode") {
			t.Errorf("%s: %.300v, %v", name, m, err)
		}
	}
}

// TestBody holds that every body says kind and apiVersion, whatever came, and that nothing is copied needlessly.
func TestBody(t *testing.T) {
	const own = `"kind":"Deployment","apiVersion":"apps/v1"`
	for _, c := range []struct{ name, raw, want string }{
		{"both there", `{"apiVersion":"apps/v1","spec":{},"kind":"Deployment"}`, `{"apiVersion":"apps/v1","spec":{},"kind":"Deployment"}`},
		{"its own words", `{"kind":"D\u0065ployment","apiVersion":"apps/v1beta1"}`, `{"kind":"D\u0065ployment","apiVersion":"apps/v1beta1"}`},
		{"none", `{"spec":{}}`, `{` + own + `,"spec":{}}`},
		{"none, white space", ` { "spec" : {} } `, ` {` + own + `, "spec" : {} } `},
		{"empty", `{}`, `{` + own + `}`},
		{"no kind", `{"apiVersion":"apps/v1"}`, `{"kind":"Deployment","apiVersion":"apps/v1"}`},
		{"no apiVersion", `{"kind":"Deployment"}`, `{"apiVersion":"apps/v1","kind":"Deployment"}`},
		{"says nothing", `{"kind":"","apiVersion":null,"x":1}`, `{"kind":"Deployment","apiVersion":"apps/v1","x":1}`},
		{"none, and the first is stripped", `{"gone":1,"x":1}`, `{` + own + `,"x":1}`},
		{"none, and all is stripped", `{"gone":1}`, `{` + own + `}`},
		{"kind only, and the rest is stripped", `{"gone":1,"kind":"Deployment"}`, `{"apiVersion":"apps/v1","kind":"Deployment"}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			in := deploymentChange(change.OpAdded, change.ReasonWatch)
			in.Raw = []byte(c.raw)
			m := encode(t, newEncoder(t, func(o *message.Options) { o.Strip = []message.StripPath{{"gone"}} }), in)
			if string(m.Body) != c.want {
				t.Errorf("got  %s\nwant %s", m.Body, c.want)
			}
			if c.raw == c.want && &m.Body[0] != &in.Raw[0] {
				t.Error("the body was copied")
			}
			if string(in.Raw) != c.raw {
				t.Errorf("raw was written to: %s", in.Raw)
			}
		})
	}
	c := deploymentChange(change.OpAdded, change.ReasonWatch)
	c.Ref = change.ObjectRef{Resource: "pods", Namespace: "n", Name: "p"}
	c.GVK = schema.GroupVersionKind{Version: "v1", Kind: "Pod"}
	c.Raw = []byte(`{}`)
	if got, want := string(encode(t, newEncoder(t), c).Body), `{"kind":"Pod","apiVersion":"v1"}`; got != want {
		t.Errorf("core group: got %s, want %s", got, want)
	}
}

// envelope is a message of structured mode as a reader sees it.
type envelope struct {
	ID      string          `json:"id"`
	Subject string          `json:"subject"`
	Epoch   string          `json:"epoch"`
	Data    json.RawMessage `json:"data"`
}

// TestModesAgree holds that structured mode says what binary mode says.
func TestModesAgree(t *testing.T) {
	attributes := []string{"specversion", "type", "source", "id", "subject", "time", "uid", "rv", "gvk", "reason", "gap", "epoch", "oversize"}
	names := []string{"web", "größe", "a b", `q"\`, "new\nline", "\x7f", "*", strings.Repeat("n", 2000), strings.Repeat("ü", 2000)}
	for i, name := range names {
		for op := change.OpAdded; op <= change.OpExpired; op++ {
			c := deploymentChange(op, change.ReasonWatch)
			c.Ref.Name = name
			if i%2 == 1 {
				c.Gap = change.Gap{From: "1", To: "2"}
			}
			level := message.Level(i % 4)
			bin, err := newEncoder(t).Reduce(c, 5, level)
			if err != nil {
				t.Fatal(err)
			}
			str, err := newEncoder(t, structured).Reduce(c, 5, level)
			if err != nil {
				t.Fatal(err)
			}
			if bin.Subject != str.Subject || bin.ID != str.ID || bin.Level != str.Level {
				t.Errorf("%s, %s: %q %q %s and %q %q %s", name, op, bin.Subject, bin.ID, bin.Level, str.Subject, str.ID, str.Level)
			}
			var values map[string]any
			var env envelope
			if err = json.Unmarshal(str.Body, &values); err != nil {
				t.Fatalf("%s: %v", str.Body, err)
			}
			if err = json.Unmarshal(str.Body, &env); err != nil {
				t.Fatal(err)
			}
			for _, attribute := range attributes {
				want := ""
				if h := bin.Header["ce-"+attribute]; len(h) == 1 {
					if want, err = message.DecodeHeaderValue(h[0]); err != nil {
						t.Fatal(err)
					}
				}
				if got, has := values[attribute]; has != (want != "") || has && got != want {
					t.Errorf("%s, %s: attribute %s is %v, header %q", name, op, attribute, got, want)
				}
			}
			if string(env.Data) != string(bin.Body) {
				t.Errorf("%s, %s: data %s, body %s", name, op, env.Data, bin.Body)
			}
			for header, value := range str.Header {
				if header != message.HeaderContentType && !slices.Equal(value, bin.Header[header]) {
					t.Errorf("%s, %s: header %s is %q and %q", name, op, header, value, bin.Header[header])
				}
			}
			for m, wantType := range map[*message.Message]string{bin: "application/json", str: "application/cloudevents+json"} {
				if m == bin && level == message.LevelNone {
					wantType = ""
				}
				if got := strings.Join(m.Header[message.HeaderContentType], ""); got != wantType {
					t.Errorf("content type %q, want %q", got, wantType)
				}
			}
		}
	}
}

// TestNamesInHeaders holds that no name can end a header, and that ce-subject gives back every name that fits.
func TestNamesInHeaders(t *testing.T) {
	for _, name := range []string{"web", "a\r\nNats-Rollup: all", "€", " ", "\x00", strings.Repeat("ü", 1300)} {
		c := deploymentChange(change.OpAdded, "re\r\nlist")
		c.Ref.Name, c.UID, c.RV = name, "u\r\n", "r\r\n"
		c.GVK.Kind, c.Gap.From = "K\r\n", "\r\n"
		m := encode(t, newEncoder(t), c)
		for header, values := range m.Header {
			for _, value := range values {
				if strings.ContainsFunc(value, func(r rune) bool { return r <= ' ' || r > '~' }) {
					t.Errorf("header %s has the value %q", header, value)
				}
			}
		}
		if got, err := message.DecodeHeaderValue(m.Header[message.HeaderSubject][0]); err != nil || got != c.Ref.String() {
			t.Errorf("ce-subject %q, %v, want %q", got, err, c.Ref.String())
		}
	}
	c := deploymentChange(change.OpAdded, change.ReasonWatch)
	c.Ref.Name = strings.Repeat("ü", 1<<18)
	for _, e := range []*message.Encoder{newEncoder(t), newEncoder(t, structured)} {
		m, err := e.Reduce(c, 0, message.LevelNone)
		if err != nil {
			t.Fatal(err)
		}
		if m.Size() > 32<<10 {
			t.Errorf("a name of %d bytes makes a message of %d at the least", len(c.Ref.Name), m.Size())
		}
	}
	m, err := newEncoder(t).Reduce(c, 0, message.LevelIdentity)
	if err != nil || !strings.Contains(string(m.Body), c.Ref.Name) {
		t.Errorf("the body does not have the name: %v", err)
	}
	token := m.Subject[strings.LastIndexByte(m.Subject, '.')+1:]
	if got, want := m.Header[message.HeaderSubject][0], "deployments.apps/default/"+token; got != want {
		t.Errorf("ce-subject %q, want %q", got, want)
	}
}

func TestReduce(t *testing.T) {
	identity := `{"kind":"Deployment","apiVersion":"apps/v1","metadata":{"name":"web","namespace":"default","uid":"0b5d7a1e-0000-4000-8000-000000000001","resourceVersion":"1042"}}`
	for _, c := range []struct {
		raw   string
		level message.Level
		shown message.Level
		want  string
	}{
		{``, message.LevelObject, message.LevelObject, identity},
		{``, message.LevelMetadata, message.LevelIdentity, identity},
		{`{"spec":1}`, message.LevelMetadata, message.LevelIdentity, identity},
		{`{"metadata":null,"spec":1}`, message.LevelMetadata, message.LevelIdentity, identity},
		{`{"metadata":{"a":1},"spec":1}`, message.LevelIdentity, message.LevelIdentity, identity},
		{`{"metadata":{"a":1},"spec":1}`, message.LevelNone, message.LevelNone, ``},
		{`{"metadata":{"a":1},"spec":1}`, 9, message.LevelNone, ``},
		{`{"status":{}, "metadata" : {"managedFields":1, "a":"\u0061"} ,"spec":1}`, message.LevelMetadata, message.LevelMetadata,
			`{"kind":"Deployment","apiVersion":"apps/v1","metadata":{"a":"\u0061"}}`},
		{`{"apiVersion":"apps/v2","metadata":{"managedFields":[]},"metadata":{"b":1,"managedFields":[]}}`, message.LevelMetadata, message.LevelMetadata,
			`{"kind":"Deployment","apiVersion":"apps/v2","metadata":{"b":1}}`},
	} {
		in := deploymentChange(change.OpAdded, change.ReasonWatch)
		in.Raw = []byte(c.raw)
		m, err := newEncoder(t).Reduce(in, 0, c.level)
		if err != nil {
			t.Fatalf("%s: %v", c.raw, err)
		}
		if string(m.Body) != c.want || m.Level != c.shown {
			t.Errorf("%s on level %s:\ngot  %s %s\nwant %s %s", c.raw, c.level, m.Level, m.Body, c.shown, c.want)
		}
		oversize := strings.Join(m.Header[message.HeaderOversize], "")
		if c.shown == message.LevelObject && oversize != "" || c.shown != message.LevelObject && oversize != c.shown.String() {
			t.Errorf("%s on level %s: ce-oversize %q", c.raw, c.level, oversize)
		}
	}
	if got := message.Level(9).String(); got != "level 9" {
		t.Errorf("an unknown level is %q", got)
	}
	// A path that ParseStripPath would refuse must not confuse the ladder.
	e := newEncoder(t, func(o *message.Options) { o.Strip = []message.StripPath{{"metadata"}} })
	m, err := e.Reduce(deploymentChange(change.OpAdded, ""), 0, message.LevelMetadata)
	if err != nil || string(m.Body) != identity {
		t.Errorf("metadata stripped: %s, %v", m.Body, err)
	}
	// Each step is smaller.
	for _, e = range []*message.Encoder{newEncoder(t), newEncoder(t, structured)} {
		last := 1 << 30
		for level := message.LevelObject; level <= message.LevelNone; level++ {
			if m, err = e.Reduce(pod(), 0, level); err != nil {
				t.Fatal(err)
			}
			if m.Size() >= last {
				t.Errorf("%s: %d bytes, no less than the %d before", level, m.Size(), last)
			}
			last = m.Size()
		}
	}
}

func TestSize(t *testing.T) {
	for _, e := range []*message.Encoder{newEncoder(t), newEncoder(t, structured)} {
		m := encode(t, e, deploymentChange(change.OpExpired, change.ReasonWatch))
		block := "NATS/1.0\r\n"
		for name, values := range m.Header {
			for _, value := range values {
				block += name + ": " + value + "\r\n"
			}
		}
		block += "\r\n"
		if want := len(block) + len(m.Body); m.Size() != want {
			t.Errorf("Size = %d, want %d", m.Size(), want)
		}
	}
}

func TestExpect(t *testing.T) {
	m := encode(t, newEncoder(t), deploymentChange(change.OpAdded, change.ReasonWatch))
	want := maps.Clone(m.Header)
	want[message.HeaderExpectedSequence] = []string{"18446744073709551615"}
	m.Expect(1<<64 - 1)
	if !reflect.DeepEqual(m.Header, want) {
		t.Errorf("headers %v, want %v", m.Header, want)
	}
}

func TestAgain(t *testing.T) {
	for _, adjust := range []func(*message.Options){func(*message.Options) {}, structured} {
		m := encode(t, newEncoder(t, adjust), deploymentChange(change.OpDeleted, change.ReasonWatch))
		before, beforeBody := maps.Clone(m.Header), string(m.Body)
		for _, again := range []*message.Message{m.Again(8), m.Again(1 << 40).Again(8)} {
			wantID := m.ID + "/again/8"
			want := maps.Clone(before)
			want[message.HeaderMsgID] = []string{wantID}
			if _, has := want[message.HeaderID]; has {
				want[message.HeaderID] = []string{wantID}
			}
			if again.ID != wantID || again.Subject != m.Subject || again.Level != m.Level || !reflect.DeepEqual(again.Header, want) {
				t.Errorf("again %q, %v, want %q, %v", again.ID, again.Header, wantID, want)
			}
			var have, was map[string]any
			if err := json.Unmarshal(again.Body, &have); err != nil {
				t.Fatalf("%s: %v", again.Body, err)
			}
			if err := json.Unmarshal(m.Body, &was); err != nil {
				t.Fatal(err)
			}
			if _, has := was["id"]; has {
				was["id"] = wantID
			}
			if !reflect.DeepEqual(have, was) {
				t.Errorf("body %s, of %s", again.Body, m.Body)
			}
		}
		if !reflect.DeepEqual(m.Header, before) || string(m.Body) != beforeBody {
			t.Error("Again changed its message")
		}
	}
	// An id with bytes that JSON escapes.
	c := deploymentChange(change.OpAdded, change.ReasonWatch)
	c.UID = `a\b`
	m := encode(t, newEncoder(t, structured), c)
	var env envelope
	if err := json.Unmarshal(m.Again(9).Body, &env); err != nil || env.ID != `a\b/1042/again/9` {
		t.Errorf("id %q, %v", env.ID, err)
	}
}

// TestResyncs holds that the same object published by two resyncs has two ids, and one in either.
func TestResyncs(t *testing.T) {
	e := newEncoder(t)
	first := deploymentChange(change.OpSynced, change.ReasonResync)
	second := deploymentChange(change.OpSynced, change.ReasonResync)
	second.Run += "0"
	id := encode(t, e, first).ID
	if again := encode(t, e, first).ID; again != id {
		t.Errorf("the id is not stable: %q, %q", id, again)
	}
	if encode(t, e, second).ID == id {
		t.Error("two resyncs have the same id")
	}
	second.Run, second.Seen = first.Run, second.Seen.Add(1)
	if got := encode(t, e, second).ID; got != id {
		t.Errorf("one resync has the ids %q and %q", id, got)
	}
	second.Run = ""
	if _, err := e.Encode(second, 0); err == nil {
		t.Error("a repetition without a run is accepted")
	}
}

func TestSetEpoch(t *testing.T) {
	e := newEncoder(t, structured)
	e.SetEpoch(18446744073709551615)
	m := encode(t, e, deploymentChange(change.OpAdded, change.ReasonWatch))
	var env envelope
	if err := json.Unmarshal(m.Body, &env); err != nil || env.Epoch != "18446744073709551615" || m.Header[message.HeaderEpoch][0] != env.Epoch {
		t.Errorf("epoch %q, header %q, %v", env.Epoch, m.Header[message.HeaderEpoch], err)
	}
}

// TestConcurrentEncode lets the race detector see what encoders share.
func TestConcurrentEncode(t *testing.T) {
	e := newEncoder(t)
	c := secretChange(`{"data":{"a":"eA=="}}`)
	want := fmt.Sprint(encode(t, e, c))
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 50 {
				if m, err := e.Encode(c, 41); err != nil || fmt.Sprint(m) != want {
					t.Errorf("%v, %v", m, err)
				}
			}
		})
	}
	wg.Wait()
}

func TestEncodeAllocations(t *testing.T) {
	e := newEncoder(t)
	c := pod()
	c.Raw = []byte(strings.Replace(string(c.Raw), `"managedFields"`, `"otherFields"`, 1))
	// The message, its text, the values, and a map of more than eight, which is four.
	if n := testing.AllocsPerRun(100, func() { _, _ = e.Encode(c, 41) }); n > 7 {
		t.Errorf("%v allocations for an object that needs no change, want 7", n)
	}
}

// FuzzEncode holds that what comes out of any object is JSON that says kind and apiVersion.
func FuzzEncode(f *testing.F) {
	f.Add([]byte(deployment), "web", uint8(0))
	f.Add([]byte(`{"metadata":{"managedFields":1,"a":[]},"metadata":{}}`), "a b", uint8(1))
	f.Add([]byte(`{"kind":null,"kind":"","apiVersion":"x"}`), "\xff\r\n\"", uint8(2))
	f.Add([]byte(` { } `), "ü", uint8(3))
	f.Fuzz(func(t *testing.T, raw []byte, name string, level uint8) {
		c := deploymentChange(change.OpModified, change.ReasonWatch)
		c.Raw, c.Ref.Name = raw, name+"x"
		for _, adjust := range []func(*message.Options){func(*message.Options) {}, structured} {
			m, err := newEncoder(t, adjust).Reduce(c, 1, message.Level(level%4))
			if err != nil {
				if len(raw) > 0 && json.Valid(raw) && raw[0] == '{' {
					t.Errorf("%q: %v", raw, err)
				}
				continue
			}
			body := m.Body
			if _, binary := m.Header[message.HeaderID]; !binary {
				var env envelope
				if err = json.Unmarshal(m.Body, &env); err != nil {
					t.Fatalf("%q: %v", m.Body, err)
				}
				body = env.Data
			}
			if m.Level == message.LevelNone {
				if len(body) != 0 {
					t.Errorf("body %q", body)
				}
				continue
			}
			var object struct{ Kind, APIVersion string }
			var exact map[string]any
			if err = json.Unmarshal(body, &exact); err != nil {
				t.Fatalf("%q became %q: %v", raw, body, err)
			}
			object.Kind, _ = exact["kind"].(string)
			object.APIVersion, _ = exact["apiVersion"].(string)
			if object.Kind == "" || object.APIVersion == "" {
				t.Errorf("%q became %q", raw, body)
			}
		}
	})
}
