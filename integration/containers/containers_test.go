package containers

import (
	"archive/tar"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/client"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/testcontainers/testcontainers-go"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/deltabridge/deltabridge/integration/check"
	"github.com/deltabridge/deltabridge/integration/harness"
)

// clusterName is the bridge's name for the cluster.
const clusterName = "containers"

// imageUser is the user of the image, by number.
const imageUser = "65532"

var (
	namespaces  = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	nodes       = schema.GroupVersionResource{Version: "v1", Resource: "nodes"}
	configMaps  = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	secrets     = schema.GroupVersionResource{Version: "v1", Resource: "secrets"}
	deployments = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
	definitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	widgets     = schema.GroupVersionResource{Group: "test.deltabridge.io", Version: "v1", Resource: "widgets"}
	roles       = schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterroles"}
	bindings    = schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterrolebindings"}
)

// secretValue must not appear in any message.
const secretValue = "correct-horse-battery-staple"

// TestImage runs the image in a cluster of containers: what changes through the API arrives in NATS, each version once
// and in order; the process has no rights that it does not need; and it stops when asked.
func TestImage(t *testing.T) {
	docker := engine(t)
	image := buildImage(t, docker)
	c := startCluster(t)
	api := c.client(t)
	c.prepare(t, api)

	// Present before the bridge starts, so that a list finds it.
	early := create(t, api, configMaps, "default", object("v1", "ConfigMap", "early", map[string]any{
		"data": map[string]any{"written": "before the bridge"},
	}))

	selection := check.Selection{
		Resources: []schema.GroupVersionResource{configMaps, secrets, namespaces, nodes, deployments, widgets},
		// A Secret's message differs from what the API server sent on purpose.
		Select: func(o check.Object) bool { return o.GroupResource() != "secrets" },
	}
	recording := check.Record(t, api, selection)
	bridge := c.startBridge(t, image, map[string]string{
		"BRIDGE_CLUSTER":   clusterName,
		"BRIDGE_RESOURCES": "configmaps,secrets,namespaces,nodes,deployments.apps,widgets.test.deltabridge.io",
	})
	waitReady(t, bridge)
	checkRights(t, docker, bridge)
	checkFiles(t, docker, bridge)

	reader := follow(t, c.natsURL)
	reader.expect(t, "configmaps", early, "added")

	// One object of each kind: created, changed twice, deleted.
	for _, kind := range []struct {
		resource  schema.GroupVersionResource
		namespace string
		object    *unstructured.Unstructured
		patches   []string
	}{
		{configMaps, "default", object("v1", "ConfigMap", "settings", map[string]any{
			"data": map[string]any{"color": "red"},
		}), []string{`{"data":{"color":"blue"}}`, `{"data":{"color":null}}`}},
		{secrets, "default", object("v1", "Secret", "credentials", map[string]any{
			"data": map[string]any{"password": base64.StdEncoding.EncodeToString([]byte(secretValue))},
		}), []string{`{"metadata":{"labels":{"rotated":"no"}}}`, `{"stringData":{"password":"` + secretValue + `2"}}`}},
		{nodes, "", object("v1", "Node", "node-1.example.com", nil),
			[]string{`{"spec":{"unschedulable":true}}`, `{"spec":{"unschedulable":null}}`}},
		{deployments, "default", object("apps/v1", "Deployment", "web", map[string]any{"spec": map[string]any{
			"selector": map[string]any{"matchLabels": map[string]any{"app": "web"}},
			"template": map[string]any{
				"metadata": map[string]any{"labels": map[string]any{"app": "web"}},
				"spec": map[string]any{"containers": []any{
					map[string]any{"name": "web", "image": "example.com/web:1"},
				}},
			},
		}}), []string{`{"spec":{"replicas":3}}`, `{"spec":{"paused":true}}`}},
		{widgets, "default", object("test.deltabridge.io/v1", "Widget", "gear", map[string]any{
			"spec": map[string]any{"size": int64(1)},
		}), []string{`{"spec":{"size":2}}`, `{"spec":{"size":3,"teeth":12}}`}},
	} {
		name := kind.object.GetName()
		resource := kind.resource.GroupResource().String()
		created := create(t, api, kind.resource, kind.namespace, kind.object)
		reader.expect(t, resource, created, "added")
		for _, patch := range kind.patches {
			changed, err := api.Resource(kind.resource).Namespace(kind.namespace).
				Patch(t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
			if err != nil {
				t.Fatalf("patch %s %s: %v", resource, name, err)
			}
			reader.expect(t, resource, changed, "modified")
		}
		if err := api.Resource(kind.resource).Namespace(kind.namespace).
			Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatalf("delete %s %s: %v", resource, name, err)
		}
		reader.expect(t, resource, created, "deleted")
	}
	reader.checkSecrets(t)
	check.Case{
		JS: reader.js, Cluster: clusterName, Client: api, Selection: selection, Recording: recording,
	}.Require(t)

	stop(t, bridge)
}

