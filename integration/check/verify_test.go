package check

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
)

// TestVerifyAcceptsEveryRightStream holds what is allowed, so that the faults below are found for their own sake.
func TestVerifyAcceptsEveryRightStream(t *testing.T) {
	f := newFixture(t)
	f.writer(1)
	next := f.life("a", 10)
	f.life("a", next) // another uid under the same name
	f.added("b", "b1", 90)
	f.append(spec{object: configMap("b"), kind: "deleted", uid: "b1", rv: "90", reason: "missing"})
	f.append(spec{object: configMap("b"), kind: "added", uid: "b2", rv: "99", reason: "replaced"})
	f.added("c", "c1", 98) // versions of different objects come in any order
	f.append(spec{object: configMap("c"), kind: "deleted", uid: "c1", rv: "120", bodyVersion: "98"})
	f.append(spec{object: configMap("c"), kind: "expired", uid: "c1", rv: "120", reason: "missing", raw: []byte{}})
	f.watermark("130", "1", nil)
	f.writer(2)
	f.append(spec{object: configMap("b"), kind: "synced", uid: "b2", rv: "99", reason: "resync", epoch: "2"})
	f.append(spec{object: configMap("b"), kind: "left", uid: "b2", rv: "99", reason: "scope", epoch: "2"})
	f.append(spec{object: configMap("b"), kind: "added", uid: "b2", rv: "100", reason: "scope", epoch: "2"})
	f.append(spec{
		object: configMap("b"), kind: "modified", uid: "b2", rv: "1000000000000000000000", epoch: "2", reason: "relist",
		change: func(h nats.Header, _ map[string]any) {
			h["ce-gap"] = []string{"100-1000000000000000000000"}
			h["ce-id"] = []string{h["ce-id"][0] + "/again/2"}
			h["Nats-Msg-Id"] = h["ce-id"]
		},
	})
	f.watermark("120", "2", nil) // a store restored from a backup begins again at a lower version
	for i, name := range []string{"x y", strings.Repeat("long:", 300), strings.Repeat("longer:", 2000)} {
		f.append(spec{
			object: Object{Resource: "configmaps", Namespace: "a", Name: name}, kind: "added",
			uid: "d" + strconv.Itoa(i), rv: strconv.Itoa(121 + i), epoch: "2",
		})
	}

	report := f.stream.Verify()
	if len(report.Violations) > 0 {
		t.Fatal(report)
	}
	if report.Messages != 19 || report.Subjects != 6 || report.Watermarks != 2 || report.Writers != 2 {
		t.Errorf("counted %s", report)
	}
}

func TestVerifyAcceptsStructuredMode(t *testing.T) {
	f := newFixture(t)
	f.append(structured(f, nil))
	if report := f.stream.Verify(); len(report.Violations) > 0 || report.Messages != 1 {
		t.Fatal(report)
	}
}

// structured returns a message in structured mode.
func structured(f *fixture, change func(envelope map[string]any)) spec {
	s := spec{object: configMap("a"), kind: "added", uid: "a1", rv: "10"}
	s.change = func(h nats.Header, body map[string]any) {
		envelope := map[string]any{"data": body, "datacontenttype": "application/json"}
		for name, value := range h {
			if attribute, ok := strings.CutPrefix(name, "ce-"); ok {
				envelope[attribute] = value[0]
			}
		}
		for _, name := range []string{
			"ce-specversion", "ce-source", "ce-id", "ce-subject", "ce-time", "ce-gvk", "ce-reason",
		} {
			delete(h, name)
		}
		h["content-type"] = []string{"application/cloudevents+json"}
		copied := map[string]any{}
		raw := f.encode(envelope)
		if err := json.Unmarshal(raw, &copied); err != nil {
			f.t.Fatal(err)
		}
		if change != nil {
			change(copied)
		}
		clear(body)
		for key, value := range copied {
			body[key] = value
		}
	}
	return s
}

// header returns a change of one header; an empty value removes it.
func header(name, value string) func(nats.Header, map[string]any) {
	return func(h nats.Header, _ map[string]any) {
		if value == "" {
			delete(h, name)
		} else {
			h[name] = []string{value}
		}
	}
}

// metadata returns a change of one field of the body's metadata.
func metadata(name string, value any) func(nats.Header, map[string]any) {
	return func(_ nats.Header, body map[string]any) { body["metadata"].(map[string]any)[name] = value }
}

