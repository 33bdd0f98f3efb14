package firewall

import (
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/labtest"
)

// web is a node port and a load balancer address, with an endpoint that is a pod.
var web = []Frontend{
	{"node port", Packet{[]string{"eth0"}, unix.IPPROTO_TCP, netip.MustParseAddrPort("10.77.0.2:30080"), 0},
		[]Packet{{[]string{"eth0"}, unix.IPPROTO_TCP, netip.MustParseAddrPort("10.244.1.7:8080"), 0}}},
	{"load balancer", Packet{[]string{"eth0"}, unix.IPPROTO_UDP, netip.MustParseAddrPort("192.0.2.10:53"), 0}, nil},
	{"six", Packet{[]string{"eth0"}, unix.IPPROTO_TCP, netip.MustParseAddrPort("[2001:db8::10]:443"), 0}, nil},
}

// cases are rules of a chain of nftables, and of iptables where they can be said there.
var cases = []struct {
	name, hook, nft string
	iptables        []string // with the chain
	void            bool
}{
	{"source and port", "prerouting", "ip saddr 10.77.0.9 tcp dport 30080 drop", []string{"PREROUTING", "-s", "10.77.0.9", "-p", "tcp", "--dport", "30080"}, true},
	{"other port", "prerouting", "tcp dport 30081 drop", []string{"PREROUTING", "-p", "tcp", "--dport", "30081"}, false},
	{"other protocol", "prerouting", "udp dport 30080 drop", []string{"PREROUTING", "-p", "udp", "--dport", "30080"}, false},
	{"range of ports", "prerouting", "tcp dport 30000-32767 drop", []string{"PREROUTING", "-p", "tcp", "--dport", "30000:32767"}, true},
	{"all ports but", "prerouting", "tcp dport != 30000-32767 ip daddr 10.77.0.2 drop", []string{"PREROUTING", "-d", "10.77.0.2/32", "-p", "tcp", "!", "--dport", "30000:32767"}, false},
	{"set of ports", "prerouting", "tcp dport { 22, 30080 } drop", []string{"PREROUTING", "-p", "tcp", "-m", "multiport", "--dports", "22,30080"}, true},
	{"set of other ports", "prerouting", "tcp dport { 22, 80-90 } drop", nil, false},
	{"address", "prerouting", "ip daddr 192.0.2.0/24 drop", []string{"PREROUTING", "-d", "192.0.2.0/24"}, true},
	{"other address", "prerouting", "ip daddr 198.51.100.0/24 drop", []string{"PREROUTING", "-d", "198.51.100.0/24"}, false},
	{"partial byte", "prerouting", "ip daddr 192.0.2.8/29 drop", []string{"PREROUTING", "-d", "192.0.2.8/29"}, true},
	{"set of addresses", "prerouting", "ip daddr { 198.51.100.1, 192.0.2.10 } drop", nil, true},
	{"interval of addresses", "prerouting", "ip daddr { 192.0.2.11-192.0.2.99, 203.0.113.1 } drop", nil, false},
	{"IPv6 address", "prerouting", "ip6 daddr 2001:db8::/32 drop", nil, true},
	{"other IPv6 address", "prerouting", "ip6 daddr 2001:dead::/32 drop", nil, false},
	{"interface", "prerouting", `iifname "eth0" drop`, []string{"PREROUTING", "-i", "eth0"}, true},
	{"interfaces by pattern", "prerouting", `iifname "eth*" drop`, []string{"PREROUTING", "-i", "eth+"}, true},
	{"other interface", "prerouting", `iifname "eth1" drop`, []string{"PREROUTING", "-i", "eth1"}, false},
	{"not this interface", "prerouting", `iifname != "eth0" drop`, []string{"PREROUTING", "!", "-i", "eth0"}, false},
	{"accept", "prerouting", "tcp dport 30080 accept", nil, false},
	{"reject of a pod's port", "forward", "tcp dport 8080 reject", []string{"FORWARD", "-p", "tcp", "--dport", "8080"}, true},
	{"condition that is not understood", "prerouting", "ct state invalid drop", []string{"PREROUTING", "-m", "conntrack", "--ctstate", "INVALID"}, true},
	{"map of verdicts", "prerouting", "tcp dport vmap { 30080 : drop }", nil, true},
}

