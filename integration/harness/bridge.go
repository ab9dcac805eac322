package harness

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Bridge is a running bridge process.
type Bridge struct {
	*Process
	addr   string
	client *http.Client
}

// LaunchBridge starts the binary at path. Its environment is env, PATH and HOME and nothing else; its probes listen on
// a free port of loopback unless env says otherwise.
func LaunchBridge(path string, env map[string]string, args ...string) (*Bridge, error) {
	all := map[string]string{"PATH": os.Getenv("PATH"), "HOME": os.Getenv("HOME")}
	if _, given := env["BRIDGE_HTTP_ADDR"]; !given {
		port, err := FreePort()
		if err != nil {
			return nil, err
		}
		all["BRIDGE_HTTP_ADDR"] = "127.0.0.1:" + strconv.Itoa(port)
	}
	maps.Copy(all, env)
	var environ []string
	for _, name := range slices.Sorted(maps.Keys(all)) {
		environ = append(environ, name+"="+all[name])
	}
	process, err := startProcess("bridge", path, args, environ)
	if err != nil {
		return nil, err
	}
	return &Bridge{
		Process: process,
		addr:    all["BRIDGE_HTTP_ADDR"],
		client:  &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}},
	}, nil
}

// StartBridge builds the bridge, once, and starts it with the environment env and arguments. The test's end ends it;
// the log of a failed test shows the end of the bridge's.
func StartBridge(t testing.TB, env map[string]string, args ...string) *Bridge {
	t.Helper()
	path, err := BridgeBinary()
	if err != nil {
		t.Fatal(err)
	}
	b, err := LaunchBridge(path, env, args...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Kill(); err != nil {
			t.Error(err)
		}
		for _, bug := range []string{"panic: ", "fatal error: ", "WARNING: DATA RACE"} {
			if i := strings.Index(b.Stderr(), bug); i >= 0 {
				t.Errorf("the bridge has a bug:\n%s", b.Stderr()[i:min(len(b.Stderr()), i+4000)])
			}
		}
		if t.Failed() {
			t.Logf("the bridge's log ends:\n%s", b.Tail(60))
		}
	})
	return b
}

// URL returns the address of one of the bridge's HTTP endpoints.
func (b *Bridge) URL(path string) string { return "http://" + b.addr + path }

// get returns the status and the body of an endpoint's answer.
func (b *Bridge) get(ctx context.Context, path string) (int, string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, b.URL(path), nil)
	if err != nil {
		return 0, "", err
	}
	response, err := b.client.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return response.StatusCode, string(body), err
}

// Ready returns nil when the bridge says that it is ready, and otherwise an error with what it says.
func (b *Bridge) Ready(ctx context.Context) error {
	if !b.Running() {
		return fmt.Errorf("the bridge ended with code %d", b.ExitCode())
	}
	status, body, err := b.get(ctx, "/readyz?verbose")
	if err != nil {
		return err
	}
	if status != http.StatusOK {
		return fmt.Errorf("not ready (%d):\n%s", status, body)
	}
	return nil
}

// WaitReady waits until the bridge is ready, and ends the test when that takes too long or the bridge ends.
func (b *Bridge) WaitReady(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	defer cancel()
	go func() {
		select {
		case <-b.Done(): // it will never be
			cancel()
		case <-ctx.Done():
		}
	}()
	if err := poll(ctx, func() error { return b.Ready(ctx) }); err != nil {
		t.Fatalf("the bridge does not become ready: %v", err)
	}
}

// WaitExit waits until the bridge has ended and returns its exit code.
func (b *Bridge) WaitExit(t testing.TB, timeout time.Duration) int {
	t.Helper()
	select {
	case <-b.Done():
		return b.ExitCode()
	case <-time.After(timeout):
		t.Fatalf("the bridge has not ended after %s", timeout)
		return -1
	}
}

// Readyz returns what /readyz?verbose says, and its status.
func (b *Bridge) Readyz(t testing.TB) (status int, text string) {
	t.Helper()
	status, text, err := b.get(t.Context(), "/readyz?verbose")
	if err != nil {
		t.Fatalf("ask the bridge whether it is ready: %v", err)
	}
	return status, text
}

// Livez returns an error unless the bridge says that it lives.
func (b *Bridge) Livez(ctx context.Context) error {
	status, body, err := b.get(ctx, "/livez")
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("/livez answers %d: %s", status, body)
	}
	return err
}

// Status returns /statusz, decoded.
func (b *Bridge) Status(t testing.TB) map[string]any {
	t.Helper()
	var status map[string]any
	if err := json.Unmarshal([]byte(b.StatusText(t)), &status); err != nil {
		t.Fatalf("decode the bridge's status: %v", err)
	}
	return status
}

// StatusText returns /statusz as it is sent.
func (b *Bridge) StatusText(t testing.TB) string {
	t.Helper()
	code, body, err := b.get(t.Context(), "/statusz")
	if err != nil || code != http.StatusOK {
		t.Fatalf("ask the bridge for its status: %d, %v", code, err)
	}
	return body
}

// Metrics returns /metrics as it is sent.
func (b *Bridge) Metrics(t testing.TB) string {
	t.Helper()
	code, body, err := b.get(t.Context(), "/metrics")
	if err != nil || code != http.StatusOK {
		t.Fatalf("ask the bridge for its metrics: %d, %v", code, err)
	}
	return body
}

// Metric returns the sum of a metric's samples whose labels contain all of the given ones, each `name="value"`. A metric
// without such a sample is zero.
func (b *Bridge) Metric(t testing.TB, name string, labels ...string) float64 {
	t.Helper()
	return sumMetric(b.Metrics(t), name, labels...)
}

func sumMetric(text, name string, labels ...string) float64 {
	sum := 0.0
	for line := range strings.Lines(text) {
		rest, ok := strings.CutPrefix(strings.TrimSpace(line), name)
		if !ok || rest == "" || rest[0] != '{' && rest[0] != ' ' {
			continue
		}
		if !slices.ContainsFunc(labels, func(l string) bool { return !strings.Contains(rest, l) }) {
			value, err := strconv.ParseFloat(rest[strings.LastIndexByte(rest, ' ')+1:], 64)
			if err == nil {
				sum += value
			}
		}
	}
	return sum
}

// LogLine is one line of the bridge's log.
type LogLine map[string]any

// Message returns the line's constant part.
func (l LogLine) Message() string { return l.text("msg") }

// Level returns the line's level.
func (l LogLine) Level() string { return l.text("level") }

func (l LogLine) text(key string) string {
	s, _ := l[key].(string)
	return s
}

// Contains reports whether the line as a whole contains a text.
func (l LogLine) Contains(text string) bool {
	b, err := json.Marshal(map[string]any(l))
	return err == nil && bytes.Contains(b, []byte(text))
}

// Log returns the lines of the bridge's log so far. Lines that are not JSON are left out; Stderr and Stdout have them.
func (b *Bridge) Log() []LogLine {
	var lines []LogLine
	for _, text := range []string{b.Stdout(), b.Stderr()} {
		for raw := range strings.Lines(text) {
			var line LogLine
			if err := json.Unmarshal([]byte(raw), &line); err == nil {
				lines = append(lines, line)
			}
		}
	}
	return lines
}
