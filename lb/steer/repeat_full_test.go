package steer

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/conntrack/flowstate"
	"github.com/weirlb/weir/lb/flowcache"
	"github.com/weirlb/weir/lb/header"
)

// fill makes n flows of random clients, half of them IPv6, and returns their entries.
func (r *flowRig) fill(n int, seed uint64) []conntrack.Ref {
	rnd := rand.New(rand.NewPCG(seed, 1))
	random := func(v6 bool) netip.Addr {
		b := netip.MustParseAddr("2001:db8::").As16()
		if binary.BigEndian.PutUint64(b[8:], rnd.Uint64()); v6 {
			return netip.AddrFrom16(b)
		}
		return netip.AddrFrom4([4]byte{198, 18 | b[8]&1, b[9], b[10]})
	}
	var refs []conntrack.Ref
	words := [2]uint64{r.word(r.nextHop(1, rigHop(1, 0)), 1500), r.word(r.nextHop(0, rigHop(0, 0)), 1500)}
	for len(refs) < 2*n {
		v6 := len(refs)%4 != 0
		ref, outcome := r.maker.Create(&conntrack.NewFlow{
			Client: conntrack.MakeKey(netip.AddrPortFrom(random(v6), uint16(rnd.Uint32())|1),
				netip.AddrPortFrom(random(v6), 80), unix.IPPROTO_UDP),
			Endpoint: netip.AddrPortFrom(random(v6), 8080), Mode: conntrack.ModeDNAT, Tick: r.flows.Tick(),
		})
		if outcome != conntrack.Created {
			r.Fatalf("flow %d: %v", len(refs)/2, outcome)
		}
		r.setState(ref, flowstate.Stream)
		r.flows.Settle(ref, words[0])
		r.flows.Settle(ref.Other(), words[1])
		refs = append(refs, ref, ref.Other())
	}
	return refs
}

// steadyFlow makes a flow of IPv4 for the rest of the test, and returns the client's entry with a
// packet.
func (r *flowRig) steadyFlow() (conntrack.Ref, []byte) {
	ref := r.fill(1, 1)[0]
	r.Cleanup(func() { r.forget(ref) })
	k := r.flows.Entry(ref).Tuple()
	return ref, racePacket(&k)
}

// TestKernelFindsFlowsOfAFullTable has the kernel's hash and search agree with conntrack's for
// as many keys as a table holds.
func TestKernelFindsFlowsOfAFullTable(t *testing.T) {
	const flows = 20_000
	r := newXDPRig(t, flows)
	h, up := &r.hooks[0], 0
	refs := r.fill(flows-1, 1)
	for _, ref := range refs {
		k := r.flows.Entry(ref).Tuple()
		out, forwarded := r.run(t, h, racePacket(&k), 0)
		if !forwarded {
			up++ // it lies in a third bucket, or behind three slots with its tag
			continue
		}
		l4, addr := 34, out[30:34]
		if k.Family() == 6 {
			l4, addr = 54, out[38:54]
		}
		to, _ := netip.AddrFromSlice(addr)
		got := netip.AddrPortFrom(to, binary.BigEndian.Uint16(out[l4+2:]))
		if want := r.flows.NewDst(ref); got != want || raceSum(out, l4) != 0 {
			t.Fatalf("packet of %v to %s, want %s:\n%x", k, got, want, out)
		}
	}
	if most := len(refs) / 1000; up > most {
		t.Errorf("%d of %d flows are not found, want at most %d", up, len(refs), most)
	}
	t.Logf("%d of %d flows are not found", up, len(refs))
}

// Of a packet that the kernel will cut, the pieces must fit the path, not the whole.
func measuresPackets(t *testing.T, r *flowRig) {
	ref, packet := r.steadyFlow()
	packet = append(packet, make([]byte, 3000)...)
	ip := packet[14:]
	binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)))
	sum4(ip)
	binary.BigEndian.PutUint16(ip[24:], uint16(len(ip)-header.IPv4Len))
	for _, h := range r.hooks[1:] {
		for gso, want := range map[int]bool{0: false, 1500 - 28: true, 1500 - 27: false, 500: true} {
			before := r.repeatedPackets()
			out, forwarded := r.run(t, &h, packet, gso)
			if forwarded != want {
				t.Errorf("%s: pieces of %d bytes: forwarded %v", h.name, gso, forwarded)
			}
			if n := r.repeatedPackets() - before; want && n != 1 || !want && n != 0 {
				t.Errorf("%s: pieces of %d bytes: counted %d times", h.name, gso, n)
			}
			if got, _ := netip.AddrFromSlice(out[30:34]); want && got != r.flows.NewDst(ref).Addr() {
				t.Errorf("%s: pieces of %d bytes: to %s", h.name, gso, got)
			}
		}
	}
}

