package config

// Default returns the configuration before file and flags.
func Default() *Configuration {
	return &Configuration{
		APIVersion:        APIVersion,
		Kind:              Kind,
		NodePortAddresses: []string{Primary},
		SNAT:              SNAT{Addresses: []string{}},
		Forwarding:        Forwarding{Mode: ForwardNAT, MinPathMTU: 1280, ReversePathFilter: ReversePathAuto},
		HostVeth:          HostVeth{Prefixes: []string{"169.254.77.0/24", "fd77:7765:6972::/64"}, Mark: 0x10, Table: 7765, ProbeMark: 0x1000, ProbeTable: 7766},
		ProtectedPorts:    []uint16{22, 6443, 10250},
		// SSH, etcd, the API server, the node exporter, the kubelet, kube-proxy,
		// controllers and scheduler.
		ProtectedEndpointPorts: []uint16{22, 2379, 2380, 6443, 9100, 10250, 10255, 10256, 10257, 10258, 10259},
		Conntrack: Conntrack{
			Path:                        "/run/weir/conntrack",
			TakeoverSeconds:             3600,
			EndpointRemovalGraceSeconds: 10,
		},
		Flood:        Flood{IPv4PrefixLength: 24, IPv6PrefixLength: 56},
		HealthChecks: HealthChecks{Passive: PassiveAuto},
		Limits:       Limits{ServicePercent: 25, NamespacePercent: 50},
		// Together below the 30 s that the kubelet waits by default.
		Drain:              Drain{NotReadySeconds: 10, TimeoutSeconds: 15},
		Death:              Death{HoldSeconds: 10},
		OnStop:             StopDetach,
		Workers:            Workers{StallSeconds: 12},
		Admin:              Admin{Socket: "/run/weir/weir.sock", GroupAccess: GroupAccessRead},
		StateDir:           "/var/lib/weir",
		MetricsBindAddress: "127.0.0.1:9464",
		MetricsServices:    200,
		HealthzBindAddress: "0.0.0.0:9465",
		Logging:            Logging{Level: "info", Format: "text"},
		Interfaces:         []Interface{},
		FlowCache:          FlowCache{Mode: FlowCacheAuto},
		FlowLog:            FlowLog{MaxPerSecond: 10_000},
		Announce: Announce{
			Speaker: AnnounceOff, Peers: []Peer{}, Prefixes: []string{}, Communities: []string{}, LargeCommunities: []string{},
			MaxAddresses: 1000, SettleSeconds: 1, LingerMilliseconds: 1000, DrainSeconds: 5, ResetAfterSeconds: 30, Objects: []string{}, ObjectNamespaces: []string{}, ObjectSecrets: []string{}, KernelTable: 177, KernelProtocol: 119,
			L2: L2{Interfaces: []string{}},
		},
		origin: map[string]string{},
	}
}
