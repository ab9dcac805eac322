package main

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
)

//go:embed objects.yaml
var objectsYAML []byte

// pause is the time between two actions: slow enough to read along.
const pause = 800 * time.Millisecond

// resource is where objects of a kind are found in the API.
type resource struct {
	schema.GroupVersionResource
	namespaced bool
}

// resources are those of objects.yaml, by kind.
var resources = map[string]resource{
	"Namespace":                {schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}, false},
	"Node":                     {schema.GroupVersionResource{Version: "v1", Resource: "nodes"}, false},
	"ConfigMap":                {schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, true},
	"Secret":                   {schema.GroupVersionResource{Version: "v1", Resource: "secrets"}, true},
	"Service":                  {schema.GroupVersionResource{Version: "v1", Resource: "services"}, true},
	"Pod":                      {schema.GroupVersionResource{Version: "v1", Resource: "pods"}, true},
	"Deployment":               {schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}, true},
	"Job":                      {schema.GroupVersionResource{Group: "batch", Version: "v1", Resource: "jobs"}, true},
	"Widget":                   {schema.GroupVersionResource{Group: "demo.deltabridge.io", Version: "v1", Resource: "widgets"}, true},
	"CustomResourceDefinition": {schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}, false},
}

// world changes the demo's cluster the way people and controllers would.
type world struct {
	client  dynamic.Interface
	say     func(string)
	objects map[string]*unstructured.Unstructured // of objects.yaml, by kind
}

func newWorld(client dynamic.Interface, say func(string)) (*world, error) {
	w := &world{client: client, say: say, objects: map[string]*unstructured.Unstructured{}}
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(objectsYAML), 4096)
	for {
		object := &unstructured.Unstructured{}
		err := decoder.Decode(object)
		if errors.Is(err, io.EOF) {
			return w, nil
		}
		if err != nil {
			return nil, fmt.Errorf("decode objects.yaml: %w", err)
		}
		if _, known := resources[object.GetKind()]; !known {
			return nil, fmt.Errorf("objects.yaml has a %s, whose resource is not known", object.GetKind())
		}
		w.objects[object.GetKind()] = object
	}
}

// prepare creates the namespace and the custom resource, and waits until that is served.
func (w *world) prepare(ctx context.Context) error {
	for _, kind := range []string{"Namespace", "CustomResourceDefinition"} {
		if err := w.create(kind)(ctx); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		_, err := w.of("Widget").List(ctx, metav1.ListOptions{})
		if err == nil {
			return nil
		}
		if wait(ctx, 100*time.Millisecond) != nil {
			return fmt.Errorf("wait for the custom resource: %w", err)
		}
	}
}

// step is one thing that happens in the cluster.
type step struct {
	say string
	do  func(context.Context) error
}

