package main

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
)

// version and commit are set by the linker.
var (
	version = "dev"
	commit  = "unknown"
)

// printVersion writes one line for each thing whose version matters in a report.
func printVersion(w io.Writer) {
	fmt.Fprintf(w, "deltabridge %s\ncommit      %s\ngo          %s\nclient-go   %s\nnats.go     %s\n",
		version, commit, runtime.Version(), moduleVersion("k8s.io/client-go"), moduleVersion("github.com/nats-io/nats.go"))
}

// moduleVersion returns the version of a module that the binary was built with.
func moduleVersion(path string) string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	for _, m := range info.Deps {
		if m.Path == path {
			return m.Version
		}
	}
	return "unknown"
}
