package l2

import (
	"net/netip"
	"testing"
	"time"
)

// An address that was lost with the carrier may be another host's since: it is asked for again.
func TestALostAddressIsAskedForAgain(t *testing.T) {
	a, now := netip.MustParseAddr("192.0.2.1"), time.Now()
	l := &link{Config: &Config{}, name: "lan0", socket: &socket{}, addresses: map[netip.Addr]*address{}}
	x := &address{wanted: true, owned: true, probes: probeCount}
	l.addresses[a] = x
	l.decideAbout(a, x, now) // no carrier
	if x.owned {
		t.Fatal("the owner has no carrier")
	}
	if x.probes != 0 {
		t.Errorf("%d probes count that were sent before", x.probes)
	}
}
