package publisher

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

func TestCovers(t *testing.T) {
	for _, c := range []struct {
		pattern, subject string
		want             bool
	}{
		{"kube.>", "kube.main", true},
		{"kube.>", "kube.main.>", true},
		{"kube.>", "kube.main.core.pods.default.web", true},
		{"kube.>", "kube", false}, // > stands for one token or more
		{"kube", "kube", true},
		{"kube", "kube.main", false},
		{"kube.main", "kube", false},
		{">", "kube", true},
		{">", "kube.>", true},
		{"kube.*", "kube.main", true},
		{"kube.*", "kube.>", false},
		{"kube.*", "kube.*", true},
		{"kube.main", "kube.*", false},
		{"kube.*.>", "kube.>", false},
		{"kube.*.>", "kube.main.>", true},
		{"kube.main.>", "kube.main", false}, // which is why a stream needs the writer's subject too
		{"kube.main.>", "kube.main.>", true},
		{"kube.main.>", "kube.other.>", false},
		{"kube.main.>", "kube.>", false},
		{"*.main.>", "kube.main.>", true},
		{"kube.main.*.*.*.*", "kube.main.>", false},
		{"kube.main.core.>", "kube.main.>", false},
	} {
		if got := covered([]string{"other.>", c.pattern}, c.subject); got != c.want {
			t.Errorf("%q takes %q: got %v", c.pattern, c.subject, got)
		}
	}
	if covered(nil, "kube") {
		t.Error("a stream without subjects takes everything")
	}
}

func testStreamOptions() StreamOptions {
	return StreamOptions{
		Name: "KUBE", Mode: StreamManage, Subjects: []string{"kube.>"}, Needs: []string{"kube.main", "kube.main.>"},
		Replicas: 3, Storage: jetstream.FileStorage, History: 16, MaxAge: time.Hour, MaxBytes: 1 << 30,
	}
}

func TestMergeChangesOnlyWhatIsManaged(t *testing.T) {
	o := testStreamOptions()
	if _, changed := o.merge(o.config()); changed {
		t.Error("what the bridge made itself is changed")
	}
	have := jetstream.StreamConfig{
		Name: "KUBE", Description: "ours", Subjects: []string{"other.>", "kube.main"}, Retention: jetstream.LimitsPolicy,
		Storage: jetstream.MemoryStorage, Replicas: 1, MaxMsgsPerSubject: 1, MaxAge: time.Minute, MaxBytes: -1, MaxMsgs: 5,
		MaxMsgSize: 1000, Discard: jetstream.DiscardNew, Duplicates: time.Second, Metadata: map[string]string{"team": "x"},
		Placement: &jetstream.Placement{Cluster: "eu"},
	}
	got, changed := o.merge(have)
	want := have
	want.Subjects = []string{"other.>", "kube.>"}
	want.Replicas, want.MaxMsgsPerSubject, want.MaxAge, want.MaxBytes = 3, 16, time.Hour, 1<<30
	want.AllowRollup, want.AllowMsgTTL, want.AllowDirect, want.AllowAtomicPublish = true, true, true, true
	if diff := cmp.Diff(want, got); diff != "" || !changed {
		t.Errorf("changed %v (-want +got):\n%s", changed, diff)
	}
	if !slices.Equal(have.Subjects, []string{"other.>", "kube.main"}) {
		t.Errorf("the given configuration was written to: %v", have.Subjects)
	}
	if again, changed := o.merge(got); changed {
		t.Errorf("merged twice, it changes again: %+v", again)
	}
	narrow := o.config()
	narrow.Subjects = []string{"kube.main", "kube.main.>"}
	if got, changed := o.merge(narrow); changed {
		t.Errorf("subjects that suffice are changed to %v", got.Subjects)
	}
}

// TestMergeSeesEachDifference: each managed property alone makes an update.
func TestMergeSeesEachDifference(t *testing.T) {
	o := testStreamOptions()
	for name, differ := range map[string]func(*jetstream.StreamConfig){
		"replicas": func(c *jetstream.StreamConfig) { c.Replicas = 1 },
		"history":  func(c *jetstream.StreamConfig) { c.MaxMsgsPerSubject = 1 },
		"age":      func(c *jetstream.StreamConfig) { c.MaxAge = 0 },
		"bytes":    func(c *jetstream.StreamConfig) { c.MaxBytes = -1 },
		"subjects": func(c *jetstream.StreamConfig) { c.Subjects = []string{"kube.main.>"} },
		"rollup":   func(c *jetstream.StreamConfig) { c.AllowRollup = false },
		"ttl":      func(c *jetstream.StreamConfig) { c.AllowMsgTTL = false },
		"direct":   func(c *jetstream.StreamConfig) { c.AllowDirect = false },
		"atomic":   func(c *jetstream.StreamConfig) { c.AllowAtomicPublish = false },
	} {
		have := o.config()
		differ(&have)
		if _, changed := o.merge(have); !changed {
			t.Errorf("%s: not changed", name)
		}
	}
}

