package alerts

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/common/promslog"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/rules"
)

const (
	alertsPath    = "../../charts/deltabridge/files/alerts.yaml"
	dashboardPath = "../../charts/deltabridge/files/dashboard.json"
	metricsPath   = "../../docs/metrics.md"
	runbookPath   = "../../docs/runbook.md"
	runbookURL    = "https://github.com/deltabridge/deltabridge/blob/main/docs/runbook.md#"
)

// target are the labels that a scrape adds.
const target = `namespace="ops", job="deltabridge", instance="a"`

// example is a set of series, one value a minute in promtool's notation, and whether an alert fires at a minute.
type example struct {
	alert, name string
	series      []string
	minute      int
	fires       []string // what the firing alerts' summaries hold, one each
}

var examples = []example{
	{"DeltabridgeAbsent", "nothing is scraped", nil, 11, []string{"No deltabridge"}},
	{"DeltabridgeAbsent", "not for long", nil, 9, nil},
	{"DeltabridgeAbsent", "one is scraped", []string{`deltabridge_build_info{` + target + `} 1x20`}, 15, nil},

	{"DeltabridgeNoLeader", "all stand by", []string{
		`deltabridge_leader{` + target + `} 0x20`, `deltabridge_leader{namespace="ops", job="deltabridge", instance="b"} 0x20`,
	}, 10, []string{"ops/deltabridge"}},
	{"DeltabridgeNoLeader", "one of two leads", []string{
		`deltabridge_leader{` + target + `} 0x20`, `deltabridge_leader{namespace="ops", job="deltabridge", instance="b"} 1x20`,
	}, 10, nil},
	{"DeltabridgeNoLeader", "another installation's leader is none of ours", []string{
		`deltabridge_leader{` + target + `} 0x20`, `deltabridge_leader{namespace="other", job="deltabridge", instance="b"} 1x20`,
	}, 10, []string{"ops/deltabridge"}},
	{"DeltabridgeNoLeader", "a failover", []string{`deltabridge_leader{` + target + `} 1 1 0 0 1 1 1 1 1 1 1`}, 10, nil},

	{"DeltabridgeNotReady", "one condition is not met", []string{
		`deltabridge_ready{` + target + `, condition="nats"} 1x20`, `deltabridge_ready{` + target + `, condition="stream"} 0x20`,
	}, 6, []string{"not ready: stream"}},
	{"DeltabridgeNotReady", "all are met", []string{
		`deltabridge_ready{` + target + `, condition="nats"} 1x20`, `deltabridge_ready{` + target + `, condition="stream"} 1x20`,
	}, 20, nil},
	{"DeltabridgeNotReady", "a start", []string{`deltabridge_ready{` + target + `, condition="ledger"} 0 0 0 1x10`}, 10, nil},
	{"DeltabridgeNotReady", "a stop", []string{`deltabridge_ready{` + target + `, condition="shutdown"} 0x10`}, 10, nil},

	{"DeltabridgeLag", "acknowledgements fall behind", []string{
		`deltabridge_newest_event_timestamp_seconds{` + target + `, group="", resource="pods"} 1000+60x20`,
		`deltabridge_acknowledged_event_timestamp_seconds{` + target + `, group="", resource="pods"} 1000+10x20`,
		`deltabridge_newest_event_timestamp_seconds{` + target + `, group="apps", resource="deployments"} 1000+60x20`,
		`deltabridge_acknowledged_event_timestamp_seconds{` + target + `, group="apps", resource="deployments"} 1000+60x20`,
		`deltabridge_pending_messages{` + target + `} 10+10x20`,
	}, 10, []string{"Changes of pods are"}},
	{"DeltabridgeLag", "they keep up", []string{
		`deltabridge_newest_event_timestamp_seconds{` + target + `, group="", resource="pods"} 1000+60x20`,
		`deltabridge_acknowledged_event_timestamp_seconds{` + target + `, group="", resource="pods"} 998+60x20`,
		`deltabridge_pending_messages{` + target + `} 10x20`,
	}, 10, nil},
	{"DeltabridgeLag", "what was received last needs no publishing", []string{
		`deltabridge_newest_event_timestamp_seconds{` + target + `, group="", resource="pods"} 5000x20`,
		`deltabridge_acknowledged_event_timestamp_seconds{` + target + `, group="", resource="pods"} 1000x20`,
		`deltabridge_pending_messages{` + target + `} 0x20`,
	}, 10, nil},

	{"DeltabridgeWatchHeld", "held", []string{
		`deltabridge_watch_held{` + target + `, group="apps", resource="deployments"} 1x20`,
		`deltabridge_watch_held{` + target + `, group="", resource="pods"} 0x20`,
	}, 6, []string{"deployments.apps is held"}},
	{"DeltabridgeWatchHeld", "now and then", []string{
		`deltabridge_watch_held{` + target + `, group="", resource="pods"} 1 1 0 1 1 0 1 1 0 1 1 0`,
	}, 10, nil},

	{"DeltabridgeRelists", "one each two minutes", []string{
		`deltabridge_relists_total{` + target + `, group="", resource="pods", reason="expired"} 1 1 2 2 3 3 4 4 5 5 6 6 7 7 8 8 9 9`,
	}, 17, []string{"pods are listed again"}},
	{"DeltabridgeRelists", "a few, when the API server restarts", []string{
		`deltabridge_relists_total{` + target + `, group="", resource="pods", reason="expired"} 1 1 1 2 2 2 2 2 2 2 2 3 3 3 3 3`,
		`deltabridge_relists_total{` + target + `, group="", resource="nodes", reason="expired"} 1 1 1 2 2 2 2 2 2 2 2 3 3 3 3 3`,
	}, 15, nil},

	{"DeltabridgeBrokerDisconnected", "away", []string{`deltabridge_nats_connected{` + target + `} 0x20`}, 3, []string{"no connection to NATS"}},
	{"DeltabridgeBrokerDisconnected", "a reconnect", []string{`deltabridge_nats_connected{` + target + `} 1 0 1 1 0 1 1`}, 6, nil},

	{"DeltabridgeFenced", "taken over", []string{`deltabridge_fenced_total{` + target + `} 0 0 1x10`}, 5, []string{"Another writer"}},
	{"DeltabridgeFenced", "long ago", []string{`deltabridge_fenced_total{` + target + `} 0 0 1x30`}, 25, nil},
	{"DeltabridgeFenced", "never", []string{`deltabridge_fenced_total{` + target + `} 0x30`}, 25, nil},

	{"DeltabridgeResourceNotFollowed", "forbidden", []string{
		`deltabridge_informer_state{` + target + `, group="apps", resource="deployments", state="forbidden"} 1x20`,
		`deltabridge_informer_state{` + target + `, group="apps", resource="deployments", state="watching"} 0x20`,
	}, 11, []string{"deployments.apps are not followed: forbidden"}},
	{"DeltabridgeResourceNotFollowed", "watching", []string{
		`deltabridge_informer_state{` + target + `, group="apps", resource="deployments", state="forbidden"} 0x20`,
		`deltabridge_informer_state{` + target + `, group="apps", resource="deployments", state="watching"} 1x20`,
	}, 11, nil},
	{"DeltabridgeResourceNotFollowed", "for a moment", []string{
		`deltabridge_informer_state{` + target + `, group="", resource="pods", state="failing"} 1 1 1 0x20`,
	}, 11, nil},

	{"DeltabridgeObjectsParked", "some", []string{`deltabridge_parked_objects{` + target + `} 3x20`}, 11, []string{"3 objects"}},
	{"DeltabridgeObjectsParked", "none any more", []string{`deltabridge_parked_objects{` + target + `} 3 3 0x20`}, 11, nil},

	{"DeltabridgeOversize", "one", []string{
		`deltabridge_oversize_total{` + target + `, action="metadata"} 0 0 1x20`, `deltabridge_oversize_total{` + target + `, action="none"} 0x20`,
	}, 5, []string{"too large"}},
	{"DeltabridgeOversize", "none since", []string{`deltabridge_oversize_total{` + target + `, action="metadata"} 4x90`}, 80, nil},
}

