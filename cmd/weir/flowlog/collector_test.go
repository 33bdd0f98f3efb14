package flowlog

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"

	"github.com/weirlb/weir/perf/netlab/labtest"
	"github.com/weirlb/weir/perf/netlab/patience"
)

var begin = time.Date(2026, 5, 1, 10, 0, 0, 250e6, time.UTC)

// testEvents are starts and ends of all families: the endpoint has another in a tunnel.
func testEvents() (list []Event) {
	at := netip.MustParseAddrPort
	for _, e := range []Event{
		{proto: 6, Protocol: "TCP", Client: at("192.0.2.1:1001"), Frontend: at("192.0.2.2:80"), SNAT: at("10.0.0.1:61001"), Endpoint: at("10.0.0.2:8080"), Reason: Closed},
		{proto: 17, Protocol: "UDP", Client: at("[2001:db8::1]:1002"), Frontend: at("[2001:db8::2]:53"), SNAT: at("[fd00::1]:61002"), Endpoint: at("[fd00::2]:5353"), Reason: Evicted},
		{proto: 6, Protocol: "TCP", Client: at("[2001:db8::1]:1003"), Frontend: at("[2001:db8::2]:80"), Endpoint: at("10.0.0.3:80"), Reason: Idle},
		{proto: 17, Protocol: "UDP", Client: at("192.0.2.1:1004"), Frontend: at("192.0.2.2:80"), Endpoint: at("[fd00::3]:80"), Reason: Removed},
	} {
		e.Service, e.Zone, e.Start = "default/web", "zone-a", begin
		e.Event = Start
		list = append(list, e)
		e.Event, e.End = End, begin.Add(90*time.Second)
		e.Counts = &Counts{5, 500, 4, 1 << 33}
		list = append(list, e)
	}
	return list
}

// datagrams are those that an exporter sends of events.
func datagrams(t *testing.T, events []Event, n int) (out [][]byte) {
	t.Helper()
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	x := newExporter(netip.MustParseAddrPort(c.LocalAddr().String()))
	defer x.close()
	if lost, err := x.write(events); lost != 0 || err != nil {
		t.Fatal(lost, err)
	}
	_ = c.SetReadDeadline(time.Now().Add(patience.For(5 * time.Second)))
	for range n {
		buf := make([]byte, 1<<16)
		size, _, err := c.ReadFrom(buf)
		if err != nil {
			t.Fatalf("after %d datagrams: %v", len(out), err)
		}
		out = append(out, buf[:size])
	}
	return out
}

// tshark reads all fields of all records.
func TestTsharkReadsRecords(t *testing.T) {
	tshark, err := exec.LookPath("tshark")
	if err != nil {
		labtest.Skip(t, "no tshark: see .ci/programs")
	}
	events := testEvents()
	var file bytes.Buffer
	w := pcapgo.NewWriter(&file)
	_ = w.WriteFileHeader(1<<16, layers.LinkTypeIPv4)
	for _, d := range datagrams(t, events, 2) {
		ip := &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolUDP, SrcIP: net.IP{10, 0, 0, 1}, DstIP: net.IP{10, 0, 0, 9}}
		udp := &layers.UDP{SrcPort: 40000, DstPort: 4739}
		_ = udp.SetNetworkLayerForChecksum(ip)
		b := gopacket.NewSerializeBuffer()
		if err := gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, ip, udp, gopacket.Payload(d)); err != nil {
			t.Fatal(err)
		}
		_ = w.WritePacket(gopacket.CaptureInfo{CaptureLength: len(b.Bytes()), Length: len(b.Bytes())}, b.Bytes())
	}
	cmd := exec.Command(tshark, "-r", "-", "-d", "udp.port==4739,cflow", "-V")
	cmd.Stdin = &file
	said, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	_, records, _ := strings.Cut(string(said), "Set 2 ")
	flows := strings.Split(records, "Flow 1\n")[1:]
	if len(flows) != len(events) || strings.Contains(string(said), "Malformed") {
		t.Fatalf("%d records, want %d:\n%s", len(flows), len(events), said)
	}
	for i, e := range events {
		wantIn(t, flows[i], e)
	}
}

