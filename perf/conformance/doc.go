// Package conformance runs the conformance cases of the Gateway API against Weir: the official suite, unchanged, with
// a real API server, `weir controller --gateways`, and `weir run` on a node. The test process of the suite is a client
// outside of the node's networks.
//
//	make conformance
//
// Pods of the suite's Deployments run as processes in network namespaces of their own, on two nodes: with Weir, and
// behind VXLAN. A small kubelet starts the suite's own servers there, built from the module, and CoreDNS.
//
// A Gateway without a TCP or UDP listener has the annotation by which the suite does not wait for it: Weir has no HTTP.
//
// The package is a module of its own, so that the suite's dependencies are not Weir's.
package conformance