func TestCheckStreamRefusesWhatCannotWork(t *testing.T) {
	o := testStreamOptions()
	if err := checkStream(o, o.config()); err != nil {
		t.Errorf("what the bridge makes itself: %v", err)
	}
	for _, c := range []struct {
		name  string
		spoil func(*jetstream.StreamConfig)
		want  string
	}{
		{"subjects", func(c *jetstream.StreamConfig) { c.Subjects = []string{"other.>"} }, "takes other.>, not kube.main;"},
		{"writer records", func(c *jetstream.StreamConfig) { c.Subjects = []string{"kube.main.>"} }, "not kube.main;"},
		{"objects", func(c *jetstream.StreamConfig) { c.Subjects = []string{"kube.main"} }, "not kube.main.>;"},
		{"work queue", func(c *jetstream.StreamConfig) { c.Retention = jetstream.WorkQueuePolicy }, "workqueue retention"},
		{"interest", func(c *jetstream.StreamConfig) { c.Retention = jetstream.InterestPolicy }, "interest retention"},
		{"no acknowledgements", func(c *jetstream.StreamConfig) { c.NoAck = true }, "no_ack"},
		{"sealed", func(c *jetstream.StreamConfig) { c.Sealed = true }, "sealed"},
		{"mirror", func(c *jetstream.StreamConfig) { c.Mirror = &jetstream.StreamSource{Name: "X"} }, "mirror"},
	} {
		have := o.config()
		c.spoil(&have)
		err := checkStream(o, have)
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "KUBE") {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestStreamWarnings(t *testing.T) {
	o := testStreamOptions()
	o.MaxAge, o.MaxBytes = 0, -1
	if got := streamWarnings(o.config()); len(got) > 0 {
		t.Errorf("what the bridge makes itself: %q", got)
	}
	for _, c := range []struct {
		spoil func(*jetstream.StreamConfig)
		want  string
	}{
		{func(c *jetstream.StreamConfig) { c.MaxAge = time.Hour }, "max_age"},
		{func(c *jetstream.StreamConfig) { c.MaxBytes = 1000 }, "max_bytes"},
		{func(c *jetstream.StreamConfig) { c.MaxMsgs = 1000 }, "max_bytes or max_msgs"},
		{func(c *jetstream.StreamConfig) { c.AllowRollup = false }, "allow_rollup_hdrs"},
		{func(c *jetstream.StreamConfig) { c.AllowMsgTTL = false }, "allow_msg_ttl"},
		{func(c *jetstream.StreamConfig) { c.AllowDirect = false }, "allow_direct"},
		{func(c *jetstream.StreamConfig) { c.AllowAtomicPublish = false }, "allow_atomic"},
	} {
		have := o.config()
		c.spoil(&have)
		if got := streamWarnings(have); len(got) != 1 || !strings.Contains(got[0], c.want) {
			t.Errorf("want one warning of %s, got %q", c.want, got)
		}
	}
	full := o.config()
	full.MaxBytes, full.Discard = 1000, jetstream.DiscardNew
	if got := streamWarnings(full); len(got) > 0 {
		t.Errorf("discard=new forgets nothing: %q", got)
	}
}

func TestExplainStream(t *testing.T) {
	o := testStreamOptions()
	for _, c := range []struct {
		err  error
		want string
	}{
		{jetstream.ErrJetStreamNotEnabled, "JetStream is not enabled"},
		{jetstream.ErrJetStreamNotEnabledForAccount, "JetStream is not enabled"},
		{nats.ErrNoResponders, "BRIDGE_NATS_DOMAIN"},
		{apiError(codeSubjectsOverlap), "another stream already takes the subjects kube.>"},
		{context.DeadlineExceeded, "may lack permission for $JS.API"},
		{nats.ErrTimeout, "may lack permission for $JS.API"},
		{errors.New("anything"), "create stream KUBE: anything"},
	} {
		if err := explainStream(o, "create", c.err); !strings.Contains(err.Error(), c.want) || !errors.Is(err, c.err) {
			t.Errorf("%v: %v", c.err, err)
		}
	}
}
