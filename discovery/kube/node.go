package kube

import (
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
)

// taintToBeDeleted is set by the cluster autoscaler before it takes a node
// away (KEP-3836).
const taintToBeDeleted = "ToBeDeletedByClusterAutoscaler"

// nodeState follows this node's Node object.
type nodeState struct {
	name string

	mu     sync.Mutex
	known  bool
	reason string       // why not eligible
	last   *corev1.Node // nil: none
}

// update takes the newest state of the Node, nil for none.
func (n *nodeState) update(obj *corev1.Node) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.last = obj
	switch {
	case obj != nil:
		n.known, n.reason = true, notEligible(obj)
	case n.known:
		n.reason = fmt.Sprintf("node %s is deleted", n.name)
	}
}

// notEligible says why load balancers in front should avoid the node, "" when
// they should not, as kube-proxy does (KEP-3836, pkg/proxy/healthcheck). The
// label node.kubernetes.io/exclude-from-external-load-balancers has no part in
// it: kubeadm puts it on every control-plane node, and it is for the controllers
// of cloud load balancers.
func notEligible(obj *corev1.Node) string {
	if obj.DeletionTimestamp != nil {
		return fmt.Sprintf("node %s is being deleted", obj.Name)
	}
	for _, taint := range obj.Spec.Taints {
		if taint.Key == taintToBeDeleted {
			return fmt.Sprintf("node %s has the taint %s", obj.Name, taintToBeDeleted)
		}
	}
	return ""
}

func (n *nodeState) eligible() (bool, string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.reason == "", n.reason
}

// object is the newest state, trimmed; nil for none. It must not be changed.
func (n *nodeState) object() *corev1.Node {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.last
}

// NodeCordoned reports whether this node is marked as unschedulable (kubectl cordon).
func (s *Source) NodeCordoned() bool {
	n := s.node.object()
	return n != nil && n.Spec.Unschedulable
}

// NodeLabels are the labels of this node, nil before the cluster has told them. They must not be
// changed.
func (s *Source) NodeLabels() map[string]string {
	n := s.node.object()
	switch {
	case n == nil:
		return nil
	case n.Labels == nil:
		return map[string]string{}
	}
	return n.Labels
}

// exists reports whether the Node was ever seen.
func (n *nodeState) exists() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.known
}
