package programming

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/perf/netlab"
)

// Names of peers.
const (
	peerWeir      = "weir"
	peerKubeProxy = "kube-proxy"
)

func peerNames() []string { return []string{peerWeir, peerKubeProxy} }

// site is the network with client, node and endpoints. A peer has a new one: none leaves rules to
// another.
type site struct {
	*netlab.Edge
	api string // the API server, as 127.0.0.1:PORT
}

func newSite(c *cluster) (_ *site, err error) {
	lab, err := netlab.NewEdge(netlab.EdgeConfig{NoOverlay: true})
	if err != nil {
		return nil, err
	}
	s := &site{Edge: lab, api: c.server}
	defer func() {
		if err != nil {
			err = errors.Join(err, lab.Close())
		}
	}()
	for _, step := range []func() error{
		func() error { return s.Client.AddRoute("eth0", serviceNet, netlab.Host4(netlab.ClientNet, 1)) },
		func() error { return s.Edge.Edge.AddRoute("eth1", endpointNet, netlab.Host4(netlab.FabricNet, 11)) },
		func() error { return s.ZoneA.AddLocal(endpointNet) },
		func() error { return s.Edge.Edge.SetSysctl("net/ipv4/ip_forward", "1") }, // for kube-proxy
		s.mountTables, s.serve, s.forwardAPI,
	} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// tables is the directory of Weir's flow table.
func (s *site) tables() string { return filepath.Join(s.Dir(), "tables") }

// mountTables mounts a file system in memory for the flow table, as /run is on a node. It ends
// with the node.
func (s *site) mountTables() error {
	if err := os.Mkdir(s.tables(), 0o700); err != nil {
		return err
	}
	return s.Edge.Edge.Inside(func() error { return unix.Mount("tmpfs", s.tables(), "tmpfs", 0, "size=75%") })
}

// serve has every endpoint answer a connection with its address.
func (s *site) serve() error {
	l, err := s.ZoneA.Listen("tcp4", fmt.Sprintf("0.0.0.0:%d", endpointPort))
	if err != nil {
		return err
	}
	s.OnClose(l.Close)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				a := conn.LocalAddr().(*net.TCPAddr).AddrPort().Addr().As4()
				_ = conn.SetDeadline(time.Now().Add(time.Minute))
				_, _ = conn.Write(a[:])
				_, _ = io.Copy(io.Discard, conn) // the client closes first
			}()
		}
	}()
	return nil
}

// forwardAPI lets the node reach the API server, which listens on the loopback of another
// namespace, at the same address.
func (s *site) forwardAPI() error {
	_, err := s.Forward(s.Edge.Edge, s.api, func(net.Conn) (net.Conn, error) { return net.Dial("tcp", s.api) })
	return err
}

// start starts a peer on the node.
func (s *site) start(name string, o *options, c *cluster) (*netlab.Daemon, error) {
	cmd := exec.Command(o.kubeProxy, "--kubeconfig="+c.kubeconfig, "--proxy-mode=nftables", "--hostname-override="+nodeName,
		"--cluster-cidr=10.40.0.0/16", "--bind-address=127.0.0.1", "--conntrack-max-per-core=0")
	if name == peerWeir {
		config := filepath.Join(s.Dir(), "config.yaml")
		if err := os.WriteFile(config, fmt.Appendf(nil, configuration, nodeName, c.kubeconfig, s.Dir(), s.tables()), 0o644); err != nil {
			return nil, err
		}
		cmd = exec.Command(o.weir, "run", "--config", config)
	}
	return s.Edge.Edge.StartDaemon(cmd, filepath.Join(s.Dir(), name+".log"))
}

const configuration = `apiVersion: weir.dev/v1alpha1
kind: WeirConfiguration
nodeName: %[1]s
discovery: {kubernetes: {kubeconfig: %[2]s}}
interfaces: [{name: eth0}, {name: eth1}]
clusterIPs: true
conntrack: {path: %[4]s/flows, takeoverSeconds: 0}
admin: {socket: %[3]s/weir.sock}
drain: {notReadySeconds: 0, timeoutSeconds: 0}
stateDir: ""
`

// connectWithin bounds a connection with its answer: longer than a SYN is sent again.
const connectWithin = 3 * time.Second

// reached opens a connection to a Service and returns the endpoint that answers.
func (s *site) reached(ctx context.Context, service netip.Addr) (a netip.Addr, err error) {
	ctx, cancel := context.WithTimeout(ctx, connectWithin)
	defer cancel()
	conn, err := s.Client.DialContext(ctx, "tcp4", netip.AddrPortFrom(service, servicePort).String())
	if err != nil {
		return a, err
	}
	defer conn.Close()
	_ = conn.(*net.TCPConn).SetLinger(0) // no TIME_WAIT: there are many connections
	_ = conn.SetDeadline(time.Now().Add(connectWithin))
	var answer [4]byte
	if _, err := io.ReadFull(conn, answer[:]); err != nil {
		return a, err
	}
	return netip.AddrFrom4(answer), nil
}
