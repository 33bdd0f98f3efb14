package xsk_test

import (
	"bytes"
	"slices"
	"testing"

	"github.com/safchain/ethtool"
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/lb/xsk"
	"github.com/weirlb/weir/perf/netlab"
)

func TestPacketsAreReceivedIntoTheUmem(t *testing.T) {
	w := newWire(t, netlab.LinkConfig{})
	s := w.open(xsk.Config{})
	c := w.listen()
	for _, payload := range []string{"a", "hello", string(bytes.Repeat([]byte("x"), 1472))} {
		_, err := c.WriteToUDPAddrPort([]byte(payload), nodePort)
		must(t, err)
		d := receive(t, s)
		if len(d) != 1 || d[0].Addr-w.umem.Base(d[0].Addr) != xsk.Headroom {
			t.Fatalf("received %+v, want one buffer at %d", d, xsk.Headroom)
		}
		if got := string(w.umem.Data(d[0])[udpStart+8:]); got != payload {
			t.Errorf("received %q", got)
		}
		if data, frame := w.umem.Data(d[0]), w.umem.Frame(d[0].Addr); len(frame) != xsk.FrameSize ||
			cap(data) != xsk.FrameSize-xsk.Headroom {
			t.Errorf("frame of %d bytes, packet can grow to %d", len(frame), cap(data))
		}
	}
}

func TestPacketsAreSentAndTheirFramesComeBack(t *testing.T) {
	w := newWire(t, netlab.LinkConfig{})
	s := w.open(xsk.Config{})
	c := w.listen()
	packet, _ := w.frame([]byte("out"))
	if n := s.Transmit([]xsk.Desc{w.place(firstTxFrame, packet)}); n != 1 {
		t.Fatalf("transmit ring took %d", n)
	}
	must(t, s.Kick())
	buf := make([]byte, 100)
	n, from, err := c.ReadFromUDPAddrPort(buf)
	must(t, err)
	if string(buf[:n]) != "out" || from != nodePort {
		t.Errorf("peer got %q from %v", buf[:n], from)
	}
	if done := complete(t, s, 1); done[0] != w.umem.Addr(firstTxFrame) {
		t.Errorf("frame %#x came back, want %#x", done[0], w.umem.Addr(firstTxFrame))
	}
	if k := s.Kicks(); k.Sent == 0 || k.Unfinished != 0 {
		t.Errorf("kicks %+v", k)
	}
}

func TestKickSendsAWholeRing(t *testing.T) {
	w := newWire(t, netlab.LinkConfig{})
	s := w.open(xsk.Config{RingSize: 1024})
	packet, _ := w.frame([]byte("burst"))
	var d []xsk.Desc
	for i := range 1100 {
		d = append(d, w.place(firstTxFrame+i, packet))
	}
	if n := s.Transmit(d); n != 1024 {
		t.Fatalf("transmit ring of 1024 took %d", n)
	}
	if n := s.Transmit(d); n != 0 {
		t.Fatalf("full transmit ring took %d", n)
	}
	must(t, s.Kick())
	if left := s.Outstanding(); left != 0 {
		t.Errorf("%d packets left on the ring after a kick", left)
	}
	done := complete(t, s, 1024)
	slices.Sort(done)
	if done[0] != w.umem.Addr(firstTxFrame) || done[1023] != w.umem.Addr(firstTxFrame+1023) ||
		len(slices.Compact(done)) != 1024 {
		t.Error("other frames came back than were sent")
	}
	stats, err := s.Statistics()
	must(t, err)
	if stats.TxInvalid != 0 {
		t.Errorf("%d descriptors invalid", stats.TxInvalid)
	}
}

// TestChecksumIsCompletedOnTheWayOut sends packets whose checksum field holds
// the sum of the pseudo header only. On a veth that completes checksums itself
// the packet stays partial and is taken as it is; on one that does not the
// kernel must compute the sum, and the peer verifies it.
func TestChecksumIsCompletedOnTheWayOut(t *testing.T) {
	for name, offload := range map[string]bool{"offload on": true, "offload off": false} {
		t.Run(name, func(t *testing.T) {
			w := newWire(t, netlab.LinkConfig{})
			tool, err := ethtool.NewEthtool()
			must(t, err)
			defer tool.Close()
			must(t, tool.Change("wan", map[string]bool{"tx-checksum-ip-generic": offload}))
			s := w.open(xsk.Config{TxMetadata: true})
			if _, metadata, _ := s.Granted(); !metadata {
				t.Skip("skipped: ", xsk.ProbeTxMetadata())
			}
			c := w.listen()
			before, err := w.peer.Counters()
			must(t, err)
			for i, payload := range []string{"even", "odd", "\xff\xff\xff\xff"} {
				packet, pseudo := w.frame([]byte(payload))
				packet[checksumOfFull], packet[checksumOfFull+1] = byte(pseudo>>8), byte(pseudo)
				d := w.place(firstTxFrame+i, packet)
				w.umem.SetChecksum(&d, udpStart, udpChecksum)
				s.Transmit([]xsk.Desc{d})
				must(t, s.Kick())
				buf := make([]byte, 100)
				n, err := c.Read(buf)
				must(t, err)
				if string(buf[:n]) != payload {
					t.Errorf("peer got %q, want %q", buf[:n], payload)
				}
			}
			after, err := w.peer.Counters()
			must(t, err)
			if n := after.Sub(before)["UdpInCsumErrors"]; n != 0 {
				t.Errorf("%d checksum errors", n)
			}
		})
	}
}

