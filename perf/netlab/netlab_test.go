package netlab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/weirlb/weir/perf/netlab/patience"
)

func requireRoot(t *testing.T) {
	t.Helper()
	if err := Available(); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip("skipped: ", err)
	}
}

func newEdge(t *testing.T, cfg EdgeConfig) *Edge {
	t.Helper()
	requireRoot(t)
	e, err := NewEdge(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

// echoOnce serves one TCP connection on addr in n.
func echoOnce(t *testing.T, n *Namespace, addr netip.AddrPort) {
	t.Helper()
	l, err := n.Listen("tcp", addr.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		io.Copy(c, c)
	}()
}

func checkEcho(t *testing.T, from *Namespace, to netip.AddrPort) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience.For(5*time.Second))
	defer cancel()
	c, err := from.DialContext(ctx, "tcp", to.String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	want := []byte("through the lab")
	c.Write(want)
	c.(*net.TCPConn).CloseWrite()
	got, err := io.ReadAll(c)
	if err != nil || !bytes.Equal(got, want) {
		t.Fatalf("echo from %s: %q, %v", to, got, err)
	}
}

func TestWireEdgeNodeReachesEveryEndpoint(t *testing.T) {
	e := newEdge(t, EdgeConfig{})
	for _, at := range []struct {
		n             *Namespace
		network, host uint8
	}{{e.Client, ClientNet, 2}, {e.Pod, PodNet, 2}, {e.ZoneA, FabricNet, 11}, {e.Remote, RemoteNet, 2}, {e.ZoneB, ZoneBNet, 12}} {
		for _, a := range []netip.Addr{Host4(at.network, at.host), Host6(at.network, at.host)} {
			t.Run(at.n.Name()+"/"+a.String(), func(t *testing.T) {
				to := netip.AddrPortFrom(a, 8080)
				echoOnce(t, at.n, to)
				checkEcho(t, e.Edge, to)
			})
		}
	}
}

func TestWireEdgeNodeDoesNotForwardForClients(t *testing.T) {
	e := newEdge(t, EdgeConfig{})
	for _, a := range []netip.Addr{Host4(FabricNet, 11), Host6(FabricNet, 11)} {
		to := netip.AddrPortFrom(a, 8080)
		echoOnce(t, e.ZoneA, to)
		net4, net6 := netip.PrefixFrom(Host4(FabricNet, 0), 24), netip.PrefixFrom(Host6(FabricNet, 0), 64)
		if a.Is4() {
			if err := e.Client.AddRoute("eth0", net4, Host4(ClientNet, 1)); err != nil {
				t.Fatal(err)
			}
		} else if err := e.Client.AddRoute("eth0", net6, Host6(ClientNet, 1)); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
		c, err := e.Client.DialContext(ctx, "tcp", to.String())
		cancel()
		if err == nil {
			c.Close()
			t.Errorf("the edge node's kernel carried a connection to %s", to)
		}
	}
}

func TestWireProcessSeesItsNamespaceAndDiesWithIt(t *testing.T) {
	e := newEdge(t, EdgeConfig{})
	var out bytes.Buffer
	cmd := exec.Command("/bin/ls", "/sys/class/net", "/sys/fs/bpf")
	cmd.Stdout = &out
	p, err := e.Edge.Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Err(); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"cni0", "eth0", "eth1", "vxlan0"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%s is not in /sys/class/net:\n%s", want, &out)
		}
	}
	sleeper, err := e.Edge.Start(exec.Command("/bin/sleep", "600"))
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	if code := sleeper.ExitCode(); code != -1 {
		t.Errorf("exit code %d, want a signal", code)
	}
	if _, err := os.Stat(e.Dir()); !os.IsNotExist(err) {
		t.Errorf("%s is still there: %v", e.Dir(), err)
	}
}

func TestWireForwardJoinsConnections(t *testing.T) {
	e := newEdge(t, EdgeConfig{})
	to := netip.MustParseAddrPort("127.0.0.1:8080")
	echoOnce(t, e.Client, to)
	at, err := e.Forward(e.Edge, "127.0.0.1:0", func(net.Conn) (net.Conn, error) { return e.Client.DialContext(t.Context(), "tcp", to.String()) })
	if err != nil {
		t.Fatal(err)
	}
	checkEcho(t, e.Edge, netip.MustParseAddrPort(at.String()))
}

