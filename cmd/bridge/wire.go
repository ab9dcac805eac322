package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/deltabridge/deltabridge/internal/bridge"
	"github.com/deltabridge/deltabridge/internal/checkpoint"
	"github.com/deltabridge/deltabridge/internal/config"
	"github.com/deltabridge/deltabridge/internal/control"
	"github.com/deltabridge/deltabridge/internal/informer"
	"github.com/deltabridge/deltabridge/internal/leader"
	"github.com/deltabridge/deltabridge/internal/message"
	"github.com/deltabridge/deltabridge/internal/publisher"
	"github.com/deltabridge/deltabridge/internal/server"
)

// app is everything that runs, wired together.
type app struct {
	bridge  *bridge.Bridge
	server  *server.Server
	control *control.Service // nil if it is not wanted
}

// wire makes the app of a configuration. It opens the HTTP address and nothing else. Its errors are faults of the
// configuration.
func wire(c *config.Config, log *slog.Logger) (*app, error) {
	restConfig, err := kubeConfig(c)
	if err != nil {
		return nil, err
	}
	key := []byte(c.SecretsKey.Reveal())
	if len(key) == 0 {
		key = make([]byte, 32)
		_, _ = rand.Read(key) // never fails
	}
	scheme := message.Scheme{Prefix: c.SubjectPrefix, Cluster: c.Cluster}
	encoder, err := message.NewEncoder(message.Options{
		Scheme:     scheme,
		Stream:     c.Stream,
		Structured: c.Format == config.FormatStructured,
		Strip:      stripPaths(c.Strip),
		Secrets:    message.SecretsMode(c.Secrets),
		SecretsKey: key,
	})
	if err != nil {
		return nil, err
	}
	identity := holder()
	elector, err := newElector(c, restConfig, identity, log)
	if err != nil {
		return nil, err
	}
	metrics := server.NewMetrics(version, commit, runtime.Version())
	broker := &broker{
		Conn:    publisher.NewConn(connOptions(c), log),
		config:  c,
		scheme:  scheme,
		encoder: encoder,
		metrics: metrics,
		log:     log,
		holder:  identity,
		clusterUID: func(ctx context.Context) (string, error) {
			return informer.ClusterUID(ctx, restConfig)
		},
	}
	b := bridge.New(bridge.Options{
		Broker: broker,
		NewSource: func(feeds informer.Feeds) (bridge.Source, error) {
			return informer.NewManager(informer.Options{
				Config:            restConfig,
				Patterns:          patterns(c.Resources),
				Namespaces:        c.Namespaces,
				ExcludeNamespaces: c.ExcludeNamespaces,
				ResyncPeriod:      c.ResyncPeriod,
				ProgressDeadline:  c.WatchProgressDeadline,
				BufferBytes:       int64(c.BufferBytes),
				Feeds:             feeds,
				Metrics:           metrics,
				Log:               log,
			})
		},
		Scope:             scope(c),
		WatermarkInterval: c.WatermarkInterval,
		Metrics:           metrics,
		Elector:           elector,
		Grace:             c.ShutdownGrace,
		Log:               log,
	})
	state := &state{bridge: b, config: c, stream: c.Stream}
	metrics.Expose(state)
	srv, err := server.Listen(c.HTTPAddr, state, metrics)
	if err != nil {
		return nil, err
	}
	return &app{bridge: b, server: srv, control: newControl(c, broker.Conn, state, log)}, nil
}

