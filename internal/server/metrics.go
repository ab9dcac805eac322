package server

import (
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Metrics are the bridge's Prometheus metrics. Labels are bounded: group and resource are what is selected, and every
// other label has the values of its definition, or is one of at most maxCodes error codes.
type Metrics struct {
	registry *prometheus.Registry
	codes    *codes
	tallies  *tallies

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
	Held     bool // the broker does not take what the API server has to tell
	// Watermark is when the resource's watermark was last written, zero for never.
	Watermark time.Time
}

// Gauges is what is read at the time of a scrape. Its methods must not block for long.
type Gauges interface {
	Pending() (messages, bytes int64)
	// Parked returns how many objects cannot be published.
	Parked() int
	Connected() bool
	Leader() bool
	// Conditions returns which conditions for being ready are met, by name.
	Conditions() map[string]bool
	Resources() []ResourceGauge
}

// NewMetrics returns metrics in a registry of their own, with those of the Go runtime and the process.
func NewMetrics(version, commit, goVersion string) *Metrics {
	counter := func(d definition) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: d.name, Help: d.help}, d.names())
	}
	m := &Metrics{
		registry:   prometheus.NewRegistry(),
		codes:      &codes{seen: map[string]bool{}},
		tallies:    &tallies{of: map[schema.GroupResource]*tally{}},
		received:   counter(eventsReceived),
		published:  counter(messagesPublished),
		suppressed: counter(messagesSuppressed),
		ack: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: ackDuration.name, Help: ackDuration.help,
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
		}),
		retries:   counter(publishRetries),
		relists:   counter(relists),
		gaps:      counter(gaps),
		badFrames: counter(invalidFrames),
		newest:    newNewest(newestEvent),
		acked:     newNewest(acknowledgedEvent),
		oversize:  counter(oversize),
		fenced:    prometheus.NewCounter(prometheus.CounterOpts{Name: fenced.name, Help: fenced.help}),
	}
	// From zero on, so that an increase shows the first one too.
	for _, action := range oversize.labels[0].values {
		m.oversize.WithLabelValues(action)
	}
	info := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: buildInfo.name, Help: buildInfo.help}, buildInfo.names())
	info.WithLabelValues(version, commit, goVersion).Set(1)
	m.registry.MustRegister(m.received, m.published, m.suppressed, m.ack, m.retries, m.relists, m.gaps, m.badFrames,
		m.newest.gauge, m.acked.gauge, m.oversize, m.fenced, info,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Received counts a change that an informer delivered.
func (m *Metrics) Received(gr schema.GroupResource, op string, seen time.Time) {
	m.received.WithLabelValues(gr.Group, gr.Resource, operation.bound(op)).Inc()
	m.newest.note(gr, seen)
}

// Published counts an acknowledged message. One that repeats a state says nothing of how far changes are published.
func (m *Metrics) Published(gr schema.GroupResource, op string, seen time.Time, took time.Duration) {
	m.published.WithLabelValues(gr.Group, gr.Resource, operation.bound(op)).Inc()
	m.tallies.published(gr, time.Now())
	if op != "synced" {
		m.acked.note(gr, seen)
	}
	m.ack.Observe(took.Seconds())
}

// Suppressed counts a change that was not published.
func (m *Metrics) Suppressed(gr schema.GroupResource, reason string) {
	m.suppressed.WithLabelValues(gr.Group, gr.Resource, suppressReason.bound(reason)).Inc()
}

// Retried counts an append that was refused or not answered.
func (m *Metrics) Retried(code string) { m.retries.WithLabelValues(m.codes.bound(code)).Inc() }

// Relist counts a list after the first.
func (m *Metrics) Relist(gr schema.GroupResource, reason string) {
	m.relists.WithLabelValues(gr.Group, gr.Resource, relistReason.bound(reason)).Inc()
}

// Gap counts a change before which versions may be missing.
func (m *Metrics) Gap(gr schema.GroupResource) {
	m.gaps.WithLabelValues(gr.Group, gr.Resource).Inc()
	m.tallies.gap(gr)
}

// BadFrame counts a watch frame that was not valid.
func (m *Metrics) BadFrame(gr schema.GroupResource) {
	m.badFrames.WithLabelValues(gr.Group, gr.Resource).Inc()
}

// Oversize counts a step of the size ladder.
func (m *Metrics) Oversize(action string) {
	m.oversize.WithLabelValues(oversizeAction.bound(action)).Inc()
}

// Fenced counts that another writer has taken over.
func (m *Metrics) Fenced() { m.fenced.Inc() }

// Expose adds what is read at the time of a scrape. It must be called once.
func (m *Metrics) Expose(g Gauges) {
	m.registry.MustRegister(&gauges{g: g})
}

// maxCodes bounds how many error codes are told apart. The broker has some two hundred; a client meets few.
const maxCodes = 64

// otherValue stands for label values that are not told apart.
const otherValue = "other"

// codes are the error codes that were met, no more than maxCodes.
type codes struct {
	mu   sync.Mutex
	seen map[string]bool
}

func (c *codes) bound(code string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.seen[code] && len(c.seen) >= maxCodes {
		return otherValue
	}
	c.seen[code] = true
	return code
}

// bound returns a value of the label: the one given, if it is one of them.
func (l label) bound(value string) string {
	if slices.Contains(l.values, value) {
		return value
	}
	return otherValue
}

// newest is a gauge of the newest of the times that it is told, by resource. Acknowledgements of different objects do not
// come in the order of the changes, and a high-water mark does not fall.
type newest struct {
	gauge *prometheus.GaugeVec
	mu    sync.Mutex
	times map[schema.GroupResource]time.Time
}

func newNewest(d definition) *newest {
	gauge := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: d.name, Help: d.help}, d.names())
	return &newest{gauge: gauge, times: map[schema.GroupResource]time.Time{}}
}

