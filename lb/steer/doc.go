// Package steer loads and attaches the XDP program that decides for each packet whether it
// is Weir's or the kernel's.
//
// The program (bpf/steer.c) runs on every interface that Weir is attached to.
// Packets for a frontend, and packets for an address and port from which Weir
// translates, go to the AF_XDP socket of their queue. Everything else goes to
// the kernel: ARP and neighbor discovery, SSH, malformed packets, and packets to another
// MAC address.
//
// A fragment gets the verdict of the first fragment of the datagram, which has the ports. A
// fragment that comes before the first goes to Weir if the destination is an address that
// only serves frontends (AddVIP), else to the kernel: datagrams to the node itself must
// never miss a piece.
//
// # Established flows
//
// With the flow table in maps (Config.Flows, see lb/flowcache) two other programs take the
// place of that (bpf/repeat.c): one for XDP, and one for TCX. They look up each packet
// in the flow table first and forward it, if its flow is steady, as the packet loop would
// (lb/worker.fastPath). All others are steered as ever. The tests give the same packets to
// the programs and to the packet loop. VLAN tags and the outer headers of ipip and gue are
// the XDP program's alone.
//
// # Deny lists
//
// Packets to frontends of clients on deny lists are dropped (Deny), so that a flood of them costs the
// packet loop nothing. The lists are a set in memory that process and program share (lb/denylist):
// an LPM trie map takes 64 to 192 bytes for a prefix, and is changed prefix by prefix.
//
// # Staying safe
//
// The program is attached by a bpf_link that is pinned in a BPF file system,
// because attaching and detaching XDP can take a NIC's link down for seconds:
// it happens once, and a restart of Weir only exchanges the program under the
// link. When Weir is killed the pinned link and the program stay, but the
// sockets are gone from the socket map, and the redirect's fallback is
// XDP_PASS: the kernel takes every packet from the next one on. Close(true)
// detaches and leaves nothing behind.
//
// The maps are pinned too. The next process adopts them (adopt.go), so that the program that is
// attached gives it packets before its own is verified.
//
// # Order of changes
//
// A frontend is added after the snapshot that serves it is published, and
// removed before it is withdrawn. Maps may be changed from any goroutine.
//
// Interfaces belong to the network namespace of the calling thread: Load,
// Attach and the probes must run on a thread that is in the right one.
package steer