// client returns a client with all rights.
func (c *cluster) client(t *testing.T) dynamic.Interface {
	t.Helper()
	api, err := dynamic.NewForConfig(c.admin)
	if err != nil {
		t.Fatalf("make a client: %v", err)
	}
	return api
}

// prepare waits until the API server is ready, gives the bridge the rights to read what it watches, and nothing else,
// and defines a custom resource.
func (c *cluster) prepare(t *testing.T, api dynamic.Interface) {
	t.Helper()
	harness.Eventually(t, startTimeout, func() error {
		_, err := api.Resource(namespaces).Get(t.Context(), "default", metav1.GetOptions{})
		return err
	})
	create(t, api, roles, "", object("rbac.authorization.k8s.io/v1", "ClusterRole", bridgeUser, map[string]any{
		"rules": []any{map[string]any{
			"apiGroups": []any{"", "apps", "test.deltabridge.io"},
			"resources": []any{"configmaps", "secrets", "namespaces", "nodes", "deployments", "widgets"},
			"verbs":     []any{"get", "list", "watch"},
		}},
	}))
	create(t, api, bindings, "", object("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", bridgeUser, map[string]any{
		"roleRef": map[string]any{
			"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": bridgeUser,
		},
		"subjects": []any{map[string]any{
			"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": bridgeUser,
		}},
	}))
	create(t, api, definitions, "", object("apiextensions.k8s.io/v1", "CustomResourceDefinition", "widgets.test.deltabridge.io", map[string]any{
		"spec": map[string]any{
			"group": "test.deltabridge.io",
			"scope": "Namespaced",
			"names": map[string]any{"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
			"versions": []any{map[string]any{
				"name": "v1", "served": true, "storage": true,
				"schema": map[string]any{"openAPIV3Schema": map[string]any{
					"type": "object", "x-kubernetes-preserve-unknown-fields": true,
				}},
			}},
		},
	}))
	harness.Eventually(t, startTimeout, func() error {
		_, err := api.Resource(widgets).List(t.Context(), metav1.ListOptions{})
		return err
	})
}

// waitReady waits until the bridge says that everything is in sync.
func waitReady(t *testing.T, bridge testcontainers.Container) {
	t.Helper()
	url := "http://" + address(t, bridge, bridgePort) + "/readyz?verbose"
	harness.Eventually(t, startTimeout, func() error {
		if !bridge.IsRunning() {
			return errors.New("the bridge does not run")
		}
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		if err != nil {
			return err
		}
		if response.StatusCode != http.StatusOK {
			return fmt.Errorf("not ready: %s", body)
		}
		return nil
	})
}

// checkRights asks the engine, not the image, as whom the process runs and what it may write.
func checkRights(t *testing.T, docker *testcontainers.DockerClient, bridge testcontainers.Container) {
	t.Helper()
	top, err := docker.ContainerTop(t.Context(), bridge.GetContainerID(), client.ContainerTopOptions{
		Arguments: []string{"-eo", "pid,uid,gid,args"},
	})
	if err != nil {
		t.Fatalf("list the container's processes: %v", err)
	}
	if len(top.Processes) != 1 {
		t.Errorf("the container runs %d processes, want the bridge alone: %v", len(top.Processes), top.Processes)
	}
	uid, gid := slices.Index(top.Titles, "UID"), slices.Index(top.Titles, "GID")
	for _, process := range top.Processes {
		if process[uid] != imageUser || process[gid] != imageUser {
			t.Errorf("process %v runs as %s:%s, want %s", process, process[uid], process[gid], imageUser)
		}
	}
	inspected, err := bridge.Inspect(t.Context())
	if err != nil {
		t.Fatalf("inspect the bridge: %v", err)
	}
	if !inspected.HostConfig.ReadonlyRootfs {
		t.Error("the root file system is writable")
	}
	if inspected.Config.User != imageUser+":"+imageUser {
		t.Errorf("the image's user is %q, want it by number", inspected.Config.User)
	}
}

// checkFiles holds what is in the image: the bridge and the certificates; neither a shell nor anything else to run.
func checkFiles(t *testing.T, docker *testcontainers.DockerClient, bridge testcontainers.Container) {
	t.Helper()
	export, err := docker.ContainerExport(t.Context(), bridge.GetContainerID(), client.ContainerExportOptions{})
	if err != nil {
		t.Fatalf("export the container: %v", err)
	}
	defer export.Close()
	// The engine itself makes these in every container, as places for its mounts.
	engines := []string{".dockerenv", "etc/hostname", "etc/hosts", "etc/mtab", "etc/resolv.conf", "dev/console", "config/kubeconfig"}
	var found []string
	for files := tar.NewReader(export); ; {
		header, err := files.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("read the container's files: %v", err)
		}
		if header.Typeflag != tar.TypeDir && !slices.Contains(engines, header.Name) {
			found = append(found, header.Name)
		}
	}
	slices.Sort(found)
	if want := []string{"bridge", "etc/ssl/certs/ca-certificates.crt"}; !slices.Equal(found, want) {
		t.Errorf("the image holds %q, want %q", found, want)
	}
}

