package flowcache

import "golang.org/x/sys/unix"

// MaxPorts is the number of ports that adjacencies may name, and of slots: as many as
// interfaces can be attached (steer.MaxSlots).
const MaxPorts = 64

// State is the state of the program in the kernel besides the flow table: the only element of
// the map flow_state. Userspace writes it, with atomic stores. The words that the program
// reads for each packet are in the first cache line.
type State struct {
	Seed      [4]uint64 // of conntrack.Table.Hash
	Tick0     uint64    // CLOCK_MONOTONIC in nanoseconds of tick 0
	Buckets   uint32    // elements of flow_index
	EntriesAt uint32    // element of flow_table with the first Entry
	// From is the CLOCK_MONOTONIC time in nanoseconds before which every packet goes up; 0: it
	// does at any time. The time at which forwarding ends is among the maps of lb/steer, which the
	// next process adopts.
	From uint64
	// Exceptions is the number of bits that are set in flow_gone. While it is not 0, the
	// Conn of each packet is read, and packets whose endpoint or Service has its bit go
	// up. A number without a bit is not gone.
	Exceptions uint32
	_          uint32

	// ConnsAt is the element of flow_table with the first Conn.
	ConnsAt uint32
	// ServicesAt is the element of flow_gone with the bits of Services 0 to 63. Endpoint
	// n has bit n%64 of element n/64.
	ServicesAt uint32
	_          [56]byte

	Ports [MaxPorts]Port // by the port in Adjacency.src
	Slots [MaxPorts]Slot // by the slot of the interface that a packet came from
}

// Port is where packets leave. Userspace writes it as a whole.
type Port struct {
	// IfIndex is the interface to redirect to; 0 while packets to the port are to go up.
	IfIndex uint32
	Flags   uint16
	VLAN    uint16 // number of the tag to push, 0 for none; with VLAN8021AD the tag is of 802.1ad
}

// VLAN8021AD is a bit of Port.VLAN: the EtherType of the tag is that of IEEE 802.1ad.
const VLAN8021AD = 1 << 15

// VLANTag is Port.VLAN of a tag: EtherType in the upper half, and the number.
func VLANTag(tag uint32) uint16 {
	vlan := uint16(tag) & 0xfff
	if tag>>16 == unix.ETH_P_8021AD {
		vlan |= VLAN8021AD
	}
	return vlan
}

// Flags of a Port.
const (
	PortXDP     = 1 << 0 // an XDP program may redirect there
	PortXDPFrag = 1 << 1 // and packets of several buffers too
)

// Slot is an attached interface.
type Slot struct {
	// Up is the interface that packets for the packet loop are redirected to by a TCX
	// program, 0 for none.
	Up uint32
}

// Repeated counts by slot, on each CPU, the packets that the program has forwarded.
type Repeated struct {
	Packets uint64
	Bytes   uint64
}