// kubeConfig reads how to reach the API server: the kubeconfig that is named, else the pod's own service account, else
// the user's kubeconfig.
func kubeConfig(c *config.Config) (*rest.Config, error) {
	var restConfig *rest.Config
	var err error
	if c.Kubeconfig == "" && c.KubeContext == "" {
		restConfig, err = rest.InClusterConfig()
	}
	if restConfig == nil && (err == nil || errors.Is(err, rest.ErrNotInCluster)) {
		loader := kubeconfigLoader(c)
		restConfig, err = loader.ClientConfig()
		if clientcmd.IsEmptyConfig(err) {
			why := whyNoCluster(loader.ConfigAccess().GetLoadingPrecedence())
			if c.Kubeconfig == "" && c.KubeContext == "" {
				why += ", and this is not a pod"
			}
			return nil, fmt.Errorf("KUBECONFIG=%q: %s; accepted: the path of a kubeconfig file", string(c.Kubeconfig), why)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("KUBECONFIG=%q, BRIDGE_KUBE_CONTEXT=%q: %w; accepted: a kubeconfig file that can be read, and a context in it", string(c.Kubeconfig), c.KubeContext, err)
	}
	restConfig.QPS, restConfig.Burst = c.KubeQPS, c.KubeBurst
	restConfig.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(c.KubeQPS, c.KubeBurst) // one for all clients
	restConfig.UserAgent = "deltabridge/" + version
	return restConfig, nil
}

// kubeconfigLoader returns what reads the kubeconfig files.
func kubeconfigLoader(c *config.Config) clientcmd.ClientConfig {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.WarnIfAllMissing = false
	rules.ExplicitPath = ""
	if c.Kubeconfig != "" {
		rules.Precedence = strings.Split(string(c.Kubeconfig), string(os.PathListSeparator))
	}
	overrides := &clientcmd.ConfigOverrides{CurrentContext: c.KubeContext}
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides)
}

// newElector returns nil unless leader election is on. An error is a fault of the configuration.
func newElector(c *config.Config, restConfig *rest.Config, identity string, log *slog.Logger) (bridge.Elector, error) {
	if !c.LeaderElect {
		return nil, nil
	}
	elector, err := leader.New(leader.Options{
		Config:        restConfig,
		Namespace:     leaseNamespace(c, serviceAccountNamespace),
		Name:          c.Lease(),
		Identity:      identity,
		LeaseDuration: c.LeaseDuration,
		Log:           log,
	})
	if err != nil {
		return nil, fmt.Errorf("BRIDGE_LEADER_ELECT=true: %w", err)
	}
	return elector, nil
}

// serviceAccountNamespace is the file in which a pod finds its namespace.
const serviceAccountNamespace = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// leaseNamespace returns the namespace of the Lease: the one that is configured, else the pod's own, as the file or
// POD_NAMESPACE says, else that of the kubeconfig's context, else default.
func leaseNamespace(c *config.Config, file string) string {
	if c.LeaseNamespace != "" {
		return c.LeaseNamespace
	}
	if own, err := os.ReadFile(file); err == nil && len(bytes.TrimSpace(own)) > 0 {
		return string(bytes.TrimSpace(own))
	}
	if own := os.Getenv("POD_NAMESPACE"); own != "" {
		return own
	}
	if own, _, err := kubeconfigLoader(c).Namespace(); err == nil && own != "" {
		return own
	}
	return metav1.NamespaceDefault
}

// whyNoCluster says why kubeconfig files name no cluster: clientcmd passes over those that do not exist.
func whyNoCluster(files []string) string {
	for _, file := range files {
		if _, err := os.Stat(file); err == nil {
			return "no cluster is configured in " + file
		}
	}
	return "there is no file " + strings.Join(files, ", ")
}

func connOptions(c *config.Config) publisher.ConnOptions {
	return publisher.ConnOptions{
		URLs:       c.NATSURL.Reveal(),
		Name:       "deltabridge " + c.Cluster,
		Creds:      string(c.NATSCreds),
		NKey:       c.NATSNKey.Reveal(),
		User:       c.NATSUser,
		Password:   c.NATSPassword.Reveal(),
		Token:      c.NATSToken.Reveal(),
		CA:         string(c.NATSCA),
		Cert:       string(c.NATSCert),
		Key:        string(c.NATSKey),
		Context:    c.NATSContext,
		Domain:     c.NATSDomain,
		MaxPending: c.MaxPending,
	}
}

func patterns(in config.ResourcePatterns) []informer.Pattern {
	out := make([]informer.Pattern, 0, len(in))
	for _, p := range in {
		out = append(out, informer.Pattern{Exclude: p.Exclude, Text: p.Text})
	}
	return out
}

// scope is what of the configuration decides which messages are published, and with which bodies.
func scope(c *config.Config) checkpoint.Scope {
	return checkpoint.Scope{
		Namespaces: c.Namespaces,
		Exclude:    c.ExcludeNamespaces,
		Form: map[string]string{
			"payload": string(c.Payload),
			"strip":   c.Strip.String(),
			"secrets": string(c.Secrets),
		},
	}
}

