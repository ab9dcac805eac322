package server

import (
	"bytes"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var update = flag.Bool("update", false, "write docs/metrics.md instead of comparing it")

const docsPath = "../../docs/metrics.md"

func TestDocs(t *testing.T) {
	var got bytes.Buffer
	if err := WriteDocs(&got); err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(docsPath, got.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(docsPath)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got.String()); diff != "" {
		t.Errorf("docs/metrics.md is out of date; run go test ./internal/server -run TestDocs -update\n(-file +generated)\n%s", diff)
	}
}

// everything makes use of every metric, for the given resource, with label values that nobody knows.
func everything(m *Metrics, gr schema.GroupResource, value string) {
	m.Received(gr, value, time.Unix(1, 0))
	m.Published(gr, value, time.Unix(1, 0), time.Second)
	m.Suppressed(gr, value)
	m.Retried(value)
	m.Relist(gr, value)
	m.Gap(gr)
	m.BadFrame(gr)
	m.Oversize(value)
	m.Fenced()
}

type one struct{}

func (one) Pending() (messages, bytes int64) { return 0, 0 }
func (one) Parked() int                      { return 0 }
func (one) Connected() bool                  { return true }
func (one) Leader() bool                     { return true }
func (one) Conditions() map[string]bool      { return map[string]bool{"nats": true, "object web": true} }
func (one) Resources() []ResourceGauge {
	return []ResourceGauge{{Resource: schema.GroupResource{Resource: "pods"}, State: "watching", Watermark: time.Unix(1, 0)}}
}

// series returns how many series each of our metrics has.
func series(t *testing.T, m *Metrics) map[string]int {
	t.Helper()
	families, err := m.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]int{}
	for _, f := range families {
		if strings.HasPrefix(f.GetName(), prefix) {
			out[f.GetName()] = len(f.GetMetric())
		}
	}
	return out
}

// TestEveryMetricIsDefined holds the registry to the documentation: what is defined is served, and nothing else.
func TestEveryMetricIsDefined(t *testing.T) {
	m := NewMetrics("v1", "abc", "go1")
	m.Expose(one{})
	everything(m, schema.GroupResource{Resource: "pods"}, "added")
	served := slices.Sorted(maps.Keys(series(t, m)))
	var defined []string
	for _, d := range definitions {
		defined = append(defined, d.name)
	}
	slices.Sort(defined)
	if diff := cmp.Diff(defined, served); diff != "" {
		t.Errorf("(-defined +served)\n%s", diff)
	}
}

// TestCardinalityIsBounded has each label meet more values than anybody would store.
func TestCardinalityIsBounded(t *testing.T) {
	m := NewMetrics("v1", "abc", "go1")
	m.Expose(one{})
	pods, nodes := schema.GroupResource{Resource: "pods"}, schema.GroupResource{Resource: "nodes"}
	for i := range 5000 {
		everything(m, pods, fmt.Sprintf("value-%d", i))
		everything(m, nodes, fmt.Sprintf("value-%d", i))
	}
	for _, op := range operation.values {
		everything(m, pods, op)
	}
	for name, n := range series(t, m) {
		bound := 1
		for _, d := range definitions {
			if d.name != name {
				continue
			}
			for _, l := range d.labels {
				switch {
				case len(l.values) > 0:
					bound *= len(l.values) + 1
				case l.name == "resource":
					bound *= 2
				case l.name == "code":
					bound *= maxCodes + 1
				}
			}
		}
		if n > bound {
			t.Errorf("%s has %d series, its labels allow %d", name, n, bound)
		}
	}
}
