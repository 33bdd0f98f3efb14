package steer

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/conntrack/flowstate"
	"github.com/weirlb/weir/lb/header"
)

// TestKernelRepeats is the tests of all programs that read the flow table. They share a rig:
// the kernel verifies the programs in half a second, and in half a minute where the CPU is
// emulated.
func TestKernelRepeats(t *testing.T) {
	r := newFlowRig(t, 1<<12)
	for _, tt := range []struct {
		name string
		test func(*testing.T, *flowRig)
	}{
		{"the packet loop", repeatsThePacketLoop},
		{"connections that have just begun", followsConnectionsThatHaveJustBegun},
		{"packets that the kernel cuts, measured by their pieces", measuresPackets},
		{"packets of more than 64 KB", repeatsBigTCP},
		{"nothing while the flow table is off", repeatsNothingWhileOff},
		{"suspended, until the process has died", endsSuspension},
		{"nothing when no process is awaited", repeatsNothingUnawaited},
		{"whole checksums that look partial, but no partial one", tellsWholeFromPartial},
		{"all other packets as the steering program", steersOthers},
	} {
		t.Run(tt.name, func(t *testing.T) { tt.test(t, r.within(t)) })
	}
}

// repeatsThePacketLoop gives packets to the programs and to the packet loop. Either a program
// leaves all as it was, for the loop, or it does what the loop does; and it forwards each plain
// packet of a steady flow.
func repeatsThePacketLoop(t *testing.T, r *flowRig) {
	type tags struct{ tagged, vlan, leaves bool } // a tag that arrives, of a VLAN, and one that leaves
	tagged := map[tags]int{}
	for _, kind := range flowKinds() {
		t.Run(kind.String(), func(t *testing.T) {
			plain := map[string]int{}
			unproved := func() (names []string) {
				for i := range r.hooks {
					if name := r.hooks[i].name; plain[name] == 0 && kind.takes() {
						names = append(names, name)
					}
				}
				return names
			}
			// A few flows, as of the race detector's run, may by chance have no plain packet.
			for round := 0; round < 10 && (round == 0 || len(unproved()) > 0); round++ {
				rapid.Check(t, func(t *rapid.T) {
					c, ref := r.drawFlow(t, kind)
					defer r.forget(ref)
					for range 4 {
						s := r.drawSegment(t, &c, ref)
						for i := range r.hooks {
							h := r.hooks[i]
							h.noSum = c.outerLen() != 0 && (s.spoiled != "" || len(s.frame) <= 60)
							if h.tcx && len(s.frame) < s.l4 {
								continue // no test run takes a header that is cut
							}
							if r.compare(t, &h, &c, &s, ref) {
								plain[h.name]++
								tagged[tags{c.tag != 0, c.tag&0xfff != 0, rigTags[c.port] != 0}]++
							}
						}
					}
				})
			}
			for _, name := range unproved() {
				t.Errorf("no packet for %s was plain: nothing is proved", name)
			}
		})
	}
	for _, c := range []tags{{false, false, true}, {true, false, false}, {true, true, false}, {true, true, true}} {
		if tagged[c] == 0 {
			t.Errorf("no packet of %+v was plain: nothing is proved", c)
		}
	}
}

// forget deletes a flow.
func (r *flowRig) forget(ref conntrack.Ref) {
	r.maker.Delete(ref)
	r.maker.Quiesce()
	r.loop.Round()
}

// compare gives packet s of a flow to hook h and, if that forwards it, to the packet loop. It
// reports whether the packet was to be forwarded.
func (r *flowRig) compare(t *rapid.T, h *hook, c *flowCase, s *segment, ref conntrack.Ref) bool {
	r.syncNextHops()
	if c.stale {
		r.nextHops[int(c.hop)*cell+adjacencyStamp]++
	}
	conn := r.flows.Conn(ref)
	r.state.Exceptions = 1
	r.setGone(0, conn.EndpointID, c.gone)
	r.setGone(r.state.ServicesAt, conn.ServiceID, c.serviceGone)
	if !c.v6 && c.proto == unix.IPPROTO_TCP && conn.State() == flowstate.Established {
		r.noteFarAhead(ref, rapid.Bool().Draw(t, "numbers in the entry"))
	}
	since, before := r.flows.Tick(), r.snapshot(ref)
	flags := uint32(0)
	if c.vlans {
		flags = interfaceVLANs
	}
	must(r, r.p.interfaces.set(loopback, 0, ownMAC, flags))
	port, device := c.port, c.port
	if rigTags[port] != 0 {
		device = 1
	}
	// By a port without an interface nothing leaves.
	r.state.Ports[port].IfIndex = 0
	if _, forwarded := r.run(t, h, s.frame, 0); forwarded {
		t.Fatalf("%s forwards by a port without an interface", h.name)
	}
	r.state.Ports[port].IfIndex = 1
	out, forwarded := r.run(t, h, s.frame, 0)
	after := r.snapshot(ref)
	want := c.steady(r) && s.plain(r, h, c)
	if !forwarded {
		if !bytes.Equal(out, s.frame) {
			t.Fatalf("%s: packet changed, but not forwarded:\n%x\n%x", h.name, s.frame, out)
		}
		if !bytes.Equal(before, after) {
			t.Fatalf("%s: flow changed, but packet not forwarded", h.name)
		}
		if want {
			t.Fatalf("%s does not forward a plain packet of a steady flow: %+v\n%x", h.name, c, s.frame)
		}
	} else {
		if !c.takes(h) {
			t.Fatalf("%s forwards a packet of %+v", h.name, c)
		}
		if !bytes.Equal(after[connSize+entryNumbers:][:8], before[connSize+entryNumbers:][:8]) ||
			!bytes.Equal(after[connSize+cell+entryNumbers:][:8], before[connSize+cell+entryNumbers:][:8]) {
			t.Fatalf("%s: the kernel has written the numbers in an entry", h.name)
		}
		after = r.asRead(ref)
		r.restore(ref, before)
		r.compareLoop(t, h, c, s, ref, out, after, device, since)
	}
	return want
}

