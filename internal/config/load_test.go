package config

import (
	"errors"
	"log/slog"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/kelseyhightower/envconfig"
)

// mustLoad returns the configuration of an environment without faults and without warnings.
func mustLoad(t *testing.T, environ ...string) *Config {
	t.Helper()
	c, warnings, err := Load(environ)
	if err != nil {
		t.Fatalf("Load(%q) = %v, want no error", environ, err)
	}
	if len(warnings) > 0 {
		t.Fatalf("Load(%q) warns %q, want no warnings", environ, warnings)
	}
	return c
}

// faultsOf returns the faults of an environment, which must have some.
func faultsOf(t *testing.T, environ ...string) Faults {
	t.Helper()
	c, _, err := Load(environ)
	var faults Faults
	if !errors.As(err, &faults) || len(faults) == 0 {
		t.Fatalf("Load(%q) = error %v, want Faults", environ, err)
	}
	if c != nil {
		t.Errorf("Load(%q) returns a Config together with faults", environ)
	}
	return faults
}

func TestDefaults(t *testing.T) {
	want := Config{
		KubeQPS:   50,
		KubeBurst: 100,
		Cluster:   "main",
		Resources: ResourcePatterns{
			{Text: "pods"}, {Text: "services"}, {Text: "configmaps"}, {Text: "namespaces"}, {Text: "nodes"},
			{Text: "deployments.apps"}, {Text: "statefulsets.apps"}, {Text: "daemonsets.apps"},
			{Text: "replicasets.apps"}, {Text: "jobs.batch"}, {Text: "cronjobs.batch"},
			{Text: "ingresses.networking.k8s.io"},
		},
		Payload: PayloadObject,
		Format:  FormatBinary,
		Strip: StripPaths{
			{Text: "metadata.managedFields", Steps: []string{"metadata", "managedFields"}},
			{
				Text:  "metadata.annotations[kubectl.kubernetes.io/last-applied-configuration]",
				Steps: []string{"metadata", "annotations", "kubectl.kubernetes.io/last-applied-configuration"},
			},
		},
		Secrets:               SecretDigest,
		BufferBytes:           64 << 20,
		WatermarkInterval:     10 * time.Second,
		WatchProgressDeadline: 3 * time.Minute,
		MaxPending:            2048,
		Oversize:              OversizeObjectStore,
		NATSURL:               ServerURLs{{full: NewSecret("nats://127.0.0.1:4222"), shown: "nats://127.0.0.1:4222"}},
		SubjectPrefix:         "kube",
		Stream:                "KUBE",
		StreamMode:            StreamCreate,
		StreamReplicas:        1,
		StreamStorage:         StorageFile,
		StreamHistory:         16,
		StreamMaxBytes:        -1,
		LeaseDuration:         15 * time.Second,
		ShutdownGrace:         20 * time.Second,
		HTTPAddr:              ":8080",
		Control:               true,
		LogLevel:              LogInfo,
		LogFormat:             LogJSON,
	}
	got := mustLoad(t, "HOME=/root", "PATH=/bin")
	if diff := cmp.Diff(want, *got, cmp.AllowUnexported(ServerURL{})); diff != "" {
		t.Errorf("defaults differ (-want +got):\n%s", diff)
	}
	for _, s := range got.Redacted() {
		if !s.Default {
			t.Errorf("Redacted says that %s=%q is not the default", s.Name, s.Value)
		}
	}
}

