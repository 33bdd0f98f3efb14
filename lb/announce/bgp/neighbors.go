package bgp

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"github.com/vishvananda/netlink"
	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv6"
)

const (
	// retry is the pause between attempts, in seconds. GoBGP's own are 120 s for a connection
	// and 30 s after a reset.
	retry = 1
	// lookEvery is how often the link-local address of an unnumbered neighbor is looked for.
	lookEvery = time.Second
	// patience is how long an unnumbered session may be down before its address is looked for
	// again, and any session after too many prefixes.
	patience = 10 * time.Second
)

// addNeighbors adds all neighbors with an address whose sessions may begin.
func (s *Speaker) addNeighbors() error {
	var errs []error
	for i := range s.cfg.Neighbors {
		if n := &s.cfg.Neighbors[i]; n.Interface == "" && s.mayBegin(n) {
			errs = append(errs, s.addNeighbor(i))
		}
	}
	return errors.Join(errs...)
}

// addNeighbor adds a neighbor. GoBGP looks for the address of an unnumbered one in the kernel's
// table of neighbors, and fails without it.
func (s *Speaker) addNeighbor(i int) error {
	n := s.neighborOf(i)
	if n.Interface == "" {
		s.note(i, n.Address)
	}
	if err := s.server.AddPeer(s.ctx, &api.AddPeerRequest{Peer: peerOf(n)}); err != nil {
		return fmt.Errorf("peer %s: %w", n.Name(), err)
	}
	if n.Interface != "" {
		s.note(i, s.linkLocal(n.Interface))
		return s.limitAgain()
	}
	return nil
}

// peerOf is a neighbor in GoBGP's form, without BFD: see detection.
func peerOf(n *Neighbor) *api.Peer {
	peer := &api.Peer{
		Conf: &api.PeerConf{PeerAsn: n.ASN, LocalAsn: n.LocalASN, AuthPassword: n.Password, NeighborInterface: n.Interface},
		Timers: &api.Timers{Config: &api.TimersConfig{
			HoldTime: uint64(n.Hold / time.Second), KeepaliveInterval: uint64(n.Keepalive / time.Second),
			ConnectRetry: retry, IdleHoldTimeAfterReset: retry,
		}},
		Transport:       &api.Transport{RemotePort: uint32(n.Port)},
		EbgpMultihop:    &api.EbgpMultihop{Enabled: n.MultihopTTL > 0, MultihopTtl: uint32(n.MultihopTTL)},
		GracefulRestart: restartOf(n),
	}
	v4, v6 := n.Interface != "" || n.Address.Is4(), n.Interface != "" || n.Address.Is6()
	for _, f := range []struct {
		has bool
		afi api.Family_Afi
	}{{v4, api.Family_AFI_IP}, {v6, api.Family_AFI_IP6}} {
		if f.has {
			family := &api.Family{Afi: f.afi, Safi: api.Family_SAFI_UNICAST}
			peer.AfiSafis = append(peer.AfiSafis, &api.AfiSafi{
				Config:       &api.AfiSafiConfig{Family: family, Enabled: true},
				PrefixLimits: &api.PrefixLimit{Family: family, MaxPrefixes: maxReceived},
				MpGracefulRestart: &api.MpGracefulRestart{
					Config: &api.MpGracefulRestartConfig{Enabled: n.GracefulRestart > 0},
				},
			})
		}
	}
	if n.Source.IsValid() {
		peer.Transport.LocalAddress = n.Source.String()
	}
	if n.Interface == "" {
		peer.Conf.NeighborAddress = n.Address.String()
	}
	return peer
}

// note notes the address of a neighbor that is added.
func (s *Speaker) note(i int, a netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.neighbors[i].address, s.neighbors[i].added = a, time.Now()
	s.neighbors[i].state = bgp.BGP_FSM_IDLE
}

// linkLocal is the address that GoBGP has found for an interface.
func (s *Speaker) linkLocal(name string) (found netip.Addr) {
	_ = s.server.ListPeer(s.ctx, &api.ListPeerRequest{}, func(p *api.Peer) { // ends with the server alone
		if p.GetConf().GetNeighborInterface() == name {
			found, _ = netip.ParseAddr(p.GetState().GetNeighborAddress())
		}
	})
	return found
}

