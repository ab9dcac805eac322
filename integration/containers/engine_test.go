package containers

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/testcontainers/testcontainers-go"
	tclog "github.com/testcontainers/testcontainers-go/log"
)

func TestMain(m *testing.M) {
	setDefault("TESTCONTAINERS_RYUK_DISABLED", "true") // no registry for the reaper's image; the tests clean up themselves
	if host := os.Getenv("DOCKER_HOST"); host == "" || strings.HasPrefix(host, "unix://") {
		setDefault("TESTCONTAINERS_HOST_OVERRIDE", "127.0.0.1") // the engine is on this host, its ports on loopback
	}
	tclog.SetDefault(tclog.NewNoopLogger())
	os.Exit(m.Run())
}

func setDefault(name, value string) {
	if _, given := os.LookupEnv(name); !given {
		if err := os.Setenv(name, value); err != nil {
			panic(err) // a name or value that no environment can hold
		}
	}
}

// engine returns a client of the container engine. Where none answers the test is skipped, unless this is CI, where a
// test that does not run would be missed by nobody.
func engine(t *testing.T) *testcontainers.DockerClient {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
	defer cancel()
	docker, err := testcontainers.NewDockerClientWithOpts(ctx)
	if err != nil {
		message := "no container engine answers: " + strings.Join(strings.Fields(err.Error()), " ") // in one line
		if os.Getenv("CI") == "true" {
			t.Fatal(message)
		}
		t.Skip(message)
	}
	t.Cleanup(func() { docker.Close() })
	return docker
}

// start runs a container and removes it, with the image if it was built for it, when the test ends. A failed test shows
// the end of its log.
func start(t *testing.T, name string, request testcontainers.ContainerRequest) testcontainers.Container {
	t.Helper()
	began := time.Now()
	container, err := testcontainers.GenericContainer(t.Context(), testcontainers.GenericContainerRequest{
		ContainerRequest: request, Started: true,
	})
	testcontainers.CleanupContainer(t, container, testcontainers.StopTimeout(5*time.Second))
	if container != nil {
		t.Cleanup(func() { // runs before the removal
			if t.Failed() {
				t.Logf("the log of %s ends:\n%s", name, logTail(container, 20))
			}
		})
	}
	if err != nil {
		t.Fatalf("start %s: %v", name, err)
	}
	t.Logf("%s is up after %s", name, time.Since(began).Round(100*time.Millisecond))
	return container
}

// scratch describes an image that holds one static binary and nothing else.
func scratch(t *testing.T, binary string) testcontainers.FromDockerfile {
	t.Helper()
	dir := t.TempDir()
	name := filepath.Base(binary)
	dockerfile := fmt.Sprintf("FROM scratch\nCOPY %s /%s\nENTRYPOINT [\"/%s\"]\n", name, name, name)
	if err := os.WriteFile(filepath.Join(dir, "Dockerfile"), []byte(dockerfile), 0o600); err != nil {
		t.Fatal(err)
	}
	// A link saves a copy of a hundred megabytes, where both are on one file system.
	if err := os.Link(binary, filepath.Join(dir, name)); err != nil {
		content, readErr := os.ReadFile(binary)
		if readErr != nil {
			t.Fatal(readErr)
		}
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return testcontainers.FromDockerfile{
		Context: dir,
		Repo:    "deltabridge-test-" + strings.ToLower(name),
	}
}

// logTail returns the last n lines that a container wrote.
func logTail(container testcontainers.Container, n int) string {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	reader, err := container.Logs(ctx)
	if err != nil {
		return err.Error()
	}
	defer reader.Close()
	content, err := io.ReadAll(reader)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimRight(string(content), "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