// TestAlerts evaluates each rule as Prometheus does, once a minute.
func TestAlerts(t *testing.T) {
	for _, e := range examples {
		t.Run(e.alert+"/"+e.name, func(t *testing.T) {
			firing := evaluate(t, e)
			if len(firing) != len(e.fires) {
				t.Fatalf("%d alerts fire, want %d: %v", len(firing), len(e.fires), firing)
			}
			for i, a := range firing {
				if summary := a.Annotations.Get("summary"); !strings.Contains(summary, e.fires[i]) {
					t.Errorf("the summary is %q, want %q in it", summary, e.fires[i])
				}
				a.Annotations.Range(func(l labels.Label) {
					if strings.Contains(l.Value, "error expanding") || strings.Contains(l.Value, "no value") {
						t.Errorf("%s: %s", l.Name, l.Value)
					}
				})
			}
		})
	}
}

// evaluate returns the example's alerts that fire at its minute.
func evaluate(t *testing.T, e example) []*rules.Alert {
	t.Helper()
	script := "load 1m\n  unrelated 1x100\n"
	for _, s := range e.series {
		script += "  " + s + "\n"
	}
	storage := promqltest.LoadedStorage(t, script)
	engine := promqltest.NewTestEngineWithOpts(t, promql.EngineOpts{
		Logger: promslog.NewNopLogger(), MaxSamples: 100_000, Timeout: time.Minute, LookbackDelta: 5 * time.Minute,
	})
	m := rules.NewManager(&rules.ManagerOptions{
		QueryFunc: rules.EngineQueryFunc(engine, storage), AppendableV2: storage, Queryable: storage,
		Context: t.Context(), NotifyFunc: func(context.Context, string, ...*rules.Alert) {},
		NameValidationScheme: model.UTF8Validation,
		ExternalURL:          &url.URL{}, Logger: promslog.NewNopLogger(), Parser: parser.NewParser(parser.Options{}),
	})
	groups, errs := m.LoadGroups(time.Minute, labels.EmptyLabels(), "", nil, false, alertsPath)
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	var rule *rules.AlertingRule
	for _, g := range groups {
		for _, r := range g.AlertingRules() {
			r.SetRestored(true)
			if r.Name() == e.alert {
				rule = r
			}
		}
	}
	if rule == nil {
		t.Fatalf("there is no alert %s", e.alert)
	}
	for minute := range e.minute + 1 {
		at := time.Unix(0, 0).Add(time.Duration(minute) * time.Minute)
		for _, g := range groups {
			g.Eval(t.Context(), at)
		}
		if err := rule.LastError(); err != nil {
			t.Fatal(err)
		}
	}
	var firing []*rules.Alert
	for _, a := range rule.ActiveAlerts() {
		if a.State == rules.StateFiring {
			firing = append(firing, a)
		}
	}
	return firing
}

