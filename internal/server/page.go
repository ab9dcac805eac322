package server

import (
	"bytes"
	_ "embed" // the page's template
	"fmt"
	"html/template"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Page is what the page at / shows.
type Page struct {
	Cluster, Stream, Version string
	Role                     string // in words: "publishes", "stands by, …"
	Epoch                    uint64
	PendingMessages          int64
	PendingBytes             int64
	Checks                   []Check // the conditions that are not a resource's
	Ready                    bool
	Resources                []PageResource
}

// PageResource is a line of the page. The server adds rate, lag and gaps from its metrics.
type PageResource struct {
	Resource      schema.GroupResource
	State         string
	Settled       bool   // no condition that is not met
	Message       string // what is wrong, or a remark
	Objects       int
	Held          bool
	Watermark     string
	WatermarkTime time.Time
}

// line is a PageResource with what the metrics know.
type line struct {
	PageResource
	Name         string
	Class        string
	Rate         float64
	Lag          time.Duration
	WatermarkAge time.Duration
	Gaps         uint64
}

//go:embed page.html
var pageText string

var page = template.Must(template.New("page").Funcs(template.FuncMap{"count": count, "size": size, "age": age}).Parse(pageText))

// showPage writes the status page: one document, without script and without anything from elsewhere.
func showPage(w http.ResponseWriter, s State, m *Metrics) {
	p, now := s.Page(), time.Now()
	lines := make([]line, 0, len(p.Resources))
	for _, r := range p.Resources {
		l := line{PageResource: r, Name: r.Resource.String(), Class: "good", WatermarkAge: now.Sub(r.WatermarkTime)}
		switch {
		case !r.Settled || r.State != "watching" && r.State != "starting":
			l.Class = "bad"
		case r.State == "starting":
			l.Class = "warn"
		}
		l.Rate, l.Gaps = m.tallies.read(r.Resource, now)
		if p.PendingMessages > 0 { // without, what was received last needed no publishing
			l.Lag = m.lag(r.Resource)
		}
		lines = append(lines, l)
	}
	var b bytes.Buffer
	err := page.Execute(&b, struct {
		Page
		Resources []line
		Now       string
	}{p, lines, now.UTC().Format(time.RFC3339)})
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-store")
	_, _ = w.Write(b.Bytes())
}

// count writes a number with its thousands apart.
func count(n any) string {
	text := fmt.Sprint(n)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "\u202f" + text[i:]
	}
	return text
}

// size writes a number of bytes in the largest binary unit of which there is at least one.
func size(n int64) string {
	value, units := float64(n), []string{"B", "KiB", "MiB", "GiB"}
	for value >= 1024 && len(units) > 1 {
		value, units = value/1024, units[1:]
	}
	return strings.TrimSuffix(strconv.FormatFloat(value, 'f', 1, 64), ".0") + " " + units[0]
}

// age writes a duration as people say it.
func age(d time.Duration) string {
	switch {
	case d < time.Second:
		return max(d, 0).Round(time.Millisecond).String()
	case d < time.Minute:
		return d.Round(time.Second).String()
	case d < time.Hour:
		return fmt.Sprintf("%dm%ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh%dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return strconv.Itoa(int(d.Hours()/24)) + " days"
}

// tallies count for the page what a scrape's counters tell only over time.
type tallies struct {
	mu sync.Mutex
	of map[schema.GroupResource]*tally
}

// tally has the messages of the last minute, by second, and the gaps since the start.
type tally struct {
	seconds [60]uint32
	last    int64 // the second of the newest count, in Unix time
	gaps    uint64
}

func (t *tallies) get(gr schema.GroupResource) *tally {
	if t.of[gr] == nil {
		t.of[gr] = &tally{}
	}
	return t.of[gr]
}

// advance forgets the seconds that are more than a minute before now.
func (t *tally) advance(now int64) {
	for second := max(t.last+1, now-int64(len(t.seconds))+1); second <= now; second++ {
		t.seconds[second%int64(len(t.seconds))] = 0
	}
	t.last = max(t.last, now)
}

func (t *tallies) published(gr schema.GroupResource, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	one := t.get(gr)
	one.advance(now.Unix())
	one.seconds[one.last%int64(len(one.seconds))]++
}

func (t *tallies) gap(gr schema.GroupResource) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.get(gr).gaps++
}

// read returns how many messages a second were published in the last minute, and the gaps since the start.
func (t *tallies) read(gr schema.GroupResource, now time.Time) (rate float64, gaps uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	one := t.of[gr]
	if one == nil {
		return 0, 0
	}
	one.advance(now.Unix())
	sum := uint32(0)
	for _, n := range one.seconds {
		sum += n
	}
	return float64(sum) / float64(len(one.seconds)), one.gaps
}

// lag is by how much the newest acknowledged change is behind the newest one received.
func (m *Metrics) lag(gr schema.GroupResource) time.Duration {
	received, acked := m.newest.of(gr), m.acked.of(gr)
	if received.IsZero() || acked.IsZero() {
		return 0
	}
	return max(received.Sub(acked), 0)
}
