package check

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	testStream  = "KUBE"
	testCluster = "main"
	testRoot    = "kube.main"
)

// fixture builds streams as the contract has them, one append after the other.
type fixture struct {
	t        *testing.T
	sequence uint64
	last     map[string]uint64
	stream   *Stream
}

func newFixture(t *testing.T) *fixture {
	return &fixture{
		t:    t,
		last: map[string]uint64{},
		stream: &Stream{
			Name: testStream, Root: testRoot, Cluster: testCluster, Complete: true,
		},
	}
}

// spec is a message to append; change, if set, has the last word on its headers and returns its body.
type spec struct {
	object        Object
	kind, uid, rv string
	reason, epoch string
	bodyVersion   string // where it differs from rv
	change        func(h nats.Header, body map[string]any)
	raw           []byte // the body, where it is not made of the rest
}

func configMap(name string) Object {
	return Object{Resource: "configmaps", Namespace: "default", Name: name}
}

func (f *fixture) append(s spec) {
	f.t.Helper()
	if s.reason == "" {
		s.reason = "watch"
	}
	if s.epoch == "" {
		s.epoch = "1"
	}
	if s.bodyVersion == "" {
		s.bodyVersion = s.rv
	}
	id := map[string]string{
		"deleted": s.uid + "/deleted", "expired": s.uid + "/expired", "left": s.uid + "/" + s.rv + "/left",
		"synced": s.uid + "/" + s.rv + "/sync/7",
	}[s.kind]
	if id == "" {
		id = s.uid + "/" + s.rv
	}
	subject := s.object.Subject(testRoot)
	header := f.header(subject, s.kind, s.epoch)
	for name, value := range map[string]string{
		"ce-specversion": "1.0",
		"ce-source":      "/clusters/" + testCluster,
		"ce-id":          id,
		"Nats-Msg-Id":    id,
		"ce-subject":     headerName(s.object),
		"ce-time":        time.Now().UTC().Format(time.RFC3339Nano),
		"content-type":   "application/json",
		"ce-uid":         s.uid,
		"ce-rv":          s.rv,
		"ce-gvk":         "v1/ConfigMap",
		"ce-reason":      s.reason,
	} {
		header[name] = []string{value}
	}
	switch s.kind {
	case "deleted", "left":
		header["KV-Operation"] = []string{"DEL"}
	case "expired":
		header["KV-Operation"] = []string{"PURGE"}
		header["Nats-Rollup"] = []string{"sub"}
		header["Nats-TTL"] = []string{"1m"}
	}
	body := f.body(s.object, s.uid, s.bodyVersion)
	if s.change != nil {
		s.change(header, body)
	}
	raw := s.raw
	if raw == nil {
		raw = f.encode(body)
	}
	f.store(subject, header, raw)
}

func (f *fixture) header(subject, kind, epoch string) nats.Header {
	return nats.Header{
		"ce-type":                             {"io.deltabridge." + kind},
		"ce-epoch":                            {epoch},
		"Nats-Expected-Stream":                {testStream},
		"Nats-Expected-Last-Subject-Sequence": {strconv.FormatUint(f.last[subject], 10)},
	}
}

func (f *fixture) body(o Object, uid, version string) map[string]any {
	return map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap",
		"metadata": map[string]any{
			"name": o.Name, "namespace": o.Namespace, "uid": uid, "resourceVersion": version,
		},
		"data": map[string]any{"version": version},
	}
}

func (f *fixture) encode(value any) []byte {
	raw, err := json.Marshal(value)
	if err != nil {
		f.t.Fatal(err)
	}
	return raw
}

func (f *fixture) store(subject string, header nats.Header, body []byte) {
	f.sequence++
	f.stream.Messages = append(f.stream.Messages, NewMessage(testRoot, f.sequence, subject, header, body))
	f.last[subject] = f.sequence
}

// watermark appends a watermark of configmaps; change may alter its body.
func (f *fixture) watermark(rv, epoch string, change func(map[string]any)) {
	subject := testRoot + ".core.configmaps"
	n, err := strconv.Atoi(epoch)
	if err != nil {
		f.t.Fatal(err)
	}
	body := map[string]any{
		"format": 1, "cluster": testCluster, "clusterUID": "c", "group": "", "resource": "configmaps", "scope": "",
		"rv": rv, "time": time.Now().UTC().Format(time.RFC3339), "epoch": n,
	}
	if change != nil {
		change(body)
	}
	f.store(subject, f.header(subject, "watermark", epoch), f.encode(body))
}

// writer appends a writer record.
func (f *fixture) writer(epoch int) {
	f.store(testRoot, f.header(testRoot, "writer", strconv.Itoa(epoch)), f.encode(map[string]any{
		"format": 1, "epoch": epoch, "holder": "a", "clusterUID": "c", "time": time.Now().UTC().Format(time.RFC3339),
	}))
}

// added, modified and deleted append the usual messages.
func (f *fixture) added(name, uid string, rv int) { f.usual("added", name, uid, rv) }

func (f *fixture) modified(name, uid string, rv int) { f.usual("modified", name, uid, rv) }

func (f *fixture) deleted(name, uid string, rv int) { f.usual("deleted", name, uid, rv) }

func (f *fixture) usual(kind, name, uid string, rv int) {
	f.t.Helper()
	f.append(spec{object: configMap(name), kind: kind, uid: uid, rv: strconv.Itoa(rv)})
}

// life appends the whole life of an object, from a version on, and returns the next free version.
func (f *fixture) life(name string, rv int) int {
	uid := fmt.Sprintf("uid-%s-%d", name, rv)
	f.added(name, uid, rv)
	f.modified(name, uid, rv+1)
	f.deleted(name, uid, rv+2)
	return rv + 3
}

// headerName returns an object's names as they stand in ce-subject. Names of these tests need few escapes.
func headerName(o Object) string {
	if len(o.Name) > longestHeaderName {
		o.Name = nameToken(o.Name)
	}
	return strings.ReplaceAll(o.String(), " ", "%20")
}