// story returns what happens in one round. Values differ from round to round.
func (w *world) story(round int) []step {
	colour := []string{"red", "green", "blue", "amber"}[round%4]
	replicas := 3 + round%4
	now := time.Now().UTC().Format(time.RFC3339)
	return []step{
		{"create configmap settings", w.create("ConfigMap")},
		{"create widget gear, a custom resource", w.create("Widget")},
		{"create deployment web", w.create("Deployment")},
		{"paint the settings " + colour, w.patch("ConfigMap", "", `{"data":{"color":%q}}`, colour)},
		{"a controller reports 1 of 2 replicas ready", w.patch("Deployment", "status",
			`{"status":{"observedGeneration":1,"replicas":2,"readyReplicas":1,"availableReplicas":1}}`)},
		{"create pod web-1", w.create("Pod")},
		{"the kubelet reports the pod running", w.patch("Pod", "status",
			`{"status":{"phase":"Running","podIP":"10.1.0.%d","startTime":%q}}`, round%250+1, now)},
		{"create service web", w.create("Service")},
		{"scale deployment web", w.patch("Deployment", "", `{"spec":{"replicas":%d}}`, replicas)},
		{"roll out web:2", w.patch("Deployment", "",
			`{"spec":{"template":{"spec":{"containers":[{"name":"web","image":"example.com/web:2"}]}}}}`)},
		{"label the pod", w.patch("Pod", "", `{"metadata":{"labels":{"tier":"front"}}}`)},
		{"create node worker-1", w.create("Node")},
		{"the node reports that it is ready", w.patch("Node", "status",
			`{"status":{"conditions":[{"type":"Ready","status":"True","reason":"KubeletReady"}]}}`)},
		{"grow the gear", w.patch("Widget", "", `{"spec":{"size":%d}}`, 2+round%9)},
		{"an operator reports the gear turning", w.patch("Widget", "status", `{"status":{"phase":"Turning"}}`)},
		{"create secret credentials, whose values stay here", w.create("Secret")},
		{"rotate the password", w.patch("Secret", "", `{"stringData":{"password":"another-one-%d"}}`, round)},
		{"cordon the node", w.patch("Node", "", `{"spec":{"unschedulable":true}}`)},
		{"create job report", w.create("Job")},
		{"add a setting and drop another", w.patch("ConfigMap", "", `{"data":{"size":"%d","color":null}}`, 10+round)},
		{"delete the job", w.remove("Job")},
		{"uncordon the node", w.patch("Node", "", `{"spec":{"unschedulable":null}}`)},
		{"delete the pod", w.remove("Pod")},
		{"delete the gear", w.remove("Widget")},
		{"delete the service", w.remove("Service")},
		{"delete the secret", w.remove("Secret")},
		{"delete the deployment", w.remove("Deployment")},
		{"delete the node", w.remove("Node")},
		{"delete the settings", w.remove("ConfigMap")},
	}
}

// run tells the story over and over until the context ends, and returns its error, or the one that ended the story.
func (w *world) run(ctx context.Context) error {
	for round := 0; ; round++ {
		for _, step := range w.story(round) {
			if err := wait(ctx, pause); err != nil {
				return err
			}
			w.say(step.say)
			err := step.do(ctx)
			switch {
			case ctx.Err() != nil:
				return ctx.Err()
			case apierrors.IsNotFound(err) || apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err):
				// Somebody else is at work in the cluster, as the demo invites people to be.
				w.say("… " + err.Error())
			case err != nil:
				return fmt.Errorf("%s: %w", step.say, err)
			}
		}
	}
}

// of returns the client for a kind's resource, in the namespace of the object in objects.yaml.
func (w *world) of(kind string) dynamic.ResourceInterface {
	r := resources[kind]
	if !r.namespaced {
		return w.client.Resource(r.GroupVersionResource)
	}
	return w.client.Resource(r.GroupVersionResource).Namespace(w.objects[kind].GetNamespace())
}

func (w *world) create(kind string) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := w.of(kind).Create(ctx, w.objects[kind].DeepCopy(), metav1.CreateOptions{})
		return err
	}
}

// patch merges a document, with the arguments in it, into a kind's object or one of its subresources.
func (w *world) patch(kind, subresource, document string, args ...any) func(context.Context) error {
	if len(args) > 0 {
		document = fmt.Sprintf(document, args...)
	}
	return func(ctx context.Context) error {
		var subresources []string
		if subresource != "" {
			subresources = []string{subresource}
		}
		_, err := w.of(kind).Patch(ctx, w.objects[kind].GetName(), types.MergePatchType, []byte(document),
			metav1.PatchOptions{}, subresources...)
		return err
	}
}

func (w *world) remove(kind string) func(context.Context) error {
	return func(ctx context.Context) error {
		background := metav1.DeletePropagationBackground // no garbage collector runs that would let go of finalizers
		return w.of(kind).Delete(ctx, w.objects[kind].GetName(), metav1.DeleteOptions{PropagationPolicy: &background})
	}
}

// wait returns an error if the context ends before the time is over.
func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
