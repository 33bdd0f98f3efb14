package addresspool

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
)

func object(kind, name, spec string) string {
	return `{"apiVersion":"metallb.io/v1beta1","kind":"` + kind + `","metadata":{"name":"` + name + `","namespace":"metallb-system"},"spec":{` + spec + `}}`
}

// The shapes of MetalLB's documentation are in use as they are, or refused with the field.
func TestMetalLBObjectsAreUsedOrRefusedWithTheField(t *testing.T) {
	const peer = `"myASN":64512,"peerASN":64513,"peerAddress":"192.0.2.254"`
	for _, c := range []struct{ kind, spec, want string }{
		{"IPAddressPool", `"addresses":["192.0.2.0/24","198.51.100.9-198.51.100.20","2001:db8::/64"]`, ""},
		{"IPAddressPool", `"addresses":["192.0.2.0/24"],"autoAssign":false,"avoidBuggyIPs":true,"serviceAllocation":{"priority":5,"namespaces":["a"],"namespaceSelectors":[{"matchLabels":{"x":"y"}}],"serviceSelectors":[{"matchExpressions":[{"key":"k","operator":"In","values":["v"]}]}]}`, ""},
		{"IPAddressPool", `"protocol":"bgp","addresses":["192.0.2.0/24"]`, "spec.protocol: this field is not known"},
		{"IPAddressPool", `"addresses":["192.0.2.0"]`, `spec.addresses[0]: "192.0.2.0": neither a prefix nor a range`},
		{"IPAddressPool", `"addresses":["192.0.2.9-192.0.2.1"]`, "spec.addresses[0]:"},
		{"IPAddressPool", `"addresses":["192.0.2.1-2001:db8::1"]`, "spec.addresses[0]:"},
		{"IPAddressPool", `"addresses":["192.0.2.0/24","192.0.2.128/25"]`, "spec.addresses[1]: 192.0.2.128/25 overlaps 192.0.2.0-192.0.2.255"},
		{"IPAddressPool", `"addresses":[]`, "spec.addresses: must have"},
		{"IPAddressPool", `"addresses":"192.0.2.0/24"`, "spec.addresses: must be a list, is a string"},
		{"IPAddressPool", `"autoAssign":1`, "spec.autoAssign: must be true or false, is a number"},
		{"L2Advertisement", `"serviceSelectors":{"matchLabels":{"a":"b"}}`, "spec.serviceSelectors: must be a list, is a map"},
		{"L2Advertisement", `"nodeSelectors":[{"matchLabels":"a"}]`, "spec.nodeSelectors[0].matchLabels: must be a map, is a string"},
		{"BGPPeer", `"myASN":5000000000`, "spec.myASN: must be a whole number of 0 to 4294967295, is 5000000000"},
		{"IPAddressPool", `"addresses":["192.0.2.0/24"],"serviceAllocation":{"serviceSelectors":[{"matchExpressions":[{"key":"k","operator":"Like"}]}]}`, "spec.serviceAllocation.serviceSelectors[0].matchExpressions[0].operator"},
		{"BGPAdvertisement", ``, ""},
		{"BGPAdvertisement", `"aggregationLength":32,"aggregationLengthV6":128,"localPref":100,"communities":["65535:65282","large:1:2:3"],"ipAddressPoolSelectors":[{"matchLabels":{"zone":"east"}}],"nodeSelectors":[{"matchLabels":{"kubernetes.io/hostname":"n"}}]`, ""},
		{"BGPAdvertisement", `"nodeSelectors":[{"matchExpressions":[{"key":"rack","operator":"Exists"}]}]`, ""},
		{"BGPAdvertisement", `"nodeSelectors":[{"matchExpressions":[{"key":"rack","operator":"Like"}]}]`, "spec.nodeSelectors[0].matchExpressions[0].operator: must be"},
		{"BGPAdvertisement", `"aggregationLength":33`, "spec.aggregationLength: must be between 1 and 32"},
		{"BGPAdvertisement", `"ipAddressPools":["absent"]`, "spec.ipAddressPools[0]: there is no pool absent"},
		{"BGPAdvertisement", `"communities":["absent"]`, "spec.communities[0]: absent is neither"},
		{"BGPPeer", peer, ""},
		{"BGPPeer", peer + `,"peerPort":180,"holdTime":"90s","keepaliveTime":"30s","routerID":"192.0.2.7","ebgpMultiHop":true`, ""},
		{"BGPPeer", `"myASN":64512,"peerASN":64512,"peerAddress":"192.0.2.254","ebgpMultiHop":true`, "spec.ebgpMultiHop"},
		{"BGPPeer", peer + `,"holdTime":"2s"`, "spec.holdTime: must be 3s"},
		{"BGPPeer", peer + `,"holdTime":"0s"`, "spec.holdTime: must be 3s"},
		{"BGPPeer", peer + `,"disableMP":true`, ""},
		{"BGPPeer", peer + `,"password":"x"`, "spec.password: "},
		{"BGPPeer", peer + `,"passwordSecret":{"name":"x"}`, ""},
		{"BGPPeer", peer + `,"connectTime":"60s"`, "spec.connectTime: "},
		{"BGPPeer", peer + `,"enableGracefulRestart":true,"bfdProfile":"b"`, "spec.enableGracefulRestart: "},
		{"BGPPeer", peer + `,"dualStackAddressFamily":true`, "spec.dualStackAddressFamily: "},
		{"BGPPeer", peer + `,"localASN":64514`, ""},
		{"BGPPeer", peer + `,"localASN":64513`, "spec.localASN: is for routers of another"},
		{"BGPPeer", `"myASN":64512,"dynamicASN":"internal","localASN":64514,"peerAddress":"192.0.2.254"`, "spec.localASN: is for routers of another"},
		{"BGPPeer", peer + `,"vrf":"red"`, "spec.vrf: sessions in a VRF"},
		{"BGPPeer", `"myASN":64512,"dynamicASN":"external","localASN":64514,"peerAddress":"192.0.2.254"`, ""},
		{"BGPPeer", `"myASN":64512,"dynamicASN":"internal","peerAddress":"192.0.2.254"`, ""},
		{"BGPPeer", `"myASN":64512,"dynamicASN":"internal","ebgpMultiHop":true,"peerAddress":"192.0.2.254"`, "spec.ebgpMultiHop"},
		{"BGPPeer", `"myASN":64512,"dynamicASN":"other","peerAddress":"192.0.2.254"`, "spec.dynamicASN: must be internal or external"},
		{"BGPPeer", peer + `,"dynamicASN":"external"`, "spec.peerASN: either"},
		{"BGPPeer", `"myASN":64512,"peerAddress":"192.0.2.254"`, "spec.peerASN: either"},
		{"BGPPeer", `"myASN":64512,"peerASN":64513`, "spec.peerAddress: either"},
		{"BGPPeer", `"myASN":64512,"peerASN":64513,"interface":"eth0"`, ""},
		{"BGPPeer", peer + `,"holdTime":"soon"`, "spec.holdTime"},
		{"BGPPeer", peer + `,"bfdProfile":"absent"`, "spec.bfdProfile: no BFDProfile absent is in service"},
		{"BGPPeer", peer + `,"bfdProfile":"b","ebgpMultiHop":true`, "spec.bfdProfile: BFD is for a router on a link"},
		{"BGPPeer", `"myASN":64512,"peerASN":64513,"interface":"eth0","bfdProfile":"b"`, "spec.bfdProfile: BFD needs peerAddress"},
		{"BGPPeer", peer + `,"bfdProfile":"b","sourceAddress":"192.0.2.9"`, "spec.bfdProfile: BFD packets have"},
		{"BFDProfile", `"receiveInterval":380,"transmitInterval":270,"detectMultiplier":3,"minimumTtl":254`, ""},
		{"BFDProfile", `"echoMode":true`, "spec.echoMode"},
		{"BFDProfile", `"passiveMode":true`, "spec.passiveMode"},
		{"BFDProfile", `"receiveInterval":1`, "spec.receiveInterval: must be between 50 and 60000"},
		{"Community", `"communities":[{"name":"vpn","value":"1234:1"},{"name":"big","value":"large:1:2:4294967295"}]`, ""},
		{"Community", `"communities":[{"name":"vpn","value":"1234"}]`, "spec.communities[0].value"},
		{"L2Advertisement", `"interfaces":["eth0"],"nodeSelectors":[{"matchLabels":{"kubernetes.io/hostname":"a"}}]`, ""},
		{"L2Advertisement", `"serviceSelectors":[{"matchLabels":{"a":"b"}}]`, ""},
		{"L2Advertisement", `"serviceSelectors":[{"matchExpressions":[{"key":"k","operator":"Like"}]}]`, "spec.serviceSelectors[0].matchExpressions[0].operator"},
		{"BGPAdvertisement", `"aggregationLength":32,"aggregationLengthV6":128,"serviceSelectors":[{"matchLabels":{"a":"b"}}]`, ""},
		{"BGPAdvertisement", `"aggregationLength":24,"serviceSelectors":[{"matchLabels":{"a":"b"}}]`, "spec.aggregationLength: must be 32 with serviceSelectors"},
		{"L2Advertisement", `"interface":"eth0"`, "interface"},
		{"AddressPool", `"protocol":"layer2"`, "spec.protocol: MetalLB has removed"},
	} {
		t.Run(c.kind+" "+c.spec, func(t *testing.T) {
			got := decode(object(c.kind, "o", c.spec))
			switch {
			case c.want == "" && len(got.Faults) > 0:
				t.Error(got.Faults[0])
			case c.want == "":
				if len(got.Pools)+len(got.Advertisements)+len(got.LinkAdvertisements)+len(got.Peers)+len(got.BFDProfiles)+len(got.Communities) == 0 {
					t.Error("it is not in use")
				}
			case len(got.Faults) != 1 || !strings.Contains(got.Faults[0].Error(), c.kind+" metallb-system/o: "+c.want) && !strings.Contains(got.Faults[0].Error(), c.want):
				t.Errorf("faults %v, want %s", got.Faults, c.want)
			}
		})
	}
}