// follow looks for unnumbered neighbors, begins sessions that have waited for the routes, and brings up those that have sent too many prefixes.
func (s *Speaker) follow() {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		for i, n := range s.present() {
			s.disown(i)
			if n.Interface != "" {
				s.look(i)
			} else {
				s.begin(i)
				s.enable(i)
			}
		}
		select {
		case <-s.ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// disown ends the session with a router that has the node's own number where that is refused. GoBGP
// knows no such rule; until then the export policy tells the router nothing.
func (s *Speaker) disown(i int) {
	s.mu.Lock()
	n := &s.neighbors[i]
	due, address := !n.removed && n.own, n.address.String()
	s.mu.Unlock()
	if due {
		_ = s.server.DisablePeer(s.ctx, &api.DisablePeerRequest{Address: address, Communication: "own AS number"}) // it is there
	}
}

// enable brings up a neighbor that was put down, after a pause. It does so once: each time GoBGP
// waits from the start.
func (s *Speaker) enable(i int) {
	s.mu.Lock()
	n := &s.neighbors[i]
	due := !n.removed && n.full && n.state != bgp.BGP_FSM_ESTABLISHED && time.Since(n.since) >= patience
	n.full = n.full && !due
	address := n.address.String()
	s.mu.Unlock()
	if due {
		_ = s.server.EnablePeer(s.ctx, &api.EnablePeerRequest{Address: address}) // it is there
	}
}

// look adds an unnumbered neighbor that is not there yet, or has been down for long: a router
// that was replaced has another address.
func (s *Speaker) look(i int) {
	n := s.neighborOf(i)
	s.changing.Lock() // it must not be removed meanwhile
	defer s.changing.Unlock()
	s.mu.Lock()
	known := s.neighbors[i]
	s.mu.Unlock()
	switch {
	case known.removed || known.state == bgp.BGP_FSM_ESTABLISHED || !s.mayBegin(n):
		return
	case known.added.IsZero():
	case time.Since(known.added) < patience || time.Since(known.since) < patience:
		_ = wake(n.Interface) // the router may have started again
		return
	default:
		// By the address: GoBGP panics without.
		_ = s.server.DeletePeer(s.ctx, &api.DeletePeerRequest{Address: known.address.String()}) // it is there, or need not be
	}
	reason := ""
	if err := wake(n.Interface); err != nil {
		reason = err.Error()
	} else if err := s.addNeighbor(i); err != nil {
		if reason = err.Error(); probe(n.Interface) != nil {
			reason += "; the neighbors of the kernel cannot be probed"
		}
	} else {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.neighbors[i].added, s.neighbors[i].reason = time.Time{}, reason
}

// probe has the kernel probe the link-local neighbors of an interface that it has not heard from
// lately. The entry of a router that was replaced otherwise stays stale for ever where the link
// came back before the kernel noticed the loss, and GoBGP accepts a single neighbor alone.
func probe(name string) error {
	link, err := net.InterfaceByName(name)
	if err != nil {
		return err
	}
	neighbors, err := netlink.NeighList(link.Index, netlink.FAMILY_V6)
	if err != nil {
		return err
	}
	var errs []error
	for _, n := range neighbors {
		if n.State == netlink.NUD_STALE && n.IP.IsLinkLocalUnicast() {
			n.State = netlink.NUD_PROBE
			errs = append(errs, netlink.NeighSet(&n))
		}
	}
	return errors.Join(errs...)
}

// wake pings all nodes of a link, and sends them a router advertisement that offers no route
// (RFC 4861, lifetime 0). The kernel learns the link-local addresses of those that answer; FRR
// takes an unnumbered session only from a node whose advertisement it has seen.
func wake(name string) error {
	link, err := net.InterfaceByName(name)
	if err != nil {
		return fmt.Errorf("interface %s: %w", name, err)
	}
	c, err := icmp.ListenPacket("ip6:ipv6-icmp", "::")
	if err != nil {
		return fmt.Errorf("ping on %s: %w", name, err)
	}
	defer c.Close()
	errs := []error{c.IPv6PacketConn().SetMulticastHopLimit(255)} // advertisements from further away are ignored
	advertisement := make([]byte, 12)                             // hop limit, flags, lifetimes, timers: unspecified
	if len(link.HardwareAddr) == 6 {
		advertisement = append(append(advertisement, 1, 1), link.HardwareAddr...) // source link-layer address
	}
	for _, m := range []icmp.Message{
		{Type: ipv6.ICMPTypeRouterAdvertisement, Body: &icmp.RawBody{Data: advertisement}},
		{Type: ipv6.ICMPTypeEchoRequest, Body: &icmp.Echo{ID: link.Index & 0xffff, Data: []byte("weir")}},
	} {
		b, err := m.Marshal(nil)
		if err == nil {
			_, err = c.WriteTo(b, &net.IPAddr{IP: net.IPv6linklocalallnodes, Zone: name})
		}
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("ping on %s: %w", name, err)
	}
	return nil
}
