package harness

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// The user of the tests' own connections. [Users] lets it in with all rights; a server without users lets in everyone.
const (
	adminUser     = "admin"
	adminPassword = "admin"
)

// natsReadyTimeout is how long a server may take until it accepts connections.
const natsReadyTimeout = time.Minute

// NATS is a nats-server inside this process, with JetStream unless told otherwise. It can stop and start again on the
// same port and the same store, as often as a test likes.
type NATS struct {
	options *server.Options
	server  *server.Server
	log     serverLog
}

// NewNATS starts a server that keeps its streams in dir. Changes are applied to its options first. The caller calls
// [NATS.Stop].
func NewNATS(dir string, changes ...func(*server.Options)) (*NATS, error) {
	port, err := FreePort()
	if err != nil {
		return nil, err
	}
	n := &NATS{options: &server.Options{
		Host:      "127.0.0.1",
		Port:      port,
		JetStream: true,
		StoreDir:  dir,
		NoSigs:    true,
	}}
	n.Change(changes...)
	return n, n.Start()
}

// StartNATS is [NewNATS] for a test, whose end stops the server.
func StartNATS(t testing.TB, changes ...func(*server.Options)) *NATS {
	t.Helper()
	n, err := NewNATS(t.TempDir(), changes...)
	if err != nil {
		t.Fatalf("start NATS: %v", err)
	}
	n.stopAfter(t)
	return n
}

func (n *NATS) stopAfter(t testing.TB) {
	t.Cleanup(func() {
		n.Stop()
		if t.Failed() {
			t.Logf("the log of NATS at %s ends:\n%s", n.URL(), n.log.tail(40))
		}
	})
}

// Users replaces a server's users, and adds the one of the tests' own connections.
func Users(users ...*server.User) func(*server.Options) {
	return func(o *server.Options) {
		o.Users = append([]*server.User{{Username: adminUser, Password: adminPassword}}, users...)
	}
}

// WithoutJetStream switches JetStream off.
func WithoutJetStream(o *server.Options) { o.JetStream = false }

// Change changes the options of the next start. Another port takes the server to another address.
func (n *NATS) Change(changes ...func(*server.Options)) {
	for _, change := range changes {
		change(n.options)
	}
}

// Reload changes the options of the running server, and of the next starts.
func (n *NATS) Reload(changes ...func(*server.Options)) error {
	n.Change(changes...)
	if err := n.server.ReloadOptions(n.options.Clone()); err != nil {
		return fmt.Errorf("reload the options of NATS: %w", err)
	}
	return nil
}

// Start starts the server, which must not run.
func (n *NATS) Start() error {
	s, err := server.NewServer(n.options.Clone())
	if err != nil {
		return fmt.Errorf("make a NATS server: %w", err)
	}
	s.SetLoggerV2(&n.log, false, false, false)
	s.Start()
	n.server = s
	if !s.ReadyForConnections(natsReadyTimeout) {
		n.Stop()
		return fmt.Errorf("NATS at %s accepts no connections after %s:\n%s", n.URL(), natsReadyTimeout, n.log.tail(20))
	}
	return nil
}

// Stop stops the server, if it runs, and waits until its files and its port are free.
func (n *NATS) Stop() {
	if n.server == nil {
		return
	}
	n.server.Shutdown()
	n.server.WaitForShutdown()
	n.server = nil
}

// Server returns the running server, for what this type does not offer.
func (n *NATS) Server() *server.Server { return n.server }

// URL returns the server's address.
func (n *NATS) URL() string { return fmt.Sprintf("nats://127.0.0.1:%d", n.options.Port) }

// Connect returns a connection with all rights. It comes back by itself when the server was stopped and started.
func (n *NATS) Connect(t testing.TB) *nats.Conn {
	t.Helper()
	return connect(t, n.URL())
}

// JetStream returns a JetStream client on a connection of its own.
func (n *NATS) JetStream(t testing.TB) jetstream.JetStream {
	t.Helper()
	return jetStream(t, n.Connect(t))
}

func connect(t testing.TB, url string) *nats.Conn {
	t.Helper()
	conn, err := nats.Connect(url,
		nats.UserInfo(adminUser, adminPassword),
		nats.MaxReconnects(-1),
		nats.ReconnectWait(50*time.Millisecond),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}), // the default prints
	)
	if err != nil {
		t.Fatalf("connect to NATS at %s: %v", url, err)
	}
	t.Cleanup(conn.Close)
	return conn
}

