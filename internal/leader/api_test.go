package leader

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"
)

// shortest keeps the tests on real time short; they assert no times.
const shortest = 3 * time.Second

// patience is far above what anything here takes.
const patience = time.Minute

// apiServer answers for one Lease over HTTP as an API server does, as far as the elector asks.
type apiServer struct {
	*httptest.Server

	mu       sync.Mutex
	lease    map[string]any // nil if there is none
	version  float64
	requests []string
	dark     chan struct{} // while it is there, nothing is answered
	refuse   int           // status with which all is refused
}

func startAPIServer(t *testing.T) *apiServer {
	t.Helper()
	s := &apiServer{}
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(s.serve))
	s.EnableHTTP2 = true
	s.StartTLS()
	t.Cleanup(func() {
		s.light()
		s.Close()
	})
	return s
}

func (s *apiServer) config() *rest.Config {
	return &rest.Config{
		Host:            s.URL,
		TLSClientConfig: rest.TLSClientConfig{Insecure: true},
		// Nothing is left for a renewal that would have to wait for other requests.
		QPS: 0.001, Burst: 1, RateLimiter: flowcontrol.NewFakeNeverRateLimiter(),
	}
}

// goDark leaves requests without an answer until light is called.
func (s *apiServer) goDark() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dark = make(chan struct{})
}

func (s *apiServer) light() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dark != nil {
		close(s.dark)
	}
	s.dark = nil
}

func (s *apiServer) set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// count returns how many requests were answered.
func (s *apiServer) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.requests)
}

// spec returns a field of the lease's spec.
func (s *apiServer) spec(field string) any {
	s.mu.Lock()
	defer s.mu.Unlock()
	spec, _ := s.lease["spec"].(map[string]any)
	return spec[field]
}

func (s *apiServer) serve(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	dark := s.dark
	s.mu.Unlock()
	if dark != nil {
		select {
		case <-dark:
		case <-r.Context().Done():
			return
		}
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = append(s.requests, r.Method+" "+r.URL.Path)
	if s.refuse != 0 {
		answer(w, s.refuse, status(s.refuse, "Forbidden", "leases.coordination.k8s.io is forbidden"))
		return
	}
	switch r.Method {
	case http.MethodGet:
		if s.lease == nil {
			answer(w, http.StatusNotFound, status(http.StatusNotFound, "NotFound", "no such lease"))
			return
		}
		answer(w, http.StatusOK, s.lease)
	case http.MethodPost, http.MethodPut:
		s.write(w, r.Method, body)
	default:
		answer(w, http.StatusMethodNotAllowed, status(http.StatusMethodNotAllowed, "MethodNotAllowed", r.Method))
	}
}

func (s *apiServer) write(w http.ResponseWriter, method string, body []byte) {
	var lease map[string]any
	if err := json.Unmarshal(body, &lease); err != nil {
		answer(w, http.StatusBadRequest, status(http.StatusBadRequest, "BadRequest", err.Error()))
		return
	}
	meta, _ := lease["metadata"].(map[string]any)
	switch {
	case method == http.MethodPost && s.lease != nil:
		answer(w, http.StatusConflict, status(http.StatusConflict, "AlreadyExists", "there is one"))
		return
	case method == http.MethodPut && meta["resourceVersion"] != s.resourceVersion():
		answer(w, http.StatusConflict, status(http.StatusConflict, "Conflict", "it was changed"))
		return
	}
	s.version++
	meta["resourceVersion"] = s.resourceVersion()
	s.lease = lease
	answer(w, http.StatusOK, lease)
}

func (s *apiServer) resourceVersion() string {
	text, _ := json.Marshal(s.version)
	return string(text)
}

func status(code int, reason, message string) map[string]any {
	return map[string]any{
		"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": message,
	}
}

func answer(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body) // the client may be gone
}

// elect runs an elector against a server. The returned channels carry the contexts of each term; the work ends with the
// first of them. stop ends the elector and waits for it.
func elect(t *testing.T, config *rest.Config, identity string) (e *Elector, terms <-chan [2]context.Context, stop func()) {
	t.Helper()
	e, err := New(Options{
		Config: config, Namespace: "ns", Name: "deltabridge-main", Identity: identity,
		LeaseDuration: shortest, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	begun := make(chan [2]context.Context, 100)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		e.Run(ctx, func(work, lease context.Context) {
			begun <- [2]context.Context{work, lease}
			<-work.Done()
		})
	})
	stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
	})
	t.Cleanup(stop)
	return e, begun, stop
}

func next(t *testing.T, terms <-chan [2]context.Context) (work, lease context.Context) {
	t.Helper()
	select {
	case both := <-terms:
		return both[0], both[1]
	case <-time.After(patience):
		t.Fatal("does not lead")
		return nil, nil
	}
}

func await(t *testing.T, what string, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatal("no end of " + what)
	}
}

