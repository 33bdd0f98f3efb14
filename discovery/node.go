package discovery

import (
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/weirlb/weir/topology"
)

// nodes are the Nodes that there are, and those that endpoints mention, by name and by address.
type nodes struct {
	self   string         // the name of the node on which Weir runs
	queue  func(*service) // marks a Service that depends on a changed node
	intern *interner

	byName      map[string]*node
	byAddr      addrIndex
	none        node                    // of endpoints whose node nobody knows
	moved       map[netip.Addr]struct{} // addresses that Nodes got or lost, since the last Flush
	selfChanged bool
}

// node is a Node, or the name of an unknown Node that endpoints mention.
type node struct {
	name    string
	known   bool
	labels  map[string]string
	weight  uint32       // of the endpoints on it, 0: it does not say
	fault   string       // the error of the weight annotation
	created int64        // in Unix seconds, 0 for unknown
	addrs   []netip.Addr // sorted
	host    []netip.Addr // see Node.Addresses
	// users counts, per Service, the endpoints that name this node: those
	// Services are merged anew when the labels change.
	users map[*service]int
	// derived are label maps of endpoints here that say more than the
	// Node does, shared by those that say the same.
	derived map[derivedKey]map[string]string
}

type derivedKey struct {
	zone  string
	extra *extraLabels
}

// maxDerived bounds node.derived, whose keys may be long gone.
const maxDerived = 256

