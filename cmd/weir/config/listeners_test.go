package config

import (
	"net/netip"
	"testing"
)

func TestListenerAt(t *testing.T) {
	c := Default()
	c.HealthzBindAddress, c.MetricsBindAddress = "0.0.0.0:9465", "127.0.0.1:9464"
	c.StatusPage.BindAddress = "192.0.2.1:9466"
	expect := func(at string, udp bool, want string) {
		t.Helper()
		if got := c.ListenerAt(netip.MustParseAddrPort(at), udp); got != want {
			t.Errorf("%s, UDP %v: %q, want %q", at, udp, got, want)
		}
	}
	expect("192.0.2.1:9465", false, "healthzBindAddress")
	expect("192.0.2.1:9465", true, "")
	expect("[2001:db8::1]:9465", false, "healthzBindAddress")
	expect("192.0.2.1:9464", false, "")
	expect("192.0.2.1:9466", false, "statusPage.bindAddress")
	expect("192.0.2.2:9466", false, "")
	expect("192.0.2.1:7949", false, "")
	expect("192.0.2.1:3784", true, "")
	c.Announce.L2.Interfaces = []string{"eth0"}
	c.Announce.Peers = []Peer{{}, {BFD: &BFD{}}}
	expect("192.0.2.1:7949", false, "announce.l2")
	expect("192.0.2.1:7949", true, "announce.l2")
	expect("192.0.2.1:3784", true, "announce.peers[1].bfd")
	expect("192.0.2.1:3784", false, "")
}