// A packet of more than 64 KB, which the kernel will cut, has no length in its header, and of IPv6
// may have an option with it. Neither is good in a packet that leaves whole.
func repeatsBigTCP(t *testing.T, r *flowRig) {
	for i, ref := range r.fill(4, 1) {
		if i%2 == 0 {
			defer r.forget(ref)
		}
		k := r.flows.Entry(ref).Tuple()
		plain := racePacket(&k)
		packets := map[string][]byte{}
		if k.Family() == 4 {
			b := slices.Clone(plain)
			b[16], b[17] = 0, 0
			sum4(b[14:])
			packets["IPv4"] = b
		} else {
			b := slices.Clone(plain)
			b[18], b[19] = 0, 0
			packets["IPv6"] = b
			option := []byte{b[20], 0, 0xc2, 4, 0, 1, 0, 0}
			b = slices.Insert(slices.Clone(b), 54, option...)
			b[20] = 0
			packets["IPv6 with the option"] = b
			b = slices.Clone(b)
			b[56] = 0x1e
			packets["IPv6 with another option"] = b
		}
		for name, b := range packets {
			for _, h := range r.hooks {
				out, forwarded := r.run(t, &h, b, 500)
				want := h.tcx && name != "IPv6 with another option"
				if forwarded != want {
					t.Errorf("%s: %s: forwarded %v", h.name, name, forwarded)
				}
				// The bytes are those of the packet with its length, but for the length and the option.
				if wanted, _ := r.run(t, &h, plain, 500); want && !bytes.Equal(out[len(b)-38:len(b)], wanted[len(plain)-38:len(plain)]) {
					t.Errorf("%s: %s:\n%x, want\n%x", h.name, name, out, wanted)
				}
				if to := len(b) - 38 - 16; k.Family() == 6 && want && !bytes.Contains(out, r.flows.NewDst(ref).Addr().AsSlice()) {
					t.Errorf("%s: %s: not sent to the endpoint:\n%x", h.name, name, out[:to])
				}
				if _, forwarded := r.run(t, &h, b, 0); forwarded {
					t.Errorf("%s: %s: forwarded whole", h.name, name)
				}
			}
		}
	}
}

// repeatedPackets are those that the programs have counted as forwarded.
func (r *flowRig) repeatedPackets() (n uint64) {
	var perCPU []flowcache.Repeated
	must(r, r.maps["flow_repeated"].Lookup(uint32(0), &perCPU))
	for _, c := range perCPU {
		n += c.Packets
	}
	return n
}

// While the flow table is off the programs do what the steering program does.
func repeatsNothingWhileOff(t *testing.T, r *flowRig) {
	_, packet := r.steadyFlow()
	for i := range r.hooks {
		for _, on := range []uint64{0, 1} {
			r.state.From = on
			if _, forwarded := r.run(t, &r.hooks[i], packet, 0); forwarded != (on == 1) {
				t.Errorf("%s: on %d: forwarded %v", r.hooks[i].name, on, forwarded)
			}
		}
	}
}

// Packets that a capture keeps in the packet loop are repeated when the process has died.
func endsSuspension(t *testing.T, r *flowRig) {
	_, packet := r.steadyFlow()
	var now unix.Timespec
	must(t, unix.ClockGettime(unix.CLOCK_MONOTONIC_COARSE, &now))
	for i := range r.hooks {
		for from, want := range map[uint64]bool{^uint64(0): false, uint64(now.Nano()) + uint64(time.Minute): false, uint64(now.Nano()): true} {
			r.state.From = from
			if _, forwarded := r.run(t, &r.hooks[i], packet, 0); forwarded != want {
				t.Errorf("%s: from %d: forwarded %v", r.hooks[i].name, from, forwarded)
			}
		}
	}
}

