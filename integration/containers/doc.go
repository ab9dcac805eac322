// Package containers tests the bridge's own image: etcd, kube-apiserver, NATS and the bridge run as containers on one
// private network, as they would in a cluster, and only the test is outside. All images are made FROM scratch from
// binaries that are built here; nothing is pulled.
package containers
