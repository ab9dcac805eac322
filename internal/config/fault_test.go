package config

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestFaults(t *testing.T) {
	long := strings.Repeat("a", 64)
	tests := []struct {
		environ string // entries separated by a line feed unless a value needs one
		problem string // part of the fault's problem
	}{
		{"BRIDGE_KUBE_QPS=fast", "not a number"},
		{"BRIDGE_KUBE_QPS=NaN", "not a number"},
		{"BRIDGE_KUBE_QPS=Inf", "not a number"},
		{"BRIDGE_KUBE_QPS=0", "out of range"},
		{"BRIDGE_KUBE_QPS=", "not a number"},
		{"BRIDGE_KUBE_BURST=0", "out of range"},
		{"BRIDGE_KUBE_BURST=1.5", "not a whole number"},
		{"BRIDGE_KUBE_BURST=99999999999999999999", "too large"},
		{"BRIDGE_CLUSTER=", "not a cluster's name"},
		{"BRIDGE_CLUSTER=a.b", "not a cluster's name"},
		{"BRIDGE_CLUSTER=$HOME", "not a cluster's name"},
		{"BRIDGE_CLUSTER=" + long, "not a cluster's name"},
		{"BRIDGE_RESOURCES=", "names no resource"},
		{"BRIDGE_RESOURCES= , ,", "without items"},
		{"BRIDGE_RESOURCES=pods,Pods", `"Pods" is no resource`},
		{"BRIDGE_RESOURCES=pods,-pods", `"pods" is both named and excluded`},
		{"BRIDGE_RESOURCES=-secrets,-*.apps", `begin it with *, as in "*,-secrets,-*.apps"`},
		{"BRIDGE_NAMESPACES=Default", `"Default" is no namespace`},
		{"BRIDGE_NAMESPACES=,", "without items"},
		{"BRIDGE_EXCLUDE_NAMESPACES=-a", `"-a" is no namespace`},
		{"BRIDGE_EXCLUDE_NAMESPACES=" + long, "is no namespace"},
		{"BRIDGE_NAMESPACES=a,b\nBRIDGE_EXCLUDE_NAMESPACES=b", `"b" is in BRIDGE_NAMESPACES, too`},
		{"BRIDGE_PAYLOAD=metadata", "is not supported by this version"},
		{"BRIDGE_PAYLOAD=patch", "is not supported by this version"},
		{"BRIDGE_PAYLOAD=none", "is not supported by this version"},
		{"BRIDGE_PAYLOAD=full", "not a value that it knows"},
		{"BRIDGE_FORMAT=json", "not a value that it knows"},
		{"BRIDGE_FORMAT=Binary", "not a value that it knows"},
		{"BRIDGE_STRIP=metadata", `"metadata" is needed`},
		{"BRIDGE_STRIP=a[b", `"a[b" is no path`},
		{"BRIDGE_SECRETS=", "not a value that it knows"},
		{"BRIDGE_SECRETS_KEY=0123456789abcde", "too short"},
		{"BRIDGE_BUFFER_BYTES=1023Ki", "too small"},
		{"BRIDGE_BUFFER_BYTES=64MB", "not a size"},
		{"BRIDGE_MAX_PENDING=0", "out of range"},
		{"BRIDGE_MAX_PENDING=65537", "out of range"},
		{"BRIDGE_MAX_PENDING= 5", "not a whole number"},
		{"BRIDGE_OVERSIZE=drop", "not a value that it knows"},
		{"NATS_URL=", "names no server"},
		{"NATS_URL=,", "without items"},
		{"NATS_URL=http://a", "server 1 of the list: a scheme other than"},
		{"NATS_URL=nats://a,nats://a:99999", "server 2 of the list: a port outside"},
		{"NATS_URL=nats://a:0", "a port outside"},
		{"NATS_URL=nats://a:b", "not a URL"},
		{"NATS_URL=nats://", "not a host name"},
		{"NATS_URL=nats://$HOST:4222", "not a host name"},
		{"NATS_URL=nats://a/b", "something after the port"},
		{"NATS_URL=nats://a?b", "something after the port"},
		{"NATS_URL=nats://a,ws://b", "server 2 of the list: mixes"},
		{"NATS_URL=nats://u:p@a\nNATS_CREDS=/c", "cannot be combined with a user in NATS_URL"},
		{"NATS_CREDS=/c\nNATS_NKEY=/n", "cannot be combined with NATS_CREDS"},
		{"NATS_NKEY=/n\nNATS_USER=u\nNATS_PASSWORD=p", "cannot be combined with NATS_NKEY"},
		{"NATS_USER=u\nNATS_PASSWORD=p\nNATS_TOKEN=t", "cannot be combined with NATS_USER"},
		{"NATS_USER=u\nNATS_TOKEN=t", "cannot be combined with NATS_USER"},
		{"NATS_PASSWORD=p", "set without NATS_USER"},
		{"NATS_CERT=/c", "set without NATS_KEY"},
		{"NATS_KEY=/k\nNATS_CERT=", "set without NATS_CERT"},
		{"NATS_CONTEXT=a/b", "neither a name nor an absolute path"},
		{"NATS_CONTEXT=..", "neither a name nor an absolute path"},
		{"BRIDGE_NATS_DOMAIN=a.b", "not a domain's name"},
		{"BRIDGE_SUBJECT_PREFIX=", "not subject tokens"},
		{"BRIDGE_SUBJECT_PREFIX=a..b", "not subject tokens"},
		{"BRIDGE_SUBJECT_PREFIX=a.*", "not subject tokens"},
		{"BRIDGE_SUBJECT_PREFIX=a.>", "not subject tokens"},
		{"BRIDGE_SUBJECT_PREFIX=a b", "not subject tokens"},
		{"BRIDGE_SUBJECT_PREFIX=$JS", "not subject tokens"},
		{"BRIDGE_SUBJECT_PREFIX=" + long + long + "a", "too long"},
		{"BRIDGE_STREAM=", "not a stream's name"},
		{"BRIDGE_STREAM=a.b", "not a stream's name"},
		{"BRIDGE_STREAM=a b", "not a stream's name"},
		{"BRIDGE_STREAM=a/b", "not a stream's name"},
		{`BRIDGE_STREAM=a\b`, "not a stream's name"},
		{"BRIDGE_STREAM=a*", "not a stream's name"},
		{"BRIDGE_STREAM=" + strings.Repeat("a", 241), "not a stream's name"},
		{"BRIDGE_STREAM=a:b", "an Object Store cannot be named after it"},
		{"BRIDGE_STREAM_MODE=update", "not a value that it knows"},
		{"BRIDGE_STREAM_REPLICAS=0", "out of range"},
		{"BRIDGE_STREAM_REPLICAS=6", "out of range"},
		{"BRIDGE_STREAM_STORAGE=disk", "not a value that it knows"},
		{"BRIDGE_STREAM_HISTORY=0", "out of range"},
		{"BRIDGE_STREAM_HISTORY=-2", "out of range"},
		{"BRIDGE_STREAM_HISTORY=99999999999999999999", "too large"},
		{"BRIDGE_STREAM_MAX_AGE=-1s", "out of range"},
		{"BRIDGE_STREAM_MAX_AGE=99ms", "out of range"},
		{"BRIDGE_STREAM_MAX_AGE=7d", "not a duration"},
		{"BRIDGE_STREAM_MAX_AGE=60", "not a duration"},
		{"BRIDGE_STREAM_MAX_BYTES=0", "out of range"},
		{"BRIDGE_STREAM_MAX_BYTES=-2", "out of range"},
		{"BRIDGE_SHUTDOWN_GRACE=-1s", "negative"},
		{"BRIDGE_SHUTDOWN_GRACE=", "not a duration"},
		{"BRIDGE_HTTP_ADDR=8080", "not a listen address"},
		{"BRIDGE_HTTP_ADDR=:http", "not a listen address"},
		{"BRIDGE_HTTP_ADDR=:65536", "not a listen address"},
		{"BRIDGE_HTTP_ADDR=a b:80", "not a listen address"},
		{"BRIDGE_LOG_LEVEL=INFO", "not a value that it knows"},
		{"BRIDGE_LOG_FORMAT=logfmt", "not a value that it knows"},
		{"BRIDGE_LABEL_SELECTOR=a=b", "this version does not have it yet"},
		{"BRIDGE_FIELD_SELECTOR=a=b", "this version does not have it yet"},
		{"BRIDGE_FILTER=op == 'added'", "this version does not have it yet"},
		{"BRIDGE_STATE_BUCKET=b", "this version does not have it yet"},
		{"BRIDGE_RESYNC_PERIOD=999ms", "out of range"},
		{"BRIDGE_RESYNC_PERIOD=-1h", "out of range"},
		{"BRIDGE_RESYNC_PERIOD=often", "not a duration"},
		{"BRIDGE_CONTROL=maybe", "neither true nor false"},
		{"BRIDGE_LEADER_ELECT=yes", "neither true nor false"},
		{"BRIDGE_LEADER_ELECT=", "neither true nor false"},
		{"BRIDGE_LEASE_NAMESPACE=a.b", "not a namespace's name"},
		{"BRIDGE_LEASE_NAMESPACE=" + long, "not a namespace's name"},
		{"BRIDGE_LEASE_NAME=Bridge", "not a name for a Lease"},
		{"BRIDGE_LEASE_NAME=a-", "not a name for a Lease"},
		{"BRIDGE_LEASE_NAME=a..b", "not a name for a Lease"},
		{"BRIDGE_LEASE_NAME=a/b", "not a name for a Lease"},
		{"BRIDGE_LEASE_NAME=" + long + long + long + long, "not a name for a Lease"},
		{"BRIDGE_LEASE_DURATION=2s", "out of range"},
		{"BRIDGE_LEASE_DURATION=-15s", "out of range"},
		{"BRIDGE_LEASE_DURATION=61m", "out of range"},
		{"BRIDGE_LEASE_DURATION=4500ms", "not whole seconds"},
		{"BRIDGE_LEASE_DURATION=15", "not a duration"},
		{"BRIDGE_TOMBSTONE_TTL=forever", "not a value that it knows"},
	}
	for _, tt := range tests {
		t.Run(tt.environ[:min(60, len(tt.environ))], func(t *testing.T) {
			environ := strings.Split(tt.environ, "\n")
			faults := faultsOf(t, environ...)
			if len(faults) != 1 {
				t.Fatalf("%d faults, want one:\n%v", len(faults), faults)
			}
			f := faults[0]
			if !strings.Contains(tt.environ, f.Variable+"=") {
				t.Errorf("fault names %s, which is not set", f.Variable)
			}
			if !strings.Contains(f.Problem, tt.problem) {
				t.Errorf("problem is %q, want %q in it", f.Problem, tt.problem)
			}
			if f.Accepted == "" {
				t.Errorf("fault does not say what is accepted: %v", f)
			}
		})
	}
}

