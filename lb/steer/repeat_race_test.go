package steer

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/conntrack/flowstate"
	"github.com/weirlb/weir/lb/header"
)

// raceTuples is how many tuples flows come and go of: few, so that connections, slots and
// adjacencies are soon another flow's.
const raceTuples = 32

// raced is a tuple, and the rounds in which there are flows of it.
type raced struct {
	packet []byte
	v6     bool
	// ended is the last round whose flow is not known any more.
	ended atomic.Uint32
}

// raceEndpoint is where the flow of a tuple goes in a round: address and port each say
// which tuple and which round.
func raceEndpoint(i int, round uint16, v6 bool) netip.AddrPort {
	b := [4]byte{10, byte(round), byte(round >> 8), byte(i)}
	port := round*31 + uint16(i)
	if !v6 {
		return netip.AddrPortFrom(netip.AddrFrom4(b), port)
	}
	a := netip.MustParseAddr("2001:db8:aaaa:bbbb:cccc:dddd::").As16()
	copy(a[4:], b[:])
	copy(a[12:], b[:])
	return netip.AddrPortFrom(netip.AddrFrom16(a), port)
}

// TestNoPacketTakesAnotherFlowsRecipe runs the programs while flows of the packets' tuples come
// and go. A packet is left as it is, or gets one flow's recipe as a whole: that of a flow
// which was still known when the program began.
func TestNoPacketTakesAnotherFlowsRecipe(t *testing.T) {
	r := newFlowRig(t, 1<<10)
	r.hooks = append(r.hooks, hook{name: "xdp that stalls", prog: r.stalling(5000)})
	tuples := make([]*raced, raceTuples)
	keys := make([]conntrack.Key, raceTuples)
	for i := range tuples {
		tuples[i] = &raced{v6: i%2 == 1}
		keys[i] = raceKey(i, tuples[i].v6)
		tuples[i].packet = racePacket(&keys[i])
	}
	const enough = 4_000
	var changes atomic.Uint64
	stop := make(chan struct{})
	var maker, runners sync.WaitGroup
	maker.Go(func() { r.changeFlows(tuples, keys, &changes, stop) })
	var failed atomic.Pointer[string]
	for i := range r.hooks {
		runners.Go(func() {
			for n, forwarded := 0, 0; forwarded < enough || changes.Load() < enough; n++ {
				did, err := r.runRaced(&r.hooks[i], tuples[n*7%raceTuples], n*7%raceTuples)
				if err != nil {
					text := fmt.Sprintf("%s: %v", r.hooks[i].name, err)
					failed.Store(&text)
				}
				if failed.Load() != nil {
					return
				}
				if did {
					forwarded++
				}
			}
		})
	}
	runners.Wait()
	close(stop)
	maker.Wait()
	if text := failed.Load(); text != nil {
		t.Fatal(*text)
	}
	t.Logf("%d changes", changes.Load())
}

// stalling is the XDP program with some time between two words of a recipe.
func (r *flowRig) stalling(loops uint32) *ebpf.Program {
	spec, shared, err := r.p.programs.repeatSpec()
	must(r, err)
	must(r, spec.Variables[repeatVarStall].Set(loops))
	var programs struct {
		WeirRepeat *ebpf.Program `ebpf:"weir_repeat"`
	}
	must(r, spec.LoadAndAssign(&programs, &ebpf.CollectionOptions{MapReplacements: shared}))
	r.Cleanup(func() { programs.WeirRepeat.Close() })
	return programs.WeirRepeat
}

func raceKey(i int, v6 bool) conntrack.Key {
	client, frontend := netip.MustParseAddr("198.18.0.1"), netip.MustParseAddr("203.0.113.1")
	if v6 {
		client, frontend = netip.MustParseAddr("2001:db8::c"), netip.MustParseAddr("2001:db8::f")
	}
	return conntrack.MakeKey(netip.AddrPortFrom(client, uint16(1000+i)), netip.AddrPortFrom(frontend, 80), unix.IPPROTO_UDP)
}

