package addresspool

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Announcement is what the objects say about the addresses that a node announces.
type Announcement struct {
	Peers  []Peer
	Routes []Advertised
	Links  []Linked
	Faults []*Fault
}

// announcing makes an Announcement.
type announcing struct {
	Announcement
	node       Node
	selections selections
	// routers are the Peers by address and interface, identified is the last with a routerID.
	routers    map[[2]string]*Peer
	identified *Peer
}

// Advertised is how the addresses of pools are announced.
type Advertised struct {
	Name string
	// Prefixes are shared with other advertisements of the same pools.
	Prefixes []netip.Prefix
	pools    *selection
	// Aggregate4 and Aggregate6 are the lengths of the routes' prefixes, 0 for that of an address.
	Aggregate4, Aggregate6 int
	// Services are those whose addresses these are; without a selector all.
	Services []Selector
	// Peers are the names of the BGPPeers that are told; without any all routers are.
	Peers            []string
	LocalPref        uint32 // 0: the speaker's default
	Communities      []uint32
	LargeCommunities [][3]uint32
}

// Hostname is the label of nodes that a node knows without an API server.
const Hostname = "kubernetes.io/hostname"

// Node is what a node knows of itself.
type Node struct {
	Name string
	// Links is true if the node announces addresses by ARP and NDP.
	Links bool
	// ASN is the number of its autonomous system; 0: that of the BGPPeers.
	ASN uint32
	// Labels are those of the Node; nil: they are not known, and selectors may use Hostname alone.
	Labels map[string]string
	// Secret is the password in a Secret of the API server; nil: none is read.
	Secret func(namespace, name string) (string, error)
}

// selects reports whether an object with these selectors is for the node: without any, it is.
func (n *Node) selects(selectors []Selector) (bool, error) {
	labels := map[string]string{Hostname: n.Name}
	maps.Copy(labels, n.Labels)
	if n.Labels == nil {
		if err := checkNodeSelectors(selectors); err != nil {
			return false, err
		}
	}
	return len(selectors) == 0 || AnyMatches(selectors, labels), nil
}

// Announcement is that of a node. An object that cannot be done as it is leaves a Fault, and is
// not in use.
func (c *Config) Announcement(n Node) *Announcement {
	out := &announcing{node: n, routers: map[[2]string]*Peer{}}
	out.selections = selections{c: c, pools: map[int][]netip.Prefix{}, known: map[string]*selection{}}
	for _, p := range c.Peers {
		selected, err := n.selects(p.NodeSelectors)
		if selected && err == nil {
			err = out.peer(&p)
		}
		if err != nil {
			out.Faults = append(out.Faults, p.header.fault(err, false))
		}
	}
	for _, a := range c.Advertisements {
		selected, err := n.selects(a.NodeSelectors)
		if selected && err == nil {
			err = out.advertise(c, &a)
		}
		if err != nil {
			out.Faults = append(out.Faults, a.header.fault(err, false))
		}
	}
	for _, a := range c.LinkAdvertisements {
		selected, err := n.selects(a.NodeSelectors)
		if selected && err == nil {
			err = out.link(&a)
		}
		if err != nil {
			out.Faults = append(out.Faults, a.header.fault(err, false))
		}
	}
	return &out.Announcement
}

// peer adds a router. A node has a single number and a single BGP identifier.
func (o *announcing) peer(p *Peer) error {
	if o.node.ASN != 0 && o.node.ASN != p.MyASN {
		return fmt.Errorf("spec.myASN: a node has a single number, which is %d by its configuration", o.node.ASN)
	}
	twin := o.routers[[2]string{p.Address, p.Interface}]
	switch {
	case len(o.Peers) > 0 && o.Peers[0].MyASN != p.MyASN:
		return fmt.Errorf("spec.myASN: a node has a single number, which is %d by BGPPeer %s", o.Peers[0].MyASN, o.Peers[0].Name)
	case p.RouterID != "" && o.identified != nil && o.identified.RouterID != p.RouterID:
		return fmt.Errorf("spec.routerID: a node has a single identifier, which is %s by BGPPeer %s", o.identified.RouterID, o.identified.Name)
	case twin != nil:
		return fmt.Errorf("spec.peerAddress: BGPPeer %s has the same router", twin.Name)
	}
	x := *p
	var err error
	if x.Key, err = o.node.key(p); err != nil {
		return err
	}
	o.Peers = append(o.Peers, x)
	o.routers[[2]string{p.Address, p.Interface}] = p
	if p.RouterID != "" {
		o.identified = p
	}
	return nil
}

