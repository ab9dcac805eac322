package server

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// pipes is a listener in memory, so that the shutdown can be timed by a virtual clock.
type pipes struct {
	accept chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.accept:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

func (p *pipes) dial() net.Conn {
	client, server := net.Pipe()
	p.accept <- server
	return client
}

// slowState answers when it is told to.
type slowState struct{ release chan struct{} }

func (s slowState) Ready() []Check {
	<-s.release
	return []Check{{Name: "a", OK: true, Message: "two\nlines"}}
}
func (slowState) Status() any { return nil }
func (slowState) Page() Page  { return Page{} }

// polls is what net/http may take to see that a connection is closed.
const polls = 10 * time.Millisecond

// The end of the process must not wait for connections that nobody uses, and only for a moment for those in use.
func TestShutdown(t *testing.T) {
	for name, test := range map[string]struct {
		use  func(net.Conn)
		took time.Duration
	}{
		"opened in advance": {func(net.Conn) {}, polls},
		"half a request":    {func(c net.Conn) { _, _ = c.Write([]byte("GET /re")) }, time.Second},
		"kept alive": {func(c net.Conn) {
			go func() { _, _ = io.Copy(io.Discard, c) }()
			_, _ = c.Write([]byte("GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"))
		}, polls},
		"never answered": {func(c net.Conn) {
			go func() { _, _ = io.Copy(io.Discard, c) }()
			_, _ = c.Write([]byte("GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n"))
		}, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				listener := &pipes{accept: make(chan net.Conn), closed: make(chan struct{})}
				release := make(chan struct{})
				s := newServer(listener, slowState{release}, NewMetrics("v", "c", "g"))
				ctx, cancel := context.WithCancel(context.Background())
				served := make(chan error)
				go func() { served <- s.Serve(ctx) }()
				c := listener.dial()
				defer c.Close()
				test.use(c)
				synctest.Wait()
				begin := time.Now()
				cancel()
				if err := <-served; err != nil {
					t.Errorf("Serve: %v", err)
				}
				if took := time.Since(begin); took > test.took {
					t.Errorf("the shutdown took %s, want at most %s", took, test.took)
				}
				close(release)
			})
		})
	}
}

// A request under way is answered.
func TestShutdownAnswersWhatIsUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		listener := &pipes{accept: make(chan net.Conn), closed: make(chan struct{})}
		release := make(chan struct{})
		s := newServer(listener, slowState{release}, NewMetrics("v", "c", "g"))
		ctx, cancel := context.WithCancel(context.Background())
		served := make(chan error, 1)
		go func() { served <- s.Serve(ctx) }()
		transport := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return listener.dial(), nil }}
		body := make(chan string)
		go func() {
			r, err := transport.RoundTrip(mustRequest(t, "http://x/readyz?verbose"))
			if err != nil {
				body <- err.Error()
				return
			}
			defer r.Body.Close()
			text, _ := io.ReadAll(r.Body)
			body <- string(text)
		}()
		synctest.Wait()
		cancel()
		time.Sleep(100 * time.Millisecond)
		close(release)
		if got := <-body; got != "[+] a: two; lines\n" {
			t.Errorf("answer %q", got)
		}
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
		transport.CloseIdleConnections()
	})
}

// The listener may fail under the server; that is not to pass silently.
func TestServeFails(t *testing.T) {
	listener := &pipes{accept: make(chan net.Conn), closed: make(chan struct{})}
	s := newServer(listener, slowState{}, NewMetrics("v", "c", "g"))
	_ = listener.Close()
	if err := s.Serve(context.Background()); err == nil || !strings.Contains(err.Error(), "serve HTTP") {
		t.Errorf("Serve: %v", err)
	}
}

func mustRequest(t *testing.T, url string) *http.Request {
	t.Helper()
	r, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}
