package harness

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
)

// plane is the control plane that the tests of one package share; it starts when the first of them asks for it.
var plane struct {
	once  sync.Once
	value *ControlPlane
	err   error
}

// Plane returns the control plane that the package's tests share. The package's TestMain must call [Main].
func Plane(t testing.TB) *ControlPlane {
	t.Helper()
	plane.once.Do(func() {
		// Not the context of the test that happens to come first: the others use it too.
		plane.value, plane.err = StartControlPlane(context.Background(), ControlPlaneConfig{})
	})
	if plane.err != nil {
		t.Fatalf("start the control plane: %v", plane.err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the control plane's log ends:\n%s", plane.value.Log())
		}
	})
	return plane.value
}

// Main runs a package's tests, stops what they shared, and returns the exit code.
func Main(m *testing.M) int {
	code := m.Run()
	if plane.value != nil {
		if err := plane.value.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, "stop the control plane:", err)
			code = max(code, 1)
		}
	}
	if err := Cleanup(); err != nil {
		fmt.Fprintln(os.Stderr, "remove the tests' files:", err)
		code = max(code, 1)
	}
	return code
}
