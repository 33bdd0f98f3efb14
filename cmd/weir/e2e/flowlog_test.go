package e2e

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/cmd/weir/flowlog"
	"github.com/weirlb/weir/cmd/weir/problem"
	"github.com/weirlb/weir/perf/netlab"
	"github.com/weirlb/weir/perf/netlab/labtest"
)

// A collector (nfcapd) and a file have the start and the end of every connection, with the tuples on
// both sides and as many packets and bytes as a capture at the client, whoever forwards them.
func TestWireFlowLog(t *testing.T) {
	for _, hook := range append([]string{"off"}, hooks...) {
		t.Run(hook, func(t *testing.T) {
			t.Parallel()
			f := flowLogFixture(t, hook)
			nfcapd := f.startCollector(t)
			capture, err := netlab.NewCapture(f.Client, "eth0")
			must(t, err)
			reasons := f.recordedConnections(t)
			frames, missed := capture.Stop()
			if missed > 0 {
				t.Fatalf("%d frames are not in the capture", missed)
			}
			counted := countFlows(frames)
			f.kill(t)

			events := f.awaitEvents(t, len(reasons))
			for client, reason := range reasons {
				checkEvents(t, client, reason, events[client], counted)
			}
			f.awaitStatus(t, func(s *api.Status) error {
				if s.FlowLog == nil || len(s.FlowLog.Targets) != 2 {
					return fmt.Errorf("the status has %+v", s.FlowLog)
				}
				for _, to := range s.FlowLog.Targets {
					if to.Sent != s.FlowLog.Records || to.Lost+s.FlowLog.Lost+s.FlowLog.Skipped > 0 || to.Fault != "" {
						return fmt.Errorf("of %+v, %+v", s.FlowLog, to)
					}
				}
				return nil
			})
			must(t, nfcapd.Until(inTime(t, within), func(context.Context) error { return f.listens(collectorPort) })) // and has read all
			must(t, nfcapd.Stop(within))
			for _, e := range events {
				f.checkCollected(t, e)
			}
			f.checkPrivileges(t)
		})
	}
}

// collectorPort is that of nfcapd, on the edge node.
const collectorPort = 9995

// flowLogFixture records connections. The collector is not there yet.
func flowLogFixture(t *testing.T, hook string) *fixture {
	t.Helper()
	for _, program := range []string{"nfcapd", "nfdump"} {
		if _, err := exec.LookPath(program); err != nil {
			labtest.Skip(t, "no "+program+": see .ci/programs")
		}
	}
	o := options{services: []service{toAttached}, stopped: true}
	if hook != "off" {
		o.interfaces = fmt.Sprintf("[{name: eth0, hook: %s}, {name: eth1, hook: %s}]", hook, hook)
	}
	f := ownFixture(t, o)
	mode := map[bool]string{true: "auto", false: `"off"`}[hook != "off"]
	must(t, os.MkdirAll(f.path("flows"), 0o755))
	replace(t, f.path("config.yaml"), fmt.Appendf(nil, "%sflowCache: {mode: %s}\nflowLog: {ipfixCollector: \"127.0.0.1:%d\", jsonFile: %s}\n",
		f.config(), mode, collectorPort, f.path("flows/flows.json")))
	replace(t, f.manifest(), inZone.ReplaceAll(render(t, f.services), []byte("$0\n${1}zone: zone-1")))
	f.fromWire(t, hook)
	must(t, f.start())
	return f
}

// inZone finds where an endpoint has its zone in a manifest.
var inZone = regexp.MustCompile(`(?m)^( *)nodeName: zonea$`)

