package harness

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

const (
	// startTimeout is for a machine that does much else; etcd and the API server are usually up in five seconds.
	startTimeout = 2 * time.Minute
	// stopTimeout is how long etcd and the API server may take to stop before they are killed.
	stopTimeout = 30 * time.Second
	// startAttempts is how often other ports are tried: between the choice of a free port and its use another process
	// can take it.
	startAttempts = 3
)

// ControlPlaneConfig changes what a control plane is started with. Its zero value is right for most tests.
type ControlPlaneConfig struct {
	// APIServerFlags are added to the API server's; the last of a repeated flag counts.
	APIServerFlags []string
	// EtcdFlags are added to etcd's.
	EtcdFlags []string
}

// ControlPlane is an etcd and a kube-apiserver with RBAC. Nothing controls: no controller manager, no scheduler, no
// kubelet runs, so that objects change only when a test changes them.
type ControlPlane struct {
	config   ControlPlaneConfig
	dir      string
	ca       *authority
	etcdPort int
	apiPort  int
	etcd     *Process
	api      *Process
	admin    *rest.Config
}

// StartControlPlane starts etcd and the API server and waits until the API server is ready. The caller calls
// [ControlPlane.Stop].
func StartControlPlane(ctx context.Context, config ControlPlaneConfig) (*ControlPlane, error) {
	var errs []error
	for range startAttempts {
		c, err := startControlPlane(ctx, config)
		if err == nil {
			return c, nil
		}
		errs = append(errs, err)
		if !errors.Is(err, errEnded) {
			break
		}
	}
	return nil, errors.Join(errs...)
}

func startControlPlane(ctx context.Context, config ControlPlaneConfig) (*ControlPlane, error) {
	dir, err := os.MkdirTemp("", "deltabridge-controlplane-")
	if err != nil {
		return nil, fmt.Errorf("make the control plane's directory: %w", err)
	}
	c := &ControlPlane{config: config, dir: dir}
	if err := c.start(ctx); err != nil {
		return nil, errors.Join(err, c.Stop())
	}
	return c, nil
}

func (c *ControlPlane) start(ctx context.Context) error {
	var err error
	if c.etcdPort, err = FreePort(); err != nil {
		return err
	}
	if c.apiPort, err = FreePort(); err != nil {
		return err
	}
	if err := c.writeCredentials(); err != nil {
		return err
	}
	if err := c.startEtcd(ctx); err != nil {
		return err
	}
	return c.StartAPIServer(ctx)
}

// writeCredentials makes what the API server and its clients prove who they are with, and the admin's kubeconfig. They
// stay the same over restarts.
func (c *ControlPlane) writeCredentials() error {
	var err error
	if c.ca, err = newAuthority(); err != nil {
		return err
	}
	cert, key, err := c.ca.server()
	if err != nil {
		return err
	}
	signer, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("generate the service accounts' key: %w", err)
	}
	signerPEM, err := encodeKey(signer)
	if err != nil {
		return err
	}
	for name, content := range map[string][]byte{
		"ca.crt": c.ca.certPEM(), "apiserver.crt": cert, "apiserver.key": key, "sa.key": signerPEM,
	} {
		if err = os.WriteFile(c.path(name), content, 0o600); err != nil {
			return fmt.Errorf("write the control plane's credentials: %w", err)
		}
	}
	if c.admin, err = c.clientConfig("admin", "system:masters"); err != nil {
		return err
	}
	return writeKubeconfig(c.Kubeconfig(), c.admin)
}

func (c *ControlPlane) startEtcd(ctx context.Context) error {
	path, err := asset("etcd")
	if err != nil {
		return err
	}
	url := "http://127.0.0.1:" + strconv.Itoa(c.etcdPort)
	args := append([]string{
		"--data-dir=" + c.path("etcd"),
		"--listen-client-urls=" + url,
		"--advertise-client-urls=" + url,
		"--listen-peer-urls=http://127.0.0.1:0",
		"--unsafe-no-fsync=true", // the data is thrown away; nothing outlives a power failure
		"--log-level=warn",
	}, c.config.EtcdFlags...)
	if c.etcd, err = startProcess("etcd", path, args, childEnv()); err != nil {
		return err
	}
	return waitHealthy(ctx, c.etcd, http.DefaultClient, url+"/health")
}

