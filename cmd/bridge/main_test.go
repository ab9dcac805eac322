package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/deltabridge/deltabridge/internal/config"
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
		{[]string{"resync", "--help"}, exitOK, "--selector", ""},
		{[]string{"resync", "pods"}, exitConfig, "", "takes flags only"},
		{[]string{"resync", "--resource", ""}, exitConfig, "", "resource"},
		{[]string{"resync", "--selector", "a=b=c"}, exitConfig, "", "--selector"},
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
	empty := filepath.Join(dir, "empty")
	if err := os.WriteFile(empty, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	missing := filepath.Join(dir, "missing")
	for name, c := range map[string]struct {
		environ []string
		text    string
	}{
		"missing": {[]string{"KUBECONFIG=" + missing}, "there is no file " + missing},
		"empty":   {[]string{"KUBECONFIG=" + missing + ":" + empty}, "no cluster is configured in " + empty},
		"broken":  {[]string{"KUBECONFIG=" + broken}, broken},
		"context": {[]string{"KUBECONFIG=" + kubeconfig(t, "http://127.0.0.1:1"), "BRIDGE_KUBE_CONTEXT=other"}, `BRIDGE_KUBE_CONTEXT="other"`},
	} {
		t.Run(name, func(t *testing.T) {
			code, _, stderr := execute(context.Background(), c.environ)
			if code != exitConfig || !strings.Contains(stderr, "KUBECONFIG=") || !strings.Contains(stderr, c.text) {
				t.Errorf("exit code %d, want %d and %q\n%s", code, exitConfig, c.text, stderr)
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

// Nothing answers, and yet the process is up, says why it is not ready, and stops cleanly when told to.
func TestStopWhileNothingAnswers(t *testing.T) {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	log := &watched{news: make(chan struct{}, 1)}
	exit := make(chan int, 1)
	go func() {
		exit <- run(ctx, nil, []string{
			"KUBECONFIG=" + kubeconfig(t, "http://127.0.0.1:1"), "NATS_URL=nats://127.0.0.1:1", "BRIDGE_HTTP_ADDR=127.0.0.1:0",
		}, io.Discard, log)
	}()
	url := "http://" + log.await(t, "starting")["http"].(string)
	log.await(t, "NATS cannot be reached, trying again")
	for path, want := range map[string]struct {
		code int
		text string
	}{
		"/livez":          {200, "ok"},
		"/readyz?verbose": {503, "[-] nats: no NATS server answers; check NATS_URL"},
		"/statusz":        {200, `"ready": false`},
		"/metrics":        {200, "deltabridge_nats_connected 0"},
	} {
		if code, body := get(t, url+path); code != want.code || !strings.Contains(body, want.text) {
			t.Errorf("%s: %d, want %d with %q:\n%s", path, code, want.code, want.text, body)
		}
	}
	stop()
	if code := <-exit; code != exitOK {
		t.Errorf("exit code %d\n%s", code, log)
	}
	if n := strings.Count(log.String(), "NATS cannot be reached"); n != 1 {
		t.Errorf("that NATS cannot be reached was logged %d times:\n%s", n, log)
	}
	log.await(t, "stopped, everything taken was published")
}

// With leader election, what keeps a bridge from standing for election is one more reason for not being ready.
func TestStandbyWhileNothingAnswers(t *testing.T) {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	log := &watched{news: make(chan struct{}, 1)}
	exit := make(chan int, 1)
	go func() {
		exit <- run(ctx, nil, []string{
			"KUBECONFIG=" + kubeconfig(t, "http://127.0.0.1:1"), "NATS_URL=nats://127.0.0.1:1", "BRIDGE_HTTP_ADDR=127.0.0.1:0",
			"BRIDGE_LEADER_ELECT=true", "BRIDGE_LEASE_NAMESPACE=infra", "BRIDGE_LEASE_DURATION=3s",
		}, io.Discard, log)
	}()
	url := "http://" + log.await(t, "starting")["http"].(string)
	line := log.await(t, "lease cannot be used, trying again")
	if line["lease"] != "infra/deltabridge-main" {
		t.Errorf("log line %v", line)
	}
	for path, want := range map[string]struct {
		code int
		text string
	}{
		"/readyz?verbose": {503, "[-] leader: standby, and cannot take over: lease infra/deltabridge-main: "},
		"/statusz":        {200, `"leading": false`},
		"/metrics":        {200, "deltabridge_leader 0"},
	} {
		if code, body := get(t, url+path); code != want.code || !strings.Contains(body, want.text) {
			t.Errorf("%s: %d, want %d with %q:\n%s", path, code, want.code, want.text, body)
		}
	}
	stop()
	if code := <-exit; code != exitOK {
		t.Errorf("exit code %d\n%s", code, log)
	}
}

func TestLeaseNamespace(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "namespace")
	if err := os.WriteFile(file, []byte("of-the-account\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	named := filepath.Join(dir, "kubeconfig")
	content := `{"apiVersion":"v1","kind":"Config","current-context":"c","clusters":[{"name":"c","cluster":{"server":"http://x"}}],"contexts":[{"name":"c","context":{"cluster":"c","namespace":"of-the-context"}}]}`
	if err := os.WriteFile(named, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	missing := filepath.Join(dir, "missing")
	for _, c := range []struct{ configured, file, pod, kubeconfig, want string }{
		{"configured", file, "of-the-pod", named, "configured"},
		{"", file, "of-the-pod", named, "of-the-account"},
		{"", missing, "of-the-pod", named, "of-the-pod"},
		{"", missing, "", named, "of-the-context"},
		{"", missing, "", kubeconfig(t, "http://x"), "default"},
		{"", missing, "", missing, "default"},
	} {
		t.Setenv("POD_NAMESPACE", c.pod)
		got := leaseNamespace(&config.Config{LeaseNamespace: c.configured, Kubeconfig: config.Path(c.kubeconfig)}, c.file)
		if got != c.want {
			t.Errorf("%+v: %q", c, got)
		}
	}
}

func TestAddressTaken(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	code, _, stderr := execute(context.Background(), []string{
		"KUBECONFIG=" + kubeconfig(t, "http://127.0.0.1:1"), "NATS_URL=nats://127.0.0.1:1", "BRIDGE_HTTP_ADDR=" + taken.Addr().String(),
	})
	if code != exitConfig || !strings.Contains(stderr, "BRIDGE_HTTP_ADDR") || !strings.Contains(stderr, taken.Addr().String()) {
		t.Errorf("exit code %d\n%s", code, stderr)
	}
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 30 * time.Second}
	r, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r.StatusCode, string(body)
}

// watched is a log of JSON lines in which a test can wait for a message.
type watched struct {
	mu   sync.Mutex
	buf  bytes.Buffer
	news chan struct{}
}

func (w *watched) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case w.news <- struct{}{}:
	default:
	}
	return w.buf.Write(p)
}

func (w *watched) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.buf.String()
}

// await returns the first line with the message, once there is one.
func (w *watched) await(t *testing.T, message string) map[string]any {
	t.Helper()
	deadline := time.After(30 * time.Second)
	for {
		for line := range strings.Lines(w.String()) {
			var fields map[string]any
			if json.Unmarshal([]byte(line), &fields) == nil && fields["msg"] == message {
				return fields
			}
		}
		select {
		case <-w.news:
		case <-deadline:
			t.Fatalf("%q is not logged:\n%s", message, w)
		}
	}
}