// racePacket is a datagram of a key with a checksum.
func racePacket(k *conntrack.Key) []byte {
	const payload = 30
	frame := make([]byte, 14, 128)
	copy(frame, ownMAC)
	copy(frame[6:], otherMAC)
	n := header.UDPLen + payload
	src, dst := k.Src(), k.Dst()
	l4 := 34
	if k.Family() == 6 {
		copy(frame[12:], []byte{0x86, 0xdd})
		ip := make([]byte, 40)
		ip[0], ip[5], ip[6], ip[7] = 0x60, byte(n), unix.IPPROTO_UDP, 64
		copy(ip[8:], src.Addr().AsSlice())
		copy(ip[24:], dst.Addr().AsSlice())
		frame, l4 = append(frame, ip...), 54
	} else {
		copy(frame[12:], []byte{0x08, 0x00})
		ip := make([]byte, 20)
		ip[0], ip[3], ip[8], ip[9] = 0x45, byte(20+n), 64, unix.IPPROTO_UDP
		copy(ip[12:], src.Addr().AsSlice())
		copy(ip[16:], dst.Addr().AsSlice())
		sum4(ip)
		frame = append(frame, ip...)
	}
	frame = append(frame, make([]byte, n)...)
	udp := frame[l4:]
	binary.BigEndian.PutUint16(udp, src.Port())
	binary.BigEndian.PutUint16(udp[2:], dst.Port())
	binary.BigEndian.PutUint16(udp[4:], uint16(n))
	sum := raceSum(frame, l4)
	if sum == 0 {
		sum = 0xffff
	}
	binary.LittleEndian.PutUint16(udp[6:], sum)
	return frame
}

// raceSum is the checksum of a packet, 0 if it has one and that is right.
func raceSum(frame []byte, l4 int) uint16 {
	n := len(frame) - l4
	pseudo := header.PseudoSum4(frame[14:], unix.IPPROTO_UDP, n)
	if l4 == 54 {
		pseudo = header.PseudoSum6(frame[14:], unix.IPPROTO_UDP, n)
	}
	return header.Checksum(pseudo, frame[l4:])
}

// changeFlows makes flows of the tuples and ends them, until stop is closed.
func (r *flowRig) changeFlows(tuples []*raced, keys []conntrack.Key, changes *atomic.Uint64, stop chan struct{}) {
	refs := make([]conntrack.Ref, len(tuples))
	words := make([]uint64, len(rigMTUs))
	for i := range words {
		words[i] = r.word(r.nextHop(1, rigHop(1, i)), 1500)
	}
	for n := uint32(0); ; n++ {
		i := int(n * 2654435761 % uint32(len(tuples)))
		select {
		case <-stop:
			return
		default:
		}
		round := uint16(tuples[i].ended.Load() + 1)
		if refs[i] != 0 {
			if n%2 == 0 {
				r.setState(refs[i], flowstate.TimeWait)
				if !r.maker.Supersede(refs[i]) {
					panic("a flow cannot be superseded")
				}
				tuples[i].ended.Store(uint32(round))
			}
			r.maker.Delete(refs[i])
			refs[i] = 0
			tuples[i].ended.Store(uint32(round))
			r.maker.Quiesce()
			continue
		}
		ref, outcome := r.maker.Create(&conntrack.NewFlow{
			Client: keys[i], Endpoint: raceEndpoint(i, round, tuples[i].v6), Mode: conntrack.ModeDNAT, Tick: r.flows.Tick(),
		})
		if outcome != conntrack.Created {
			panic(outcome)
		}
		r.setState(ref, flowstate.Stream)
		r.flows.Settle(ref, words[raceHop(i, round)])
		refs[i] = ref
		changes.Add(1)
		r.maker.Quiesce()
	}
}

// raceHop is the next hop of a tuple's flow in a round.
func raceHop(i int, round uint16) int { return (i + int(round)) % len(rigMTUs) }

// runRaced gives a tuple's packet to a hook; it reports whether it was forwarded.
func (r *flowRig) runRaced(h *hook, x *raced, i int) (bool, error) {
	var failed recorder
	ended := uint16(x.ended.Load())
	out, forwarded := r.run(&failed, h, x.packet, 0)
	if failed.text != "" || !forwarded {
		return false, failed.err()
	}
	l4 := 34
	to, _ := netip.AddrFromSlice(out[30:34])
	if x.v6 {
		l4 = 54
		to, _ = netip.AddrFromSlice(out[38:54])
	}
	b := to.AsSlice()
	round := binary.LittleEndian.Uint16(b[len(b)-3:])
	want := raceEndpoint(i, round, x.v6)
	got := netip.AddrPortFrom(to, binary.BigEndian.Uint16(out[l4+2:]))
	switch {
	case got != want:
		return true, fmt.Errorf("tuple %d: sent to %s, no endpoint of it", i, got)
	case int16(round-ended) <= 0:
		return true, fmt.Errorf("tuple %d: sent to %s of round %d, which ended before: %d", i, got, round, ended)
	case int(out[5]) != raceHop(i, round):
		return true, fmt.Errorf("tuple %d: sent to %s by next hop %d", i, got, out[5])
	case raceSum(out, l4) != 0:
		return true, fmt.Errorf("tuple %d: wrong checksum: %x", i, out)
	}
	return true, nil
}

// recorder keeps a failure.
type recorder struct{ text string }

func (f *recorder) Fatalf(format string, args ...any) { f.text = fmt.Sprintf(format, args...) }

func (f *recorder) err() error {
	if f.text == "" {
		return nil
	}
	return fmt.Errorf("%s", f.text)
}