// Each reason is a fault of its own, so that an object is mended at once.
func TestAnObjectHasAFaultForEachReason(t *testing.T) {
	for _, c := range []struct {
		kind, spec string
		want       []string
	}{
		{"IPAddressPool", `"adresses":["192.0.2.0/24"],"autoAssign":"no","serviceAllocation":{"namespaceSelectors":[{"matchLabel":{}},{"matchExpressions":[{"values":"a"}]}]}`, []string{
			"spec.adresses: this field is not known (did you mean addresses?)", "spec.autoAssign: must be true or false, is a string",
			"spec.serviceAllocation.namespaceSelectors[0].matchLabel: this field is not known (did you mean matchLabels?)",
			"spec.serviceAllocation.namespaceSelectors[1].matchExpressions[0].values: must be a list, is a string",
		}},
		{"IPAddressPool", `"addresses":["192.0.2.0","198.51.100.9-198.51.100.1"],"serviceAllocation":{"priority":-1}`, []string{
			`spec.addresses[0]: "192.0.2.0": neither`, "spec.addresses[1]:", "spec.serviceAllocation.priority: must not be negative, is -1",
		}},
		{"BGPPeer", `"myASN":1.5,"peerASN":{}`, []string{"spec.peerASN: must be a whole number of 0 to 4294967295, is a map"}},
		{"BGPPeer", `"peerASN":64513,"holdTime":"soon","keepaliveTime":"90","vrf":"red","peerAddress":"router"`, []string{
			"spec.vrf:", "spec.myASN: must be set", `spec.peerAddress: "router" is no address`, `spec.holdTime: "soon" is no duration`, `spec.keepaliveTime: "90" is no duration`,
		}},
		{"BGPAdvertisement", `"aggregationLength":33,"communities":["a","b"]`, []string{"spec.aggregationLength:"}},
		{"BGPAdvertisement", `"communities":["a","b"]`, []string{"spec.communities[0]: a is neither", "spec.communities[1]: b is neither"}},
		{"L2Advertisement", `"interface":"eth0","nodeSelector":[]`, []string{"spec.interface: this field", "spec.nodeSelector: this field"}},
		{"IPAddressPool", `"addresses":["192.0.2.0/24"` + strings.Repeat(`,"192.0.2.1/32"`, 50) + `]`, append(slices.Repeat([]string{"spec.addresses["}, mostFaults), "spec: has more")},
		{"BFDProfile", `"echoMode":true,"passiveMode":true`, []string{"spec.echoMode:", "spec.passiveMode:"}},
		{"Community", `"communities":[{"name":"a","value":"1"},{"name":"b","value":"2"}]`, []string{"spec.communities[0].value:", "spec.communities[1].value:"}},
	} {
		got := decode(object(c.kind, "o", c.spec))
		if len(got.Pools)+len(got.Advertisements)+len(got.LinkAdvertisements)+len(got.Peers)+len(got.BFDProfiles) > 0 {
			t.Errorf("%s %s: it is in use", c.kind, c.spec)
		}
		if !slices.EqualFunc(got.Faults, c.want, func(f *Fault, want string) bool { return strings.HasPrefix(f.Unwrap().Error(), want) }) {
			t.Errorf("%s %s: faults %v, want %q", c.kind, c.spec, got.Faults, c.want)
		}
	}
}

