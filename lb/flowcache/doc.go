// Package flowcache shares the flow table with a program in the kernel, which forwards the
// packets of established flows by it.
//
// # Maps
//
// The table is not copied. The memory of conntrack.Table and of the adjacencies of
// route.Watcher is that of BPF arrays, which this process maps (BPF_F_MMAPABLE):
//
//	flow_table       64-byte cells: what the file of the flow table has: Conns, Entries
//	flow_index       64-byte cells: the buckets
//	flow_next_hops   64-byte cells: the adjacencies, by number
//	flow_state       one element: State
//	flow_gone        64 bits each: endpoints, then Services, that are gone
//	flow_repeated    per CPU, by slot: Repeated
//	flow_counts      conntrack.Count by entry; one element where connections are not recorded
//
// lb/steer/bpf/flowtable.h has the layout for the program. A test writes it from the Go types.
//
// # Look-up
//
// Words of keys are loads of the packet's bytes as they are on a little-endian machine. The
// hash of a key with words w0 to w4 is two rounds of a multiply of 64 by 64 bits, in which
// mum(a, b) is the upper half of the product ^ the lower half:
//
//	h = mum(w0 ^ seed[0], w4 ^ seed[1])
//	IPv6:	h ^= mum(w1 ^ seed[2], w2 ^ seed[3])
//		h  = mum(w3 ^ seed[1], h ^ seed[0])
//	hash = mum(h ^ seed[2], seed[3])
//
// The bucket of probe 0 is the upper half of the product of hash and the number of buckets.
// That of probe p > 0 is p*(1 + step) further, modulo the number of buckets, and step is the
// upper half of the product of hash with its halves exchanged and an eighth of the number of
// buckets. A tag is the low byte of hash, or 1 if that is 0. A slot's word is the number of
// the entry + 1; connection n has the entries 2n, from the client, and 2n+1, to it. A look-up
// goes on to the next probe only while the bucket's over is not 0.
//
// The next-hop word of an entry is word 1 of its key if the key's family (bits 40 to 47 of
// word 4) is 4, else addr4, for the modes without translation of the other entry (number
// ^ 1). It has the stamp of the adjacency in the upper half, which is 0 while the flow is not
// steady, the route's MTU in bits 16 to 31, and the adjacency's number in bits 0 to 15. Words 1
// to 3 of the key of an IPv4 entry are no part of the tuple: the packet loop notes TCP numbers
// in word 2. The new addresses of an IPv6 packet are the key of the other entry backwards:
// source w2, w3, destination w0, w1.
//
// # Rules for the program
//
// The program may read any word at any time, but the words are valid only if it reads them
// in the order that the package comment of conntrack gives under Generation. From the entry
// it then forwards if
//
//   - the upper half of the next-hop word is not 0 and is the adjacency's stamp
//   - the mode is known to the program, and a packet with a QUIC long header does not belong
//     to a translated entry with FlagWatched
//   - the adjacency's state is Valid (2), its port has an interface, and the program can push
//     the port's tag if that has one
//   - the packet fits the MTU of the route and of the adjacency, with the outer header of ipip
//     and gue
//   - the time is State.From or later, and before the end that lb/steer has among its maps
//   - the packet has neither SYN, FIN nor RST, no options of IP, and TTL above 1
//   - while State.Exceptions is not 0: neither endpoint nor Service has its bit
//
// Every other packet goes to the packet loop, unmodified. The stamp of an adjacency is loaded
// before its other words and again after them.
//
// The program writes these words and no others:
//
//   - Entry.seen and Adjacency.used, if they are not the current tick: its number as a plain
//     store of 32 bits
//   - Conn.clientNext and endpointNext, as conntrack.Conn.Sample, of a TCP segment with ACK
//     that is the first of its direction in a tick, or a Milestone
//   - its counters, and by atomic additions flow_counts, if that has an element for each entry
//
// On a machine that does not keep loads in order the program needs a barrier between the
// steps of that order.
package flowcache