// stop asks the bridge to end, as the kubelet does, and checks that it says goodbye properly.
func stop(t *testing.T, bridge testcontainers.Container) {
	t.Helper()
	grace := 30 * time.Second
	began := time.Now()
	if err := bridge.Stop(t.Context(), &grace); err != nil {
		t.Fatalf("stop the bridge: %v", err)
	}
	state, err := bridge.State(t.Context())
	if err != nil {
		t.Fatalf("read the bridge's state: %v", err)
	}
	if state.Running || state.ExitCode != 0 {
		t.Errorf("the bridge exited with %d after %s, want 0:\n%s",
			state.ExitCode, time.Since(began).Round(time.Millisecond), logTail(bridge, 40))
	}
}

// reader follows the stream as any program may: an ordinary consumer, and headers.
type reader struct {
	js       jetstream.JetStream
	messages jetstream.MessagesContext
	seen     []jetstream.Msg
}

func follow(t *testing.T, url string) *reader {
	t.Helper()
	conn, err := nats.Connect(url, nats.MaxReconnects(-1))
	if err != nil {
		t.Fatalf("connect to NATS: %v", err)
	}
	t.Cleanup(conn.Close)
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatalf("make a JetStream client: %v", err)
	}
	consumer, err := js.OrderedConsumer(t.Context(), "KUBE", jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{"kube." + clusterName + ".*.*.*.*"}, // objects, not what the bridge notes for itself
	})
	if err != nil {
		t.Fatalf("read the stream: %v", err)
	}
	messages, err := consumer.Messages()
	if err != nil {
		t.Fatalf("read the stream: %v", err)
	}
	t.Cleanup(messages.Stop)
	return &reader{js: js, messages: messages}
}

// expect reads on until the message of an object's version arrives, and compares it with what the API server answered.
func (r *reader) expect(t *testing.T, resource string, want *unstructured.Unstructured, op string) {
	t.Helper()
	subject := resource + "/"
	if want.GetNamespace() != "" {
		subject += want.GetNamespace() + "/"
	}
	subject += want.GetName()
	ctx, cancel := context.WithTimeout(t.Context(), harness.Patience)
	defer cancel()
	for {
		message, err := r.messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			t.Fatalf("wait for %s %s at version %s: %v", op, subject, want.GetResourceVersion(), err)
		}
		r.seen = append(r.seen, message)
		headers := message.Headers()
		if headers.Get("ce-subject") != subject {
			continue
		}
		if got := headers.Get("ce-type"); got != "io.deltabridge."+op {
			t.Fatalf("%s: next message is %s at version %s, want %s at %s",
				subject, got, headers.Get("ce-rv"), op, want.GetResourceVersion())
		}
		if got := headers.Get("ce-uid"); got != string(want.GetUID()) {
			t.Errorf("%s %s: uid %s, want %s", op, subject, got, want.GetUID())
		}
		if op != "deleted" { // whose version the API server tells nobody but watchers
			if got := headers.Get("ce-rv"); got != want.GetResourceVersion() {
				t.Fatalf("%s %s: version %s, want %s", op, subject, got, want.GetResourceVersion())
			}
		}
		var body unstructured.Unstructured
		if err := json.Unmarshal(message.Data(), &body.Object); err != nil {
			t.Fatalf("%s %s: body: %v", op, subject, err)
		}
		if body.GetName() != want.GetName() || body.GetKind() != want.GetKind() || body.GetAPIVersion() != want.GetAPIVersion() {
			t.Errorf("%s %s: the body is of %s %s %s", op, subject, body.GetAPIVersion(), body.GetKind(), body.GetName())
		}
		return
	}
}

// checkSecrets looks for a Secret's value in everything that was read.
func (r *reader) checkSecrets(t *testing.T) {
	t.Helper()
	encoded := base64.StdEncoding.EncodeToString([]byte(secretValue))
	for _, message := range r.seen {
		text := string(message.Data()) + fmt.Sprint(message.Headers())
		// The first characters of the encoded value, which the rest does not change.
		if strings.Contains(text, secretValue) || strings.Contains(text, encoded[:20]) {
			t.Errorf("%s: the message holds a Secret's value", message.Subject())
		}
	}
}

func create(t *testing.T, api dynamic.Interface, resource schema.GroupVersionResource, namespace string, o *unstructured.Unstructured) *unstructured.Unstructured {
	t.Helper()
	created, err := api.Resource(resource).Namespace(namespace).Create(t.Context(), o, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("create %s %s: %v", resource.Resource, o.GetName(), err)
	}
	return created
}

// object returns an object of the given kind; content is what it has besides its name.
func object(apiVersion, kind, name string, content map[string]any) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{}}
	for field, value := range content {
		o.Object[field] = value
	}
	o.SetAPIVersion(apiVersion)
	o.SetKind(kind)
	o.SetName(name)
	return o
}