// setGone sets or clears a bit of flow_gone.
func (r *flowRig) setGone(at, number uint32, gone bool) {
	b := &r.gone[at*8+number/8]
	if *b &^= 1 << (number % 8); gone {
		*b |= 1 << (number % 8)
	}
}

// compareLoop gives the packet to the packet loop, which must do what the kernel did.
func (r *flowRig) compareLoop(t *rapid.T, h *hook, c *flowCase, s *segment, ref conntrack.Ref, out, after []byte, port int, since uint32) {
	want, by := r.forward(s.frame)
	ip, shift := 14, int(c.outerLen())
	if rigTags[c.port] != 0 && h.tcx {
		want = slices.Delete(want, 12, 16) // the tag is beside the frame
	} else if rigTags[c.port] != 0 {
		ip += 4
		shift += 4
	}
	if c.tagged {
		shift -= 4
	}
	if c.outerLen() != 0 && !c.outer6 && len(out) == len(want) && want[ip+6]&0x40 == 0 {
		// The kernel's identification is a random number.
		copy(want[ip+4:], out[ip+4:ip+6])
		sum4(want[ip:])
	}
	if (h.tcx && s.partial || s.alike) && len(want) == len(out) {
		// The loop can but believe the value. The kernel knows of this one that it is whole.
		e, k := r.flows.Entry(ref), r.flows.Entry(ref).Tuple()
		at := s.l4 + checksumOffset(k.Proto())
		sum := header.Update(binary.LittleEndian.Uint16(s.frame[at:]), uint64(e.L4Delta))
		if sum == 0 && k.Proto() == unix.IPPROTO_UDP {
			sum = 0xffff
		}
		binary.LittleEndian.PutUint16(want[at+shift:], sum)
	}
	if by != port || !bytes.Equal(out, want) {
		t.Fatalf("%s: packet\n%x\nby the kernel\n%x\nby the loop, by port %d\n%x", h.name, s.frame, out, by, want)
	}
	if s.partial || s.alike || c.resized() {
		return // the loop's slow path has another measure of a milestone
	}
	r.sameNotes(t, h, ref, since, after, r.asRead(ref))
}

// sameNotes compares snapshots after a packet that was sent since a tick. If the clock has
// moved on between the two, the packet may be the first of a tick for one of them alone.
func (r *flowRig) sameNotes(t *rapid.T, h *hook, ref conntrack.Ref, since uint32, kernel, loop []byte) {
	at := connSize + entrySeen
	if !ref.Forward() {
		at += cell
	}
	k, l := binary.NativeEndian.Uint32(kernel[at:]), binary.NativeEndian.Uint32(loop[at:])
	const late = 2 * conntrack.TicksPerSecond // of the timer interrupt, on an emulated CPU
	if now := r.flows.Tick(); int32(k-since) < -late || int32(k-now) > 1 {
		t.Fatalf("%s: entry seen at %d, between %d and %d", h.name, k, since, now)
	}
	if k == l && !bytes.Equal(kernel, loop) {
		t.Fatalf("%s: flow by the kernel\n%x\nby the loop\n%x", h.name, kernel, loop)
	}
}

// noteFarAhead leaves numbers in the entry that are far ahead of the connection's, as those of a
// connection that the kernel has forwarded for long are, or none.
func (r *flowRig) noteFarAhead(ref conntrack.Ref, some bool) {
	c, numbers := r.connCell(ref)[connNumbers:], uint64(0)
	if some {
		own, other := binary.NativeEndian.Uint32(c), binary.NativeEndian.Uint32(c[4:])
		if !ref.Forward() {
			own, other = other, own
		}
		numbers = uint64(own+1<<30)<<32 | uint64(other+1<<30)
	}
	binary.NativeEndian.PutUint64(r.entryCells(ref)[uint32(ref-1)&1*cell+entryNumbers:], numbers)
}

// asRead is snapshot of a connection as whoever reads it sees it: with the numbers that the packet
// loop has noted in an entry. The program notes them in the connection at once.
func (r *flowRig) asRead(ref conntrack.Ref) []byte {
	r.flows.Conn(ref)
	if k := r.flows.Entry(ref).Tuple(); k.Proto() == unix.IPPROTO_TCP {
		// In steady states that only UDP flows have, a TCP connection is not read.
		state := r.connCell(ref)[connState:][:4]
		was := bytes.Clone(state)
		r.setState(ref, flowstate.Established)
		r.flows.Conn(ref)
		copy(state, was)
	}
	return r.snapshot(ref)
}

// snapshot is the connection with both entries.
func (r *flowRig) snapshot(ref conntrack.Ref) []byte {
	return append(bytes.Clone(r.connCell(ref)), r.entryCells(ref)...)
}

func (r *flowRig) restore(ref conntrack.Ref, b []byte) {
	copy(r.connCell(ref), b)
	copy(r.entryCells(ref), b[connSize:])
}