// set adds or replaces a Node.
func (ns *nodes) set(n *corev1.Node) {
	nd := ns.named(n.Name)
	labels := n.Labels
	weight, fault := nodeWeight(n)
	if !nd.known || nd.weight != weight || nd.fault != fault || !maps.Equal(nd.labels, labels) {
		nd.known, nd.weight, nd.fault = true, weight, fault
		nd.labels = maps.Clone(labels)
		nd.derived = nil
		ns.changed(nd)
	}
	var addrs []netip.Addr
	for _, a := range n.Status.Addresses {
		if a.Type != corev1.NodeInternalIP && a.Type != corev1.NodeExternalIP {
			continue
		}
		if ip, ok := ParseAddr(a.Address); ok && SpecialAddr(ip) == "" {
			addrs = append(addrs, ip)
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	if created := createdAt(n); created != nd.created {
		ns.own(nd, nil) // the order of owners follows the age
		nd.created = created
	}
	ns.own(nd, slices.Compact(addrs))
	ns.setHost(nd, hostAddresses(n))
}

// own makes nd the owner of addresses in place of those that it has.
func (ns *nodes) own(nd *node, addrs []netip.Addr) {
	if slices.Equal(nd.addrs, addrs) {
		return
	}
	if ns.moved == nil {
		ns.moved = map[netip.Addr]struct{}{}
	}
	for _, a := range slices.Concat(nd.addrs, addrs) {
		ns.moved[a] = struct{}{}
	}
	ns.byAddr.own(nd, addrs, ns.queue)
}

// owned are the addresses outside of a Service that Nodes have.
func (ns *nodes) owned(svc *Service) (list []netip.Addr) {
	for _, addrs := range [][]netip.Addr{svc.LoadBalancerIPs, svc.ExternalIPs} {
		for _, a := range addrs {
			if ns.byAddr.owner(a.Unmap()) != nil {
				list = append(list, a)
			}
		}
	}
	return list
}

// follow queues Services with endpoints or frontends at an address that a Node has got or lost, also those
// with endpoints that name their node, which the index does not have.
func (ns *nodes) follow(services map[ServiceName]*service) {
	if len(ns.moved) == 0 {
		return
	}
	moved := func(a netip.Addr) bool { _, ok := ns.moved[a.Unmap()]; return ok }
	for _, svc := range services {
		if svc.spec != nil && (slices.ContainsFunc(svc.spec.svc.LoadBalancerIPs, moved) || slices.ContainsFunc(svc.spec.svc.ExternalIPs, moved)) {
			ns.queue(svc)
		}
		for _, d := range svc.sources() {
			if d.at(ns.moved) {
				ns.queue(svc)
				break
			}
		}
	}
	ns.moved = nil
}

// at reports whether an endpoint has one of the addresses.
func (d *sliceData) at(addrs map[netip.Addr]struct{}) bool {
	for i := range d.endpoints {
		if _, ok := addrs[d.endpoints[i].addr]; ok {
			return true
		}
	}
	return false
}

// setHost sets the addresses of Node.Addresses.
func (ns *nodes) setHost(nd *node, addrs []netip.Addr) {
	if nd.name == ns.self && !slices.Equal(nd.host, addrs) {
		ns.selfChanged = true
	}
	nd.host = addrs
}

// remove removes a Node. Endpoints that name it stay where they are.
func (ns *nodes) remove(name string) {
	nd := ns.byName[name]
	if nd == nil || !nd.known {
		return
	}
	nd.known, nd.labels, nd.derived = false, nil, nil
	nd.weight, nd.fault = 0, ""
	ns.changed(nd)
	ns.own(nd, nil)
	ns.setHost(nd, nil)
	ns.drop(nd)
}

// named is the node of that name, made when it is new.
func (ns *nodes) named(name string) *node {
	nd := ns.byName[name]
	if nd == nil {
		nd = &node{name: ns.intern.string(name)}
		ns.byName[nd.name] = nd
	}
	return nd
}

// drop forgets a node that nobody mentions.
func (ns *nodes) drop(nd *node) {
	if !nd.known && len(nd.users) == 0 {
		delete(ns.byName, nd.name)
	}
}

// changed queues the Services that depend on the node's labels.
func (ns *nodes) changed(nd *node) {
	if nd.name == ns.self {
		ns.selfChanged = true
	}
	for svc := range nd.users {
		ns.queue(svc)
	}
	ns.byAddr.users(nd.addrs, ns.queue)
}

// addUse tells the indexes that the endpoints of d now count for svc (by is 1)
// or no longer do (by is -1).
func (ns *nodes) addUse(svc *service, d *sliceData, by int) {
	for i := range d.endpoints {
		e := &d.endpoints[i]
		if e.node == nil {
			ns.byAddr.use(e.addr, svc, by)
			continue
		}
		nd := e.node
		if nd.users == nil {
			nd.users = make(map[*service]int)
		}
		if n := nd.users[svc] + by; n != 0 {
			nd.users[svc] = n
			continue
		}
		delete(nd.users, svc)
		ns.drop(nd)
	}
}

// locate is the node of e: the named node, else the node with the address, else ns.none.
func (ns *nodes) locate(e *sliceEndpoint) (nd *node, inferred bool) {
	if e.node != nil {
		return e.node, false
	}
	if owner := ns.byAddr.owner(e.addr); owner != nil {
		return owner, true
	}
	return &ns.none, false
}

// forgetUnused drops nodes that were made for a version that is not kept.
func (ns *nodes) forgetUnused(d *sliceData) {
	for i := range d.endpoints {
		if nd := d.endpoints[i].node; nd != nil {
			ns.drop(nd)
		}
	}
}

func createdAt(n *corev1.Node) int64 {
	if n.CreationTimestamp.IsZero() {
		return 0
	}
	return n.CreationTimestamp.Unix()
}

// hostAddresses are those of [Node.Addresses].
func hostAddresses(n *corev1.Node) []netip.Addr {
	var out []netip.Addr
	for _, kind := range []corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeExternalIP} {
		for _, a := range n.Status.Addresses {
			ip, ok := ParseAddr(a.Address)
			if a.Type == kind && ok && !slices.ContainsFunc(out, func(o netip.Addr) bool { return o.Is4() == ip.Is4() }) {
				out = append(out, ip)
			}
		}
	}
	return out
}

// labelsOf are the topology labels of e on nd: those of the Node, else those of the slice.
// The map is shared and never written.
func (nd *node) labelsOf(e *sliceEndpoint) map[string]string {
	_, hasName := nd.labels[topology.LabelHostname]
	_, hasZone := nd.labels[topology.LabelZone]
	if e.extra == nil && (hasName || nd.name == "") && (hasZone || e.zone == "") {
		return nd.labels
	}
	key := derivedKey{e.zone, e.extra}
	if m, ok := nd.derived[key]; ok {
		return m
	}
	m := make(map[string]string, len(nd.labels)+2)
	if nd.name != "" {
		m[topology.LabelHostname] = nd.name
	}
	if e.extra != nil {
		maps.Copy(m, e.extra.labels)
	}
	if e.zone != "" {
		m[topology.LabelZone] = e.zone
	}
	maps.Copy(m, nd.labels)
	if nd.derived == nil || len(nd.derived) >= maxDerived {
		nd.derived = make(map[derivedKey]map[string]string)
	}
	nd.derived[key] = m
	return m
}