// wantIn looks for the values of an event in what tshark says of a record.
func wantIn(t *testing.T, flow string, e Event) {
	t.Helper()
	behind := e.SNAT
	if !behind.IsValid() {
		behind = e.Client
	}
	want := []string{
		fmt.Sprintf("SrcAddr: %s\n", e.Client.Addr()), fmt.Sprintf("DstAddr: %s\n", e.Frontend.Addr()),
		fmt.Sprintf("SrcPort: %d (", e.Client.Port()), fmt.Sprintf("DstPort: %d (", e.Frontend.Port()),
		fmt.Sprintf("Destination IPv%d Address: %s\n", 4+2*btoi(e.Endpoint.Addr().Is6()), e.Endpoint.Addr()),
		fmt.Sprintf("Source Transport Port: %d\n", behind.Port()), fmt.Sprintf("Destination Transport Port: %d\n", e.Endpoint.Port()),
		fmt.Sprintf("Protocol: %s (%d)", e.Protocol, e.proto), e.Service, e.Zone, "StartTime: May  1, 2026 10:00:00.250000000",
	}
	if e.SNAT.IsValid() {
		want = append(want, e.SNAT.Addr().String())
	}
	if e.Event == End {
		want = append(want, "EndTime: May  1, 2026 10:01:30.250000000", "Packets: 5\n", "Octets: 500\n", "Flow deleted", fmt.Sprint(1<<33), fmt.Sprintf("(%d)\n", endReasons[e.Reason]))
	} else {
		want = append(want, "Flow created")
	}
	for _, s := range want {
		if !strings.Contains(flow, s) {
			t.Errorf("%s of %v: no %q in\n%s", e.Event, e.Client, s, flow)
		}
	}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// Records that are more than a datagram has room for go into several, none of which is cut.
func TestRecordsGoIntoSeveralMessages(t *testing.T) {
	var events []Event
	for range 20 {
		events = append(events, testEvents()...)
	}
	list := datagrams(t, events, 5)
	for i, d := range list {
		if len(d) > messageSize || len(d) != int(d[2])<<8|int(d[3]) {
			t.Errorf("message %d has %d bytes, and says %d", i, len(d), int(d[2])<<8|int(d[3]))
		}
	}
}

// A collector that is away loses records, which are counted, and nobody waits. When it is there, it
// gets the templates at once.
func TestACollectorThatIsAwayLosesRecords(t *testing.T) {
	c, err := net.ListenPacket("udp", "127.77.0.1:0") // no other program is given the port meanwhile
	if err != nil {
		t.Fatal(err)
	}
	at := c.LocalAddr().String()
	x := newExporter(netip.MustParseAddrPort(at))
	defer x.close()
	events := testEvents()
	if lost, err := x.write(events); lost != 0 || err != nil {
		t.Fatal(lost, err)
	}
	c.Close()
	lost, written, until := 0, 0, time.Now().Add(patience.For(5*time.Second))
	for lost < 5*len(events) && time.Now().Before(until) {
		n, err := x.write(events)
		if n > 0 && !errors.Is(err, syscall.ECONNREFUSED) {
			t.Fatalf("%d lost, %v", n, err)
		}
		lost, written = lost+n, written+len(events)
	}
	if lost < 5*len(events) || lost > written {
		t.Errorf("%d of %d records are counted as lost", lost, written)
	}
	if c, err = net.ListenPacket("udp", at); err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := x.write(events); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("%v: the records before are not counted", err)
	}
	buf := make([]byte, 1<<16)
	_ = c.SetReadDeadline(time.Now().Add(patience.For(5 * time.Second)))
	n, _, err := c.ReadFrom(buf)
	if err != nil || n < 20 || buf[16] != 0 || buf[17] != 2 {
		t.Errorf("%d bytes, %v: no templates", n, err)
	}
	if lost, err := x.write(events); lost != 0 || err != nil {
		t.Error(lost, err)
	}
}

// A file that is renamed is followed by another. What cannot be written is lost.
func TestTheFileIsRotatedByRenaming(t *testing.T) {
	path := filepath.Join(t.TempDir(), "flows.json")
	w := &file{path: path}
	defer w.close()
	events := testEvents()
	for range 2 {
		if lost, err := w.write(events); lost != 0 || err != nil {
			t.Fatal(lost, err)
		}
	}
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	if lost, err := w.write(events); lost != 0 || err != nil {
		t.Fatal(lost, err)
	}
	for name, want := range map[string]int{path + ".1": 2 * len(events), path: len(events)} {
		b, err := os.ReadFile(name)
		if n := bytes.Count(b, []byte("\n")); err != nil || n != want {
			t.Errorf("%s has %d lines, want %d: %v", name, n, want, err)
		}
		var got Event
		line, _, _ := bytes.Cut(b, []byte("\n"))
		if err := json.Unmarshal(line, &got); err != nil || got.Client != events[0].Client || !got.Start.Equal(begin) {
			t.Errorf("%+v, %v: %s", got, err, line)
		}
	}
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{pipe, filepath.Join(pipe, "below"), filepath.Join(path, "..", "none", "flows.json")} {
		if lost, err := (&file{path: path}).write(events); lost != len(events) || err == nil {
			t.Errorf("%s: %d lost, %v", path, lost, err)
		}
	}
}
