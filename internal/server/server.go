// Package server answers over HTTP how the bridge is doing: probes, metrics, status. It starts first and stops last,
// so that it covers the start and the drain.
package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Check is one condition for being ready.
type Check struct {
	Name    string `json:"name"`
	OK      bool   `json:"ok"`
	Message string `json:"message,omitempty"` // why not, and what to do; or a remark
}

// State is what the server shows. Its methods must be safe for concurrent use and must not block for long.
type State interface {
	// Ready returns the conditions for being ready, the most basic first.
	Ready() []Check
	// Status returns what /statusz shows, to be encoded as JSON.
	Status() any
	// Page returns what the page at / shows.
	Page() Page
}

// Server serves /livez, /readyz, /metrics, /statusz, and a page for people at /.
type Server struct {
	http     *http.Server
	listener net.Listener
}

// Listen opens the address and returns a Server that answers once Serve runs. An address of ":0" takes a free port.
func Listen(addr string, state State, metrics *Metrics) (*Server, error) {
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("listen on BRIDGE_HTTP_ADDR: %w", err)
	}
	return newServer(listener, state, metrics), nil
}

func newServer(listener net.Listener, state State, metrics *Metrics) *Server {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) { ready(w, r, state) })
	mux.HandleFunc("GET /statusz", func(w http.ResponseWriter, _ *http.Request) { status(w, state) })
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) { showPage(w, state, metrics) })
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics.registry, promhttp.HandlerOpts{}))
	unused := &unusedConns{conns: map[net.Conn]struct{}{}}
	s := &Server{
		http: &http.Server{
			Handler: mux, ConnState: unused.track, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute,
		},
		listener: listener,
	}
	s.http.RegisterOnShutdown(unused.close)
	return s
}

// unusedConns are the connections on which no request has begun. Shutdown closes those that are idle after a request,
// but waits for these: browsers and load balancers open some in advance.
type unusedConns struct {
	mu    sync.Mutex
	conns map[net.Conn]struct{}
}

func (u *unusedConns) track(c net.Conn, state http.ConnState) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if state == http.StateNew {
		u.conns[c] = struct{}{}
	} else {
		delete(u.conns, c)
	}
}

func (u *unusedConns) close() {
	u.mu.Lock()
	defer u.mu.Unlock()
	for c := range u.conns {
		_ = c.Close()
	}
}

// Addr returns the address that the server listens on.
func (s *Server) Addr() string { return s.listener.Addr().String() }

// Serve answers until the context ends, then finishes the requests under way.
func (s *Server) Serve(ctx context.Context) error {
	failed := make(chan error, 1)
	go func() { failed <- s.http.Serve(s.listener) }()
	select {
	case err := <-failed:
		return fmt.Errorf("serve HTTP: %w", err)
	case <-ctx.Done():
	}
	shutdown, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if err := s.http.Shutdown(shutdown); err != nil {
		_ = s.http.Close()
	}
	if err := <-failed; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve HTTP: %w", err)
	}
	return nil
}

// ready answers 200 if every check passes and 503 if not, with the checks if asked for ?verbose or if one fails.
func ready(w http.ResponseWriter, r *http.Request, state State) {
	checks := state.Ready()
	code := http.StatusOK
	var text strings.Builder
	for _, c := range checks {
		mark := "+"
		if !c.OK {
			code, mark = http.StatusServiceUnavailable, "-"
		}
		fmt.Fprintf(&text, "[%s] %s", mark, c.Name)
		if c.Message != "" {
			fmt.Fprintf(&text, ": %s", strings.ReplaceAll(c.Message, "\n", "; ")) // one line a check
		}
		text.WriteByte('\n')
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(code)
	_, verbose := r.URL.Query()["verbose"]
	if code == http.StatusOK && !verbose {
		_, _ = w.Write([]byte("ok\n"))
		return
	}
	_, _ = w.Write([]byte(text.String()))
}

func status(w http.ResponseWriter, state State) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false) // people read it, and no browser takes it for a page
	_ = encoder.Encode(state.Status())
}
