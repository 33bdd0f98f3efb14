package vm

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// Case is a test binary, or a part of its tests, on a kernel.
type Case struct {
	Name    string
	Package string   // folder of the test binary's package, from the root of the module
	Run     string   // regular expression of tests; "": all
	Skip    string   // of those, the tests to leave out
	Env     []string // more environment
	Load    []string // modules to load first
	Scripts []string // of variables with a program: NAME=SCRIPT prints the path of the program, which it builds
	Long    bool     // without -test.short
	NICs    string   // arrangement of emulated NICs; "": veth pairs alone
	Seconds float64  // that suffice on a quiet machine without emulation
	Short   bool     // in continuous integration, too
	Host    bool     // the tests run on this machine, and boot virtual machines: see StartNode
	Omit    []Omission
}

// Omission is a test that fails with the NICs of a case without Weir, too. The report names it.
type Omission struct{ Test, Why string }

// largeFrames: QEMU gives a packet several buffers (maxNumRxSG) only if LRO was on when the
// link came up (vmxnet3_setup_driver_shared, vmxnet3_activate_device).
var largeFrames = Omission{"TestGuestJumboFrames", "QEMU's vmxnet3 loses large frames without Weir, too: " +
	"at MTU 9000 plain traffic of the kernel stops after 512 bytes"}

// traffic is the wire tests of traffic to every kind of endpoint, echoes those of many
// connections and datagrams.
const (
	traffic = "^TestWire(EveryKindOfEndpoint|TransfersAreIdentical)$"
	echoes  = "^TestWire(SpreadsOverAllEndpoints|UDPEcho)$"
)

// onNICs is the tests of emulated NICs.
const onNICs = "^TestGuest(NIC|JumboFrames|VLAN)"

// packets is a part of the packet table: untagged packets of clients and endpoints, in the
// mode that rewrites most.
const packets = "^TestWirePackets$/^(flow|new|snat|no-endpoint|icmp-error)$/.*/^nat$/.*/^untagged$"

// repeats is the tests of the programs that read the flow table: that they load, and do what
// the packet loop does.
const repeats = "^TestKernel(Repeats|FindsFlowsOfAFullTable)$|TakenByFlow$"

// kubernetes is the control plane and kube-proxy.
var kubernetes = []string{"KUBEENV_BIN=discovery/kube/kubeenv/build.sh", "KUBEPROXY_BIN=discovery/kube/kubeenv/kubeproxy/build.sh"}