func newNode(t *testing.T) *netlab.Namespace {
	t.Helper()
	labtest.Require(t)
	lab, err := netlab.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lab.Close() })
	node, err := lab.Namespace("node")
	if err != nil {
		t.Fatal(err)
	}
	return node
}

// in runs a program in a namespace, and reads the rules there.
func in(t *testing.T, node *netlab.Namespace, program string, args ...string) (found Rules) {
	t.Helper()
	err := node.Do(func() error {
		out, err := exec.Command(program, args...).CombinedOutput()
		if err != nil {
			t.Logf("%s %v: %s", program, args, out)
		}
		found = Read()
		return err
	})
	if err != nil || len(found.Unread) > 0 {
		t.Fatalf("%v, unread %v", err, found.Unread)
	}
	return found
}

func TestWireRulesOfNFTables(t *testing.T) {
	node := newNode(t)
	for _, tt := range cases {
		t.Run(tt.name, func(t *testing.T) {
			for _, jump := range []bool{false, true} {
				table := "flush ruleset\ntable inet guard {\nchain pre {\ntype filter hook " + tt.hook + " priority -300\n" + tt.nft + "\n}\n}\n"
				if jump {
					table = "flush ruleset\ntable inet guard {\nchain more {\n" + tt.nft + "\n}\nchain pre {\ntype filter hook " + tt.hook + " priority -300\njump more\n}\n}\n"
				}
				found := in(t, node, "nft", table)
				if void := found.Void(web); (len(void) > 0) != tt.void {
					t.Errorf("jump %v: %q of %v, want void rules: %v", jump, void, found.List, tt.void)
				}
			}
		})
	}
}

// The rules of both iptables, the newer by nftables.
func TestWireRulesOfIPTables(t *testing.T) {
	node := newNode(t)
	for _, program := range []string{"iptables-nft", "iptables-legacy"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Fatal(err)
		}
		for _, tt := range cases {
			if tt.iptables == nil {
				continue
			}
			t.Run(program+" "+tt.name, func(t *testing.T) {
				args := append([]string{"-t", "mangle", "-A"}, tt.iptables...)
				found := in(t, node, program, append(args, "-j", "DROP")...)
				defer in(t, node, program, "-t", "mangle", "-F")
				if void := found.Void(web); (len(void) > 0) != tt.void {
					t.Errorf("%q of %v, want void rules: %v", void, found.List, tt.void)
				}
			})
		}
	}
}

func TestWirePoliciesChainsAndEnforcers(t *testing.T) {
	node := newNode(t)
	found := in(t, node, "nft", `table ip filter {
	chain cali-PREROUTING {
		drop
	}
	chain KUBE-FIREWALL {
		drop
	}
	chain FORWARD {
		type filter hook forward priority 0; policy drop;
		jump cali-PREROUTING
		jump KUBE-FIREWALL
	}
	chain OUTPUT {
		type filter hook output priority 0; policy drop;
	}
	chain INPUT {
		type filter hook input priority 0;
		iifname "eth0" tcp dport 22 drop
		iifname { "eth0", "weir-host" } tcp dport 9100 drop
	}
}
table ip weir {
	chain pre {
		type filter hook prerouting priority 0;
		drop
	}
}
`)
	if void := found.Void(web); len(void) != 1 || !strings.Contains(void[0], "chain FORWARD (forward): policy drop") {
		t.Errorf("%q", void)
	}
	if !slices.Equal(found.Enforcers, []string{"Calico"}) {
		t.Errorf("enforcers %q", found.Enforcers)
	}
	if past := found.PastInput([]string{"eth0"}); len(past) != 1 || !strings.Contains(past[0], "dport 22 drop") {
		t.Errorf("%q", past)
	}
}

func FuzzSavedRules(f *testing.F) {
	f.Add([]byte("*raw\n:PREROUTING ACCEPT [0:0]\n:x - [0:0]\n-A PREROUTING ! -i eth+ -p tcp -m tcp --dport 1:2 -j x\n-A x -d 10.0.0.0/8 -g x\n-A x -j DROP\nCOMMIT\n"))
	f.Fuzz(func(t *testing.T, out []byte) {
		var found Rules
		parseSaved(&found, out, false)
		for i := range found.List {
			for j := range web {
				found.List[i].concerns(&web[j])
			}
		}
	})
}
