// Package config is Weir's configuration: the file (kind WeirConfiguration),
// the flags that override it, and everything that can be said about whether
// it is right.
//
// The order of precedence is flag, then environment (NODE_NAME alone), then
// file, then default. [Configuration.Validate] judges the configuration by
// itself, [Configuration.CheckHost] against the machine; both return every
// error that they find, each with the path of its field and, where it is
// known, the line of the file or the flag that it came from.
package config

//go:generate go test -run ^TestReferenceIsCurrent$ -update .

import (
	"time"
)

// The type of the file.
const (
	APIVersion = "weir.dev/v1alpha1"
	Kind       = "WeirConfiguration"
)

// Attach modes of an interface, from best to most widely available.
const (
	ModeAuto     = "auto"     // the best that the driver grants
	ModeZeroCopy = "zerocopy" // the NIC writes into Weir's memory
	ModeNative   = "native"   // XDP in the driver, one copy per packet
	ModeGeneric  = "generic"  // XDP after the kernel made an skb: any driver, slow
)

// Who completes partial checksums on the way out of an interface.
const (
	TxChecksumAuto     = "auto"
	TxChecksumMetadata = "metadata"
	TxChecksumSoftware = "software"
)

// Forwarding modes.
const (
	ForwardNAT   = "nat"   // DNAT and SNAT: answers return through Weir
	ForwardDNAT  = "dnat"  // the client's address is kept; the way back must lead through Weir
	ForwardL2DSR = "l2dsr" // only MAC addresses change; the endpoint answers by itself
	ForwardIPIP  = "ipip"  // RFC 2003 encapsulation; the endpoint answers by itself
	ForwardGUE   = "gue"   // Generic UDP Encapsulation; the endpoint answers by itself
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

// Configuration is the whole configuration of one Weir.
type Configuration struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`

	// NodeName is this node's name in the cluster or in the manifests. It
	// decides which endpoints are local and, by the Node's labels, which
	// share its zone: a wrong name silently costs all topology, so it must
	// be the name that EndpointSlices carry. Default: NODE_NAME, else the
	// hostname in lower case.
	NodeName string `json:"nodeName"`

	Discovery Discovery `json:"discovery"`

	// ServiceProxyName takes the Services whose label
	// service.kubernetes.io/service-proxy-name has this value, and no
	// others: kube-proxy leaves those alone. The default "" takes the
	// Services without the label, as kube-proxy does.
	ServiceProxyName string `json:"serviceProxyName"`

	// LoadBalancerClass limits the load balancer IPs that are served to
	// those of Services with this spec.loadBalancerClass; their node ports
	// are served in any case. The default "" serves them all, as kube-proxy
	// does.
	LoadBalancerClass string `json:"loadBalancerClass"`

	// Interfaces are those on which clients' packets arrive, and those by
	// which endpoints are reached directly. An endpoint that is reached by
	// an interface not listed here goes through the kernel (see HostVeth):
	// it works, at the kernel's price per packet. A bond stands for its
	// members, a VLAN interface for its parent and its tag.
	Interfaces []Interface `json:"interfaces"`

	// NodePortAddresses are the node's addresses on which node ports are
	// served, as for kube-proxy: "primary" alone, or CIDRs; the empty list
	// is every address of the attached interfaces. More addresses are more
	// ways in, also from networks that were not meant. Primary are the
	// addresses of the Node object, one per family, InternalIP before
	// ExternalIP, where this host holds them; else the host's source address
	// towards the default route. `weir status` has the addresses and reasons.
	NodePortAddresses []string `json:"nodePortAddresses"`

	SNAT       SNAT       `json:"snat"`
	Forwarding Forwarding `json:"forwarding"`
	HostVeth   HostVeth   `json:"hostVeth"`

	// ProtectedPorts are never taken on the node's own addresses, whatever
	// a Service says: the ways by which the node is repaired. A Service on
	// such a port stays with the kernel.
	ProtectedPorts []uint16 `json:"protectedPorts"`

	// ClusterIPs serves ClusterIPs for packets that arrive on an attached
	// interface (routers that send the service range to this node). Pods on
	// this node keep using kube-proxy either way.
	ClusterIPs bool `json:"clusterIPs"`

	// ExternalIPs serves spec.externalIPs. Off by default: whoever may
	// write a Service could claim any address with it (CVE-2020-8554;
	// deprecated by KEP-5707).
	ExternalIPs bool `json:"externalIPs"`

	Conntrack Conntrack `json:"conntrack"`
	Drain     Drain     `json:"drain"`
	Workers   Workers   `json:"workers"`

	PacketMemory PacketMemory `json:"packetMemory"`

	Admin Admin `json:"admin"`

	// StateDir is where the last known state of the cluster is kept, for a
	// start while the API server is away. It must outlive a reboot to be of
	// use after one. "" keeps nothing: such a start then serves nothing.
	StateDir string `json:"stateDir"`

	// MetricsBindAddress is where /metrics is served, in Prometheus' text
	// format; "" serves it nowhere. The default is loopback: the counters
	// name interfaces and addresses.
	MetricsBindAddress string `json:"metricsBindAddress"`

	// HealthzBindAddress is where /healthz, /livez and /readyz are served;
	// "" serves them nowhere. The default is every address, since the load
	// balancers that ask stand outside. kube-proxy's 10256 is left free so
	// that both may run.
	HealthzBindAddress string `json:"healthzBindAddress"`

	// EnableProfiling serves /debug/pprof on the metrics address, which must
	// be a loopback address then: whoever may ask gets the process's memory,
	// and a CPU profile costs the workers a few percent while it runs.
	EnableProfiling bool `json:"enableProfiling"`

	Logging Logging `json:"logging"`

	// origin says, per field path, where the value came from: "FILE:LINE"
	// or "--flag"; nothing for defaults.
	origin map[string]string
	// reload makes this configuration anew from file and flags.
	reload func() (*Configuration, error)
}

// Discovery says where Services come from: exactly one of its fields is set.
type Discovery struct {
	Manifests  *Manifests  `json:"manifests,omitempty"`
	Kubernetes *Kubernetes `json:"kubernetes,omitempty"`
}

// Manifests is the source that needs no cluster: Kubernetes objects in files.
type Manifests struct {
	// Path is a file or a directory of YAML or JSON, watched for change.
	Path string `json:"path"`
}

// Kubernetes is the source that watches an API server.
type Kubernetes struct {
	// Kubeconfig is the path of a kubeconfig; "" is the in-cluster account.
	Kubeconfig string `json:"kubeconfig"`
	// LabelSelector narrows the Services that are watched; "" is all.
	LabelSelector string `json:"labelSelector"`
	// LegacyEndpoints watches Endpoints too. That is needed only where no
	// controller mirrors them into EndpointSlices; it costs a watch of an
	// object for every Service.
	LegacyEndpoints bool `json:"legacyEndpoints"`
	// LastKnownMaxAgeHours is how old the last known state may be that is
	// served while the API server is away at a start: its age counts from
	// when it was last known to be the cluster's. Older addresses may be
	// those of other Pods. 0 is no limit; the default is 72.
	LastKnownMaxAgeHours *int `json:"lastKnownMaxAgeHours,omitempty"`
}

// DefaultLastKnownMaxAgeHours is the default of that field: a long weekend.
const DefaultLastKnownMaxAgeHours = 72

// LastKnownMaxAge is LastKnownMaxAgeHours or its default, 0 for no limit.
func (k *Kubernetes) LastKnownMaxAge() time.Duration {
	if k.LastKnownMaxAgeHours == nil {
		return DefaultLastKnownMaxAgeHours * time.Hour
	}
	return time.Duration(*k.LastKnownMaxAgeHours) * time.Hour
}

// Interface is one network interface to attach to.
type Interface struct {
	// Name is the name of a NIC, a bond, a VLAN interface or a veth.
	Name string `json:"name"`
	// Mode is auto, zerocopy, native or generic. With auto Weir takes the
	// best that the driver grants and says which; with another mode the
	// start fails if the driver does not grant it.
	Mode string `json:"mode"`
	// TxChecksum says who completes partial checksums of packets that leave by
	// the interface: metadata has the kernel or the NIC do it (TX metadata), software
	// Weir, which reads the whole packet. Packets of pods and of the node's own
	// listeners have partial checksums. auto is metadata where that is known
	// to work: on veth, and with zero copy where the driver says so. In copy
	// mode some drivers (virtio_net before Linux 6.18) ignore metadata and
	// send wrong checksums. With metadata the start fails where it is not
	// granted.
	TxChecksum string `json:"txChecksum"`
}

// PacketMemory is the memory of packets on their way through Weir.
type PacketMemory struct {
	// FrameSize is the size of a frame in bytes: auto, 2048 or 4096. auto is
	// 4096 where zero copy may be granted or the MTU is above 1536, else
	// 2048, which is 4 % cheaper per packet. Some NICs (igb) lose packets
	// of more than 1,024 bytes in frames of 2,048 bytes with zero copy.
	FrameSize AutoInt `json:"frameSize"`
}

// SNAT says from which addresses and ports endpoints see connections come.
type SNAT struct {
	// Addresses that the host does not own are Weir's alone and give it the
	// ports 1024-65535 of each: needed where one endpoint gets more than a
	// few thousand connections at once, and they must be routed to this
	// node. The empty list is the address of the way out.
	Addresses []string `json:"addresses"`
	// Ports is the range used on the host's own addresses. It must overlap
	// neither the kernel's ephemeral ports nor the node ports: the answers
	// of either would be taken for Weir's. The size of the range is the
	// number of simultaneous connections to one endpoint per SNAT address.
	Ports PortRange `json:"ports"`
}

// Forwarding is how packets get to endpoints.
type Forwarding struct {
	// Mode is the default; a Service chooses another by the annotation
	// weir.dev/forwarding-mode. In l2dsr, ipip and gue an endpoint gets what
	// the client sent and answers by itself: it must have the frontend's
	// address (on its loopback) and listen on the frontend's port. Node
	// ports, cluster IPs and endpoints on this node are served by nat all
	// the same.
	//
	// nat has endpoints see an address of Weir's. dnat keeps the client's; the
	// answers must come back through this node: from pods behind its kernel
	// and from its own listeners they do, by marks (see HostVeth), from an
	// attached interface they would not, and nat is used. An endpoint on
	// another node answers past Weir unless its way to clients leads through
	// this node, clients of its own network included: do not ask for dnat
	// there. Services with externalTrafficPolicy: Local, whose endpoints are
	// on this node, are dnat even where the default is nat; nat for them too
	// is asked for by the annotation.
	Mode string `json:"mode"`
	// GUEZeroChecksum leaves out the UDP checksum of gue over IPv6. It saves
	// reading every packet; routers on the way and the receiver must take
	// such packets (RFC 6936).
	GUEZeroChecksum bool `json:"gueZeroChecksum"`
	// MinPathMTU is the least path MTU, in bytes, that a client's or a router's
	// ICMP error may tell an endpoint in nat. Endpoints know all clients by
	// Weir's address and remember one path MTU for it, so that any client could
	// narrow the way to all others. In IPv6 it is never less than 1,280. A
	// client behind a narrower way needs a smaller value, or announces a
	// smaller TCP segment size.
	MinPathMTU uint16 `json:"minPathMTU"`
	// ReversePathFilter is which sources may begin flows, and have pings of
	// load balancer addresses answered, by the route back to them (RFC 3704;
	// Linux' rp_filter). strict: the route leads out of the interface by which
	// the packet came. loose: there is a route, and not into the node's own
	// networks (bridges, veths and overlays of pods). auto: strict for clients
	// that loadBalancerSourceRanges admit, loose for others; sources without a
	// route, or with one that leads where a default route does, pass. off: none
	// is dropped. Packets through the node's kernel are the kernel's to check.
	ReversePathFilter string `json:"reversePathFilter"`
}

// HostVeth is the way to endpoints behind the kernel: pods on this node,
// overlays, the node's own listeners.
type HostVeth struct {
	// Prefixes, at most one per family, are Weir's own on this node: the
	// SNAT source towards such endpoints is taken from them. They are seen
	// only inside the node (a masquerade rule covers what leaves it) and
	// must not be in use.
	Prefixes []string `json:"prefixes"`
	// Mark is the bits of the packet mark and of the connection mark that
	// are Weir's: by them answers to clients whose address is kept (mode
	// dnat) find their way back. They must be nobody else's. Free of the
	// default are kube-proxy (0x4000, 0x8000), Cilium (0xf00 and the upper
	// half), Calico (0xffff0000), AWS's VPC CNI (0x80), the portmap plugin
	// (0x2000), Tailscale (0xff0000) and wg-quick (51820). 0 does without:
	// nat in place of dnat.
	Mark Mark `json:"mark"`
	// Table is the number of the routing table that leads marked packets
	// to the host veth. It must be unused.
	Table int `json:"table"`
}

// Conntrack is the flow table.
type Conntrack struct {
	// MaxFlows is the number of connections that fit; the memory, about 230
	// bytes each, is taken in full at the start and never grows. auto takes
	// at most 5 % of the machine's memory. When the table is full half-open
	// connections go first, then new ones are refused.
	MaxFlows AutoInt `json:"maxFlows"`
	// Path is the file that holds the table, on a memory file system: the
	// next Weir carries on with it. "" keeps the table in anonymous memory:
	// then a restart loses every flow.
	Path string `json:"path"`
	// TakeoverSeconds after its start Weir gives TCP packets of unknown
	// flows back to the kernel, so that connections that kube-proxy began
	// live on; afterwards they are answered with RST. 0 answers RST at once.
	TakeoverSeconds int `json:"takeoverSeconds"`
	// EndpointRemovalGraceSeconds is how long a Service port must be without an endpoint
	// that it had, in a synced view, before the UDP flows of that Service port
	// are given to another endpoint, and weir.dev/on-endpoint-removal acts. A short
	// time trusts the source more; a long one sends datagrams to the dead.
	EndpointRemovalGraceSeconds int `json:"endpointRemovalGraceSeconds"`
}

// Drain is how long SIGTERM takes. A second one, or SIGINT, ends it at once.
// Whatever sends SIGTERM must wait for longer than both together before it kills
// (terminationGracePeriodSeconds, TimeoutStopSec).
type Drain struct {
	// NotReadySeconds is how long new connections are served after the health
	// endpoints (/healthz, /readyz, healthCheckNodePorts) began to fail: as
	// long as load balancers and routers in front need to notice, so their
	// interval times their threshold and some.
	NotReadySeconds int `json:"notReadySeconds"`
	// TimeoutSeconds is how long the connections there are may go on after
	// that. New ones are the kernel's meanwhile: kube-proxy's, where it runs,
	// else refused as by a node without Weir. When no connection is left the
	// drain is over.
	TimeoutSeconds int `json:"timeoutSeconds"`
}

// NotReady is NotReadySeconds as a duration.
func (d Drain) NotReady() time.Duration { return time.Duration(d.NotReadySeconds) * time.Second }

// Timeout is TimeoutSeconds as a duration.
func (d Drain) Timeout() time.Duration { return time.Duration(d.TimeoutSeconds) * time.Second }

// Workers are the packet loops: one OS thread each.
type Workers struct {
	// Count is the number of workers; auto is the largest number of receive
	// queues of any attached interface, at most one per CPU that may be
	// used. Queues without a worker would bypass Weir, so a start with
	// fewer workers than queues says how to shrink them.
	Count AutoInt `json:"count"`
	// CPUs are those to which workers are pinned, in worker order; auto takes
	// a core for each, near the interfaces' memory node, and leaves CPU 0 to
	// the rest of the machine where there are enough.
	CPUs CPUs `json:"cpus"`
}

// Admin is the operator's socket.
type Admin struct {
	// Socket is the path of the UNIX socket of `weir status` and `weir
	// explain`; mode 0600, so root's alone.
	Socket string `json:"socket"`
}

