// Package kubernetes runs Kubernetes' own end-to-end cases of SIG Network against Weir, unchanged: those of node ports,
// load balancers, traffic policies, health check node ports, affinity, source ranges and terminating endpoints.
//
//	make conformance
//
// Three nodes are network and mount namespaces with a kubelet, Debian's containerd and runc, kube-proxy and `weir run`.
// The control plane is kubeenv's API server with the scheduler and the controllers of Kubernetes, and `weir controller`.
// FRR routes between the nodes and the client, which is outside of their network and runs the cases. Images hold the
// module's own agnhost, with Debian's programs.
//
// kube-proxy serves ClusterIPs, and a node's connections to its own addresses. What arrives at a node for another
// node's or an outer client's connection is dropped if kube-proxy would translate it: Weir serves it, or nobody.
//
// The report has the times. There is no short form in CI: the programs of the cluster take three and a half minutes
// where all their packages are compiled and ten where none is, and their modules are 660 MB.
//
// The package is a module of its own, so that Kubernetes' dependencies are not Weir's.
package kubernetes
