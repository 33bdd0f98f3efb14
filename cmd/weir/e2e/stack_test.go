package e2e

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/labtest"
)

// Programs that others wrote, with every habit of theirs, talk through each
// mode. nginx and iperf3 have ports of their own: the fixture's servers use the
// usual ones.
const nginxPort, iperfPort = 8000, 5201

var stackServices = []modeService{
	{mode: "nat", index: 61, at: attached},
	{mode: "dnat", index: 62, at: pod},
	{mode: "l2dsr", index: 63, at: attached},
	{mode: "ipip", index: 64, at: routed},
	{mode: "gue", index: 65, at: routed},
}

var stackPorts = []string{
	fmt.Sprintf("{name: web, protocol: TCP, port: %d}", nginxPort),
	fmt.Sprintf("{name: iperf, protocol: TCP, port: %d}", iperfPort),
	fmt.Sprintf("{name: iperf-udp, protocol: UDP, port: %d}", iperfPort),
}

// vip is the Service's load balancer IP.
func (s modeService) vip(six bool) netip.Addr {
	if six {
		return netlab.Host6(netlab.LBNet, s.index)
	}
	return netlab.Host4(netlab.LBNet, s.index)
}

// listens is the address that the servers listen on: the endpoint's, or where
// nothing is translated the frontend's.
func (s modeService) listens(six bool) netip.Addr {
	if s.mode == "nat" || s.mode == "dnat" {
		return s.at.addr(six)
	}
	return s.vip(six)
}

// requirePrograms skips without the programs, and fails in CI, which must have
// them.
func requirePrograms(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		if _, err := exec.LookPath(name); err != nil {
			labtest.Skip(t, fmt.Sprintf("%v: .ci/programs installs it", err))
		}
	}
}

// curl fetches a file from nginx, and iperf3 fills the way in each direction.
func TestWireRealStacks(t *testing.T) {
	labtest.Require(t)
	requirePrograms(t, "curl", "iperf3", "nginx")
	f := ownFixture(t, options{stopped: true, frontends: len(stackServices) * len(stackPorts) * 2})
	if err := f.addReturnLink(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(f.manifest(), []byte(modeManifests(stackServices, stackPorts)), 0o644); err != nil {
		t.Fatal(err)
	}
	want := f.startStacks(t)
	if err := f.start(); err != nil {
		t.Fatal(err)
	}
	f.checkChecksums(t)
	for _, s := range stackServices {
		t.Run(s.mode, func(t *testing.T) {
			bothFamilies(t, func(t *testing.T, six bool) {
				seen := netip.PrefixFrom(clientAddr(six), clientAddr(six).BitLen())
				if s.mode == "nat" {
					seen = seenAs(s.at, six)
				}
				t.Run("curl", func(t *testing.T) { f.checkCurl(t, netip.AddrPortFrom(s.vip(six), nginxPort), seen, want) })
				for name, args := range map[string][]string{
					"iperf3 TCP":     {"-n", "32M"},
					"iperf3 TCP, -R": {"-n", "32M", "-R"},
					"iperf3 UDP":     {"-u", "-b", "20M", "-l", "1200", "-n", "512K"},
					// In fragments that fit a tunnel's packets or not.
					"iperf3 UDP, 4000 bytes": {"-u", "-b", "20M", "-l", "4000", "-n", "512K"},
				} {
					t.Run(name, func(t *testing.T) { f.checkIperf(t, s.vip(six), seen, args) })
				}
				if t.Failed() {
					t.Log(f.whatWasDropped())
				}
			})
		})
	}
}

// startStacks gives the endpoints their addresses and servers, and returns the
// sum of the file that nginx has.
func (f *fixture) startStacks(t *testing.T) [sha256.Size]byte {
	t.Helper()
	file := make([]byte, 8<<20+1)
	_, _ = rand.NewChaCha8([32]byte{61}).Read(file)
	if err := os.WriteFile(f.path("file"), file, 0o644); err != nil {
		t.Fatal(err)
	}
	var tunnelled []string
	for _, s := range stackServices {
		for _, six := range []bool{false, true} {
			switch s.mode {
			case "l2dsr":
				if err := f.ZoneA.AddAddr("lo", netip.PrefixFrom(s.vip(six), s.vip(six).BitLen())); err != nil {
					t.Fatal(err)
				}
			case "ipip", "gue":
				tunnelled = append(tunnelled, s.vip(six).String())
			}
		}
	}
	f.startDecap(t, f.ZoneB, "--address", strings.Join(tunnelled, ","))
	hosts := map[endpoint]*netlab.Namespace{attached: f.ZoneA, pod: f.Pod, routed: f.ZoneB}
	for _, n := range hosts {
		f.startNginx(t, n)
	}
	// One for each address: a UDP server that listens on all answers from
	// the one that the kernel's routes choose.
	for _, s := range stackServices {
		for _, six := range []bool{false, true} {
			a := s.listens(six)
			f.startServer(t, hosts[s.at], netip.AddrPortFrom(a, iperfPort),
				exec.Command("iperf3", "-s", "-J", "-B", a.String(), "-p", strconv.Itoa(iperfPort)))
		}
	}
	return sha256.Sum256(file)
}

// startNginx serves the lab's directory on all addresses of a host.
func (f *fixture) startNginx(t *testing.T, n *netlab.Namespace) {
	t.Helper()
	dir := f.path("nginx-" + n.Name())
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	config := fmt.Sprintf(`user root;
daemon off;
master_process off;
worker_processes 1;
pid %[1]s/pid;
error_log stderr error;
events { worker_connections 64; }
http {
  access_log off;
  sendfile on;
  client_body_temp_path %[1]s/body;
  proxy_temp_path %[1]s/proxy;
  fastcgi_temp_path %[1]s/fastcgi;
  uwsgi_temp_path %[1]s/uwsgi;
  scgi_temp_path %[1]s/scgi;
  server {
    listen %[2]d;
    listen [::]:%[2]d;
    root %[3]s;
    add_header X-Seen-As $remote_addr;
  }
}
`, dir, nginxPort, f.Dir())
	if err := os.WriteFile(dir+"/nginx.conf", []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	f.startServer(t, n, netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), nginxPort),
		exec.Command("nginx", "-e", "stderr", "-p", dir, "-c", dir+"/nginx.conf"))
}

