package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weirlb/weir/perf/netlab"
)

// The ports of a range that have servers, and the port that the Services name.
var rangeServers = []uint16{20000, 20057, 20099}

const rangePort = 20010

// rangeServices have a Service for TCP and the next index for UDP.
var rangeServices = []modeService{
	{mode: "nat", index: 71, at: attached},
	{mode: "dnat", index: 73, at: pod},
	{mode: "l2dsr", index: 75, at: attached},
	{mode: "gue", index: 77, at: routed},
}

// Every port of a range is served in every mode, at the same port of the endpoint, by a single
// frontend. A Service with one of the ports alone has that. Connections outlive a restart.
func TestWirePortRange(t *testing.T) {
	const annotation = `, weir.dev/port-range: "20000-20099"}}`
	var udp []modeService
	for _, s := range rangeServices {
		s.index++
		udp = append(udp, s)
	}
	f := ownFixture(t, options{stopped: true, frontends: len(rangeServices) * 4})
	must(t, f.addReturnLink())
	manifests := modeManifests(rangeServices, []string{fmt.Sprintf("{name: any, protocol: TCP, port: %d}", rangePort)}) +
		modeManifests(udp, []string{fmt.Sprintf("{name: any, protocol: UDP, port: %d}", rangePort)})
	manifests = strings.ReplaceAll(manifests, "}}\nspec", annotation+"\nspec")
	must(t, os.WriteFile(f.manifest(), []byte(manifests), 0o644))
	var tunnelled []string
	for _, s := range append(udp, rangeServices...) {
		if s.mode == "gue" {
			tunnelled = append(tunnelled, s.vip(false).String(), s.vip(true).String())
		}
	}
	f.startDecap(t, f.ZoneB, "--address", strings.Join(tunnelled, ","))
	f.serveRanges(t, "tcp", rangeServices)
	f.serveRanges(t, "udp", udp)
	must(t, f.start())

	list, err := f.admin.Frontends(inTime(t, within))
	must(t, err)
	for _, x := range list.Frontends {
		if !strings.HasSuffix(x.Address, ":20000-20099") || x.PortName != "any" {
			t.Errorf("a frontend is %s with port %q", x.Address, x.PortName)
		}
	}
	f.askRanges(t, "at the start", udp)
	kept, err := f.Client.DialContext(inTime(t, within), "tcp", netip.AddrPortFrom(rangeServices[0].vip(false), rangeServers[2]).String())
	must(t, err)
	defer kept.Close()
	checkRange(t, kept, rangeServers[2])

	one := modeService{mode: "nat", index: rangeServices[0].index, at: routed}
	single := strings.ReplaceAll(modeManifests([]modeService{one}, []string{fmt.Sprintf("{name: one, protocol: TCP, port: %d}", rangeServers[1])}), "nat-", "one-")
	listenRange(t, f, f.ZoneB, "tcp", netip.AddrPortFrom(routed.addr(false), rangeServers[1]), "one")
	must(t, os.WriteFile(f.path("manifests/one.yaml"), []byte(single), 0o644))
	f.opts.frontends += 2
	must(t, f.served(0))
	for port, want := range map[uint16]string{rangeServers[0]: "20000", rangeServers[1]: "one"} {
		if got := f.askRange(t, "tcp", netip.AddrPortFrom(one.vip(false), port)); got != want {
			t.Errorf("port %d: %q answers, want %q", port, got, want)
		}
	}
	must(t, os.Remove(f.path("manifests/one.yaml")))
	f.opts.frontends -= 2
	must(t, f.served(0))

	must(t, errors.Join(endedBy(t, f, syscall.SIGUSR2), f.start()))
	checkRange(t, kept, rangeServers[2])
	f.askRanges(t, "after a restart", udp)

	// The range is gone: the connection goes on.
	must(t, os.WriteFile(f.manifest(), []byte(strings.ReplaceAll(manifests, "20000-20099", "20000-20012")), 0o644))
	must(t, f.poll(func(ctx context.Context) error {
		list, err := f.admin.Frontends(ctx)
		if err == nil && !strings.HasSuffix(list.Frontends[0].Address, "-20012") {
			err = fmt.Errorf("frontend %s", list.Frontends[0].Address)
		}
		return err
	}))
	checkRange(t, kept, rangeServers[2])
	c, err := f.Client.DialWith(inTime(t, within), &net.Dialer{Timeout: time.Second}, "tcp", netip.AddrPortFrom(one.vip(false), rangeServers[2]).String())
	if err == nil {
		c.Close()
		t.Error("a port that is in the range no more takes a connection")
	}
}