// An object that is probably of a known kind is a fault: it would have no effect, silently. Objects of
// other programs are passed over.
func TestMisnamedObjectsAreFaults(t *testing.T) {
	for _, c := range []struct{ version, kind, want string }{
		{"metallb.io/v1beta1", "L2Advertisment", "L2Advertisement of metallb.io"},
		{"metallb.io/v1beta1", "BGPAdvertisment", "BGPAdvertisement of metallb.io"},
		{"metallb.io/v1beta2", "bgppeer", "BGPPeer of metallb.io"},
		{"metalb.io/v1beta1", "IPAddressPool", "IPAddressPool of metallb.io"},
		{"v1", "IPAddressPool", "IPAddressPool of metallb.io"},
		{"", "IPAddressPol", "IPAddressPool of metallb.io"},
		{"weir.dev/v1alpha1", "L2Advertisement", "L2Advertisement of metallb.io"},
		{"weir.dev/v1alpha1", "BGPAdvertisment", "BGPAdvertisement of weir.dev"},
		{"weir.dev/v1alpha1", "IPAddressPool", "AddressPool of weir.dev"},
		{"weir.dev/v1alpha1", "WeirConfiguration", ""},
		{"metallb.io/v1beta1", "ServiceL2Status", ""},
		{"crd.projectcalico.org/v1", "BGPPeer", ""},
		{"cilium.io/v2", "CiliumBGPAdvertisement", ""},
		{"v1", "Service", ""},
		{"", "", ""},
	} {
		got := decode(`{"apiVersion":"` + c.version + `","kind":"` + c.kind + `","metadata":{"name":"o"}}`)
		switch {
		case c.want == "" && (len(got.Faults) > 0 || len(got.Skipped) != 1), c.want != "" && (len(got.Faults) != 1 || got.Faults[0].Used || len(got.Skipped) > 0):
			t.Errorf("%s %s: faults %v, skipped %v", c.version, c.kind, got.Faults, got.Skipped)
		case c.want != "" && !strings.HasSuffix(got.Faults[0].Error(), "is not read (did you mean "+c.want+"?)"):
			t.Errorf("%s %s: %v", c.version, c.kind, got.Faults[0])
		}
	}
	for text, want := range map[string]string{`[]`: "must be a map, is a list", `{"kind":"BGPPeer","metadata":{"labels":[]}}`: "metadata.labels: must be a map, is a list"} {
		if got := decode(text); len(got.Faults) != 1 || got.Faults[0].Unwrap().Error() != want {
			t.Errorf("%s: faults %v, want %s", text, got.Faults, want)
		}
	}
}

