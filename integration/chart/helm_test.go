package chart

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/deltabridge/deltabridge/integration/harness"
)

var update = flag.Bool("update", false, "write the golden files and the chart's README instead of comparing them")

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(harness.Main(m))
}

// chartDir is where the chart is.
func chartDir() string { return filepath.Join(harness.RepoRoot(), "charts", "deltabridge") }

// runHelm runs helm, with nothing of the user's, and returns what it printed on each stream.
func runHelm(t testing.TB, env []string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	path := filepath.Join(harness.RepoRoot(), "bin", "helm")
	if _, statErr := os.Stat(path); statErr != nil {
		t.Fatalf("find helm (`make bin/helm` builds it): %v", statErr)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	home := t.TempDir()
	cmd.Env = append([]string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + home, "HELM_CACHE_HOME=" + home, "HELM_CONFIG_HOME=" + home, "HELM_DATA_HOME=" + home,
	}, env...)
	var out, faults bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &faults
	err = cmd.Run()
	return out.String(), faults.String(), err
}

// helm runs helm and ends the test if it fails.
func helm(t testing.TB, env []string, args ...string) string {
	t.Helper()
	stdout, stderr, err := runHelm(t, env, args...)
	if err != nil {
		t.Fatalf("helm %s: %v\n%s%s", strings.Join(args, " "), err, stdout, stderr)
	}
	return stdout
}

// The release of the tests that render only.
const (
	release          = "test"
	releaseNamespace = "capture"
)

// render returns the manifests for the arguments, which are further ones of helm template.
func render(t testing.TB, args ...string) string {
	t.Helper()
	return helm(t, nil, append([]string{"template", release, chartDir(), "--namespace", releaseNamespace}, args...)...)
}

// parse returns the objects of manifests.
func parse(t testing.TB, manifests string) []*unstructured.Unstructured {
	t.Helper()
	var objects []*unstructured.Unstructured
	for decoder := yaml.NewYAMLOrJSONDecoder(strings.NewReader(manifests), 4096); ; {
		content := map[string]any{}
		err := decoder.Decode(&content)
		if errors.Is(err, io.EOF) {
			return objects
		}
		if err != nil {
			t.Fatalf("read the manifests: %v", err)
		}
		if len(content) > 0 {
			objects = append(objects, &unstructured.Unstructured{Object: content})
		}
	}
}

// find returns the objects of a kind.
func find(objects []*unstructured.Unstructured, kind string) []*unstructured.Unstructured {
	var found []*unstructured.Unstructured
	for _, o := range objects {
		if o.GetKind() == kind {
			found = append(found, o)
		}
	}
	return found
}

// only returns the one object of a kind.
func only(t testing.TB, objects []*unstructured.Unstructured, kind string) *unstructured.Unstructured {
	t.Helper()
	found := find(objects, kind)
	if len(found) != 1 {
		t.Fatalf("%d objects of the kind %s, want one", len(found), kind)
	}
	return found[0]
}

// variables returns the environment that the chart's ConfigMap holds.
func variables(t testing.TB, objects []*unstructured.Unstructured) map[string]string {
	t.Helper()
	for _, o := range find(objects, "ConfigMap") {
		data, _, err := unstructured.NestedStringMap(o.Object, "data")
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := data["BRIDGE_CLUSTER"]; ok {
			return data
		}
	}
	t.Fatal("no ConfigMap holds BRIDGE_CLUSTER")
	return nil
}

// valuesFiles are the matrix: each file of values by its name.
func valuesFiles(t testing.TB) map[string]string {
	t.Helper()
	paths, err := filepath.Glob("testdata/values/*.yaml")
	if err != nil || len(paths) == 0 {
		t.Fatalf("find the values: %v", err)
	}
	files := map[string]string{}
	for _, path := range paths {
		files[strings.TrimSuffix(filepath.Base(path), ".yaml")] = path
	}
	return files
}