// startCollector starts nfcapd on the edge node.
func (f *fixture) startCollector(t *testing.T) *netlab.Daemon {
	t.Helper()
	must(t, os.MkdirAll(f.path("nfcapd"), 0o755))
	d, err := f.Edge.Edge.StartDaemon(exec.Command("nfcapd", "-4", "-b", "127.0.0.1", "-p", fmt.Sprint(collectorPort), "-w", f.path("nfcapd"), "-t", "3600"), f.path("nfcapd.log"))
	must(t, err)
	t.Cleanup(func() {
		if d.Running() {
			_ = d.Stop(within)
		}
		if t.Failed() {
			t.Logf("nfcapd said:\n%s", d.LogTail(30))
		}
	})
	must(t, d.Until(inTime(t, within), func(context.Context) error { return f.listens(collectorPort) }))
	return d
}

// listens is nil where a UDP socket of the edge node has a port, and nothing waits in it.
func (f *fixture) listens(port uint16) error {
	return f.Edge.Edge.Do(func() error {
		b, err := os.ReadFile("/proc/thread-self/net/udp")
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(b)) {
			fields := strings.Fields(line) // 3: of addresses, state, tx_queue:rx_queue
			if len(fields) < 5 || !strings.HasSuffix(fields[1], fmt.Sprintf(":%04X", port)) {
				continue
			}
			if _, waiting, _ := strings.Cut(fields[4], ":"); strings.Trim(waiting, "0") != "" {
				return fmt.Errorf("in the socket of port %d wait %s bytes", port, waiting)
			}
			return nil
		}
		return fmt.Errorf("no socket has port %d", port)
	})
}

// recordedConnections makes connections that end in several ways, and returns the reasons by the
// client's tuple.
func (f *fixture) recordedConnections(t *testing.T) map[netip.AddrPort]flowlog.Reason {
	t.Helper()
	reasons := map[netip.AddrPort]flowlog.Reason{}
	exchange := func(c net.Conn, reason flowlog.Reason) {
		must(t, c.SetDeadline(time.Now().Add(within)))
		buf := make([]byte, 2000)
		for i := range 20 {
			_, err := c.Write(bytes.Repeat([]byte{'x'}, 10+i*40))
			must(t, err)
			for n := 0; n == 0 || c.LocalAddr().Network() == "tcp" && n < 10+i*40; {
				got, err := c.Read(buf)
				must(t, err)
				n += got
			}
		}
		reasons[netip.MustParseAddrPort(c.LocalAddr().String())] = reason
	}
	for _, six := range []bool{false, true} {
		to := toAttached.at(echoPort, six)
		closed, reset := f.dialed(t, to), f.dialed(t, to)
		exchange(closed, flowlog.Closed)
		exchange(reset, flowlog.Reset)
		exchange(f.dialUDP(t, to), flowlog.Removed)
		must(t, closed.Close())
		must(t, reset.(*net.TCPConn).SetLinger(0))
		must(t, reset.Close())
	}
	must(t, f.poll(func(ctx context.Context) error {
		states := map[string]int{}
		_, err := f.admin.Connections(ctx, &api.FlowFilter{}, 100, 0, func(c *api.Flow) error { states[c.State]++; return nil })
		if err == nil && (states["time-wait"] != 2 || states["close"] != 2) {
			err = fmt.Errorf("connections by state: %v", states)
		}
		return err
	}))
	return reasons
}

// kill ends all connections.
func (f *fixture) kill(t *testing.T) {
	t.Helper()
	_, err := f.admin.KillConnections(inTime(t, within), &api.FlowFilter{Service: "test/" + toAttached.name})
	must(t, err)
}

// awaitEvents waits for the start and the end of so many connections in the file.
func (f *fixture) awaitEvents(t *testing.T, connections int) (events map[netip.AddrPort][]flowlog.Event) {
	t.Helper()
	must(t, f.poll(func(context.Context) error {
		events = map[netip.AddrPort][]flowlog.Event{}
		b, err := os.ReadFile(f.path("flows/flows.json"))
		n := 0
		for line := range bytes.Lines(b) {
			var e flowlog.Event
			if err := json.Unmarshal(line, &e); err != nil {
				return fmt.Errorf("%w: %s", err, line)
			}
			events[e.Client] = append(events[e.Client], e)
			n++
		}
		if err == nil && n != 2*connections {
			err = fmt.Errorf("%d lines, want two for each of %d connections:\n%s", n, connections, b)
		}
		return err
	}))
	return events
}