func TestWireSysctlsBelongToTheNamespace(t *testing.T) {
	e := newEdge(t, EdgeConfig{})
	const key = "net/ipv4/conf/all/rp_filter"
	before, err := e.Client.Sysctl(key)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Edge.SetSysctl(key, "2"); err != nil {
		t.Fatal(err)
	}
	got, err := e.Edge.Sysctl(key)
	if err != nil || got != "2" {
		t.Errorf("edge: %q, %v", got, err)
	}
	if got, err := e.Client.Sysctl(key); err != nil || got != before {
		t.Errorf("client: %q, %v, want %q", got, err, before)
	}
}

func TestWireCountersAreTheNamespaces(t *testing.T) {
	e := newEdge(t, EdgeConfig{})
	to := netip.AddrPortFrom(Host4(FabricNet, 11), 8080)
	before, err := e.ZoneA.Counters()
	if err != nil {
		t.Fatal(err)
	}
	echoOnce(t, e.ZoneA, to)
	checkEcho(t, e.Edge, to)
	after, err := e.ZoneA.Counters()
	if err != nil {
		t.Fatal(err)
	}
	d := after.Sub(before)
	if d["TcpPassiveOpens"] != 1 {
		t.Errorf("TcpPassiveOpens grew by %d, want 1", d["TcpPassiveOpens"])
	}
	for _, k := range []string{"TcpInCsumErrors", "UdpInCsumErrors", "Udp6InCsumErrors", "TcpExtTCPSynRetrans"} {
		if v, ok := after[k]; !ok || v != 0 {
			t.Errorf("%s = %d, present %t", k, v, ok)
		}
	}
}

// An address that no interface holds is a neighbor of the client as long as there is a
// responder, also after the interface was down.
func TestWireResponderAnswersForAddressesNobodyHolds(t *testing.T) {
	e := newEdge(t, EdgeConfig{NoOverlay: true})
	addrs := []netip.Addr{Host4(ClientNet, 100), Host6(ClientNet, 100)}
	r, err := NewResponder(e.Edge, "eth0", addrs...)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	checkResolves(t, e, addrs)
	edge, err := e.Edge.Interface("eth0")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(e.Edge.Netlink().LinkSetDown(edge), e.Edge.up("eth0"), e.Client.waitUp("eth0")); err != nil {
		t.Fatal(err)
	}
	client, err := e.Client.Interface("eth0")
	if err != nil {
		t.Fatal(err)
	}
	before := r.Answers()
	for _, a := range addrs {
		if err := e.Client.Netlink().NeighDel(&netlink.Neigh{LinkIndex: client.Attrs().Index, IP: a.AsSlice()}); err != nil {
			t.Fatal(err)
		}
	}
	checkResolves(t, e, addrs)
	if n := r.Answers() - before; n < 2 {
		t.Errorf("%d answers after the interface was down", n)
	}
}

// checkResolves waits until the client's kernel has the edge node's MAC address for each
// address.
func checkResolves(t *testing.T, e *Edge, addrs []netip.Addr) {
	t.Helper()
	edge, err := e.Edge.Interface("eth0")
	if err != nil {
		t.Fatal(err)
	}
	client, err := e.Client.Interface("eth0")
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		c, err := e.Client.DialContext(t.Context(), "udp", netip.AddrPortFrom(a, 9).String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		for deadline := time.Now().Add(patience.For(5 * time.Second)); ; time.Sleep(10 * time.Millisecond) {
			c.Write(nil) // also after an error of an earlier datagram
			neighs, err := e.Client.Netlink().NeighList(client.Attrs().Index, netlink.FAMILY_ALL)
			if err != nil {
				t.Fatal(err)
			}
			if slices.ContainsFunc(neighs, func(n netlink.Neigh) bool {
				return n.IP.Equal(a.AsSlice()) && bytes.Equal(n.HardwareAddr, edge.Attrs().HardwareAddr)
			}) {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("no neighbor %s with the edge node's MAC in %v", a, neighs)
			}
		}
	}
}