// fullEnvironment sets every variable to something other than its default.
var fullEnvironment = []string{
	"KUBECONFIG=/k/a:/k/b",
	"BRIDGE_KUBE_CONTEXT=admin@prod",
	"BRIDGE_KUBE_QPS=2.5",
	"BRIDGE_KUBE_BURST=7",
	"BRIDGE_CLUSTER=Prod-1",
	"BRIDGE_ACCEPT_CLUSTER_UID=c0ffee",
	"BRIDGE_RESOURCES=*,-secrets",
	"BRIDGE_NAMESPACES=default,team-a",
	"BRIDGE_EXCLUDE_NAMESPACES=kube-system",
	"BRIDGE_PAYLOAD=object",
	"BRIDGE_FORMAT=structured",
	"BRIDGE_STRIP=status",
	"BRIDGE_SECRETS=omit",
	"BRIDGE_SECRETS_KEY=0123456789abcdef",
	"BRIDGE_RESYNC_PERIOD=12h",
	"BRIDGE_BUFFER_BYTES=1Gi",
	"BRIDGE_MAX_PENDING=65536",
	"BRIDGE_WATERMARK_INTERVAL=100ms",
	"BRIDGE_WATCH_PROGRESS_DEADLINE=2m",
	"BRIDGE_OVERSIZE=metadata",
	"NATS_URL=tls://nats-1:4222,nats-2",
	"NATS_USER=bridge",
	"NATS_PASSWORD=hunter2",
	"NATS_CA=/tls/ca.crt",
	"NATS_CERT=/tls/tls.crt",
	"NATS_KEY=/tls/tls.key",
	"NATS_CONTEXT=prod",
	"BRIDGE_NATS_DOMAIN=hub",
	"BRIDGE_SUBJECT_PREFIX=k8s.events",
	"BRIDGE_STREAM=CLUSTER",
	"BRIDGE_STREAM_MODE=manage",
	"BRIDGE_STREAM_REPLICAS=5",
	"BRIDGE_STREAM_STORAGE=memory",
	"BRIDGE_STREAM_HISTORY=-1",
	"BRIDGE_STREAM_MAX_AGE=720h",
	"BRIDGE_STREAM_MAX_BYTES=10G",
	"BRIDGE_LEADER_ELECT=true",
	"BRIDGE_LEASE_NAMESPACE=infra",
	"BRIDGE_LEASE_NAME=bridge.prod",
	"BRIDGE_LEASE_DURATION=1m",
	"BRIDGE_SHUTDOWN_GRACE=1m30s",
	"BRIDGE_HTTP_ADDR=127.0.0.1:0",
	"BRIDGE_CONTROL=false",
	"BRIDGE_LOG_LEVEL=debug",
	"BRIDGE_LOG_FORMAT=text",
}

func TestEveryVariableIsRead(t *testing.T) {
	c := mustLoad(t, fullEnvironment...)
	for _, s := range c.Redacted() {
		switch s.Name {
		case "BRIDGE_PAYLOAD": // knows one value, its default
		case "NATS_CREDS", "NATS_NKEY", "NATS_TOKEN": // exclude NATS_USER
			if !s.Default {
				t.Errorf("%s=%q, want the default", s.Name, s.Value)
			}
		default:
			if s.Default {
				t.Errorf("%s=%q is the default, so the variable was not read", s.Name, s.Value)
			}
		}
	}
	if c.KubeQPS != 2.5 || c.BufferBytes != 1<<30 || c.StreamMaxBytes != 1e10 || c.ShutdownGrace != 90*time.Second {
		t.Errorf("numbers were misread: %v", c)
	}
	if got, want := c.NATSURL.Reveal(), []string{"tls://nats-1:4222", "nats://nats-2"}; !reflect.DeepEqual(got, want) {
		t.Errorf("NATS_URL = %q, want %q", got, want)
	}
	if c.LogLevel.Level() != slog.LevelDebug {
		t.Errorf("log level = %v, want debug", c.LogLevel.Level())
	}
}

