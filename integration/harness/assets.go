package harness

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
)

// assetsVariable names a directory with the control plane's binaries, as other projects' tests know it.
const assetsVariable = "KUBEBUILDER_ASSETS"

// RepoRoot returns the directory of the repository.
func RepoRoot() string {
	_, file, _, ok := runtime.Caller(0)
	if !ok {
		panic("harness: the caller's file is unknown")
	}
	return filepath.Join(filepath.Dir(file), "..", "..")
}

// asset returns the path of a control plane binary. The error for one that is missing says how to make it.
func asset(name string) (string, error) {
	dir, given := os.LookupEnv(assetsVariable)
	hint := "unset " + assetsVariable + " or put it there"
	if !given || dir == "" {
		dir = filepath.Join(RepoRoot(), "bin", "controlplane")
		hint = "run `make controlplane`"
	}
	path := filepath.Join(dir, name)
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("no %s in %s: %s", name, dir, hint)
	case err != nil:
		return "", fmt.Errorf("find %s: %w", name, err)
	case info.IsDir() || info.Mode()&0o111 == 0:
		return "", fmt.Errorf("%s is not executable: %s", path, hint)
	}
	return path, nil
}

// binaryVariable names a bridge that was built elsewhere, to be tested in the place of this tree's.
const binaryVariable = "DELTABRIDGE_BINARY"

var buildBridge = sync.OnceValues(func() (string, error) {
	if path := os.Getenv(binaryVariable); path != "" {
		return path, nil
	}
	dir, err := scratch()
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "bridge")
	build := exec.Command("go", "build", "-o", path, "./cmd/bridge")
	build.Dir = RepoRoot()
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build cmd/bridge: %w\n%s", err, out)
	}
	return path, nil
})

// BridgeBinary builds the bridge, once in the life of this process, and returns the binary's path. It is the one that
// DELTABRIDGE_BINARY names where that is set.
func BridgeBinary() (string, error) { return buildBridge() }

var makeScratch = sync.OnceValues(func() (string, error) { return os.MkdirTemp("", "deltabridge-test-") })

// scratch returns a directory for what lives as long as this process. [Cleanup] removes it.
func scratch() (string, error) { return makeScratch() }

// Cleanup removes what was made for the whole life of this process, as the bridge that was built. [Main] does it for
// tests; any other program that calls [BridgeBinary] does it at its end.
func Cleanup() error {
	dir, err := scratch()
	if err != nil {
		return err
	}
	return os.RemoveAll(dir)
}
