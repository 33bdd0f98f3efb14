// Package cluster tests the weir binary against a real API server and the real
// endpoint controllers, with real TCP through namespaces. The tests need root
// and the test cluster that `make kubeenv` builds.
package cluster
