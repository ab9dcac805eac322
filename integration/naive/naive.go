// Package naive publishes a cluster's changes the way one would write it first: a dynamic informer, json.Marshal, and
// asynchronous publishing with the client's own retries. It is the control of tests and benchmarks: what it gets wrong
// shows that a test can see it.
package naive

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"
)

// Options are what a [Publisher] needs.
type Options struct {
	// Client reads the cluster.
	Client dynamic.Interface
	// JS publishes. Its options are the client's defaults unless the caller changes them.
	JS jetstream.JetStream
	// Resources are watched in all namespaces.
	Resources []schema.GroupVersionResource
	// Stream must exist and take the subjects below Prefix and Cluster.
	Stream, Prefix, Cluster string
}

// Publisher publishes changes without ever looking at what became of them.
type Publisher struct {
	options           Options
	published, failed atomic.Uint64
}

// New returns a publisher that does nothing yet.
func New(options Options) *Publisher { return &Publisher{options: options} }

// Published returns how many messages were handed to the client.
func (p *Publisher) Published() uint64 { return p.published.Load() }

// Failed returns how many messages could not be handed to the client.
func (p *Publisher) Failed() uint64 { return p.failed.Load() }

// Run publishes until ctx is done, and then waits until the client has published what it was given, but no longer than
// grace.
func (p *Publisher) Run(ctx context.Context, grace time.Duration) error {
	factory := dynamicinformer.NewDynamicSharedInformerFactory(p.options.Client, 0)
	for _, resource := range p.options.Resources {
		_, err := factory.ForResource(resource).Informer().AddEventHandler(p.handler(resource))
		if err != nil {
			return fmt.Errorf("add a handler for %s: %w", resource.GroupResource(), err)
		}
	}
	factory.Start(ctx.Done())
	<-ctx.Done()
	factory.Shutdown()
	select {
	case <-p.options.JS.PublishAsyncComplete():
	case <-time.After(grace):
	}
	return nil
}

func (p *Publisher) handler(resource schema.GroupVersionResource) cache.ResourceEventHandler {
	publish := func(kind string, object any) {
		if unknown, ok := object.(cache.DeletedFinalStateUnknown); ok {
			object = unknown.Obj
		}
		if u, ok := object.(*unstructured.Unstructured); ok {
			p.publish(resource, kind, u)
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { publish("added", object) },
		UpdateFunc: func(_, object any) { publish("modified", object) },
		DeleteFunc: func(object any) { publish("deleted", object) },
	}
}

func (p *Publisher) publish(resource schema.GroupVersionResource, kind string, u *unstructured.Unstructured) {
	body, err := json.Marshal(u)
	if err == nil {
		_, err = p.options.JS.PublishMsgAsync(&nats.Msg{
			Subject: p.subject(resource, u), Header: p.header(resource, kind, u), Data: body,
		})
	}
	if err != nil {
		p.failed.Add(1)
		return
	}
	p.published.Add(1)
}

// subject is right for names of letters, digits, "-" and "." only.
func (p *Publisher) subject(resource schema.GroupVersionResource, u *unstructured.Unstructured) string {
	group, namespace := "core", "_"
	if resource.Group != "" {
		group = resource.Group
	}
	if u.GetNamespace() != "" {
		namespace = u.GetNamespace()
	}
	tokens := []string{group, resource.Resource, namespace, u.GetName()}
	for i, token := range tokens {
		if token != "_" {
			tokens[i] = strings.ReplaceAll(token, ".", "_")
		}
	}
	return p.options.Prefix + "." + p.options.Cluster + "." + strings.Join(tokens, ".")
}

// header is what the bridge would send, so that the same check reads both; but for the condition on the subject's last
// message, which a naive publisher does not know.
func (p *Publisher) header(resource schema.GroupVersionResource, kind string, u *unstructured.Unstructured) nats.Header {
	uid, version := string(u.GetUID()), u.GetResourceVersion()
	id := uid + "/" + version
	if kind == "deleted" {
		id = uid + "/deleted"
	}
	names := []string{resource.GroupResource().String(), u.GetName()}
	if u.GetNamespace() != "" {
		names = []string{names[0], u.GetNamespace(), names[1]}
	}
	h := nats.Header{
		"ce-specversion":       {"1.0"},
		"ce-type":              {"io.deltabridge." + kind},
		"ce-source":            {"/clusters/" + p.options.Cluster},
		"ce-id":                {id},
		"Nats-Msg-Id":          {id},
		"ce-subject":           {strings.Join(names, "/")},
		"ce-time":              {time.Now().UTC().Format(time.RFC3339Nano)},
		"content-type":         {"application/json"},
		"ce-uid":               {uid},
		"ce-rv":                {version},
		"ce-gvk":               {u.GetAPIVersion() + "/" + u.GetKind()},
		"ce-reason":            {"watch"},
		"ce-epoch":             {"1"},
		"Nats-Expected-Stream": {p.options.Stream},
	}
	if kind == "deleted" {
		h["KV-Operation"] = []string{"DEL"}
	}
	return h
}

// StreamConfig returns the configuration of a stream for a publisher's messages.
func StreamConfig(stream, prefix, cluster string, replicas int) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name:              stream,
		Subjects:          []string{prefix + "." + cluster + ".>"},
		Replicas:          replicas,
		MaxMsgsPerSubject: -1,
		AllowDirect:       true,
	}
}
