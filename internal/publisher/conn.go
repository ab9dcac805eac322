package publisher

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"
	"github.com/synadia-io/orbit.go/natscontext"
	"k8s.io/apimachinery/pkg/util/wait"
)

// forgetAfter is how long the client remembers an append that is not answered. The shards lose patience much earlier; an
// answer that comes after all is still of use to them.
const forgetAfter = time.Minute

// ErrNotConnected means that there is no connection to NATS at the moment. Conn reconnects by itself.
var ErrNotConnected = errors.New("not connected to NATS")

// ConnOptions say where NATS is and who we are. Empty fields are not used.
type ConnOptions struct {
	URLs     []string
	Name     string // shown by the server in its list of connections
	Creds    string // file, read again at each connect
	NKey     string // seed, or file that holds one
	User     string
	Password string
	Token    string
	CA       string // file
	Cert     string // file
	Key      string // file
	Context  string // of the nats command line; the fields above add to it
	Domain   string // JetStream domain

	// MaxPending bounds the appends in flight.
	MaxPending int
}

// Conn holds one connection to NATS for the life of the process. The client reconnects by itself; where it gives up
// and closes, Conn makes a new connection. It is safe for concurrent use.
type Conn struct {
	options ConnOptions
	log     *slog.Logger

	mu       sync.Mutex
	nc       *nats.Conn
	js       jetstream.JetStream
	lastErr  error // why there is no connection
	handler  handler
	denied   map[string]time.Time // subjects that the server refused us to publish on, and when
	said     map[string]bool      // denied subscriptions that were logged
	closed   chan struct{}        // closed when nc closes
	changing chan struct{}        // closed and replaced whenever the connection comes or goes
}

// handler is told of the outcomes of appends and of a connection that came back. Its methods must not block.
type handler interface {
	acked(*nats.Msg, *jetstream.PubAck)
	failed(*nats.Msg, error)
	denied(subject string)
	wake()
}

var _ broker = (*Conn)(nil)

// NewConn returns a Conn that connects when it runs.
func NewConn(options ConnOptions, log *slog.Logger) *Conn {
	return &Conn{options: options, log: log, denied: map[string]time.Time{}, said: map[string]bool{}, changing: make(chan struct{}), lastErr: errors.New("connecting")}
}

// Run connects, and connects anew whenever the client has given up, until the context ends. It then closes the
// connection, after what was written has been flushed.
func (c *Conn) Run(ctx context.Context) {
	backoff := newBackoff()
	reported := ""
	for ctx.Err() == nil {
		closed, err := c.connect()
		if err != nil {
			err = explainConnect(err)
			c.set(nil, nil, err)
			if err.Error() != reported {
				reported = err.Error()
				c.log.Warn("NATS cannot be reached, trying again", "error", err)
			}
			sleep(ctx, backoff.Step())
			continue
		}
		backoff, reported = newBackoff(), ""
		select {
		case <-ctx.Done():
		case <-closed:
			c.set(nil, nil, errors.New("connection closed"))
			c.log.Warn("NATS connection was closed, making a new one")
		}
	}
	c.mu.Lock()
	nc := c.nc
	c.mu.Unlock()
	if nc != nil {
		if nc.IsConnected() {
			_ = nc.FlushTimeout(time.Second)
		}
		nc.Close()
		<-c.closed
	}
	c.set(nil, nil, ErrNotConnected)
}

func newBackoff() *wait.Backoff {
	return &wait.Backoff{Duration: 200 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 10, Cap: 5 * time.Second}
}

// sleep waits for the duration or the end of the context.
func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// explainConnect says in a user's words which variable to look at.
func explainConnect(err error) error {
	switch {
	case errors.Is(err, nats.ErrAuthorization), errors.Is(err, nats.ErrAuthExpired), errors.Is(err, nats.ErrAuthRevoked):
		return fmt.Errorf("NATS refuses the credentials; check NATS_CREDS, NATS_NKEY, NATS_USER or NATS_TOKEN: %w", err)
	case errors.Is(err, nats.ErrNoServers):
		return fmt.Errorf("no NATS server answers; check NATS_URL: %w", err)
	case errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("a file that the NATS connection needs is missing: %w", err)
	}
	if unknown := (*tls.CertificateVerificationError)(nil); errors.As(err, &unknown) {
		return fmt.Errorf("the NATS server's certificate is not trusted; check NATS_CA: %w", err)
	}
	return fmt.Errorf("NATS cannot be connected to; check NATS_URL: %w", err)
}

