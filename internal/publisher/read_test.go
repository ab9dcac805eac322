package publisher

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/deltabridge/deltabridge/internal/change"
	"github.com/deltabridge/deltabridge/internal/message"
)

func TestBodyOfStoredMessages(t *testing.T) {
	for _, structured := range []bool{false, true} {
		e, err := message.NewEncoder(message.Options{
			Scheme: testScheme, Stream: testStream, Structured: structured, Secrets: message.SecretsPlain, Epoch: 1,
		})
		if err != nil {
			t.Fatal(err)
		}
		c := pod(change.OpAdded, "web", "a", 5)
		for level := message.LevelObject; level <= message.LevelNone; level++ {
			m, err := e.Reduce(c, 0, level)
			if err != nil {
				t.Fatal(err)
			}
			r := &record{subject: m.Subject, header: nats.Header(m.Header), body: m.Body}
			name := fmt.Sprintf("structured %v, level %s", structured, level)
			body := string(bodyOf(r))
			switch level {
			case message.LevelNone:
				if body != "" || levelOf(r) != message.LevelObject {
					t.Errorf("%s: body %q, level %s", name, body, levelOf(r))
				}
			default:
				if !strings.HasPrefix(body, "{") || !strings.Contains(body, `"uid":"a"`) || levelOf(r) != level {
					t.Errorf("%s: body %q, level %s", name, body, levelOf(r))
				}
			}
			if level == message.LevelObject && body != string(c.Raw) {
				t.Errorf("%s: body %q, want %q", name, body, c.Raw)
			}
		}
	}
	broken := &record{header: nats.Header{message.HeaderContentType: {message.ContentEnvelope}}, body: []byte("{")}
	if body := bodyOf(broken); body != nil {
		t.Errorf("an envelope that is cut: %q", body)
	}
}

func TestDeniedSubject(t *testing.T) {
	violation := func(text string) error { return fmt.Errorf("%w: %s", nats.ErrPermissionViolation, text) }
	for _, c := range []struct {
		err  error
		want string
		ok   bool
	}{
		{violation(`Permissions Violation for Publish to "kube.main.core.pods.default.web"`), "kube.main.core.pods.default.web", true},
		{violation(`Permissions Violation for Publish to "kube.a\\b.\"x\"" more`), `kube.a\b."x"`, true},
		{violation(`Permissions Violation for Publish with Reply of "x"`), "", false},
		{violation(`Permissions Violation for Subscription to "_INBOX.x"`), "", false},
		{violation(`Permissions Violation for Publish to kube`), "", false},
		{errors.New(`Publish to "kube"`), "", false},
		{nats.ErrAuthorization, "", false},
	} {
		if got, ok := deniedSubject(c.err); got != c.want || ok != c.ok {
			t.Errorf("%v: got %q, %v", c.err, got, ok)
		}
	}
}

func TestExplainConnect(t *testing.T) {
	for _, c := range []struct {
		err  error
		want string
	}{
		{nats.ErrAuthorization, "NATS_CREDS"},
		{nats.ErrAuthExpired, "NATS_CREDS"},
		{nats.ErrNoServers, "no NATS server answers; check NATS_URL"},
		{os.ErrNotExist, "a file that the NATS connection needs is missing"},
		{errors.New("anything"), "check NATS_URL"},
	} {
		if err := explainConnect(c.err); !strings.Contains(err.Error(), c.want) || !errors.Is(err, c.err) {
			t.Errorf("%v: %v", c.err, err)
		}
	}
}
