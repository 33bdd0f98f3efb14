package lan

import (
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/cmd/weir/problem"
	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/patience"
)

// port runs f for the switch's port of a node.
func (b *bed) port(i int, f func(*netlink.Handle, netlink.Link) error) {
	b.t.Helper()
	l, err := b.Switch.Interface(b.nodes[i].Namespace.Name())
	must(b.t, err)
	must(b.t, f(b.Switch.Netlink(), l))
}

// misplace has the switch learn all nodes but one at the port of the server.
func (b *bed) misplace(but int) {
	b.t.Helper()
	wrong, err := b.Switch.Interface("server")
	must(b.t, err)
	for i, n := range b.nodes {
		if i != but {
			must(b.t, b.Switch.Netlink().NeighSet(&netlink.Neigh{
				Family: unix.AF_BRIDGE, LinkIndex: wrong.Attrs().Index, HardwareAddr: n.macOf(b.t), Flags: netlink.NTF_MASTER, State: netlink.NUD_REACHABLE,
			}))
		}
	}
}

// other waits until another node than before is the only owner, by what all nodes but that say.
func (b *bed) other(a netip.Addr, before int) (owner int) {
	b.t.Helper()
	b.until("another owner of "+a.String(), func() bool {
		for i, n := range b.nodes {
			if x := n.l2of(a); i != before && x != nil && x.State == "owner" {
				owner = i
				return true
			}
		}
		return false
	})
	return owner
}

// An owner without a carrier gives the address up, and does not take it back when the carrier is back.
func TestWireOwnerWithoutCarrier(t *testing.T) {
	b := newBed(t, 3, 1)
	b.startAll()
	a := vip4(0)
	owner := b.owner(a)
	must(t, b.exchange(a, patience.For(3*time.Second)))
	b.port(owner, (*netlink.Handle).LinkSetDown)
	next := b.other(a, owner)
	b.until("the node without a carrier owns nothing", func() bool {
		x := b.nodes[owner].l2of(a)
		return x != nil && x.State == "ineligible" && strings.Contains(x.Reason, "carrier")
	})
	must(t, b.exchange(a, patience.For(3*time.Second)))
	b.port(owner, (*netlink.Handle).LinkSetUp)
	b.until("the node is back as standby", func() bool {
		x := b.nodes[owner].l2of(a)
		return x != nil && x.State == "standby" && x.Owner == b.nodes[next].Namespace.Name()
	})
	if l := b.owner(a); l != next {
		t.Errorf("owner %d, want %d", l, next)
	}
}

// A partition has an owner on each side. After it there is one.
func TestWirePartitionHeals(t *testing.T) {
	b := newBed(t, 3, 1)
	b.startAll()
	a := vip4(0)
	owner := b.owner(a)
	b.port(owner, (*netlink.Handle).LinkSetNoMaster)
	b.other(a, owner)
	b.until("cut off, with a carrier, the owner stays", func() bool {
		x := b.nodes[owner].l2of(a)
		return x != nil && x.State == "owner"
	})
	br, err := b.Switch.Interface("br0")
	must(t, err)
	b.port(owner, func(h *netlink.Handle, l netlink.Link) error { return h.LinkSetMaster(l, br) })
	took := b.until("one owner", func() bool { return len(b.owners(a)) == 1 })
	t.Logf("one owner %v after the partition", took)
	b.untilOwned()
	must(t, b.exchange(a, patience.For(3*time.Second)))
}

// A process that was stopped is not the owner when it goes on. With preempt it takes the address back.
func TestWireStoppedOwner(t *testing.T) {
	b := newBed(t, 3, 1)
	b.l2 = ", preempt: true"
	b.startAll()
	a := vip4(0)
	owner := b.owner(a)
	must(t, b.nodes[owner].Signal(syscall.SIGSTOP))
	b.other(a, owner)
	must(t, b.nodes[owner].Signal(syscall.SIGCONT))
	b.until("it has the address back", func() bool { l := b.owners(a); return len(l) == 1 && l[0] == owner })
	b.untilOwned()
	must(t, b.exchange(a, patience.For(3*time.Second)))
	b.untilClientAt(a)
}

// With externalTrafficPolicy: Local the node with the endpoint owns the address.
func TestWireOwnerHasTheEndpoint(t *testing.T) {
	b := newBed(t, 3, 2)
	b.local = "node2"
	b.startAll()
	for _, a := range b.vips {
		if l := b.owner(a); l != 1 {
			t.Errorf("%s: owner %v, want node2", a, l)
		}
		b.until("node1 has no endpoint", func() bool {
			x := b.nodes[0].l2of(a)
			return x != nil && x.State == "ineligible" && strings.Contains(x.Reason, "endpoint") && x.Owner == "node2"
		})
	}
}

