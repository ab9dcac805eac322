package server_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/deltabridge/deltabridge/internal/server"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type state struct {
	checks []server.Check
	status any
	page   server.Page
}

func (s *state) Ready() []server.Check { return s.checks }
func (s *state) Status() any           { return s.status }
func (s *state) Page() server.Page     { return s.page }

type gauges struct{}

func (gauges) Pending() (messages, bytes int64) { return 3, 4096 }
func (gauges) Parked() int                      { return 2 }
func (gauges) Connected() bool                  { return true }
func (gauges) Leader() bool                     { return false }
func (gauges) Conditions() map[string]bool {
	return map[string]bool{"nats": true, "stream": false, "object": true}
}
func (gauges) Resources() []server.ResourceGauge {
	return []server.ResourceGauge{{Resource: schema.GroupResource{Group: "apps", Resource: "deployments"}, State: "watching", Objects: 7, Held: true, Watermark: time.Unix(1700000000, 0)}}
}

// start serves on a free port for the length of the test and returns the address.
func start(t *testing.T, s server.State, m *server.Metrics) string {
	t.Helper()
	srv, err := server.Listen("127.0.0.1:0", s, m)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return "http://" + srv.Addr()
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 30 * time.Second}
	r, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r.StatusCode, string(body)
}

func TestProbes(t *testing.T) {
	s := &state{checks: []server.Check{{Name: "nats", OK: true}, {Name: "resource pods", OK: true, Message: "watching: 2 objects"}}}
	url := start(t, s, server.NewMetrics("v1", "abc", "go1"))
	for _, c := range []struct {
		path string
		code int
		body string
	}{
		{"/livez", 200, "ok\n"},
		{"/readyz", 200, "ok\n"},
		{"/readyz?verbose", 200, "[+] nats\n[+] resource pods: watching: 2 objects\n"},
		{"/readyz?verbose=1", 200, "[+] nats\n[+] resource pods: watching: 2 objects\n"},
		{"/nothing", 404, "404 page not found\n"},
	} {
		if code, body := get(t, url+c.path); code != c.code || body != c.body {
			t.Errorf("%s: %d %q, want %d %q", c.path, code, body, c.code, c.body)
		}
	}
	s.checks[0] = server.Check{Name: "nats", Message: "no server answers; check NATS_URL"}
	for _, path := range []string{"/readyz", "/readyz?verbose"} {
		code, body := get(t, url+path)
		if code != 503 || body != "[-] nats: no server answers; check NATS_URL\n[+] resource pods: watching: 2 objects\n" {
			t.Errorf("%s: %d %q", path, code, body)
		}
	}
	if code, body := get(t, url+"/livez"); code != 200 || body != "ok\n" {
		t.Errorf("/livez depends on readiness: %d %q", code, body)
	}
}

func TestStatusIsJSON(t *testing.T) {
	url := start(t, &state{status: map[string]any{"epoch": 7, "message": "a < b"}}, server.NewMetrics("v1", "abc", "go1"))
	code, body := get(t, url+"/statusz")
	var got map[string]any
	if err := json.Unmarshal([]byte(body), &got); err != nil || code != 200 || got["epoch"] != 7.0 {
		t.Errorf("%d %q: %v", code, body, err)
	}
	if want := "{\n  \"epoch\": 7,\n  \"message\": \"a < b\"\n}\n"; body != want {
		t.Errorf("people read\n%s\nwant\n%s", body, want)
	}
}

func TestPage(t *testing.T) {
	pods, widgets := schema.GroupResource{Resource: "pods"}, schema.GroupResource{Group: "example.com", Resource: "widgets"}
	s := &state{page: server.Page{
		Cluster: "prod", Stream: "KUBE", Version: "v1", Role: "publishes", Epoch: 7, PendingMessages: 12345, PendingBytes: 3 << 20,
		Checks: []server.Check{{Name: "nats", OK: true}, {Name: "stream", Message: "is <full>"}},
		Resources: []server.PageResource{
			{Resource: pods, State: "watching", Settled: true, Objects: 1234, Held: true, Watermark: "4711", WatermarkTime: time.Now().Add(-90 * time.Second)},
			{Resource: widgets, State: "forbidden", Settled: true, Message: "watch: <script>alert(1)</script>"},
		},
	}}
	m := server.NewMetrics("v1", "abc", "go1")
	now := time.Now()
	m.Received(pods, "added", now)
	m.Published(pods, "added", now.Add(-3*time.Second), time.Second)
	m.Gap(pods)
	code, body := get(t, start(t, s, m)+"/")
	if code != 200 {
		t.Fatalf("%d %s", code, body)
	}
	for _, want := range []string{
		"<title>not ready · prod · deltabridge</title>", `http-equiv="refresh"`, "publishes", "12\u202f345", "3 MiB",
		`<td>stream</td><td><span class="bad">no</span></td><td class="m">is &lt;full&gt;</td>`,
		`<td>pods</td><td><span class="good">watching</span></td><td class="n">1` + "\u202f" + `234</td><td class="n">0.0</td><td class="n"><span class="warn">3s</span></td><td>4711, 1m30s ago</td><td><span class="warn">yes</span></td><td class="n"><span class="warn">1</span></td>`,
		`<td>widgets.example.com</td><td><span class="bad">forbidden</span></td><td class="n">0</td><td class="n">0.0</td><td class="n">0s</td><td>none yet</td><td>no</td><td class="n">0</td><td class="m">watch: &lt;script&gt;`,
	} {
		if !strings.Contains(body, want) {
			t.Errorf("the page lacks %s\n%s", want, body)
		}
	}
	for _, never := range []string{"<script", "src=", "url(", "@import", "http://", "https://"} {
		if strings.Contains(body, never) {
			t.Errorf("the page has %s", never)
		}
	}
}

