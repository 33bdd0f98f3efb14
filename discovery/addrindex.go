package discovery

import (
	"cmp"
	"net/netip"
	"slices"
)

// addrIndex leads from addresses to the Nodes that own them and to the Services with endpoints
// that do not name their node.
type addrIndex map[netip.Addr]*addrEntry

// addrEntry is an address that Nodes own or that endpoints without a node have.
type addrEntry struct {
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

// owner is the node of an address, nil if no Node owns it.
func (x addrIndex) owner(a netip.Addr) *node {
	if p := x[a]; p != nil && len(p.owners) > 0 {
		return p.owners[0]
	}
	return nil
}

// users calls f for the Services with endpoints that have one of the addresses.
func (x addrIndex) users(addrs []netip.Addr, f func(*service)) {
	for _, a := range addrs {
		x[a].each(f)
	}
}

// own makes nd the owner of addrs, which are sorted, in place of those that it has, and calls f
// for the Services concerned.
func (x addrIndex) own(nd *node, addrs []netip.Addr, f func(*service)) {
	if slices.Equal(nd.addrs, addrs) {
		return
	}
	for _, a := range nd.addrs {
		if _, still := slices.BinarySearchFunc(addrs, a, netip.Addr.Compare); still {
			continue
		}
		p := x[a]
		p.owners = slices.DeleteFunc(p.owners, func(o *node) bool { return o == nd })
		p.each(f)
		x.drop(a, p)
	}
	for _, a := range addrs {
		p := x.at(a)
		if slices.Contains(p.owners, nd) {
			continue
		}
		at, _ := slices.BinarySearchFunc(p.owners, nd, func(o, nd *node) int {
			return cmp.Or(cmp.Compare(nd.created, o.created), cmp.Compare(o.name, nd.name))
		})
		p.owners = slices.Insert(p.owners, at, nd)
		p.each(f)
	}
	nd.addrs = addrs
}

// use counts the endpoints of svc that have an address and no node.
func (x addrIndex) use(a netip.Addr, svc *service, by int) {
	p := x.at(a)
	p.use(svc, by)
	x.drop(a, p)
}

// at is the entry of an address, made when it is new.
func (x addrIndex) at(a netip.Addr) *addrEntry {
	p := x[a]
	if p == nil {
		p = &addrEntry{}
		x[a] = p
	}
	return p
}

// drop forgets an address whose entry is empty.
func (x addrIndex) drop(a netip.Addr, p *addrEntry) {
	if len(p.owners)+len(p.users)+len(p.manyUsers) == 0 {
		delete(x, a)
	}
}

// each calls f for the users.
func (p *addrEntry) each(f func(*service)) {
	for i := range p.users {
		f(p.users[i].svc)
	}
	for svc := range p.manyUsers {
		f(svc)
	}
}

// use counts endpoints of svc.
func (p *addrEntry) use(svc *service, by int) {
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
