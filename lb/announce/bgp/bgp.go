// Package bgp announces routes to routers over BGP (RFC 4271), with GoBGP inside of the process.
//
// It opens sessions and accepts none, takes no route from a router and installs none, and sends
// those routes alone that Set was given. When the process dies, the kernel closes the
// connections and the routers withdraw within a round trip. With graceful restart (RFC 4724), which
// is off unless a neighbor has it, a router keeps the routes to a node that may serve nothing.
package bgp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	"github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"github.com/osrg/gobgp/v4/pkg/server"

	"github.com/weirlb/weir/lb/announce"
)

// Config is the configuration of a Speaker.
type Config struct {
	ASN       uint32
	RouterID  netip.Addr // IPv4 (RFC 6286)
	Neighbors []Neighbor
	Log       *slog.Logger
}

// Neighbor is a router. A session over an address has the routes of the address's family, that
// over an interface those of both (RFC 8950).
type Neighbor struct {
	Address   netip.Addr // or Interface
	Interface string     // an unnumbered session, over link-local addresses
	// ASN is the number of the router; 0: any but the node's own, which is refused. With 0 the session
	// crosses routers without MultihopTTL.
	ASN uint32
	// LocalASN is the number of the node for this router in place of Config.ASN, also in the paths
	// that it is told; 0: Config.ASN.
	LocalASN uint32
	Port     uint16 // 0: 179
	// Password is the key of TCP MD5 signatures (RFC 2385), "" for none.
	Password string
	Source   netip.Addr // of the connection; zero: the kernel's choice
	// Hold is how long a session lives without a message of the other side, Keepalive the time
	// between messages, in whole seconds.
	Hold, Keepalive time.Duration
	// MultihopTTL lets a session of eBGP cross routers; 0: it does not.
	MultihopTTL uint8
	// BFD is for neighbors with Address, without Source and MultihopTTL; nil: none.
	BFD *BFD
	// GracefulRestart is how long the router keeps the routes when the connection ends without a
	// notification (RFC 4724), in whole seconds up to 4095; 0: not at all. It excludes BFD.
	GracefulRestart time.Duration
}

// Name is the address or the interface.
func (n *Neighbor) Name() string {
	if n.Interface != "" {
		return n.Interface
	}
	return n.Address.String()
}

// refuses reports whether a router of any number but the node's own has that.
func (n *Neighbor) refuses(asn, own uint32) bool {
	return n.ASN == 0 && (asn == own || asn == n.LocalASN && asn != 0)
}

// maxReceived ends the session of a router that sends more prefixes per family: they are
// refused, and only held for as long as the session lives. GoBGP leaves such a neighbor down
// for good; follow brings it up again.
const maxReceived = 10000

// Speaker is an announce.Speaker.
type Speaker struct {
	cfg    Config
	server *server.BgpServer
	ctx    context.Context
	cancel context.CancelFunc
	tasks  sync.WaitGroup

	detection     *detection
	stopDetection func() // and wait until it has ended

	begun time.Time // of the process
	left  atomic.Bool

	setting sync.Mutex // guards set and limits, and orders the calls of Set
	set     map[netip.Prefix]announce.Route
	limits  []filter

	changing sync.Mutex // orders the calls of SetNeighbors

	mu        sync.Mutex // guards what follows and cfg.Neighbors; not held in calls of the server, which calls onPeer
	neighbors []neighbor // in the order of cfg.Neighbors
	changed   time.Time  // of the routes, last; zero: none was set
	settled   time.Time  // since when Settled says so; zero: it does not
}

// neighbor is what is known of a neighbor.
type neighbor struct {
	address netip.Addr // with the zone, of an unnumbered one once it is known
	added   time.Time  // to the server; zero: not
	state   bgp.FSMState
	since   time.Time
	full    bool   // it was put down: maxReceived, or own
	asn     uint32 // of the router, once it has had a session
	own     bool   // the router has the node's own number where that is refused
	removed bool   // by SetNeighbors: it keeps the place alone
	ends    uint64
	reason  string
}