func (n *newest) note(gr schema.GroupResource, t time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if t.After(n.times[gr]) {
		n.times[gr] = t
		n.gauge.WithLabelValues(gr.Group, gr.Resource).Set(seconds(t))
	}
}

// of returns the newest time of a resource, zero for none.
func (n *newest) of(gr schema.GroupResource) time.Time {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.times[gr]
}

func seconds(t time.Time) float64 { return float64(t.UnixMicro()) / 1e6 }

// gauges collects the Gauges.
type gauges struct{ g Gauges }

// scraped are the metrics of gauges.
var scraped = func() map[string]*prometheus.Desc {
	out := map[string]*prometheus.Desc{}
	for _, d := range []definition{
		pendingMessages, pendingBytes, parkedObjects, natsConnected, leader, readyCondition, objects, watchHeld, informerState, watermark,
	} {
		out[d.name] = prometheus.NewDesc(d.name, d.help, d.names(), nil)
	}
	return out
}()

// Describe implements prometheus.Collector.
func (c *gauges) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range scraped {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *gauges) Collect(ch chan<- prometheus.Metric) {
	set := func(d definition, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(scraped[d.name], prometheus.GaugeValue, v, labels...)
	}
	messages, bytes := c.g.Pending()
	set(pendingMessages, float64(messages))
	set(pendingBytes, float64(bytes))
	set(parkedObjects, float64(c.g.Parked()))
	set(natsConnected, truth(c.g.Connected()))
	set(leader, truth(c.g.Leader()))
	for name, met := range c.g.Conditions() {
		if slices.Contains(condition.values, name) {
			set(readyCondition, truth(met), name)
		}
	}
	for _, r := range c.g.Resources() {
		set(objects, float64(r.Objects), r.Resource.Group, r.Resource.Resource)
		set(watchHeld, truth(r.Held), r.Resource.Group, r.Resource.Resource)
		if !r.Watermark.IsZero() {
			set(watermark, seconds(r.Watermark), r.Resource.Group, r.Resource.Resource)
		}
		for _, s := range state.values {
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
