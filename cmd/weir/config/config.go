// Package config is Weir's configuration: the file (kind WeirConfiguration),
// the flags that override it, and the validation of both.
//
// The order of precedence is flag, then environment (NODE_NAME alone), then
// file, then default. [Configuration.Validate] checks the configuration by
// itself, [Configuration.CheckHost] against the machine. Both return all errors,
// each with the path of the field and, if known, the line of the file or the
// flag that set it.
package config

//go:generate go test -run ^TestReferenceIsCurrent$ -update .

// The type of the file.
const (
	APIVersion = "weir.dev/v1alpha1"
	Kind       = "WeirConfiguration"
)

// Attach modes of an interface, from best to most widely available.
const (
	ModeAuto     = "auto"     // the best that the driver grants
	ModeZeroCopy = "zerocopy" // the NIC writes into Weir's memory
	ModeNative   = "native"   // XDP in the driver, a copy per packet
	ModeGeneric  = "generic"  // XDP after the kernel made an skb: any driver, slow
)

// Values of Interface.TxChecksum.
const (
	TxChecksumAuto     = "auto"
	TxChecksumMetadata = "metadata"
	TxChecksumSoftware = "software"
)

// Forwarding modes.
const (
	ForwardNAT   = "nat"   // DNAT and SNAT: answers return through Weir
	ForwardDNAT  = "dnat"  // DNAT: keeps the client's address; answers must return through Weir
	ForwardL2DSR = "l2dsr" // DSR: only MAC addresses change
	ForwardIPIP  = "ipip"  // DSR: RFC 2003 encapsulation
	ForwardGUE   = "gue"   // DSR: Generic UDP Encapsulation
)

// Reverse path filters, see [Forwarding].
const (
	ReversePathAuto   = "auto"
	ReversePathStrict = "strict"
	ReversePathLoose  = "loose"
	ReversePathOff    = "off"
)

// Primary, alone in nodePortAddresses, means the node's primary addresses.
const Primary = "primary"

// MaxFileSize bounds the configuration file, in bytes.
const MaxFileSize = 1 << 20