// New starts a Speaker, which opens its sessions on its own.
func New(cfg Config) (*Speaker, error) {
	s := &Speaker{cfg: cfg, begun: time.Now(), set: map[netip.Prefix]announce.Route{}, neighbors: make([]neighbor, len(cfg.Neighbors))}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	log := slog.New(quiet{cfg.Log.Handler(), &s.left})
	s.server = server.NewBgpServer(server.LoggerOption(log, nil))
	s.tasks.Go(s.server.Serve)
	s.startDetection()
	if err := s.start(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	s.tasks.Go(s.follow)
	return s, nil
}

func (s *Speaker) start() error {
	err := s.server.StartBgp(s.ctx, &api.StartBgpRequest{Global: &api.Global{
		Asn: s.cfg.ASN, RouterId: s.cfg.RouterID.String(), ListenPort: -1,
	}})
	if err != nil {
		return fmt.Errorf("start BGP: %w", err)
	}
	if err := s.startPolicies(); err != nil {
		return fmt.Errorf("refuse routes of routers: %w", err)
	}
	if err := s.limit(nil, false); err != nil {
		return err
	}
	err = s.server.WatchEvent(s.ctx, server.WatchEventMessageCallbacks{OnPeerUpdate: s.onPeer}, server.WatchPeer())
	if err != nil {
		return fmt.Errorf("watch sessions: %w", err)
	}
	return s.addNeighbors()
}

// Set implements announce.Speaker.
func (s *Speaker) Set(want []announce.Route) error {
	s.setting.Lock()
	defer s.setting.Unlock()
	wanted := map[netip.Prefix]announce.Route{}
	for _, r := range want {
		wanted[r.Prefix] = r
	}
	var errs []error
	for p, r := range s.set {
		if _, ok := wanted[p]; ok {
			continue
		}
		path, err := pathOf(&r, s.cfg.ASN)
		if err == nil {
			err = s.server.DeletePath(apiutil.DeletePathRequest{Paths: []*apiutil.Path{path}})
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("withdraw %s: %w", p, err))
			continue
		}
		delete(s.set, p)
		s.noteRoutes()
	}
	again := slices.ContainsFunc(want, func(r announce.Route) bool {
		old, ok := s.set[r.Prefix]
		return ok && !limitedAlike(&old, &r)
	})
	if err := s.limit(wanted, again); err != nil {
		return errors.Join(append(errs, err)...) // a limited route may go nowhere else
	}
	for _, r := range want {
		if old, ok := s.set[r.Prefix]; ok && equal(&old.Attributes, &r.Attributes) {
			s.set[r.Prefix] = r
			continue
		}
		path, err := pathOf(&r, s.cfg.ASN)
		if err == nil {
			_, err = s.server.AddPath(apiutil.AddPathRequest{Paths: []*apiutil.Path{path}})
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("announce %s: %w", r.Prefix, err))
			continue
		}
		s.set[r.Prefix] = r
		s.noteRoutes()
	}
	return errors.Join(errs...)
}

// Peers implements announce.Speaker.
func (s *Speaker) Peers() []announce.Peer {
	sent := map[netip.Addr]int{}
	_ = s.server.ListPeer(s.ctx, &api.ListPeerRequest{EnableAdvertised: true}, func(p *api.Peer) { // ends with the server alone
		a, err := netip.ParseAddr(p.GetState().GetNeighborAddress())
		if err != nil {
			return
		}
		for _, f := range p.GetAfiSafis() {
			sent[a] += int(f.GetState().GetAdvertised())
		}
	})
	bfd := s.bfdStates()
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []announce.Peer
	for i := range s.neighbors {
		n, cfg := &s.neighbors[i], &s.cfg.Neighbors[i]
		if n.removed {
			continue
		}
		p := announce.Peer{
			Name: cfg.Name(), ASN: cmp.Or(cfg.ASN, n.asn), State: "idle", Since: n.since, Ends: n.ends, Reason: n.reason,
			Established: n.state == bgp.BGP_FSM_ESTABLISHED,
		}
		if n.added.IsZero() && n.reason == "" && cfg.GracefulRestart > 0 {
			p.Reason = "it begins when the routes are complete (graceful restart)"
		}
		if !n.added.IsZero() {
			p.State = strings.ToLower(strings.TrimPrefix(n.state.String(), "BGP_FSM_"))
		}
		if p.Established {
			p.Routes, p.Reason = sent[n.address], ""
		}
		if cfg.BFD != nil {
			p.BFD = cmp.Or(bfd[cfg.Address.String()], "down")
		}
		out = append(out, p)
	}
	return out
}

// Adopted implements announce.Speaker: routers withdraw when a session ends.
func (s *Speaker) Adopted() []netip.Prefix { return nil }

// Close implements announce.Speaker.
func (s *Speaker) Close() error {
	s.stopDetection()
	s.server.Stop() // StopBgp alone leaves the server of BFD
	s.cancel()
	s.tasks.Wait()
	return nil
}

