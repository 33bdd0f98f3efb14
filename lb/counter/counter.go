// Package counter lists the counters of a worker. The worker, the status and the
// metrics follow the list: a new counter needs a constant and an entry here, and
// the line that counts.
package counter

import "time"

// Counter is the index of a counter.
type Counter uint8

// The counters, in the order of the documentation.
const (
	RxPackets Counter = iota
	RxBytes
	TxPackets
	TxBytes
	NewFlows
	ReplacedFlows
	Flowless
	Resets
	Aborts
	ICMPErrors
	ICMPForwarded
	EchoReplies
	Punted
	Handoff
	NeighborQueued
	RouteLookups
	PartialChecksums
	Fragments
	QueuedFragments
	TxErrors
	Batches
	Sleeps
	Busy
	FreeFrames

	Counters // the number of counters
)

// Values has the value of every counter.
type Values [Counters]uint64

// Busy is the value of the counter Busy.
func (v *Values) Busy() time.Duration { return time.Duration(v[Busy]) }

// Info describes a counter.
type Info struct {
	// Field is the field of a worker in the status.
	Field string
	// Metric is the name of the metric, without the prefix weir_.
	Metric string
	Help   string
	// Nanoseconds: the value is a time. Status and metric have seconds.
	Nanoseconds bool
	// Gauge: the value is that of this moment, and not a sum since the start.
	Gauge bool
}

// Info returns the description of c.
func (c Counter) Info() *Info { return &list[c] }

var list = [Counters]Info{
	RxPackets: {Field: "rxPackets", Metric: "receive_packets_total", Help: "Packets received."},
	RxBytes: {
		Field: "rxBytes", Metric: "receive_bytes_total",
		Help: "Bytes received, from the Ethernet header on.",
	},
	TxPackets: {Field: "txPackets", Metric: "transmit_packets_total", Help: "Packets sent."},
	TxBytes: {
		Field: "txBytes", Metric: "transmit_bytes_total",
		Help: "Bytes sent, from the Ethernet header on.",
	},
	NewFlows: {Field: "newFlows", Metric: "new_flows_total", Help: "New flows."},
	ReplacedFlows: {
		Field: "replacedFlows", Metric: "replaced_flows_total",
		Help: "Flows that a new SYN with the same port or tuple replaced.",
	},
	Flowless: {
		Field: "flowless", Metric: "flowless_packets_total",
		Help: "Packets of DSR modes forwarded without a flow: the flow table was full.",
	},
	Resets: {Field: "resets", Metric: "resets_sent_total", Help: "TCP RSTs that the worker made."},
	Aborts: {
		Field: "aborts", Metric: "sctp_aborts_sent_total",
		Help: "SCTP refusals that the worker made: ABORT and SHUTDOWN COMPLETE.",
	},
	ICMPErrors: {
		Field: "icmpErrors", Metric: "icmp_errors_sent_total",
		Help: "ICMP errors that the worker made.",
	},
	ICMPForwarded: {
		Field: "icmpForwarded", Metric: "icmp_errors_forwarded_total",
		Help: "ICMP errors about a flow, forwarded to its other side.",
	},
	EchoReplies: {Field: "echoReplies", Metric: "echo_replies_total", Help: "Pings answered."},
	Punted: {
		Field: "punted", Metric: "punted_packets_total",
		Help: "Packets passed to the kernel through the host veth.",
	},
	Handoff: {
		Field: "handoff", Metric: "handoff_packets_total",
		Help: "Packets passed to the worker of the egress queue, or of the fragmented datagram.",
	},
	NeighborQueued: {
		Field: "neighborQueued", Metric: "neighbor_queued_packets_total",
		Help: "Packets that waited for the resolution of a neighbor.",
	},
	RouteLookups: {
		Field: "routeLookups", Metric: "route_lookups_total",
		Help: "Route look-ups for flows: new next hops, and next hops whose route changed or that were given up.",
	},
	PartialChecksums: {
		Field: "partial", Metric: "partial_checksums_total",
		Help: "Partial checksums completed before transmission.",
	},
	Fragments: {Field: "fragments", Metric: "fragments_total", Help: "Fragments forwarded."},
	QueuedFragments: {
		Field: "queuedFragments", Metric: "queued_fragments_total",
		Help: "Fragments that came before the first fragment of their datagram and waited for it.",
	},
	TxErrors: {
		Field: "txErrors", Metric: "transmit_errors_total",
		Help: "System calls to transmit that failed: an interface is down or gone.",
	},
	Batches: {
		Field: "batches", Metric: "receive_batches_total",
		Help: "Receptions of at least one packet; packets by batches is the mean batch size.",
	},
	Sleeps: {
		Field: "sleeps", Metric: "worker_sleeps_total",
		Help: "Times that the worker slept for lack of packets.",
	},
	Busy: {
		Field: "busySeconds", Metric: "worker_busy_seconds_total", Nanoseconds: true,
		Help: "Time in iterations with packets; its rate is the busy share of the worker.",
	},
	FreeFrames: {
		Field: "freeFrames", Metric: "worker_free_frames", Gauge: true,
		Help: "Unused frames of the worker's packet memory.",
	},
}