// TestAgreesWithEnvconfig runs envconfig's own Process over the same struct and environment.
func TestAgreesWithEnvconfig(t *testing.T) {
	for _, tt := range []struct {
		name    string
		environ []string
	}{
		{"defaults", nil},
		{"everything", fullEnvironment},
		{"empty", []string{"BRIDGE_STRIP=", "BRIDGE_NAMESPACES=", "NATS_CREDS=", "NATS_PASSWORD="}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, f := range fieldsOf(new(Config)) {
				t.Setenv(f.name, "") // makes the test restore the variable
				if err := os.Unsetenv(f.name); err != nil {
					t.Fatal(err)
				}
			}
			for name, value := range parseEnviron(tt.environ) {
				t.Setenv(name, value)
			}
			var want Config
			if err := envconfig.Process("", &want); err != nil {
				t.Fatal(err)
			}
			got := mustLoad(t, tt.environ...)
			if diff := cmp.Diff(want, *got, cmp.AllowUnexported(ServerURL{})); diff != "" {
				t.Errorf("Load and envconfig.Process differ (-Process +Load):\n%s", diff)
			}
		})
	}
}

func TestValuesAreLiteral(t *testing.T) {
	const odd = `  a$HOME,${B} 'c' "d" \e %41 #f  `
	c := mustLoad(t, "HOME=/root", "B=x", "NATS_USER="+odd, "NATS_PASSWORD="+odd, "NATS_CA="+odd,
		"KUBECONFIG="+odd, "BRIDGE_KUBE_CONTEXT="+odd, "BRIDGE_SECRETS_KEY="+odd,
		`BRIDGE_STRIP=metadata.annotations[a, $b 'c' "d"],status`, "EMPTY", "=odd")
	for name, got := range map[string]string{
		"NATS_USER":           c.NATSUser,
		"NATS_PASSWORD":       c.NATSPassword.Reveal(),
		"NATS_CA":             string(c.NATSCA),
		"KUBECONFIG":          string(c.Kubeconfig),
		"BRIDGE_KUBE_CONTEXT": c.KubeContext,
		"BRIDGE_SECRETS_KEY":  c.SecretsKey.Reveal(),
	} {
		if got != odd {
			t.Errorf("%s = %q, want %q", name, got, odd)
		}
	}
	if got, want := c.Strip[0].Steps[2], `a, $b 'c' "d"`; got != want {
		t.Errorf("key of the strip path = %q, want %q", got, want)
	}
	token := mustLoad(t, "NATS_TOKEN="+odd, "NATS_PASSWORD=")
	if got := token.NATSToken.Reveal(); got != odd {
		t.Errorf("NATS_TOKEN = %q, want %q", got, odd)
	}
	nkey := mustLoad(t, "NATS_NKEY="+odd)
	if got := nkey.NATSNKey.Reveal(); got != odd {
		t.Errorf("NATS_NKEY = %q, want %q", got, odd)
	}
}

func TestLastEntryCounts(t *testing.T) {
	if c := mustLoad(t, "BRIDGE_CLUSTER=a", "BRIDGE_CLUSTER=b"); c.Cluster != "b" {
		t.Errorf("cluster = %q, want the last of two entries", c.Cluster)
	}
}

