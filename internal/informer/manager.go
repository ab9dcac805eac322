package informer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
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
	// ResyncPeriod is how often every object is handed on again, unchanged; zero for never, else at least a second.
	ResyncPeriod time.Duration
	// ProgressDeadline is how long a watch may bring neither event nor bookmark before it is doubted; zero for three
	// minutes.
	ProgressDeadline time.Duration
	// BufferBytes bounds what is held in memory of changes that are not acknowledged yet, of all resources together: their
	// objects' JSON, and about a kilobyte for each. Zero is no bound.
	BufferBytes int64
	// Feeds is where the changes go.
	Feeds   Feeds
	Metrics Metrics
	Log     *slog.Logger
}

// Manager keeps one informer running for each selected resource that the API server has. It is the owner of their
// goroutines.
type Manager struct {
	options   Options
	client    rest.Interface
	gate      *Gate
	discovery *discovery.DiscoveryClient
	log       *slog.Logger

	// What only the goroutine of Run uses: the last catalog, and what was logged.
	catalog  Catalog
	unreach  string // the advice that was last logged for an API that cannot be used, empty while it can
	warnings map[string]bool
	removals removals

	background sync.WaitGroup // what Run waits for at its end

	mu       sync.Mutex
	running  map[schema.GroupResource]*follower // written by Run's goroutine alone
	missing  []string
	unknown  []Unknown
	reachErr error
	resolved bool // discovery has succeeded once
}

// follower is a resource and its informers: one, or one for each namespace.
type follower struct {
	resource Resource
	cancel   context.CancelFunc
	done     chan struct{}
	trouble  troubleLog // of the time before there are informers

	mu        sync.Mutex
	informers []*informer
	verb      string // why the informers could not be made yet
	scopeErr  error
}

