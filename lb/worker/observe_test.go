package worker

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"runtime"
	"testing"

	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/pcapfilter"
	"github.com/weirlb/weir/lb/tap"
)

// tapped attaches a tap with a filter to the worker of a bench.
func tapped(t testing.TB, b *bench, filter string) *tap.Tap {
	t.Helper()
	f, err := pcapfilter.Compile(filter, nil)
	if err != nil {
		t.Fatal(err)
	}
	out, err := tap.New(tap.Config{Filter: f, SnapLen: 2048, Bytes: 4 << 20, Workers: 1})
	if err != nil {
		t.Fatal(err)
	}
	b.w.Observe([]*tap.Tap{out})
	return out
}

// records takes the records of a tap, as copies.
func records(p *tap.Tap) (list []tap.Record) {
	p.Read(func(r *tap.Record) bool {
		c := *r
		c.InData, c.OutData = bytes.Clone(r.InData), bytes.Clone(r.OutData)
		list = append(list, c)
		return true
	})
	return list
}

// A record has the frame as it came and as it left, the verdict, and the connection. That holds
// in both directions, on the fast path and on the slow path.
func TestRecordsHaveBothFramesOfAPacket(t *testing.T) {
	b := newBench(t)
	p := tapped(t, b, "")
	out := packet{srcMAC: macClient, dstMAC: macWeir, src: ap(client4, 4000), dst: ap(node4, 80), proto: header.ProtoUDP, payload: 10}
	var want [][2][]byte
	send := func(in int, f []byte, to int) []byte {
		got := b.one(in, bytes.Clone(f), to)
		want = append(want, [2][]byte{f, got})
		return got
	}
	first := send(portClient, out.build(t), portServer)
	answer := packet{srcMAC: macServer, dstMAC: macWeirB, src: ap(endpoint4, 8080), dst: ap(snat4, binary.BigEndian.Uint16(first[34:])), proto: header.ProtoUDP, payload: 20}
	for range 3 {
		send(portServer, answer.build(t), portClient)
		send(portClient, out.build(t), portServer)
	}
	got := records(p)
	if len(got) != len(want) {
		t.Fatalf("%d records of %d packets", len(got), len(want))
	}
	for i, r := range got {
		in, to := int32(portClient), int32(portServer)
		if i%2 == 1 {
			in, to = to, in
		}
		if !bytes.Equal(r.InData, want[i][0]) || !bytes.Equal(r.OutData, want[i][1]) || r.In != in || r.Out != to || r.Verdict != tap.Forward {
			t.Errorf("record %d: %+v", i, r)
		}
		if r.Conn == 0 || r.Conn != got[0].Conn || r.Client != ap(client4, 4000) || r.Frontend != ap(node4, 80) ||
			r.Endpoint != ap(endpoint4, 8080) || r.SNAT.Addr() != snat4 || b.lb.tables.ServiceName(r.Service) != "ns/web" {
			t.Errorf("record %d: %+v", i, r)
		}
	}
	b.framesHome()
}

// A filter for the endpoint takes the packets that match after the translation only.
func TestAFilterSeesTheSentFrameToo(t *testing.T) {
	for filter, want := range map[string]int{
		"host 10.1.0.5": 1, "dst port 8080": 1, "host 192.0.2.7": 1, "host 192.0.2.8": 0, "tcp": 0, "src host 10.1.0.5": 0,
	} {
		b := newBench(t)
		p := tapped(t, b, filter)
		b.one(portClient, packet{srcMAC: macClient, dstMAC: macWeir, src: ap(client4, 4000), dst: ap(node4, 80), proto: header.ProtoUDP}.build(t), portServer)
		if got := records(p); len(got) != want {
			t.Errorf("%s: %d records, want %d", filter, len(got), want)
		}
	}
}

