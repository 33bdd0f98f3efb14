package packet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/patience"
	"github.com/weirlb/weir/perf/netlab/weirtest"
)

// within is how long anything may take that takes milliseconds when the
// machine is idle.
var within = patience.For(5 * time.Second)

// setUp is a way to run Weir.
type setUp struct {
	conntrack string // more fields of the configuration's conntrack
	extra     string // more lines of the configuration
	clientMTU int    // of the client's link; 0: 1500
}

// setUps by name.
var setUps = map[string]setUp{
	// Nothing is left of what the kernel balanced before.
	"usual": {conntrack: "takeoverSeconds: 0"},
	// Packets of unknown connections may be the kernel's.
	"takeover": {conntrack: "takeoverSeconds: 3600"},
	// A client's packet may be larger than the endpoints' links take.
	"jumbo": {conntrack: "takeoverSeconds: 0", clientMTU: jumboMTU},
}

// labNames are the set-ups that scenarios use, in order.
func labNames() []string {
	var names []string
	for _, c := range scenarios {
		if !slices.Contains(names, c.lab) {
			names = append(names, c.lab)
		}
	}
	slices.Sort(names)
	return names
}

// MAC addresses of the lab.
var (
	clientMAC  = mac(netlab.ClientNet, 2)
	edge0MAC   = mac(netlab.ClientNet, 1)
	edge1MAC   = mac(netlab.FabricNet, 1)
	edgePodMAC = mac(netlab.PodNet, 1)
)

func mac(network, host uint8) net.HardwareAddr {
	return net.HardwareAddr{2, 0, 0, 0, network, host}
}

// lab is a running Weir between stations.
type lab struct {
	name string
	*netlab.Lab
	edge                *netlab.Namespace
	client, fabric, pod *station
	services            map[string]*service // by definition's name and mode
	sentinels           []*sentinel
	weir                *netlab.Daemon
	admin               *api.Client
	next                uint16 // client of the next scene
}

func TestMain(m *testing.M) { weirtest.Main(m) }

func newLab(t *testing.T, name string) *lab {
	t.Helper()
	file := weirtest.Binary(t)
	n, err := netlab.New()
	if err != nil {
		t.Fatal(err)
	}
	l := &lab{name: name, Lab: n, services: map[string]*service{}}
	if err := errors.Join(l.build(), l.settle()); err != nil {
		n.Close()
		t.Fatal(err)
	}
	l.define()
	if err := l.start(t, file); err != nil {
		n.Close()
		t.Fatal(err)
	}
	return l
}

// build makes the namespaces, links, routes and neighbors.
func (l *lab) build() error {
	ns := map[string]*netlab.Namespace{}
	for _, name := range []string{"edge", "client", "fabric", "pod"} {
		n, err := l.Namespace(name)
		if err != nil {
			return err
		}
		ns[name] = n
		if name == "edge" {
			continue
		}
		// Nothing but the tests' frames is to come from a station.
		if err := n.SetSysctl("net/ipv6/conf/default/disable_ipv6", "1"); err != nil {
			return err
		}
	}
	l.edge = ns["edge"]
	on := func(network, host uint8) []netip.Prefix {
		return []netip.Prefix{netip.PrefixFrom(netlab.Host4(network, host), 24), netip.PrefixFrom(netlab.Host6(network, host), 64)}
	}
	for _, link := range []struct {
		station, name string
		network       uint8
		to            **station
	}{{"client", "eth0", netlab.ClientNet, &l.client}, {"fabric", "eth1", netlab.FabricNet, &l.fabric}, {"pod", "cni0", netlab.PodNet, &l.pod}} {
		var config netlab.LinkConfig
		if link.station == "client" {
			config.MTU = setUps[l.name].clientMTU
		}
		err := netlab.Connect(netlab.End{Namespace: ns[link.station], Name: "eth0", MAC: mac(link.network, 2)},
			netlab.End{Namespace: l.edge, Name: link.name, MAC: mac(link.network, 1), Addrs: on(link.network, 1)}, config)
		if err != nil {
			return err
		}
		if err := arrange(ns[link.station]); err != nil {
			return err
		}
		if *link.to, err = openStation(ns[link.station], link.station); err != nil {
			return err
		}
		l.OnClose((*link.to).tap.Close)
	}
	return nil
}

// settle gives the edge its routes and neighbors.
func (l *lab) settle() error {
	errs := []error{
		l.edge.AddRoute("eth0", netip.MustParsePrefix("0.0.0.0/0"), netlab.Host4(netlab.ClientNet, 2)),
		l.edge.AddRoute("eth0", netip.MustParsePrefix("::/0"), netlab.Host6(netlab.ClientNet, 2)),
		l.edge.SetSysctl("net/ipv4/conf/cni0/forwarding", "1"),
		l.edge.SetSysctl("net/ipv6/conf/all/forwarding", "1"),
		l.neighbor("eth0", netlab.ClientNet, 2), l.neighbor("cni0", netlab.PodNet, 2),
	}
	for host := uint8(10); host < 40; host++ {
		errs = append(errs, l.neighbor("eth1", netlab.FabricNet, host), l.neighbor("cni0", netlab.PodNet, host))
	}
	for _, six := range []bool{false, true} {
		for host := uint8(5); host <= 6; host++ {
			errs = append(errs, l.routeBy(behindRouter(host).addr(six), fabric(33).addr(six), 0))
		}
		errs = append(errs, l.narrow("eth1", narrowFabric.addr(six), netip.Addr{}), l.narrow("cni0", narrowPod.addr(six), netip.Addr{}),
			l.narrow("eth0", narrowClient(six), endpoint{netlab.ClientNet, 2, ""}.addr(six)))
	}
	return errors.Join(errs...)
}

