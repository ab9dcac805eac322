// Command bridge publishes the changes of Kubernetes objects to NATS JetStream.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// Exit codes of the contract.
const (
	exitOK      = 0 // done, or stopped by a signal after a drain
	exitFailed  = 1 // failed while running
	exitConfig  = 2 // bad configuration or usage
	usageFormat = `deltabridge publishes the changes of Kubernetes objects to NATS JetStream.

Usage:
  bridge [run]     the service; configured by environment variables (docs/config.md)
  bridge doctor    checks what the service needs: configuration, API access, NATS, stream (bridge doctor --help)
  bridge resync    asks a running bridge to publish the present state again (bridge resync --help)
  bridge version   version, commit, Go, client-go, nats.go
`
)

func main() {
	// The first signal drains; the second, which finds no handler of ours any more, ends the process at once.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	code := run(ctx, os.Args[1:], os.Environ(), os.Stdout, os.Stderr)
	os.Exit(code)
}

// run executes a command and returns the exit code.
func run(ctx context.Context, args, environ []string, stdout, stderr io.Writer) int {
	command := "run"
	if len(args) > 0 {
		command, args = args[0], args[1:]
	}
	switch {
	case command == "help" || command == "-h" || command == "--help":
		fmt.Fprint(stdout, usageFormat)
		return exitOK
	case command == "resync":
		return runResync(ctx, args, environ, stdout, stderr)
	case command == "doctor":
		return runDoctor(ctx, args, environ, stdout, stderr)
	case len(args) > 0:
		fmt.Fprintf(stderr, "bridge %s takes no arguments, got %q\n\n%s", command, args, usageFormat)
		return exitConfig
	case command == "run":
		return runBridge(ctx, environ, stderr)
	case command == "version":
		printVersion(stdout)
		return exitOK
	}
	fmt.Fprintf(stderr, "bridge has no command %q\n\n%s", command, usageFormat)
	return exitConfig
}