func stripPaths(in config.StripPaths) []message.StripPath {
	out := make([]message.StripPath, 0, len(in))
	for _, p := range in {
		out = append(out, message.StripPath(p.Steps))
	}
	return out
}

// holder names this process among all that may ever write.
func holder() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return host + "_" + rand.Text()
}

// broker joins the connection with what the configuration says of the stream.
type broker struct {
	*publisher.Conn
	config     *config.Config
	scheme     message.Scheme
	encoder    *message.Encoder
	metrics    *server.Metrics
	log        *slog.Logger
	holder     string
	clusterUID func(context.Context) (string, error)
}

var _ bridge.Broker = (*broker)(nil)

// EnsureStream makes sure that the stream exists and fits, as far as BRIDGE_STREAM_MODE allows.
func (b *broker) EnsureStream(ctx context.Context) (publisher.StreamInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return publisher.EnsureStream(ctx, b.Conn, streamOptions(b.config, b.scheme))
}

// streamOptions says what the configuration wants of the stream.
func streamOptions(c *config.Config, scheme message.Scheme) publisher.StreamOptions {
	storage := jetstream.FileStorage
	if c.StreamStorage == config.StorageMemory {
		storage = jetstream.MemoryStorage
	}
	return publisher.StreamOptions{
		Name:     c.Stream,
		Mode:     publisher.StreamMode(c.StreamMode),
		Subjects: []string{c.SubjectPrefix + ".>"},
		Needs:    []string{scheme.WriterSubject(), scheme.All()},
		Replicas: c.StreamReplicas,
		Storage:  storage,
		History:  c.StreamHistory,
		MaxAge:   c.StreamMaxAge,
		MaxBytes: int64(c.StreamMaxBytes),
	}
}

// Resume takes the next epoch, and only then reads the ledger: what a former writer still appends afterwards is met by
// compare-and-set. In between it appends every watermark anew.
func (b *broker) Resume(ctx context.Context, info publisher.StreamInfo, rewound bool) (bridge.Publisher, bridge.Resumed, error) {
	clusterUID, err := b.clusterUID(ctx)
	if err != nil {
		return nil, bridge.Resumed{}, fmt.Errorf("ask the Kubernetes API which cluster this is: %w", err)
	}
	watermarks, err := publisher.ReadWatermarks(ctx, publisher.WatermarkOptions{
		Conn: b.Conn, Stream: b.config.Stream, Scheme: b.scheme, Encoder: b.encoder,
	})
	if err != nil {
		return nil, bridge.Resumed{}, err
	}
	epoch, history, err := b.takeEpoch(ctx, clusterUID, watermarks.ClusterUID(), rewound)
	if err != nil {
		return nil, bridge.Resumed{}, err
	}
	b.encoder.SetEpoch(epoch)
	err = watermarks.TakeOver(ctx, epoch, func(w message.Watermark) bool { return voidReason(w, clusterUID, history) == "" })
	if err != nil {
		return nil, bridge.Resumed{}, err
	}
	ledger := checkpoint.NewLedger()
	subjects, foreign, err := publisher.ReadLedger(ctx, b.Conn, b.config.Stream, b.scheme, ledger)
	if err != nil {
		return nil, bridge.Resumed{}, err
	}
	p := publisher.New(publisher.Options{
		Conn:            b.Conn,
		Stream:          b.config.Stream,
		MaxMsgSize:      info.MaxMsgSize,
		Batches:         info.Batches,
		Scheme:          b.scheme,
		Encoder:         b.encoder,
		Ledger:          ledger,
		Epoch:           epoch,
		Rewound:         history,
		MaxPending:      b.config.MaxPending,
		MaxPendingBytes: int64(b.config.BufferBytes),
		Metrics:         b.metrics,
		Log:             b.log,
	})
	return p, bridge.Resumed{
		Epoch: epoch, Subjects: subjects, Foreign: append(foreign, watermarks.Foreign()...), ClusterUID: clusterUID,
		Checkpoint: &streamCheckpoint{
			scheme: b.scheme, ledger: ledger, watermarks: watermarks, clusterUID: clusterUID, history: history,
		},
	}, nil
}

