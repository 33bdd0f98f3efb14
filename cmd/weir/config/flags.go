package config

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// Flags are the command-line flags that stand beside the file. Only those
// given on the command line override it.
type Flags struct {
	// File is the configuration file, "" for none.
	File string

	set  *pflag.FlagSet
	flag Configuration // the values given by flags

	manifests     string
	kubeconfig    string
	labelSelector string
	legacy        bool
	lastKnownAge  int
	interfaces    []string
	mode          string
	txChecksum    string
	protected     []uint
}

// override ties a flag to the field that it overrides.
type override struct {
	flag, path string
	apply      func(c *Configuration)
}

// AddFlags registers the flags with fs.
func AddFlags(fs *pflag.FlagSet) *Flags {
	def := Default()
	f := &Flags{set: fs, flag: *Default()}
	v := &f.flag
	fs.StringVarP(&f.File, "config", "c", "", "configuration `file` (kind WeirConfiguration); a flag given overrides it")

	fs.StringVar(&v.NodeName, "node-name", "", "`name` of this node, as in EndpointSlices (default $NODE_NAME, else the hostname)")
	fs.StringVar(&f.manifests, "manifests", "", "`path` of a file or directory with Services and EndpointSlices, watched for changes")
	fs.StringVar(&f.kubeconfig, "kubeconfig", "", "watch Services of the API server in this kubeconfig `file`; empty: in-cluster account")
	fs.StringVar(&f.labelSelector, "label-selector", "", "watch only Services that match this `selector`")
	fs.IntVar(&f.lastKnownAge, "last-known-max-age-hours", DefaultLastKnownMaxAgeHours, "maximum age of a last known state that is served without API server; 0 is no limit")
	fs.BoolVar(&f.legacy, "legacy-endpoints", false, "also watch Endpoints, in clusters without the mirroring controller")
	fs.StringVar(&v.ServiceProxyName, "service-proxy-name", "", "serve Services with this `name` in the label service.kubernetes.io/service-proxy-name; empty: those without the label")
	fs.StringVar(&v.LoadBalancerClass, "load-balancer-class", "", "serve load balancer IPs of this `class` only; empty: of all")
	fs.StringSliceVarP(&f.interfaces, "interface", "i", nil, "interface `name`s to attach to; repeat or separate by commas")
	fs.StringVar(&f.mode, "mode", ModeAuto, "attach `mode` of every interface: "+either(AttachModes))
	fs.StringVar(&f.txChecksum, "tx-checksum", TxChecksumAuto, "`method` to complete partial checksums on output, for every interface: "+either(txChecksums))

	fs.StringSliceVar(&v.NodePortAddresses, "node-port-addresses", def.NodePortAddresses, "addresses that serve node ports: primary, or `CIDRs`; empty: all addresses of attached interfaces")
	fs.StringSliceVar(&v.SNAT.Addresses, "snat-addresses", nil, "source `addresses` towards endpoints; empty: the address of the outgoing interface")
	fs.Var(&v.SNAT.Ports, "snat-ports", "source ports on addresses of the host")
	fs.StringVar(&v.Forwarding.Mode, "forwarding-mode", def.Forwarding.Mode, "default forwarding `mode`: "+either(ForwardingModes))
	fs.StringVar(&v.Forwarding.ReversePathFilter, "reverse-path-filter", def.Forwarding.ReversePathFilter, "`filter` of the sources of new flows: "+either(reversePathFilters))
	fs.StringSliceVar(&v.HostVeth.Prefixes, "host-veth-prefixes", def.HostVeth.Prefixes, "`prefixes` of SNAT sources towards endpoints behind the kernel, one per family")
	fs.Var(&v.HostVeth.Mark, "host-veth-mark", "`bits` of packet and connection marks that return answers to Weir (dnat); 0: none")
	fs.IntVar(&v.HostVeth.Table, "host-veth-table", def.HostVeth.Table, "`number` of an unused routing table, for marked packets")
	fs.UintSliceVar(&f.protected, "protected-ports", toUints(def.ProtectedPorts), "`ports` never load balanced on addresses of the node")
	fs.BoolVar(&v.ClusterIPs, "cluster-ips", def.ClusterIPs, "serve ClusterIPs for packets that arrive on an attached interface")
	fs.BoolVar(&v.ExternalIPs, "external-ips", def.ExternalIPs, "serve spec.externalIPs")

	fs.Var(&v.Workers.Count, "workers", "number of workers")
	fs.Var(&v.Workers.CPUs, "cpus", "CPUs to pin workers to, such as 2-5,8")
	fs.Var(&v.PacketMemory.FrameSize, "frame-size", "bytes of a frame of the packet memory: auto, 2048 or 4096")
	fs.Var(&v.Conntrack.MaxFlows, "conntrack-max-flows", "capacity of the flow table in connections; auto: 5 % of memory")
	fs.StringVar(&v.Conntrack.Path, "conntrack-path", def.Conntrack.Path, "`file` of the flow table, kept across restarts; empty: none")
	fs.IntVar(&v.Conntrack.TakeoverSeconds, "conntrack-takeover-seconds", def.Conntrack.TakeoverSeconds, "`seconds` after the start in which TCP packets of unknown flows go to the kernel")
	fs.IntVar(&v.Conntrack.EndpointRemovalGraceSeconds, "conntrack-endpoint-removal-grace-seconds", def.Conntrack.EndpointRemovalGraceSeconds, "`seconds` for which an endpoint must be missing before its flows move or end")

	fs.IntVar(&v.Drain.NotReadySeconds, "drain-not-ready-seconds", def.Drain.NotReadySeconds, "`seconds` after SIGTERM in which new connections are served while health checks fail")
	fs.IntVar(&v.Drain.TimeoutSeconds, "drain-timeout-seconds", def.Drain.TimeoutSeconds, "`seconds` after that in which established connections may continue")
	fs.StringVar(&v.OnStop, "on-stop", def.OnStop, "`meaning` of SIGTERM: "+either(StopMeanings))
	fs.IntVar(&v.Death.HoldSeconds, "death-hold-seconds", def.Death.HoldSeconds, "`seconds` after a kill in which packets wait for the next process; 0: the kernel has them at once")

	fs.StringVar(&v.Admin.Socket, "admin-socket", def.Admin.Socket, "`path` of the UNIX socket of weir status")
	fs.StringVar(&v.Admin.Group, "admin-group", def.Admin.Group, "`group` whose members may use the admin socket")
	fs.StringVar(&v.Admin.GroupAccess, "admin-group-access", def.Admin.GroupAccess, "commands of the group: read-only or full")
	fs.StringVar(&v.StateDir, "state-dir", def.StateDir, "`directory` of the last known state of the cluster; empty: none is saved")
	fs.StringVar(&v.MetricsBindAddress, "metrics-bind-address", def.MetricsBindAddress, "`IP:PORT` of /metrics; empty: none")
	fs.IntVar(&v.MetricsServices, "metrics-services", def.MetricsServices, "`number` of Services with metrics of their own; 0: none")
	fs.StringVar(&v.HealthzBindAddress, "healthz-bind-address", def.HealthzBindAddress, "`IP:PORT` of /healthz, /livez and /readyz; empty: none")
	fs.BoolVar(&v.EnableProfiling, "profiling", def.EnableProfiling, "serve /debug/pprof on the metrics address")
	fs.StringVar(&v.Logging.Level, "log-level", def.Logging.Level, "lowest `level` to log: debug, info, warn or error")
	fs.StringVar(&v.Logging.Format, "log-format", def.Logging.Format, "`format` of the log: text or json")
	return f
}

