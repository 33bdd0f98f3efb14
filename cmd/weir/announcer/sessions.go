package announcer

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"time"

	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/discovery/addresspool"
	"github.com/weirlb/weir/lb/announce"
	"github.com/weirlb/weir/lb/announce/bgp"
	"github.com/weirlb/weir/lb/route"
)

// errNoRouter is the fault of a node that has nobody to announce to.
var errNoRouter = errors.New("no BGPPeer is for this node: it announces nothing")

// configured are the BGP sessions of the configuration alone, with the passwords of now.
func configured(c *config.Announce, log *slog.Logger) (bgp.Config, error) {
	b := bgp.Config{ASN: uint32(c.ASN), Log: log}
	for i := range c.Peers {
		p := &c.Peers[i]
		n := bgp.Neighbor{
			Interface: p.Interface, ASN: uint32(p.ASN), Port: uint16(p.Port), MultihopTTL: uint8(p.MultihopTTL),
			Hold: p.Hold(), Keepalive: p.Keepalive(), GracefulRestart: p.GracefulRestart.Time(),
		}
		var err error
		if n.Password, err = p.Password(); err != nil {
			return b, fmt.Errorf("announce.peers[%d].passwordFile: %w", i, err)
		}
		n.Address, _ = netip.ParseAddr(p.Address) // valid, or there is an interface
		n.Source, _ = netip.ParseAddr(p.SourceAddress)
		if p.BFD != nil {
			n.BFD = &bgp.BFD{Receive: p.BFD.Interval(), Transmit: p.BFD.Interval(), Multiplier: p.BFD.Lost()}
		}
		b.Neighbors = append(b.Neighbors, n)
	}
	return b, nil
}

// sessions are those of the configuration and of the objects. last is the BGP identifier that the
// sessions have, which they keep unless another is asked for.
func sessions(b bgp.Config, c *config.Announce, o *objects, node []route.Address, last netip.Addr) (bgp.Config, error) {
	id := c.RouterID
	for i := range o.Peers {
		b.ASN, id = o.Peers[i].MyASN, cmp.Or(id, o.Peers[i].RouterID)
	}
	b.Neighbors = append(slices.Clip(b.Neighbors), o.neighbors...)
	var err error
	if b.RouterID = last; id != "" || !last.IsValid() && len(b.Neighbors) > 0 {
		b.RouterID, err = routerID(id, node)
	}
	return b, err
}

// objectRestart is the time of enableGracefulRestart: that of FRR, which MetalLB leaves as it is.
const objectRestart = 120 * time.Second

// neighborOf is the session of a BGPPeer on a node with these addresses, nil for unknown ones.
func neighborOf(p *addresspool.Peer, node []route.Address) (bgp.Neighbor, error) {
	c := config.Peer{} // for the defaults
	n := bgp.Neighbor{Interface: p.Interface, ASN: p.ASN, LocalASN: p.LocalASN, Port: p.Port, Password: p.Key, Hold: cmp.Or(p.Hold, c.Hold())}
	n.Keepalive = min(cmp.Or(p.Keepalive, n.Hold/3), n.Hold/3).Truncate(time.Second)
	if p.EBGPMultiHop {
		n.MultihopTTL = 255
	}
	if p.EnableGracefulRestart {
		n.GracefulRestart = objectRestart
	}
	if p.BFD != nil {
		n.BFD = &bgp.BFD{Receive: p.BFD.Receive(), Transmit: p.BFD.Transmit(), Multiplier: p.BFD.Multiplier()}
	}
	n.Address, _ = netip.ParseAddr(p.Address)
	if p.SourceAddress == "" {
		return n, nil
	}
	n.Source, _ = netip.ParseAddr(p.SourceAddress)
	if node != nil && !slices.ContainsFunc(node, func(a route.Address) bool { return a.Prefix.Addr() == n.Source }) {
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

// startSpeaker starts the speaker of the configuration. Objects never keep a node from its start:
// those that cannot be used are faults.
func startSpeaker(c *config.Announce, o *objects, node []route.Address, log *slog.Logger) (base, session bgp.Config, s announce.Speaker, err error) {
	switch c.Speaker {
	case config.AnnounceOff:
		return base, session, silent{}, nil
	case config.AnnounceKernel:
		s, err = newKernelSpeaker(c)
		return base, session, s, err
	}
	if base, err = configured(c, log); err != nil {
		return base, session, nil, err
	}
	if session, err = sessions(base, c, o, node, netip.Addr{}); err != nil {
		return base, session, nil, err
	}
	s, err = newSpeaker(session)
	return base, session, s, err
}

// newSpeaker starts a speaker with sessions, or without any the silent one.
func newSpeaker(b bgp.Config) (announce.Speaker, error) {
	if len(b.Neighbors) == 0 {
		return silent{}, nil
	}
	return bgp.New(b)
}

// followSessions brings the sessions in line with the objects. Those that stay as they are go on.
// The number of the node and the BGP identifier are of all sessions: with another of these all
// begin anew. Preconditions: a.changing is held, a.mu is not.
func (a *Announcer) followSessions() {
	if a.name != config.AnnounceBGP {
		return
	}
	c := &a.cfg.Announce
	next, err := sessions(a.configured, c, a.objects, a.path.Router().Addresses(), a.session.RouterID)
	var faults []error
	switch {
	case err != nil: // the sessions of before stay
		faults = append(faults, err)
	case len(next.Neighbors) == 0:
		faults = append(faults, errNoRouter)
		fallthrough
	default:
		if err := a.setSessions(next); err != nil {
			faults = append(faults, err)
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.unheard = faults
}

// setSessions changes the sessions. Preconditions: as of followSessions.
func (a *Announcer) setSessions(next bgp.Config) error {
	a.mu.Lock()
	last := a.speaker
	a.mu.Unlock()
	if s, ok := last.(*bgp.Speaker); ok && (len(next.Neighbors) == 0 || next.ASN == a.session.ASN && next.RouterID == a.session.RouterID) {
		return s.SetNeighbors(next.Neighbors)
	}
	if len(next.Neighbors) == 0 {
		return nil
	}
	_ = a.replace(silent{}) // it has no errors
	if err := last.Close(); err != nil {
		return err
	}
	s, err := newSpeaker(next)
	if err != nil {
		return err
	}
	a.session = next
	return a.replace(s)
}

// replace has another speaker announce what is announced.
func (a *Announcer) replace(s announce.Speaker) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return s.Close()
	}
	a.speaker = s
	return a.set()
}

// isSettled reports whether time alone brings no further route.
func (a *Announcer) isSettled(n *announce.Node, list []announce.Decision) bool {
	if n.Stopping || n.Draining {
		return true
	}
	return !n.NotSynced && (a.source == nil || a.source.known.Load()) &&
		!slices.ContainsFunc(list, func(d announce.Decision) bool { return d.Reason == announce.Settling })
}

// set tells the speaker the routes. Preconditions: a.mu is held.
func (a *Announcer) set() error {
	err := a.speaker.Set(a.routes)
	if s, ok := a.speaker.(interface{ Settled(bool) }); ok {
		s.Settled(a.settled)
	}
	return err
}

// silent is the speaker of a node without routers.
type silent struct{}

func (silent) Set([]announce.Route) error { return nil }
func (silent) Peers() []announce.Peer     { return nil }
func (silent) Adopted() []netip.Prefix    { return nil }
func (silent) Keeps() bool                { return false }
func (silent) Close() error               { return nil }
func (silent) Leave() error               { return nil }
