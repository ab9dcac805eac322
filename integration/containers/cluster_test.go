package containers

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/network"
	"github.com/testcontainers/testcontainers-go/wait"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"

	"github.com/deltabridge/deltabridge/integration/harness"
)

// The names by which the containers know one another, and where each listens.
const (
	etcdHost, etcdPort           = "etcd", "2379"
	apiServerHost, apiServerPort = "apiserver", "6443"
	natsHost, natsPort           = "nats", "4222"
	bridgePort                   = "8080"
)

// The API server knows two users by their tokens: the test's, which may do everything, and the bridge's.
const (
	adminToken  = "token-of-the-test"
	bridgeToken = "token-of-the-bridge"
	bridgeUser  = "deltabridge"
)

// startTimeout is for a loaded machine; each container is usually up in seconds.
const startTimeout = 2 * time.Minute

// cluster is the private network with everything on it but the bridge.
type cluster struct {
	network *testcontainers.DockerNetwork
	ca      []byte
	admin   *rest.Config // for use from the host
	natsURL string       // for use from the host
}

// startCluster starts the network, etcd, the API server and NATS.
func startCluster(t *testing.T) *cluster {
	t.Helper()
	private, err := network.New(t.Context())
	testcontainers.CleanupNetwork(t, private)
	if err != nil {
		t.Fatalf("make the private network: %v", err)
	}
	c := &cluster{network: private}
	c.startEtcd(t)
	c.startAPIServer(t)
	c.startNATS(t)
	return c
}

func (c *cluster) startEtcd(t *testing.T) {
	t.Helper()
	start(t, "etcd", c.on(etcdHost, testcontainers.ContainerRequest{
		FromDockerfile: scratch(t, asset(t, "etcd")),
		Cmd: []string{
			"--data-dir=/data/etcd",
			"--listen-client-urls=http://0.0.0.0:" + etcdPort,
			"--advertise-client-urls=http://" + net.JoinHostPort(etcdHost, etcdPort),
			"--unsafe-no-fsync=true", // the data is thrown away
		},
		Tmpfs:      map[string]string{"/data": "rw"},
		WaitingFor: wait.ForLog("ready to serve client requests").WithStartupTimeout(startTimeout),
	}))
}

func (c *cluster) startAPIServer(t *testing.T) {
	t.Helper()
	// One self-signed chain, good for both of the server's names: the containers', and the one of its port on the host.
	chain, key, err := cert.GenerateSelfSignedCertKey(apiServerHost, []net.IP{net.IPv4(127, 0, 0, 1)}, []string{"localhost"})
	if err != nil {
		t.Fatalf("make the API server's certificate: %v", err)
	}
	c.ca = chain
	signer, err := keyutil.MakeEllipticPrivateKeyPEM()
	if err != nil {
		t.Fatalf("make the service accounts' key: %v", err)
	}
	tokens := fmt.Sprintf("%s,admin,1,system:masters\n%s,%s,2\n", adminToken, bridgeToken, bridgeUser)
	apiServer := start(t, "kube-apiserver", c.on(apiServerHost, testcontainers.ContainerRequest{
		FromDockerfile: scratch(t, asset(t, "kube-apiserver")),
		Cmd: []string{
			"--etcd-servers=http://" + net.JoinHostPort(etcdHost, etcdPort),
			"--secure-port=" + apiServerPort,
			"--tls-cert-file=/pki/apiserver.crt",
			"--tls-private-key-file=/pki/apiserver.key",
			"--token-auth-file=/pki/tokens.csv",
			"--service-account-issuer=https://" + apiServerHost,
			"--service-account-key-file=/pki/sa.key",
			"--service-account-signing-key-file=/pki/sa.key",
			"--service-cluster-ip-range=10.0.0.0/24",
			"--authorization-mode=RBAC",
			"--disable-admission-plugins=ServiceAccount", // no controller makes the account that it asks of every pod
			"--endpoint-reconciler-type=none",
		},
		Files: []testcontainers.ContainerFile{
			file("/pki/apiserver.crt", chain), file("/pki/apiserver.key", key),
			file("/pki/sa.key", signer), file("/pki/tokens.csv", []byte(tokens)),
		},
		Tmpfs:        map[string]string{"/tmp": "rw"},
		ExposedPorts: []string{apiServerPort + "/tcp"},
		WaitingFor:   wait.ForLog("Serving securely on").WithStartupTimeout(startTimeout),
	}))
	c.admin = &rest.Config{
		Host:            "https://" + address(t, apiServer, apiServerPort),
		BearerToken:     adminToken,
		TLSClientConfig: rest.TLSClientConfig{CAData: chain},
		QPS:             -1,
	}
}