func TestContentInPlaceOfPath(t *testing.T) {
	for _, name := range []string{"KUBECONFIG", "NATS_CREDS", "NATS_CA", "NATS_CERT", "NATS_KEY"} {
		for _, content := range []string{"-----BEGIN X----- hunter2", "token: hunter2\n"} {
			faults := faultsOf(t, name+"="+content)
			if len(faults) != 1 || faults[0].Variable != name || faults[0].Value != masked {
				t.Errorf("Load(%s=%q) = %v, want one fault that masks the value", name, content, faults)
			}
		}
	}
}

func TestAllFaultsAtOnce(t *testing.T) {
	faults := faultsOf(t,
		"BRIDGE_FILTER=true",
		"BRIDGE_LOG_LEVEL=loud",
		"BRIDGE_RESOURCES=pods,a_b,pods/status,c.d",
		"NATS_URL=nats://u:hunter2@a:b",
		"NATS_TOKEN=t",
		"NATS_NKEY=n",
		"BRIDGE_CLUSTER=a\nb",
		"BRIDGE_STREAM_REPLICAS=9",
		"BRIDGE_STREAM_HISTORY=many",
	)
	want := []string{
		`BRIDGE_CLUSTER="a\nb": not a cluster's name; accepted: 1 to 63 of the characters A-Z, a-z, 0-9 and -`,
		`BRIDGE_RESOURCES="pods,a_b,pods/status,c.d": "a_b" is no resource: "a_b" is not a name of a-z, 0-9 and -; accepted: a comma list of resource, resource.group, resource.version.group, *.group and * in lower case, at least one without a leading -`,
		`BRIDGE_RESOURCES="pods,a_b,pods/status,c.d": "pods/status" names a subresource, which cannot be watched; accepted: a comma list of resource, resource.group, resource.version.group, *.group and * in lower case, at least one without a leading -`,
		`NATS_URL="nats://***@a:***": server 1 of the list: not a URL; accepted: a comma list of [scheme://][user:password@]host[:port] with the scheme nats, tls, ws or wss, not mixing ws or wss with the others; in user and password write special characters as %XX`,
		`NATS_TOKEN="***": cannot be combined with NATS_NKEY, unset one of them; accepted: a token`,
		`BRIDGE_STREAM_REPLICAS="9": out of range; accepted: a whole number from 1 to 5`,
		`BRIDGE_STREAM_HISTORY="many": not a whole number; accepted: a whole number above 0, or -1 for all`,
		`BRIDGE_LOG_LEVEL="loud": not a value that it knows; accepted: debug, info, warn, error`,
		`BRIDGE_FILTER="true": this version does not have it yet; accepted: nothing, unset it`,
	}
	if diff := cmp.Diff(want, strings.Split(faults.Error(), "\n")); diff != "" {
		t.Errorf("fault lines differ (-want +got):\n%s", diff)
	}
	var one Fault
	if !errors.As(fmt.Errorf("load configuration: %w", faults), &one) || one.Variable != "BRIDGE_CLUSTER" {
		t.Errorf("errors.As finds the fault %v, want the first", one)
	}
}