// Packets that are not forwarded have their verdict and the reason.
func TestRecordsOfOtherVerdicts(t *testing.T) {
	syn := packet{srcMAC: macClient, dstMAC: macWeir, src: ap(client4, 4000), proto: header.ProtoTCP, flags: header.SYN}
	to := func(a netip.AddrPort) []byte { p := syn; p.dst = a; return p.build(t) }
	ping, _ := ping(false, 8)
	for name, c := range map[string]struct {
		frame   []byte
		verdict tap.Verdict
		reason  Drop
		refused bool
		out     int32
	}{
		"refused":  {to(ap(empty4, 80)), tap.Reply, DropNoEndpoint, true, portClient},
		"dropped":  {to(ap(empty4, 81)), tap.Drop, DropNoLocalEndpoint, true, -1},
		"punted":   {to(ap(node4, 2222)), tap.Punt, 0, false, portHost},
		"answered": {ping.build(t), tap.Reply, 0, false, portClient},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			vips := b.lb.vips.Load()
			vips.Insert(netip.PrefixFrom(empty4, 32))
			p := tapped(t, b, "")
			b.give(portClient, bytes.Clone(c.frame))
			b.round()
			got := records(p)
			if len(got) != 1 {
				t.Fatalf("%d records", len(got))
			}
			r := got[0]
			if r.Verdict != c.verdict || r.HasReason != c.refused || Drop(r.Reason) != c.reason || r.Out != c.out || !bytes.Equal(r.InData, c.frame) {
				t.Errorf("%+v", r)
			}
			b.framesHome()
		})
	}
}

// A packet that leaves in fragments has a record for each; the first has the received frame.
func TestRecordsOfFragments(t *testing.T) {
	b := newBench(t)
	b.serve(narrow4, netip.Addr{})
	p := tapped(t, b, "")
	b.give(portClient, packet{srcMAC: macClient, dstMAC: macWeir, src: ap(client4, 4000), dst: ap(node4, 80), proto: header.ProtoUDP, payload: 1420}.build(t))
	out := b.round()
	got := records(p)
	if len(got) < 2 || len(got) != len(out[portServer]) {
		t.Fatalf("%d records of %d fragments", len(got), len(out[portServer]))
	}
	for i, r := range got {
		if r.ID != got[0].ID || (len(r.InData) > 0) != (i == 0) || !bytes.Equal(r.OutData, out[portServer][i]) {
			t.Errorf("record %d: %+v", i, r)
		}
	}
	b.framesHome()
}

// A packet that waits for a neighbor keeps the time of the receipt, and is recorded when it
// leaves or is dropped.
func TestRecordsOfQueuedPackets(t *testing.T) {
	b := newBench(t)
	unresolved := netip.MustParseAddr("10.1.0.77")
	b.serve(unresolved, netip.Addr{})
	p := tapped(t, b, "")
	f := packet{srcMAC: macClient, dstMAC: macWeir, src: ap(client4, 4000), dst: ap(node4, 80), proto: header.ProtoUDP}.build(t)
	b.give(portClient, bytes.Clone(f))
	b.round()
	if got := records(p); len(got) != 0 || len(b.w.neighQueue) != 1 {
		t.Fatalf("%d records, %d packets wait", len(got), len(b.w.neighQueue))
	}
	b.w.neighQueue[0].until = b.w.tick - 1
	b.round()
	got := records(p)
	if len(got) != 1 || got[0].Verdict != tap.Reply || Drop(got[0].Reason) != DropNeighbor || !bytes.Equal(got[0].InData, f) {
		t.Errorf("%+v", got)
	}
}

// Nothing is lost for the worker's own sake: with no reader it goes on, and after the last tap
// it keeps nothing.
func TestAFullTapStopsNoWorker(t *testing.T) {
	b := newBench(t)
	f, _ := pcapfilter.Compile("", nil)
	p, err := tap.New(tap.Config{Filter: f, SnapLen: 64, Bytes: 1 << 15, Workers: 1})
	if err != nil {
		t.Fatal(err)
	}
	b.w.Observe([]*tap.Tap{p})
	frame := packet{srcMAC: macClient, dstMAC: macWeir, src: ap(client4, 4000), dst: ap(node4, 80), proto: header.ProtoUDP}.build(t)
	for range 3 * observedPackets {
		b.one(portClient, bytes.Clone(frame), portServer)
	}
	n := len(records(p))
	if lost := p.Lost(); n == 0 || lost+uint64(n) != 3*observedPackets {
		t.Errorf("%d records and %d lost", n, lost)
	}
	b.w.Observe(nil)
	b.one(portClient, bytes.Clone(frame), portServer)
	if b.w.obs != nil || len(records(p)) != 0 {
		t.Error("the worker still has the tap")
	}
}