// narrow is a route to one address, narrower than its link.
func (l *lab) narrow(ifname string, a, via netip.Addr) error {
	dev, err := l.edge.Interface(ifname)
	if err != nil {
		return err
	}
	return l.edge.Netlink().RouteAdd(&netlink.Route{LinkIndex: dev.Attrs().Index, MTU: narrowMTU, Gw: via.AsSlice(),
		Dst: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}})
}

// neighbor tells the edge a station's MAC address.
func (l *lab) neighbor(ifname string, network, host uint8) error {
	dev, err := l.edge.Interface(ifname)
	if err != nil {
		return err
	}
	for _, a := range []netip.Addr{netlab.Host4(network, host), netlab.Host6(network, host)} {
		err = errors.Join(err, l.edge.Netlink().NeighSet(&netlink.Neigh{LinkIndex: dev.Attrs().Index, IP: a.AsSlice(),
			HardwareAddr: mac(network, host), State: netlink.NUD_PERMANENT}))
	}
	return err
}

// noNeighbor takes a station's MAC address from the edge.
func (l *lab) noNeighbor(ifname string, network, host uint8) error {
	dev, err := l.edge.Interface(ifname)
	if err != nil {
		return err
	}
	for _, a := range []netip.Addr{netlab.Host4(network, host), netlab.Host6(network, host)} {
		err = errors.Join(err, l.edge.Netlink().NeighDel(&netlink.Neigh{LinkIndex: dev.Attrs().Index, IP: a.AsSlice()}))
	}
	return err
}

// define makes the Services that the lab's scenarios use.
func (l *lab) define() {
	var keys []string
	want := func(name, mode string) {
		if key := name + "-" + mode; !slices.Contains(keys, key) {
			keys = append(keys, key)
			l.services[key] = &service{definition: definitions[name], name: key, mode: mode, index: uint8(len(keys))}
		}
	}
	want("sentinel", nat)
	want("sentinel-pod", nat)
	for _, c := range scenarios {
		if c.lab == l.name {
			for _, mode := range c.modes {
				want(c.service, mode)
			}
		}
	}
}

// start starts Weir and waits until it serves every Service.
func (l *lab) start(t *testing.T, file string) error {
	dir := filepath.Join(l.Dir(), "manifests")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	for _, s := range l.services {
		if err := os.WriteFile(filepath.Join(dir, s.name+".yaml"), s.manifest(t), 0o644); err != nil {
			return err
		}
	}
	config := filepath.Join(l.Dir(), "config.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, `apiVersion: weir.dev/v1alpha1
kind: WeirConfiguration
nodeName: edge-1
discovery: {manifests: {path: %s}}
%s
nodePortAddresses: ["%s/24", "%s/64"]
admin: {socket: %s}
drain: {notReadySeconds: 0, timeoutSeconds: 0}
healthChecks: {passive: "off"} # the node asks an endpoint that refuses packet upon packet itself
conntrack: {path: %s, maxFlows: 65536, %s}
%s
`, dir, cacheLines(), netlab.Host4(netlab.ClientNet, 0), netlab.Host6(netlab.ClientNet, 0), filepath.Join(l.Dir(), "weir.sock"),
		filepath.Join(l.Dir(), "conntrack"), setUps[l.name].conntrack, setUps[l.name].extra), 0o644); err != nil {
		return err
	}
	var err error
	if l.weir, err = l.edge.StartDaemon(exec.Command(file, "run", "--config", config), filepath.Join(l.Dir(), "weir.log")); err != nil {
		return err
	}
	l.admin = api.NewClient(filepath.Join(l.Dir(), "weir.sock"))
	if err := l.served(); err != nil {
		return fmt.Errorf("weir run does not serve: %w\n%s", err, l.log())
	}
	l.sentinels = []*sentinel{
		{l: l, service: l.services["sentinel-nat"], at: l.fabric}, {l: l, service: l.services["sentinel-pod-nat"], at: l.pod},
	}
	return nil
}

// served waits until Weir has all frontends and takes their traffic.
func (l *lab) served() error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*within)
	defer cancel()
	return l.weir.Until(ctx, func(context.Context) error { return l.serves() })
}

func (l *lab) serves() error {
	status, err := l.status()
	if err != nil {
		return err
	}
	if len(status.Discovery.Errors) > 0 || len(status.Discovery.LeftToKernel) > 0 {
		return fmt.Errorf("errors %q, left to the kernel %q", status.Discovery.Errors, status.Discovery.LeftToKernel)
	}
	if status.Services != len(l.services) {
		return fmt.Errorf("%d of %d Services", status.Services, len(l.services))
	}
	return status.Attached()
}

func (l *lab) status() (*api.Status, error) {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	return l.admin.Status(ctx)
}

// log is the end of what Weir logged.
func (l *lab) log() string { return l.weir.LogTail(20) }

// close stops Weir, which must still run and end well.
func (l *lab) close(t *testing.T) {
	if err := l.weir.Stop(within); err != nil {
		t.Errorf("stop weir: %v\n%s", err, l.log())
	} else if l.weir.ExitCode() != 0 {
		t.Errorf("weir ended with status %d\n%s", l.weir.ExitCode(), l.log())
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}