// Configuration is the whole configuration of a Weir process.
type Configuration struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`

	// NodeName is the name of this node in the cluster or in the manifests. It
	// decides which endpoints are local and, by the labels of the Node, which
	// are in the same zone. It must be the name that EndpointSlices carry: with
	// a wrong name no endpoint is near. Default: NODE_NAME, else the hostname in
	// lower case.
	NodeName string `json:"nodeName"`

	Discovery Discovery `json:"discovery"`

	// ServiceProxyName selects the Services whose label
	// service.kubernetes.io/service-proxy-name has this value, and no
	// others: kube-proxy ignores these. The default "" selects the
	// Services without the label, as kube-proxy does.
	ServiceProxyName string `json:"serviceProxyName"`

	// LoadBalancerClass restricts load balancer IPs to Services with this
	// spec.loadBalancerClass. Node ports are served for every class. The
	// default "" serves all load balancer IPs, as kube-proxy does.
	LoadBalancerClass string `json:"loadBalancerClass"`

	// Interfaces are those on which packets of clients arrive, and those that
	// lead to endpoints. Packets to an endpoint behind another interface pass
	// through the kernel (see hostVeth), which costs more per packet. A bond
	// stands for its members, a VLAN interface for the parent and the tag.
	Interfaces []Interface `json:"interfaces"`

	// NodePortAddresses are the addresses of the node on which node ports are
	// served: "primary" alone, or CIDRs, as for kube-proxy. CIDRs of a single
	// family mean no address of the other. kube-proxy then serves node ports on
	// all addresses of the other, which exposes them where nobody has asked for
	// it. The empty list means every address of the attached interfaces, which
	// exposes node ports to all their networks. Primary addresses are those of the Node object, one
	// per family, InternalIP before ExternalIP, if this host holds them.
	// Otherwise the source address of the default route is used. `weir status`
	// shows the addresses with the reason for each.
	NodePortAddresses []string `json:"nodePortAddresses"`

	SNAT       SNAT       `json:"snat"`
	Forwarding Forwarding `json:"forwarding"`
	HostVeth   HostVeth   `json:"hostVeth"`

	// ProtectedPorts are never load balanced on the addresses of the node,
	// whatever a Service asks for, so that the node stays reachable for repair.
	// A Service on such a port stays with the kernel. So do ports of these addresses on which
	// Weir itself listens.
	ProtectedPorts []uint16 `json:"protectedPorts"`

	// ProtectedEndpointPorts are ports of programs of the node, such as the SSH
	// server, etcd, the kubelet and the node exporter. An endpoint at an address of
	// the node with such a port gets no packets from Weir on this node: its packets
	// would enter by the interface weir-host, and so pass rules of the firewall that
	// name an attached interface or clients' addresses. Endpoints with other ports,
	// such as those of an ingress controller in the host's network, are served.
	ProtectedEndpointPorts []uint16 `json:"protectedEndpointPorts"`

	// ClusterIPs serves ClusterIPs for packets that arrive on an attached
	// interface, from routers that send the service range to this node. Pods on
	// this node use kube-proxy in either case.
	ClusterIPs bool `json:"clusterIPs"`

	// ExternalIPs serves spec.externalIPs. Off by default, because every author of a Service could
	// claim any address (CVE-2020-8554; deprecated by KEP-5707). A port that is also claimed by
	// another kind of address of another Service is left to that Service.
	ExternalIPs bool `json:"externalIPs"`

	Conntrack    Conntrack    `json:"conntrack"`
	DenyLists    []DenyList   `json:"denyLists"`
	Flood        Flood        `json:"flood"`
	HealthChecks HealthChecks `json:"healthChecks"`
	Limits       Limits       `json:"limits"`
	Drain        Drain        `json:"drain"`
	Death        Death        `json:"death"`

	// OnStop is the meaning of SIGTERM. detach drains and removes everything from
	// the host. leave is for restarts and upgrades: Weir ends at once and leaves
	// everything in place, and connections wait up to death.holdSeconds for the next
	// process. SIGUSR2 always leaves, and "weir stop" always detaches. A reload takes
	// leave over unless death.holdSeconds was 0 at the start.
	//
	// auto is for Pods of a DaemonSet, whose name and namespace are DAEMONSET_NAME
	// and POD_NAMESPACE in the environment. It is detach if the DaemonSet, the
	// namespace or the Node is deleted, or the DaemonSet does not select the node any
	// more, and leave otherwise, also if the API server does not answer within 2 s.
	// Without a cluster, these variables or a hold auto is detach.
	OnStop string `json:"onStop"`

	Announce  Announce  `json:"announce"`
	Workers   Workers   `json:"workers"`
	FlowCache FlowCache `json:"flowCache"`

	PacketMemory PacketMemory `json:"packetMemory"`

	Admin Admin `json:"admin"`

	// StateDir is the directory of the last known state of the cluster, and of the last answers of the DNS
	// for endpoints by name, for a start while the API server or the resolver is unreachable. It should
	// survive a reboot. With "" nothing is saved, and such a start serves nothing.
	StateDir string `json:"stateDir"`

	// MetricsBindAddress is the address of /metrics, in the text format of Prometheus; ""
	// disables it. The default is loopback, because metrics contain interfaces and addresses.
	MetricsBindAddress string `json:"metricsBindAddress"`

	// MetricsServices is the number of Services with metrics of their own, those with the most
	// new connections and drops; 0 is none.
	MetricsServices int `json:"metricsServices"`

	// HealthzBindAddress is the address of /healthz, /livez and /readyz; ""
	// disables them. The default is every address, because external load
	// balancers send the probes. Port 10256 is left to kube-proxy, so that both
	// can run.
	HealthzBindAddress string `json:"healthzBindAddress"`

	// EnableProfiling serves /debug/pprof on the metrics address, which must
	// then be a loopback address: profiles expose the memory of the process, and
	// a CPU profile costs the workers a few percent while it runs.
	EnableProfiling bool `json:"enableProfiling"`

	FlowLog    FlowLog    `json:"flowLog"`
	StatusPage StatusPage `json:"statusPage"`
	Logging    Logging    `json:"logging"`

	// origin is the origin of each value by field path: "FILE:LINE" or
	// "--flag"; defaults have no entry.
	origin map[string]string
	// reload creates this configuration again from file and flags.
	reload func() (*Configuration, error)
	// attached and selections are results of CheckHost, if resolved is true.
	attached   []Interface
	selections []Selection
	resolved   bool
	// resumed is true where they are those of the process before.
	resumed bool
}

// Discovery is the source of Services: manifests or kubernetes must be set.
type Discovery struct {
	Manifests  *Manifests  `json:"manifests,omitempty"`
	Kubernetes *Kubernetes `json:"kubernetes,omitempty"`
	Names      *Names      `json:"names,omitempty"`
}

// Names is the resolution of names in EndpointSlices of addressType FQDN.
type Names struct {
	// Resolver is the address, or address and port, of a recursive DNS resolver. Without it those of
	// /etc/resolv.conf are asked, which is read again as it changes.
	Resolver string `json:"resolver,omitempty"`
	// InCluster resolves names of EndpointSlices of an API server, too. By default only those of manifests
	// are resolved: whoever writes a name may have it lead anywhere.
	InCluster bool `json:"inCluster,omitempty"`
}

// Manifests is the source that needs no cluster: Kubernetes objects in files.
type Manifests struct {
	// Path is a file or a directory of YAML or JSON, watched for changes.
	Path string `json:"path"`
}

// FlowCache is the forwarding of established flows by a BPF program in the
// kernel, which reads the flow table.
type FlowCache struct {
	// Mode is auto or off. With auto the kernel forwards TCP and UDP packets of
	// established flows, but those in gue over IPv6, on interfaces without zero
	// copy, if it is Linux 5.12 or later, on x86-64. The flow table is then in
	// memory of the kernel, which cannot be swapped out. With off Weir forwards
	// all packets, and takes them at hook xdp.
	Mode string `json:"mode"`
}

// PacketMemory is the memory of packets inside Weir (the UMEM).
type PacketMemory struct {
	// FrameSize is the size of a frame in bytes: auto, 2048 or 4096. auto is
	// 4096 if zero copy is possible or the MTU is above 1536, else 2048, which
	// is 4 % cheaper per packet. With zero copy and frames of 2,048 bytes some
	// NICs (igb) lose packets of more than 1,024 bytes.
	FrameSize AutoInt `json:"frameSize"`
}

// Forwarding is how packets reach endpoints.
type Forwarding struct {
	// Mode is the default mode: nat, dnat, l2dsr, ipip or gue. A Service selects
	// another with the annotation weir.dev/forwarding-mode.
	//
	// With nat endpoints see an address of Weir. With dnat they see the client's
	// address, and answers must return through this node. Answers of pods behind
	// the kernel and of listeners on the node do, by packet marks (see hostVeth).
	// For endpoints behind an attached interface nat is used instead. An endpoint
	// on another node must reach clients through this node, which is never so for
	// clients on the network of the endpoint. Services with externalTrafficPolicy:
	// Local use dnat even if the default is nat.
	//
	// l2dsr, ipip and gue are direct server return: an endpoint receives the
	// client's packet and answers the client directly. It must have the address of
	// the frontend (on loopback) and listen on the frontend's port. Node ports and cluster IPs
	// use nat, endpoints on this node dnat. lb/README.md has the details.
	Mode string `json:"mode"`
	// GUEZeroChecksum omits the UDP checksum of gue over IPv6, which saves
	// reading every packet. Routers on the path and the receiver must accept such
	// packets (RFC 6936).
	GUEZeroChecksum bool `json:"gueZeroChecksum"`
	// MinPathMTU is the smallest path MTU, in bytes, that an ICMP error may report
	// to an endpoint in mode nat. An endpoint sees one address for all clients and
	// stores one path MTU for it, so that a single client could reduce it for all
	// others. For IPv6 it is at least 1,280. A client with a smaller path MTU needs
	// a smaller value here, or announces a smaller TCP segment size.
	MinPathMTU uint16 `json:"minPathMTU"`
	// ReversePathFilter drops new flows, and pings of load balancer addresses, by
	// the route back to their source (RFC 3704; rp_filter of Linux). strict: the
	// route must use the interface on which the packet arrived. loose: there must
	// be a route, and not into networks of the node (bridges, veths and overlays
	// of pods). auto: strict for clients that loadBalancerSourceRanges admits,
	// loose for others; sources without a route, or with a route in the direction
	// of a default route, pass. off: no filter. Packets through the kernel of the
	// node are filtered by the kernel.
	ReversePathFilter string `json:"reversePathFilter"`
}

// HostVeth is the veth pair into the kernel's stack, for endpoints behind the
// kernel: pods on this node, overlays, listeners of the node.
type HostVeth struct {
	// Prefixes, at most one per family, contain the SNAT sources towards such
	// endpoints. They are used inside the node only (a masquerade rule translates
	// packets that leave it), and must not be in use otherwise.
	Prefixes []string `json:"prefixes"`
	// Mark is the bits of packet mark and connection mark that return answers to
	// Weir in mode dnat. No other program may use them. The default does not
	// collide with kube-proxy (0x4000, 0x8000), Cilium (0xf00 and the upper half),
	// Calico (0xffff0000), AWS's VPC CNI (0x80), the portmap plugin (0x2000),
	// Tailscale (0xff0000) and wg-quick (51820). With 0 nat replaces dnat.
	Mark Mark `json:"mark"`
	// Table is the number of the routing table that leads marked packets to the
	// veth pair. It must be unused.
	Table int `json:"table"`
	// ProbeMark is the bits of the packet mark by which probes of health checks in the modes
	// l2dsr, ipip and gue take the path of client packets. No other program may use them. With 0
	// such endpoints are not probed.
	ProbeMark Mark `json:"probeMark"`
	// ProbeTable is the number of the routing table that leads these probes to the veth pair
	// weir-probe. It must be unused.
	ProbeTable int `json:"probeTable"`
}

// Conntrack is the flow table (connection tracking).
type Conntrack struct {
	// MaxFlows is the capacity in connections. The memory, about 190 bytes each,
	// is allocated at the start and never grows. auto uses at most 5 % of the
	// memory of the machine. When the table is full, half-open connections make
	// room first; if all are established, new connections are dropped.
	MaxFlows AutoInt `json:"maxFlows"`
	// Path is the file of the table, on a memory file system; the next process
	// opens it again. With "" the table is in anonymous memory, and a restart loses
	// every flow.
	Path string `json:"path"`
	// TakeoverSeconds is the time after the start in which TCP packets of unknown
	// flows go to the kernel, so that connections served by kube-proxy continue.
	// After that they are answered with RST. 0 answers RST at once.
	TakeoverSeconds int `json:"takeoverSeconds"`
	// EndpointRemovalGraceSeconds is the time for which an endpoint must be missing
	// from a Service port, in a synced view, before UDP flows of that Service port
	// move to another endpoint and weir.dev/on-endpoint-removal takes effect. UDP flows
	// also move after that time from a listed endpoint that does not serve. A
	// short time relies more on the source; a long time sends datagrams to an
	// endpoint that no longer exists.
	EndpointRemovalGraceSeconds int `json:"endpointRemovalGraceSeconds"`
}

// Drain is the duration of a shutdown by SIGTERM. A second SIGTERM, or SIGINT,
// ends it at once. A supervisor must wait longer than both times together before
// it kills the process (terminationGracePeriodSeconds, TimeoutStopSec).
type Drain struct {
	// NotReadySeconds is the time for which new connections are still served while
	// health endpoints (/healthz, /readyz, healthCheckNodePorts) already fail. It
	// should exceed the interval times the threshold of the health checks of load
	// balancers and routers in front.
	NotReadySeconds int `json:"notReadySeconds"`
	// TimeoutSeconds is the time for which established connections may continue
	// after that. New connections go to the kernel meanwhile, where kube-proxy
	// serves them or they are refused. The drain ends early when no connection is
	// left.
	TimeoutSeconds int `json:"timeoutSeconds"`
}

// Death is the time between a process that was killed and the next process.
type Death struct {
	// HoldSeconds is the time for which the XDP program drops packets that belong
	// to Weir while no process is there. Established connections then continue with
	// the next process, and a client sends a SYN again after 1 and 3 seconds. It
	// should exceed the time that a supervisor needs to start Weir again. After it
	// the kernel has these packets: kube-proxy serves new connections, and
	// established ones end with RST. With 0 the kernel has them at once, with
	// hook tcx half a second later.
	HoldSeconds int `json:"holdSeconds"`
}

// Workers are the packet loops: one OS thread each.
type Workers struct {
	// Count is the number of workers. auto is the largest number of receive queues
	// of an attached interface, at most the number of usable CPUs. Packets of queues
	// without a worker go to the kernel; a warning has the command that reduces the
	// number of queues.
	Count AutoInt `json:"count"`
	// CPUs are the CPUs of the workers, in worker order. auto uses a core per
	// worker, near the memory node of the interfaces, and leaves CPU 0 to the rest
	// of the machine if there are enough cores.
	CPUs CPUs `json:"cpus"`
	// StallSeconds is the time without a finished round of a worker after which Weir
	// starts again, at least 6. Connections wait as after a crash, up to
	// death.holdSeconds; with a hold of 0, and within 10 minutes of the last such start,
	// Weir does not start again. 0 is off: the worker is only reported. A systemd watchdog
	// (after 15 s) and a liveness probe (after 25 s or more) end Weir instead, if they are
	// first.
	StallSeconds int `json:"stallSeconds"`
}

// Logging is the log, which goes to standard error.
type Logging struct {
	// Level is the lowest level that is logged: debug, info, warn or error.
	Level string `json:"level"`
	// Format is text or json.
	Format string `json:"format"`
}
