package harness

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"testing"

	"k8s.io/client-go/rest"
)

// StoreURL returns the address of etcd, the API server's store, which serves gRPC and its JSON gateway there.
func (c *ControlPlane) StoreURL() string { return "http://127.0.0.1:" + strconv.Itoa(c.etcdPort) }

// APIAddr returns the API server's address, "host:port".
func (c *ControlPlane) APIAddr() string {
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(c.apiPort))
}

// KubeconfigVia returns the path of the admin's kubeconfig with another address, that of a proxy on loopback.
func (c *ControlPlane) KubeconfigVia(t testing.TB, addr string) string {
	t.Helper()
	config := rest.CopyConfig(c.admin)
	config.Host = "https://" + addr
	path := t.TempDir() + "/via.kubeconfig"
	if err := writeKubeconfig(path, config); err != nil {
		t.Fatal(err)
	}
	return path
}

// Compact makes etcd forget all versions before the newest. An API server that has them in its watch cache still serves
// them, until it is restarted.
func (c *ControlPlane) Compact(ctx context.Context) error {
	var at struct {
		Header struct {
			Revision string `json:"revision"`
		} `json:"header"`
	}
	if err := c.askStore(ctx, "/v3/kv/range", map[string]any{"key": []byte("/"), "count_only": true}, &at); err != nil {
		return err
	}
	var done struct{}
	return c.askStore(ctx, "/v3/kv/compaction", map[string]any{"revision": at.Header.Revision, "physical": true}, &done)
}

// askStore sends etcd a request through its JSON gateway.
func (c *ControlPlane) askStore(ctx context.Context, path string, question, answer any) error {
	body, err := json.Marshal(question)
	if err != nil {
		return fmt.Errorf("encode a request to etcd: %w", err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.StoreURL()+path, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("make a request to etcd: %w", err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return fmt.Errorf("ask etcd: %w", err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return fmt.Errorf("ask etcd: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("etcd answers %s to %s: %s", response.Status, path, text)
	}
	if err := json.Unmarshal(text, answer); err != nil {
		return fmt.Errorf("decode what etcd answers to %s: %w", path, err)
	}
	return nil
}