// seen is what a capture has of a direction of a flow.
type seen struct{ packets, bytes uint64 }

// direction is where the packets of a direction come from and go to.
type direction struct {
	proto    uint8
	from, to netip.AddrPort
}

// countFlows counts the packets of untagged frames without options.
func countFlows(frames [][]byte) map[direction]seen {
	out := map[direction]seen{}
	for _, f := range frames {
		var d direction
		var length, l4 int
		switch {
		case len(f) > 14+40+4 && f[12] == 0x86 && f[13] == 0xdd:
			d.proto, l4, length = f[20], 54, 40+int(binary.BigEndian.Uint16(f[18:]))
			d.from = netip.AddrPortFrom(netip.AddrFrom16([16]byte(f[22:])), binary.BigEndian.Uint16(f[l4:]))
			d.to = netip.AddrPortFrom(netip.AddrFrom16([16]byte(f[38:])), binary.BigEndian.Uint16(f[l4+2:]))
		case len(f) > 14+20+4 && f[12] == 8 && f[13] == 0:
			d.proto, l4, length = f[23], 34, int(binary.BigEndian.Uint16(f[16:]))
			d.from = netip.AddrPortFrom(netip.AddrFrom4([4]byte(f[26:])), binary.BigEndian.Uint16(f[l4:]))
			d.to = netip.AddrPortFrom(netip.AddrFrom4([4]byte(f[30:])), binary.BigEndian.Uint16(f[l4+2:]))
		default:
			continue
		}
		s := out[d]
		out[d] = seen{s.packets + 1, s.bytes + uint64(length)}
	}
	return out
}

// checkEvents checks the start and the end of a connection.
func checkEvents(t *testing.T, client netip.AddrPort, reason flowlog.Reason, events []flowlog.Event, counted map[direction]seen) {
	t.Helper()
	if len(events) != 2 || events[0].Event != flowlog.Start || events[1].Event != flowlog.End {
		t.Fatalf("%v has %+v, want its start and end", client, events)
	}
	start, end := events[0], events[1]
	six := client.Addr().Is6()
	to := toAttached.at(echoPort, six)
	for _, e := range events {
		if e.Frontend != to || e.Endpoint != netip.AddrPortFrom(attached.addr(six), echoTarget) || e.Service != "test/"+toAttached.name || e.Zone != "zone-1" ||
			e.Mode != "nat" || e.SNAT.Addr().Is6() != six || e.SNAT.Port() == 0 || e.SNAT != start.SNAT || !e.Start.Equal(start.Start) {
			t.Errorf("%+v", e)
		}
	}
	proto := map[string]uint8{"TCP": 6, "UDP": 17}[end.Protocol]
	there, back := counted[direction{proto, client, to}], counted[direction{proto, to, client}]
	if end.Counts == nil || (seen{end.ClientPackets, end.ClientBytes}) != there || (seen{end.EndpointPackets, end.EndpointBytes}) != back {
		t.Errorf("%s %v, %s: counted %+v, captured %+v and %+v", end.Protocol, client, end.Reason, end.Counts, there, back)
	}
	if end.Reason != reason || end.End.Before(end.Start) || start.Counts != nil || there.packets == 0 {
		t.Errorf("%+v, want reason %s", end, reason)
	}
}

// collected is a record as nfdump writes it.
type collected struct {
	Proto       int        `json:"proto"`
	SrcPort     uint16     `json:"src_port"`
	Dst4        netip.Addr `json:"dst4_addr"`
	Dst6        netip.Addr `json:"dst6_addr"`
	DstPort     uint16     `json:"dst_port"`
	SNAT4       netip.Addr `json:"src4_xlt_ip"` // nfdump 1.7 has none of IPv6
	Endpoint4   netip.Addr `json:"dst4_xlt_ip"`
	SNATPort    string     `json:"src_xlt_port"`
	EndPort     string     `json:"dst_xlt_port"`
	InPackets   uint64     `json:"in_packets"`
	InBytes     uint64     `json:"in_bytes"`
	OutPackets  uint64     `json:"out_packets"`
	OutBytes    uint64     `json:"out_bytes"`
	First, Last string
}

