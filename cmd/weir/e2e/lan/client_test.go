package lan

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
)

// neighbor is what the client's kernel has for an address, nil for nothing.
func (b *bed) neighbor(a netip.Addr) net.HardwareAddr {
	b.t.Helper()
	l, err := b.client.Interface("eth0")
	must(b.t, err)
	list, err := b.client.Netlink().NeighList(l.Attrs().Index, netlink.FAMILY_ALL)
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
	c, err := b.client.DialContext(ctx, "tcp", netip.AddrPortFrom(a, port).String())
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