// serveRanges starts the servers of Services.
func (f *fixture) serveRanges(t *testing.T, network string, services []modeService) {
	t.Helper()
	hosts := map[endpoint]*netlab.Namespace{attached: f.ZoneA, pod: f.Pod, routed: f.ZoneB}
	for _, s := range services {
		for _, six := range []bool{false, true} {
			if a := s.vip(six); s.mode == "l2dsr" {
				must(t, f.ZoneA.AddAddr("lo", netip.PrefixFrom(a, a.BitLen())))
			}
			for _, port := range rangeServers {
				listenRange(t, f, hosts[s.at], network, netip.AddrPortFrom(s.listens(six), port), fmt.Sprint(port))
			}
		}
	}
}

// listenRange starts a server that answers each line, or datagram, with its name.
func listenRange(t *testing.T, f *fixture, n *netlab.Namespace, network string, at netip.AddrPort, name string) {
	t.Helper()
	if network == "udp" {
		conn, err := n.ListenPacket("udp", at.String())
		must(t, err)
		f.OnClose(conn.Close)
		go func() {
			buf := make([]byte, 64)
			for {
				_, from, err := conn.ReadFrom(buf)
				if err != nil {
					return
				}
				_, _ = conn.WriteTo([]byte(name+"\n"), from)
			}
		}()
		return
	}
	l, err := n.Listen("tcp", at.String())
	must(t, err)
	f.OnClose(l.Close)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				for lines := bufio.NewScanner(conn); lines.Scan(); {
					_, _ = conn.Write([]byte(name + "\n"))
				}
			}()
		}
	}()
}

// askRanges asks the servers of rangeServices, and of those of udp.
func (f *fixture) askRanges(t *testing.T, when string, udp []modeService) {
	t.Helper()
	for i := range rangeServices {
		for network, s := range map[string]modeService{"tcp": rangeServices[i], "udp": udp[i]} {
			for _, six := range []bool{false, true} {
				for _, port := range rangeServers {
					to := netip.AddrPortFrom(s.vip(six), port)
					if got := f.askRange(t, network, to); got != fmt.Sprint(port) {
						t.Errorf("%s: %s, %s %v: %q answers; %s", when, s.mode, network, to, got, f.whatWasDropped())
					}
				}
			}
		}
	}
}

// askRange returns the name of the server that answers a client.
func (f *fixture) askRange(t *testing.T, network string, to netip.AddrPort) string {
	t.Helper()
	conn, err := f.Client.DialContext(inTime(t, within), network, to.String())
	if err != nil {
		return err.Error()
	}
	defer conn.Close()
	return ask(conn)
}

func ask(conn net.Conn) string {
	for range 10 { // datagrams may be lost
		_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
		if _, err := conn.Write([]byte("who\n")); err != nil {
			return err.Error()
		}
		line, err := bufio.NewReader(conn).ReadString('\n')
		if err == nil {
			return strings.TrimSpace(line)
		}
		if conn.RemoteAddr().Network() == "tcp" {
			return err.Error()
		}
	}
	return "nobody"
}

func checkRange(t *testing.T, conn net.Conn, port uint16) {
	t.Helper()
	if got := ask(conn); got != fmt.Sprint(port) {
		t.Errorf("%q answers on the connection to port %d", got, port)
	}
}
