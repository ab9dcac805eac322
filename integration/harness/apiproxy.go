package harness

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// VerbWatch is the verb of a watch in the API; every other request has its HTTP method in lower case.
const VerbWatch = "watch"

// APIProxy stands between a client and the API server. It speaks plain HTTP to the client and is the admin to the API
// server. Everything passes until a script says otherwise. What it is told holds for requests to come and, for watches,
// for those that are open.
type APIProxy struct {
	target     *url.URL
	kubeconfig string
	proxy      *httputil.ReverseProxy
	addr       string

	mu           sync.Mutex
	changed      chan struct{} // closed and replaced when the script changes
	server       *http.Server  // nil while connections are refused
	closed       bool
	faults       []*Fault
	closeAfter   int
	blackHole    bool
	watchSeconds int // what watches are asked for instead of their timeout, zero for that
	corrupt      map[string]int
	requests     []Request
	watches      []*Watch
}

// Fault is an answer that the proxy gives in the API server's place.
type Fault struct {
	Verb       string // verb of the requests that get it; empty for every verb
	Path       string // path of the requests that get it, a prefix where it ends with "*"
	Status     int    // HTTP status
	Reason     metav1.StatusReason
	RetryAfter int // seconds, in the header and in the body, where it is not zero
	Times      int // so many requests get it; zero for all
}

func (f *Fault) matches(verb, path string) bool {
	if f.Verb != "" && f.Verb != verb {
		return false
	}
	if prefix, ok := strings.CutSuffix(f.Path, "*"); ok {
		return strings.HasPrefix(path, prefix)
	}
	return f.Path == path
}

// Request is one request that reached the proxy.
type Request struct {
	Verb            string
	Path            string
	ResourceVersion string // the query's
	Query           url.Values
	Status          int // what the client got; zero while it waits
}

// StartProxy starts a proxy in front of the API server.
func (c *ControlPlane) StartProxy(t testing.TB) *APIProxy {
	t.Helper()
	transport, err := rest.TransportFor(c.admin)
	if err != nil {
		t.Fatalf("start a proxy in front of the API server: %v", err)
	}
	target, err := url.Parse(c.admin.Host)
	if err != nil {
		t.Fatalf("start a proxy in front of the API server: %v", err)
	}
	p := &APIProxy{
		target:     target,
		changed:    make(chan struct{}),
		corrupt:    map[string]int{},
		kubeconfig: t.TempDir() + "/proxy.kubeconfig",
	}
	p.proxy = &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			// The proxy's own credentials count, and frames must be readable.
			r.Out.Header.Del("Authorization")
			r.Out.Header.Del("Accept-Encoding")
		},
		Transport:      transport,
		FlushInterval:  -1, // a watch's events must not wait in a buffer
		ModifyResponse: p.wrapWatch,
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) {
			w.WriteHeader(http.StatusBadGateway)
		},
	}
	if err := p.listen("127.0.0.1:0"); err != nil {
		t.Fatalf("start a proxy in front of the API server: %v", err)
	}
	t.Cleanup(func() {
		p.mu.Lock()
		p.closed = true
		p.mu.Unlock()
		p.Refuse()
	})
	if err := writeKubeconfig(p.kubeconfig, &rest.Config{Host: "http://" + p.addr}); err != nil {
		t.Fatalf("start a proxy in front of the API server: %v", err)
	}
	return p
}

func (p *APIProxy) listen(addr string) error {
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	p.addr = listener.Addr().String()
	server := &http.Server{Handler: p}
	p.mu.Lock()
	p.server = server
	p.mu.Unlock()
	go func() {
		// It always returns an error, and after Close it is the one below.
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			panic(fmt.Sprintf("the proxy in front of the API server stopped: %v", err))
		}
	}()
	return nil
}

// Kubeconfig returns the path of a kubeconfig that leads to the proxy.
func (p *APIProxy) Kubeconfig() string { return p.kubeconfig }

// Config returns a client configuration that leads to the proxy.
func (p *APIProxy) Config() *rest.Config { return &rest.Config{Host: "http://" + p.addr, QPS: -1} }

// change runs a change of the script and wakes the watches that wait for one.
func (p *APIProxy) change(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
	close(p.changed)
	p.changed = make(chan struct{})
}

// CloseWatchesAfter ends each watch after so many events, bookmarks not counted; zero lets them run. A watch that has
// had as many already ends with its next event.
func (p *APIProxy) CloseWatchesAfter(events int) { p.change(func() { p.closeAfter = events }) }

