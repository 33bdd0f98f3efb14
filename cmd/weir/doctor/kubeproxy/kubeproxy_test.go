package kubeproxy

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

// text is a frontend with the target, a line for each.
func text(all map[Frontend]Target) string {
	var lines []string
	for f, t := range all {
		addr := "node"
		if f.Addr.IsValid() {
			addr = f.Addr.String()
		}
		lines = append(lines, fmt.Sprintf("%s %s %d external=%t %v\n", f.Protocol, addr, f.Port, t.External, t.Endpoints))
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}

// The file is what kube-proxy 1.37.1 made of two Services: a NodePort Service, and a Service with
// external traffic policy Local and session affinity.
func TestIPTablesOfKubeProxy(t *testing.T) {
	data, err := os.ReadFile("testdata/iptables-1.37.txt")
	if err != nil {
		t.Fatal(err)
	}
	const want = `TCP 10.96.100.205 80 external=false [10.20.0.102:8080 10.30.0.103:8080 10.40.0.101:8080]
TCP 10.96.142.103 80 external=false [10.20.0.102:80 10.30.0.103:80 10.40.0.101:80]
TCP node 30978 external=true [10.40.0.101:80]
TCP node 32324 external=true [10.20.0.102:8080 10.30.0.103:8080 10.40.0.101:8080]
`
	r := Rules{Frontends: map[Frontend]Target{}}
	parseIPTables(string(data), false, &r)
	if diff := cmp.Diff(want, text(r.Frontends)); diff != "" {
		t.Error(diff)
	}
	if len(r.NodePorts) > 0 {
		t.Errorf("node ports are on all addresses, not on %v", r.NodePorts)
	}
	r = Rules{Frontends: map[Frontend]Target{}}
	if parseIPTables(strings.Replace(string(data), "*nat", "*filter", 1), false, &r) || len(r.Frontends) > 0 {
		t.Errorf("rules of another table: %v", r)
	}
}

// The file is what kube-proxy 1.37.1 made of Services without endpoints, and of a load balancer IP
// with source ranges, beside others.
func TestIPTablesOfKubeProxyWithoutEndpoints(t *testing.T) {
	data, err := os.ReadFile("testdata/iptables-refused-1.37.txt")
	if err != nil {
		t.Fatal(err)
	}
	const want = `TCP 10.96.0.1 443 external=false []
TCP 10.96.161.50 80 external=false [10.20.0.102:8080 10.30.0.103:8080 10.40.0.101:8080]
TCP 10.96.173.116 80 external=false [10.20.0.102:8080 10.30.0.103:8080 10.40.0.101:8080]
TCP 10.96.183.244 80 external=false []
TCP 10.96.197.37 80 external=false [10.20.0.102:8080 10.40.0.101:8080]
TCP 10.96.198.112 80 external=false []
TCP 10.96.76.60 80 external=false [10.20.0.102:8080 10.30.0.103:8080 10.40.0.101:8080]
TCP 10.96.88.109 80 external=false [10.20.0.102:8080 10.30.0.103:8080 10.40.0.101:8080]
TCP 10.96.97.88 80 external=false [10.20.0.102:8080 10.30.0.103:8080 10.40.0.101:8080]
TCP 10.99.0.10 80 external=true [10.20.0.102:8080 10.30.0.103:8080 10.40.0.101:8080]
TCP 10.99.0.9 80 external=true [10.20.0.102:8080 10.30.0.103:8080 10.40.0.101:8080]
TCP node 30824 external=true [10.20.0.102:8080 10.30.0.103:8080 10.40.0.101:8080]
TCP node 30899 external=true [10.20.0.102:8080 10.30.0.103:8080 10.40.0.101:8080]
TCP node 31218 external=true [10.20.0.102:8080 10.30.0.103:8080 10.40.0.101:8080]
TCP node 31579 external=true [10.20.0.102:8080 10.30.0.103:8080 10.40.0.101:8080]
TCP node 31861 external=true [10.20.0.102:8080 10.40.0.101:8080]
TCP node 31897 external=false []
TCP node 31938 external=false []
TCP node 32595 external=true [10.40.0.101:8080]
`
	r := Rules{Frontends: map[Frontend]Target{}}
	parseIPTables(string(data), false, &r)
	if diff := cmp.Diff(want, text(r.Frontends)); diff != "" {
		t.Error(diff)
	}
}

// A frontend without endpoints has rules in the table filter, whichever table comes first. Where
// only other nodes have endpoints, it has rules in both.
func TestIPTablesRefuseWithoutEndpoints(t *testing.T) {
	const filter = `*filter
-A KUBE-EXTERNAL-SERVICES -d 192.0.2.1/32 -p tcp -m comment --comment "shop/empty:http has no endpoints" -m tcp --dport 80 -j REJECT --reject-with icmp-port-unreachable
-A KUBE-EXTERNAL-SERVICES -p tcp -m comment --comment "shop/empty:http has no endpoints" -m addrtype --dst-type LOCAL -m tcp --dport 30001 -j REJECT --reject-with icmp-port-unreachable
-A KUBE-EXTERNAL-SERVICES -p tcp -m comment --comment "shop/local:http has no local endpoints" -m addrtype --dst-type LOCAL -m tcp --dport 30002 -j DROP
-A KUBE-SERVICES -d 10.96.0.1/32 -p udp -m comment --comment "shop/empty:dns has no endpoints" -m udp --dport 53 -j REJECT --reject-with icmp-port-unreachable
-A KUBE-PROXY-FIREWALL -d 192.0.2.2/32 -p tcp -m comment --comment "shop/ranges:http traffic not accepted by KUBE-FW-A" -m tcp --dport 80 -j DROP
-A KUBE-FIREWALL -p tcp -m tcp --dport 30003 -j DROP
-A INPUT -d 192.0.2.3/32 -p tcp -m tcp --dport 80 -j REJECT
COMMIT
`
	const nat = `*nat
-A KUBE-NODEPORTS -p tcp -m comment --comment "shop/local:http" -m tcp --dport 30002 -j KUBE-EXT-A
-A KUBE-EXT-A -m comment --comment "route LOCAL traffic" -m addrtype --src-type LOCAL -j KUBE-SVC-A
-A KUBE-SVC-A -p tcp -m tcp -j DNAT --to-destination 10.1.1.1:80
COMMIT
`
	const want = `TCP 192.0.2.1 80 external=false []
TCP node 30001 external=false []
TCP node 30002 external=true []
UDP 10.96.0.1 53 external=false []
`
	for _, all := range []string{filter + nat, nat + filter} {
		r := Rules{Frontends: map[Frontend]Target{}}
		if found := parseIPTables(all, false, &r); !found {
			t.Error("no frontends")
		}
		if diff := cmp.Diff(want, text(r.Frontends)); diff != "" {
			t.Error(diff)
		}
	}
}

func TestIPTablesWithLoops(t *testing.T) {
	r := Rules{Frontends: map[Frontend]Target{}}
	parseIPTables("*nat\n-A KUBE-SERVICES -d 10.0.0.1/32 -p udp -m udp --dport 53 -j KUBE-SVC-A\n"+
		"-A KUBE-SVC-A -j KUBE-SVC-A\n-A KUBE-SVC-A -p udp -j DNAT --to-destination 10.1.1.1:53\n", false, &r)
	if got, want := text(r.Frontends), "UDP 10.0.0.1 53 external=false [10.1.1.1:53]\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// The form is that of ip_vs_info_seq_show in Linux.
func TestIPVS(t *testing.T) {
	const file = `IP Virtual Server version 1.2.1 (size=4096)
Prot LocalAddress:Port Scheduler Flags
  -> RemoteAddress:Port Forward Weight ActiveConn InActConn
TCP  0A600001:0050 rr persistent 10800 FFFFFFFF
  -> 0A280065:1F90      Masq    1      0          0
  -> 0A1E0067:1F90      Masq    0      3          0
UDP  [fd10:0000:0000:0000:0000:0000:0000:0001]:7530 rr
  -> [fd40:0000:0000:0000:0000:0000:0000:0002]:0035      Masq    1      0          0
FWM  00000001 rr
  -> 0A280065:1F90      Masq    1      0          0
SCTP 0A600002:0050 rr
`
	const want = `SCTP 10.96.0.2 80 external=false []
TCP 10.96.0.1 80 external=false [10.40.0.101:8080]
UDP fd10::1 30000 external=false [[fd40::2]:53]
`
	if diff := cmp.Diff(want, text(parseIPVS(file))); diff != "" {
		t.Error(diff)
	}
}

func TestKeysOfNFTables(t *testing.T) {
	six := netip.MustParseAddr("fd00::1")
	for name, tt := range map[string]struct {
		addrLen int
		address bool
		key     []byte
		want    Frontend
		ok      bool
	}{
		"IPv4":      {4, true, []byte{10, 0, 0, 1, 6, 0, 0, 0, 0, 80, 0, 0}, Frontend{netip.MustParseAddr("10.0.0.1"), false, 80, "TCP"}, true},
		"IPv6":      {16, true, append(six.AsSlice(), 17, 0, 0, 0, 0x75, 0x30, 0, 0), Frontend{six, true, 30000, "UDP"}, true},
		"node port": {16, false, []byte{132, 0, 0, 0, 0x75, 0x30, 0, 0}, Frontend{IPv6: true, Port: 30000, Protocol: "SCTP"}, true},
		"short":     {16, true, []byte{10, 0, 0, 1, 6, 0, 0, 0, 0, 80, 0, 0}, Frontend{IPv6: true}, false},
		"no port":   {4, true, []byte{10, 0, 0, 1, 6, 0, 0, 0}, Frontend{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := &nftReader{addrLen: tt.addrLen}
			if got, ok := r.frontend(tt.key, tt.address); ok != tt.ok || ok && got != tt.want {
				t.Errorf("got %+v, %v, want %+v", got, ok, tt.want)
			}
		})
	}
}

func TestRulesForSomeClients(t *testing.T) {
	v4, v6 := &nftReader{addrLen: 4}, &nftReader{addrLen: 16}
	rule := func(e expr.Any) *nftables.Rule { return &nftables.Rule{Exprs: []expr.Any{e}} }
	payload := func(offset uint32) *nftables.Rule {
		return rule(&expr.Payload{Base: expr.PayloadBaseNetworkHeader, Offset: offset})
	}
	for name, tt := range map[string]struct {
		r    *nftReader
		rule *nftables.Rule
		want bool
	}{
		"source":                {v4, payload(12), true},
		"destination":           {v4, payload(16), false},
		"source, IPv6":          {v6, payload(8), true},
		"destination, IPv6":     {v6, payload(24), false},
		"interface":             {v4, rule(&expr.Meta{Key: expr.MetaKeyIIFNAME}), true},
		"protocol":              {v4, rule(&expr.Meta{Key: expr.MetaKeyL4PROTO}), false},
		"clients on the node":   {v4, rule(&expr.Fib{FlagSADDR: true}), true},
		"frontends of the node": {v4, rule(&expr.Fib{FlagDADDR: true}), false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tt.r.asksForSource(tt.rule); got != tt.want {
				t.Errorf("got %v", got)
			}
		})
	}
}

// Node ports are on the addresses of the node that kube-proxy has them on, and on no other address.
func TestFindFallsBackToNodePorts(t *testing.T) {
	r := Rules{Frontends: map[Frontend]Target{}}
	parseIPTables(`*nat
-A KUBE-SERVICES -d 10.0.0.1/32 -p tcp -m tcp --dport 30000 -j KUBE-SVC-A
-A KUBE-SERVICES -d 10.0.0.1/32 -j KUBE-NODEPORTS
-A KUBE-SERVICES -d 10.0.0.2/32 -j KUBE-NODEPORTS
-A KUBE-NODEPORTS -p tcp -m tcp --dport 30000 -j KUBE-EXT-B
-A KUBE-NODEPORTS -p tcp -m tcp --dport 30001 -j KUBE-EXT-B
`, false, &r)
	anywhere := Rules{Frontends: r.Frontends}
	six := Rules{Frontends: map[Frontend]Target{}}
	parseIPTables(`*nat
-A KUBE-SERVICES ! -d ::1/128 -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
-A KUBE-NODEPORTS -p tcp -m tcp --dport 30001 -j KUBE-EXT-B
`, true, &six)
	for _, tt := range []struct {
		name     string
		rules    *Rules
		to       string
		nodePort bool
		want     string // the frontend
	}{
		{"the address's own", &r, "10.0.0.1:30000", true, "10.0.0.1"},
		{"a node port", &r, "10.0.0.2:30000", true, "node"},
		{"an address without node ports", &r, "10.0.0.3:30000", true, ""},
		{"no address of the node", &r, "10.0.0.2:30001", false, ""},
		{"any address of the node", &anywhere, "10.0.0.3:30001", true, "node"},
		{"any address but the loopback's", &six, "[fd00::1]:30001", true, "node"},
		{"the other family", &anywhere, "[fd00::1]:30001", true, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f, _, ok := tt.rules.Find(netip.MustParseAddrPort(tt.to), "TCP", tt.nodePort)
			got := ""
			switch {
			case ok && f.Addr.IsValid():
				got = f.Addr.String()
			case ok:
				got = "node"
			}
			if got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}
