package e2e

import (
	"maps"
	"strings"
	"testing"

	"github.com/deltabridge/deltabridge/integration/harness"
)

// runs starts the bridge with an environment and expects it to end by itself.
func runs(t *testing.T, env map[string]string, args ...string) (code int, stderr string) {
	t.Helper()
	b := harness.StartBridge(t, env, args...)
	code = b.WaitExit(t, harness.Patience)
	return code, b.Stderr()
}

func TestConfigurationFaults(t *testing.T) {
	faults := map[string]string{
		"BRIDGE_CLUSTER":            "a.b",
		"BRIDGE_RESOURCES":          "pods,Widgets",
		"BRIDGE_KUBE_QPS":           "many",
		"BRIDGE_KUBE_BURST":         "-1",
		"BRIDGE_FORMAT":             "yaml",
		"BRIDGE_PAYLOAD":            "half",
		"BRIDGE_SECRETS":            "visible",
		"BRIDGE_BUFFER_BYTES":       "64 apples",
		"BRIDGE_MAX_PENDING":        "0",
		"BRIDGE_OVERSIZE":           "drop",
		"BRIDGE_STREAM":             "a b",
		"BRIDGE_STREAM_MODE":        "destroy",
		"BRIDGE_STREAM_REPLICAS":    "two",
		"BRIDGE_STREAM_STORAGE":     "tape",
		"BRIDGE_STREAM_HISTORY":     "0x",
		"BRIDGE_STREAM_MAX_AGE":     "a week",
		"BRIDGE_SHUTDOWN_GRACE":     "20",
		"BRIDGE_HTTP_ADDR":          "no-port",
		"BRIDGE_LOG_LEVEL":          "loud",
		"BRIDGE_LOG_FORMAT":         "xml",
		"BRIDGE_SUBJECT_PREFIX":     "kube.*",
		"NATS_URL":                  "ftp://user:hidden-password@127.0.0.1",
		"BRIDGE_EXCLUDE_NAMESPACES": "UPPER",
	}
	code, stderr := runs(t, faults)
	if code != 2 {
		t.Errorf("the exit code is %d", code)
	}
	lines := strings.Split(stderr, "\n")
	for variable, value := range faults {
		found := 0
		for _, line := range lines {
			if strings.Contains(line, variable+"=") && (variable == "NATS_URL" || strings.Contains(line, value)) &&
				strings.Contains(line, "accepted") {
				found++
			}
		}
		if found == 0 {
			t.Errorf("no line names %s, %q and what is accepted", variable, value)
		}
	}
	if strings.Contains(stderr, "hidden-password") {
		t.Error("a password is shown")
	}
	if t.Failed() {
		t.Log(stderr)
	}
}

func TestConfigurationFaultsBesideGoodValues(t *testing.T) {
	good := map[string]string{"BRIDGE_CLUSTER": "prod", "NATS_PASSWORD": "hidden-password", "NATS_USER": "u"}
	for variable, value := range map[string]string{
		"BRIDGE_LOG_LEVEL": "loud",
		"KUBECONFIG":       "/no/such/file",
	} {
		env := maps.Clone(good)
		env[variable] = value
		code, stderr := runs(t, env)
		if code != 2 || !strings.Contains(stderr, variable) || !strings.Contains(stderr, value) {
			t.Errorf("%s=%s: code %d\n%s", variable, value, code, stderr)
		}
		if strings.Contains(stderr, "BRIDGE_CLUSTER") || strings.Contains(stderr, "hidden-password") {
			t.Errorf("%s=%s: good values are shown:\n%s", variable, value, stderr)
		}
	}
}

func TestUsage(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		code int
	}{
		"unknown command": {[]string{"fly"}, 2},
		"version":         {[]string{"version"}, 0},
	} {
		if code, stderr := runs(t, nil, c.args...); code != c.code {
			t.Errorf("%s: code %d\n%s", name, code, stderr)
		}
	}
}

func TestUnknownVariableIsAWarning(t *testing.T) {
	r := newRig(t, configMaps)
	r.set("BRIDGE_RESOURCE", "pods")
	b := r.start()
	for _, line := range b.Log() {
		if line.Level() == "WARN" && line.Contains(`BRIDGE_RESOURCE"`) && line.Contains("BRIDGE_RESOURCES") {
			return
		}
	}
	t.Errorf("no warning names BRIDGE_RESOURCE and its neighbour:\n%s", b.Stderr())
}