// Packets are repeated while the process calls Hold, and without it as long as packets are held for
// the next process, or for a moment.
func repeatsNothingUnawaited(t *testing.T, r *flowRig) {
	_, packet := r.steadyFlow()
	var now unix.Timespec
	must(t, unix.ClockGettime(unix.CLOCK_MONOTONIC, &now))
	ahead := uint64(now.Nano()) + uint64(time.Minute)
	for until, want := range map[until]bool{{}: false, {Hold: ahead}: false, {Follow: uint64(now.Nano()) / 2}: false, {Follow: ahead}: true} {
		must(t, r.p.maps.until.Set(until))
		for i := range r.hooks {
			if _, forwarded := r.run(t, &r.hooks[i], packet, 0); forwarded != want {
				t.Errorf("%s: until %+v: forwarded %v", r.hooks[i].name, until, forwarded)
			}
		}
	}
	for _, hold := range []time.Duration{0, time.Minute} {
		must(t, r.p.Hold(hold))
		var u until
		must(t, r.p.maps.until.Get(&u))
		if left := time.Duration(u.Follow - uint64(now.Nano())); left < max(hold, followAtLeast) || (hold == 0) != (u.Hold == 0) {
			t.Errorf("hold for %v: %+v, %v from now", hold, u, left)
		}
	}
}

// The XDP program leaves a partial checksum to the process, and a whole one that looks like it to
// nobody: a process that dies would take the packet with it.
func tellsWholeFromPartial(t *testing.T, r *flowRig) {
	_, packet := r.steadyFlow()
	fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	must(t, unix.SetsockoptInt(fd, unix.SOL_XDP, unix.XDP_RX_RING, 64)) // Linux 7.3 wants it
	must(t, r.p.SetSocket(0, 0, fd))
	c := &flowCase{flowKind: flowKind{proto: unix.IPPROTO_UDP}}
	for _, whole := range []bool{true, false} {
		s := segment{frame: slices.Clone(packet), l4: 34}
		if s.makePartial(c); whole {
			s.makeAlike(c)
		}
		for i := range r.hooks {
			h := &r.hooks[i]
			if _, forwarded := r.run(t, h, s.frame, 0); forwarded != (h.tcx || whole) {
				t.Errorf("%s: whole %v: forwarded %v", h.name, whole, forwarded)
			}
		}
	}
	must(t, unix.Close(fd))
	must(t, r.p.ClearSocket(0, 0))
}

// The programs count and give packets to others as the steering program does.
func steersOthers(t *testing.T, r *flowRig) {
	must(t, r.p.AddFrontend(front4, unix.IPPROTO_TCP, 0))
	defer func() { must(t, r.p.RemoveFrontend(front4, unix.IPPROTO_TCP)) }()
	for _, packet := range [][]byte{
		packet4(t, unix.IPPROTO_TCP, front4), packet4(t, unix.IPPROTO_TCP, at(front4.Addr(), 22)),
		packet6(t, unix.IPPROTO_UDP, front6), tag(packet4(t, unix.IPPROTO_TCP, front4), 0x8100),
		packet4(t, unix.IPPROTO_ICMP, front4), append([]byte(nil), packet4(t, unix.IPPROTO_TCP, front4)[:40]...),
	} {
		var want [Verdicts]uint64
		for i, prog := range append([]*ebpf.Program{steering(r, r.p)}, r.programs()...) {
			before, err := r.p.counters.slot(0)
			must(t, err)
			_, err = prog.Run(&ebpf.RunOptions{Data: packet, DataOut: make([]byte, 256)})
			must(t, err)
			got, err := r.p.counters.slot(0)
			must(t, err)
			for v := range got {
				got[v] -= before[v]
			}
			if i == 0 {
				want = got
			} else if got != want {
				t.Errorf("%s: %x: counted %v, want %v", r.hooks[i-1].name, packet, got, want)
			}
		}
	}
}

func (r *flowRig) programs() (all []*ebpf.Program) {
	for i := range r.hooks {
		all = append(all, r.hooks[i].prog)
	}
	return all
}