// either lists values as "a, b or c".
func either(values []string) string {
	last := len(values) - 1
	return strings.Join(values[:last], ", ") + " or " + values[last]
}

// overrides are in the order of the fields of Configuration.
func (f *Flags) overrides() []override {
	v := &f.flag
	return []override{
		{"node-name", "nodeName", func(c *Configuration) { c.NodeName = v.NodeName }},
		{"service-proxy-name", "serviceProxyName", func(c *Configuration) { c.ServiceProxyName = v.ServiceProxyName }},
		{"load-balancer-class", "loadBalancerClass", func(c *Configuration) { c.LoadBalancerClass = v.LoadBalancerClass }},
		{"node-port-addresses", "nodePortAddresses", func(c *Configuration) { c.NodePortAddresses = v.NodePortAddresses }},
		{"snat-addresses", "snat.addresses", func(c *Configuration) { c.SNAT.Addresses = v.SNAT.Addresses }},
		{"snat-ports", "snat.ports", func(c *Configuration) { c.SNAT.Ports = v.SNAT.Ports }},
		{"forwarding-mode", "forwarding.mode", func(c *Configuration) { c.Forwarding.Mode = v.Forwarding.Mode }},
		{"reverse-path-filter", "forwarding.reversePathFilter", func(c *Configuration) { c.Forwarding.ReversePathFilter = v.Forwarding.ReversePathFilter }},
		{"host-veth-prefixes", "hostVeth.prefixes", func(c *Configuration) { c.HostVeth.Prefixes = v.HostVeth.Prefixes }},
		{"host-veth-mark", "hostVeth.mark", func(c *Configuration) { c.HostVeth.Mark = v.HostVeth.Mark }},
		{"host-veth-table", "hostVeth.table", func(c *Configuration) { c.HostVeth.Table = v.HostVeth.Table }},
		{"cluster-ips", "clusterIPs", func(c *Configuration) { c.ClusterIPs = v.ClusterIPs }},
		{"external-ips", "externalIPs", func(c *Configuration) { c.ExternalIPs = v.ExternalIPs }},
		{"conntrack-max-flows", "conntrack.maxFlows", func(c *Configuration) { c.Conntrack.MaxFlows = v.Conntrack.MaxFlows }},
		{"conntrack-path", "conntrack.path", func(c *Configuration) { c.Conntrack.Path = v.Conntrack.Path }},
		{"conntrack-takeover-seconds", "conntrack.takeoverSeconds", func(c *Configuration) { c.Conntrack.TakeoverSeconds = v.Conntrack.TakeoverSeconds }},
		{"conntrack-endpoint-removal-grace-seconds", "conntrack.endpointRemovalGraceSeconds", func(c *Configuration) {
			c.Conntrack.EndpointRemovalGraceSeconds = v.Conntrack.EndpointRemovalGraceSeconds
		}},
		{"drain-not-ready-seconds", "drain.notReadySeconds", func(c *Configuration) { c.Drain.NotReadySeconds = v.Drain.NotReadySeconds }},
		{"drain-timeout-seconds", "drain.timeoutSeconds", func(c *Configuration) { c.Drain.TimeoutSeconds = v.Drain.TimeoutSeconds }},
		{"on-stop", "onStop", func(c *Configuration) { c.OnStop = v.OnStop }},
		{"death-hold-seconds", "death.holdSeconds", func(c *Configuration) { c.Death.HoldSeconds = v.Death.HoldSeconds }},
		{"workers", "workers.count", func(c *Configuration) { c.Workers.Count = v.Workers.Count }},
		{"cpus", "workers.cpus", func(c *Configuration) { c.Workers.CPUs = v.Workers.CPUs }},
		{"frame-size", "packetMemory.frameSize", func(c *Configuration) { c.PacketMemory.FrameSize = v.PacketMemory.FrameSize }},
		{"admin-socket", "admin.socket", func(c *Configuration) { c.Admin.Socket = v.Admin.Socket }},
		{"admin-group", "admin.group", func(c *Configuration) { c.Admin.Group = v.Admin.Group }},
		{"admin-group-access", "admin.groupAccess", func(c *Configuration) { c.Admin.GroupAccess = v.Admin.GroupAccess }},
		{"state-dir", "stateDir", func(c *Configuration) { c.StateDir = v.StateDir }},
		{"metrics-bind-address", "metricsBindAddress", func(c *Configuration) { c.MetricsBindAddress = v.MetricsBindAddress }},
		{"metrics-services", "metricsServices", func(c *Configuration) { c.MetricsServices = v.MetricsServices }},
		{"healthz-bind-address", "healthzBindAddress", func(c *Configuration) { c.HealthzBindAddress = v.HealthzBindAddress }},
		{"profiling", "enableProfiling", func(c *Configuration) { c.EnableProfiling = v.EnableProfiling }},
		{"log-level", "logging.level", func(c *Configuration) { c.Logging.Level = v.Logging.Level }},
		{"log-format", "logging.format", func(c *Configuration) { c.Logging.Format = v.Logging.Format }},
	}
}

