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
	node   Node
}

// Advertised is how the addresses of pools are announced.
type Advertised struct {
	Name     string
	Prefixes []netip.Prefix
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
	out := &Announcement{node: n}
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
			err = out.link(c, &a)
		}
		if err != nil {
			out.Faults = append(out.Faults, a.header.fault(err, false))
		}
	}
	return out
}

// peer adds a router. A node has a single number and a single BGP identifier.
func (o *Announcement) peer(p *Peer) error {
	if o.node.ASN != 0 && o.node.ASN != p.MyASN {
		return fmt.Errorf("spec.myASN: a node has a single number, which is %d by its configuration", o.node.ASN)
	}
	for _, x := range o.Peers {
		switch {
		case x.MyASN != p.MyASN:
			return fmt.Errorf("spec.myASN: a node has a single number, which is %d by BGPPeer %s", x.MyASN, x.Name)
		case p.RouterID != "" && x.RouterID != "" && x.RouterID != p.RouterID:
			return fmt.Errorf("spec.routerID: a node has a single identifier, which is %s by BGPPeer %s", x.RouterID, x.Name)
		case x.Address == p.Address && x.Interface == p.Interface:
			return fmt.Errorf("spec.peerAddress: BGPPeer %s has the same router", x.Name)
		}
	}
	x := *p
	var err error
	if x.Key, err = o.node.key(p); err != nil {
		return err
	}
	o.Peers = append(o.Peers, x)
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
func (o *Announcement) advertise(c *Config, a *Advertisement) error {
	x := Advertised{Name: a.Name, LocalPref: a.LocalPref, Services: a.ServiceSelectors, Peers: a.Peers}
	if a.AggregationLength != nil && *a.AggregationLength < 32 {
		x.Aggregate4 = *a.AggregationLength
	}
	if a.AggregationLengthV6 != nil && *a.AggregationLengthV6 < 128 {
		x.Aggregate6 = *a.AggregationLengthV6
	}
	for _, p := range c.Pools {
		if !a.Selects(&p) {
			continue
		}
		for _, r := range p.Ranges {
			x.Prefixes = append(x.Prefixes, r.Prefixes()...)
		}
	}
	if err := x.checkAggregates(); err != nil {
		return err
	}
	for _, text := range a.Communities {
		if value, ok := c.Communities[text]; ok {
			text = value
		}
		x.community(text)
	}
	for _, y := range o.Routes {
		if x.LocalPref != y.LocalPref && x.sameRoutes(&y) {
			return fmt.Errorf("spec.localPref: BGPAdvertisement %s asks for %d of the same routes", y.Name, y.LocalPref)
		}
	}
	if len(x.Prefixes) == 0 {
		return errors.New("spec.ipAddressPools: no pool is selected")
	}
	o.Routes = append(o.Routes, x)
	return nil
}

// checkAggregates complains of routes to more than the pools have.
func (x *Advertised) checkAggregates() error {
	for _, p := range x.Prefixes {
		field, length := "aggregationLengthV6", x.Aggregate6
		if p.Addr().Is4() {
			field, length = "aggregationLength", x.Aggregate4
		}
		if length > 0 && length < p.Bits() {
			return fmt.Errorf("spec.%s: must be at least %d: the pools do not have all of %v", field, p.Bits(), netip.PrefixFrom(p.Addr(), length).Masked())
		}
	}
	return nil
}

// sameRoutes reports whether two make the same route of an address for a router. Those that select
// Services may select others.
func (x *Advertised) sameRoutes(y *Advertised) bool {
	if len(x.Services) > 0 && len(y.Services) > 0 {
		return false
	}
	listed := func(name string) bool { return slices.Contains(y.Peers, name) }
	if len(x.Peers) > 0 && len(y.Peers) > 0 && !slices.ContainsFunc(x.Peers, listed) {
		return false
	}
	return slices.ContainsFunc(x.Prefixes, func(p netip.Prefix) bool {
		if p.Addr().Is4() && x.Aggregate4 != y.Aggregate4 || p.Addr().Is6() && x.Aggregate6 != y.Aggregate6 {
			return false
		}
		return slices.ContainsFunc(y.Prefixes, p.Overlaps)
	})
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

// Prefixes are the fewest prefixes that have the addresses of the range and no others.
func (r Range) Prefixes() (out []netip.Prefix) {
	for a := r.From; ; {
		p := netip.PrefixFrom(a, a.BitLen())
		for p.Bits() > 0 {
			wider := netip.PrefixFrom(a, p.Bits()-1)
			if wider.Masked().Addr() != a || r.To.Less(last(wider)) {
				break
			}
			p = wider
		}
		out = append(out, p)
		if a = last(p); !a.Less(r.To) {
			return out
		}
		a = a.Next()
	}
}

// last is the last address of a prefix.
func last(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for bit := p.Bits(); bit < p.Addr().BitLen(); bit++ {
		b[bit/8] |= 0x80 >> (bit % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}
