package message_test

import (
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/deltabridge/deltabridge/internal/change"
	"github.com/deltabridge/deltabridge/internal/message"
)

var (
	seen      = time.Date(2026, 3, 4, 5, 6, 7, 89_012_345, time.FixedZone("", 3600))
	secretKey = []byte("0123456789abcdef0123456789abcdef")
	scheme    = message.Scheme{Prefix: "kube", Cluster: "prod"}
)

// defaultStrip is the default of BRIDGE_STRIP.
var defaultStrip = []message.StripPath{
	{"metadata", "managedFields"},
	{"metadata", "annotations", "kubectl.kubernetes.io/last-applied-configuration"},
}

func options() message.Options {
	return message.Options{
		Scheme: scheme, Stream: "KUBE", Strip: defaultStrip,
		Secrets: message.SecretsDigest, SecretsKey: secretKey, Epoch: 7,
	}
}

func newEncoder(tb testing.TB, adjust ...func(*message.Options)) *message.Encoder {
	tb.Helper()
	o := options()
	for _, f := range adjust {
		f(&o)
	}
	e, err := message.NewEncoder(o)
	if err != nil {
		tb.Fatal(err)
	}
	return e
}

func structured(o *message.Options) { o.Structured = true }

func encode(tb testing.TB, e *message.Encoder, c *change.Change) *message.Message {
	tb.Helper()
	m, err := e.Encode(c, 41)
	if err != nil {
		tb.Fatal(err)
	}
	return m
}

const deployment = `{"kind":"Deployment","apiVersion":"apps/v1","metadata":{"name":"web","namespace":"default",` +
	`"uid":"0b5d7a1e-0000-4000-8000-000000000001","resourceVersion":"1042","labels":{"app":"web"},` +
	`"annotations":{"kubectl.kubernetes.io/last-applied-configuration":"{}\n","note":"a \u003c b"},` +
	`"managedFields":[{"manager":"kubectl","fieldsV1":{"f:spec":{}}}]},"spec":{"replicas":3},"status":{"ready":1.0}}`

func deploymentChange(op change.Op, reason change.Reason) *change.Change {
	return &change.Change{
		Op:     op,
		Reason: reason,
		Ref:    change.ObjectRef{Group: "apps", Resource: "deployments", Namespace: "default", Name: "web"},
		GVK:    schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"},
		UID:    "0b5d7a1e-0000-4000-8000-000000000001",
		RV:     "1042",
		Raw:    []byte(deployment),
		Run:    "1772597167089012345",
		Seen:   seen,
	}
}

func secretChange(raw string) *change.Change {
	return &change.Change{
		Op:     change.OpAdded,
		Reason: change.ReasonWatch,
		Ref:    change.ObjectRef{Resource: "secrets", Namespace: "default", Name: "login"},
		GVK:    schema.GroupVersionKind{Version: "v1", Kind: "Secret"},
		UID:    "0b5d7a1e-0000-4000-8000-000000000002",
		RV:     "1043",
		Raw:    []byte(raw),
		Seen:   seen,
	}
}

// pod returns a change whose object has the shape and size of a pod's.
func pod() *change.Change {
	var b strings.Builder
	b.WriteString(`{"kind":"Pod","apiVersion":"v1","metadata":{"name":"web-5d9c7b8f6-abcde","namespace":"default","uid":"6f1d2c3b-4a5e-6789-abcd-ef0123456789","resourceVersion":"123456","labels":{"app":"web"},"managedFields":[`)
	b.WriteString(strings.TrimSuffix(strings.Repeat(`{"manager":"kubelet","operation":"Update","apiVersion":"v1","time":"2026-01-02T03:04:05Z","fieldsV1":{"f:status":{"f:conditions":{"k:{\"type\":\"Ready\"}":{".":{},"f:status":{}}}}}},`, 15), ","))
	b.WriteString(`]},"spec":{"containers":[`)
	b.WriteString(strings.TrimSuffix(strings.Repeat(`{"name":"main","image":"registry.example.com/team/web:1.2.3","ports":[{"containerPort":8080,"protocol":"TCP"}],"env":[{"name":"LEVEL","value":"info"}],"resources":{"limits":{"cpu":"500m"}}},`, 20), ","))
	b.WriteString(`]},"status":{"phase":"Running"}}`)
	return &change.Change{
		Op:     change.OpModified,
		Reason: change.ReasonWatch,
		Ref:    change.ObjectRef{Resource: "pods", Namespace: "default", Name: "web-5d9c7b8f6-abcde"},
		GVK:    schema.GroupVersionKind{Version: "v1", Kind: "Pod"},
		UID:    "6f1d2c3b-4a5e-6789-abcd-ef0123456789",
		RV:     "123456",
		Raw:    []byte(b.String()),
		Seen:   seen,
	}
}
