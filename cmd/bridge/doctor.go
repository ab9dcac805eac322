package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	authorizationclient "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/deltabridge/deltabridge/internal/change"
	"github.com/deltabridge/deltabridge/internal/config"
	"github.com/deltabridge/deltabridge/internal/informer"
	"github.com/deltabridge/deltabridge/internal/message"
	"github.com/deltabridge/deltabridge/internal/publisher"
)

const doctorUsage = `Usage:
  bridge doctor

Checks, with the same environment variables as the service, what it needs: the configuration, the API server and the
rights to list and watch each selected resource, NATS, JetStream and the stream. It prints one line each, and changes
nothing on either side.

  ok      as it should be
  warn    the service runs, and something is less than it could be
  FAIL    the service would not do its work, or not all of it

Exit codes: 0 no FAIL, 1 at least one, 2 bad configuration or usage.
`

// doctorPatience is how long each server is waited for.
const doctorPatience = 10 * time.Second

// findings prints what was found, a line each.
type findings struct {
	out    io.Writer
	failed bool
}

func (f *findings) line(mark, what, format string, args ...any) {
	text := strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", "; ")
	fmt.Fprintf(f.out, "%-5s %s: %s\n", mark, what, text)
}

func (f *findings) ok(what, format string, args ...any)   { f.line("ok", what, format, args...) }
func (f *findings) warn(what, format string, args ...any) { f.line("warn", what, format, args...) }
func (f *findings) fail(what, format string, args ...any) {
	f.failed = true
	f.line("FAIL", what, format, args...)
}

// runDoctor checks what the service needs, and returns the exit code.
func runDoctor(ctx context.Context, args, environ []string, stdout, stderr io.Writer) int {
	if len(args) == 1 && slices.Contains([]string{"-h", "-help", "--help"}, args[0]) {
		fmt.Fprint(stdout, doctorUsage)
		return exitOK
	}
	if len(args) > 0 {
		fmt.Fprintf(stderr, "bridge doctor takes no arguments, got %q\n\n%s", args, doctorUsage)
		return exitConfig
	}
	silent := slog.New(slog.DiscardHandler)
	klog.SetSlogLogger(silent)
	f := &findings{out: stdout}
	c, restConfig, ok := f.configuration(environ)
	if !ok {
		return exitConfig
	}
	uid := f.kubernetes(ctx, c, restConfig, silent)
	f.broker(ctx, c, uid, silent)
	if f.failed || ctx.Err() != nil {
		return exitFailed
	}
	return exitOK
}

// configuration reads what the service reads. It reports false for one with which the service would not start.
func (f *findings) configuration(environ []string) (*config.Config, *rest.Config, bool) {
	c, warnings, err := config.Load(environ)
	for _, w := range warnings {
		f.warn("configuration", "%s", w)
	}
	if err != nil {
		for line := range strings.Lines(err.Error()) {
			f.fail("configuration", "%s", strings.TrimSuffix(line, "\n"))
		}
		return nil, nil, false
	}
	restConfig, err := kubeConfig(c)
	if err == nil {
		_, err = rest.HTTPClientFor(restConfig) // reads the files that a kubeconfig names
	}
	if err != nil {
		f.fail("configuration", "%v", err)
		return nil, nil, false
	}
	changed := 0
	for _, s := range c.Redacted() {
		if !s.Default {
			changed++
		}
	}
	f.ok("configuration", "%d settings differ from their defaults", changed)
	return c, restConfig, true
}

