// Package harness starts what the bridge is tested against, and the bridge itself: a Kubernetes control plane (etcd and
// kube-apiserver as child processes), NATS servers inside the test's process, and proxies in front of both whose
// faults are scripted.
//
// Everything listens on loopback and on free ports, and keeps its files in a directory that goes away. A child process
// is ended by its id alone and, where the system can do it, ends when its parent does, so that even a test binary that
// is killed leaves nothing behind.
//
// What a program without a testing.TB needs too has a constructor that returns an error ([StartControlPlane],
// [NewNATS], [LaunchBridge]); the others are for tests and report through t.
package harness

import "time"

// Patience is how long a test waits for something that must happen. It is far above what any step takes, so that a slow
// machine does not fail a test, and a wait that is over early costs nothing.
const Patience = 90 * time.Second