func TestOneFaultLeavesTheOthersInUse(t *testing.T) {
	c := decode(
		poolObject("b", `"addresses":["192.0.2.0/25"]`), poolObject("a", `"addresses":["192.0.2.0/24"]`),
		`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"d"},"spec":{"replicas":1}}`,
		`{"apiVersion":"v1","kind":"List","items":[`+object("BGPPeer", "p", `"myASN":1,"peerASN":2,"peerAddress":"192.0.2.1"`)+`]}`,
		`{"apiVersion":"weir.dev/v1alpha1","kind":"AddressPool","metadata":{"name":"c"},"spec":{"addresses":["198.51.100.0/24"]}}`,
		`not JSON`,
	)
	if len(c.Pools) != 2 || c.Pools[0].Name != "c" && c.Pools[1].Name != "c" || len(c.Peers) != 1 || len(c.Faults) != 2 {
		t.Errorf("%+v", c)
	}
	// Which of two overlapping pools is in use does not depend on the order of files.
	if got := c.Faults[1].Error(); !strings.Contains(got, "IPAddressPool metallb-system/b: spec.addresses[0]: 192.0.2.0/25 overlaps 192.0.2.0-192.0.2.255 of pool a") {
		t.Error(got)
	}
}

func TestAdvertisementsSelectPools(t *testing.T) {
	for _, c := range []struct {
		spec string
		want bool
	}{
		{``, true}, {`"ipAddressPools":["p"]`, true}, {`"ipAddressPools":["q"]`, false},
		{`"ipAddressPoolSelectors":[{"matchLabels":{"zone":"east"}}]`, true}, {`"ipAddressPoolSelectors":[{"matchLabels":{"zone":"west"}}]`, false},
	} {
		pool := strings.Replace(poolObject("p", `"addresses":["192.0.2.0/24"]`), `"name":`, `"labels":{"zone":"east"},"name":`, 1)
		a := decode(pool, object("BGPAdvertisement", "a", c.spec)).Announcement(Node{Name: "here"})
		if selected := len(a.Routes) == 1; selected != c.want || selected && a.Routes[0].Prefixes[0].String() != "192.0.2.0/24" {
			t.Errorf("%s: %+v, faults %v", c.spec, a.Routes, a.Faults)
		}
	}
}