// NewManager returns a Manager that does nothing until Run. It fails only for a configuration that no client can be
// made of.
func NewManager(options Options) (*Manager, error) {
	config := rest.CopyConfig(options.Config)
	if err := rawConfig(config); err != nil {
		return nil, err
	}
	config.WarningHandlerWithContext = &apiWarnings{log: options.Log, seen: map[string]bool{}}
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
	if options.BufferBytes <= 0 {
		options.BufferBytes = math.MaxInt64
	}
	return &Manager{
		options:   options,
		client:    client,
		gate:      NewGate(options.BufferBytes),
		discovery: disco,
		log:       options.Log,
		running:   map[schema.GroupResource]*follower{},
		warnings:  map[string]bool{},
		removals:  removals{absent: map[schema.GroupResource]time.Time{}, told: map[schema.GroupResource]chan struct{}{}, doubted: map[schema.GroupResource]string{}},
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
// every informer has stopped and its last change was handed to its feed.
func (m *Manager) Run(ctx context.Context) {
	defer m.background.Wait()
	defer m.stop(func(*follower) bool { return true })
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
	catalog, err := m.readCatalog(ctx)
	if ctx.Err() != nil {
		return false
	}
	m.noteReach(err)
	if err != nil {
		return false
	}
	m.catalog = catalog.remember(m.catalog)
	selection := Select(m.options.Patterns, m.catalog)
	m.noteSelection(selection)
	wanted := map[schema.GroupResource]Resource{}
	for _, r := range selection.Resources {
		wanted[r.GVR.GroupResource()] = r
	}
	m.stop(func(f *follower) bool { return wanted[f.resource.GVR.GroupResource()] != f.resource })
	unsure := m.noteRemovals(ctx, wanted)
	m.mu.Lock()
	defer m.mu.Unlock()
	for gr, r := range wanted {
		if _, ok := m.running[gr]; !ok {
			m.running[gr] = m.start(ctx, r)
		}
	}
	return len(selection.Missing) == 0 && len(selection.Unknown) == 0 && !unsure
}

// noteReach records whether the API server could be asked, and logs when that changes. The advice tells one trouble from
// another: an error's own text may differ each time, by a port, say.
func (m *Manager) noteReach(err error) {
	m.mu.Lock()
	m.reachErr = err
	m.mu.Unlock()
	advice := ""
	if err != nil {
		advice = err.Error()
		if reach := (*reachError)(nil); errors.As(err, &reach) {
			advice = reach.advice
		}
	}
	switch {
	case advice == m.unreach:
	case err == nil:
		m.log.Info("Kubernetes API can be used again")
	default:
		m.log.Warn("Kubernetes API cannot be used, trying again", "error", err)
	}
	m.unreach = advice
}

// noteSelection records what the patterns name, and logs what changed of it.
func (m *Manager) noteSelection(s Selection) {
	for _, w := range s.Warnings {
		if !m.warnings[w] {
			m.warnings[w] = true
			m.log.Warn("resource selection", "warning", w)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(s.Missing) > 0 && !slices.Equal(m.missing, s.Missing) {
		m.log.Warn("selected resources do not exist yet, waiting for them", "resources", strings.Join(s.Missing, ","))
	}
	if len(s.Unknown) > 0 && !slices.Equal(m.unknown, s.Unknown) {
		for _, u := range s.Unknown {
			m.log.Warn("selected resource is in an API group that cannot be discovered", "resource", u.Pattern, "error", u.Message)
		}
	}
	m.missing, m.unknown, m.resolved = s.Missing, s.Unknown, true
}

// start runs a resource's informers in a goroutine of their own.
func (m *Manager) start(ctx context.Context, r Resource) *follower {
	ctx, cancel := context.WithCancel(ctx)
	f := &follower{
		resource: r, cancel: cancel, done: make(chan struct{}), trouble: troubleLog{log: m.log, resource: r.String()},
	}
	go func() {
		defer close(f.done)
		m.follow(ctx, f)
	}()
	return f
}

// stop ends the followers that are picked, all at once, and waits for them. It does so without the lock: the status is
// asked for meanwhile.
func (m *Manager) stop(pick func(*follower) bool) {
	var stopped []*follower
	m.mu.Lock()
	for gr, f := range m.running {
		if pick(f) {
			f.cancel()
			stopped = append(stopped, f)
			delete(m.running, gr)
		}
	}
	m.mu.Unlock()
	for _, f := range stopped {
		<-f.done
	}
}

// follow runs the informers of a resource until the context ends.
func (m *Manager) follow(ctx context.Context, f *follower) {
	namespaces, err := m.scope(ctx, f)
	if err != nil {
		return // the context has ended
	}
	origin, feeds, err := m.options.Feeds.Open(ctx, f.resource.GVR.GroupResource(), len(namespaces))
	if err != nil {
		return
	}
	if origin.resumes() && !m.checkVersion(ctx, f, namespaces[0], &origin) {
		return
	}
	m.leave(ctx, f, namespaces, origin, feeds[0])
	var wg sync.WaitGroup
	defer wg.Wait()
	for i, ns := range namespaces {
		in, err := newInformer(m.informerOptions(), f.resource, ns, m.keep(ns), feeds[i])
		if err == nil {
			err = in.prime(origin.in(ns, m.keep(ns)))
		}
		if err != nil {
			m.log.Error("informer cannot be made", "resource", f.resource.String(), "error", err)
			continue
		}
		if m.options.ProgressDeadline > 0 {
			in.lw.deadline = m.options.ProgressDeadline
		}
		in.lw.rewound = func(known, served string) bool { return m.rewound(ctx, f.resource, known, served) }
		f.mu.Lock()
		f.informers = append(f.informers, in)
		f.mu.Unlock()
		wg.Go(func() { in.run(ctx) })
	}
}

// scope decides between one request for the whole cluster and one for each namespace. One watch is cheaper for both
// sides, so several namespaces are watched as one where the rights allow it. It retries until it knows, and returns an
// error only when the context has ended.
func (m *Manager) scope(ctx context.Context, f *follower) ([]string, error) {
	if !f.resource.Namespaced || len(m.options.Namespaces) == 0 {
		return []string{""}, nil
	}
	if len(m.options.Namespaces) == 1 {
		return m.options.Namespaces, nil
	}
	allowed := false
	err := f.retry(ctx, func() (string, error) {
		verb, err := m.probe(ctx, f.resource)
		allowed = err == nil
		if apierrors.IsForbidden(err) {
			err = nil
		}
		return verb, err
	})
	if err != nil || allowed {
		return []string{""}, err
	}
	return m.options.Namespaces, nil
}

// retry calls try until it succeeds, with growing pauses, and shows meanwhile which verb fails and why. It returns an
// error only when the context has ended.
func (f *follower) retry(ctx context.Context, try func() (verb string, err error)) error {
	backoff := wait.Backoff{Duration: 500 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 8, Cap: 30 * time.Second}
	for {
		verb, err := try()
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil:
			f.blocked("", nil)
			return nil
		}
		f.blocked(verb, err)
		timer := time.NewTimer(backoff.Step())
		select {
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-timer.C:
		}
	}
}

// blocked records why it cannot be decided yet which informers to make.
func (f *follower) blocked(verb string, err error) {
	f.trouble.note(verb, err)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.verb, f.scopeErr = verb, err
}

// probe tries whether the resource may be listed and watched in the whole cluster, at the least cost: one object is
// listed (the API server would ignore that limit for a list of any version), and a watch is opened and closed.
func (m *Manager) probe(ctx context.Context, r Resource) (verb string, err error) {
	version, err := currentVersion(ctx, m.client, r, "")
	if err != nil {
		return "list", err
	}
	second := int64(1)
	options := &metav1.ListOptions{Watch: true, ResourceVersion: version, TimeoutSeconds: &second}
	stream, err := m.client.Get().AbsPath(r.path("")...).VersionedParams(options, metav1.ParameterCodec).Stream(ctx)
	if err != nil {
		return "watch", err
	}
	return "", stream.Close()
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
	// Unknown are the patterns of which it is not known whether the API server has what they name.
	Unknown []Unknown
}

// Settled reports whether every selected resource has synced or has a named reason why not.
func (o Overview) Settled() bool {
	return o.Reached && !slices.ContainsFunc(o.Resources, func(r ResourceStatus) bool { return !r.Settled })
}

// Overview returns the state of everything that is selected, resources in alphabetical order.
func (m *Manager) Overview() Overview {
	m.mu.Lock()
	defer m.mu.Unlock()
	o := Overview{
		Reached: m.resolved && m.reachErr == nil, Missing: slices.Clone(m.missing), Unknown: slices.Clone(m.unknown),
	}
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
	if len(f.informers) == 0 {
		if f.scopeErr != nil {
			return Status{State: stateOf(f.scopeErr), Settled: true, Verb: f.verb, Message: f.scopeErr.Error()}
		}
		return Status{State: StateStarting}
	}
	out := f.informers[0].status()
	for _, in := range f.informers[1:] {
		s := in.status()
		out.Objects += s.Objects
		out.Synced = out.Synced && s.Synced
		out.Settled = out.Settled && s.Settled
		out.Held = out.Held || s.Held
		if out.Verb == "" && (s.Verb != "" || s.State == StateStarting) {
			out.State, out.Verb, out.Message = s.State, s.Verb, s.Message
		}
	}
	return out
}

// ClusterUID returns the uid of the kube-system namespace, by which a cluster is told from another. It is empty if we may
// not read it, or if the cluster has no such namespace; the error means that the API server could not be asked.
func ClusterUID(ctx context.Context, config *rest.Config) (string, error) {
	config = rest.CopyConfig(config)
	if err := rawConfig(config); err != nil {
		return "", err
	}
	client, err := rest.UnversionedRESTClientFor(config)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	body, err := fetch(ctx, client.Get().AbsPath("/api/v1/namespaces/kube-system"))
	switch {
	case apierrors.IsForbidden(err) || apierrors.IsNotFound(err):
		return "", nil
	case err != nil:
		return "", explainReach(err)
	}
	var m metadata
	var w jsonscan.Walker
	if _, err := scanObject(&w, body, 0, &m); err != nil {
		return "", err
	}
	return string(m.uid), nil
}