// An address that a host on the link has stays there, and is taken when the host gives it up.
func TestWireAddressOfAnotherHost(t *testing.T) {
	b := newBed(t, 2, 1)
	a := vip4(0)
	must(t, b.Server.AddAddr("eth0", netip.PrefixFrom(a, 24)))
	for i := range b.nodes {
		b.start(i)
	}
	for _, n := range b.nodes {
		b.until("the address is known to be in use", func() bool {
			x := n.l2of(a)
			return x != nil && x.State == "ineligible" && strings.Contains(x.Reason, "another host has the address")
		})
		b.until("weir status tells that no node answers, and why", func() bool {
			s, err := n.status()
			return err == nil && slices.ContainsFunc(s.Problems, func(p problem.Problem) bool {
				return p.Kind == problem.NotAnnounced && strings.HasPrefix(p.Reason, "no node on the LAN answers for "+a.String()) && strings.Contains(p.Reason, "another host has the address")
			})
		})
	}
	must(t, b.Server.RemoveAddr("eth0", netip.PrefixFrom(a, 24)))
	b.until("the address is taken", func() bool { return len(b.owners(a)) == 1 })
}

// Forged ARP and forged messages of nodes, as many as a host can send in a second, change no owner.
func TestWireForgedClaimsChangeNoOwner(t *testing.T) {
	b := newBed(t, 2, 1)
	b.l2 = ", keyFile: " + b.key()
	b.startAll()
	a := vip4(0)
	owner := b.owner(a)
	must(t, b.exchange(a, patience.For(3*time.Second)))
	tap, err := netlab.NewTap(b.Client, "eth0")
	must(t, err)
	defer tap.Close()
	forged := []byte("\xff\xff\xff\xff\xff\xff\x02\x00\x00\x00\x00\x66\x08\x06\x00\x01\x08\x00\x06\x04\x00\x02\x02\x00\x00\x00\x00\x66" +
		string(a.AsSlice()) + "\xff\xff\xff\xff\xff\xff" + string(a.AsSlice()))
	u, err := b.Client.ListenPacket("udp", ":0")
	must(t, err)
	defer u.Close()
	end := time.Now().Add(time.Second)
	sent := 0
	for tick := time.NewTicker(10 * time.Millisecond); time.Now().Before(end); <-tick.C {
		for range 100 {
			must(t, tap.Send(forged))
			_, _ = u.WriteTo([]byte("\xf4\x04weir\x08forged"), udpAddr(netlab.Host4(network, uint8(firstNode+owner))))
			sent++
		}
	}
	if l := b.owner(a); l != owner {
		t.Errorf("owner %d after %d forged claims, want %d", l, sent, owner)
	}
	b.until("the rival is shown", func() bool {
		x := b.nodes[owner].l2of(a)
		return x != nil && x.Rival == "02:00:00:00:00:66"
	})
	b.untilClientAt(a)
	must(t, b.exchange(a, patience.For(3*time.Second)))
}

// thousand adds as many addresses.
func (b *bed) thousand() {
	for i := range 1000 {
		b.vips = append(b.vips, netip.AddrFrom16([16]byte{0xfd, 0x70, 12: 1, 14: byte(i >> 8), 15: byte(i)}))
	}
}

// owned is how many addresses a node owns.
func (b *bed) owned(i int) (n int) {
	s, err := b.nodes[i].status()
	if err != nil || s.Announce == nil {
		return 0
	}
	for _, a := range s.Announce.Addresses {
		if a.L2 != nil && a.L2.State == "owner" {
			n++
		}
	}
	return n
}

// A thousand addresses of a dead node are taken over at once.
func TestWireThousandAddressesMove(t *testing.T) {
	b := newBed(t, 2, 0)
	b.thousand()
	for i := range b.nodes {
		b.start(i)
	}
	b.untilJoined()
	b.until("all addresses have an owner, about half of them each node", func() bool {
		n, m := b.owned(0), b.owned(1)
		return n+m == len(b.vips) && n >= 300 && m >= 300
	})
	must(t, b.nodes[0].Signal(syscall.SIGKILL))
	took := b.until("node2 owns all", func() bool { return b.owned(1) == len(b.vips) })
	t.Logf("all of %d addresses at the other node after %v", len(b.vips), took)
	if limit := patience.For(1500 * time.Millisecond); took > limit {
		t.Errorf("%v, at most %v is allowed", took, limit)
	}
	must(t, b.exchange(b.vips[999], patience.For(3*time.Second)))
}