// connect makes one attempt over all servers. The channel that it returns is closed when the client gives up.
func (c *Conn) connect() (<-chan struct{}, error) {
	closed := make(chan struct{})
	opts, err := c.natsOptions(closed)
	if err != nil {
		return nil, err
	}
	var nc *nats.Conn
	if c.options.Context != "" {
		nc, _, err = natscontext.Connect(c.options.Context, opts...)
	} else {
		nc, err = nats.Connect(strings.Join(c.options.URLs, ","), opts...)
	}
	if err != nil {
		return nil, err
	}
	jsOpts := []jetstream.JetStreamOpt{
		// The window is the shards', and the client's own bound must never be what blocks: it also counts what they have
		// given up and the client has not forgotten yet.
		jetstream.WithPublishAsyncMaxPending(64*c.options.MaxPending + 1024),
		jetstream.WithPublishAsyncTimeout(forgetAfter),
		jetstream.WithPublishAsyncAckHandler(func(_ jetstream.JetStream, m *nats.Msg, ack *jetstream.PubAck) {
			if h := c.current(); h != nil {
				h.acked(m, ack)
			}
		}),
		jetstream.WithPublishAsyncErrHandler(func(_ jetstream.JetStream, m *nats.Msg, err error) {
			if h := c.current(); h != nil {
				h.failed(m, err)
			}
		}),
	}
	var js jetstream.JetStream
	if c.options.Domain != "" {
		js, err = jetstream.NewWithDomain(nc, c.options.Domain, jsOpts...)
	} else {
		js, err = jetstream.New(nc, jsOpts...)
	}
	if err != nil {
		nc.Close()
		return nil, fmt.Errorf("set up JetStream: %w", err)
	}
	c.mu.Lock()
	c.closed = closed
	c.mu.Unlock()
	c.set(nc, js, nil)
	c.log.Info("connected to NATS", "server", nc.ConnectedUrlRedacted(), "version", nc.ConnectedServerVersion())
	return closed, nil
}

func (c *Conn) natsOptions(closed chan struct{}) ([]nats.Option, error) {
	o := c.options
	opts := []nats.Option{
		nats.Name(o.Name),
		nats.MaxReconnects(-1),
		nats.IgnoreAuthErrorAbort(),
		nats.ReconnectBufSize(-1), // nothing may be sent later behind our back: re-sending is ours
		nats.ReconnectWait(250 * time.Millisecond),
		nats.ReconnectJitter(250*time.Millisecond, 500*time.Millisecond),
		nats.Timeout(5 * time.Second),
		nats.PingInterval(10 * time.Second),
		nats.MaxPingsOutstanding(2),
		nats.ClosedHandler(func(*nats.Conn) { close(closed) }),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			c.note(fmt.Errorf("disconnected from NATS: %w", orEOF(err)))
			if err != nil {
				c.log.Warn("disconnected from NATS, reconnecting", "error", err)
			}
		}),
		nats.ReconnectErrHandler(func(_ *nats.Conn, err error) { c.note(explainConnect(err)) }),
		nats.ReconnectHandler(func(nc *nats.Conn) {
			c.note(nil)
			c.log.Info("reconnected to NATS", "server", nc.ConnectedUrlRedacted())
		}),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { c.asyncError(err) }),
	}
	if o.Creds != "" {
		opts = append(opts, nats.UserCredentials(o.Creds))
	}
	if o.NKey != "" {
		nkey, err := nkeyOption(o.NKey)
		if err != nil {
			return nil, fmt.Errorf("read NATS_NKEY: %w", err)
		}
		opts = append(opts, nkey)
	}
	if o.User != "" {
		opts = append(opts, nats.UserInfo(o.User, o.Password))
	}
	if o.Token != "" {
		opts = append(opts, nats.Token(o.Token))
	}
	if o.CA != "" {
		opts = append(opts, nats.RootCAs(o.CA))
	}
	if o.Cert != "" {
		opts = append(opts, nats.ClientCert(o.Cert, o.Key))
	}
	return opts, nil
}

// nkeyOption takes a seed, or the path of a file that holds one.
func nkeyOption(seedOrFile string) (nats.Option, error) {
	pair, err := nkeys.FromSeed([]byte(seedOrFile))
	if err != nil {
		return nats.NkeyOptionFromSeed(seedOrFile)
	}
	public, err := pair.PublicKey()
	if err != nil {
		return nil, err
	}
	return nats.Nkey(public, pair.Sign), nil
}

