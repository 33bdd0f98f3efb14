package daemon

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/cmd/weir/poolfile"
	"github.com/weirlb/weir/discovery/addresspool"
	"github.com/weirlb/weir/lb"
	"github.com/weirlb/weir/lb/announce"
	"github.com/weirlb/weir/lb/announce/bgp"
	"github.com/weirlb/weir/lb/route"
)

// objects are what announce.objects says about this node. The zero value says nothing.
type objects struct {
	addresspool.Announcement
	faults []error
	unread bool // a file could not be read
	// known are the faults of the objects that Routes are of, by faultText.
	known map[string]bool
	// started are the BGPPeers of the start: sessions are theirs until the next.
	started []addresspool.Peer
	// internal is a BGPPeer of the start that is in the node's own autonomous system, "" for none.
	internal string
}

// announceObjects reads announce.objects. An object with a fault is out of service alone.
func announceObjects(cfg *config.Configuration) *objects {
	a := &cfg.Announce
	if len(a.Objects) == 0 {
		return &objects{}
	}
	list, err := poolfile.Read(a.Objects)
	c := addresspool.Decode(list)
	node := addresspool.Node{Name: cfg.NodeName, Routers: len(a.Peers) > 0, ASN: uint32(a.ASN)}
	o := &objects{Announcement: *c.Announcement(node), known: map[string]bool{}}
	if err != nil {
		o.faults, o.unread = append(o.faults, err), true
	}
	for _, f := range append(c.Faults, o.Faults...) {
		o.faults = append(o.faults, f)
	}
	for _, f := range o.faults {
		o.known[faultText(f)] = true
	}
	o.started = o.Peers
	return o
}

// follow takes over from the objects before a reload what it cannot change, and their routes where
// a file cannot be read or the objects have a fault that those had not: a mistake must not withdraw
// what is in use. It says so in refused, "" for none.
func (o *objects) follow(last *objects) (refused string) {
	if last == nil {
		return ""
	}
	o.started = last.started
	fresh := slices.IndexFunc(o.faults, func(err error) bool { return !last.known[faultText(err)] })
	changed := !o.unread && !slices.Equal(sessionTexts(o.Peers), sessionTexts(o.started))
	if fresh >= 0 || o.unread {
		o.Routes, o.known = last.Routes, last.known
		refused = fmt.Sprintf("the routes of before stay until this is mended: %v", o.faults[max(fresh, 0)])
		o.faults = append(o.faults, errors.New(refused))
	}
	if changed {
		o.faults = append(o.faults, errors.New("BGPPeers have changed: sessions follow at the next start, until then the routers of before are told"))
	}
	return refused
}

// faultText identifies a fault, in whichever file its object is.
func faultText(err error) string {
	var f *addresspool.Fault
	if errors.As(err, &f) {
		elsewhere := *f
		elsewhere.Source = ""
		err = &elsewhere
	}
	return err.Error()
}

// checkPrepend looks whether the paths can be prepended to. A router of the node's own autonomous
// system takes a path with its number for a loop, and drops the route; GoBGP has one path for all
// routers. A route without the prepending reaches them all.
func (o *objects) checkPrepend(c *config.Announce) {
	for i := range o.started {
		if p := &o.started[i]; p.ASN == p.MyASN {
			o.internal = p.Name
		}
	}
	if o.internal != "" && c.Prepend > 0 {
		o.faults = append(o.faults, fmt.Errorf("announce.prepend: is not done, since BGPPeer %s has peerASN equal to myASN (iBGP), and takes a path with its own number for a loop; set it to 0, and use localPref", o.internal))
	}
}

// sessionTexts are the sessions of BGPPeers in order, without names and the choice of nodes.
func sessionTexts(peers []addresspool.Peer) (out []string) {
	for _, p := range peers {
		p.NodeSelectors = nil
		text, _ := json.Marshal([]any{&p, p.BFD}) // of strings and numbers
		out = append(out, string(text))
	}
	slices.Sort(out)
	return out
}

// ObjectFaults are the objects of announce.objects that are out of service on this node.
func ObjectFaults(cfg *config.Configuration) []error {
	o := announceObjects(cfg)
	o.checkPrepend(&cfg.Announce)
	return o.faults
}

// settings are those of the configuration with the advertisements of the objects.
func (o *objects) settings(c *config.Announce) announce.Settings {
	s := c.Settings()
	if o.internal != "" {
		s.Attributes.Prepend = 0
	}
	for i := range o.Routes {
		r := &o.Routes[i]
		x := announce.Advertisement{
			Allow: r.Prefixes, Aggregate4: r.Aggregate4, Aggregate6: r.Aggregate6,
			Attributes: announce.Attributes{Communities: r.Communities, LargeCommunities: r.LargeCommunities},
		}
		if r.LocalPref > 0 {
			x.Attributes.LocalPref = &r.LocalPref
		}
		s.Advertisements = append(s.Advertisements, x)
	}
	return s
}

