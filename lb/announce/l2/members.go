package l2

import (
	"fmt"
	"io"
	"log"
	"net/netip"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
)

// Times of the membership. A node that dies is probed within 2 probeEvery by one of two others,
// suspected after another, and dead suspicion of them later if nobody heard of it meanwhile: 225 to
// 375 ms. probeEvery is the interval of advertisements in the words of VRRP. Each time at which
// something is due costs the process far more than the work: probes and gossip are due together, and the
// loop of the link runs then.
const (
	probeEvery  = 75 * time.Millisecond
	suspicion   = 2
	gossipEvery = probeEvery
	syncEvery   = 30 * time.Second
	streamTime  = 500 * time.Millisecond
	leaveTime   = 100 * time.Millisecond
)

// members are the nodes on a link that share a key, as memberlist knows them (SWIM). A node joins
// those whose hello it hears.
type members struct {
	link *link
	name string
	list *memberlist.Memberlist
	tr   *transport

	mu      sync.Mutex
	joining map[netip.Addr]bool
	closed  bool
	tasks   sync.WaitGroup
}

// startMembers begins membership on a link. l.mu is not held.
func startMembers(l *link, local netip.Addr) (*members, error) {
	m := &members{link: l, name: l.node + "/" + local.String(), joining: map[netip.Addr]bool{}}
	var err error
	if m.tr, err = newTransport(l.name, local, l.key); err != nil {
		return nil, err
	}
	c := memberlist.DefaultLANConfig()
	c.Name, c.Transport, c.Label, c.SecretKey = m.name, m.tr, "weir", l.key
	c.BindAddr, c.BindPort, c.AdvertisePort = local.String(), Port, Port
	c.ProbeInterval, c.ProbeTimeout, c.IndirectChecks = probeEvery, probeEvery/2, 2
	c.SuspicionMult, c.SuspicionMaxTimeoutMult, c.AwarenessMaxMultiplier = suspicion, 1, 1
	c.GossipInterval, c.GossipNodes, c.PushPullInterval = gossipEvery, maxMembers, syncEvery
	c.TCPTimeout, c.DisableTcpPings, c.EnableCompression = streamTime, true, false
	c.Delegate, c.Events, c.Alive = delegate{m}, delegate{m}, delegate{m}
	c.Logger = log.New(io.Discard, "", 0)
	if m.list, err = memberlist.Create(c); err != nil {
		_ = m.tr.Shutdown()
		return nil, fmt.Errorf("members of %s: %w", l.name, err)
	}
	m.tasks.Go(m.follow)
	return m, nil
}

// follow joins the nodes that say hello.
func (m *members) follow() {
	for {
		select {
		case <-m.tr.closed:
			return
		case h := <-m.tr.hellos:
			if m.link.heardHello(h, time.Now()) {
				m.join(h.from)
			}
		}
	}
}

// join asks a node for its members and claims. Few are asked at a time: a hello may be forged.
func (m *members) join(a netip.Addr) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed || a == m.tr.local || m.joining[a] || len(m.joining) >= 8 {
		return
	}
	m.joining[a] = true
	m.tasks.Go(func() {
		if _, err := m.list.Join([]string{m.tr.text(a.WithZone(""))}); err != nil {
			m.link.notJoined(a, err, time.Now())
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.joining, a)
	})
}

// send tells a node the claims of this one.
func (m *members) send(to *memberlist.Node, claims []byte) error {
	return m.list.SendReliable(to, claims)
}

// close leaves the others. They know at once.
func (m *members) close() {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	_ = m.list.Leave(leaveTime)
	_ = m.list.Shutdown()
	_ = m.tr.Shutdown()
	m.tasks.Wait()
}

// delegate has what memberlist calls. None of it waits.
type delegate struct{ *members }

// NodeMeta implements memberlist.Delegate.
func (d delegate) NodeMeta(int) []byte { return nil }

// NotifyMsg implements memberlist.Delegate.
func (d delegate) NotifyMsg(b []byte) { d.link.told(b, time.Now()) }

// GetBroadcasts implements memberlist.Delegate: it is called for each probe.
func (d delegate) GetBroadcasts(int, int) [][]byte {
	if d.link.fence.due() {
		d.link.poke()
	}
	return nil
}

// LocalState implements memberlist.Delegate.
func (d delegate) LocalState(bool) []byte { return d.link.current() }

// MergeRemoteState implements memberlist.Delegate.
func (d delegate) MergeRemoteState(b []byte, _ bool) { d.link.told(b, time.Now()) }

// NotifyJoin implements memberlist.EventDelegate.
func (d delegate) NotifyJoin(n *memberlist.Node) { d.link.came(d.name, n) }

// NotifyLeave implements memberlist.EventDelegate.
func (d delegate) NotifyLeave(n *memberlist.Node) { d.link.left(n) }

// NotifyUpdate implements memberlist.EventDelegate.
func (d delegate) NotifyUpdate(*memberlist.Node) {}

// NotifyAlive implements memberlist.AliveDelegate: nodes of other links, and more than are served,
// are refused.
func (d delegate) NotifyAlive(n *memberlist.Node) error {
	if n.Name == d.name {
		return nil
	}
	a, ok := netip.AddrFromSlice(n.Addr)
	if !ok || n.Port != Port || !d.link.admits(n.Name, a.Unmap()) {
		return fmt.Errorf("%s at %s:%d is not on this link", n.Name, n.Addr, n.Port)
	}
	return nil
}