// While packets are observed nothing is allocated either.
func TestObservationDoesNotAllocate(t *testing.T) {
	b := newBench(t)
	p := tapped(t, b, "host 192.0.2.7")
	frame := packet{srcMAC: macClient, dstMAC: macWeir, src: ap(client4, 4000), dst: ap(node4, 80), proto: header.ProtoUDP}.build(t)
	drop := packet{srcMAC: macClient, dstMAC: macWeir, src: ap(client4, 4000), dst: ap(empty4, 81), proto: header.ProtoUDP}.build(t)
	step := func() {
		b.give(portClient, frame)
		b.give(portClient, drop)
		b.w.Round()
		for _, q := range b.q {
			q.Out = q.Out[:0]
		}
		p.Read(func(*tap.Record) bool { return true })
	}
	for range 100 {
		step()
	}
	if n := testing.AllocsPerRun(200, step); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// Taps come and go, and samples are read, while the worker runs.
func TestTapsComeAndGoBesideTheWorker(t *testing.T) {
	b := newBench(t)
	good := packet{srcMAC: macClient, dstMAC: macWeir, src: ap(client4, 4000), dst: ap(node4, 80), proto: header.ProtoUDP}.build(t)
	bad := packet{srcMAC: macClient, dstMAC: macWeir, src: ap(client4, 4000), dst: ap(empty4, 81), proto: header.ProtoUDP}.build(t)
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
			}
			b.give(portClient, good)
			b.give(portClient, bad)
			b.w.Round()
			for _, q := range b.q {
				q.Out = q.Out[:0]
			}
		}
	}()
	for range 100 {
		p := tapped(t, b, "udp")
		for n := 0; n < 10; {
			p.Read(func(r *tap.Record) bool {
				if f := [][]byte{good, bad}[r.InData[31]&1]; len(r.InData) != len(f) {
					t.Errorf("%d bytes of %d", len(r.InData), len(f))
				}
				n++
				return true
			})
			runtime.Gosched()
		}
		for _, s := range b.w.DropSamples(nil) {
			if !bytes.Equal(s.Data, bad[:min(len(bad), len(s.Data))]) {
				t.Errorf("sample %x of %x", s.Data, bad)
			}
		}
		b.w.Observe(nil)
	}
	close(stop)
	<-done
}

// Every packet of a flood without flows has a record with the verdict, also those that are
// dropped in lanes. None takes the record of another packet.
func TestRecordsOfAFloodWithoutFlows(t *testing.T) {
	b := newBench(t)
	p := tapped(t, b, "")
	frame := packet{srcMAC: macServer, dstMAC: macWeirB, src: ap(endpoint4, 8080), dst: ap(snat4, 61500), proto: header.ProtoUDP}.build(t)
	const floods, each = 60, 60 // more than there are slots
	n := 0
	for range floods {
		for range each {
			b.give(portServer, bytes.Clone(frame))
		}
		b.round()
		for _, r := range records(p) {
			n++
			if r.Verdict != tap.Drop || !r.HasReason || Drop(r.Reason) != DropNoConntrackEntry {
				t.Fatalf("%+v", r)
			}
		}
	}
	if n != floods*each || b.drops()[DropNoConntrackEntry.String()] != floods*each {
		t.Errorf("%d records, %d drops of %d packets", n, b.drops()[DropNoConntrackEntry.String()], floods*each)
	}
	b.framesHome()
}