func TestAccepted(t *testing.T) {
	long := strings.Repeat("a", 63)
	for _, environ := range []string{
		"BRIDGE_CLUSTER=" + long,
		"BRIDGE_KUBE_QPS=0.1",
		"BRIDGE_KUBE_BURST=1",
		"BRIDGE_BUFFER_BYTES=1Mi",
		"BRIDGE_BUFFER_BYTES=1048576",
		"BRIDGE_MAX_PENDING=1",
		"BRIDGE_STREAM_HISTORY=1",
		"BRIDGE_STREAM_MAX_AGE=100ms",
		"BRIDGE_STREAM_MAX_BYTES=1",
		"BRIDGE_SHUTDOWN_GRACE=0",
		"BRIDGE_SUBJECT_PREFIX=" + strings.Repeat("a.", 63) + "aa",
		"BRIDGE_STREAM_MODE=require",
		"BRIDGE_SECRETS=plain",
		"BRIDGE_SECRETS_KEY=",
		"BRIDGE_NAMESPACES=",
		"BRIDGE_NAMESPACES= a , b,,a,",
		"BRIDGE_STRIP=",
		"BRIDGE_HTTP_ADDR=[::1]:80",
		"BRIDGE_HTTP_ADDR=localhost:65535",
		"BRIDGE_LOG_LEVEL=warn",
		"BRIDGE_LOG_LEVEL=error",
		"BRIDGE_NATS_DOMAIN=",
		"NATS_URL=127.0.0.1:4222, [::1]:4222,\nuser:p%2Cw@nats_1.example.,",
		"NATS_URL=ws://a,wss://b:443/",
		"NATS_URL=NATS://a",
		"NATS_CONTEXT=/etc/nats/context.json",
		"NATS_CERT=",
		"NATS_CREDS=/not/there",
		"BRIDGE_RESYNC_PERIOD=0s",
		"BRIDGE_RESYNC_PERIOD=1s",
		"BRIDGE_LEADER_ELECT=0",
		"BRIDGE_LEADER_ELECT=T",
		"BRIDGE_LEASE_NAMESPACE=",
		"BRIDGE_LEASE_NAMESPACE=" + long,
		"BRIDGE_LEASE_NAME=",
		"BRIDGE_LEASE_NAME=" + long + "." + long + "." + long + "." + long[:61],
		"BRIDGE_LEASE_DURATION=3000ms",
		"BRIDGE_LEASE_DURATION=1h",
		"BRIDGE_TOMBSTONE_TTL=168h0m",
		"BRIDGE_CONTROL=false",
		"BRIDGE_FILTER=",
	} {
		mustLoad(t, environ)
	}
	mustLoad(t, "BRIDGE_STREAM=a=b", "BRIDGE_OVERSIZE=metadata")
}

func TestLease(t *testing.T) {
	for environ, want := range map[string]string{
		"BRIDGE_CLUSTER=main":      "deltabridge-main",
		"BRIDGE_CLUSTER=Prod-EU1":  "deltabridge-prod-eu1",
		"BRIDGE_CLUSTER=a--":       "deltabridge-a",
		"BRIDGE_CLUSTER=-":         "deltabridge",
		"BRIDGE_LEASE_NAME=b.c":    "b.c",
		"BRIDGE_LEADER_ELECT=true": "deltabridge-main",
	} {
		c := mustLoad(t, environ)
		if got := c.Lease(); got != want || !objectName.MatchString(got) {
			t.Errorf("%s: the Lease is %q, want %q", environ, got, want)
		}
	}
}

func TestListsAreTrimmed(t *testing.T) {
	c := mustLoad(t, "BRIDGE_NAMESPACES= a ,\n b,,a,", "BRIDGE_RESOURCES=pods ,")
	if diff := cmp.Diff(Namespaces{"a", "b"}, c.Namespaces); diff != "" {
		t.Errorf("namespaces differ (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(ResourcePatterns{{Text: "pods"}}, c.Resources); diff != "" {
		t.Errorf("resources differ (-want +got):\n%s", diff)
	}
	if c = mustLoad(t, "BRIDGE_STRIP="); len(c.Strip) != 0 {
		t.Errorf("BRIDGE_STRIP set to nothing strips %v", c.Strip)
	}
}

func TestUserWithoutPasswordIsToken(t *testing.T) {
	c := mustLoad(t, "NATS_USER=s3cr3t")
	if c.NATSUser != "" || c.NATSToken.Reveal() != "s3cr3t" {
		t.Errorf("user %q and token %q, want the user as the token", c.NATSUser, c.NATSToken.Reveal())
	}
}

func TestContextNamesServers(t *testing.T) {
	if c := mustLoad(t, "NATS_CONTEXT=prod"); c.NATSURL != nil {
		t.Errorf("with NATS_CONTEXT the servers are %v, want those of the context", c.NATSURL)
	}
	if c := mustLoad(t, "NATS_CONTEXT=prod", "NATS_URL=nats://a"); len(c.NATSURL) != 1 {
		t.Errorf("NATS_URL was not preferred to NATS_CONTEXT: %v", c.NATSURL)
	}
	if c := mustLoad(t, "NATS_CONTEXT="); len(c.NATSURL) != 1 {
		t.Errorf("an empty NATS_CONTEXT removed the default of NATS_URL")
	}
}
