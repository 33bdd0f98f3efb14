// Package worker is the packet loop of a core: frames in, stages, frames out. A worker
// owns a queue of every interface, reads snapshots that the owner publishes, and shares
// the flow table with the other workers. It takes no lock and allocates nothing.
//
// The files, in the order of a packet:
//
//  1. port.go         receive a batch from a queue; filldepth.go sizes the fill ring
//  2. classify.go     make key and hash, parse the headers (packet.go: packet and batch)
//  3. lookup.go       the three stages: classify, match tags, dispatch
//  4. lane.go         packets of established flows that only need the rewrite;
//     lane6.go        IPv6, lane_tunnel.go an outer header; fastpath.go those without a
//     lane: VLAN tags, IPv6 in a tunnel, IPv6 outer headers, and what needs another look
//     lane_drop.go    packets to an SNAT port that no flow has
//  5. slowpath.go     all other packets of flows; track.go, sctp.go and quic.go track them,
//     removed_endpoint.go and challenge.go end flows whose endpoint is gone
//  6. admission.go    packets of no flow: frontend, limits; reversepath.go checks the source
//  7. select.go       endpoint of a new flow; quic.go by connection ID
//  8. newconn.go      create the flow; newconn_retry.go when the endpoint has no SNAT port,
//     newconn_noflow.go when the table is full
//  9. nexthop.go      route, adjacency, MTU; routecache.go, and neighqueue.go for packets
//     whose next hop has to be resolved
//  10. nat.go         rewrite addresses and ports (dnat.go: flows that keep the client's address);
//     tunnel.go       or encapsulate (DSR); checksum.go completes checksums
//  11. output.go      MAC addresses, VLAN tag, port; output_fragments.go divides
//  12. port.go        transmit and complete
//
// A packet leaves the stages by a single outcome, a verdict (verdict.go) that the functions
// of the slow path return; conclude (slowpath.go) and act (outcome.go) bring it about:
//
//	output    to its next hop                       output.go
//	punt      to the kernel, by the host veth       outcome.go
//	reject    answered with a RST, ABORT or ICMP    outcome.go
//	drop      counted under a reason, sampled       outcome.go, drops.go, drop_samples.go
//	queue     until a neighbor or fragment comes    neighqueue.go, fragqueue.go
//	hand off  to the worker that owns the queue     handoff.go
//
// Beside the stages observe.go copies packets for captures and traces, and observe_record.go
// writes the copies. trace.go takes a packet that does not exist through the stages.
//
// ICMP (icmp.go, icmp_echo.go, icmp_ecmp.go, icmp_pmtu.go) and fragments (fragments.go)
// take the place of the slow path: unparsed.go. All packets go in the order of arrival.
//
// A worker is built in layers, each of which embeds the layer below it and calls down only:
//
//	frameMemory      packet.go      read and change packets
//	portIO           port.go        frames in and out, drop, punt, hand off
//	classifier       classify.go    keys and headers
//	rejecter         outcome.go     answers, at limited rates
//	admission        admission.go   which packets may begin a flow
//	selector         select.go      endpoint of a new flow
//	forwarder        nexthop.go     next hop, NAT or tunnel, output
//	fastPath         fastpath.go    packets that only need the rewrite
//	connMaker        newconn.go     how a connection is made
//	flows            slowpath.go    slow path
//	icmpHandler      icmp.go
//	fragmentHandler  fragments.go
//	Worker           worker.go      stages, round, the owner's side
//
// All of them have the same memory: a layer reaches the state of those below without a load. Beside
// them are parts, which are asked by a layer and do not know each other. removals
// (removed_endpoint.go) are the endpoints that are gone, attemptWatch (attempt.go, handshake.go)
// counts attempts to connect, endings (endconn.go) end connections on both sides, and settling
// (settle.go) leaves flows to the kernel. sleeper (idle.go) is the time between packets,
// trafficSampler (servicecounts.go) counts for Services.
//
// worker.go is the round, new.go, owner.go and port_update.go the owner's side.
package worker
