package informer

import (
	"context"
	"net"
	"net/http"
	"os"
	"sync"
	"syscall"
	"testing"
)

// network is a network in memory with one server on it. Within a synctest bubble it is as deterministic as the clock:
// synctest.Wait returns when every request has gone as far as it can.
type network struct {
	accept chan net.Conn
	closed chan struct{}
	once   sync.Once

	mu    sync.Mutex
	fail  error // what a dial fails with
	conns []net.Conn
}

var _ net.Listener = (*network)(nil)

func newNetwork() *network {
	return &network{accept: make(chan net.Conn), closed: make(chan struct{})}
}

func (n *network) Accept() (net.Conn, error) {
	select {
	case c := <-n.accept:
		return c, nil
	case <-n.closed:
		return nil, net.ErrClosed
	}
}

func (n *network) Close() error {
	n.once.Do(func() { close(n.closed) })
	return nil
}

func (n *network) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 6443} }

// refuse breaks every connection, and makes every dial fail as if nobody listened; heal ends that.
func (n *network) refuse() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.fail = &net.OpError{Op: "dial", Net: "tcp", Addr: n.Addr(), Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	for _, c := range n.conns {
		_ = c.Close()
	}
	n.conns = nil
}

func (n *network) heal() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.fail = nil
}

func (n *network) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	client, server := net.Pipe()
	n.mu.Lock()
	fail := n.fail
	if fail == nil {
		n.conns = append(n.conns, server)
	}
	n.mu.Unlock()
	if fail != nil {
		return nil, fail
	}
	select {
	case n.accept <- server:
		return client, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-n.closed:
		return nil, net.ErrClosed
	}
}

// serve runs an HTTP server on the network until the test's end and returns a transport to it.
func (n *network) serve(t *testing.T, handler http.Handler) *http.Transport {
	server := &http.Server{Handler: handler}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(n)
	}()
	transport := &http.Transport{DialContext: n.dial}
	t.Cleanup(func() {
		_ = server.Close()
		transport.CloseIdleConnections()
		<-done
	})
	return transport
}
