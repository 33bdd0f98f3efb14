package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/perf/netlab"
)

// sctpPort is the port of the Services' SCTP listeners, sctpTarget that of the endpoints.
const sctpPort, sctpTarget = 9, 9899

// sctpService is a Service with an SCTP port, next to a service of the lab: at the load
// balancer IPs .20x and node port 302xx.
func sctpService(s service) string {
	index := 200 + s.index
	return fmt.Sprintf(`---
apiVersion: v1
kind: Service
metadata: {namespace: test, name: sctp-%[1]s}
spec:
  type: LoadBalancer
  ipFamilyPolicy: RequireDualStack
  ipFamilies: [IPv4, IPv6]
  clusterIPs: [10.96.0.%[2]d, "fd96::%[2]d"]
  clusterIP: 10.96.0.%[2]d
  ports: [{name: sctp, protocol: SCTP, port: %[3]d, targetPort: %[4]d, nodePort: %[5]d}]
status: {loadBalancer: {ingress: [{ip: %[6]s}, {ip: "%[7]s"}]}}
`, s.name, index, sctpPort, sctpTarget, 30000+int(index), netlab.Host4(netlab.LBNet, index), netlab.Host6(netlab.LBNet, index)) +
		sctpSlice(s, false) + sctpSlice(s, true)
}

func sctpSlice(s service, six bool) string {
	return fmt.Sprintf(`---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: test, name: sctp-%[1]s-%[6]s, labels: {kubernetes.io/service-name: sctp-%[1]s}}
addressType: %[2]s
ports: [{name: sctp, protocol: SCTP, port: %[3]d}]
endpoints: [{addresses: ["%[4]s"], conditions: {ready: true}, nodeName: %[5]s}]
`, s.name, family(six), sctpTarget, s.endpoints[0].addr(six), s.endpoints[0].node, strings.ToLower(family(six)))
}

// sctpSocket makes a one-to-one socket in a namespace, bound to an address if it is valid.
func sctpSocket(n *netlab.Namespace, six bool, bind netip.AddrPort) (fd int, err error) {
	domain := unix.AF_INET
	if six {
		domain = unix.AF_INET6
	}
	err = n.Do(func() error {
		fd, err = unix.Socket(domain, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
		return err
	})
	if err != nil {
		return -1, fmt.Errorf("SCTP socket: %w", err)
	}
	if six { // else IPv4 addresses are part of the association
		err = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1)
	}
	timeout := unix.NsecToTimeval(within.Nanoseconds())
	err = errors.Join(err, unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &timeout))
	if err == nil && bind.IsValid() {
		err = unix.Bind(fd, sockaddr(bind))
	}
	if err != nil {
		return -1, errors.Join(err, unix.Close(fd))
	}
	return fd, nil
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}

// serveSCTP echoes what associations send, until the test ends.
func serveSCTP(t *testing.T, n *netlab.Namespace, at netip.AddrPort) {
	t.Helper()
	fd, err := sctpSocket(n, at.Addr().Is6(), at)
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		t.Skip("skipped: the kernel has no SCTP: ", err)
	}
	must(t, err)
	must(t, unix.Listen(fd, 16))
	file := os.NewFile(uintptr(fd), "sctp")
	l, err := net.FileListener(file) // a TCP listener by its type, of which only the socket counts
	must(t, errors.Join(err, file.Close()))
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.Copy(c, struct{ io.Reader }{c})
			}()
		}
	}()
}

// associate connects from a namespace; bind may be the zero AddrPort.
func associate(n *netlab.Namespace, to netip.AddrPort, bind netip.AddrPort) (net.Conn, error) {
	fd, err := sctpSocket(n, to.Addr().Is6(), bind)
	if err != nil {
		return nil, err
	}
	if err := unix.Connect(fd, sockaddr(to)); err != nil {
		return nil, errors.Join(fmt.Errorf("connect to %s: %w", to, err), unix.Close(fd))
	}
	file := os.NewFile(uintptr(fd), "sctp")
	c, err := net.FileConn(file)
	return c, errors.Join(err, file.Close())
}