// Given reports whether a flag was given on the command line, beside the exceptions.
func (f *Flags) Given(except ...string) bool {
	given := false
	f.set.Visit(func(flag *pflag.Flag) { given = given || !slices.Contains(except, flag.Name) })
	return given
}

// Load reads the file, if the flags name a file, and lays the flags over it. The result is
// not yet validated; the Reload method does the same again. With errors in fields of the file the
// result has the others, as that of Unmarshal; else it is nil with an error.
func (f *Flags) Load() (*Configuration, error) {
	c, errs := Default(), error(nil)
	if f.File != "" {
		if c, errs = Read(f.File); c == nil {
			return nil, errs
		}
	}
	for _, o := range f.overrides() {
		if f.set.Changed(o.flag) {
			o.apply(c)
			c.setOrigin(o.path, "--"+o.flag)
		}
	}
	f.applyDiscovery(c)
	f.applyInterfaces(c)
	if err := f.applyProtectedPorts(c); err != nil {
		return nil, errors.Join(errs, err)
	}
	if !f.set.Changed("node-name") {
		c.applyNodeName()
	}
	c.reload = f.Load
	return c, errs
}

// applyDiscovery: a source given by a flag takes the place of the file's.
func (f *Flags) applyDiscovery(c *Configuration) {
	manifests := f.set.Changed("manifests")
	kubernetes := f.set.Changed("kubeconfig") || f.set.Changed("label-selector") || f.set.Changed("legacy-endpoints") || f.set.Changed("last-known-max-age-hours")
	if manifests {
		c.Discovery.Manifests = &Manifests{Path: f.manifests}
		c.setOrigin("discovery.manifests", "--manifests")
		if !kubernetes {
			c.Discovery.Kubernetes = nil
		}
	}
	if !kubernetes {
		return
	}
	if c.Discovery.Kubernetes == nil {
		c.Discovery.Kubernetes = &Kubernetes{}
	}
	k := c.Discovery.Kubernetes
	if f.set.Changed("label-selector") {
		k.LabelSelector = f.labelSelector
		c.setOrigin("discovery.kubernetes", "--label-selector")
	}
	if f.set.Changed("legacy-endpoints") {
		k.LegacyEndpoints = f.legacy
		c.setOrigin("discovery.kubernetes", "--legacy-endpoints")
	}
	if f.set.Changed("last-known-max-age-hours") {
		k.LastKnownMaxAgeHours = &f.lastKnownAge
		c.setOrigin("discovery.kubernetes", "--last-known-max-age-hours")
	}
	if f.set.Changed("kubeconfig") {
		k.Kubeconfig = f.kubeconfig
		c.setOrigin("discovery.kubernetes", "--kubeconfig")
		if !manifests {
			c.Discovery.Manifests = nil
		}
	}
}