// No object is a panic. Pools in use do not overlap, and give addresses of their own alone, each once.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(poolObject("p", `"addresses":["192.0.2.0/24"]`)))
	f.Add([]byte(object("BGPPeer", "p", `"myASN":1,"peerASN":2,"peerAddress":"192.0.2.1"`)))
	f.Fuzz(func(t *testing.T, b []byte) {
		c := Decode([]Object{{"f", b}})
		for i, p := range c.Pools {
			for _, o := range c.Pools[:i] {
				for _, r := range p.Ranges {
					if slices.ContainsFunc(o.Ranges, r.overlaps) || o.Name == p.Name {
						t.Fatalf("pools %+v and %+v", p, o)
					}
				}
			}
		}
		a := New(c.Pools)
		given := map[netip.Addr]bool{}
		for i := range 4 {
			s := service("x/s"+strconv.Itoa(i), 1)
			s.IPv6 = i == 3
			for _, addr := range a.Reconcile(s, now).Addresses {
				if given[addr] || !slices.ContainsFunc(c.Pools, func(p Pool) bool { return p.AutoAssign && p.offers(addr) }) {
					t.Errorf("%v is given twice, or not of a pool", addr)
				}
				given[addr] = true
			}
		}
		for _, u := range a.Usage(now) {
			if u.Available < 0 {
				t.Errorf("usage %+v", u)
			}
		}
	})
}

func TestParseAddresses(t *testing.T) {
	if got, err := ParseAddresses("192.0.2.1, 2001:db8::1"); err != nil || !sameSet(got, []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}) {
		t.Error(got, err)
	}
	if _, err := ParseAddresses("192.0.2.1,"); err == nil {
		t.Error("no error")
	}
}

// A BGPPeer has the BFD of its profile, with MetalLB's defaults, and is refused without it: the
// router would be expected to answer within a fraction of a second.
func TestPeersHaveTheBFDOfTheirProfiles(t *testing.T) {
	const peer = `"myASN":64512,"peerASN":64513,"peerAddress":"192.0.2.254","bfdProfile":"b"`
	for _, c := range []struct {
		profile, want string
	}{
		{``, "300ms 300ms 3"},
		{`"receiveInterval":380,"transmitInterval":270,"detectMultiplier":5`, "380ms 270ms 5"},
		{`"echoMode":true`, "spec.echoMode: not supported; spec.bfdProfile: no BFDProfile b is in service"},
	} {
		got := decode(object("BFDProfile", "b", c.profile), object("BGPPeer", "p", peer))
		var said []string
		for _, f := range got.Faults {
			said = append(said, f.Unwrap().Error())
		}
		for _, p := range got.Peers {
			said = append(said, fmt.Sprintf("%v %v %d", p.BFD.Receive(), p.BFD.Transmit(), p.BFD.Multiplier()))
		}
		if got := strings.Join(said, "; "); got != c.want {
			t.Errorf("%s: %s, want %s", c.profile, got, c.want)
		}
	}
}