// StartAPIServer starts the API server, which must not run, on its port and with its credentials and etcd, and waits
// until it is ready. Flags are added for this start.
func (c *ControlPlane) StartAPIServer(ctx context.Context, flags ...string) error {
	path, err := asset("kube-apiserver")
	if err != nil {
		return err
	}
	args := []string{
		"--etcd-servers=http://127.0.0.1:" + strconv.Itoa(c.etcdPort),
		"--bind-address=127.0.0.1",
		"--advertise-address=127.0.0.1",
		"--secure-port=" + strconv.Itoa(c.apiPort),
		"--tls-cert-file=" + c.path("apiserver.crt"),
		"--tls-private-key-file=" + c.path("apiserver.key"),
		"--client-ca-file=" + c.path("ca.crt"),
		"--cert-dir=" + c.dir,
		"--service-account-issuer=https://127.0.0.1",
		"--service-account-key-file=" + c.path("sa.key"),
		"--service-account-signing-key-file=" + c.path("sa.key"),
		"--service-cluster-ip-range=10.0.0.0/24",
		"--authorization-mode=RBAC",
		"--allow-privileged=true",
		// No controller makes the default service account, without which this plugin refuses every pod.
		"--disable-admission-plugins=ServiceAccount",
		// Neither does anything for a single client on loopback, and both write objects of their own all the time.
		"--enable-priority-and-fairness=false",
		"--endpoint-reconciler-type=none",
		// Without it, an API server that is asked to stop waits a minute for the watches that are open.
		"--shutdown-watch-termination-grace-period=10s",
	}
	args = append(append(args, c.config.APIServerFlags...), flags...)
	if c.api, err = startProcess("kube-apiserver", path, args, childEnv()); err != nil {
		return err
	}
	client, err := rest.HTTPClientFor(c.admin)
	if err != nil {
		return fmt.Errorf("make the admin's client: %w", err)
	}
	defer client.CloseIdleConnections()
	return waitHealthy(ctx, c.api, client, c.admin.Host+"/readyz")
}

// StopAPIServer stops the API server alone. Watches end; etcd keeps the objects.
func (c *ControlPlane) StopAPIServer() error { return c.api.Stop(stopTimeout) }

// KillAPIServer ends the API server alone without letting it say goodbye.
func (c *ControlPlane) KillAPIServer() error { return c.api.Kill() }

// RestartAPIServer stops and starts the API server alone: same port, credentials and etcd, but an empty watch cache.
func (c *ControlPlane) RestartAPIServer(ctx context.Context, flags ...string) error {
	stopped := c.StopAPIServer() // it is gone even if that is an error, and other tests want it back
	return errors.Join(stopped, c.StartAPIServer(ctx, flags...))
}

// Stop ends both processes and removes their data.
func (c *ControlPlane) Stop() error {
	var errs []error
	for _, p := range []*Process{c.api, c.etcd} { // the API server first, or it complains about etcd
		if p != nil {
			errs = append(errs, p.Stop(stopTimeout))
		}
	}
	return errors.Join(append(errs, os.RemoveAll(c.dir))...)
}

// Kubeconfig returns the path of the admin's kubeconfig.
func (c *ControlPlane) Kubeconfig() string { return c.path("admin.kubeconfig") }

// Config returns the admin's client configuration, without client-side limits.
func (c *ControlPlane) Config() *rest.Config { return rest.CopyConfig(c.admin) }

// Dynamic returns a client with all rights.
func (c *ControlPlane) Dynamic() dynamic.Interface { return dynamic.NewForConfigOrDie(c.admin) }

// Log returns the end of what the API server and etcd wrote, for the report of a test that failed.
func (c *ControlPlane) Log() string {
	return "kube-apiserver:\n" + c.api.Tail(15) + "\netcd:\n" + c.etcd.Tail(5)
}

func (c *ControlPlane) path(name string) string { return filepath.Join(c.dir, name) }

// clientConfig returns the configuration of a client that the API server knows as user.
func (c *ControlPlane) clientConfig(user string, groups ...string) (*rest.Config, error) {
	cert, key, err := c.ca.client(user, groups...)
	if err != nil {
		return nil, err
	}
	return &rest.Config{
		Host:            "https://127.0.0.1:" + strconv.Itoa(c.apiPort),
		TLSClientConfig: rest.TLSClientConfig{CAData: c.ca.certPEM(), CertData: cert, KeyData: key},
		QPS:             -1,
	}, nil
}

// writeKubeconfig writes a kubeconfig by which a client connects like config.
func writeKubeconfig(path string, config *rest.Config) error {
	const name = "deltabridge-test"
	kubeconfig := clientcmdapi.NewConfig()
	kubeconfig.Clusters[name] = &clientcmdapi.Cluster{Server: config.Host, CertificateAuthorityData: config.CAData}
	kubeconfig.AuthInfos[name] = &clientcmdapi.AuthInfo{
		ClientCertificateData: config.CertData, ClientKeyData: config.KeyData,
	}
	kubeconfig.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	kubeconfig.CurrentContext = name
	if err := clientcmd.WriteToFile(*kubeconfig, path); err != nil {
		return fmt.Errorf("write a kubeconfig: %w", err)
	}
	return nil
}

// errEnded means that a process ended before it was ready.
var errEnded = errors.New("ended before it was ready")

// waitHealthy polls url until it answers 200. The error for a process that ended, or is not ready in time, holds the
// end of its log.
func waitHealthy(ctx context.Context, p *Process, client *http.Client, url string) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	go func() {
		select {
		case <-p.Done(): // no use in asking further
			cancel()
		case <-ctx.Done():
		}
	}()
	err := poll(ctx, func() error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		response, err := client.Do(request)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return fmt.Errorf("%s answers %s", url, response.Status)
		}
		return nil
	})
	switch {
	case err == nil:
		return nil
	case !p.Running():
		return fmt.Errorf("%s %w, with code %d:\n%s", p.name, errEnded, p.ExitCode(), p.Tail(20))
	default:
		return fmt.Errorf("wait for %s: %w\n%s", p.name, err, p.Tail(20))
	}
}

// childEnv is the environment of etcd and the API server: nothing that could change what they do.
func childEnv() []string {
	return []string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"), "TMPDIR=" + os.TempDir()}
}