// sessions are the BGP sessions of the configuration and of the objects, and the BGPPeers that
// cannot be used.
func sessions(c *config.Announce, o *objects, node []route.Address, log *slog.Logger) (bgp.Config, []error, error) {
	b := bgp.Config{ASN: uint32(c.ASN), Log: log}
	id := c.RouterID
	for i := range c.Peers {
		p := &c.Peers[i]
		n := bgp.Neighbor{
			Interface: p.Interface, ASN: uint32(p.ASN), Port: uint16(p.Port), MultihopTTL: uint8(p.MultihopTTL),
			Hold: p.Hold(), Keepalive: p.Keepalive(),
		}
		var err error
		if n.Password, err = p.Password(); err != nil {
			return b, nil, fmt.Errorf("announce.peers[%d].passwordFile: %w", i, err)
		}
		n.Address, _ = netip.ParseAddr(p.Address) // valid, or there is an interface
		n.Source, _ = netip.ParseAddr(p.SourceAddress)
		if p.BFD != nil {
			n.BFD = &bgp.BFD{Receive: p.BFD.Interval(), Transmit: p.BFD.Interval(), Multiplier: p.BFD.Lost()}
		}
		b.Neighbors = append(b.Neighbors, n)
	}
	var faults []error
	for i := range o.Peers {
		p := &o.Peers[i]
		n, err := neighborOf(p, node)
		if slices.ContainsFunc(b.Neighbors, func(x bgp.Neighbor) bool { return x.Name() == n.Name() }) {
			err = errors.New("spec.peerAddress: announce.peers has the same router")
		}
		if err != nil {
			faults = append(faults, fmt.Errorf("BGPPeer %s: %w", p.Name, err))
			continue
		}
		b.ASN, id = p.MyASN, cmp.Or(id, p.RouterID)
		b.Neighbors = append(b.Neighbors, n)
	}
	var err error
	if len(b.Neighbors) > 0 {
		b.RouterID, err = routerID(id, node)
	}
	return b, faults, err
}

// neighborOf is the session of a BGPPeer.
func neighborOf(p *addresspool.Peer, node []route.Address) (bgp.Neighbor, error) {
	c := config.Peer{} // for the defaults
	n := bgp.Neighbor{Interface: p.Interface, ASN: p.ASN, Port: p.Port, Hold: cmp.Or(p.Hold, c.Hold())}
	n.Keepalive = min(cmp.Or(p.Keepalive, n.Hold/3), n.Hold/3).Truncate(time.Second)
	if p.EBGPMultiHop {
		n.MultihopTTL = 255
	}
	if p.BFD != nil {
		n.BFD = &bgp.BFD{Receive: p.BFD.Receive(), Transmit: p.BFD.Transmit(), Multiplier: p.BFD.Multiplier()}
	}
	n.Address, _ = netip.ParseAddr(p.Address)
	if p.SourceAddress == "" {
		return n, nil
	}
	n.Source, _ = netip.ParseAddr(p.SourceAddress)
	if !slices.ContainsFunc(node, func(a route.Address) bool { return a.Prefix.Addr() == n.Source }) {
		return n, fmt.Errorf("spec.sourceAddress: this node has no address %s", n.Source)
	}
	return n, nil
}

// routerID is the BGP identifier: configured, or the first IPv4 address of the node.
func routerID(configured string, node []route.Address) (netip.Addr, error) {
	if configured != "" {
		return netip.ParseAddr(configured)
	}
	for _, a := range node {
		if a.Prefix.Addr().Is4() {
			return a.Prefix.Addr(), nil
		}
	}
	return netip.Addr{}, errors.New("announce.routerID: must be given, since this node has no IPv4 address")
}

// newSpeaker starts the speaker of the configuration. Objects never keep a node from its start:
// those that cannot be used are faults.
func newSpeaker(c *config.Announce, o *objects, l *lb.LB, log *slog.Logger) (announce.Speaker, []error, error) {
	if c.Speaker == config.AnnounceKernel {
		s, err := newKernelSpeaker(c)
		return s, nil, err
	}
	b, faults, err := sessions(c, o, l.Router().Addresses(), log)
	if err != nil {
		return nil, nil, err
	}
	if len(b.Neighbors) == 0 {
		return silent{}, append(faults, errors.New("no BGPPeer is for this node: it announces nothing")), nil
	}
	s, err := bgp.New(b)
	return s, faults, err
}

// silent is the speaker of a node without routers.
type silent struct{}

func (silent) Set([]announce.Route) error { return nil }
func (silent) Peers() []announce.Peer     { return nil }
func (silent) Adopted() []netip.Prefix    { return nil }
func (silent) Close() error               { return nil }
func (silent) Leave() error               { return nil }
