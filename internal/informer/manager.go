package informer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"

	"github.com/deltabridge/deltabridge/internal/jsonscan"
)

// discoveryPeriod is how often the API server is asked what it has; discoveryRetry how often while something selected
// is missing or discovery fails. One request answers it.
const (
	discoveryPeriod = 30 * time.Second
	discoveryRetry  = 5 * time.Second
)

// Options configure a Manager.
type Options struct {
	Config *rest.Config
	// Patterns select the resources.
	Patterns []Pattern
	// Namespaces, if not empty, are the only ones of interest: namespaced resources are then requested namespace by
	// namespace, which needs only namespaced rights, unless one request for the whole cluster is allowed.
	Namespaces []string
	// ExcludeNamespaces are left out.
	ExcludeNamespaces []string
	Sink              Sink
	Metrics           Metrics
	Log               *slog.Logger
}

// Manager keeps one informer running for each selected resource that the API server has. It is the owner of their
// goroutines.
type Manager struct {
	options   Options
	client    rest.Interface
	discovery *discovery.DiscoveryClient
	log       *slog.Logger

	mu       sync.Mutex
	running  map[schema.GroupResource]*follower
	missing  []string
	reachErr error
	resolved bool // discovery has succeeded once
	warnings map[string]bool
}

// follower is a resource and its informers: one, or one for each namespace.
type follower struct {
	resource  Resource
	cancel    context.CancelFunc
	done      chan struct{}
	mu        sync.Mutex
	informers []*informer
	scopeErr  error // why the informers could not be made yet
}

// NewManager returns a Manager that does nothing until Run. It fails only for a configuration that no client can be
// made of.
func NewManager(options Options) (*Manager, error) {
	config := rest.CopyConfig(options.Config)
	if err := rawConfig(config); err != nil {
		return nil, err
	}
	httpClient, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("make the API client: %w", err)
	}
	client, err := rest.UnversionedRESTClientForConfigAndClient(config, httpClient)
	if err != nil {
		return nil, fmt.Errorf("make the API client: %w", err)
	}
	disco, err := discovery.NewDiscoveryClientForConfigAndClient(config, httpClient)
	if err != nil {
		return nil, fmt.Errorf("make the discovery client: %w", err)
	}
	return &Manager{
		options:   options,
		client:    client,
		discovery: disco,
		log:       options.Log,
		running:   map[schema.GroupResource]*follower{},
		warnings:  map[string]bool{},
	}, nil
}

// rawConfig sets a client up for JSON that we read ourselves; only errors are decoded, as Status.
func rawConfig(config *rest.Config) error {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	config.AcceptContentTypes = runtime.ContentTypeJSON
	config.ContentType = runtime.ContentTypeJSON
	config.GroupVersion = nil
	config.APIPath = "/"
	config.Timeout = 0 // a watch has no end
	if config.QPS <= 0 || config.Burst <= 0 {
		return errors.New("the API client's QPS and burst must be above zero")
	}
	return nil
}