// echoes sends messages of up to several DATA chunks and compares the answers.
func echoes(c net.Conn) error {
	for _, size := range []int{1, 100, 1400, 5000, 20000} {
		message := bytes.Repeat([]byte{byte(size)}, size)
		message[size-1] = 0xff
		if err := c.SetDeadline(time.Now().Add(within)); err != nil {
			return err
		}
		if _, err := c.Write(message); err != nil {
			return err
		}
		got := make([]byte, size)
		if _, err := io.ReadFull(c, got); err != nil {
			return fmt.Errorf("message of %d bytes: %w", size, err)
		}
		if !bytes.Equal(got, message) {
			return fmt.Errorf("a message of %d bytes came back changed", size)
		}
	}
	return nil
}

func checkAssociation(t *testing.T, n *netlab.Namespace, to, bind netip.AddrPort) {
	t.Helper()
	c, err := associate(n, to, bind)
	if err != nil {
		t.Error(err)
		return
	}
	defer c.Close()
	if err := echoes(c); err != nil {
		t.Errorf("%s: %v", to, err)
	}
}

// sctpErrors is the number of packets with a wrong checksum that a namespace received.
func sctpErrors(t *testing.T, n *netlab.Namespace) (count int) {
	t.Helper()
	must(t, n.Inside(func() error {
		text, err := os.ReadFile("/proc/thread-self/net/sctp/snmp")
		for line := range strings.Lines(string(text)) {
			if f := strings.Fields(line); len(f) == 2 && f[0] == "SctpChecksumErrors" {
				count, err = strconv.Atoi(f[1])
			}
		}
		return err
	}))
	return count
}

// Associations of the kernel's own SCTP pass by node port and load balancer IP; those with
// two addresses on a side are refused at once, and can be had with a single address.
func TestGuestSCTP(t *testing.T) {
	services := []service{toAttached, toPod}
	f := ownFixture(t, options{services: services, stopped: true, frontends: len(services) * (16 + 4)})
	at := map[string]*netlab.Namespace{"attached": f.ZoneA, "pod": f.Pod}
	var manifest strings.Builder
	for _, s := range services {
		for _, six := range []bool{false, true} {
			serveSCTP(t, at[s.name], netip.AddrPortFrom(s.endpoints[0].addr(six), sctpTarget))
		}
		manifest.WriteString(sctpService(s))
	}
	must(t, os.WriteFile(f.path("manifests/sctp.yaml"), []byte(manifest.String()), 0o644))
	must(t, f.start())
	for key, value := range map[string]string{"rto_initial": "1000", "rto_max": "4000", "max_init_retransmits": "6"} {
		must(t, f.Client.SetSysctl("net/sctp/"+key, value)) // a connect that fails does so in seconds
	}
	for _, s := range services {
		t.Run(s.name, func(t *testing.T) {
			bothFamilies(t, func(t *testing.T, six bool) {
				lb, node := netlab.Host4(netlab.LBNet, 200+s.index), s.atNode(0, six).Addr()
				if six {
					lb = netlab.Host6(netlab.LBNet, 200+s.index)
				}
				checkAssociation(t, f.Client, netip.AddrPortFrom(lb, sctpPort), netip.AddrPort{})
				checkAssociation(t, f.Client, netip.AddrPortFrom(node, 30200+uint16(s.index)), netip.AddrPort{})
			})
		})
	}
	if t.Failed() {
		t.Fatal(f.whatWasDropped())
	}
	to := netip.AddrPortFrom(netlab.Host4(netlab.LBNet, 200+toAttached.index), sctpPort)
	from := netip.AddrPortFrom(netlab.Host4(netlab.ClientNet, 2), 40001)
	t.Run("ABORT and the same port again", func(t *testing.T) {
		c, err := associate(f.Client, to, from)
		must(t, err)
		must(t, echoes(c))
		must(t, c.(*net.TCPConn).SetLinger(0))
		must(t, c.Close())
		checkAssociation(t, f.Client, to, from)
	})
	t.Run("two addresses", func(t *testing.T) {
		must(t, f.Client.AddAddr("eth0", netip.PrefixFrom(netlab.Host4(netlab.ClientNet, 22), 24)))
		if c, err := associate(f.Client, to, netip.AddrPort{}); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("%v, %v, want a refusal", c, err)
		}
		checkAssociation(t, f.Client, to, netip.AddrPortFrom(from.Addr(), 40002))
	})
	for _, n := range []*netlab.Namespace{f.Client, f.ZoneA, f.Pod} {
		if count := sctpErrors(t, n); count != 0 {
			t.Errorf("%s received %d packets with a wrong checksum", n.Name(), count)
		}
	}
	if t.Failed() {
		t.Log(f.whatWasDropped())
	}
}
