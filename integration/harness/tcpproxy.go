package harness

import (
	"net"
	"sync"
	"testing"
	"time"
)

// TCPProxy passes the bytes of connections on and knows nothing of what they mean, so that it can stand in front of
// anything: TLS to an API server as well as NATS.
type TCPProxy struct {
	target   string
	listener net.Listener
	done     sync.WaitGroup

	mu      sync.Mutex
	changed chan struct{} // closed and replaced when what holds for connections changes
	delay   time.Duration
	stalled bool
	refused bool
	closed  bool
	conns   map[net.Conn]struct{}
}

const (
	chunkBytes = 32 << 10
	// chunksOnTheWay bounds what a delayed connection holds in one direction; the sender waits beyond it.
	chunksOnTheWay = 128
)

// StartTCPProxy starts a proxy in front of an address, "host:port", which may be out of reach for now.
func StartTCPProxy(t testing.TB, target string) *TCPProxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("start a proxy in front of %s: %v", target, err)
	}
	p := &TCPProxy{
		target: target, listener: listener, changed: make(chan struct{}), conns: map[net.Conn]struct{}{},
	}
	p.done.Go(p.accept)
	t.Cleanup(p.close)
	return p
}

// Addr returns the address to give to clients.
func (p *TCPProxy) Addr() string { return p.listener.Addr().String() }

// Cut cuts all connections. New ones are accepted.
func (p *TCPProxy) Cut() { p.change(p.cut) }

// Refuse cuts all connections, and new ones as soon as they come, until it is called with false.
func (p *TCPProxy) Refuse(on bool) {
	p.change(func() {
		p.refused = on
		p.cut()
	})
}

// Delay lets every byte arrive so much later than it was sent.
func (p *TCPProxy) Delay(d time.Duration) { p.change(func() { p.delay = d }) }

// Stall lets nothing more through on any connection until it is called with false. The connections stay open, as they
// do behind a router that has died; what was held is then passed on.
func (p *TCPProxy) Stall(on bool) { p.change(func() { p.stalled = on }) }

// Heal takes back everything.
func (p *TCPProxy) Heal() { p.change(func() { p.delay, p.stalled, p.refused = 0, false, false }) }

func (p *TCPProxy) change(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
	close(p.changed)
	p.changed = make(chan struct{})
}

// cut must be called with the lock held.
func (p *TCPProxy) cut() {
	for conn := range p.conns {
		conn.Close()
	}
}

func (p *TCPProxy) close() {
	p.listener.Close()
	p.change(func() {
		p.closed = true
		p.cut()
	})
	p.done.Wait()
}

func (p *TCPProxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.done.Go(func() { p.serve(client) })
	}
}

// serve passes one client's bytes until either side ends.
func (p *TCPProxy) serve(client net.Conn) {
	defer client.Close()
	remote, err := net.DialTimeout("tcp", p.target, 5*time.Second)
	if err != nil {
		return // the target is down, and the client sees its connection end
	}
	defer remote.Close()
	if !p.keep(client, remote) {
		return
	}
	defer p.forget(client, remote)
	gone := make(chan struct{})
	end := sync.OnceFunc(func() {
		client.Close()
		remote.Close()
		close(gone)
	})
	var both sync.WaitGroup
	for _, way := range [][2]net.Conn{{client, remote}, {remote, client}} {
		chunks := make(chan chunk, chunksOnTheWay)
		both.Go(func() { receive(way[0], chunks, gone) })
		both.Go(func() {
			defer end()
			p.pass(way[1], chunks, gone)
		})
	}
	both.Wait()
}

// keep notes the connections, and reports whether they may stay.
func (p *TCPProxy) keep(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refused || p.closed {
		return false
	}
	for _, conn := range conns {
		p.conns[conn] = struct{}{}
	}
	return true
}

func (p *TCPProxy) forget(conns ...net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, conn := range conns {
		delete(p.conns, conn)
	}
}

// chunk is some bytes, and when they were received.
type chunk struct {
	data []byte
	at   time.Time
}

// receive reads until the connection ends, and closes chunks then.
func receive(from net.Conn, chunks chan<- chunk, gone <-chan struct{}) {
	defer close(chunks)
	for {
		buffer := make([]byte, chunkBytes)
		n, err := from.Read(buffer)
		if n > 0 {
			select {
			case chunks <- chunk{data: buffer[:n], at: time.Now()}:
			case <-gone:
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// pass writes chunks when they are due.
func (p *TCPProxy) pass(to net.Conn, chunks <-chan chunk, gone <-chan struct{}) {
	for c := range chunks {
		if !p.awaitDue(c.at, gone) {
			return
		}
		if _, err := to.Write(c.data); err != nil {
			return
		}
	}
}

// awaitDue waits until what was received at a time may be passed on. It returns false when the connection has ended.
func (p *TCPProxy) awaitDue(at time.Time, gone <-chan struct{}) bool {
	for {
		p.mu.Lock()
		left, stalled, changed := time.Until(at.Add(p.delay)), p.stalled, p.changed
		p.mu.Unlock()
		var due <-chan time.Time
		if !stalled {
			if left <= 0 {
				return true
			}
			due = time.After(left)
		}
		select {
		case <-due:
		case <-changed:
		case <-gone:
			return false
		}
	}
}