// key is the password of a session, "" for none.
func (n *Node) key(p *Peer) (string, error) {
	s := p.PasswordSecret
	own := p.header.Metadata.Namespace
	switch {
	case s.Name == "":
		return "", nil
	case n.Secret == nil:
		return "", errors.New("spec.passwordSecret: Secrets are not read (announce.objectSecrets); or use announce.peers with passwordFile")
	case own == "":
		own = s.Namespace
	case s.Namespace != "" && s.Namespace != own:
		return "", fmt.Errorf("spec.passwordSecret.namespace: must be that of the BGPPeer, %s", own)
	}
	password, err := n.Secret(own, s.Name)
	if err != nil {
		return "", fmt.Errorf("spec.passwordSecret: %w", err)
	}
	return password, nil
}

// advertise adds the routes of an advertisement.
func (o *announcing) advertise(c *Config, a *Advertisement) error {
	x := Advertised{Name: a.Name, LocalPref: a.LocalPref, Services: a.ServiceSelectors, Peers: a.Peers}
	if a.AggregationLength != nil && *a.AggregationLength < 32 {
		x.Aggregate4 = *a.AggregationLength
	}
	if a.AggregationLengthV6 != nil && *a.AggregationLengthV6 < 128 {
		x.Aggregate6 = *a.AggregationLengthV6
	}
	pools, err := o.selections.of(a.IPAddressPools, a.IPAddressPoolSelector)
	if err != nil {
		return err
	}
	x.pools, x.Prefixes = pools, pools.prefixes
	if err := x.checkAggregates(); err != nil {
		return err
	}
	for _, text := range a.Communities {
		if value, ok := c.Communities[text]; ok {
			text = value
		}
		x.community(text)
	}
	for i := range o.Routes {
		if y := &o.Routes[i]; x.LocalPref != y.LocalPref && x.sameRoutes(y) {
			return fmt.Errorf("spec.localPref: BGPAdvertisement %s asks for %d of the same routes", y.Name, y.LocalPref)
		}
	}
	o.Routes = append(o.Routes, x)
	return nil
}

// checkAggregates complains of routes to more than the pools have.
func (x *Advertised) checkAggregates() error {
	for _, f := range []struct {
		field   string
		length  int
		longest netip.Prefix
	}{{"aggregationLength", x.Aggregate4, x.pools.longest4}, {"aggregationLengthV6", x.Aggregate6, x.pools.longest6}} {
		if f.length > 0 && f.length < f.longest.Bits() {
			return fmt.Errorf("spec.%s: must be at least %d: the pools do not have all of %v", f.field, f.longest.Bits(), netip.PrefixFrom(f.longest.Addr(), f.length).Masked())
		}
	}
	return nil
}

// sameRoutes reports whether two make the same route of an address for a router. Those that select
// Services may select others. Pools in use have no address in common.
func (x *Advertised) sameRoutes(y *Advertised) bool {
	if len(x.Services) > 0 && len(y.Services) > 0 {
		return false
	}
	if !(x.Aggregate4 == y.Aggregate4 && meet(x.pools.four, y.pools.four)) && !(x.Aggregate6 == y.Aggregate6 && meet(x.pools.six, y.pools.six)) {
		return false
	}
	if len(x.Peers) == 0 || len(y.Peers) == 0 {
		return true
	}
	listed := setOf(y.Peers)
	return slices.ContainsFunc(x.Peers, func(name string) bool { return listed[name] })
}

// community adds a community of a form that isCommunity takes.
func (x *Advertised) community(text string) {
	parts := strings.Split(strings.TrimPrefix(text, "large:"), ":")
	var n [3]uint32
	for i, s := range parts {
		v, _ := strconv.ParseUint(s, 10, 32) // isCommunity
		n[i] = uint32(v)
	}
	if len(parts) == 3 {
		x.LargeCommunities = append(x.LargeCommunities, n)
	} else {
		x.Communities = append(x.Communities, n[0]<<16|n[1])
	}
}

// checkNodeSelectors complains of labels that a node does not know of itself.
func checkNodeSelectors(selectors []Selector) error {
	for i, s := range selectors {
		for _, key := range slices.Sorted(maps.Keys(s.MatchLabels)) {
			if key != Hostname {
				return fmt.Errorf("spec.nodeSelectors[%d].matchLabels: %s cannot be used without an API server, %s alone can", i, key, Hostname)
			}
		}
		for j, r := range s.MatchExpressions {
			if r.Key != Hostname {
				return fmt.Errorf("spec.nodeSelectors[%d].matchExpressions[%d].key: %s cannot be used without an API server, %s alone can", i, j, r.Key, Hostname)
			}
		}
	}
	return nil
}
