package harness

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// cleanupContext returns a context for a test's cleanups, which run after t.Context is done.
func cleanupContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	t.Cleanup(cancel)
	return ctx
}

func createStream(t *testing.T, js jetstream.JetStream, replicas int) jetstream.Stream {
	t.Helper()
	stream, err := js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: "S", Subjects: []string{"s.>"}, Replicas: replicas,
	})
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

// count returns an error unless the stream has n messages.
func count(ctx context.Context, js jetstream.JetStream, n uint64) error {
	stream, err := js.Stream(ctx, "S")
	if err != nil {
		return err
	}
	if got := stream.CachedInfo().State.Msgs; got != n {
		return errors.New("the stream has another number of messages")
	}
	return nil
}

func TestNATSKeepsItsStreamsOverARestartAndAMove(t *testing.T) {
	n := StartNATS(t)
	js := n.JetStream(t)
	createStream(t, js, 1)
	if _, err := js.Publish(t.Context(), "s.1", []byte("x")); err != nil {
		t.Fatal(err)
	}
	n.Stop()
	if _, err := nats.Connect(n.URL()); err == nil {
		t.Fatal("the server still answers")
	}
	if err := n.Start(); err != nil {
		t.Fatal(err)
	}
	Eventually(t, Patience, func() error { return count(t.Context(), js, 1) })

	n.Stop()
	port, err := FreePort()
	if err != nil {
		t.Fatal(err)
	}
	n.Change(func(o *server.Options) { o.Port = port })
	if err := n.Start(); err != nil {
		t.Fatal(err)
	}
	if err := count(t.Context(), n.JetStream(t), 1); err != nil {
		t.Errorf("at another address: %v", err)
	}
}

func TestNATSUsersAndReload(t *testing.T) {
	limited := &server.User{Username: "limited", Password: "secret", Permissions: &server.Permissions{
		Publish: &server.SubjectPermission{Deny: []string{"s.>"}},
	}}
	n := StartNATS(t, Users(limited), func(o *server.Options) { o.MaxPayload = 2048 })
	createStream(t, n.JetStream(t), 1)
	if _, err := nats.Connect(n.URL()); !errors.Is(err, nats.ErrAuthorization) {
		t.Errorf("a connection without a user: %v", err)
	}
	conn, err := nats.Connect(n.URL(), nats.UserInfo("limited", "secret"), nats.MaxReconnects(-1),
		nats.ReconnectWait(50*time.Millisecond), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if conn.MaxPayload() != 2048 {
		t.Errorf("max_payload is %d", conn.MaxPayload())
	}
	publish := func() error {
		_, err := conn.Request("s.1", nil, time.Second)
		return err
	}
	if err := publish(); err == nil {
		t.Error("published without permission")
	}
	if err := n.Reload(Users(&server.User{Username: "limited", Password: "secret"})); err != nil {
		t.Fatal(err)
	}
	Eventually(t, Patience, publish)
}

func TestNATSWithoutJetStream(t *testing.T) {
	n := StartNATS(t, WithoutJetStream)
	if _, err := n.JetStream(t).AccountInfo(t.Context()); !errors.Is(err, jetstream.ErrJetStreamNotEnabled) {
		t.Errorf("got %v", err)
	}
}

func TestNATSClusterStepsDown(t *testing.T) {
	c := StartNATSCluster(t, 3)
	js := c.JetStream(t)
	stream := createStream(t, js, 3)
	leader := func() string {
		info, err := stream.Info(t.Context())
		if err != nil || info.Cluster == nil {
			return ""
		}
		return info.Cluster.Leader
	}
	before := leader()
	Eventually(t, Patience, func() error { return c.StepDown("S") })
	Eventually(t, Patience, func() error {
		if now := leader(); now == "" || now == before {
			return errors.New("the leader is the same")
		}
		return nil
	})
	Eventually(t, Patience, func() error {
		_, err := js.Publish(t.Context(), "s.1", nil)
		return err
	})
}

func TestNATSProxyDoesWhatTheScriptSays(t *testing.T) {
	n := StartNATS(t)
	direct := n.JetStream(t)
	createStream(t, direct, 1)
	proxy := StartNATSProxy(t, n)
	conn := connect(t, proxy.URL())
	js := jetStream(t, conn)
	publish := func(body string) error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := js.PublishMsg(ctx, &nats.Msg{
			Subject: "s.1", Data: []byte(body), Header: nats.Header{"x-test": {"1"}},
		}, jetstream.WithRetryAttempts(0))
		return err
	}
	for _, c := range []struct {
		action PublishAction
		stored uint64
		fails  bool
	}{
		{Pass, 1, false}, {Drop, 1, true}, {DropAck, 2, true}, {Refuse, 2, true}, {Pass, 3, false}, {Cut, 4, true}, {Pass, 5, false},
	} {
		var seen []Published
		proxy.Script(func(m Published) PublishAction {
			seen = append(seen, m)
			return c.action
		})
		Eventually(t, Patience, func() error {
			if !conn.IsConnected() {
				return errors.New("not connected")
			}
			return nil
		})
		err := publish("body")
		if (err != nil) != c.fails {
			t.Errorf("action %d: %v", c.action, err)
		}
		if c.action == Refuse {
			var refused *jetstream.APIError
			if !errors.As(err, &refused) || refused.Code != 503 {
				t.Errorf("refused with %v", err)
			}
		}
		Eventually(t, Patience, func() error { return count(t.Context(), direct, c.stored) })
		proxy.Script(nil)
		if len(seen) != 1 || seen[0].Subject != "s.1" || string(seen[0].Body) != "body" || !strings.Contains(seen[0].Header, "x-test: 1") {
			t.Errorf("action %d: the script saw %+v", c.action, seen)
		}
	}
}