func jetStream(t testing.TB, conn *nats.Conn) jetstream.JetStream {
	t.Helper()
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatalf("make a JetStream client: %v", err)
	}
	return js
}

// NATSCluster is several servers that replicate streams among them.
type NATSCluster struct {
	Nodes []*NATS
	admin *nats.Conn
}

// StartNATSCluster starts a cluster of the given size and waits until it can place streams. Changes are applied to the
// options of every node.
func StartNATSCluster(t testing.TB, size int, changes ...func(*server.Options)) *NATSCluster {
	t.Helper()
	ports := make([]int, size)
	routes := make([]string, size)
	for i := range ports {
		port, err := FreePort()
		if err != nil {
			t.Fatalf("start a NATS cluster: %v", err)
		}
		ports[i] = port
		routes[i] = fmt.Sprintf("nats://127.0.0.1:%d", port)
	}
	c := &NATSCluster{}
	for i, port := range ports {
		node, err := NewNATS(t.TempDir(), func(o *server.Options) {
			o.ServerName = fmt.Sprintf("node-%d", i)
			o.Cluster = server.ClusterOpts{Name: "test", Host: "127.0.0.1", Port: port}
			o.Routes = server.RoutesFromStr(strings.Join(routes, ","))
			for _, change := range changes {
				change(o)
			}
		})
		if err != nil {
			t.Fatalf("start node %d of a NATS cluster: %v", i, err)
		}
		node.stopAfter(t)
		c.Nodes = append(c.Nodes, node)
	}
	Eventually(t, Patience, c.Ready)
	c.admin = connect(t, c.URLs())
	return c
}

// HideNodes keeps a cluster's nodes from telling clients of one another, so that a client stays with the addresses that
// it was given: those of proxies.
func HideNodes(o *server.Options) { o.Cluster.NoAdvertise = true }

// Ready returns an error until there is a leader that places streams, all nodes follow it, and it knows them all.
func (c *NATSCluster) Ready() error {
	known := 0
	for _, node := range c.Nodes {
		if node.server == nil {
			return fmt.Errorf("the node at %s is stopped", node.URL())
		}
		if !node.server.JetStreamIsCurrent() {
			return fmt.Errorf("the node at %s does not follow", node.URL())
		}
		known = max(known, len(node.server.JetStreamClusterPeers())) // none but the leader answers
	}
	if known != len(c.Nodes) {
		return fmt.Errorf("the leader knows %d nodes of %d", known, len(c.Nodes))
	}
	return nil
}

// URLs returns the addresses of all nodes, separated by commas.
func (c *NATSCluster) URLs() string {
	urls := make([]string, len(c.Nodes))
	for i, node := range c.Nodes {
		urls[i] = node.URL()
	}
	return strings.Join(urls, ",")
}

// JetStream returns a JetStream client on a connection of its own.
func (c *NATSCluster) JetStream(t testing.TB) jetstream.JetStream {
	t.Helper()
	return jetStream(t, connect(t, c.URLs()))
}

// StepDown asks the stream's leader to hand over to another node. It returns an error when there is none at the moment.
func (c *NATSCluster) StepDown(stream string) error {
	reply, err := c.admin.Request("$JS.API.STREAM.LEADER.STEPDOWN."+stream, nil, 5*time.Second)
	if err != nil {
		return fmt.Errorf("ask the leader of stream %s to step down: %w", stream, err)
	}
	if strings.Contains(string(reply.Data), `"error"`) {
		return errors.New(string(reply.Data))
	}
	return nil
}

// serverLog keeps what a server logs.
type serverLog struct{ out output }

var _ server.Logger = (*serverLog)(nil)

func (l *serverLog) line(level, format string, args []any) {
	fmt.Fprintf(&l.out, "%s %s %s\n", time.Now().Format("15:04:05.000"), level, fmt.Sprintf(format, args...))
}

func (l *serverLog) Noticef(format string, args ...any) { l.line("INF", format, args) }
func (l *serverLog) Warnf(format string, args ...any)   { l.line("WRN", format, args) }
func (l *serverLog) Errorf(format string, args ...any)  { l.line("ERR", format, args) }
func (l *serverLog) Fatalf(format string, args ...any)  { l.line("FTL", format, args) }
func (l *serverLog) Debugf(format string, args ...any)  { l.line("DBG", format, args) }
func (l *serverLog) Tracef(format string, args ...any)  { l.line("TRC", format, args) }

func (l *serverLog) tail(n int) string { return lastLines(l.out.String(), n) }
