package config

import (
	"strings"
	"testing"

	"github.com/weirlb/weir/lb/steer"
)

func valid(t *testing.T) *Configuration {
	t.Helper()
	return parse(t, full)
}

func TestValidateRefuses(t *testing.T) {
	for _, tt := range []struct {
		name string
		edit func(*Configuration)
		path string
		want string // part of the message
	}{
		{"apiVersion", func(c *Configuration) { c.APIVersion = "v1" }, "apiVersion", `must be weir.dev/v1alpha1, is "v1"`},
		{"kind", func(c *Configuration) { c.Kind = "" }, "kind", `must be WeirConfiguration, is ""`},
		{"no node name", func(c *Configuration) { c.NodeName = "" }, "nodeName", "must be given"},
		{"node name in capitals", func(c *Configuration) { c.NodeName = "Edge_1" }, "nodeName", "not a node's name"},
		{"node name too long", func(c *Configuration) { c.NodeName = strings.Repeat("a", 254) }, "nodeName", "not a node's name"},
		{"no source", func(c *Configuration) { c.Discovery = Discovery{} }, "discovery", "must have manifests"},
		{"two sources", func(c *Configuration) { c.Discovery.Kubernetes = &Kubernetes{} }, "discovery", "give one"},
		{"source without path", func(c *Configuration) { c.Discovery.Manifests.Path = "" }, "discovery.manifests.path", "must be given"},
		{"a resolver by name", func(c *Configuration) { c.Discovery.Names = &Names{Resolver: "dns.example:53"} }, "discovery.names.resolver", "is not an IP address"},
		{"age below zero", func(c *Configuration) {
			hours := -1
			c.Discovery = Discovery{Kubernetes: &Kubernetes{LastKnownMaxAgeHours: &hours}}
		}, "discovery.kubernetes.lastKnownMaxAgeHours", "-1 is not from 1"},
		{"an unknown choice of Events", func(c *Configuration) {
			c.Discovery = Discovery{Kubernetes: &Kubernetes{Events: "some"}}
		}, "discovery.kubernetes.events", `is "some"`},
		{"selector of labels", func(c *Configuration) { c.Discovery = Discovery{Kubernetes: &Kubernetes{LabelSelector: "a in"}} }, "discovery.kubernetes.labelSelector", `"a in": `},
		{"proxy name no label's value", func(c *Configuration) { c.ServiceProxyName = "a b" }, "serviceProxyName", `"a b": `},
		{"class without a name", func(c *Configuration) { c.LoadBalancerClass = "weir.dev/" }, "loadBalancerClass", `"weir.dev/": `},
		{"relative state directory", func(c *Configuration) { c.StateDir = "state" }, "stateDir", "must be an absolute path"},
		{"no interface", func(c *Configuration) { c.Interfaces = nil }, "interfaces", "must name at least one"},
		{"interface without name", func(c *Configuration) { c.Interfaces[1].Name = "" }, "interfaces[1].name", "must be given"},
		{"interface name too long", func(c *Configuration) { c.Interfaces[0].Name = "sixteen-letters-" }, "interfaces[0].name", "cannot be the name"},
		{"interface name with slash", func(c *Configuration) { c.Interfaces[0].Name = "a/b" }, "interfaces[0].name", "cannot be the name"},
		{"loopback", func(c *Configuration) { c.Interfaces[0].Name = "lo" }, "interfaces[0].name", "lo cannot be attached"},
		{"interface twice", func(c *Configuration) { c.Interfaces[1].Name = "eth0" }, "interfaces[1].name", "listed twice"},
		{"name and cidr", func(c *Configuration) { c.Interfaces[1].CIDR = "192.0.2.0/24" }, "interfaces[1]", "has name and cidr: give exactly one"},
		{"all selectors", func(c *Configuration) { c.Interfaces[1].CIDR, c.Interfaces[1].DefaultRoute = "192.0.2.0/24", true }, "interfaces[1]", "has name and cidr and defaultRoute"},
		{"cidr no prefix", func(c *Configuration) { c.Interfaces[1] = selecting(Interface{CIDR: "192.0.2.1"}) }, "interfaces[1].cidr", "is not a prefix"},
		{"link-local cidr", func(c *Configuration) { c.Interfaces[1] = selecting(Interface{CIDR: "fe80::/64"}) }, "interfaces[1].cidr", "fe80::/64 is link-local"},
		{"cidr of Weir's pair", func(c *Configuration) { c.Interfaces[1] = selecting(Interface{CIDR: "169.254.77.0/24"}) }, "interfaces[1].cidr", "169.254.77.0/24 is link-local"},
		{"cidr of an address", func(c *Configuration) { c.Interfaces[1] = selecting(Interface{CIDR: "192.0.2.1/24"}) }, "interfaces[1].cidr", "192.0.2.0/24 is meant?"},
		{"cidr twice", func(c *Configuration) {
			c.Interfaces = []Interface{selecting(Interface{CIDR: "192.0.2.0/24"}), selecting(Interface{CIDR: "192.0.2.0/24"})}
		}, "interfaces[1].cidr", "cidr 192.0.2.0/24 is listed twice"},
		{"default route twice", func(c *Configuration) {
			c.Interfaces = []Interface{selecting(Interface{DefaultRoute: true}), selecting(Interface{DefaultRoute: true})}
		}, "interfaces[1].defaultRoute", "defaultRoute is listed twice"},
		{"mode", func(c *Configuration) { c.Interfaces[0].Mode = "fast" }, "interfaces[0].mode", `is "fast"`},
		{"primary and more", func(c *Configuration) { c.NodePortAddresses = []string{"10.0.0.0/8", Primary} }, "nodePortAddresses[1]", "stands alone"},
		{"node port address", func(c *Configuration) { c.NodePortAddresses[0] = "192.0.2.1" }, "nodePortAddresses[0]", "is not a prefix"},
		{"prefix with host bits", func(c *Configuration) { c.NodePortAddresses[0] = "192.0.2.1/24" }, "nodePortAddresses[0]", "192.0.2.0/24 is meant?"},
		{"mapped prefix", func(c *Configuration) { c.NodePortAddresses[0] = "::ffff:10.0.0.0/104" }, "nodePortAddresses[0]", "IPv4 prefix"},
		{"snat address", func(c *Configuration) { c.SNAT.Addresses[0] = "nat.example" }, "snat.addresses[0]", "is not an IP address"},
		{"snat multicast", func(c *Configuration) { c.SNAT.Addresses[0] = "224.0.0.1" }, "snat.addresses[0]", "cannot be the source"},
		{"snat with zone", func(c *Configuration) { c.SNAT.Addresses[0] = "fe80::1%eth0" }, "snat.addresses[0]", "without a zone"},
		{"snat twice", func(c *Configuration) { c.SNAT.Addresses = []string{"192.0.2.1", "192.0.2.1"} }, "snat.addresses[1]", "listed twice"},
		{"snat ports in node ports", func(c *Configuration) { c.SNAT.Ports = PortRange{32000, 40000} }, "snat.ports", "overlaps the node ports 30000-32767"},
		{"snat ports well known", func(c *Configuration) { c.SNAT.Ports = PortRange{80, 90} }, "snat.ports", "well-known"},
		{"protected in snat", func(c *Configuration) { c.ProtectedPorts[1] = 61500 }, "protectedPorts[1]", "lies in snat.ports"},
		{"checksums", func(c *Configuration) { c.Interfaces[0].TxChecksum = "nobody" }, "interfaces[0].txChecksum", `is "nobody"`},
		{"flow cache", func(c *Configuration) { c.FlowCache.Mode = "on" }, "flowCache.mode", `must be auto or off, is "on"`},
		{"hook", func(c *Configuration) { c.Interfaces[0].Hook = "tc" }, "interfaces[0].hook", `must be auto, xdp or tcx, is "tc"`},
		{"tcx without a flow cache", func(c *Configuration) { c.Interfaces[0].Hook = HookTCX }, "interfaces[0].hook", "needs flowCache.mode: auto"},
		{"tcx and generic XDP", func(c *Configuration) {
			c.FlowCache.Mode, c.Interfaces[0].Hook, c.Interfaces[0].Mode = FlowCacheAuto, HookTCX, ModeGeneric
		}, "interfaces[0].hook", "excludes mode generic"},
		{"frame size", func(c *Configuration) { c.PacketMemory.FrameSize = 1024 }, "packetMemory.frameSize", "must be auto, 2048 or 4096, is 1024"},
		{"dnat without marks", func(c *Configuration) { c.Forwarding.Mode, c.HostVeth.Mark = ForwardDNAT, 0 }, "forwarding.mode", "dnat needs hostVeth.mark"},
		{"forwarding mode", func(c *Configuration) { c.Forwarding.Mode = "teleport" }, "forwarding.mode", `must be nat, dnat, l2dsr, ipip, gue, is "teleport"`},
		{"reverse path filter", func(c *Configuration) { c.Forwarding.ReversePathFilter = "1" }, "forwarding.reversePathFilter", "must be auto, strict, loose or off, is \"1\""},
		{"no path MTU", func(c *Configuration) { c.Forwarding.MinPathMTU = 0 }, "forwarding.minPathMTU", "must be 68 to 1500"},
		{"two prefixes of a family", func(c *Configuration) { c.HostVeth.Prefixes[1] = "10.9.0.0/24" }, "hostVeth.prefixes[1]", "second IPv4 prefix"},
		{"prefix too small", func(c *Configuration) { c.HostVeth.Prefixes[0] = "10.9.0.0/30" }, "hostVeth.prefixes[0]", "too small"},
		{"prefix loopback", func(c *Configuration) { c.HostVeth.Prefixes[0] = "127.0.0.0/24" }, "hostVeth.prefixes[0]", "cannot be routed"},
		{"prefix link-local IPv6", func(c *Configuration) { c.HostVeth.Prefixes[1] = "fe80::/64" }, "hostVeth.prefixes[1]", "cannot be routed"},
		{"kube-proxy's mark", func(c *Configuration) { c.HostVeth.Mark = 0x4010 }, "hostVeth.mark", "0x4010 has a bit of kube-proxy's (0x4000)"},
		{"the main table", func(c *Configuration) { c.HostVeth.Table = 254 }, "hostVeth.table", "unused routing table, is 254"},
		{"a mark for two purposes", func(c *Configuration) { c.HostVeth.Mark, c.HostVeth.ProbeMark = 0x10, 0x30 }, "hostVeth.probeMark", "0x30 has a bit of hostVeth.mark (0x10)"},
		{"kube-proxy's mark for probes", func(c *Configuration) { c.HostVeth.ProbeMark = 0x4000 }, "hostVeth.probeMark", "0x4000 has a bit of kube-proxy's (0x4000)"},
		{"a table for two purposes", func(c *Configuration) { c.HostVeth.Table, c.HostVeth.ProbeTable = 7765, 7765 }, "hostVeth.probeTable", "7765 is hostVeth.table"},
		{"no table for probes", func(c *Configuration) { c.HostVeth.ProbeTable = 0 }, "hostVeth.probeTable", "unused routing table"},
		{"no table", func(c *Configuration) { c.HostVeth.Table = 0 }, "hostVeth.table", "unused routing table"},
		{"endpoint port twice", func(c *Configuration) { c.ProtectedEndpointPorts = []uint16{22, 22} }, "protectedEndpointPorts[1]", "listed twice"},
		{"protected twice", func(c *Configuration) { c.ProtectedPorts = []uint16{22, 22} }, "protectedPorts[1]", "listed twice"},
		{"few flows", func(c *Configuration) { c.Conntrack.MaxFlows = 10 }, "conntrack.maxFlows", "must be auto or 1024"},
		{"relative table", func(c *Configuration) { c.Conntrack.Path = "flows" }, "conntrack.path", "absolute"},
		{"meaning of SIGTERM", func(c *Configuration) { c.OnStop = "stay" }, "onStop", `must be auto, detach or leave, is "stay"`},
		{"restart without a hold", func(c *Configuration) { c.OnStop = StopLeave; c.Death.HoldSeconds = 0 }, "onStop", "needs death.holdSeconds"},
		{"negative hold", func(c *Configuration) { c.Death.HoldSeconds = -1 }, "death.holdSeconds", "must be 0 to"},
		{"negative time", func(c *Configuration) { c.Conntrack.TakeoverSeconds = -1 }, "conntrack.takeoverSeconds", "must be 0 to"},
		{"long time", func(c *Configuration) { c.Conntrack.EndpointRemovalGraceSeconds = 1 << 30 }, "conntrack.endpointRemovalGraceSeconds", "must be 0 to"},
		{"many workers", func(c *Configuration) { c.Workers = Workers{Count: steer.MaxQueues + 1} }, "workers.count", "must be auto or 1 to 64"},
		{"fewer CPUs than workers", func(c *Configuration) { c.Workers.Count = 3 }, "workers.cpus", "2 CPUs for 3 workers"},
		{"no socket", func(c *Configuration) { c.Admin.Socket = "" }, "admin.socket", "absolute"},
		{"long socket", func(c *Configuration) { c.Admin.Socket = "/" + strings.Repeat("a", 107) }, "admin.socket", "is 108 bytes long"},
		{"socket is table", func(c *Configuration) { c.Conntrack.Path = c.Admin.Socket }, "conntrack.path", "same file"},
		{"address without host", func(c *Configuration) { c.MetricsBindAddress = ":9464" }, "metricsBindAddress", "did you mean 0.0.0.0:9464?"},
		{"address with name", func(c *Configuration) { c.MetricsBindAddress = "localhost:9464" }, "metricsBindAddress", "not an address and port"},
		{"port zero", func(c *Configuration) { c.HealthzBindAddress = "0.0.0.0:0" }, "healthzBindAddress", "must not be 0"},
		{"listener among snat ports", func(c *Configuration) { c.HealthzBindAddress = "0.0.0.0:61001" }, "healthzBindAddress", "lies in snat.ports"},
		{"same listener", func(c *Configuration) { c.HealthzBindAddress = "0.0.0.0:9464" }, "healthzBindAddress", "collides"},
		{"page for strangers", func(c *Configuration) { c.StatusPage = StatusPage{BindAddress: "0.0.0.0:9466"} }, "statusPage.bindAddress", "0.0.0.0:9466 is not loopback and needs statusPage.tokenFile"},
		{"page on the metrics", func(c *Configuration) { c.StatusPage.BindAddress = "127.0.0.1:9464" }, "statusPage.bindAddress", "collides with metricsBindAddress"},
		{"page with a relative token", func(c *Configuration) { c.StatusPage = StatusPage{"127.0.0.1:9466", "token"} }, "statusPage.tokenFile", "must be an absolute path"},
		{"profiling nowhere", func(c *Configuration) { c.MetricsBindAddress = "" }, "enableProfiling", "needs metricsBindAddress"},
		{"profiling for strangers", func(c *Configuration) { c.MetricsBindAddress = "0.0.0.0:9464" }, "enableProfiling", "on a loopback address, not 0.0.0.0:9464"},
		{"deny lists of a name", func(c *Configuration) { c.DenyLists = []DenyList{{Name: "a", File: "/a"}, {Name: "a", File: "/b"}} }, "denyLists[1].name", "must be a name of its own"},
		{"relative deny list", func(c *Configuration) { c.DenyLists = []DenyList{{Name: "a", File: "a"}} }, "denyLists[0].file", "must be an absolute path"},
		{"deny list that no Service can name", func(c *Configuration) { c.DenyLists = []DenyList{{Name: "a,b", File: "/a"}} }, "denyLists[0].name", "must have no comma"},
		{"deny list of nobody", func(c *Configuration) { c.DenyLists = []DenyList{{Name: "a", File: "/a", Scope: "pods"}} }, "denyLists[0].scope", "must be node or services"},
		{"denied clients", func(c *Configuration) { c.DenyLists = []DenyList{{Name: "a", File: "/a", Established: "drop"}} }, "denyLists[0].established", "must be end or keep"},
		{"collector by name", func(c *Configuration) { c.FlowLog.IPFIXCollector = "collector:4739" }, "flowLog.ipfixCollector", "must be an address and a port"},
		{"relative flow log", func(c *Configuration) { c.FlowLog.JSONFile = "flows.json" }, "flowLog.jsonFile", "must be an absolute path"},
		{"no records", func(c *Configuration) { c.FlowLog.MaxPerSecond = 0 }, "flowLog.maxPerSecond", "must be 1 to 100000, is 0"},
		{"deny list of nothing", func(c *Configuration) { c.DenyLists = []DenyList{{Name: "a"}} }, "denyLists[0].file", "or configMap be given"},
		{"deny list of two", func(c *Configuration) { c.DenyLists = []DenyList{{Name: "a", File: "/a", ConfigMap: "a/b"}} }, "denyLists[0].configMap", "give one"},
		{"deny list of any namespace", func(c *Configuration) { c.DenyLists = []DenyList{{Name: "a", ConfigMap: "drop"}} }, "denyLists[0].configMap", "must be NAMESPACE/NAME"},
		{"deny list of no API server", func(c *Configuration) { c.DenyLists = []DenyList{{Name: "a", ConfigMap: "a/b"}} }, "denyLists[0].configMap", "needs discovery.kubernetes"},
		{"negative rate", func(c *Configuration) { c.Flood.NewConnectionsPerPrefix = -1 }, "flood.newConnectionsPerPrefix", "must be 0 (no limit) to"},
		{"wide prefix", func(c *Configuration) { c.Flood.IPv4PrefixLength = 16 }, "flood.ipv4PrefixLength", "must be 24 to 32, is 16"},
		{"prefix beyond a network", func(c *Configuration) { c.Flood.IPv6PrefixLength = 65 }, "flood.ipv6PrefixLength", "must be 48 to 64, is 65"},
		{"drain that ends before it begins", func(c *Configuration) { c.Drain.NotReadySeconds = -1 }, "drain.notReadySeconds", "must be 0 to"},
		{"drain without an end", func(c *Configuration) { c.Drain.TimeoutSeconds = 1 << 30 }, "drain.timeoutSeconds", "must be 0 to"},
		{"log level", func(c *Configuration) { c.Logging.Level = "loud" }, "logging.level", `is "loud"`},
		{"log format", func(c *Configuration) { c.Logging.Format = "xml" }, "logging.format", `is "xml"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := valid(t)
			tt.edit(c)
			errs := c.Validate()
			for _, e := range errs {
				if e.Path == tt.path && strings.Contains(e.Msg, tt.want) {
					if e.Origin == "" && !strings.Contains(tt.name, "two sources") {
						t.Errorf("%v does not say where", e)
					}
					return
				}
			}
			t.Errorf("got %v\nwant %s: ...%s...", errs, tt.path, tt.want)
		})
	}
}

func TestValidateAccepts(t *testing.T) {
	for name, edit := range map[string]func(*Configuration){
		"page on loopback":           func(c *Configuration) { c.StatusPage.BindAddress = "[::1]:9466" },
		"page with a token":          func(c *Configuration) { c.StatusPage = StatusPage{"0.0.0.0:9466", "/t"} },
		"no servers":                 func(c *Configuration) { c.MetricsBindAddress, c.HealthzBindAddress, c.EnableProfiling = "", "", false },
		"all addresses":              func(c *Configuration) { c.NodePortAddresses = nil },
		"nothing protected":          func(c *Configuration) { c.ProtectedPorts = nil },
		"anonymous table":            func(c *Configuration) { c.Conntrack.Path = "" },
		"one host prefix":            func(c *Configuration) { c.HostVeth.Prefixes = c.HostVeth.Prefixes[:1] },
		"loopback among":             func(c *Configuration) { c.MetricsBindAddress = "127.0.0.1:61001" },
		"dotted node name":           func(c *Configuration) { c.NodeName = "edge-1.example.com" },
		"interface by cidr":          func(c *Configuration) { c.Interfaces[0] = selecting(Interface{CIDR: "2001:db8::/64"}) },
		"interface by default route": func(c *Configuration) { c.Interfaces[0] = selecting(Interface{DefaultRoute: true}) },
		"vlan interface":             func(c *Configuration) { c.Interfaces[0].Name = "eth0.100" },
		"CPUs and no count":          func(c *Configuration) { c.Workers = Workers{CPUs: CPUs{7}} },
		"one port":                   func(c *Configuration) { c.SNAT.Ports = PortRange{61000, 61000} },
		"same port, 2 hosts":         func(c *Configuration) { c.HealthzBindAddress = "192.0.2.1:9464" },
	} {
		t.Run(name, func(t *testing.T) {
			c := valid(t)
			edit(c)
			if errs := c.Validate(); len(errs) > 0 {
				t.Error(errs)
			}
		})
	}
}

func TestValidateSaysAllThatIsWrongAtOnceWithLines(t *testing.T) {
	c := parse(t, strings.ReplaceAll(strings.ReplaceAll(full, "mode: nat", "mode: tunnel"), "name: eth1", "name: eth0"))
	want := `weir.yaml:6: interfaces[1].name: eth0 is listed twice
weir.yaml:9: forwarding.mode: must be nat, dnat, l2dsr, ipip, gue, is "tunnel"`
	if got := c.Validate().Error(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