// Logging says what is logged and how; it goes to standard error.
type Logging struct {
	Level  string `json:"level"`  // debug, info, warn, error
	Format string `json:"format"` // text, json
}

// Default returns the configuration before file and flags.
func Default() *Configuration {
	return &Configuration{
		APIVersion:        APIVersion,
		Kind:              Kind,
		NodePortAddresses: []string{Primary},
		SNAT:              SNAT{Addresses: []string{}, Ports: PortRange{61000, 65535}},
		Forwarding:        Forwarding{Mode: ForwardNAT, MinPathMTU: 1280, ReversePathFilter: ReversePathAuto},
		HostVeth:          HostVeth{Prefixes: []string{"169.254.77.0/24", "fd77:7765:6972::/64"}, Mark: 0x10, Table: 7765},
		ProtectedPorts:    []uint16{22, 6443, 10250},
		Conntrack: Conntrack{
			Path:                        "/run/weir/conntrack",
			TakeoverSeconds:             3600,
			EndpointRemovalGraceSeconds: 10,
		},
		// Together below the 30 s that the kubelet waits by default.
		Drain:              Drain{NotReadySeconds: 10, TimeoutSeconds: 15},
		Admin:              Admin{Socket: "/run/weir/weir.sock"},
		StateDir:           "/var/lib/weir",
		MetricsBindAddress: "127.0.0.1:9464",
		HealthzBindAddress: "0.0.0.0:9465",
		Logging:            Logging{Level: "info", Format: "text"},
		Interfaces:         []Interface{},
		origin:             map[string]string{},
	}
}
