package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// klog flushes for the life of the process.
		goleak.IgnoreTopFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"))
}

// execute runs a command and returns its exit code and output.
func execute(ctx context.Context, environ []string, args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = run(ctx, args, environ, &out, &errs)
	return code, out.String(), errs.String()
}

func TestUsage(t *testing.T) {
	for _, c := range []struct {
		args           []string
		code           int
		stdout, stderr string
	}{
		{[]string{"help"}, exitOK, "Usage:", ""},
		{[]string{"--help"}, exitOK, "Usage:", ""},
		{[]string{"frobnicate"}, exitConfig, "", `no command "frobnicate"`},
		{[]string{"run", "now"}, exitConfig, "", "takes no arguments"},
		{[]string{"version", "-v"}, exitConfig, "", "takes no arguments"},
		{[]string{"version"}, exitOK, "client-go   v0.", ""},
	} {
		code, stdout, stderr := execute(context.Background(), nil, c.args...)
		if code != c.code || !strings.Contains(stdout, c.stdout) || !strings.Contains(stderr, c.stderr) || (c.stderr == "") != (stderr == "") {
			t.Errorf("%q: exit code %d\nstdout: %s\nstderr: %s", c.args, code, stdout, stderr)
		}
	}
}

func TestVersionNamesWhatMatters(t *testing.T) {
	_, stdout, _ := execute(context.Background(), nil, "version")
	for _, name := range []string{"deltabridge ", "commit ", "go ", "client-go ", "nats.go "} {
		if !strings.Contains(stdout, name) {
			t.Errorf("no %q in\n%s", name, stdout)
		}
	}
}

// Every fault is reported at once, by name, and warnings beside them; secrets are masked.
func TestConfigurationFaults(t *testing.T) {
	code, _, stderr := execute(context.Background(), []string{
		"BRIDGE_CLUSTER=a b", "BRIDGE_MAX_PENDING=many", "BRIDGE_SHUTDOWN_GRACE=20", "BRIDGE_STREAM_MODE=maybe",
		"NATS_TOKEN=hunter2hunter2", "NATS_CREDS=/x", "BRIDGE_RESORCES=pods",
	})
	if code != exitConfig {
		t.Errorf("exit code %d, want %d", code, exitConfig)
	}
	for _, name := range []string{"BRIDGE_CLUSTER", "BRIDGE_MAX_PENDING", "BRIDGE_SHUTDOWN_GRACE", "BRIDGE_STREAM_MODE", "NATS_TOKEN", "BRIDGE_RESORCES", "BRIDGE_RESOURCES"} {
		if !strings.Contains(stderr, name) {
			t.Errorf("%s is not named in\n%s", name, stderr)
		}
	}
	if strings.Contains(stderr, "hunter2") {
		t.Errorf("a secret is shown in\n%s", stderr)
	}
}

func TestKubeconfigFaults(t *testing.T) {
	dir := t.TempDir()
	broken := filepath.Join(dir, "broken")
	if err := os.WriteFile(broken, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, environ := range map[string][]string{
		"missing": {"KUBECONFIG=" + filepath.Join(dir, "missing")},
		"broken":  {"KUBECONFIG=" + broken},
		"context": {"KUBECONFIG=" + kubeconfig(t, "http://127.0.0.1:1"), "BRIDGE_KUBE_CONTEXT=other"},
	} {
		t.Run(name, func(t *testing.T) {
			code, _, stderr := execute(context.Background(), environ)
			if code != exitConfig || !strings.Contains(stderr, "KUBECONFIG=") {
				t.Errorf("exit code %d\n%s", code, stderr)
			}
		})
	}
}

func kubeconfig(t *testing.T, server string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	content := `{"apiVersion":"v1","kind":"Config","current-context":"c","clusters":[{"name":"c","cluster":{"server":"` + server + `"}}],"contexts":[{"name":"c","context":{"cluster":"c"}}]}`
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Nothing answers, and yet the process waits, and stops cleanly when told to.
func TestStopWhileNothingAnswers(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
	defer cancel()
	code, _, stderr := execute(ctx, []string{
		"KUBECONFIG=" + kubeconfig(t, "http://127.0.0.1:1"), "NATS_URL=nats://127.0.0.1:1", "BRIDGE_HTTP_ADDR=127.0.0.1:0",
	})
	if code != exitOK {
		t.Errorf("exit code %d\n%s", code, stderr)
	}
	if !strings.Contains(stderr, "NATS_URL") {
		t.Errorf("the log does not name the variable to look at:\n%s", stderr)
	}
	if n := strings.Count(stderr, "NATS cannot be reached"); n != 1 {
		t.Errorf("that NATS cannot be reached was logged %d times:\n%s", n, stderr)
	}
}
