package steer

import (
	"fmt"

	"github.com/cilium/ebpf"
)

// Verdict is the decision of the program about a packet, with the reason.
type Verdict uint8

// Names and order are those of enum verdict in bpf/maps.h.
const (
	Redirected         Verdict = iota // to Weir
	PassNoSocket                      // Weir's, but the queue has no socket
	PassOtherMAC                      // broadcast, multicast, or another host's
	PassVLAN                          // of a VLAN that is not attached, or with several tags
	PassOtherEtherType                // not IP: ARP, LLDP
	PassMalformed                     // headers cut short or impossible
	PassFragment                      // later fragment, the first not seen or not Weir's
	PassExtension                     // IPv6 headers that hide the transport header, or too many
	PassOtherProtocol                 // neither TCP, UDP nor SCTP, nor ICMP that may be Weir's
	PassNoMatch                       // not to or about a frontend or SNAT port
	Held                              // Weir's, dropped while no process is there
	Denied                            // to a frontend, of a client on a deny list: dropped

	Verdicts // the number of verdicts
)

var verdictNames = [Verdicts]string{
	"redirected", "no-socket", "other-mac", "vlan", "other-ethertype",
	"malformed", "fragment", "ipv6-extension", "other-protocol", "no-match", "held", "denied",
}

// DenyLists is the number of deny lists.
const DenyLists = 16

// The C program and this file must agree on the numbers.
var (
	_ [Verdicts]uint64  = steerCounters{}.Packets
	_ [DenyLists]uint64 = steerCounters{}.Denied
)

// String returns the name, fit for a metric's label.
func (v Verdict) String() string {
	if v < Verdicts {
		return verdictNames[v]
	}
	return fmt.Sprintf("verdict(%d)", uint8(v))
}

// Counters are the packet counts of an interface since the program was loaded, including
// earlier interfaces of the same slot.
type Counters struct {
	IfIndex int
	Slot    int
	Packets [Verdicts]uint64
}

// Passed returns how many packets went to the kernel.
func (c Counters) Passed() uint64 {
	var n uint64
	for v := PassNoSocket; v <= PassNoMatch; v++ {
		n += c.Packets[v]
	}
	return n
}

// packetCounters count the packets of each slot, for each CPU.
type packetCounters struct{ perCPU *ebpf.Map }

// slot sums the counters of a slot over the CPUs.
func (c packetCounters) slot(slot int) (sum [Verdicts]uint64, err error) {
	all, err := c.all(slot)
	return all.Packets, err
}

// all is slot with the packets by deny list.
func (c packetCounters) all(slot int) (sum steerCounters, err error) {
	var perCPU []steerCounters
	if err := c.perCPU.Lookup(uint32(slot), &perCPU); err != nil {
		return sum, fmt.Errorf("read counters of slot %d: %w", slot, err)
	}
	for _, cpu := range perCPU {
		for v, n := range cpu.Packets {
			sum.Packets[v] += n
		}
		for list, n := range cpu.Denied {
			sum.Denied[list] += n
		}
	}
	return sum, nil
}

// reset sets all counters to 0.
func (c packetCounters) reset() error {
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return err
	}
	zero := make([]steerCounters, cpus)
	for slot := range MaxSlots {
		if err := c.perCPU.Put(uint32(slot), zero); err != nil {
			return fmt.Errorf("reset counters of slot %d: %w", slot, err)
		}
	}
	return nil
}

// Counters returns the counters of every attached interface, in the order in
// which they were attached.
func (p *Program) Counters() ([]Counters, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := make([]Counters, 0, len(p.attached))
	for _, a := range p.attached {
		packets, err := p.counters.slot(a.Slot)
		if err != nil {
			return nil, err
		}
		list = append(list, Counters{IfIndex: a.IfIndex, Slot: a.Slot, Packets: packets})
	}
	return list, nil
}

// TotalCounters are the counts of all interfaces since the program was loaded, including
// detached and guarded interfaces: they never go down.
func (p *Program) TotalCounters() (sum [Verdicts]uint64, err error) {
	all, err := p.total()
	return all.Packets, err
}

// total is TotalCounters with the packets by deny list.
func (p *Program) total() (sum steerCounters, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for slot := range MaxSlots {
		if slot >= p.slots && slot != guardSlot {
			continue // never attached
		}
		of, err := p.counters.all(slot)
		if err != nil {
			return sum, err
		}
		for v, n := range of.Packets {
			sum.Packets[v] += n
		}
		for list, n := range of.Denied {
			sum.Denied[list] += n
		}
	}
	return sum, nil
}
