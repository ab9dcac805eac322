package harness

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

func TestMain(m *testing.M) { os.Exit(Main(m)) }

var configMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}

// configMap returns a ConfigMap of namespace default.
func configMap(name, value string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap",
		"metadata": map[string]any{"name": name, "namespace": metav1.NamespaceDefault},
		"data":     map[string]any{"value": value},
	}}
}

// create creates a ConfigMap and removes it at the test's end.
func create(t *testing.T, plane *ControlPlane, name, value string) {
	t.Helper()
	client := plane.Dynamic().Resource(configMaps).Namespace(metav1.NamespaceDefault)
	if _, err := client.Create(t.Context(), configMap(name, value), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { remove(t, client, name) })
}

func clientOf(t *testing.T, kubeconfig string) dynamic.Interface {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	return dynamic.NewForConfigOrDie(config)
}

func TestControlPlaneKeepsObjectsOverARestartOfTheAPIServer(t *testing.T) {
	plane := Plane(t)
	create(t, plane, "kept", "1")
	before := plane.Config().Host
	for name, restart := range map[string]func() error{
		"stopped": func() error { return plane.RestartAPIServer(t.Context()) },
		"killed": func() error {
			if err := plane.KillAPIServer(); err != nil {
				return err
			}
			return plane.StartAPIServer(t.Context(), "--v=1")
		},
	} {
		if err := restart(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		// The kubeconfig of before leads to it still.
		client := clientOf(t, plane.Kubeconfig()).Resource(configMaps).Namespace(metav1.NamespaceDefault)
		if _, err := client.Get(t.Context(), "kept", metav1.GetOptions{}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if plane.Config().Host != before {
			t.Errorf("%s: moved from %s to %s", name, before, plane.Config().Host)
		}
	}
}

func TestUserHasTheRightsThatItIsGranted(t *testing.T) {
	plane := Plane(t)
	client := clientOf(t, plane.User(t, "limited"))
	list := func(namespace string) error {
		_, err := client.Resource(configMaps).Namespace(namespace).List(t.Context(), metav1.ListOptions{})
		return err
	}
	if err := list(""); !apierrors.IsForbidden(err) {
		t.Fatalf("without a grant: %v", err)
	}
	read := rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"list"}}
	if err := plane.Grant(t.Context(), "limited", metav1.NamespaceDefault, read); err != nil {
		t.Fatal(err)
	}
	Eventually(t, Patience, func() error { return list(metav1.NamespaceDefault) })
	if err := list(""); !apierrors.IsForbidden(err) {
		t.Errorf("granted one namespace, the user lists all: %v", err)
	}
	if err := plane.Grant(t.Context(), "limited", "", read); err != nil {
		t.Fatal(err)
	}
	Eventually(t, Patience, func() error { return list("") })
}

func TestStartControlPlaneSaysWhyItFailed(t *testing.T) {
	_, err := StartControlPlane(t.Context(), ControlPlaneConfig{APIServerFlags: []string{"--no-such-flag"}})
	if err == nil || !strings.Contains(err.Error(), "unknown flag: --no-such-flag") {
		t.Errorf("got %v", err)
	}
}

func TestControlPlaneLeavesNothingBehind(t *testing.T) {
	plane, err := StartControlPlane(t.Context(), ControlPlaneConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if err := plane.Stop(); err != nil {
		t.Fatal(err)
	}
	if plane.api.Running() || plane.etcd.Running() {
		t.Error("a process still runs")
	}
	if _, err := os.Stat(plane.dir); !os.IsNotExist(err) {
		t.Errorf("its directory is still there: %v", err)
	}
}

func TestMissingAssetsAreExplained(t *testing.T) {
	dir := t.TempDir()
	t.Setenv(assetsVariable, dir)
	if _, err := asset("etcd"); err == nil || !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), assetsVariable) {
		t.Errorf("missing: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "etcd"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := asset("etcd"); err == nil || !strings.Contains(err.Error(), "not executable") {
		t.Errorf("not executable: %v", err)
	}
	t.Setenv(assetsVariable, "")
	if _, err := asset("no-such-binary"); err == nil || !strings.Contains(err.Error(), "make controlplane") {
		t.Errorf("not built: %v", err)
	}
}

func TestKubeconfigLeadsToTheSameServer(t *testing.T) {
	plane := Plane(t)
	config, err := clientcmd.BuildConfigFromFlags("", plane.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	if config.Host != plane.Config().Host || rest.IsConfigTransportTLS(*config) != true {
		t.Errorf("the kubeconfig leads to %s", config.Host)
	}
}
