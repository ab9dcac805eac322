package harness

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// PublishAction says what [NATSProxy] does with a message that a client publishes.
type PublishAction int

const (
	// Pass hands the message on.
	Pass PublishAction = iota
	// Drop loses the message on its way to the server.
	Drop
	// DropAck hands the message on and loses the server's answer.
	DropAck
	// Refuse loses the message and answers in the server's place with [NATSProxy.Refusal].
	Refuse
	// Cut hands the message on and cuts the client's connection before the server's answer.
	Cut
)

// Refusal is what a publish is answered with by [Refuse]: an error that the broker gives when it cannot serve for a
// moment.
const Refusal = `{"error":{"code":503,"err_code":10008,"description":"JetStream system temporarily unavailable"}}`

// Published is a message that a client publishes, as it passes the proxy.
type Published struct {
	Subject string
	Header  string // as it is sent: a status line and lines of "name: value"
	Body    []byte
}

// NATSProxy passes a client's bytes to a NATS server and back, and reads them: a script decides what becomes of every
// message that is published to a subject of the streams.
type NATSProxy struct {
	target   string
	listener net.Listener
	done     sync.WaitGroup

	mu     sync.Mutex
	script func(Published) PublishAction
	links  map[*natsLink]struct{}
	closed bool
}

// StartNATSProxy starts a proxy in front of a server without users.
func StartNATSProxy(t testing.TB, n *NATS) *NATSProxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("start a proxy in front of NATS: %v", err)
	}
	p := &NATSProxy{
		target:   strings.TrimPrefix(n.URL(), "nats://"),
		listener: listener,
		links:    map[*natsLink]struct{}{},
	}
	p.done.Go(p.accept)
	t.Cleanup(p.close)
	return p
}

// URL returns the address to give to the client.
func (p *NATSProxy) URL() string { return "nats://" + p.listener.Addr().String() }

// Script sets what decides about each published message; nil passes all. It is called for messages to subjects that do
// not begin with "$" or "_INBOX", one at a time, in the order in which a connection sends them. While it blocks, nothing
// more reaches the server.
func (p *NATSProxy) Script(script func(Published) PublishAction) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.script = script
}

func (p *NATSProxy) decide(m Published) PublishAction {
	if strings.HasPrefix(m.Subject, "$") || strings.HasPrefix(m.Subject, "_INBOX") {
		return Pass
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.script == nil {
		return Pass
	}
	return p.script(m)
}

func (p *NATSProxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		remote, err := net.Dial("tcp", p.target)
		if err != nil {
			client.Close()
			continue
		}
		link := &natsLink{proxy: p, client: client, server: remote, lost: map[string]bool{}, inboxes: map[string]string{}}
		p.mu.Lock()
		if p.closed {
			link.close()
		}
		p.links[link] = struct{}{}
		p.mu.Unlock()
		p.done.Go(func() { link.copy(link.fromClient) })
		p.done.Go(func() { link.copy(link.fromServer) })
	}
}

func (p *NATSProxy) close() {
	p.listener.Close()
	p.mu.Lock()
	p.closed = true
	for link := range p.links {
		link.close()
	}
	p.mu.Unlock()
	p.done.Wait()
}

// natsLink is one client's connection.
type natsLink struct {
	proxy          *NATSProxy
	client, server net.Conn

	mu      sync.Mutex
	lost    map[string]bool   // reply subjects whose message is lost on its way back
	inboxes map[string]string // the client's subscriptions to inboxes, by subject; the value is the subscription's id

	writing sync.Mutex // of what goes to the client
}

func (l *natsLink) close() {
	l.client.Close()
	l.server.Close()
}

// copy runs one direction; the end of one is the end of both.
func (l *natsLink) copy(direction func() error) {
	// How a connection ends is no news to a test that cuts it.
	_ = direction()
	l.close()
	l.proxy.mu.Lock()
	delete(l.proxy.links, l)
	l.proxy.mu.Unlock()
}

// frame is one command of the protocol, with the payload of those that have one.
type frame struct {
	line    string // without the line's end
	payload []byte // with the two bytes that end it; nil for a command without
}