func orEOF(err error) error {
	if err == nil {
		return errors.New("connection ended")
	}
	return err
}

// asyncError takes note of refusals to publish: the server drops such a message without an answer, so that the refusal
// is all that explains the missing acknowledgement.
func (c *Conn) asyncError(err error) {
	subject, denied := deniedSubject(err)
	if !denied && c.saidBefore(err) {
		return
	}
	if !denied {
		c.log.Warn("NATS reports an error", "error", err)
		return
	}
	c.mu.Lock()
	if len(c.denied) > 1024 {
		clear(c.denied)
	}
	c.denied[subject] = time.Now()
	h := c.handler
	c.mu.Unlock()
	if h != nil {
		h.denied(subject)
	}
}

// saidBefore reports whether an error is a denied subscription that was logged already: one is made anew, and denied
// anew, on each connection.
func (c *Conn) saidBefore(err error) bool {
	if !errors.Is(err, nats.ErrPermissionViolation) {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	said := c.said[err.Error()]
	if len(c.said) < 1024 {
		c.said[err.Error()] = true
	}
	return said
}

// deniedSubject returns the subject that an error from the server refuses us to publish on; false for any other error.
func deniedSubject(err error) (string, bool) {
	if !errors.Is(err, nats.ErrPermissionViolation) {
		return "", false
	}
	_, rest, ok := strings.Cut(err.Error(), "Publish to ")
	if !ok {
		return "", false
	}
	quoted, err := strconv.QuotedPrefix(rest)
	if err != nil {
		return "", false
	}
	subject, err := strconv.Unquote(quoted)
	return subject, err == nil
}

// deniedSince reports whether the server refused us to publish on the subject since the time.
func (c *Conn) deniedSince(subject string, since time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	at, ok := c.denied[subject]
	return ok && !at.Before(since)
}

// set installs a connection or its absence, and tells who waits.
func (c *Conn) set(nc *nats.Conn, js jetstream.JetStream, err error) {
	c.mu.Lock()
	c.nc, c.js = nc, js
	c.mu.Unlock()
	c.note(err)
}

// note records why there is no connection, nil for a connection.
func (c *Conn) note(err error) {
	c.mu.Lock()
	c.lastErr = err
	close(c.changing)
	c.changing = make(chan struct{})
	h := c.handler
	c.mu.Unlock()
	if err == nil && h != nil {
		h.wake()
	}
}

func (c *Conn) current() handler {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.handler
}

// attach makes h the receiver of outcomes; nil detaches.
func (c *Conn) attach(h handler) {
	c.mu.Lock()
	c.handler = h
	c.mu.Unlock()
}

// JetStream returns the current connection's JetStream, or an error that wraps ErrNotConnected and says why.
func (c *Conn) JetStream() (jetstream.JetStream, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.js == nil || c.lastErr != nil {
		return nil, errors.Join(ErrNotConnected, c.lastErr)
	}
	return c.js, nil
}

var publishOptions = []jetstream.PublishOpt{jetstream.WithRetryAttempts(0)} // retrying is the shards'

// publish hands a message to the client, which does not wait for its acknowledgement.
func (c *Conn) publish(m *nats.Msg) error {
	js, err := c.JetStream()
	if err != nil {
		return err
	}
	_, err = js.PublishMsgAsync(m, publishOptions...)
	return err
}

// publishMember hands a message of an atomic batch to the client, which asks for no acknowledgement.
func (c *Conn) publishMember(m *nats.Msg) error {
	c.mu.Lock()
	nc, err := c.nc, c.lastErr
	c.mu.Unlock()
	if nc == nil || err != nil {
		return errors.Join(ErrNotConnected, err)
	}
	return nc.PublishMsg(m)
}

// MaxPayload returns the largest message that the connected server takes, in bytes, header block included; zero while
// there is no connection.
func (c *Conn) MaxPayload() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.nc == nil {
		return 0
	}
	return c.nc.MaxPayload()
}

// Err returns nil while there is a connection, else why there is none.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lastErr
}

// WaitConnected blocks until there is a connection or the context ends.
func (c *Conn) WaitConnected(ctx context.Context) error {
	for {
		c.mu.Lock()
		err, changing := c.lastErr, c.changing
		c.mu.Unlock()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changing:
		}
	}
}

// apiPrefix returns what JetStream API subjects begin with.
func (c *Conn) apiPrefix() string {
	if c.options.Domain != "" {
		return "$JS." + c.options.Domain + ".API."
	}
	return jetstream.DefaultAPIPrefix
}
