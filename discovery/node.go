package discovery

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/weirlb/weir/topology"
)

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

// addrIndex is an address that Nodes own or that endpoints without a node have.
type addrIndex struct {
	// owners are sorted, the newest Node first, then by name: a node that was renamed may
	// leave its old object behind. The first is used.
	owners []*node
	// users are the Services with such endpoints: mostly one. Many are
	// kept in manyUsers instead.
	users     []user
	manyUsers map[*service]int
}

// maxListedUsers is the number of users that are searched linearly.
const maxListedUsers = 16

// user is a Service and how many of its endpoints are concerned.
type user struct {
	svc   *service
	count int
}

// SetNode adds or replaces a Node.
func (s *Store) SetNode(n *corev1.Node) {
	nd := s.nodeNamed(n.Name)
	labels := n.Labels
	weight, fault := nodeWeight(n)
	if !nd.known || nd.weight != weight || nd.fault != fault || !maps.Equal(nd.labels, labels) {
		nd.known, nd.weight, nd.fault = true, weight, fault
		nd.labels = maps.Clone(labels)
		nd.derived = nil
		s.nodeChanged(nd)
	}
	var addrs []netip.Addr
	for _, a := range n.Status.Addresses {
		if a.Type != corev1.NodeInternalIP && a.Type != corev1.NodeExternalIP {
			continue
		}
		if ip, ok := ParseAddr(a.Address); ok && specialAddr(ip) == "" {
			addrs = append(addrs, ip)
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	if created := createdAt(n); created != nd.created {
		s.setNodeAddrs(nd, nil) // the order of owners follows the age
		nd.created = created
	}
	s.setNodeAddrs(nd, slices.Compact(addrs))
	s.setHostAddrs(nd, hostAddresses(n))
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

func (s *Store) setHostAddrs(nd *node, addrs []netip.Addr) {
	if nd.name == s.opts.NodeName && !slices.Equal(nd.host, addrs) {
		s.selfChanged = true
	}
	nd.host = addrs
}

// DeleteNode removes a Node. Endpoints that name it stay where they are.
func (s *Store) DeleteNode(name string) {
	nd := s.nodes[name]
	if nd == nil || !nd.known {
		return
	}
	nd.known, nd.labels, nd.derived = false, nil, nil
	nd.weight, nd.fault = 0, ""
	s.nodeChanged(nd)
	s.setNodeAddrs(nd, nil)
	s.setHostAddrs(nd, nil)
	s.dropNode(nd)
}

// nodeNamed is the node of that name, made when it is new.
func (s *Store) nodeNamed(name string) *node {
	nd := s.nodes[name]
	if nd == nil {
		nd = &node{name: s.intern.string(name)}
		s.nodes[nd.name] = nd
	}
	return nd
}

// dropNode forgets a node that nobody mentions.
func (s *Store) dropNode(nd *node) {
	if !nd.known && len(nd.users) == 0 {
		delete(s.nodes, nd.name)
	}
}

// nodeChanged queues the Services that depend on the node's labels.
func (s *Store) nodeChanged(nd *node) {
	if nd.name == s.opts.NodeName {
		s.selfChanged = true
	}
	for svc := range nd.users {
		s.queue(svc)
	}
	for _, a := range nd.addrs {
		s.queueAddr(s.addrs[a])
	}
}

func (s *Store) queueAddr(p *addrIndex) {
	for i := range p.users {
		s.queue(p.users[i].svc)
	}
	for svc := range p.manyUsers {
		s.queue(svc)
	}
}

// setNodeAddrs keeps the index of addresses; addrs is sorted.
func (s *Store) setNodeAddrs(nd *node, addrs []netip.Addr) {
	if slices.Equal(nd.addrs, addrs) {
		return
	}
	for _, a := range nd.addrs {
		if _, still := slices.BinarySearchFunc(addrs, a, netip.Addr.Compare); still {
			continue
		}
		p := s.addrs[a]
		p.owners = slices.DeleteFunc(p.owners, func(o *node) bool { return o == nd })
		s.queueAddr(p)
		s.dropAddr(a, p)
	}
	for _, a := range addrs {
		p := s.addrAt(a)
		if slices.Contains(p.owners, nd) {
			continue
		}
		at, _ := slices.BinarySearchFunc(p.owners, nd, func(o, nd *node) int {
			return cmp.Or(cmp.Compare(nd.created, o.created), cmp.Compare(o.name, nd.name))
		})
		p.owners = slices.Insert(p.owners, at, nd)
		s.queueAddr(p)
	}
	nd.addrs = addrs
}

func (s *Store) addrAt(a netip.Addr) *addrIndex {
	p := s.addrs[a]
	if p == nil {
		p = &addrIndex{}
		s.addrs[a] = p
	}
	return p
}

func (s *Store) dropAddr(a netip.Addr, p *addrIndex) {
	if len(p.owners)+len(p.users)+len(p.manyUsers) == 0 {
		delete(s.addrs, a)
	}
}

// addUse tells the indexes that the endpoints of d now count for svc (by is 1)
// or no longer do (by is -1).
func (s *Store) addUse(svc *service, d *sliceData, by int) {
	for i := range d.endpoints {
		e := &d.endpoints[i]
		if e.node == nil {
			p := s.addrAt(e.addr)
			p.addUse(svc, by)
			s.dropAddr(e.addr, p)
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
		s.dropNode(nd)
	}
}

func (p *addrIndex) addUse(svc *service, by int) {
	if p.manyUsers != nil {
		if p.manyUsers[svc] += by; p.manyUsers[svc] == 0 {
			delete(p.manyUsers, svc)
		}
		return
	}
	for i := range p.users {
		if p.users[i].svc != svc {
			continue
		}
		if p.users[i].count += by; p.users[i].count == 0 {
			p.users = slices.Delete(p.users, i, i+1)
		}
		return
	}
	p.users = append(p.users, user{svc, by})
	if len(p.users) > maxListedUsers {
		p.manyUsers = make(map[*service]int, 2*maxListedUsers)
		for _, u := range p.users {
			p.manyUsers[u.svc] = u.count
		}
		p.users = nil
	}
}

// locate is the node of e: the named node, else the node with the address, else s.nowhere.
func (s *Store) locate(e *sliceEndpoint) (nd *node, inferred bool) {
	if e.node != nil {
		return e.node, false
	}
	if p := s.addrs[e.addr]; p != nil && len(p.owners) > 0 {
		return p.owners[0], true
	}
	return &s.noNode, false
}

// labels are the topology labels of e on nd: those of the Node, else those of the slice.
// The map is shared and never written.
func (s *Store) labels(nd *node, e *sliceEndpoint) map[string]string {
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