func TestLongValuesAreCut(t *testing.T) {
	faults := faultsOf(t, "BRIDGE_STREAM="+strings.Repeat("é", 400))
	if got := faults[0].Value; len(got) > maxShownValue+len("…") || !strings.HasSuffix(got, "é…") {
		t.Errorf("value of %d bytes is shown as %q", 800, got)
	}
}

func TestWarnings(t *testing.T) {
	c, warnings, err := Load([]string{
		"BRIDGE_CLUSTR=hunter2",
		"BRIDGE_SECRET_KEY=hunter2",
		"BRIDGE_LABEL_SELECTER=hunter2",
		"BRIDGE_HTTP_PORT=8080",
		"BRIDGE_TOMBSTONE_TTL=24h",
		"NATS_URI=not ours",
		"bridge_cluster=not ours",
		// What Kubernetes sets for a service of the name bridge and one of the name bridge-metrics.
		"BRIDGE_SERVICE_HOST=10.0.0.1",
		"BRIDGE_SERVICE_PORT=8080",
		"BRIDGE_SERVICE_PORT_HTTP=8080",
		"BRIDGE_PORT=tcp://10.0.0.1:8080",
		"BRIDGE_PORT_8080_TCP=tcp://10.0.0.1:8080",
		"BRIDGE_PORT_8080_TCP_PROTO=tcp",
		"BRIDGE_PORT_8080_TCP_PORT=8080",
		"BRIDGE_PORT_8080_TCP_ADDR=10.0.0.1",
		"BRIDGE_METRICS_SERVICE_HOST=10.0.0.2",
		"BRIDGE_METRICS_PORT=udp://10.0.0.2:53",
	})
	if err != nil || c == nil {
		t.Fatalf("Load = %v, %v, want a Config", c, err)
	}
	var got []string
	for _, w := range warnings {
		got = append(got, w.String())
	}
	want := []string{
		"BRIDGE_TOMBSTONE_TTL: has no effect, this version does not have it yet; unset it",
		"BRIDGE_CLUSTR: is unknown and has no effect; did you mean BRIDGE_CLUSTER?",
		"BRIDGE_HTTP_PORT: is unknown and has no effect; did you mean BRIDGE_HTTP_ADDR?",
		"BRIDGE_LABEL_SELECTER: is unknown and has no effect; did you mean BRIDGE_LABEL_SELECTOR?",
		"BRIDGE_SECRET_KEY: is unknown and has no effect; did you mean BRIDGE_SECRETS_KEY?",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("warnings differ (-want +got):\n%s", diff)
	}
}

func TestWarningsComeWithFaults(t *testing.T) {
	_, warnings, err := Load([]string{"BRIDGE_CLUSTR=a", "BRIDGE_CLUSTER=a b"})
	if err == nil || len(warnings) != 1 {
		t.Errorf("Load = warnings %q and error %v, want one of each", warnings, err)
	}
}

func TestEditDistance(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		want int
	}{
		{"", "", 0}, {"", "abc", 3}, {"abc", "", 3}, {"abc", "abc", 0}, {"kitten", "sitting", 3},
		{"flaw", "lawn", 2}, {"ab", "ba", 2},
	} {
		if got := editDistance(tt.a, tt.b); got != tt.want {
			t.Errorf("editDistance(%q, %q) = %d, want %d", tt.a, tt.b, got, tt.want)
		}
	}
}