// written returns the rules as they are written.
func written(t *testing.T) []rulefmt.Rule {
	t.Helper()
	groups, errs := rulefmt.ParseFile(alertsPath, false, model.UTF8Validation, parser.NewParser(parser.Options{}), promslog.NewNopLogger())
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	var out []rulefmt.Rule
	for _, g := range groups.Groups {
		out = append(out, g.Rules...)
	}
	return out
}

func TestEveryAlertHasExamplesAndARunbook(t *testing.T) {
	sections := headings(t)
	for _, r := range written(t) {
		fires, quiet := false, false
		for _, e := range examples {
			if e.alert == r.Alert {
				fires, quiet = fires || len(e.fires) > 0, quiet || len(e.fires) == 0
			}
		}
		if !fires || !quiet {
			t.Errorf("%s has no example on which it fires, or none on which it does not", r.Alert)
		}
		if severity := r.Labels["severity"]; severity != "critical" && severity != "warning" {
			t.Errorf("%s has the severity %q", r.Alert, severity)
		}
		for _, name := range []string{"summary", "description"} {
			if r.Annotations[name] == "" {
				t.Errorf("%s has no %s", r.Alert, name)
			}
		}
		if want := runbookURL + strings.ToLower(r.Alert); r.Annotations["runbook_url"] != want {
			t.Errorf("%s has the runbook_url %q, want %s", r.Alert, r.Annotations["runbook_url"], want)
		}
		if !slices.Contains(sections, r.Alert) {
			t.Errorf("docs/runbook.md has no section %s", r.Alert)
		}
	}
}

// TestRunbookHasEveryReason looks for the reasons for not being ready where they are made.
func TestRunbookHasEveryReason(t *testing.T) {
	sections := headings(t)
	reasons := map[string][]string{
		"Condition":  values(t, "condition", "ready"),
		"State":      values(t, "state", "informer_state"),
		"Publishing": matches(t, "../../internal/publisher/react.go", `return "([a-z-]+)", `),
	}
	for kind, names := range reasons {
		for _, name := range names {
			if name == "watching" {
				continue // as it should be
			}
			if !slices.Contains(sections, kind+" "+name) {
				t.Errorf("docs/runbook.md has no section %q", kind+" "+name)
			}
		}
	}
}

