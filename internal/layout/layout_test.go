package layout

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/deltabridge/deltabridge"

// all stands in the table for "may import every package of ours".
var all = []string{"*"}

// graph is the import graph: package, and what it may import of ours. The packages for outside technologies (informer,
// publisher, checkpoint) never import one another; bridge joins them, and cmd/bridge names their concrete types.
var graph = map[string][]string{
	"cmd/bridge":          all,
	"internal/bridge":     {"internal/change", "internal/checkpoint", "internal/config", "internal/filter", "internal/informer", "internal/message", "internal/publisher"},
	"internal/change":     {},
	"internal/checkpoint": {"internal/change"},
	"internal/config":     {},
	"internal/control":    {},
	"internal/filter":     {"internal/change"},
	"internal/informer":   {"internal/change", "internal/jsonscan"},
	"internal/jsonscan":   {},
	"internal/layout":     {},
	"internal/leader":     {},
	"internal/message":    {"internal/change", "internal/jsonscan"},
	"internal/publisher":  {"internal/change", "internal/message"},
	"internal/server":     {},
	"consumer":            {},
}

// technologies are import path prefixes that a package must not reach, not even through another package.
var technologies = map[string][]string{
	"internal/change":     {"k8s.io/client-go", "github.com/nats-io/nats.go"},
	"internal/jsonscan":   {"k8s.io/client-go", "github.com/nats-io/nats.go"},
	"internal/message":    {"k8s.io/client-go", "github.com/nats-io/nats.go"},
	"internal/config":     {"k8s.io/client-go"},
	"internal/control":    {"k8s.io/client-go"},
	"internal/filter":     {"k8s.io/client-go", "github.com/nats-io/nats.go"},
	"internal/informer":   {"github.com/nats-io/nats.go"},
	"internal/publisher":  {"k8s.io/client-go"},
	"internal/checkpoint": {"k8s.io/client-go"},
	"internal/leader":     {"github.com/nats-io/nats.go"},
	"consumer":            {"k8s.io/client-go"},
}

// forbiddenModules are module path prefixes that the bridge's go.mod must not require: servers and test machinery
// belong to the modules below integration/ and tools/.
var forbiddenModules = []string{
	"k8s.io/kubernetes",
	"k8s.io/apiserver",
	"sigs.k8s.io/controller-runtime",
	"github.com/nats-io/nats-server",
	"github.com/testcontainers",
	"github.com/docker",
	"github.com/moby",
	"go.etcd.io",
	"github.com/golangci",
	"github.com/prometheus/prometheus",
}

// listed is what this test reads of `go list -json`.
type listed struct {
	ImportPath   string
	Imports      []string
	TestImports  []string
	XTestImports []string
	Deps         []string
}

func TestImportGraph(t *testing.T) {
	for _, pkg := range listPackages(t) {
		name := strings.TrimPrefix(pkg.ImportPath, module+"/")
		t.Run(name, func(t *testing.T) {
			allowed, known := graph[name]
			if !known {
				t.Fatalf("package %s is not in the import graph: add it, with what it may import, to the table in internal/layout and to ARCHITECTURE.md", name)
			}
			for _, path := range ours(pkg.Imports) {
				if !slices.Contains(allowed, path) && !slices.Equal(allowed, all) {
					t.Errorf("%s imports %s; it may import of ours: %s", name, path, orNone(allowed))
				}
			}
			// A test may use what its package may, and the package itself. More would be a hidden edge of the graph.
			for _, path := range ours(slices.Concat(pkg.TestImports, pkg.XTestImports)) {
				if path != name && !slices.Contains(allowed, path) && !slices.Equal(allowed, all) {
					t.Errorf("tests of %s import %s; they may import of ours: %s", name, path, orNone(allowed))
				}
			}
			for _, prefix := range technologies[name] {
				for _, dep := range pkg.Deps {
					if within(dep, prefix) {
						t.Errorf("%s depends on %s, directly or through another package; `go mod why` and `go list -deps` show how", name, dep)
						break // one of a module's packages says it
					}
				}
			}
		})
	}
}

// TestTables catches a typing error in the tables above, which would otherwise forbid or allow nothing.
func TestTables(t *testing.T) {
	for name, allowed := range graph {
		for _, path := range allowed {
			if _, known := graph[path]; !known && path != "*" {
				t.Errorf("%s may import %q, which is not in the table", name, path)
			}
		}
	}
	for name := range technologies {
		if _, known := graph[name]; !known {
			t.Errorf("technologies names %q, which is not in the graph", name)
		}
	}
}

func TestModuleRequirements(t *testing.T) {
	var mod struct {
		Module  struct{ Path string }
		Require []struct{ Path string }
		Replace []struct{ Old struct{ Path string } }
	}
	if err := json.Unmarshal(goCommand(t, "mod", "edit", "-json"), &mod); err != nil {
		t.Fatalf("read go.mod: %v", err)
	}
	if mod.Module.Path != module {
		t.Fatalf("module is %s, want %s", mod.Module.Path, module)
	}
	for _, require := range mod.Require {
		for _, prefix := range forbiddenModules {
			if within(require.Path, prefix) {
				t.Errorf("go.mod requires %s; it belongs to integration/go.mod or tools/go.mod", require.Path)
			}
		}
	}
	for _, replace := range mod.Replace {
		t.Errorf("go.mod replaces %s: `go install` of a released version would fail", replace.Old.Path)
	}
}

// listPackages returns the root module's packages.
func listPackages(t *testing.T) []listed {
	t.Helper()
	var pkgs []listed
	dec := json.NewDecoder(bytes.NewReader(goCommand(t, "list",
		"-json=ImportPath,Imports,TestImports,XTestImports,Deps", "./...")))
	for {
		var pkg listed
		err := dec.Decode(&pkg)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("read go list: %v", err)
		}
		pkgs = append(pkgs, pkg)
	}
	if len(pkgs) < 3 {
		t.Fatalf("go list found only %d packages; the test would hold nothing", len(pkgs))
	}
	return pkgs
}

// goCommand runs the go command in the module's root and returns its standard output.
func goCommand(t *testing.T, args ...string) []byte {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	if _, err = os.Stat(filepath.Join(root, "go.mod")); err != nil {
		t.Fatalf("module root: %v", err)
	}
	cmd := exec.Command("go", args...)
	cmd.Dir = root
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, stderr.String())
	}
	return out
}

// ours returns the paths that are this module's, relative to it, each once.
func ours(paths []string) []string {
	var found []string
	for _, path := range paths {
		if rest, ok := strings.CutPrefix(path, module+"/"); ok {
			found = append(found, rest)
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// within reports whether path is prefix or lies below it.
func within(path, prefix string) bool {
	return path == prefix || strings.HasPrefix(path, prefix+"/")
}

func orNone(allowed []string) string {
	if len(allowed) == 0 {
		return "none"
	}
	return strings.Join(allowed, ", ")
}
