package chaos

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/perf/netlab"
)

// host is an endpoint's host: network and number in the lab.
type host struct {
	name          string
	network, host uint8
	node          string
	// fabric: it is reached through eth1.
	fabric bool
}

// hosts are the endpoints, one of each kind.
var hosts = []host{
	{"attached", netlab.FabricNet, 11, "zonea", true},
	{"routed", netlab.ZoneBNet, 12, "zoneb", true},
	{"pod", netlab.PodNet, 2, "edge-1", false},
	{"overlay", netlab.RemoteNet, 2, "zonea", true},
}

const echoTarget, echoPort = 7777, 7

func (h host) addr(six bool) netip.Addr {
	if six {
		return netlab.Host6(h.network, h.host)
	}
	return netlab.Host4(h.network, h.host)
}

// node is the lab with Weir on the edge node.
type node struct {
	*netlab.Edge
	cfg     Config
	network *network
	source  *source
	weir    *process
	admin   *admin

	endpoints []*endpoint
}

func newNode(cfg Config, r *Report) (_ *node, err error) {
	lab, err := netlab.NewEdge(netlab.EdgeConfig{Queues: 2})
	if err != nil {
		return nil, err
	}
	n := &node{Edge: lab, cfg: cfg, admin: newAdmin(fileOf(lab, "weir.sock"))}
	n.network = &network{lab: lab, hook: cfg.Hook, admin: n.admin}
	n.source = &source{lab: lab, services: newServices()}
	n.weir = &process{lab: lab, binary: cfg.Binary, frontends: 4 * len(n.source.services), admin: n.admin, report: r}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.Close())
		}
	}()
	for _, ns := range []*netlab.Namespace{lab.Client, lab.ZoneA, lab.ZoneB, lab.Pod, lab.Remote} {
		if err := recoverSoon(ns); err != nil {
			return nil, err
		}
	}
	for i, ns := range []*netlab.Namespace{lab.ZoneA, lab.ZoneB, lab.Pod, lab.Remote} {
		e := &endpoint{host: hosts[i], at: ns}
		if err := e.serve(lab); err != nil {
			return nil, err
		}
		n.endpoints = append(n.endpoints, e)
	}
	// ZoneA routes for a fault, and must not advise another path.
	for _, key := range []string{"all", "eth0"} {
		if err := lab.ZoneA.SetSysctl("net/ipv4/conf/"+key+"/send_redirects", "0"); err != nil {
			return nil, err
		}
	}
	if err := n.network.arrange(); err != nil {
		return nil, err
	}
	if err := n.network.keepRouterMAC(); err != nil {
		return nil, err
	}
	if n.weir.group, err = newCgroup(lab.Name()); err != nil {
		cfg.Log("no memory pressure: %v", err)
	}
	return n, n.configure()
}

// Close ends the process and removes everything.
func (n *node) Close() error {
	return errors.Join(n.weir.close(), n.Edge.Close())
}

// fileOf is a file of a lab.
func fileOf(lab *netlab.Edge, name string) string { return filepath.Join(lab.Dir(), name) }

// stateSize is that of the file system with the flow table: a small one, to be filled.
const stateSize = 64 << 20

func (n *node) configure() error {
	if err := os.Mkdir(fileOf(n.Edge, "state"), 0o755); err != nil {
		return err
	}
	err := n.Edge.Edge.Inside(func() error {
		return unix.Mount("tmpfs", fileOf(n.Edge, "state"), "tmpfs", 0, fmt.Sprintf("size=%d,mode=0700", stateSize))
	})
	if err != nil {
		return fmt.Errorf("mount a small file system: %w", err)
	}
	discovery, err := n.source.make(n.cfg.source())
	if err != nil {
		return err
	}
	return os.WriteFile(fileOf(n.Edge, "config.yaml"), fmt.Appendf(nil, `apiVersion: weir.dev/v1alpha1
kind: WeirConfiguration
nodeName: edge-1
stateDir: %s
discovery:
  %s
%s
nodePortAddresses: ["%s/24", "%s/64"]
conntrack: {path: %s, maxFlows: 65536}
admin: {socket: %s}
drain: {notReadySeconds: 0, timeoutSeconds: 0}
death: {holdSeconds: 120}
%s
`, fileOf(n.Edge, "state"), discovery, n.cfg.interfaceLines(), netlab.Host4(netlab.ClientNet, 0), netlab.Host6(netlab.ClientNet, 0),
		fileOf(n.Edge, "state/conntrack"), fileOf(n.Edge, "weir.sock"), n.cfg.Extra), 0o600)
}