// Run discovers, and starts and stops informers as resources come and go, until the context ends. It returns when
// every informer has stopped and its last change was handed to the sink.
func (m *Manager) Run(ctx context.Context) {
	defer m.stopAll()
	for {
		complete := m.discover(ctx)
		period := discoveryPeriod
		if !complete {
			period = discoveryRetry
		}
		timer := time.NewTimer(wait.Jitter(period, 0.2))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}

// discover brings the running informers in line with what the API server has. It reports whether everything that is
// selected was found.
func (m *Manager) discover(ctx context.Context) bool {
	catalog, err := m.catalog(ctx)
	if ctx.Err() != nil {
		return false
	}
	m.mu.Lock()
	previous := m.reachErr
	m.reachErr = err
	m.mu.Unlock()
	if err != nil {
		if previous == nil || previous.Error() != err.Error() {
			m.log.Warn("Kubernetes API cannot be used, trying again", "error", err)
		}
		return false
	}
	if previous != nil {
		m.log.Info("Kubernetes API can be used again")
	}
	selection := Select(m.options.Patterns, catalog)
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, w := range selection.Warnings {
		if !m.warnings[w] {
			m.warnings[w] = true
			m.log.Warn("resource selection", "warning", w)
		}
	}
	if !m.resolved || !slices.Equal(m.missing, selection.Missing) {
		if len(selection.Missing) > 0 {
			m.log.Warn("selected resources do not exist yet, waiting for them", "resources", strings.Join(selection.Missing, ","))
		}
	}
	m.missing, m.resolved = selection.Missing, true
	wanted := map[schema.GroupResource]Resource{}
	for _, r := range selection.Resources {
		wanted[r.GVR.GroupResource()] = r
	}
	for gr, f := range m.running {
		r, ok := wanted[gr]
		if !ok && catalog.unknown(f.resource) {
			wanted[gr] = f.resource // discovery could not say; keep what runs
			continue
		}
		if !ok || r != f.resource {
			m.log.Info("resource is gone or served differently, stopping its informer", "resource", f.resource.String())
			f.stop()
			delete(m.running, gr)
		}
	}
	for gr, r := range wanted {
		if _, ok := m.running[gr]; !ok {
			m.running[gr] = m.start(ctx, r)
		}
	}
	return len(selection.Missing) == 0 && len(catalog.Failed) == 0
}

// unknown reports whether discovery failed for the resource's group version.
func (c Catalog) unknown(r Resource) bool {
	for gv := range c.Failed {
		if gv.Group == r.GVR.Group {
			return true
		}
	}
	return false
}

// catalog asks the API server what it has, in one aggregated request where it can answer that.
func (m *Manager) catalog(ctx context.Context) (Catalog, error) {
	groups, lists, err := m.discovery.ServerGroupsAndResourcesWithContext(ctx)
	failed, partial := discovery.GroupDiscoveryFailedErrorGroups(err)
	if err != nil && !partial {
		return Catalog{}, explainReach(err)
	}
	if len(groups) == 0 {
		return Catalog{}, errors.New("the API server has no API groups; is KUBECONFIG's server a Kubernetes API server?")
	}
	resources := map[string][]metav1.APIResource{}
	for _, l := range lists {
		resources[l.GroupVersion] = l.APIResources
	}
	catalog := Catalog{Failed: failed}
	for _, g := range groups {
		group := CatalogGroup{Name: g.Name}
		versions := []metav1.GroupVersionForDiscovery{g.PreferredVersion}
		for _, v := range g.Versions {
			if v != g.PreferredVersion {
				versions = append(versions, v)
			}
		}
		for _, v := range versions {
			group.Versions = append(group.Versions, CatalogVersion{Version: v.Version, Resources: resources[v.GroupVersion]})
		}
		catalog.Groups = append(catalog.Groups, group)
	}
	return catalog, nil
}

// explainReach says in a user's words why the API server cannot be used at all.
func explainReach(err error) error {
	switch {
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("the API server does not accept the credentials; check KUBECONFIG or the service account's token: %w", err)
	case apierrors.IsForbidden(err):
		return fmt.Errorf("discovery is forbidden; bind the ClusterRole system:discovery: %w", err)
	}
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("no Kubernetes API at this address; check KUBECONFIG's server: %w", err)
	}
	return fmt.Errorf("the API server cannot be reached; check KUBECONFIG's server and the network: %w", err)
}

// start runs a resource's informers in a goroutine of their own.
func (m *Manager) start(ctx context.Context, r Resource) *follower {
	ctx, cancel := context.WithCancel(ctx)
	f := &follower{resource: r, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(f.done)
		m.follow(ctx, f)
	}()
	return f
}

func (f *follower) stop() {
	f.cancel()
	<-f.done
}

func (m *Manager) follow(ctx context.Context, f *follower) {
	namespaces, err := m.scope(ctx, f)
	if err != nil {
		return // the context has ended
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	for _, ns := range namespaces {
		in, err := newInformer(m.client, f.resource, ns, m.keep(ns), m.options.Sink, m.options.Metrics, m.log)
		if err != nil {
			m.log.Error("informer cannot be made", "resource", f.resource.String(), "error", err)
			continue
		}
		f.mu.Lock()
		f.informers = append(f.informers, in)
		f.mu.Unlock()
		wg.Go(func() { in.run(ctx) })
	}
}

// scope decides between one request for the whole cluster and one for each namespace. One watch is cheaper for both
// sides, so several namespaces are watched as one where the rights allow a list of all. It retries until it knows, and
// returns an error only when the context has ended.
func (m *Manager) scope(ctx context.Context, f *follower) ([]string, error) {
	if !f.resource.Namespaced || len(m.options.Namespaces) == 0 {
		return []string{""}, nil
	}
	if len(m.options.Namespaces) == 1 {
		return m.options.Namespaces, nil
	}
	backoff := wait.Backoff{Duration: 500 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 8, Cap: 30 * time.Second}
	for {
		limit := metav1.ListOptions{Limit: 1, ResourceVersion: "0"}
		err := m.client.Get().AbsPath(f.resource.path("")...).VersionedParams(&limit, metav1.ParameterCodec).Do(ctx).Error()
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case err == nil:
			return []string{""}, nil
		case apierrors.IsForbidden(err):
			return m.options.Namespaces, nil
		}
		f.mu.Lock()
		f.scopeErr = err
		f.mu.Unlock()
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(backoff.Step()):
		}
	}
}

