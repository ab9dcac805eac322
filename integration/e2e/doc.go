// Package e2e tests the bridge's binary between a real API server and real NATS servers. Every test ends with the
// stream read back and checked. The tests of a package share one API server and run one after the other; each has its own
// NATS server, its own bridge and its own namespace.
package e2e