// kubernetes checks the API server. It returns the cluster's uid, empty if it is not known.
func (f *findings) kubernetes(ctx context.Context, c *config.Config, restConfig *rest.Config, log *slog.Logger) string {
	manager, err := informer.NewManager(informer.Options{
		Config: restConfig, Patterns: patterns(c.Resources), Namespaces: c.Namespaces, ExcludeNamespaces: c.ExcludeNamespaces, Log: log,
	})
	if err != nil {
		f.fail("kubernetes", "%v", err)
		return ""
	}
	reach, cancel := context.WithTimeout(ctx, doctorPatience)
	defer cancel()
	uid, uidErr := informer.ClusterUID(reach, restConfig)
	if uidErr != nil {
		f.fail("kubernetes", "%v", uidErr)
		return ""
	}
	examine, cancelExamine := context.WithTimeout(ctx, 6*doctorPatience) // two requests for each resource
	defer cancelExamine()
	found, err := manager.Examine(examine)
	if err != nil {
		f.fail("kubernetes", "%v", err)
		return ""
	}
	f.ok("kubernetes", "%s can be used", restConfig.Host)
	if uid == "" {
		f.warn("kubernetes", "the namespace kube-system cannot be read, so that another cluster under the same BRIDGE_CLUSTER would not be noticed; grant get on namespaces")
	}
	if found.Definitions != nil {
		f.warn("kubernetes", "customresourcedefinitions cannot be read, so that a custom resource that is removed while the bridge is down keeps its objects in the stream; grant get on customresourcedefinitions.apiextensions.k8s.io: %v", found.Definitions)
	}
	f.resources(found)
	if c.LeaderElect {
		f.lease(ctx, c, restConfig)
	}
	return uid
}

// resources has a line for each selected resource.
func (f *findings) resources(found informer.Examination) {
	for _, w := range found.Warnings {
		f.warn("resources", "%s", w)
	}
	for _, r := range found.Resources {
		what := "resource " + r.Resource.String()
		if len(r.Troubles) == 0 {
			f.ok(what, "can be listed and watched")
			continue
		}
		var texts []string
		for _, t := range r.Troubles {
			where := "in the whole cluster"
			if t.Namespace != "" {
				where = "in namespace " + t.Namespace
			}
			if !r.Resource.Namespaced {
				where = ""
			}
			if t.Forbidden() {
				texts = append(texts, strings.TrimSpace(fmt.Sprintf("the right to %s is missing %s", t.Verb, where)))
				continue
			}
			texts = append(texts, strings.TrimSpace(fmt.Sprintf("%s fails %s", t.Verb, where))+": "+t.Err.Error())
		}
		f.fail(what, "%s", strings.Join(texts, "; "))
	}
	for _, u := range found.Unknown {
		f.warn("resource "+u.Pattern, "its API group cannot be discovered: %s", u.Message)
	}
	for _, name := range found.Missing {
		f.warn("resource "+name, "the API server does not have it; it is followed once it does; check the name in BRIDGE_RESOURCES")
	}
	if len(found.Resources) == 0 {
		f.fail("resources", "BRIDGE_RESOURCES selects nothing that the API server has")
	}
}

// lease checks the rights of leader election.
func (f *findings) lease(ctx context.Context, c *config.Config, restConfig *rest.Config) {
	namespace := leaseNamespace(c, serviceAccountNamespace)
	what := fmt.Sprintf("lease %s/%s", namespace, c.Lease())
	client, err := authorizationclient.NewForConfig(restConfig)
	if err != nil {
		f.fail(what, "%v", err)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, doctorPatience)
	defer cancel()
	var missing []string
	for _, verb := range []string{"get", "create", "update"} {
		attributes := &authorizationv1.ResourceAttributes{
			Namespace: namespace, Verb: verb, Group: "coordination.k8s.io", Resource: "leases", Name: c.Lease(),
		}
		if verb == "create" {
			attributes.Name = "" // it has none yet when it is authorized
		}
		review, err := client.SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
			Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: attributes},
		}, metav1.CreateOptions{})
		if err != nil {
			f.warn(what, "it cannot be found out whether the right to %s it is there: %v", verb, err)
			return
		}
		if !review.Status.Allowed {
			missing = append(missing, verb)
		}
	}
	if len(missing) > 0 {
		f.fail(what, "the right to %s leases.coordination.k8s.io is missing in namespace %s", strings.Join(missing, ", "), namespace)
		return
	}
	f.ok(what, "may be read, created and updated")
}