// Cases are the cases of each kernel.
var Cases = []Case{
	{Name: "kernel-table", Package: "cmd/weir/e2e", Run: "^TestGuestKernelTable$", Seconds: 10, Short: true},
	{Name: "hooks", Package: "cmd/weir/e2e", Run: "^TestGuestHooks$", Seconds: 20},
	{Name: "xsk", Package: "lb/xsk", Seconds: 20},
	{Name: "steer", Package: "lb/steer", Skip: "^TestCompiledProgramIsCurrent$|^TestNoPacketTakesAnotherFlowsRecipe$|" + repeats, Seconds: 40},
	{Name: "repeat", Package: "lb/steer", Run: repeats, Seconds: 60, Short: true},
	{Name: "flowcache", Package: "lb/flowcache", Skip: "^TestHeaderIsCurrent$", Seconds: 10, Short: true},
	{Name: "hostveth", Package: "lb/hostveth", Run: "^TestWire", Load: []string{"nf_conntrack"}, Seconds: 30},
	{Name: "route", Package: "lb/route", Seconds: 20},
	{Name: "bonds", Package: "cmd/weir/e2e", Run: "^TestGuestBond$", Seconds: 60},
	{Name: "links", Package: "cmd/weir/e2e", Run: "^TestGuest(VLAN|RefusedLinks)$", Seconds: 20},
	{Name: "jumbo", Package: "cmd/weir/e2e", Run: "^TestGuestJumboFrames$", Seconds: 20},
	{Name: "sctp", Package: "cmd/weir/e2e", Run: "^TestGuestSCTP$", Load: []string{"sctp"}, Seconds: 20},
	{Name: "tunnels", Package: "cmd/weir/e2e", Run: "^TestGuestKernelDecapsulates$", Load: []string{"ipip", "sit", "ip6_tunnel", "fou", "fou6"}, Seconds: 40},
	{Name: "ipvs", Package: "cmd/weir/e2e", Run: "^TestGuestTakeoverFromIPVS$", Load: []string{"ip_vs", "ip_vs_rr"}, Seconds: 20},
	{Name: "kube-proxy-ipvs", Package: "cmd/weir/e2e/cluster", Run: "^TestGuestTakeoverFromKubeProxy$", Load: []string{"ip_vs", "ip_vs_rr", "nf_conntrack"}, Scripts: kubernetes, Long: true, Seconds: 60},
	{Name: "clock", Package: "cmd/weir/e2e", Run: "^TestGuestClockSteps$", Env: []string{"WEIR_MAY_SET_CLOCK=1"}, Seconds: 30},
	{Name: "nic-virtio", Package: "cmd/weir/e2e", Run: onNICs, NICs: "virtio-net-pci", Seconds: 60},
	{Name: "nic-virtio-queues", Package: "cmd/weir/e2e", Run: "^TestGuestNIC(Traffic|Queues)$", NICs: "virtio-net-pci" + severalQueues, Env: []string{"WEIR_NIC_QUEUES=2"}, Seconds: 60},
	{Name: "nic-e1000e", Package: "cmd/weir/e2e", Run: onNICs, NICs: "e1000e", Seconds: 60},
	{Name: "nic-igb", Package: "cmd/weir/e2e", Run: onNICs, NICs: "igb", Env: []string{"WEIR_NIC_QUEUES=2"}, Seconds: 60},
	{Name: "nic-vmxnet3", Package: "cmd/weir/e2e", Run: onNICs, NICs: "vmxnet3", Seconds: 60, Omit: []Omission{largeFrames}},
	{Name: "lan", Package: "cmd/weir/e2e/lan", Run: "^TestGuestOwnerDies$", NICs: "virtio-net-pci", Host: true, Seconds: 60, Short: true},
	{Name: "lan-vlan", Package: "cmd/weir/e2e/lan", Run: "^TestGuestOwnersOnAVLAN$", Seconds: 30},
	{Name: "lan-bond", Package: "cmd/weir/e2e/lan", Run: "^TestGuestOwnersOnABond$", Load: []string{"bonding"}, Seconds: 30},
	{Name: "nic-bond", Package: "cmd/weir/e2e", Run: "^TestGuestBond$/802.3ad", NICs: "igb", Seconds: 60},
	{Name: "packets", Package: "cmd/weir/e2e/packet", Run: packets, Seconds: 30},
	{Name: "packets-xdp", Package: "cmd/weir/e2e/packet", Run: "^TestWirePackets$/^cached$/.*/^nat$/.*/^untagged$", Env: []string{"WEIR_CACHE=xdp"}, Seconds: 30},
	{Name: "packets-tcx", Package: "cmd/weir/e2e/packet", Run: "^TestWirePackets$/^cached$/.*/^nat$/.*/^untagged$", Env: []string{"WEIR_CACHE=tcx"}, Seconds: 30},
	{Name: "traffic", Package: "cmd/weir/e2e", Run: traffic, Seconds: 30, Short: true},
	{Name: "echoes", Package: "cmd/weir/e2e", Run: echoes, Seconds: 30},
}

// binary is the name of the test binary in the initramfs.
func (c *Case) binary() string { return strings.ReplaceAll(c.Package, "/", "_") + ".test" }

// command is the command line of the case in a virtual machine.
func (c *Case) command() []string {
	args := []string{"/vm/" + c.binary(), "-test.v", "-test.timeout=0"}
	if !c.Long {
		args = append(args, "-test.short")
	}
	if c.Run != "" {
		args = append(args, "-test.run="+c.Run)
	}
	var skip []string
	if c.Skip != "" {
		skip = append(skip, c.Skip)
	}
	for _, o := range c.Omit {
		skip = append(skip, "^"+o.Test+"$")
	}
	if len(skip) > 0 {
		args = append(args, "-test.skip="+strings.Join(skip, "|"))
	}
	return args
}

// CaseNames are the names of all cases.
func CaseNames() []string { return names(Cases) }

// selectCases returns the cases whose names match a pattern (path.Match) of the list; all if
// it is empty.
func selectCases(all []Case, patterns []string) ([]Case, error) {
	if len(patterns) == 0 {
		return all, nil
	}
	used := map[string]bool{}
	chosen := slices.DeleteFunc(slices.Clone(all), func(c Case) bool {
		for _, p := range patterns {
			if ok, _ := path.Match(p, c.Name); ok {
				used[p] = true
				return false
			}
		}
		return true
	})
	for _, p := range patterns {
		if !used[p] {
			return nil, fmt.Errorf("case %s: there is none; the cases are %s", p, strings.Join(names(all), ", "))
		}
	}
	return chosen, nil
}

func names(list []Case) []string {
	var n []string
	for _, c := range list {
		n = append(n, c.Name)
	}
	return n
}

// boots groups cases by their NICs, in the order of the list: each group shares a boot. Cases on
// this machine boot by themselves.
func boots(list []Case) [][]Case {
	type kind struct {
		nics string
		host bool
	}
	var groups [][]Case
	at := map[kind]int{}
	for _, c := range list {
		k := kind{c.NICs, c.Host}
		i, ok := at[k]
		if !ok {
			i = len(groups)
			at[k] = i
			groups = append(groups, nil)
		}
		groups[i] = append(groups[i], c)
	}
	return groups
}
