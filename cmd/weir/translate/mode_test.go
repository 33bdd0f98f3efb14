package translate

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/discovery"
	"github.com/weirlb/weir/topology"
)

func TestFrontendsOfAModeWithoutTranslation(t *testing.T) {
	vip4, vip6, node := "198.51.100.1", "2001:db8:9::1", netip.MustParseAddr("192.0.2.1")
	for _, tt := range []struct {
		name     string
		mode     string
		port     uint16
		families discovery.Families
		lb       []string
		eps      []string
		want     []string // "ADDRESS MODE"
		warning  string
	}{
		{"l2dsr", "l2dsr", 80, discovery.IPv4, []string{vip4}, []string{"10.1.1.1:80 a"}, []string{"10.96.0.1:80 nat", "192.0.2.1:30080 nat", vip4 + ":80 l2dsr"}, ""},
		{"another target port is translated", "gue", 80, discovery.IPv4, []string{vip4}, []string{"10.1.1.1:8080 a"},
			[]string{"10.96.0.1:80 nat", "192.0.2.1:30080 nat", vip4 + ":80 nat"}, "the target port of 10.1.1.1:8080 would have to be 80"},
		{"the node's own address", "ipip", 80, discovery.IPv4, []string{"192.0.2.1"}, []string{"10.1.1.1:80 a"}, []string{"10.96.0.1:80 nat", "192.0.2.1:30080 nat", "192.0.2.1:80 nat"}, ""},
		{"IPv6 to IPv4 endpoints through a tunnel", "ipip", 80, discovery.IPv4, []string{vip4, vip6}, []string{"10.1.1.1:80 a"},
			[]string{"10.96.0.1:80 nat", "192.0.2.1:30080 nat", vip4 + ":80 ipip", "[" + vip6 + "]:80 ipip"}, ""},
		{"but not with another port", "ipip", 80, discovery.IPv4, []string{vip6}, []string{"10.1.1.1:8080 a"},
			[]string{"10.96.0.1:80 nat", "192.0.2.1:30080 nat"}, "not served in forwarding mode ipip"},
		{"and not without a tunnel", "l2dsr", 80, discovery.IPv4, []string{vip6}, []string{"10.1.1.1:80 a"},
			[]string{"10.96.0.1:80 nat", "192.0.2.1:30080 nat", "[" + vip6 + "]:80 l2dsr"}, ""},
		{"families that the Service has stay apart", "ipip", 80, discovery.IPv4 | discovery.IPv6, []string{vip6}, []string{"10.1.1.1:80 a"},
			[]string{"10.96.0.1:80 nat", "192.0.2.1:30080 nat", "[" + vip6 + "]:80 ipip"}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			svc := service("web", func(s *discovery.Service) {
				s.Options.ForwardingMode, s.Families = tt.mode, tt.families
				s.ClusterIPs = addrs("10.96.0.1")
				s.LoadBalancerIPs = addrs(tt.lb...)
			}, tt.eps...)
			tr := New(Options{Node: topology.Node{Name: "a"}, NodeAddresses: []netip.Addr{node}, ClusterIPs: true})
			b := tr.Apply(&discovery.Update{Put: []*discovery.Service{svc}})
			var got []string
			for _, f := range b.Put[0].Frontends {
				got = append(got, f.AddrPort.String()+" "+ModeName(f.Mode))
			}
			slices.Sort(got)
			if slices.Sort(tt.want); !slices.Equal(got, tt.want) {
				t.Errorf("frontends %q, want %q", got, tt.want)
			}
			text := ""
			for _, c := range b.Complaints {
				for _, p := range c.Problems {
					text += p.Reason
				}
			}
			if !strings.Contains(text, tt.warning) || tt.warning == "" && text != "" {
				t.Errorf("warnings %q, want %q", text, tt.warning)
			}
		})
	}
}

func TestTheConfiguredModeIsTheDefault(t *testing.T) {
	svc := service("web", func(s *discovery.Service) { s.LoadBalancerIPs = addrs("198.51.100.1") }, "10.1.1.1:80 a")
	tr := New(Options{Node: topology.Node{Name: "a"}, Mode: conntrack.ModeGUE})
	b := tr.Apply(&discovery.Update{Put: []*discovery.Service{svc}})
	if m := b.Put[0].Frontends[0].Mode; m != conntrack.ModeGUE {
		t.Errorf("mode %s", ModeName(m))
	}
}