// TestVerifyFindsFaultsOfOrder breaks the guarantees one by one.
func TestVerifyFindsFaultsOfOrder(t *testing.T) {
	a := configMap("a")
	for name, c := range map[string]struct {
		build func(f *fixture)
		want  Kind
	}{
		"older version after newer": {func(f *fixture) {
			f.added("a", "a1", 10)
			f.modified("a", "a1", 12)
			f.modified("a", "a1", 11)
		}, Inversion},
		"version with fewer digits after newer": {func(f *fixture) {
			f.added("a", "a1", 10)
			f.modified("a", "a1", 9)
		}, Inversion},
		"watched deletion without a version of its own": {func(f *fixture) {
			f.added("a", "a1", 10)
			f.deleted("a", "a1", 10)
		}, Inversion},
		"deletion older than the last version": {func(f *fixture) {
			f.added("a", "a1", 10)
			f.deleted("a", "a1", 9)
		}, Inversion},
		"epoch falls on a subject": {func(f *fixture) {
			f.append(spec{object: a, kind: "added", uid: "a1", rv: "10", epoch: "2"})
			f.append(spec{object: a, kind: "modified", uid: "a1", rv: "11", epoch: "1"})
		}, Inversion},
		"epoch falls on a watermark": {func(f *fixture) {
			f.watermark("10", "2", nil)
			f.watermark("11", "1", nil)
		}, Inversion},
		"watermark falls": {func(f *fixture) {
			f.watermark("10", "2", nil)
			f.watermark("9", "2", nil)
		}, Inversion},
		"writer's epoch does not rise": {func(f *fixture) {
			f.writer(3)
			f.writer(3)
		}, Inversion},
		"version twice": {func(f *fixture) {
			f.added("a", "a1", 10)
			f.modified("a", "a1", 10)
		}, Duplicate},
		"version twice under another id": {func(f *fixture) {
			f.added("a", "a1", 10)
			f.append(spec{object: a, kind: "modified", uid: "a1", rv: "10", change: func(h nats.Header, _ map[string]any) {
				h["ce-id"] = []string{"a1/10/again/1"}
				h["Nats-Msg-Id"] = h["ce-id"]
			}})
		}, Duplicate},
		"version twice on two subjects": {func(f *fixture) {
			f.added("a", "a1", 10)
			f.added("b", "a1", 10)
		}, Duplicate},
		"deletion twice": {func(f *fixture) {
			f.added("a", "a1", 10)
			f.deleted("a", "a1", 11)
			f.deleted("a", "a1", 12)
		}, Duplicate},
		"another uid without a deletion": {func(f *fixture) {
			f.added("a", "a1", 10)
			f.added("a", "a2", 11)
		}, Lifecycle},
		"another uid begins with a change": {func(f *fixture) {
			f.life("a", 10)
			f.modified("a", "a2", 20)
		}, Lifecycle},
		"change after deletion": {func(f *fixture) {
			f.added("a", "a1", 10)
			f.deleted("a", "a1", 11)
			f.modified("a", "a1", 12)
		}, Lifecycle},
		"added twice": {func(f *fixture) {
			f.added("a", "a1", 10)
			f.added("a", "a1", 11)
		}, Lifecycle},
		"change after left": {func(f *fixture) {
			f.added("a", "a1", 10)
			f.append(spec{object: a, kind: "left", uid: "a1", rv: "11"})
			f.modified("a", "a1", 12)
		}, Lifecycle},
		"expired while alive": {func(f *fixture) {
			f.added("a", "a1", 10)
			f.append(spec{object: a, kind: "expired", uid: "a1", rv: "10"})
		}, Lifecycle},
		"repetition of what was not published": {func(f *fixture) {
			f.added("a", "a1", 10)
			f.append(spec{object: a, kind: "synced", uid: "a1", rv: "11", reason: "resync"})
		}, Lifecycle},
		"repetition of an older version": {func(f *fixture) {
			f.added("a", "a1", 10)
			f.modified("a", "a1", 11)
			f.append(spec{object: a, kind: "synced", uid: "a1", rv: "10", reason: "resync"})
		}, Inversion},
		"repetition after the deletion": {func(f *fixture) {
			f.added("a", "a1", 10)
			f.deleted("a", "a1", 11)
			f.append(spec{object: a, kind: "synced", uid: "a1", rv: "11", reason: "resync"})
		}, Lifecycle},
		"repetition under another uid": {func(f *fixture) {
			f.added("a", "a1", 10)
			f.append(spec{object: a, kind: "synced", uid: "a2", rv: "10", reason: "resync"})
		}, Lifecycle},
		"repetition of another state": {func(f *fixture) {
			f.added("a", "a1", 10)
			f.append(spec{object: a, kind: "synced", uid: "a1", rv: "10", reason: "resync", change: metadata("labels", map[string]any{"a": "b"})})
		}, Differs},
		"repetition twice in a run": {func(f *fixture) {
			f.added("a", "a1", 10)
			f.append(spec{object: a, kind: "synced", uid: "a1", rv: "10", reason: "resync"})
			f.append(spec{object: a, kind: "synced", uid: "a1", rv: "10", reason: "resync"})
		}, Duplicate},
		"begins with a repetition": {func(f *fixture) {
			f.append(spec{object: a, kind: "synced", uid: "a1", rv: "10", reason: "resync"})
		}, Lifecycle},
		"begins with a change": {func(f *fixture) { f.modified("a", "a1", 10) }, Lifecycle},
		"change behind the watermark": {func(f *fixture) {
			f.watermark("20", "1", nil)
			f.added("a", "a1", 19)
		}, Ahead},
		"body reduced": {func(f *fixture) {
			f.append(spec{object: a, kind: "added", uid: "a1", rv: "10", change: header("ce-oversize", "metadata")})
		}, Reduced},
		"no condition": {func(f *fixture) {
			f.append(spec{
				object: a, kind: "added", uid: "a1", rv: "10", change: header("Nats-Expected-Last-Subject-Sequence", ""),
			})
		}, Unconditional},
		"wrong condition": {func(f *fixture) {
			f.added("a", "a1", 10)
			f.append(spec{
				object: a, kind: "modified", uid: "a1", rv: "11", change: header("Nats-Expected-Last-Subject-Sequence", "0"),
			})
		}, Unconditional},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			c.build(f)
			if report := f.stream.Verify(); len(report.Only(c.want)) == 0 {
				t.Errorf("no %s found: %s", c.want, report)
			}
		})
	}
}