// checkCollected checks that the collector has the start and the end of a connection. nfdump shows a
// start as a flow without packets.
func (f *fixture) checkCollected(t *testing.T, events []flowlog.Event) {
	t.Helper()
	start, end := events[0], events[1]
	out, err := exec.Command("nfdump", "-q", "-R", f.path("nfcapd"), "-o", "json",
		fmt.Sprintf("src ip %s and src port %d", start.Client.Addr(), start.Client.Port())).Output()
	must(t, err)
	var list []collected
	if err := json.Unmarshal(fmt.Appendf(nil, "[%s]", bytes.Trim(bytes.TrimSpace(out), "[]")), &list); err != nil || len(list) != 2 {
		t.Fatalf("%v: nfdump has of %v\n%s", err, start.Client, out)
	}
	const layout = "2006-01-02T15:04:05.000"
	want := collected{
		Proto: map[string]int{"TCP": 6, "UDP": 17}[start.Protocol], SrcPort: start.Client.Port(), DstPort: start.Frontend.Port(),
		SNATPort: fmt.Sprint(start.SNAT.Port()), EndPort: fmt.Sprint(start.Endpoint.Port()),
		First: start.Start.Local().Format(layout), Last: start.Start.Local().Format(layout),
	}
	if start.Client.Addr().Is6() {
		want.Dst6 = start.Frontend.Addr()
	} else {
		want.Dst4, want.SNAT4, want.Endpoint4 = start.Frontend.Addr(), start.SNAT.Addr(), start.Endpoint.Addr()
	}
	ended := want
	ended.Last = end.End.Local().Format(layout)
	ended.InPackets, ended.InBytes, ended.OutPackets, ended.OutBytes = end.ClientPackets, end.ClientBytes, end.EndpointPackets, end.EndpointBytes
	if list[0] != want || list[1] != ended {
		t.Errorf("nfdump has\n%+v\nwant start %+v\nand end %+v", list, want, ended)
	}
}

// Records for a collector or a file that is away are lost and counted, and a problem says so. Connections
// are served. When both are back they get records again.
func TestWireFlowLogWithoutItsPlaces(t *testing.T) {
	f := flowLogFixture(t, "off")
	must(t, os.Rename(f.path("flows"), f.path("away")))
	lost := func(s *api.Status) (n int) {
		for _, to := range s.FlowLog.Targets {
			if to.Lost > 0 && to.Fault != "" {
				n++
			}
		}
		return n
	}
	f.awaitStatus(t, func(s *api.Status) error {
		must(t, f.exchangeOnce(toAttached, false))
		if lost(s) != 2 || s.ProblemCounts[problem.FlowLog] != 2 {
			return fmt.Errorf("%+v, problems %v", s.FlowLog, s.ProblemCounts)
		}
		return nil
	})
	said, err := f.command("status", "--admin-socket", f.path("weir.sock")).CombinedOutput()
	must(t, err)
	if !strings.Contains(string(said), "FLOW LOG") || !strings.Contains(string(said), "connection refused") {
		t.Errorf("weir status says\n%s", said)
	}
	must(t, os.Rename(f.path("away"), f.path("flows")))
	f.startCollector(t)
	f.awaitStatus(t, func(s *api.Status) error {
		must(t, f.exchangeOnce(toAttached, false))
		if lost(s) != 0 || s.ProblemCounts[problem.FlowLog] != 0 {
			return fmt.Errorf("%+v, problems %v", s.FlowLog, s.ProblemCounts)
		}
		return nil
	})
}