// What is asked of the API server is get, create and update of one Lease, and nothing else: these are the rights that
// the documentation names.
func TestRequests(t *testing.T) {
	s := startAPIServer(t)
	_, terms, stop := elect(t, s.config(), "one")
	next(t, terms)
	if holder, seconds := s.spec("holderIdentity"), s.spec("leaseDurationSeconds"); holder != "one" || seconds != 3.0 {
		t.Errorf("the lease says %v, %v s", holder, seconds)
	}
	stop()
	if holder := s.spec("holderIdentity"); holder != "" {
		t.Errorf("not released: %v", holder)
	}
	const leases = "/apis/coordination.k8s.io/v1/namespaces/ns/leases"
	for _, r := range s.requests {
		switch r {
		case "GET " + leases + "/deltabridge-main", "POST " + leases, "PUT " + leases + "/deltabridge-main":
		default:
			t.Errorf("request %s", r)
		}
	}
}

// A server that does not answer must not hold anything up past the deadline, nor keep the lease from coming back.
func TestServerThatDoesNotAnswer(t *testing.T) {
	s := startAPIServer(t)
	e, terms, _ := elect(t, s.config(), "one")
	for range 2 {
		_, lease := next(t, terms)
		s.goDark()
		await(t, "the lease", lease.Done())
		if !errors.Is(context.Cause(lease), ErrLost) || e.Leading() {
			t.Errorf("cause %v, leading %t", context.Cause(lease), e.Leading())
		}
		s.light()
	}
	next(t, terms)
}

// A peer that is gone without a word takes its connection with it; the next request uses another one.
func TestConnectionThatDies(t *testing.T) {
	s := startAPIServer(t)
	relay := startRelay(t, s.Listener.Addr().String())
	config := s.config()
	config.Host = "https://" + relay.Addr().String()
	_, terms, _ := elect(t, config, "one")
	next(t, terms)
	relay.freeze()
	frozen := s.count()
	// The client itself takes 45 s to find out.
	deadline := time.Now().Add(30 * time.Second)
	for s.count() < frozen+5 && time.Now().Before(deadline) {
		time.Sleep(10 * time.Millisecond)
	}
	if n := s.count() - frozen; n < 5 {
		t.Errorf("%d requests came through on another connection", n)
	}
}

func TestLeaseOfAnother(t *testing.T) {
	s := startAPIServer(t)
	first, terms, stopFirst := elect(t, s.config(), "one")
	_, lease := next(t, terms)
	s.set(func() {
		s.lease["spec"].(map[string]any)["holderIdentity"] = "usurper"
		s.version++
		s.lease["metadata"].(map[string]any)["resourceVersion"] = s.resourceVersion()
	})
	await(t, "the lease", lease.Done())
	if first.Holder() != "usurper" {
		t.Errorf("holder %q", first.Holder())
	}
	stopFirst()
	if holder := s.spec("holderIdentity"); holder != "usurper" {
		t.Errorf("another's lease was changed: %v", holder)
	}
}

func TestForbiddenLease(t *testing.T) {
	s := startAPIServer(t)
	s.refuse = http.StatusForbidden
	e, terms, _ := elect(t, s.config(), "one")
	deadline := time.Now().Add(patience)
	for !strings.Contains(fmt.Sprint(e.Err()), "leases.coordination.k8s.io is forbidden") {
		if time.Now().After(deadline) {
			t.Fatalf("error %v", e.Err())
		}
		time.Sleep(10 * time.Millisecond)
	}
	s.set(func() { s.refuse = 0 })
	next(t, terms)
}

func TestUnusableConfig(t *testing.T) {
	_, err := New(Options{
		Config:    &rest.Config{Host: "https://x", TLSClientConfig: rest.TLSClientConfig{CAFile: "/does/not/exist"}},
		Namespace: "ns", Name: "n", Identity: "i", LeaseDuration: shortest, Log: slog.New(slog.DiscardHandler),
	})
	if err == nil {
		t.Error("a CA file that does not exist is accepted")
	}
}

// relay passes connections on to a server until it freezes those that are open.
type relay struct {
	net.Listener
	mu    sync.Mutex
	open  []net.Conn
	dead  map[net.Conn]bool
	links sync.WaitGroup
}

func startRelay(t *testing.T, target string) *relay {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{Listener: listener, dead: map[net.Conn]bool{}}
	r.links.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", target)
			if err != nil {
				client.Close()
				continue
			}
			r.mu.Lock()
			r.open = append(r.open, client, server)
			r.mu.Unlock()
			r.links.Go(func() { r.copy(client, server) })
			r.links.Go(func() { r.copy(server, client) })
		}
	})
	t.Cleanup(func() {
		listener.Close()
		r.mu.Lock()
		for _, c := range r.open {
			c.Close()
		}
		r.mu.Unlock()
		r.links.Wait()
	})
	return r
}

// freeze swallows whatever comes on the connections that are open now.
func (r *relay) freeze() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.open {
		r.dead[c] = true
	}
}

func (r *relay) copy(to, from net.Conn) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if err != nil {
			to.Close()
			return
		}
		r.mu.Lock()
		dead := r.dead[from]
		r.mu.Unlock()
		if dead {
			continue
		}
		if _, err := to.Write(buffer[:n]); err != nil {
			return
		}
	}
}