func (c *cluster) startNATS(t *testing.T) {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "nats-server")
	run(t, []string{"CGO_ENABLED=0", "GOOS=linux"}, "go", "build", "-o", binary, "./natsserver")
	server := start(t, "NATS", c.on(natsHost, testcontainers.ContainerRequest{
		FromDockerfile: scratch(t, binary),
		Cmd:            []string{"--jetstream", "--store_dir=/data", "--port=" + natsPort},
		Tmpfs:          map[string]string{"/data": "rw"},
		ExposedPorts:   []string{natsPort + "/tcp"},
		// The engine's proxy accepts connections to a published port before the server does; its log does not lie.
		WaitingFor: wait.ForLog("Server is ready").WithStartupTimeout(startTimeout),
	}))
	c.natsURL = "nats://" + address(t, server, natsPort)
}

// buildImage makes the bridge's image as users do, under a name of its own, and removes it when the test ends.
func buildImage(t *testing.T, docker *testcontainers.DockerClient) string {
	t.Helper()
	image := fmt.Sprintf("deltabridge-test-bridge:%d-%d", os.Getpid(), time.Now().Unix())
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if _, err := docker.ImageRemove(ctx, image, client.ImageRemoveOptions{Force: true, PruneChildren: true}); err != nil {
			t.Logf("remove image %s: %v", image, err)
		}
	})
	began := time.Now()
	run(t, nil, "make", "-C", harness.RepoRoot(), "image", "IMAGE="+image)
	t.Logf("make image took %s", time.Since(began).Round(100*time.Millisecond))
	return image
}

// startBridge runs the bridge's image as the chart does: its own user, nothing writable, no capabilities. It does not
// wait until the bridge is ready.
func (c *cluster) startBridge(t *testing.T, image string, environment map[string]string) testcontainers.Container {
	t.Helper()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	c.writeKubeconfig(t, kubeconfig)
	env := map[string]string{
		"KUBECONFIG": "/config/kubeconfig",
		"NATS_URL":   "nats://" + net.JoinHostPort(natsHost, natsPort),
	}
	for name, value := range environment {
		env[name] = value
	}
	return start(t, "the bridge", c.on("bridge", testcontainers.ContainerRequest{
		Image:        image,
		Env:          env,
		ExposedPorts: []string{bridgePort + "/tcp"},
		HostConfigModifier: func(h *container.HostConfig) {
			h.ReadonlyRootfs = true
			h.CapDrop = []string{"ALL"}
			h.SecurityOpt = []string{"no-new-privileges"}
			// Mounted, not copied: the engine does not copy into a container whose root is read-only.
			h.Binds = []string{kubeconfig + ":/config/kubeconfig:ro"}
		},
	}))
}

// writeKubeconfig writes the bridge's kubeconfig, readable for the image's user.
func (c *cluster) writeKubeconfig(t *testing.T, path string) {
	t.Helper()
	config := clientcmdapi.NewConfig()
	config.Clusters["test"] = &clientcmdapi.Cluster{
		Server:                   "https://" + net.JoinHostPort(apiServerHost, apiServerPort),
		CertificateAuthorityData: c.ca,
	}
	config.AuthInfos["test"] = &clientcmdapi.AuthInfo{Token: bridgeToken}
	config.Contexts["test"] = &clientcmdapi.Context{Cluster: "test", AuthInfo: "test"}
	config.CurrentContext = "test"
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		t.Fatalf("write the bridge's kubeconfig: %v", err)
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
}

// on puts a container on the private network under a name.
func (c *cluster) on(host string, request testcontainers.ContainerRequest) testcontainers.ContainerRequest {
	request.Networks = []string{c.network.Name}
	request.NetworkAliases = map[string][]string{c.network.Name: {host}}
	return request
}

// address returns where the host reaches a container's port.
func address(t *testing.T, container testcontainers.Container, port string) string {
	t.Helper()
	at, err := container.PortEndpoint(t.Context(), port+"/tcp", "")
	if err != nil {
		t.Fatalf("find port %s on the host: %v", port, err)
	}
	return at
}

func file(path string, content []byte) testcontainers.ContainerFile {
	return testcontainers.ContainerFile{
		Reader: strings.NewReader(string(content)), ContainerFilePath: path, FileMode: 0o644,
	}
}

// asset returns the path of a control plane binary: the one in KUBEBUILDER_ASSETS, else the one that make built.
func asset(t *testing.T, name string) string {
	t.Helper()
	dir := os.Getenv("KUBEBUILDER_ASSETS")
	if dir == "" {
		dir = filepath.Join(harness.RepoRoot(), "bin", "controlplane")
	}
	path := filepath.Join(dir, name)
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("find the control plane (`make controlplane` builds it): %v", err)
	}
	return path
}

// run runs a program in this package's directory and ends the test with its output if it fails.
func run(t *testing.T, env []string, program string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, args...)
	// What a make that runs these tests hands down is not meant for another one.
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, "MAKE") && !strings.HasPrefix(variable, "MFLAGS=") {
			cmd.Env = append(cmd.Env, variable)
		}
	}
	cmd.Env = append(cmd.Env, env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
}
