package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"

	"github.com/weirlb/weir/perf/netlab/patience"
	"github.com/weirlb/weir/perf/netlab/weirtest"
)

// captureDemo writes packets of a running demo to a file, as soon as the filter is accepted: the
// name of a Service is, once it has a frontend.
func captureDemo(t *testing.T, temp string, packets int, filter ...string) (file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "demo.pcapng")
	args := append([]string{"capture", "-w", file, "--packets", fmt.Sprint(packets)}, filter...)
	for deadline := time.Now().Add(patience.For(30 * time.Second)); ; time.Sleep(50 * time.Millisecond) {
		out, err := []byte(nil), errors.New("no admin socket")
		if sockets, _ := filepath.Glob(filepath.Join(temp, "weir-lab-*/weir.sock")); len(sockets) == 1 {
			cmd := exec.CommandContext(inTime(t, 2*time.Minute), weirtest.Binary(t), append(args, "--admin-socket", sockets[0])...)
			out, err = cmd.CombinedOutput()
		}
		switch {
		case err == nil:
			return file
		case time.Now().After(deadline):
			t.Fatalf("weir %s: %v: %s", strings.Join(args, " "), err, out)
		}
	}
}

// checkDemoCapture reads a capture back by tshark and gopacket: each packet is there as received
// and as sent, each connection on both sides, with the addresses that the verdict names.
func checkDemoCapture(t *testing.T, file string) {
	t.Helper()
	type connection struct {
		packets int
		of      map[string]bool // interfaces
	}
	connections, frames, families := map[string]*connection{}, map[string]int{}, map[string]bool{}
	ends := decode(t, file)
	for i, p := range readBack(t, file) {
		if field(p.comment, "verdict") != "forward" || field(p.comment, "service") != "shop/web" {
			t.Errorf("%+v", p)
			continue
		}
		want := [2]string{field(p.comment, "client"), field(p.comment, "frontend")}
		if !strings.HasPrefix(p.of, "eth0 ") {
			want = [2]string{field(p.comment, "endpoint"), field(p.comment, "snat")}
		}
		if got := ends[i].between; got != want && got != [2]string{want[1], want[0]} {
			t.Errorf("a frame between %q, %+v", got, p)
		}
		families[ends[i].family] = true
		c := connections[field(p.comment, "connection")]
		if c == nil {
			c = &connection{of: map[string]bool{}}
			connections[field(p.comment, "connection")] = c
		}
		c.of[p.of] = true
		if frames[p.id]++; frames[p.id] == 1 {
			c.packets++
		}
	}
	for id, n := range frames {
		if n != 2 {
			t.Errorf("packet %s has %d frames, want those received and sent", id, n)
		}
	}
	for name, c := range connections {
		// A connection that begins at the end of the capture has packets of the client alone.
		if c.packets > 2 && len(c.of) != 4 {
			t.Errorf("connection %s: %d packets, on %v", name, c.packets, c.of)
		}
	}
	if len(connections) < 10 || len(families) != 4 {
		t.Errorf("%d connections, of %v; want TCP and UDP over IPv4 and IPv6", len(connections), families)
	}
}

// ends are addresses and ports of a frame.
type ends struct {
	between [2]string // source, destination
	family  string    // with the protocol
}

// decode reads a capture by gopacket.
func decode(t *testing.T, file string) (list []ends) {
	t.Helper()
	content, err := os.ReadFile(file)
	must(t, err)
	r, err := pcapgo.NewNgReader(bytes.NewReader(content), pcapgo.DefaultNgReaderOptions)
	must(t, err)
	for packet := range gopacket.NewPacketSource(r, layers.LayerTypeEthernet).Packets() {
		n, p := packet.NetworkLayer(), packet.TransportLayer()
		if n == nil || p == nil {
			t.Fatalf("not a packet of TCP or UDP: %v", packet)
		}
		address, port := n.NetworkFlow(), p.TransportFlow()
		list = append(list, ends{
			[2]string{net.JoinHostPort(address.Src().String(), port.Src().String()), net.JoinHostPort(address.Dst().String(), port.Dst().String())},
			fmt.Sprint(n.LayerType(), " ", p.LayerType()),
		})
	}
	return list
}

// checkDemoReplies reads back what Weir answers while the Service has no endpoint.
func checkDemoReplies(t *testing.T, file string) {
	t.Helper()
	list := readBack(t, file)
	if len(list) == 0 {
		t.Error("no client is refused")
	}
	for _, p := range list {
		if field(p.comment, "verdict") != "reply" || field(p.comment, "reason") != "no-endpoint" || field(p.comment, "service") != "shop/web" {
			t.Errorf("%+v", p)
		}
	}
}
