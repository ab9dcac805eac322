package server

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Metrics are the bridge's Prometheus metrics. Labels are bounded: group and resource are what is selected, and every
// other label has a fixed set of values or is a broker's error code.
type Metrics struct {
	registry *prometheus.Registry

	received   *prometheus.CounterVec
	published  *prometheus.CounterVec
	suppressed *prometheus.CounterVec
	ack        prometheus.Histogram
	retries    *prometheus.CounterVec
	relists    *prometheus.CounterVec
	gaps       *prometheus.CounterVec
	badFrames  *prometheus.CounterVec
	newest     *newest
	acked      *newest
	oversize   *prometheus.CounterVec
	fenced     prometheus.Counter
}

// ResourceGauge is the state of one resource at the time of a scrape.
type ResourceGauge struct {
	Resource schema.GroupResource
	State    string
	Objects  int
	// Watermark is when the resource's watermark was last written, zero for never.
	Watermark time.Time
}

// Gauges is what is read at the time of a scrape. Its methods must not block for long.
type Gauges interface {
	Pending() (messages, bytes int64)
	Connected() bool
	Leader() bool
	Resources() []ResourceGauge
}

// NewMetrics returns metrics in a registry of their own, with those of the Go runtime and the process.
func NewMetrics(version, commit, goVersion string) *Metrics {
	resource := []string{"group", "resource"}
	with := func(more ...string) []string { return append(append([]string(nil), resource...), more...) }
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		received: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "deltabridge_events_received_total", Help: "Changes that the informers delivered.",
		}, with("op")),
		published: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "deltabridge_messages_published_total", Help: "Messages that the stream has acknowledged.",
		}, with("op")),
		suppressed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "deltabridge_messages_suppressed_total", Help: "Changes that were not published, since the stream has them or something newer.",
		}, with("reason")),
		ack: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "deltabridge_publish_ack_duration_seconds", Help: "Time from the first send of a message to its acknowledgement.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
		}),
		retries: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "deltabridge_publish_retries_total", Help: "Appends that were refused or not answered, by the broker's error code or the client's reason.",
		}, []string{"code"}),
		relists: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "deltabridge_relists_total", Help: "Lists after a resource's first one, by what made them necessary.",
		}, with("reason")),
		gaps: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "deltabridge_gaps_total", Help: "Changes before which intermediate versions may be missing.",
		}, resource),
		badFrames: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "deltabridge_invalid_frames_total", Help: "Watch frames that were not valid; each restarted its watch.",
		}, resource),
		newest: newNewest(prometheus.GaugeOpts{
			Name: "deltabridge_newest_event_timestamp_seconds", Help: "When the newest change was received, in Unix time.",
		}),
		acked: newNewest(prometheus.GaugeOpts{
			Name: "deltabridge_acknowledged_event_timestamp_seconds", Help: "When the newest acknowledged change was received, in Unix time.",
		}),
		oversize: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "deltabridge_oversize_total", Help: "Messages above a size limit of client, server or stream, by what was done.",
		}, []string{"action"}),
		fenced: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "deltabridge_fenced_total", Help: "Times that another writer was found to have taken over.",
		}),
	}
	info := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "deltabridge_build_info", Help: "Always 1; the labels say which build this is.",
	}, []string{"version", "commit", "goversion"})
	info.WithLabelValues(version, commit, goVersion).Set(1)
	m.registry.MustRegister(m.received, m.published, m.suppressed, m.ack, m.retries, m.relists, m.gaps, m.badFrames,
		m.newest.gauge, m.acked.gauge, m.oversize, m.fenced, info,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Received counts a change that an informer delivered.
func (m *Metrics) Received(gr schema.GroupResource, op string, seen time.Time) {
	m.received.WithLabelValues(gr.Group, gr.Resource, op).Inc()
	m.newest.note(gr, seen)
}

// Published counts an acknowledged message. One that repeats a state says nothing of how far changes are published.
func (m *Metrics) Published(gr schema.GroupResource, op string, seen time.Time, took time.Duration) {
	m.published.WithLabelValues(gr.Group, gr.Resource, op).Inc()
	if op != "synced" {
		m.acked.note(gr, seen)
	}
	m.ack.Observe(took.Seconds())
}

// Suppressed counts a change that was not published.
func (m *Metrics) Suppressed(gr schema.GroupResource, reason string) {
	m.suppressed.WithLabelValues(gr.Group, gr.Resource, reason).Inc()
}

// Retried counts an append that was refused or not answered.
func (m *Metrics) Retried(code string) { m.retries.WithLabelValues(code).Inc() }

// Relist counts a list after the first.
func (m *Metrics) Relist(gr schema.GroupResource, reason string) {
	m.relists.WithLabelValues(gr.Group, gr.Resource, reason).Inc()
}

// Gap counts a change before which versions may be missing.
func (m *Metrics) Gap(gr schema.GroupResource) {
	m.gaps.WithLabelValues(gr.Group, gr.Resource).Inc()
}

// BadFrame counts a watch frame that was not valid.
func (m *Metrics) BadFrame(gr schema.GroupResource) {
	m.badFrames.WithLabelValues(gr.Group, gr.Resource).Inc()
}

// Oversize counts a step of the size ladder.
func (m *Metrics) Oversize(action string) { m.oversize.WithLabelValues(action).Inc() }

// Fenced counts that another writer has taken over.
func (m *Metrics) Fenced() { m.fenced.Inc() }

// Expose adds what is read at the time of a scrape. It must be called once.
func (m *Metrics) Expose(g Gauges, states []string) {
	m.registry.MustRegister(&gauges{g: g, states: states})
}

// newest is a gauge of the newest of the times that it is told, by resource. Acknowledgements of different objects do not
// come in the order of the changes, and a high-water mark does not fall.
type newest struct {
	gauge *prometheus.GaugeVec
	mu    sync.Mutex
	times map[schema.GroupResource]time.Time
}

func newNewest(o prometheus.GaugeOpts) *newest {
	return &newest{gauge: prometheus.NewGaugeVec(o, []string{"group", "resource"}), times: map[schema.GroupResource]time.Time{}}
}

func (n *newest) note(gr schema.GroupResource, t time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if t.After(n.times[gr]) {
		n.times[gr] = t
		n.gauge.WithLabelValues(gr.Group, gr.Resource).Set(seconds(t))
	}
}

func seconds(t time.Time) float64 { return float64(t.UnixMicro()) / 1e6 }

// gauges collects the Gauges.
type gauges struct {
	g      Gauges
	states []string
}

var (
	pendingMessages = prometheus.NewDesc("deltabridge_pending_messages", "Changes accepted and not yet acknowledged or suppressed.", nil, nil)
	pendingBytes    = prometheus.NewDesc("deltabridge_pending_bytes", "Size of those changes' objects.", nil, nil)
	natsConnected   = prometheus.NewDesc("deltabridge_nats_connected", "1 while there is a connection to NATS.", nil, nil)
	leader          = prometheus.NewDesc("deltabridge_leader", "1 while this process is the one that publishes.", nil, nil)
	watermark       = prometheus.NewDesc("deltabridge_watermark_timestamp_seconds", "When the resource's watermark was last written, in Unix time.", []string{"group", "resource"}, nil)
	objects         = prometheus.NewDesc("deltabridge_objects", "Objects in the informer's cache.", []string{"group", "resource"}, nil)
	informerState   = prometheus.NewDesc("deltabridge_informer_state", "1 for the state that a resource's informer is in, 0 for the others.", []string{"group", "resource", "state"}, nil)
)

// Describe implements prometheus.Collector.
func (c *gauges) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{pendingMessages, pendingBytes, natsConnected, leader, objects, informerState, watermark} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *gauges) Collect(ch chan<- prometheus.Metric) {
	set := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	messages, bytes := c.g.Pending()
	set(pendingMessages, float64(messages))
	set(pendingBytes, float64(bytes))
	set(natsConnected, truth(c.g.Connected()))
	set(leader, truth(c.g.Leader()))
	for _, r := range c.g.Resources() {
		set(objects, float64(r.Objects), r.Resource.Group, r.Resource.Resource)
		if !r.Watermark.IsZero() {
			set(watermark, seconds(r.Watermark), r.Resource.Group, r.Resource.Resource)
		}
		for _, s := range c.states {
			set(informerState, truth(s == r.State), r.Resource.Group, r.Resource.Resource, s)
		}
	}
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
