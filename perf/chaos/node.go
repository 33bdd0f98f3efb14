package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/patience"
	"github.com/weirlb/weir/perf/netlab/workload"
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
	cfg      Config
	admin    *http.Client
	services []*service
	weir     *netlab.Daemon
	starts   int
	group    *cgroup // nil: the kernel has none that limits memory
	links    []int   // indexes that eth1 has had
	report   *Report

	api *apiServer // nil: manifests are the source

	process sync.Mutex // a fault that ends the process holds it
	source  sync.Mutex // guards services and the manifest's file
}

func newNode(cfg Config) (_ *node, err error) {
	lab, err := netlab.NewEdge(netlab.EdgeConfig{Queues: 2})
	if err != nil {
		return nil, err
	}
	n := &node{Edge: lab, cfg: cfg, services: newServices()}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.Close())
		}
	}()
	n.admin = &http.Client{Timeout: patience.For(10 * time.Second), Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", n.path("weir.sock"))
		},
	}}
	for _, ns := range []*netlab.Namespace{lab.Client, lab.ZoneA, lab.ZoneB, lab.Pod, lab.Remote} {
		if err := recoverSoon(ns); err != nil {
			return nil, err
		}
	}
	for i, ns := range []*netlab.Namespace{lab.ZoneA, lab.ZoneB, lab.Pod, lab.Remote} {
		for _, six := range []bool{false, true} {
			echo, err := workload.ServeEcho(ns, hosts[i].name, netip.AddrPortFrom(hosts[i].addr(six), echoTarget).String())
			if err != nil {
				return nil, err
			}
			lab.OnClose(echo.Close)
		}
	}
	// ZoneA routes for a fault, and must not advise another path.
	for _, key := range []string{"all", "eth0"} {
		if err := lab.ZoneA.SetSysctl("net/ipv4/conf/"+key+"/send_redirects", "0"); err != nil {
			return nil, err
		}
	}
	if err := n.arrange(); err != nil {
		return nil, err
	}
	if err := n.keepRouterMAC(); err != nil {
		return nil, err
	}
	if n.group, err = newCgroup(lab.Name()); err != nil {
		cfg.Log("no memory pressure: %v", err)
	}
	return n, n.configure()
}

// keepRouterMAC keeps the MAC address of the router to zone b, which is a bridge: by default it
// is the least of its ports'. A port that is made anew would change it, and hosts would send to
// the old one until their neighbor entries expire.
func (n *node) keepRouterMAC() error {
	bridge, err := n.Fabric.Interface("br0")
	if err != nil {
		return err
	}
	return n.Fabric.Netlink().LinkSetHardwareAddr(bridge, bridge.Attrs().HardwareAddr)
}

// Close ends the process and removes everything.
func (n *node) Close() error {
	var errs []error
	if n.weir != nil {
		errs = append(errs, n.weir.Kill())
	}
	if n.group != nil {
		errs = append(errs, n.group.remove())
	}
	return errors.Join(append(errs, n.Edge.Close())...)
}

func (n *node) path(name string) string { return filepath.Join(n.Dir(), name) }

// stateSize is that of the file system with the flow table: a small one, to be filled.
const stateSize = 64 << 20

func (n *node) configure() error {
	if err := os.Mkdir(n.path("state"), 0o755); err != nil {
		return err
	}
	err := n.Edge.Edge.Inside(func() error {
		return unix.Mount("tmpfs", n.path("state"), "tmpfs", 0, fmt.Sprintf("size=%d,mode=0700", stateSize))
	})
	if err != nil {
		return fmt.Errorf("mount a small file system: %w", err)
	}
	discovery, err := n.makeSource()
	if err != nil {
		return err
	}
	return os.WriteFile(n.path("config.yaml"), fmt.Appendf(nil, `apiVersion: weir.dev/v1alpha1
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
`, n.path("state"), discovery, n.cfg.interfaceLines(), netlab.Host4(netlab.ClientNet, 0), netlab.Host6(netlab.ClientNet, 0),
		n.path("state/conntrack"), n.path("weir.sock"), n.cfg.Extra), 0o600)
}

// start starts `weir run` and waits until it serves every frontend.
func (n *node) start(ctx context.Context, flags ...string) error {
	n.starts++
	cmd := exec.Command(n.cfg.Binary, append([]string{"run", "--config", n.path("config.yaml")}, flags...)...)
	if n.group != nil {
		cmd = n.group.inside(cmd)
	}
	// A heap of less than 400 % garbage is as large as it gets within seconds, so that growth
	// is a leak.
	cmd.Env = append(os.Environ(), "GOGC=50")
	var err error
	n.weir, err = n.Edge.Edge.StartDaemon(cmd, n.path(fmt.Sprintf("weir-%d.log", n.starts)))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, patience.For(30*time.Second))
	defer cancel()
	err = n.weir.Until(ctx, func(ctx context.Context) error {
		s, err := n.status(ctx)
		switch {
		case err != nil:
			return err
		case s.PID != n.weir.Cmd.Process.Pid:
			return fmt.Errorf("process %d answers", s.PID)
		case !s.Synced || s.Frontends != len(n.services)*4:
			return fmt.Errorf("%d frontends, want %d", s.Frontends, len(n.services)*4)
		case len(s.Interfaces) < 2:
			return fmt.Errorf("%d interfaces are attached", len(s.Interfaces))
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("start %d of Weir: %w\n%s", n.starts, err, n.logTail())
	}
	return nil
}

func (n *node) logTail() string { return n.weir.LogTail(30) }

// status is the part of Weir's status that is looked at.
type status struct {
	PID        int    `json:"pid"`
	Synced     bool   `json:"synced"`
	Healthy    bool   `json:"healthy"`
	Unhealthy  string `json:"unhealthy"`
	Frontends  int    `json:"frontends"`
	Interfaces []struct {
		Name     string `json:"name"`
		IfIndex  int    `json:"ifindex"`
		Repeated struct {
			Packets uint64 `json:"packets"`
		} `json:"repeated"`
	} `json:"interfaces"`
	Flows struct {
		Current uint64 `json:"current"`
	} `json:"flows"`
	Neighbors []struct {
		Address string `json:"address"`
	} `json:"neighbors"`
	Drops   map[string]uint64 `json:"drops"`
	Workers []worker          `json:"workers"`
}

func (n *node) status(ctx context.Context) (*status, error) {
	s := &status{}
	return s, n.ask(ctx, "/v1/status", s)
}

// verification is Weir's account of the invariants of the flow table.
type verification struct {
	Connections int      `json:"connections"`
	Faults      []string `json:"faults"`
}

func (n *node) verify(ctx context.Context) (*verification, error) {
	v := &verification{}
	return v, n.ask(ctx, "/v1/verify", v)
}

func (n *node) ask(ctx context.Context, path string, into any) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://weir"+path, nil)
	if err != nil {
		return err
	}
	answer, err := n.admin.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", path, answer.Status)
	}
	return json.NewDecoder(answer.Body).Decode(into)
}

// madeAnew reports whether a difference of two states of the node is that of an interface
// which a fault made anew: routes have the number of the interface.
func (n *node) madeAnew(line string) bool {
	for _, index := range n.links {
		if strings.Contains(line, fmt.Sprintf(" interface %d ", index)) {
			return true
		}
	}
	return false
}