// TestVerifyFindsFaultsOfForm breaks one message at a time in one place.
func TestVerifyFindsFaultsOfForm(t *testing.T) {
	usual := func(change func(nats.Header, map[string]any)) func(*fixture) {
		return func(f *fixture) {
			f.append(spec{object: configMap("a"), kind: "added", uid: "a1", rv: "10", change: change})
		}
	}
	gone := func(kind string, change func(nats.Header, map[string]any)) func(*fixture) {
		return func(f *fixture) {
			f.added("a", "a1", 10)
			f.append(spec{object: configMap("a"), kind: kind, uid: "a1", rv: "11", change: change})
		}
	}
	raw := func(body string) func(*fixture) {
		return func(f *fixture) {
			f.append(spec{object: configMap("a"), kind: "added", uid: "a1", rv: "10", raw: []byte(body)})
		}
	}
	for name, build := range map[string]func(*fixture){
		"specversion":    usual(header("ce-specversion", "")),
		"type":           usual(header("ce-type", "io.deltabridge.changed")),
		"source":         usual(header("ce-source", "/clusters/other")),
		"id":             usual(header("ce-id", "a1/11")),
		"message id":     usual(header("Nats-Msg-Id", "")),
		"subject header": usual(header("ce-subject", "configmaps/default/b")),
		"subject not encoded": func(f *fixture) {
			f.append(spec{
				object: configMap("a b"), kind: "added", uid: "a1", rv: "10",
				change: header("ce-subject", "configmaps/default/a b"),
			})
		},
		"time missing":       usual(header("ce-time", "")),
		"time not UTC":       usual(header("ce-time", "2026-01-02T03:04:05+01:00")),
		"time long ago":      usual(header("ce-time", "2006-01-02T03:04:05Z")),
		"content type":       usual(header("content-type", "text/plain")),
		"uid":                usual(header("ce-uid", "a2")),
		"version":            usual(header("ce-rv", "0x10")),
		"gvk":                usual(header("ce-gvk", "v1/Pod")),
		"reason":             usual(header("ce-reason", "because")),
		"epoch":              usual(header("ce-epoch", "")),
		"expected stream":    usual(header("Nats-Expected-Stream", "OTHER")),
		"gap backwards":      usual(header("ce-gap", "10-9")),
		"gap without end":    usual(header("ce-gap", "10-")),
		"operation on added": usual(header("KV-Operation", "DEL")),
		"rollup on added":    usual(header("Nats-Rollup", "sub")),
		"ttl on added":       usual(header("Nats-TTL", "1m")),

		"deleted without operation": gone("deleted", header("KV-Operation", "")),
		"left without operation":    gone("left", header("KV-Operation", "")),
		"deleted id with version":   gone("deleted", header("ce-id", "a1/11")),
		"left id without version":   gone("left", header("ce-id", "a1/left")),
		"synced id without run":     gone("synced", header("ce-id", "a1/11/sync/")),
		"ttl on deleted":            gone("deleted", header("Nats-TTL", "1m")),

		"body of another version": usual(metadata("resourceVersion", "9")),
		"body of another uid":     usual(metadata("uid", "a2")),
		"body of another name":    usual(metadata("name", "b")),
		"body without version":    usual(metadata("resourceVersion", nil)),
		"body later than gone":    gone("deleted", metadata("resourceVersion", "12")),
		"body without kind":       usual(func(_ nats.Header, body map[string]any) { delete(body, "kind") }),
		"body of another group":   usual(func(_ nats.Header, body map[string]any) { body["apiVersion"] = "apps/v1" }),
		"body without metadata":   usual(func(_ nats.Header, body map[string]any) { delete(body, "metadata") }),
		"body is no JSON":         raw(`{"apiVersion":`),
		"body is empty":           raw(` `),
		"body has a rest":         raw(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{}} {}`),

		"structured without data": func(f *fixture) {
			f.append(structured(f, func(envelope map[string]any) { delete(envelope, "data") }))
		},
		"structured with another uid": func(f *fixture) {
			f.append(structured(f, func(envelope map[string]any) { envelope["uid"] = "a2" }))
		},
		"structured without content type": func(f *fixture) {
			f.append(structured(f, func(envelope map[string]any) { delete(envelope, "datacontenttype") }))
		},
		"structured without source": func(f *fixture) {
			f.append(structured(f, func(envelope map[string]any) { delete(envelope, "source") }))
		},

		"watermark of another resource": func(f *fixture) {
			f.watermark("10", "1", func(body map[string]any) { body["resource"] = "pods" })
		},
		"watermark without version": func(f *fixture) {
			f.watermark("10", "1", func(body map[string]any) { delete(body, "rv") })
		},
		"watermark with another gap": func(f *fixture) {
			f.watermark("10", "1", func(body map[string]any) { body["gap"] = []string{"1-2"} })
		},
		"watermark of another format": func(f *fixture) {
			f.watermark("10", "1", func(body map[string]any) { body["format"] = 2 })
		},
		"watermark of another epoch": func(f *fixture) {
			f.watermark("10", "1", func(body map[string]any) { body["epoch"] = 2 })
		},
		"subject too long": func(f *fixture) {
			f.store(testRoot+".core.configmaps.default.a.b", f.header("x", "added", "1"), nil)
		},
		"subject with a byte escaped without need": func(f *fixture) {
			f.store(testRoot+".core.configmaps.default.=61", f.header("x", "added", "1"), nil)
		},
		"subject with a byte that must be escaped": func(f *fixture) {
			f.store(testRoot+".core.configmaps.default.a:b", f.header("x", "added", "1"), nil)
		},
		"subject with lower-case digits": func(f *fixture) {
			f.store(testRoot+".core.configmaps.default.=3a", f.header("x", "added", "1"), nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			build(f)
			if report := f.stream.Verify(); report.Malformed == 0 {
				t.Errorf("nothing found: %s", report)
			}
		})
	}
}

func TestNames(t *testing.T) {
	for subject, object := range map[string]Object{
		"kube.main.rbac_authorization_k8s_io.clusterroles._.system=3Anode": {
			Group: "rbac.authorization.k8s.io", Resource: "clusterroles", Name: "system:node",
		},
		"kube.main.core.nodes._.ip-10-0-0-1_ec2_internal": {Resource: "nodes", Name: "ip-10-0-0-1.ec2.internal"},
		"kube.main.apps.deployments.default.web":          {Group: "apps", Resource: "deployments", Namespace: "default", Name: "web"},
		"kube.main.core.configmaps.default.a_b":           {Resource: "configmaps", Namespace: "default", Name: "a.b"},
		"kube.main.core.configmaps.default.a=5Fb":         {Resource: "configmaps", Namespace: "default", Name: "a_b"},
		"kube.main.core.configmaps.default.a=3Db":         {Resource: "configmaps", Namespace: "default", Name: "a=b"},
		"kube.main.core.configmaps.default.=2A":           {Resource: "configmaps", Namespace: "default", Name: "*"},
		"kube.main.core.configmaps.default.=C3=A9":        {Resource: "configmaps", Namespace: "default", Name: "é"},
	} {
		if got := object.Subject(testRoot); got != subject {
			t.Errorf("subject of %v is %q, want %q", object, got, subject)
		}
		place, got, err := parseSubject(testRoot, subject)
		if err != nil || place != objectSubject || got != object {
			t.Errorf("%q is %v of %d, %v; want %v", subject, got, place, err, object)
		}
	}
}

func TestCompare(t *testing.T) {
	rising := []string{"0", "1", "9", "10", "99", "100", "18446744073709551615", "18446744073709551616", "100000000000000000000"}
	for i := range rising {
		for j := range rising {
			if got := compare(rising[i], rising[j]); (got < 0) != (i < j) || (got == 0) != (i == j) {
				t.Errorf("compare(%s, %s) = %d", rising[i], rising[j], got)
			}
		}
	}
	for _, bad := range []string{"", "01", "-1", "1.0", "1a", " 1"} {
		if isDecimal(bad) {
			t.Errorf("%q is taken for a decimal", bad)
		}
	}
}
