package lan

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/weirlb/weir/perf/netlab/patience"
)

// A client that ignores gratuitous ARP and unsolicited advertisements follows by its own timers: it asks again
// when the former owner answers no more. The switch learns no MAC address of the nodes.
func TestWireClientThatIgnoresAnnouncements(t *testing.T) {
	b := newBed(t, 2, 4)
	for i := range b.nodes {
		b.port(i, func(h *netlink.Handle, l netlink.Link) error { return h.LinkSetLearning(l, false) })
	}
	for setting, value := range map[string]string{"base_reachable_time_ms": "500", "delay_first_probe_time": "1", "retrans_time_ms": "100"} {
		for _, family := range []string{"ipv4", "ipv6"} {
			must(t, b.Client.SetSysctl("net/"+family+"/neigh/eth0/"+setting, value))
		}
	}
	own := map[bool]string{true: "arp saddr ip 10.70.0.100-10.70.0.103 arp daddr ip 10.70.0.100-10.70.0.103", false: "icmpv6 type nd-neighbor-advert ip6 daddr ff02::1"}
	b.ofClient("nft", "table arp deaf { chain in { type filter hook input priority 0; "+own[true]+" counter drop; }; }\n"+
		"table ip6 deaf { chain in { type filter hook input priority 0; "+own[false]+" counter drop; }; }")
	b.startAll()
	owned, owner := [2]map[bool]netip.Addr{{}, {}}, 0 // by node and family
	for _, a := range b.vips {
		i := b.owner(a)
		if owned[i][a.Is4()] = a; len(owned[i]) == 2 {
			owner = i
		}
	}
	for _, a := range owned[owner] {
		must(t, b.exchange(a, patience.For(3*time.Second)))
	}
	must(t, b.nodes[owner].Signal(syscall.SIGKILL))
	for is4, a := range owned[owner] {
		b.until(a.String()+" is served again", func() bool { return b.exchange(a, time.Second) == nil })
		if mac := b.neighbor(a); !bytes.Equal(mac, b.nodes[1-owner].macOf(t)) {
			t.Errorf("%s is served, and the client has it at %s", a, mac)
		}
		table := map[bool]string{true: "arp", false: "ip6"}[is4]
		if out := b.ofClient("nft", "list table "+table+" deaf"); strings.Contains(out, "counter packets 0 ") {
			t.Errorf("the client has ignored no announcement of %s: %s", a, out)
		}
	}
}

// ofClient is the output of a command in the namespace of the client.
func (b *bed) ofClient(args ...string) (out string) {
	b.t.Helper()
	must(b.t, b.Client.Do(func() error {
		text, err := exec.Command(args[0], args[1:]...).CombinedOutput()
		if out = string(text); err != nil {
			return fmt.Errorf("%v: %w: %s", args, err, text)
		}
		return nil
	}))
	return out
}

// neighbor is what the client's kernel has for an address, nil for nothing.
func (b *bed) neighbor(a netip.Addr) net.HardwareAddr {
	b.t.Helper()
	l, err := b.Client.Interface("eth0")
	must(b.t, err)
	list, err := b.Client.Netlink().NeighList(l.Attrs().Index, netlink.FAMILY_ALL)
	must(b.t, err)
	for _, x := range list {
		if x.IP.Equal(net.IP(a.AsSlice())) && x.State&(netlink.NUD_FAILED|netlink.NUD_INCOMPLETE) == 0 {
			return x.HardwareAddr
		}
	}
	return nil
}

// untilClientAt waits until the client's kernel has an address at its owner.
func (b *bed) untilClientAt(a netip.Addr) {
	b.t.Helper()
	b.until("the client has "+a.String()+" at its owner", func() bool {
		l := b.owners(a)
		return len(l) == 1 && bytes.Equal(b.neighbor(a), b.nodes[l[0]].macOf(b.t))
	})
}

// exchange sends a line over a new connection of the client, and reads it back.
func (b *bed) exchange(a netip.Addr, within time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	c, err := b.Client.DialContext(ctx, "tcp", netip.AddrPortFrom(a, port).String())
	if err != nil {
		return err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(within))
	if _, err := c.Write([]byte("hello\n")); err != nil {
		return err
	}
	_, err = io.ReadFull(c, make([]byte, 6))
	return err
}