// state is what the server shows.
type state struct {
	bridge *bridge.Bridge
	config *config.Config
	stream string
}

var (
	_ server.State  = (*state)(nil)
	_ server.Gauges = (*state)(nil)
)

// Ready returns the conditions for being ready.
func (s *state) Ready() []server.Check { return checks(s.bridge.Ready()) }

func checks(in []bridge.Check) []server.Check {
	out := make([]server.Check, 0, len(in))
	for _, c := range in {
		out = append(out, server.Check(c))
	}
	return out
}

// Status returns what /statusz shows.
func (s *state) Status() any {
	status := s.bridge.Status()
	return struct {
		Version string `json:"version"`
		Commit  string `json:"commit"`
		Cluster string `json:"cluster"`
		Stream  string `json:"stream"`
		bridge.Status
		Checks []server.Check   `json:"checks"`
		Config []config.Setting `json:"config"`
	}{version, commit, s.config.Cluster, s.stream, status, checks(status.Checks), s.config.Redacted()}
}

// Page returns what the page at / shows.
func (s *state) Page() server.Page {
	status := s.bridge.Status()
	out := server.Page{
		Cluster: s.config.Cluster, Stream: s.stream, Version: version, Role: "waits until it can publish", Epoch: status.Epoch,
		PendingMessages: status.Pending.Messages, PendingBytes: status.Pending.Bytes, Ready: status.Ready,
	}
	switch {
	case s.bridge.Leader():
		out.Role = "publishes"
	case status.Leader != nil && !status.Leader.Leading && status.Leader.Holder != "":
		out.Role = "stands by, " + status.Leader.Holder + " leads"
	case status.Leader != nil && !status.Leader.Leading:
		out.Role = "stands by"
	}
	remarks := map[string]server.Check{}
	for _, c := range checks(status.Checks) {
		if name, ok := strings.CutPrefix(c.Name, "resource "); ok {
			remarks[name] = c
			continue
		}
		out.Checks = append(out.Checks, c)
	}
	watermarks := s.bridge.Watermarks()
	for _, r := range s.bridge.Resources() {
		name := r.Resource.String()
		line := server.PageResource{
			Resource: r.Resource, State: string(r.State), Settled: r.Settled, Message: r.Message, Objects: r.Objects, Held: r.Held,
			Watermark: watermarks[r.Resource].Version, WatermarkTime: watermarks[r.Resource].Time,
		}
		if r.State != informer.StateWatching || r.Held || r.Verb != "" {
			line.Message = remarks[name].Message // in a sentence
		}
		out.Resources = append(out.Resources, line)
		delete(remarks, name)
	}
	for _, name := range slices.Sorted(maps.Keys(remarks)) { // what is selected and not there
		out.Checks = append(out.Checks, remarks[name])
	}
	return out
}

// Pending returns how many changes are accepted and not done, and the size of their objects.
func (s *state) Pending() (messages, bytes int64) { return s.bridge.Pending() }

// Connected reports whether there is a connection to NATS.
func (s *state) Connected() bool { return s.bridge.Connected() }

// Parked returns how many objects cannot be published.
func (s *state) Parked() int { return s.bridge.Parked() }

// Conditions returns which conditions for being ready are met. Those of the resources are one.
func (s *state) Conditions() map[string]bool {
	out := map[string]bool{}
	for _, c := range s.bridge.Ready() {
		name, _, _ := strings.Cut(c.Name, " ")
		met, seen := out[name]
		out[name] = c.OK && (met || !seen)
	}
	return out
}

// Leader reports whether this process publishes.
func (s *state) Leader() bool { return s.bridge.Leader() }

// Resources returns the state of each selected resource.
func (s *state) Resources() []server.ResourceGauge {
	resources := s.bridge.Resources()
	watermarks := s.bridge.Watermarks()
	out := make([]server.ResourceGauge, 0, len(resources))
	for _, r := range resources {
		out = append(out, server.ResourceGauge{
			Resource: r.Resource, State: string(r.State), Objects: r.Objects, Held: r.Held, Watermark: watermarks[r.Resource].Time,
		})
	}
	return out
}