// keep returns the client-side namespace filter of an informer over the given namespace, nil if it needs none.
func (m *Manager) keep(namespace string) func(string) bool {
	if namespace != "" || (len(m.options.Namespaces) == 0 && len(m.options.ExcludeNamespaces) == 0) {
		return nil
	}
	return func(ns string) bool {
		if ns == "" {
			return true
		}
		if len(m.options.Namespaces) > 0 && !slices.Contains(m.options.Namespaces, ns) {
			return false
		}
		return !slices.Contains(m.options.ExcludeNamespaces, ns)
	}
}

func (m *Manager) stopAll() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, f := range m.running {
		f.cancel()
	}
	for gr, f := range m.running {
		<-f.done
		delete(m.running, gr)
	}
}

// ResourceStatus is the status of one selected resource.
type ResourceStatus struct {
	Resource schema.GroupResource
	Version  string
	Status
}

// Overview is the state of everything that is selected.
type Overview struct {
	// Reached is false until discovery has succeeded once, or while it fails.
	Reached bool
	// Message says why discovery fails, in words for a user.
	Message   string
	Resources []ResourceStatus
	// Missing are the patterns that name nothing that the API server has.
	Missing []string
}

// Settled reports whether every selected resource has synced or has a named reason why not.
func (o Overview) Settled() bool {
	if !o.Reached {
		return false
	}
	for _, r := range o.Resources {
		if !r.Synced && r.State == StateStarting {
			return false
		}
	}
	return true
}

// Overview returns the state of everything that is selected, resources in alphabetical order.
func (m *Manager) Overview() Overview {
	m.mu.Lock()
	defer m.mu.Unlock()
	o := Overview{Reached: m.resolved && m.reachErr == nil, Missing: slices.Clone(m.missing)}
	if m.reachErr != nil {
		o.Message = m.reachErr.Error()
	}
	for gr, f := range m.running {
		o.Resources = append(o.Resources, ResourceStatus{Resource: gr, Version: f.resource.GVR.Version, Status: f.status()})
	}
	slices.SortFunc(o.Resources, func(a, b ResourceStatus) int {
		return strings.Compare(a.Resource.String(), b.Resource.String())
	})
	return o
}

// status sums up a resource's informers: the first one in trouble speaks for all.
func (f *follower) status() Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := Status{State: StateStarting}
	if len(f.informers) == 0 {
		if f.scopeErr != nil {
			out.State, out.Verb, out.Message = StateFailing, "list", f.scopeErr.Error()
		}
		return out
	}
	for i, in := range f.informers {
		s := in.status()
		out.Objects += s.Objects
		if i == 0 {
			out.State, out.Synced, out.Verb, out.Message, out.Position = s.State, s.Synced, s.Verb, s.Message, s.Position
			continue
		}
		out.Synced = out.Synced && s.Synced
		if out.Verb == "" && s.Verb != "" || out.State == StateWatching && s.State == StateStarting {
			out.State, out.Verb, out.Message = s.State, s.Verb, s.Message
		}
	}
	return out
}

// ClusterUID returns the uid of the kube-system namespace, by which a cluster is told from another; empty if it cannot be
// read within a few seconds, for lack of the right to it, say.
func ClusterUID(ctx context.Context, config *rest.Config) string {
	config = rest.CopyConfig(config)
	if err := rawConfig(config); err != nil {
		return ""
	}
	client, err := rest.UnversionedRESTClientFor(config)
	if err != nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	body, err := client.Get().AbsPath("/api/v1/namespaces/kube-system").DoRaw(ctx)
	if err != nil {
		return ""
	}
	var m metadata
	var w jsonscan.Walker
	if _, err := scanObject(&w, body, 0, &m); err != nil {
		return ""
	}
	return string(m.uid)
}