func TestWireStateShowsWhatIsLeftBehind(t *testing.T) {
	e := newEdge(t, EdgeConfig{})
	before, err := StateOf(e.Edge)
	if err != nil {
		t.Fatal(err)
	}
	echoOnce(t, e.ZoneA, netip.AddrPortFrom(Host4(FabricNet, 11), 8080))
	checkEcho(t, e.Edge, netip.AddrPortFrom(Host4(FabricNet, 11), 8080))
	same, err := StateOf(e.Edge)
	if err != nil {
		t.Fatal(err)
	}
	if d := before.Diff(same); len(d) > 0 {
		t.Errorf("traffic alone changed the state:\n%s", strings.Join(d, "\n"))
	}
	if err := e.Edge.Bridge("left", nil, netip.MustParsePrefix("192.0.2.1/24")); err != nil {
		t.Fatal(err)
	}
	if err := e.Edge.SetSysctl("net/ipv4/conf/eth0/forwarding", "1"); err != nil {
		t.Fatal(err)
	}
	if err := e.Edge.Inside(func() error { return os.Mkdir("/sys/fs/bpf/weir", 0o700) }); err != nil {
		t.Fatal(err)
	}
	after, err := StateOf(e.Edge)
	if err != nil {
		t.Fatal(err)
	}
	diff := strings.Join(before.Diff(after), "\n")
	for _, want := range []string{"+ link left: bridge", "+ address 192.0.2.1/24 on left", "+ route 192.0.2.1/32",
		"+ offload left", "! setting net/ipv4/conf/eth0/forwarding: 1, was 0", "+ pin /sys/fs/bpf/weir"} {
		if !strings.Contains(diff, want) {
			t.Errorf("no %q in\n%s", want, diff)
		}
	}
}

func TestWireUnacknowledgedTCPIsCounted(t *testing.T) {
	e := newEdge(t, EdgeConfig{NoOverlay: true})
	to := netip.AddrPortFrom(Host4(FabricNet, 11), 8080)
	l, err := e.ZoneA.Listen("tcp", to.String())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() // the kernel accepts, and nobody reads
	c, err := e.Edge.DialContext(context.Background(), "tcp", to.String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if n, err := e.Edge.UnacknowledgedTCP(); err != nil || n != 0 {
		t.Errorf("at first: %d, %v", n, err)
	}
	// More than fits; the rest is cut off by the deadline. On a machine that pauses until then the
	// receiver has room for all that has been sent.
	for end := time.Now().Add(patience.For(5 * time.Second)); ; {
		c.SetWriteDeadline(time.Now().Add(200 * time.Millisecond))
		c.Write(make([]byte, 64<<20))
		n, err := e.Edge.UnacknowledgedTCP()
		if err == nil && n > 0 {
			break
		}
		if err != nil || time.Now().After(end) {
			t.Fatalf("with full buffers: %d, %v", n, err)
		}
	}
}

func TestWireReapRemovesOnlyWhatTheDeadLeft(t *testing.T) {
	requireRoot(t)
	self, err := processOwner(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	dead := filepath.Join(os.TempDir(), fmt.Sprintf("%s%s-%d-%d-1", namePrefix, self.pidNamespace, self.pid, self.start-1))
	elsewhere := filepath.Join(os.TempDir(), fmt.Sprintf("%s1-%d-%d-1", namePrefix, self.pid, self.start-1))
	lab, err := New()
	if err != nil {
		t.Fatal(err)
	}
	defer lab.Close()
	for _, d := range []string{dead, elsewhere} {
		if err := os.MkdirAll(filepath.Join(d, "x"), 0o755); err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(d)
	}
	if err := Reap(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dead); !os.IsNotExist(err) {
		t.Errorf("a dead process's directory is still there: %v", err)
	}
	for _, d := range []string{elsewhere, lab.Dir()} {
		if _, err := os.Stat(d); err != nil {
			t.Errorf("removed what may be in use: %v", err)
		}
	}
}

func TestParseOwner(t *testing.T) {
	for name, want := range map[string]bool{
		"weir-lab-4026531836-12-345-1":        true,
		"weir-lab-4026531836-12-345-1-client": true,
		"weir-lab-4026531836-12-345":          false,
		"weir-lab-x-y-z-1":                    false,
		"cni-1234":                            false,
	} {
		if o, ok := parseOwner(name); ok != want {
			t.Errorf("parseOwner(%q) = %v, %t", name, o, ok)
		}
	}
}