// The names are the contract's: dashboards and alerts depend on them.
func TestMetricNames(t *testing.T) {
	m := server.NewMetrics("v1", "abc", "go1")
	m.Expose(gauges{})
	url := start(t, &state{}, m)
	gr, seen := schema.GroupResource{Group: "apps", Resource: "deployments"}, time.Unix(1700000000, 500000000)
	m.Received(gr, "added", seen)
	m.Published(gr, "added", seen, 3*time.Millisecond)
	m.Suppressed(gr, "unchanged")
	m.Retried("10071")
	m.Relist(gr, "expired")
	m.Gap(gr)
	m.BadFrame(gr)
	m.Oversize("metadata")
	m.Fenced()
	_, body := get(t, url+"/metrics")
	for _, line := range []string{
		`deltabridge_events_received_total{group="apps",op="added",resource="deployments"} 1`,
		`deltabridge_messages_published_total{group="apps",op="added",resource="deployments"} 1`,
		`deltabridge_messages_suppressed_total{group="apps",reason="unchanged",resource="deployments"} 1`,
		`deltabridge_publish_ack_duration_seconds_count 1`,
		`deltabridge_publish_ack_duration_seconds_bucket{le="0.0025"} 0`,
		`deltabridge_publish_ack_duration_seconds_bucket{le="0.005"} 1`,
		`deltabridge_publish_retries_total{code="10071"} 1`,
		`deltabridge_pending_messages 3`,
		`deltabridge_pending_bytes 4096`,
		`deltabridge_relists_total{group="apps",reason="expired",resource="deployments"} 1`,
		`deltabridge_gaps_total{group="apps",resource="deployments"} 1`,
		`deltabridge_invalid_frames_total{group="apps",resource="deployments"} 1`,
		`deltabridge_informer_state{group="apps",resource="deployments",state="starting"} 0`,
		`deltabridge_informer_state{group="apps",resource="deployments",state="watching"} 1`,
		`deltabridge_newest_event_timestamp_seconds{group="apps",resource="deployments"} 1.7000000005e+09`,
		`deltabridge_acknowledged_event_timestamp_seconds{group="apps",resource="deployments"} 1.7000000005e+09`,
		`deltabridge_objects{group="apps",resource="deployments"} 7`,
		`deltabridge_watch_held{group="apps",resource="deployments"} 1`,
		`deltabridge_watermark_timestamp_seconds{group="apps",resource="deployments"} 1.7e+09`,
		`deltabridge_parked_objects 2`,
		`deltabridge_ready{condition="nats"} 1`,
		`deltabridge_ready{condition="stream"} 0`,
		`deltabridge_leader 0`,
		`deltabridge_fenced_total 1`,
		`deltabridge_oversize_total{action="metadata"} 1`,
		`deltabridge_oversize_total{action="none"} 0`,
		`deltabridge_nats_connected 1`,
		`deltabridge_build_info{commit="abc",goversion="go1",version="v1"} 1`,
	} {
		if !strings.Contains(body, line+"\n") {
			t.Errorf("no line %s", line)
		}
	}
	if strings.Contains(body, `condition="object"`) {
		t.Error("a remark is shown as a condition")
	}
}

// Acknowledgements of different objects do not come in the order of the changes.
func TestNewestDoesNotFall(t *testing.T) {
	m := server.NewMetrics("v1", "abc", "go1")
	url := start(t, &state{}, m)
	pods, nodes := schema.GroupResource{Resource: "pods"}, schema.GroupResource{Resource: "nodes"}
	for _, second := range []int64{5, 9, 7} {
		m.Received(pods, "added", time.Unix(second, 0))
		m.Published(pods, "added", time.Unix(second, 0), time.Second)
	}
	m.Received(nodes, "added", time.Unix(1, 0))
	_, body := get(t, url+"/metrics")
	for _, line := range []string{
		`deltabridge_newest_event_timestamp_seconds{group="",resource="pods"} 9`,
		`deltabridge_newest_event_timestamp_seconds{group="",resource="nodes"} 1`,
		`deltabridge_acknowledged_event_timestamp_seconds{group="",resource="pods"} 9`,
	} {
		if !strings.Contains(body, line+"\n") {
			t.Errorf("no line %s", line)
		}
	}
}

func TestOnlyGet(t *testing.T) {
	url := start(t, &state{}, server.NewMetrics("v1", "abc", "go1"))
	for _, path := range []string{"/", "/livez", "/readyz", "/statusz"} {
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		r, err := client.Post(url+path, "text/plain", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Body.Close()
		if r.StatusCode != http.StatusMethodNotAllowed {
			t.Errorf("POST %s: %d", path, r.StatusCode)
		}
	}
}

func TestAddressTaken(t *testing.T) {
	url := start(t, &state{}, server.NewMetrics("v1", "abc", "go1"))
	_, err := server.Listen(strings.TrimPrefix(url, "http://"), &state{}, server.NewMetrics("v1", "abc", "go1"))
	if err == nil || !strings.Contains(err.Error(), "BRIDGE_HTTP_ADDR") {
		t.Errorf("listening on a taken address: %v", err)
	}
}
