package message_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/deltabridge/deltabridge/internal/message"
)

func sampleWatermark() message.Watermark {
	return message.Watermark{
		ClusterUID: "5b1e", Group: "apps", Resource: "deployments", Scope: "namespaces=a",
		RV: "1042", Subjects: 17, Time: time.Date(2026, 3, 4, 5, 6, 7, 891234567, time.FixedZone("", 3600)), Gap: "900-1000",
	}
}

func TestWatermarkRoundTrip(t *testing.T) {
	m, err := newEncoder(t).EncodeWatermark(sampleWatermark(), 0)
	if err != nil {
		t.Fatal(err)
	}
	gr := schema.GroupResource{Group: "apps", Resource: "deployments"}
	got, err := message.ParseWatermark(m.Body, "prod", gr)
	if err != nil {
		t.Fatal(err)
	}
	want := sampleWatermark()
	want.Format, want.Cluster, want.Epoch = 1, "prod", got.Epoch
	want.Time = time.Date(2026, 3, 4, 4, 6, 7, 891234000, time.UTC)
	if got != want || got.Epoch == 0 {
		t.Errorf("got %+v, want %+v", got, want)
	}
	scheme := message.Scheme{Prefix: "kube", Cluster: "prod"}
	if back, err := scheme.ParseResource(m.Subject); err != nil || back != gr {
		t.Errorf("subject %s is that of %s, %v", m.Subject, back, err)
	}
}

// A watermark that is not understood is never guessed at.
func TestWatermarkThatIsNotOurs(t *testing.T) {
	gr := schema.GroupResource{Resource: "pods"}
	good := `{"format":1,"cluster":"prod","group":"","resource":"pods","rv":"7","epoch":3,"new":true}`
	if w, err := message.ParseWatermark([]byte(good), "prod", gr); err != nil || w.RV != "7" {
		t.Errorf("got %+v, %v", w, err)
	}
	for name, c := range map[string]struct {
		old, new string
		want     error
	}{
		"no JSON":          {`{"format"`, `"format"`, nil},
		"newer format":     {`"format":1`, `"format":2`, message.ErrFormat},
		"no format":        {`"format":1,`, ``, message.ErrFormat},
		"other cluster":    {`"prod"`, `"stage"`, message.ErrOtherCluster},
		"other resource":   {`"pods"`, `"nodes"`, message.ErrOtherCluster},
		"other group":      {`"group":""`, `"group":"apps"`, message.ErrOtherCluster},
		"no version":       {`"rv":"7"`, `"rv":""`, nil},
		"version a number": {`"rv":"7"`, `"rv":7`, nil},
		"no epoch":         {`"epoch":3`, `"epoch":0`, nil},
	} {
		body := strings.Replace(good, c.old, c.new, 1)
		_, err := message.ParseWatermark([]byte(body), "prod", gr)
		if err == nil || (c.want != nil && !errors.Is(err, c.want)) {
			t.Errorf("%s: error %v, want %v", name, err, c.want)
		}
		if err != nil && !strings.Contains(err.Error(), "pods") {
			t.Errorf("%s: the error does not name the resource: %v", name, err)
		}
	}
}

func TestWatermarkWithoutVersionIsNotEncoded(t *testing.T) {
	w := sampleWatermark()
	w.RV = ""
	if _, err := newEncoder(t).EncodeWatermark(w, 0); err == nil {
		t.Error("encoded a watermark that says nothing")
	}
}
