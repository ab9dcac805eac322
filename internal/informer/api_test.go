package informer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
)

// api is a scripted API server: objects with versions and a history, lists in pages, and watches from
// any version that it still has; and faults on request.
type api struct {
	t         *testing.T
	network   *network
	transport *http.Transport

	mu        sync.Mutex
	version   int
	compacted int // watches from below this version are too old
	objects   []*stored
	history   []event
	changed   chan struct{} // closed and replaced when something happens
	requests  []*request
	discovery discoveryDoc
	cutoff    int // rises when all watches are cut

	// What follows is the script; set it with configure.

	bookmarks  bool // the server tells a watch the current version after the events
	mute       bool // watches get no bookmark each minute, as of servers that have none
	pageSize   int
	closeAfter int // a watch is closed after so many events, zero for never
	// intercept may answer a request in place of the server; false lets the server answer.
	intercept func(w http.ResponseWriter, r *request) bool
	// frame may change the bytes of a watch event, newline included.
	frame func(r *request, event event, frame []byte) []byte
}

// stored is an object in the API server.
type stored struct {
	resource, namespace, name string
	uid                       string
	version                   int
	value                     string
}

// event is one entry of the history.
type event struct {
	typ     string
	version int
	object  stored
}

// request is a request that the server got.
type request struct {
	*http.Request
	verb      string // list, watch, get
	resource  string // resource or resource.group
	namespace string
	version   string // the resourceVersion asked for
	query     url.Values
}

func newAPI(t *testing.T) *api {
	a := &api{
		t: t, network: newNetwork(), version: 100, changed: make(chan struct{}),
		discovery: discoveryDoc{groups: standardGroups()},
	}
	a.transport = a.network.serve(t, a)
	return a
}

// config returns what a client is made of.
func (a *api) config() *rest.Config {
	return &rest.Config{Host: "http://api.test", Transport: a.transport, QPS: 1e6, Burst: 1e6}
}

