// Package chaos puts a bridge through faults at random and says what it lost, stored twice, or stored out of order.
//
// A [Plan] is made of a seed alone: what the load does to a cluster's objects, and which faults come in which order. A
// round ([Run]) carries it out on a real API server and a replicated NATS stream, waits until the stream is at rest, and
// lets the checker compare it with what the API server's store recorded. A naive publisher goes through the same round
// beside the bridge, as the control: what it gets wrong shows that the round can tell.
//
// DELTABRIDGE_BINARY names another bridge to be tested; docs/reliability.md says what it must do.
package chaos