// broker checks NATS, JetStream and the stream.
func (f *findings) broker(ctx context.Context, c *config.Config, uid string, log *slog.Logger) {
	options := connOptions(c)
	options.Name += " doctor"
	conn := publisher.NewConn(options, log)
	connection, disconnect := context.WithCancel(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	wg.Go(func() { conn.Run(connection) })
	defer wg.Wait()
	defer disconnect()
	soon, cancel := context.WithTimeout(ctx, doctorPatience)
	defer cancel()
	if err := conn.WaitConnected(soon); err != nil {
		f.fail("nats", "%v", errors.Join(conn.Err(), ctx.Err()))
		return
	}
	nc := natsConn(conn)
	if nc == nil {
		f.fail("nats", "%v", conn.Err())
		return
	}
	f.ok("nats", "connected to %s, version %s, max_payload %d bytes", nc.ConnectedUrlRedacted(), nc.ConnectedServerVersion(), nc.MaxPayload())

	soon, cancel = context.WithTimeout(ctx, doctorPatience)
	defer cancel()
	scheme := message.Scheme{Prefix: c.SubjectPrefix, Cluster: c.Cluster}
	found, err := publisher.ExamineStream(soon, conn, streamOptions(c, scheme))
	if errors.Is(err, publisher.ErrNoJetStream) {
		f.fail("jetstream", "%v", err)
		return
	}
	what := "stream " + c.Stream
	if err != nil {
		f.fail(what, "%v", err)
		return
	}
	f.ok("jetstream", "answers")
	for _, w := range found.Warnings {
		f.warn(what, "%s", w)
	}
	switch {
	case !found.Exists:
		f.ok(what, "does not exist yet; BRIDGE_STREAM_MODE=%s creates it", c.StreamMode)
		return
	case found.Outdated:
		f.ok(what, "fits once its configuration is updated, which BRIDGE_STREAM_MODE=%s does", c.StreamMode)
	default:
		f.ok(what, "fits")
	}
	f.writing(soon, c, conn, scheme, uid)
}

// writing checks what stands in the way of publishing into a stream that fits.
func (f *findings) writing(ctx context.Context, c *config.Config, conn *publisher.Conn, scheme message.Scheme, uid string) {
	what := "stream " + c.Stream
	object := change.ObjectRef{Resource: "configmaps", Namespace: "deltabridge-doctor", Name: "deltabridge-doctor"}
	for _, subject := range []string{scheme.WriterSubject(), scheme.Subject(object)} {
		try, cancel := context.WithTimeout(ctx, doctorPatience/4)
		err := publisher.MayPublish(try, conn, c.Stream, subject)
		cancel()
		if denied := (*publisher.DeniedError)(nil); errors.As(err, &denied) {
			f.fail("nats", "%v; grant publish on %s and %s.>", err, scheme.WriterSubject(), scheme.WriterSubject())
			return
		}
		if err != nil {
			f.warn("nats", "it cannot be found out whether messages may be published: %v", err)
			return
		}
	}
	last, err := publisher.LastWriter(ctx, conn, c.Stream, scheme.WriterSubject())
	switch {
	case err != nil:
		f.fail(what, "what it holds cannot be read: %v", err)
	case last.ClusterUID != "" && uid != "" && last.ClusterUID != uid && c.AcceptClusterUID != uid:
		f.fail(what, "%v", &otherClusterError{name: c.Cluster, published: last.ClusterUID, found: uid})
	case last.Epoch == 0:
		f.ok(what, "nothing of %s has been published yet", c.Cluster)
	default:
		f.ok(what, "last writer of %s: epoch %d, %s, %s", c.Cluster, last.Epoch, last.Holder, last.Time.UTC().Format(time.RFC3339))
	}
}