// onPeer notes a change of a session. GoBGP calls it, and must not be called by it.
func (s *Speaker) onPeer(e *apiutil.WatchEventMessage_PeerEvent, at time.Time) {
	if e.Type != apiutil.PEER_EVENT_STATE && e.Type != apiutil.PEER_EVENT_INIT {
		return
	}
	st := &e.Peer.State
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.neighbors {
		n := &s.neighbors[i]
		if n.removed || n.address != st.NeighborAddress || n.state == st.SessionState {
			continue
		}
		name := s.cfg.Neighbors[i].Name()
		prefixes := st.AdminState == api.PeerState_ADMIN_STATE_PFX_CT
		n.full = prefixes || n.own
		if n.state == bgp.BGP_FSM_ESTABLISHED {
			n.ends++
			n.reason = strings.TrimSpace(strings.ToLower(strings.TrimPrefix(st.DisconnectReason.String(), "DISCONNECT_REASON_")) + " " + st.DisconnectMessage)
			switch {
			case n.own:
				n.reason = fmt.Sprintf("the router has the number %d, which is the node's own: another is asked for (external)", n.asn)
			case prefixes:
				n.reason = fmt.Sprintf("the router has sent more than %d prefixes", maxReceived)
			case endedByBFD(st.DisconnectMessage):
				n.reason = "BFD: no packet of the router in time, or the router has ended BFD"
			}
			s.cfg.Log.Warn("announce: a session is down", "peer", name, "reason", n.reason)
			s.detection.session(i, false)
		}
		if st.SessionState == bgp.BGP_FSM_ESTABLISHED {
			s.cfg.Log.Info("announce: a session is established", "peer", name)
			s.detection.session(i, true)
			n.asn = st.PeerASN
		}
		n.own = s.cfg.Neighbors[i].refuses(n.asn, s.cfg.ASN) && st.SessionState == bgp.BGP_FSM_ESTABLISHED
		n.state, n.since = st.SessionState, at
	}
}

// quiet passes on warnings and errors alone, and none after Leave: GoBGP calls it an error that it
// is stopped already.
type quiet struct {
	slog.Handler
	left *atomic.Bool
}

func (q quiet) Enabled(ctx context.Context, l slog.Level) bool {
	return l >= slog.LevelWarn && !q.left.Load() && q.Handler.Enabled(ctx, l)
}

func (q quiet) WithAttrs(a []slog.Attr) slog.Handler { return quiet{q.Handler.WithAttrs(a), q.left} }
func (q quiet) WithGroup(g string) slog.Handler      { return quiet{q.Handler.WithGroup(g), q.left} }

// pathOf is a route in GoBGP's form. The next hop is each session's own address.
func pathOf(r *announce.Route, asn uint32) (*apiutil.Path, error) {
	nlri, err := bgp.NewIPAddrPrefix(r.Prefix)
	if err != nil {
		return nil, err
	}
	family, unspecified := bgp.RF_IPv4_UC, netip.IPv4Unspecified()
	if r.Prefix.Addr().Is6() {
		family, unspecified = bgp.RF_IPv6_UC, netip.IPv6Unspecified()
	}
	attrs := []bgp.PathAttributeInterface{bgp.NewPathAttributeOrigin(0)} // IGP
	if r.Prepend > 0 {
		path := slices.Repeat([]uint32{asn}, int(r.Prepend))
		attrs = append(attrs, bgp.NewPathAttributeAsPath([]bgp.AsPathParamInterface{bgp.NewAs4PathParam(bgp.BGP_ASPATH_ATTR_TYPE_SEQ, path)}))
	}
	if family == bgp.RF_IPv4_UC {
		hop, err := bgp.NewPathAttributeNextHop(unspecified)
		if err != nil {
			return nil, err
		}
		attrs = append(attrs, hop)
	} else {
		reach, err := bgp.NewPathAttributeMpReachNLRI(family, []bgp.PathNLRI{{NLRI: nlri}}, unspecified)
		if err != nil {
			return nil, err
		}
		attrs = append(attrs, reach)
	}
	if r.MED != nil {
		attrs = append(attrs, bgp.NewPathAttributeMultiExitDisc(*r.MED))
	}
	if r.LocalPref != nil {
		attrs = append(attrs, bgp.NewPathAttributeLocalPref(*r.LocalPref))
	}
	if len(r.Communities) > 0 {
		attrs = append(attrs, bgp.NewPathAttributeCommunities(r.Communities))
	}
	if len(r.LargeCommunities) > 0 {
		var list []*bgp.LargeCommunity
		for _, c := range r.LargeCommunities {
			list = append(list, &bgp.LargeCommunity{ASN: c[0], LocalData1: c[1], LocalData2: c[2]})
		}
		attrs = append(attrs, bgp.NewPathAttributeLargeCommunities(list))
	}
	return &apiutil.Path{Family: family, Nlri: nlri, Attrs: attrs}, nil
}

func equal(a, b *announce.Attributes) bool {
	same := func(x, y *uint32) bool { return x == y || x != nil && y != nil && *x == *y }
	return slices.Equal(a.Communities, b.Communities) && slices.Equal(a.LargeCommunities, b.LargeCommunities) &&
		same(a.MED, b.MED) && same(a.LocalPref, b.LocalPref) && a.Prepend == b.Prepend
}