// headings returns the headings of docs/runbook.md.
func headings(t *testing.T) []string {
	t.Helper()
	var out []string
	for _, line := range matches(t, runbookPath, `(?m)^##+ (.+)$`) {
		out = append(out, strings.ReplaceAll(line, "`", ""))
	}
	return out
}

// matches returns what a pattern's group matches in a file.
func matches(t *testing.T, path, pattern string) []string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, m := range regexp.MustCompile(pattern).FindAllSubmatch(text, -1) {
		if !slices.Contains(out, string(m[1])) {
			out = append(out, string(m[1]))
		}
	}
	if len(out) == 0 {
		t.Fatalf("%s has no match of %s", path, pattern)
	}
	return out
}

// values returns the values that docs/metrics.md, which is generated from the code, lists of a metric's label.
func values(t *testing.T, label, metric string) []string {
	t.Helper()
	row := matches(t, metricsPath, "(?m)^\\| `"+label+"` \\| `"+metric+"` \\| (.+) \\|$")
	var out []string
	for _, v := range strings.Split(row[0], ", ") {
		out = append(out, strings.Trim(v, "`"))
	}
	return out
}

// TestMetricsExist holds every metric and label that alerts and dashboard name to docs/metrics.md.
func TestMetricsExist(t *testing.T) {
	known := map[string][]string{}
	for _, row := range matches(t, metricsPath, "(?m)^\\| (`deltabridge_.+\\|)$") {
		cells := strings.Split(row, " | ")
		name := strings.Trim(cells[0], "`")
		var names []string
		for _, l := range strings.Split(cells[2], ", ") {
			names = append(names, strings.Trim(l, "` "))
		}
		known[name] = names
		if cells[1] == "histogram" {
			delete(known, name)
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				known[name+suffix] = append(names, "le")
			}
		}
	}
	added := []string{"namespace", "job", "instance", "pod", model.MetricNameLabel}
	for where, query := range queries(t) {
		expr, err := parser.NewParser(parser.Options{}).ParseExpr(query)
		if err != nil {
			t.Errorf("%s: %v\n%s", where, err, query)
			continue
		}
		parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
			v, ok := node.(*parser.VectorSelector)
			if !ok || strings.HasPrefix(v.Name, "go_") || strings.HasPrefix(v.Name, "process_") {
				return nil
			}
			names, ok := known[v.Name]
			if !ok {
				t.Errorf("%s: the code has no metric %s", where, v.Name)
				return nil
			}
			for _, matcher := range v.LabelMatchers {
				if !slices.Contains(names, matcher.Name) && !slices.Contains(added, matcher.Name) {
					t.Errorf("%s: %s has no label %s", where, v.Name, matcher.Name)
				}
			}
			return nil
		})
	}
}

// queries returns every query of the alerts and the dashboard, by where it is.
func queries(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, r := range written(t) {
		out["alert "+r.Alert] = r.Expr
	}
	text, err := os.ReadFile(dashboardPath)
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		UID    string
		Panels []struct {
			ID      int
			Type    string
			Title   string
			GridPos struct{ X, Y, W, H int }
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(text, &dashboard); err != nil {
		t.Fatal(err)
	}
	ids := map[int]bool{}
	for _, p := range dashboard.Panels {
		if ids[p.ID] || p.Title == "" || p.GridPos.X+p.GridPos.W > 24 {
			t.Errorf("panel %d, %q, has an id that is taken, no title, or does not fit", p.ID, p.Title)
		}
		ids[p.ID] = true
		if p.Type != "row" && len(p.Targets) == 0 {
			t.Errorf("panel %q has no query", p.Title)
		}
		for i, target := range p.Targets {
			query := strings.NewReplacer("$__rate_interval", "5m", "$namespace", "x", "$job", "x").Replace(target.Expr)
			out[fmt.Sprintf("panel %q, query %d", p.Title, i)] = query
		}
	}
	if len(out) < 20 {
		t.Fatalf("only %d queries were found", len(out))
	}
	return out
}