func (f frame) bytes() []byte { return append([]byte(f.line+"\r\n"), f.payload...) }

// readFrame reads a command. The last word of those named in sized is the number of their payload's bytes.
func readFrame(r *bufio.Reader, sized ...string) (frame, error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return frame{}, err
	}
	f := frame{line: strings.TrimRight(line, "\r\n")}
	words := strings.Fields(f.line)
	for _, verb := range sized {
		if len(words) == 0 || !strings.EqualFold(words[0], verb) {
			continue
		}
		n, err := strconv.Atoi(words[len(words)-1])
		if err != nil {
			return frame{}, fmt.Errorf("size of %q: %w", f.line, err)
		}
		f.payload = make([]byte, n+2)
		if _, err := io.ReadFull(r, f.payload); err != nil {
			return frame{}, err
		}
	}
	return f, nil
}

func (l *natsLink) fromClient() error {
	r := bufio.NewReaderSize(l.client, 64<<10)
	for {
		f, err := readFrame(r, "PUB", "HPUB")
		if err != nil {
			return err
		}
		words := strings.Fields(f.line)
		if len(words) >= 3 && strings.EqualFold(words[0], "SUB") {
			l.mu.Lock()
			l.inboxes[words[1]] = words[len(words)-1]
			l.mu.Unlock()
		}
		action, reply := Pass, ""
		if f.payload != nil {
			var m Published
			m, reply = parsePublish(words, f.payload)
			action = l.proxy.decide(m)
		}
		switch action {
		case Drop:
			continue
		case Refuse:
			if err := l.answer(reply, Refusal); err != nil {
				return err
			}
			continue
		case DropAck, Cut:
			l.mu.Lock()
			l.lost[reply] = true
			l.mu.Unlock()
		}
		if _, err := l.server.Write(f.bytes()); err != nil {
			return err
		}
		if action == Cut {
			return errors.New("cut by the script")
		}
	}
}

// parsePublish takes apart "PUB subject [reply] size" or "HPUB subject [reply] header-size size".
func parsePublish(words []string, payload []byte) (m Published, reply string) {
	m.Subject = words[1]
	sizes := 1
	if strings.EqualFold(words[0], "HPUB") {
		sizes = 2
	}
	if len(words) == 3+sizes {
		reply = words[2]
	}
	body := payload[:len(payload)-2]
	if sizes == 2 {
		if n, err := strconv.Atoi(words[len(words)-2]); err == nil && n <= len(body) {
			m.Header, body = string(body[:n]), body[n:]
		}
	}
	m.Body = bytes.Clone(body)
	return m, reply
}

// answer sends the client a message as if the server had.
func (l *natsLink) answer(reply, body string) error {
	l.mu.Lock()
	id := ""
	for subject, subscription := range l.inboxes {
		if subject == reply || strings.HasSuffix(subject, "*") && strings.HasPrefix(reply, strings.TrimSuffix(subject, "*")) {
			id = subscription
		}
	}
	l.mu.Unlock()
	if id == "" {
		return fmt.Errorf("the client has no subscription for the reply %q", reply)
	}
	f := frame{line: fmt.Sprintf("MSG %s %s %d", reply, id, len(body)), payload: []byte(body + "\r\n")}
	return l.toClient(f)
}

func (l *natsLink) fromServer() error {
	r := bufio.NewReaderSize(l.server, 64<<10)
	for {
		f, err := readFrame(r, "MSG", "HMSG")
		if err != nil {
			return err
		}
		if words := strings.Fields(f.line); f.payload != nil {
			l.mu.Lock()
			lost := l.lost[words[1]]
			delete(l.lost, words[1])
			l.mu.Unlock()
			if lost {
				continue
			}
		}
		if err := l.toClient(f); err != nil {
			return err
		}
	}
}

func (l *natsLink) toClient(f frame) error {
	l.writing.Lock()
	defer l.writing.Unlock()
	_, err := l.client.Write(f.bytes())
	return err
}
