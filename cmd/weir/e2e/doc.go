// Package e2e tests the weir binary as an operator runs it: `weir run` on an
// edge node made of network namespaces, kernel sockets on both sides, and
// nothing of Weir's own code in between. The tests need root.
package e2e