func (f *Flags) applyInterfaces(c *Configuration) {
	if f.set.Changed("interface") {
		c.Interfaces = []Interface{}
		for _, name := range f.interfaces {
			c.Interfaces = append(c.Interfaces, Interface{Name: name, Mode: ModeAuto, TxChecksum: TxChecksumAuto, Hook: HookXDP})
		}
		c.setOrigin("interfaces", "--interface")
	}
	if f.set.Changed("mode") {
		for i := range c.Interfaces {
			c.Interfaces[i].Mode = f.mode
			c.setOrigin(fmt.Sprintf("interfaces[%d].mode", i), "--mode")
		}
	}
	if f.set.Changed("tx-checksum") {
		for i := range c.Interfaces {
			c.Interfaces[i].TxChecksum = f.txChecksum
			c.setOrigin(fmt.Sprintf("interfaces[%d].txChecksum", i), "--tx-checksum")
		}
	}
}

func (f *Flags) applyProtectedPorts(c *Configuration) error {
	if !f.set.Changed("protected-ports") {
		return nil
	}
	c.setOrigin("protectedPorts", "--protected-ports")
	c.ProtectedPorts = []uint16{}
	var r report
	r.origin = c.origin
	for i, p := range f.protected {
		if p == 0 || p > 65535 {
			r.addf(fmt.Sprintf("protectedPorts[%d]", i), "expected a port (1-65535), got %d", p)
			continue
		}
		c.ProtectedPorts = append(c.ProtectedPorts, uint16(p))
	}
	return r.errs.Err()
}

// applyNodeName: the environment names the node in a pod whose ConfigMap all
// nodes share, so it wins over the file; a hostname is the last resort, in
// lower case as the kubelet registers it.
func (c *Configuration) applyNodeName() {
	if name := os.Getenv("NODE_NAME"); name != "" {
		c.NodeName = name
		c.setOrigin("nodeName", "NODE_NAME")
		return
	}
	if c.NodeName != "" {
		return
	}
	if name, err := os.Hostname(); err == nil {
		c.NodeName = strings.ToLower(strings.TrimSpace(name))
		c.setOrigin("nodeName", originHostname)
	}
}

// originHostname is the origin of a node's name that nothing else gives.
const originHostname = "hostname"

// setOrigin notes where path and all below it came from.
func (c *Configuration) setOrigin(path, origin string) {
	for p := range c.origin {
		if strings.HasPrefix(p, path+".") || strings.HasPrefix(p, path+"[") {
			delete(c.origin, p)
		}
	}
	c.origin[path] = origin
}

func toUints(ports []uint16) []uint {
	out := make([]uint, len(ports))
	for i, p := range ports {
		out[i] = uint(p)
	}
	return out
}