// TestPartialChecksumWithoutMetadataIsRefusedByThePeer is the control of the
// test above: the peer does look at checksums.
func TestPartialChecksumWithoutMetadataIsRefusedByThePeer(t *testing.T) {
	w := newWire(t, netlab.LinkConfig{})
	s := w.open(xsk.Config{})
	w.listen()
	before, err := w.peer.Counters()
	must(t, err)
	packet, pseudo := w.frame([]byte("partial"))
	packet[checksumOfFull], packet[checksumOfFull+1] = byte(pseudo>>8), byte(pseudo)
	s.Transmit([]xsk.Desc{w.place(firstTxFrame, packet)})
	must(t, s.Kick())
	eventually(t, "a checksum error", func() bool {
		after, err := w.peer.Counters()
		must(t, err)
		return after.Sub(before)["UdpInCsumErrors"] == 1
	})
}

func TestPacketsOfSeveralBuffers(t *testing.T) {
	// Where XDP programs do not take them either, such an MTU cannot be attached.
	if p := xsk.ProbeMultiBuffer(); !p.OK() {
		t.Skip("skipped: ", p)
	}
	w := newWire(t, netlab.LinkConfig{MTU: 9000})
	s := w.open(xsk.Config{MultiBuffer: true, TxMetadata: true})
	_, metadata, multiBuffer := s.Granted()
	if !multiBuffer || !metadata {
		t.Skip("skipped: ", xsk.ProbeMultiBuffer(), "; ", xsk.ProbeTxMetadata())
	}
	c := w.listen()
	payload := make([]byte, 8900)
	for i := range payload {
		payload[i] = byte(i * 7)
	}
	_, err := c.WriteToUDPAddrPort(payload, nodePort)
	must(t, err)
	in := receive(t, s)
	var packet []byte
	for i, d := range in {
		packet = append(packet, w.umem.Data(d)...)
		if last := i == len(in)-1; (d.Options&xsk.Continued == 0) != last {
			t.Errorf("buffer %d of %d: options %#x", i, len(in), d.Options)
		}
	}
	if len(in) != 3 || !bytes.Equal(packet[udpStart+8:], payload) {
		t.Fatalf("received %d buffers of %d bytes", len(in), len(packet))
	}

	// Sent back in the same buffers, the checksum to be completed.
	head, pseudo := w.frame(payload)
	copy(w.umem.Data(in[0]), head)
	data := w.umem.Data(in[0])
	data[checksumOfFull], data[checksumOfFull+1] = byte(pseudo>>8), byte(pseudo)
	w.umem.SetChecksum(&in[0], udpStart, udpChecksum)
	if n := s.Transmit(in); n != len(in) {
		t.Fatalf("transmit ring took %d of %d buffers", n, len(in))
	}
	must(t, s.Kick())
	buf := make([]byte, 10000)
	n, err := c.Read(buf)
	must(t, err)
	if !bytes.Equal(buf[:n], payload) {
		t.Errorf("peer got %d bytes, not those sent", n)
	}
	complete(t, s, len(in))
}

// TestNativeModeGetsSegments: a veth whose peer is attached natively does not
// get the super-packets that the other end's stack would like to send.
func TestNativeModeGetsSegments(t *testing.T) {
	w := newWire(t, netlab.LinkConfig{})
	s := w.open(xsk.Config{})
	c := w.listen()
	raw, err := c.SyscallConn()
	must(t, err)
	var option error
	must(t, raw.Control(func(fd uintptr) {
		option = unix.SetsockoptInt(int(fd), unix.SOL_UDP, unix.UDP_SEGMENT, 1000)
	}))
	must(t, option)
	_, err = c.WriteToUDPAddrPort(make([]byte, 20_000), nodePort)
	must(t, err)
	for got := 0; got < 20; {
		for _, d := range receive(t, s) {
			if d.Len != udpStart+8+1000 || d.Options != 0 {
				t.Fatalf("received %+v", d)
			}
			got++
		}
	}
}

func TestNothingIsAllocatedPerBatch(t *testing.T) {
	w := newWire(t, netlab.LinkConfig{})
	s := w.open(xsk.Config{TxMetadata: true})
	packet, _ := w.frame([]byte("round"))
	d := w.place(firstTxFrame, packet)
	descs, addrs := make([]xsk.Desc, 64), make([]uint64, 64)
	if n := testing.AllocsPerRun(100, func() {
		s.Receive(descs)
		s.Transmit([]xsk.Desc{d})
		s.Kick()
		s.Fill(addrs[:s.Complete(addrs)][:0])
		s.WakeRx()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