// client returns a REST client as the Manager makes it.
func (a *api) client() rest.Interface {
	m, err := NewManager(Options{Config: a.config(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		a.t.Fatal(err)
	}
	return m.client
}

// configure changes the script.
func (a *api) configure(f func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f()
	a.wake()
}

func (a *api) wake() {
	close(a.changed)
	a.changed = make(chan struct{})
}

// put creates or updates a config map, unless told another resource, and returns its version.
func (a *api) put(namespace, name, value string, resource ...string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	kind := append(resource, "configmaps")[0]
	a.version++
	typ := "MODIFIED"
	i := slices.IndexFunc(a.objects, func(o *stored) bool {
		return o.resource == kind && o.namespace == namespace && o.name == name
	})
	if i < 0 {
		typ, i = "ADDED", len(a.objects)
		a.objects = append(a.objects, &stored{
			resource: kind, namespace: namespace, name: name, uid: fmt.Sprintf("uid-%s-%d", name, a.version),
		})
	}
	o := a.objects[i]
	o.version, o.value = a.version, value
	a.history = append(a.history, event{typ, a.version, *o})
	a.wake()
	return a.version
}

// remove deletes an object and returns the version at which it was gone.
func (a *api) remove(namespace, name string, resource ...string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	kind := append(resource, "configmaps")[0]
	i := slices.IndexFunc(a.objects, func(o *stored) bool {
		return o.resource == kind && o.namespace == namespace && o.name == name
	})
	if i < 0 {
		a.t.Fatalf("no object %s/%s to delete", namespace, name)
	}
	a.version++
	gone := *a.objects[i]
	gone.version = a.version
	a.objects = slices.Delete(a.objects, i, i+1)
	a.history = append(a.history, event{"DELETED", a.version, gone})
	a.wake()
	return a.version
}

// compact makes the server forget its history, so that a watch from any earlier version is too old.
func (a *api) compact() {
	a.configure(func() { a.version++; a.compacted = a.version })
}

// cut breaks every connection and refuses others until heal.
func (a *api) cut() {
	a.network.refuse()
	synctest.Wait()
}

// endWatches ends every watch, as a server does that restarts.
func (a *api) endWatches() { a.configure(func() { a.cutoff++ }) }

// heal ends a cut and every other fault.
func (a *api) heal() {
	a.network.heal()
	a.configure(func() { a.intercept, a.frame, a.closeAfter = nil, nil, 0 })
}

// seen returns the requests so far, of some verbs if any are named.
func (a *api) seen(verbs ...string) []*request {
	a.mu.Lock()
	defer a.mu.Unlock()
	var out []*request
	for _, r := range a.requests {
		if len(verbs) == 0 || slices.Contains(verbs, r.verb) {
			out = append(out, r)
		}
	}
	return out
}

func (a *api) ServeHTTP(w http.ResponseWriter, hr *http.Request) {
	r := parseRequest(hr)
	a.mu.Lock()
	a.requests = append(a.requests, r)
	intercept := a.intercept
	a.mu.Unlock()
	if intercept != nil && intercept(w, r) {
		return
	}
	switch r.verb {
	case "list":
		a.list(w, r)
	case "watch":
		a.watch(w, r)
	case "get":
		a.get(w, r)
	default:
		a.serveDiscovery(w, hr)
	}
}

func parseRequest(hr *http.Request) *request {
	r := &request{Request: hr, query: hr.URL.Query()}
	parts := strings.Split(strings.Trim(hr.URL.Path, "/"), "/")
	group := ""
	switch {
	case parts[0] == "api" && len(parts) > 2:
		parts = parts[2:]
	case parts[0] == "apis" && len(parts) > 3:
		group, parts = parts[1], parts[3:]
	default:
		return r
	}
	if parts[0] == "namespaces" && len(parts) > 2 {
		r.namespace, parts = parts[1], parts[2:]
	}
	r.resource = schema.GroupResource{Group: group, Resource: parts[0]}.String()
	r.version = r.query.Get("resourceVersion")
	switch {
	case len(parts) > 1:
		r.verb = "get"
	case r.query.Get("watch") == "":
		r.verb = "list"
	default:
		r.verb = "watch"
	}
	return r
}

func (o stored) json(typeMeta bool) string {
	meta := fmt.Sprintf(`"metadata":{"name":%q,"uid":%q,"resourceVersion":"%d"`, o.name, o.uid, o.version)
	if o.namespace != "" {
		meta += fmt.Sprintf(`,"namespace":%q`, o.namespace)
	}
	text := fmt.Sprintf(`{%s},"data":{"value":%q}}`, meta, o.value)
	if typeMeta {
		text = `{"kind":"ConfigMap","apiVersion":"v1",` + text[1:]
	}
	return text
}

func (a *api) list(w http.ResponseWriter, r *request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	var items []string
	for _, o := range a.objects {
		selected := strings.HasSuffix(r.query.Get("fieldSelector"), "="+o.name) || r.query.Get("fieldSelector") == ""
		if o.resource == r.resource && (r.namespace == "" || o.namespace == r.namespace) && selected {
			items = append(items, o.json(false))
		}
	}
	from, _ := strconv.Atoi(r.query.Get("continue"))
	next := ""
	if page := a.pageSize; page > 0 && r.query.Get("limit") != "" && from+page < len(items) {
		next = strconv.Itoa(from + page)
		items = items[from : from+page]
	} else {
		items = items[from:]
	}
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"%d","continue":%q},"items":[%s]}`+"\n",
		a.version, next, strings.Join(items, ","))
}

func (a *api) get(w http.ResponseWriter, r *request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	name := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
	for _, o := range a.objects {
		if o.resource == r.resource && o.namespace == r.namespace && o.name == name {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write([]byte(o.json(true)))
			return
		}
	}
	refuse(w, http.StatusNotFound, "NotFound", name+" not found")
}

func (a *api) watch(w http.ResponseWriter, r *request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	version, _ := strconv.Atoi(r.version)
	if version != 0 && version < a.compacted {
		refuse(w, http.StatusGone, "Expired", fmt.Sprintf("too old resource version: %d (%d)", version, a.compacted))
		return
	}
	w.Header().Set("Content-Type", "application/json")
	var frames []byte
	add := func(e event, raw string) {
		frame := []byte(fmt.Sprintf(`{"type":%q,"object":%s}`+"\n", e.typ, raw))
		if a.frame != nil {
			frame = a.frame(r, e, frame)
		}
		frames = append(frames, frame...)
	}
	bookmark := func() {
		add(event{typ: "BOOKMARK", version: a.version}, fmt.Sprintf(`{"kind":"ConfigMap","apiVersion":"v1","metadata":{"resourceVersion":"%d"}}`, a.version))
	}
	// flush writes without the lock, for a client that does not read must not hold up who asks something else, nor the test.
	flush := func() {
		a.mu.Unlock()
		defer a.mu.Lock()
		if len(frames) > 0 {
			_, _ = w.Write(frames)
		}
		frames = frames[:0]
		_ = http.NewResponseController(w).Flush()
	}
	cutoff := a.cutoff
	flush()
	next := 0
	for sent := 0; a.cutoff == cutoff; {
		changed := a.changed
		for ; next < len(a.history); next++ {
			e := a.history[next]
			if e.version <= version || e.object.resource != r.resource || r.namespace != "" && e.object.namespace != r.namespace {
				continue
			}
			add(e, e.object.json(true))
			if sent++; a.closeAfter > 0 && sent == a.closeAfter {
				flush()
				return
			}
		}
		if a.bookmarks {
			bookmark()
		}
		flush()
		a.mu.Unlock()
		minute := time.NewTimer(time.Minute)
		select {
		case <-changed:
			a.mu.Lock()
		case <-minute.C:
			a.mu.Lock()
			if !a.mute {
				bookmark()
			}
		case <-r.Context().Done():
			minute.Stop()
			a.mu.Lock()
			return
		}
		minute.Stop()
	}
}

// refuse answers with a Status, as the API server does.
func refuse(w http.ResponseWriter, code int, reason, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(status(code, reason, message))
}

func status(code int, reason, message string) []byte {
	b, _ := json.Marshal(map[string]any{
		"kind": "Status", "apiVersion": "v1", "metadata": map[string]any{}, "status": "Failure",
		"message": message, "reason": reason, "code": code,
	})
	return b
}

// failing is an intercept that refuses some verbs of a resource, all resources if it is empty.
func failing(resource string, code int, reason string, verbs ...string) func(http.ResponseWriter, *request) bool {
	return func(w http.ResponseWriter, r *request) bool {
		if r.verb == "" || (resource != "" && r.resource != resource) || !slices.Contains(verbs, r.verb) {
			return false
		}
		refuse(w, code, reason, fmt.Sprintf("%s of %s: scripted %s", r.verb, r.resource, reason))
		return true
	}
}

// answering is an intercept that answers a verb with a body.
func answering(verb, body string) func(http.ResponseWriter, *request) bool {
	return func(w http.ResponseWriter, r *request) bool {
		if r.verb != verb {
			return false
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(body))
		return true
	}
}

func errorFrame(code int, reason, message string) []byte {
	return []byte(fmt.Sprintf(`{"type":"ERROR","object":%s}`+"\n", status(code, reason, message)))
}

// logged is a log that a test can read.
type logged struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logged) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
}

// lines returns the lines that contain all of the texts.
func (l *logged) lines(texts ...string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []string
	for line := range strings.Lines(l.buf.String()) {
		if !slices.ContainsFunc(texts, func(t string) bool { return !strings.Contains(line, t) }) {
			out = append(out, strings.TrimSpace(line))
		}
	}
	return out
}

// counts is the Metrics of a test.
type counts struct {
	mu        sync.Mutex
	badFrames int
	relists   []string
}

var _ Metrics = (*counts)(nil)

func (c *counts) BadFrame(schema.GroupResource) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.badFrames++
}

func (c *counts) Relist(_ schema.GroupResource, reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.relists = append(c.relists, reason)
}

func (c *counts) bad() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.badFrames
}

func (c *counts) reasons() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.relists)
}