// BlackHoleWatches lets nothing more through on any watch, open or new, until it is called with false. The connections
// stay open, as they do behind a router that has died.
func (p *APIProxy) BlackHoleWatches(on bool) { p.change(func() { p.blackHole = on }) }

// EndWatchesAfter makes the API server end each watch after so many seconds, zero for what the client asks for. Two seconds
// before the end it sends a bookmark.
func (p *APIProxy) EndWatchesAfter(seconds int) { p.change(func() { p.watchSeconds = seconds }) }

// CorruptFrame puts a line that is not JSON in the place of the next event of a watch of the path.
func (p *APIProxy) CorruptFrame(path string) { p.change(func() { p.corrupt[path]++ }) }

// Fail answers requests with a fault. Of several that match, the first given counts.
func (p *APIProxy) Fail(fault Fault) { p.change(func() { p.faults = append(p.faults, &fault) }) }

// Heal takes back every fault and what was said of watches.
func (p *APIProxy) Heal() {
	p.change(func() {
		p.faults, p.closeAfter, p.blackHole, p.watchSeconds = nil, 0, false, 0
		clear(p.corrupt)
	})
}

// Refuse cuts all connections and refuses new ones.
func (p *APIProxy) Refuse() {
	p.mu.Lock()
	server := p.server
	p.server = nil
	p.mu.Unlock()
	if server != nil {
		// An error would be the listener's, which is closed all the same.
		_ = server.Close()
	}
	p.change(func() {}) // what waits in a black hole has no client any more
}

// Accept accepts connections again, on the same address.
func (p *APIProxy) Accept() error { return p.listen(p.addr) }

// Requests returns what reached the proxy so far.
func (p *APIProxy) Requests() []Request {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.requests)
}

// Count returns how many requests with a verb were made to a path; a path that ends with "*" is a prefix.
func (p *APIProxy) Count(verb, path string) int {
	n := 0
	pattern := Fault{Verb: verb, Path: path}
	for _, r := range p.Requests() {
		if pattern.matches(r.Verb, r.Path) {
			n++
		}
	}
	return n
}

// ServeHTTP answers with a fault or passes the request on.
func (p *APIProxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	verb := strings.ToLower(r.Method)
	query := r.URL.Query()
	if watch, err := strconv.ParseBool(query.Get("watch")); err == nil && watch {
		verb = VerbWatch
	}
	p.mu.Lock()
	index := len(p.requests)
	p.requests = append(p.requests, Request{
		Verb: verb, Path: r.URL.Path, ResourceVersion: query.Get("resourceVersion"), Query: query,
	})
	if verb == VerbWatch && p.watchSeconds > 0 {
		shorter := r.URL.Query()
		shorter.Set("timeoutSeconds", strconv.Itoa(p.watchSeconds))
		r.URL.RawQuery = shorter.Encode()
	}
	var fault *Fault
	for i, f := range p.faults {
		if !f.matches(verb, r.URL.Path) {
			continue
		}
		copied := *f
		fault = &copied
		if f.Times == 1 {
			p.faults = slices.Delete(p.faults, i, i+1)
		} else if f.Times > 1 {
			f.Times--
		}
		break
	}
	p.mu.Unlock()

	recorder := &statusRecorder{ResponseWriter: w, record: func(status int) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.requests[index].Status = status
	}}
	if fault != nil {
		fault.write(recorder)
		return
	}
	p.proxy.ServeHTTP(recorder, r)
}

func (f *Fault) write(w http.ResponseWriter) {
	status := metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
		Status:   metav1.StatusFailure,
		Code:     int32(f.Status),
		Reason:   f.Reason,
		Message:  fmt.Sprintf("scripted answer %d", f.Status),
	}
	if f.RetryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(f.RetryAfter))
		status.Details = &metav1.StatusDetails{RetryAfterSeconds: int32(f.RetryAfter)}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(f.Status)
	// The client may be gone; there is nobody else to tell.
	_ = json.NewEncoder(w).Encode(status)
}

// statusRecorder tells what status a client gets.
type statusRecorder struct {
	http.ResponseWriter
	record func(int)
}

func (r *statusRecorder) WriteHeader(status int) {
	r.record(status)
	r.ResponseWriter.WriteHeader(status)
}

// Unwrap lets the proxy flush.
func (r *statusRecorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }
