package hostcheck

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/cmd/weir/config"
	"github.com/weirlb/weir/lb/device"
	"github.com/weirlb/weir/lb/xsk"
)

func TestCapabilities(t *testing.T) {
	bit := func(cs ...int) (s Capabilities) {
		for _, c := range cs {
			s |= 1 << c
		}
		return s
	}
	for _, tt := range []struct {
		name string
		have Capabilities
		want string // capabilities named as missing
	}{
		{"root", ^Capabilities(0), ""},
		{"none", 0, "CAP_NET_ADMIN CAP_NET_RAW CAP_BPF CAP_PERFMON"},
		{"just enough", bit(unix.CAP_NET_ADMIN, unix.CAP_NET_RAW, unix.CAP_BPF, unix.CAP_PERFMON), ""},
		{"SYS_ADMIN holds BPF and PERFMON", bit(unix.CAP_NET_ADMIN, unix.CAP_NET_RAW, unix.CAP_SYS_ADMIN), ""},
		{"no sockets", bit(unix.CAP_NET_ADMIN, unix.CAP_BPF, unix.CAP_PERFMON), "CAP_NET_RAW"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var names []string
			for _, m := range missingFrom(tt.have) {
				names = append(names, strings.Fields(m)[0])
			}
			if got := strings.Join(names, " "); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestParseCapabilities(t *testing.T) {
	got, err := parseCapabilities("Name:\tweir\nCapPrm:\t0000000000000000\nCapEff:\t0000008000003000\nCapBnd:\t000001ffffffffff\n")
	if err != nil || !got.Has(unix.CAP_NET_ADMIN) || !got.Has(unix.CAP_NET_RAW) || !got.Has(unix.CAP_BPF) || got.Has(unix.CAP_SYS_ADMIN) {
		t.Errorf("got %x, %v", got, err)
	}
	for _, bad := range []string{"", "CapEff:\tzz\n"} {
		if _, err := parseCapabilities(bad); err == nil {
			t.Errorf("%q gives no error", bad)
		}
	}
}

func TestJudgeOfAProbe(t *testing.T) {
	for _, tt := range []struct {
		name    string
		err     error
		without string
		want    Level
		text    string
	}{
		{"there", nil, "x", OK, "a feature: yes"},
		{"not there and needed", unix.EINVAL, indispensable, Wrong, "a feature: invalid argument (Linux 5.9 has it)"},
		{"not there", unix.EINVAL, "walks", Note, "a feature: no (invalid argument; Linux 5.9 has it): Weir walks"},
		{"not allowed", fs.ErrPermission, indispensable, Note, "a feature: cannot be tried without privileges"},
		{"busy", unix.EBUSY, "walks", Note, "a feature: cannot be tried at the moment: device or resource busy"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var f findings
			judge(&f, xsk.Probe{Name: "a feature", Kernel: "5.9", Without: tt.without, Err: tt.err})
			if len(f) != 1 || f[0].Level != tt.want || f[0].Text != tt.text {
				t.Errorf("got %+v", f)
			}
		})
	}
}

func TestInterfaceThatIsNotEthernet(t *testing.T) {
	var f findings
	checkInterfaces(&f, &config.Configuration{Interfaces: []config.Interface{{Name: "lo"}, {Name: "nonexistent0"}}})
	if len(f) != 1 || f[0].Level != Wrong || !strings.Contains(f[0].String(), "interface lo: is not an Ethernet interface") {
		t.Errorf("got %v", f)
	}
}

func TestPacketMemoryGrowsWithWorkersAndInterfaces(t *testing.T) {
	cfg := config.Default()
	cfg.Workers.Count = 2
	cfg.Interfaces = []config.Interface{{Name: "eth0"}, {Name: "eth1"}}
	// Two interfaces, the host veth, and what is being sent.
	if got, want := packetMemory(cfg, devices(cfg, nil)), uint64(2*4*4096*4096); got != want {
		t.Errorf("got %d, want %d", got, want)
	}
	// eth1 is a bond of two, which may get two more.
	mac := []byte{2, 0, 0, 0, 0, 1}
	links := []device.Link{
		{Index: 1, Name: "eth0", Kind: "device", MAC: mac, Up: true},
		{Index: 2, Name: "eth1", Kind: "bond", Bond: "802.3ad", MAC: mac, Up: true},
		{Index: 3, Name: "m0", Kind: "device", MAC: mac, Up: true, Master: 2},
		{Index: 4, Name: "m1", Kind: "device", MAC: mac, Up: true, Master: 2},
	}
	if got, want := packetMemory(cfg, devices(cfg, links)), uint64(2*7*4096*4096); got != want {
		t.Errorf("with a bond: got %d, want %d", got, want)
	}
	// As many workers as there are queues, and CPUs for them.
	cfg.Workers.Count = 0
	cfg.Workers.CPUs = config.CPUs{0, 1, 2, 3}
	for queues, workers := range map[int]uint64{0: 4, 3: 3, 9: 4} {
		if got, want := packetMemory(cfg, bound{2, queues}), workers*4*4096*4096; got != want {
			t.Errorf("with %d queues: got %d, want %d", queues, got, want)
		}
	}
}

func TestLockedMemoryIsCountedOncePerMode(t *testing.T) {
	for limit, want := range map[uint64]struct {
		level Level
		text  string
	}{
		99 << 20:  {Wrong, "RLIMIT_MEMLOCK is 99 MiB and the packet buffers may take 100 MiB: raise RLIMIT_MEMLOCK"},
		100 << 20: {Note, "at most 100 MiB are needed, and twice that where zero copy is granted"},
		199 << 20: {Note, "above 3,500: raise RLIMIT_MEMLOCK"},
		200 << 20: {OK, "200 MiB may be locked"},
	} {
		level, text, mend := lockable(limit, 100<<20)
		if f := (Finding{level, "", text, mend}); f.Level != want.level || !strings.Contains(f.Line(), want.text) {
			t.Errorf("%d MiB: %v, %s", limit>>20, level, f.Line())
		}
	}
}

func TestManifests(t *testing.T) {
	const good = `apiVersion: v1
kind: Service
metadata: {namespace: default, name: web}
spec: {type: NodePort, ports: [{port: 80, nodePort: 30080}]}
---
apiVersion: v1
kind: Node
metadata: {name: edge-1, labels: {topology.kubernetes.io/zone: a}}
`
	const slice = `---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: default, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{protocol: TCP, port: 8080}]
endpoints: [{addresses: [10.1.1.1]}]
`
	loadBalancer := func(name string, ports ...string) string {
		return "---\napiVersion: v1\nkind: Service\nmetadata: {namespace: default, name: " + name + "}\n" +
			"spec: {type: LoadBalancer, allocateLoadBalancerNodePorts: false, ports: [" + strings.Join(ports, ", ") + "]}\n" +
			"status: {loadBalancer: {ingress: [{ip: 192.0.2.10}]}}\n"
	}
	var ports []string
	for i := range 656 {
		ports = append(ports, fmt.Sprintf("{name: p%d, port: %d}", i, 1000+i))
	}
	for _, tt := range []struct {
		name, file, node string
		level            Level
		want             string
	}{
		{"good", good, "edge-1", OK, "2 objects, 1 of them Services"},
		{"node unknown", good, "edge-2", Note, "there is no Node edge-2"},
		{"no slice", good, "edge-1", Note, "no valid EndpointSlice has the label kubernetes.io/service-name: web"},
		{"slice of a misspelt Service", good + strings.ReplaceAll(slice, "service-name: web", "service-name: wbe"), "edge-1", Note,
			"names Service default/wbe, which does not exist (did you mean web?)"},
		{"port of another name", good + strings.Replace(slice, "ports: [{", "ports: [{name: http, ", 1), "edge-1", Wrong, `no EndpointSlice has a TCP port of the name ""`},
		{"misspelt kind", good + strings.Replace(slice, "kind: EndpointSlice", "kind: EndpointSlices", 1), "edge-1", Wrong, "did you mean discovery.k8s.io/v1 or v1beta1 EndpointSlice?"},
		{"address of another", loadBalancer("web", "{port: 80}") + loadBalancer("dup", "{port: 80}"), "edge-1", Wrong, "TCP 192.0.2.10:80 is held by Service default/dup"},
		{"as many ranges as fit", ranged(8, 99), "edge-1", OK, "8 objects"},
		{"more ranges than fit", ranged(9, 99), "edge-1", Wrong, "192.0.2.10:10800-10899: one of 9 ranges of ports of the address and protocol, of which a node takes 8"},
		{"ranges with common ports", ranged(2, 150), "edge-1", Wrong, "Service default/s1: TCP 192.0.2.10:10100-10250 has ports in common with 192.0.2.10:10000-10150 of Service default/s0"},
		{"route of a refused Gateway", refusedGateway, "edge-1", Wrong, "TCPRoute default/web: spec.parentRefs[0]: Gateway default/edge is refused"},
		{"misspelt controller", strings.Replace(refusedGateway, "weir.dev/gateway-controller", "weir.dev/gateway-controler", 1), "edge-1", Wrong,
			`GatewayClass weir: spec.controllerName: "weir.dev/gateway-controler" is another controller, Weir is weir.dev/gateway-controller`},
		{"another controller", strings.Replace(refusedGateway, "weir.dev/gateway-controller", "example.com/gateway", 1), "edge-1", Note,
			`GatewayClass weir: spec.controllerName: "example.com/gateway" is another controller`},
		{"within the limits", loadBalancer("web", ports[0]), "edge-1", OK, "1 objects"},
		{"beyond the limits", loadBalancer("web", ports...), "edge-1", Wrong, "asks for more than the 655 frontends that a Service may have"},
		{"bad port", strings.Replace(good, "30080", "70000", 1), "edge-1", Wrong, "spec.ports[0].nodePort"},
		{"protected node port", strings.Replace(good, "30080", "22", 1), "edge-1", Wrong, "port 22 is protected on the node's own addresses (protectedPorts)"},
		{"node port of Weir itself", strings.Replace(good, "30080", "9465", 1), "edge-1", Wrong, "Weir itself listens there (healthzBindAddress)"},
		{"not YAML", "a: [", "edge-1", Wrong, "web.yaml"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, "web.yaml"), []byte(tt.file), 0o600); err != nil {
				t.Fatal(err)
			}
			cfg := config.Default()
			cfg.Limits.ServicePercent = 1
			cfg.NodeName, cfg.Discovery.Manifests = tt.node, &config.Manifests{Path: dir}
			var f findings
			checkManifests(&f, cfg)
			for _, x := range f {
				if x.Level == tt.level && strings.Contains(x.Text, tt.want) {
					return
				}
			}
			t.Errorf("got %v; want %q", f, tt.want)
		})
	}
}

// Each arrangement that leaves packets to the packet loop gives the reason, and what others see.
func TestHookIsToldWithTheReason(t *testing.T) {
	lo := device.Port{Device: 1} // of no kind that has hook tcx by itself
	for _, tt := range []struct {
		name        string
		in          config.Interface
		mode        string
		xdp         bool
		want, other string
	}{
		{"cache off", config.Interface{Hook: config.HookAuto}, config.FlowCacheOff, true, "flowCache.mode is off: all packets take the packet loop", "neither as they arrive nor as they leave"},
		{"configured", config.Interface{Hook: config.HookXDP}, config.FlowCacheAuto, true, "it is configured", "neither as they arrive nor as they leave"},
		{"mode generic", config.Interface{Hook: config.HookAuto, Mode: config.ModeGeneric}, config.FlowCacheAuto, true, "tcx: excludes mode: generic", "neither as they arrive nor as they leave"},
		{"auto", config.Interface{Hook: config.HookAuto, Mode: config.ModeAuto}, config.FlowCacheAuto, true, "", "neither as they arrive nor as they leave"},
		{"tcx", config.Interface{Hook: config.HookTCX}, config.FlowCacheAuto, false, "in ipip and gue packets with partial checksums take the packet loop", "sees Weir's packets as they arrive"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cfg := config.Default()
			cfg.FlowCache.Mode = tt.mode
			var f findings
			if xdp := checkHook(&f, cfg, tt.in, []device.Port{lo, lo}); xdp != tt.xdp {
				t.Errorf("hook xdp: %v", xdp)
			}
			if len(f) < 2 || !strings.Contains(f[0].Text, tt.want) || !strings.Contains(f[1].Text, tt.other) {
				t.Errorf("%+v", f)
			}
		})
	}
}

// The ports of connections on the machine's addresses are shown with the reason for the fewer.
func TestSNATPortsAreShown(t *testing.T) {
	for name, tt := range map[string]struct {
		edit func(*config.Configuration)
		want string // "" for nothing
	}{
		"off":        {func(c *config.Configuration) { c.FlowCache.Mode = config.FlowCacheOff }, "SNAT ports: 61000-65535: flowCache.mode is off"},
		"configured": {func(c *config.Configuration) { c.SNAT.Ports = config.PortRange{Lo: 20000, Hi: 20009} }, ""},
		"auto":       {func(*config.Configuration) {}, "SNAT ports: 61000-65535"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := config.Default()
			tt.edit(cfg)
			var f findings
			checkSNATPorts(&f, cfg)
			if tt.want == "" {
				if len(f) > 0 {
					t.Errorf("shown: %v", f)
				}
				return
			}
			if len(f) != 1 || !strings.HasPrefix(f[0].String(), tt.want) || f[0].Level == Wrong {
				t.Errorf("shown: %v, want %s", f, tt.want)
			}
		})
	}
}

// ranged are Services of an address with a range each, of last more ports than one.
func ranged(services, last int) (out string) {
	for i := range services {
		first := 10000 + 100*i
		out += fmt.Sprintf("---\napiVersion: v1\nkind: Service\nmetadata: {namespace: default, name: s%d, annotations: {weir.dev/port-range: %d-%d}}\n"+
			"spec: {type: LoadBalancer, ports: [{port: %d}]}\nstatus: {loadBalancer: {ingress: [{ip: 192.0.2.10}]}}\n", i, first, first+last, first)
	}
	return out
}

const refusedGateway = `
--- {apiVersion: gateway.networking.k8s.io/v1, kind: GatewayClass, metadata: {name: weir}, spec: {controllerName: weir.dev/gateway-controller}}
--- {apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {name: edge}, spec: {gatewayClassName: weir, listeners: [{name: web, protocol: TCP, port: 80000}]}}
--- {apiVersion: gateway.networking.k8s.io/v1, kind: TCPRoute, metadata: {name: web}, spec: {parentRefs: [{name: edge}], rules: [{backendRefs: [{name: v1, port: 80}]}]}}
`