// startServer runs a program until the lab closes, and waits until it accepts
// connections.
func (f *fixture) startServer(t *testing.T, n *netlab.Namespace, at netip.AddrPort, cmd *exec.Cmd) {
	t.Helper()
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	p, err := n.Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	f.OnClose(p.Kill)
	ctx := inTime(t, within)
	for {
		c, err := n.DialContext(ctx, "tcp", at.String())
		if err == nil {
			c.Close()
			return
		}
		select {
		case <-p.Done():
			t.Fatalf("%s has ended (%v): %s", cmd.Path, p.Err(), &said)
		case <-ctx.Done():
			t.Fatalf("%s does not accept: %v", cmd.Path, err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// output runs a program to its end.
func output(n *netlab.Namespace, name string, args ...string) ([]byte, error) {
	var out, errs bytes.Buffer
	cmd := exec.Command(name, args...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	p, err := n.Start(cmd)
	if err != nil {
		return nil, err
	}
	select {
	case <-p.Done():
	case <-time.After(within):
		_ = p.Kill()
	}
	if err := p.Err(); err != nil {
		return out.Bytes(), fmt.Errorf("%s: %w: %s", name, err, &errs)
	}
	return out.Bytes(), nil
}

func (f *fixture) checkCurl(t *testing.T, from netip.AddrPort, seen netip.Prefix, want [sha256.Size]byte) {
	got := f.path("fetched")
	head, err := output(f.Client, "curl", "-q", "-sS", "-g", "--noproxy", "*", "-D", "-", "-o", got, fmt.Sprintf("http://%s/file", from))
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(head)), nil)
	if err != nil {
		t.Fatalf("%v: %q", err, head)
	}
	client, err := netip.ParseAddr(answer.Header.Get("X-Seen-As"))
	if err != nil || !seen.Contains(client) {
		t.Errorf("nginx saw %q, want an address of %s", answer.Header.Get("X-Seen-As"), seen)
	}
	file, err := os.ReadFile(got)
	if err != nil {
		t.Fatal(err)
	}
	if answer.StatusCode != http.StatusOK || sha256.Sum256(file) != want {
		t.Errorf("%s: %d bytes, not what nginx has", answer.Status, len(file))
	}
}

// iperf is what iperf3 -J prints, as far as it is looked at.
type iperf struct {
	Error string
	Start struct {
		Connected []struct {
			Remote string `json:"remote_host"`
		}
	}
	End struct {
		Sum struct {
			Packets int
			Lost    int `json:"lost_packets"`
		}
		Received struct{ Bytes int64 } `json:"sum_received"`
	}
	Server *iperf `json:"server_output_json"`
}

func (f *fixture) checkIperf(t *testing.T, to netip.Addr, seen netip.Prefix, args []string) {
	args = append([]string{"-c", to.String(), "-p", strconv.Itoa(iperfPort), "-J", "--get-server-output"}, args...)
	var r iperf
	// The server takes its time to be done with the client before: it calls itself
	// busy, or resets the control connection before the test begins, or makes its
	// listening socket anew meanwhile. Where the path's MTU is learned on the way
	// iperf3 gives up (EMSGSIZE).
	for deadline := time.Now().Add(within); ; time.Sleep(20 * time.Millisecond) {
		out, failed := output(f.Client, "iperf3", args...)
		r = iperf{}
		if err := json.Unmarshal(out, &r); err != nil {
			t.Fatalf("%v, %v: %s", failed, err, out)
		}
		if failed == nil && r.Error == "" {
			break
		}
		says := func(part string) bool { return strings.Contains(r.Error, part) }
		notYet := says("unable to receive control message") || says("unable to connect to server: Connection re") ||
			says("unable to send cookie to server: Connection reset")
		again := says("busy") || says("Message too long") || notYet && len(r.Start.Connected) == 0
		if !again || time.Now().After(deadline) {
			t.Fatalf("%v: %s", failed, r.Error)
		}
	}
	if r.End.Received.Bytes < 1<<20 && 2*r.End.Sum.Lost >= r.End.Sum.Packets {
		t.Errorf("%d bytes arrived, %d of %d datagrams were lost", r.End.Received.Bytes, r.End.Sum.Lost, r.End.Sum.Packets)
	}
	if r.Server == nil || len(r.Server.Start.Connected) == 0 {
		t.Fatal("the server says nothing")
	}
	for _, c := range r.Server.Start.Connected {
		if client, err := netip.ParseAddr(c.Remote); err != nil || !seen.Contains(client.Unmap()) {
			t.Errorf("the server saw %q, want an address of %s", c.Remote, seen)
		}
	}
}
