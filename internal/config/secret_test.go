package config

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

// TestSecretsAreMasked proves for each secret that no print of the configuration, of a struct around it, or of its
// parts shows it.
func TestSecretsAreMasked(t *testing.T) {
	const secret = "hunter2-hunter2-hunter2"
	for _, tt := range []struct {
		name    string
		environ []string
		shows   string // what the settings show in place of the secret
	}{
		{"NATS_PASSWORD", []string{"NATS_USER=u", "NATS_PASSWORD=" + secret}, masked},
		{"NATS_TOKEN", []string{"NATS_TOKEN=" + secret}, masked},
		{"NATS_TOKEN", []string{"NATS_USER=" + secret}, masked},
		{"NATS_NKEY", []string{"NATS_NKEY=" + secret}, masked},
		{"BRIDGE_SECRETS_KEY", []string{"BRIDGE_SECRETS_KEY=" + secret}, masked},
		{"NATS_URL", []string{"NATS_URL=nats://a,nats://u:" + secret + "@b:1"}, "nats://a,nats://***@b:1"},
		{"NATS_URL", []string{"NATS_URL=" + secret + "@b"}, "nats://***@b"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := mustLoad(t, tt.environ...)
			for where, printed := range prints(t, c) {
				if leaks(printed, secret) {
					t.Errorf("%s shows the secret: %s", where, printed)
				}
			}
			found := false
			for _, s := range c.Redacted() {
				if s.Name == tt.name {
					found = true
					if s.Value != tt.shows || s.Default {
						t.Errorf("Redacted has %+v, want the value %q", s, tt.shows)
					}
				}
			}
			if !found {
				t.Errorf("Redacted does not have %s", tt.name)
			}
		})
	}
}

// prints returns the configuration in every form that a program is likely to print.
func prints(t *testing.T, c *Config) map[string]string {
	t.Helper()
	type hidden struct {
		config  Config
		pointer *Config
	}
	all := map[string]string{"String": c.String()}
	values := map[string]any{
		"pointer": c, "value": *c, "unexported fields": hidden{*c, c}, "slice": []Config{*c},
		"password": c.NATSPassword, "token": c.NATSToken, "nkey": &c.NATSNKey, "key": []Secret{c.SecretsKey},
		"urls": c.NATSURL, "redacted": c.Redacted(),
	}
	for _, url := range c.NATSURL {
		values["url "+url.String()] = url
	}
	for name, value := range values {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%t"} {
			all[name+" "+verb] = fmt.Sprintf(verb, value)
		}
		text, err := json.Marshal(value)
		if err != nil {
			t.Fatalf("marshal %s: %v", name, err)
		}
		all[name+" JSON"] = string(text)
		var buf bytes.Buffer
		slog.New(slog.NewJSONHandler(&buf, nil)).Info("start", "config", value)
		slog.New(slog.NewTextHandler(&buf, nil)).Info("start", "config", value)
		all[name+" slog"] = buf.String()
	}
	return all
}

// leaks tells whether text holds the secret, as it is or in an encoding that fmt and encoding/json use.
func leaks(text, secret string) bool {
	for _, form := range []string{
		secret,
		hex.EncodeToString([]byte(secret)),
		base64.StdEncoding.EncodeToString([]byte(secret)),
		strings.Trim(fmt.Sprint([]byte(secret)), "[]"),
	} {
		if strings.Contains(strings.ToLower(text), strings.ToLower(form)) {
			return true
		}
	}
	return false
}

// TestLeaksFindsSecrets is the control of TestSecretsAreMasked: an unmasked struct must be found.
func TestLeaksFindsSecrets(t *testing.T) {
	const secret = "hunter2"
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d"} {
		text := fmt.Sprintf(verb, struct{ secret string }{secret})
		if !leaks(text, secret) {
			t.Errorf("secret not found in %s", text)
		}
	}
	if text := fmt.Sprint([]byte(secret)); !leaks(text, secret) {
		t.Errorf("secret not found in %s", text)
	}
}

func TestSecretsAreMaskedInFaults(t *testing.T) {
	const secret = "hunter2"
	for _, environ := range [][]string{
		{"BRIDGE_SECRETS_KEY=" + secret},
		{"NATS_PASSWORD=" + secret},
		{"NATS_CREDS=/c", "NATS_TOKEN=" + secret},
		{"NATS_CREDS=/c", "NATS_NKEY=" + secret},
		{"NATS_CREDS=/c", "NATS_USER=" + secret},
		{"NATS_CREDS=/c", "NATS_USER=u", "NATS_PASSWORD=" + secret},
		{"NATS_TOKEN=t", "NATS_URL=nats://u:" + secret + "@a"},
		{"NATS_URL=nats://u:" + secret + "@a:b"},
		{"NATS_URL=nats://" + secret + "@a/b"},
		{"NATS_URL=nats://u:a@" + secret + "@b:c"},
		{"NATS_URL=nats://u:" + secret + ",w@a"},
		{"NATS_URL=nats://u:w," + secret + "@a"},
		{"NATS_URL=nats://u:w/" + secret + "@a"},
		{"NATS_URL=nats://u:1/" + secret + "@a"},
		{"NATS_URL=nats://u:1?" + secret + "@a"},
		{"NATS_URL=nats://u:1#" + secret + "@a"},
		{"NATS_URL=nats://u:%zz" + secret + "@a"},
		{"NATS_URL=nats://u:" + secret},
		{"NATS_URL=nats://u:1/" + secret},
		{"NATS_URL=u:" + secret + ",nats://a"},
		{"NATS_URL=nats://a,nats://u:" + secret + "@b,ws://c"},
		{"NATS_URL=http://u:" + secret + "@a"},
		{"NATS_URL=u:" + secret + "@a:b"},
	} {
		faults := faultsOf(t, environ...)
		if text := fmt.Sprintf("%v %+v %#v %s", faults, faults, faults, faults.Error()); leaks(text, secret) {
			t.Errorf("faults of %q show the secret: %s", environ, text)
		}
	}
}

func TestSecret(t *testing.T) {
	s := NewSecret("a")
	if !s.IsSet() || s.Reveal() != "a" || s.String() != masked || !s.Equal(NewSecret("a")) || s.Equal(Secret{}) {
		t.Errorf("secret %q: set %t, revealed %q", s, s.IsSet(), s.Reveal())
	}
	var none Secret
	if none.IsSet() || none.Reveal() != "" || none.String() != "" || !none.Equal(NewSecret("")) {
		t.Errorf("zero secret %q: set %t, revealed %q", none, none.IsSet(), none.Reveal())
	}
}

// TestConfigJSON shows the form, which the status page's readers depend on.
func TestConfigJSON(t *testing.T) {
	text, err := json.Marshal(mustLoad(t, "NATS_TOKEN=t", "BRIDGE_SHUTDOWN_GRACE=0"))
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]string
	if err = json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"NATS_TOKEN": masked, "BRIDGE_SHUTDOWN_GRACE": "0", "BRIDGE_BUFFER_BYTES": "64Mi",
		"NATS_URL": "nats://127.0.0.1:4222", "BRIDGE_STREAM_MAX_BYTES": "-1", "BRIDGE_KUBE_QPS": "50",
	} {
		if got[name] != want {
			t.Errorf("%s = %q, want %q", name, got[name], want)
		}
	}
	if len(got) != len(fieldsOf(new(Config))) {
		t.Errorf("%d members, want one for each variable", len(got))
	}
}
