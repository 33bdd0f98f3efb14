package metrics

import (
	"slices"
	"strconv"

	"github.com/weirlb/weir/cmd/weir/api"
)

var (
	byWorker = []string{"worker"}
	byDevice = []string{"device"}
	byQueue  = []string{"device", "queue"}
)

// onePerName are the interfaces without those of a name that another has: a VLAN upon
// a bond is a port of each member. Two values with the same labels would fail the scrape.
func onePerName(s *api.Status) []api.Interface {
	var out []api.Interface
	for _, i := range s.Interfaces {
		at := slices.IndexFunc(out, func(o api.Interface) bool { return o.Name == i.Name })
		switch {
		case at < 0:
			out = append(out, i)
		case out[at].Mode == "":
			out[at] = i
		}
	}
	return out
}

var devices = []metric{
	gauge("interface_info", "An attached interface with what the kernel granted; always 1.",
		[]string{"device", "mode", "driver", "tx_checksum", "pinned"},
		func(s *api.Status, e emit) {
			for _, i := range onePerName(s) {
				e(1, i.Name, i.Mode, i.Driver, i.TxChecksum, strconv.FormatBool(i.Pinned))
			}
		}),
	gauge("interface_attached", "1 while the interface's packets are taken, 0 before the first full view of Services and while the interface is absent.", byDevice,
		func(s *api.Status, e emit) {
			attached := map[string]bool{}
			for _, i := range s.Interfaces {
				attached[i.Name] = attached[i.Name] || i.Mode != ""
			}
			for _, a := range s.Absent {
				attached[a.Name] = false
			}
			for name, is := range attached {
				e(boolean(is), name)
			}
		}),
	gauge("interface_queues", "Receive queues of the device.", byDevice,
		func(s *api.Status, e emit) {
			for _, i := range onePerName(s) {
				e(float64(i.Queues), i.Name)
			}
		}),
	gauge("interface_bound_queues", "Receive queues that a worker serves.", byDevice,
		func(s *api.Status, e emit) {
			for _, i := range onePerName(s) {
				e(float64(i.BoundQueues), i.Name)
			}
		}),
	perSocket("socket_receive_ring_full_total", "Packets that the kernel dropped because the worker was late.",
		func(x *api.Socket) uint64 { return x.RxRingFull }),
	perSocket("socket_fill_ring_empty_total", "Times that the kernel found no free frame to receive into.",
		func(x *api.Socket) uint64 { return x.RxFillRingEmpty }),
	perSocket("socket_receive_dropped_total", "Packets that the kernel dropped for other reasons.",
		func(x *api.Socket) uint64 { return x.RxDropped }),
	perSocket("socket_invalid_descriptors_total", "Descriptors that the kernel refused; not 0 is a bug.",
		func(x *api.Socket) uint64 { return x.RxInvalidDescs + x.TxInvalidDescs }),
	perSocket("socket_rejected_descriptors_total", "Descriptors and ring indices from the kernel that cannot be; not 0 is a bug of the kernel or the driver.",
		func(x *api.Socket) uint64 { return x.Rejected }),
	gauge("socket_info", "An AF_XDP socket with the mode that the kernel granted its queue and the number of its umem; always 1.",
		[]string{"device", "queue", "mode", "umem"},
		func(s *api.Status, e emit) {
			for _, i := range s.Interfaces {
				for _, x := range i.Sockets {
					e(1, i.Name, itoa(x.Queue), x.Mode, itoa(x.Umem))
				}
			}
		}),
	counter("steering_packets_total", "Packets that the XDP program saw, by what it did with them.", []string{"action"},
		func(s *api.Status, e emit) {
			for action, n := range s.Steering {
				e(float64(n), action)
			}
		}),
}

var workers = []metric{
	perWorker("receive_packets_total", "Packets received.", func(w *api.Worker) uint64 { return w.RxPackets }),
	perWorker("receive_bytes_total", "Bytes received, from the Ethernet header on.", func(w *api.Worker) uint64 { return w.RxBytes }),
	perWorker("transmit_packets_total", "Packets sent.", func(w *api.Worker) uint64 { return w.TxPackets }),
	perWorker("transmit_bytes_total", "Bytes sent, from the Ethernet header on.", func(w *api.Worker) uint64 { return w.TxBytes }),
	perWorker("new_flows_total", "Flows begun.", func(w *api.Worker) uint64 { return w.NewFlows }),
	perWorker("reopened_flows_total", "Flows whose port or tuple a new SYN took over.", func(w *api.Worker) uint64 { return w.Reopened }),
	perWorker("flowless_packets_total", "Packets of modes without translation sent on without a flow: the flow table was full.", func(w *api.Worker) uint64 { return w.Flowless }),
	perWorker("resets_sent_total", "TCP RSTs made.", func(w *api.Worker) uint64 { return w.Resets }),
	perWorker("sctp_aborts_sent_total", "SCTP refusals made: ABORT and SHUTDOWN COMPLETE.", func(w *api.Worker) uint64 { return w.Aborts }),
	perWorker("icmp_errors_sent_total", "ICMP errors made.", func(w *api.Worker) uint64 { return w.ICMPErrors }),
	perWorker("icmp_errors_passed_total", "ICMP errors about a flow that were passed on to its other side.", func(w *api.Worker) uint64 { return w.ICMPPassed }),
	perWorker("echo_replies_total", "Pings answered.", func(w *api.Worker) uint64 { return w.EchoReplies }),
	perWorker("kernel_packets_total", "Packets given back to the kernel through the host veth.", func(w *api.Worker) uint64 { return w.ToKernel }),
	perWorker("handed_over_packets_total", "Packets passed to the worker that owns the way out, or deals with their datagram.", func(w *api.Worker) uint64 { return w.HandedOver }),
	perWorker("held_packets_total", "Packets that waited for a neighbor.", func(w *api.Worker) uint64 { return w.Held }),
	perWorker("partial_checksums_total", "Partial checksums completed on the way out.", func(w *api.Worker) uint64 { return w.Partial }),
	perWorker("fragments_total", "Fragments sent on.", func(w *api.Worker) uint64 { return w.Fragments }),
	perWorker("held_fragments_total", "Fragments that came before the first of their datagram and waited for it.", func(w *api.Worker) uint64 { return w.FragmentsHeld }),
	perWorker("transmit_errors_total", "Calls to send that failed: an interface is down or gone.", func(w *api.Worker) uint64 { return w.TxErrors }),
	perWorker("receive_batches_total", "Receptions of at least one packet; packets by batches is the mean batch size.", func(w *api.Worker) uint64 { return w.Batches }),
	perWorker("worker_sleeps_total", "Times that the worker went to sleep for want of packets.", func(w *api.Worker) uint64 { return w.Sleeps }),
	counter("worker_busy_seconds_total", "Time that the worker spent in rounds with something to do; its rate is the busy share.", byWorker,
		func(s *api.Status, e emit) {
			for _, w := range s.Workers {
				e(w.BusySeconds, itoa(w.ID))
			}
		}),
	gauge("worker_free_frames", "Packet memory of the worker that is in no use, in frames.", byWorker,
		func(s *api.Status, e emit) {
			for _, w := range s.Workers {
				e(float64(w.FreeFrames), itoa(w.ID))
			}
		}),
	perWorkerReason("worker_dropped_packets_total", "Packets dropped, by worker and reason; reasons that occurred."),
	counter("dropped_packets_total", "Packets dropped, each under one reason.", []string{"reason"},
		func(s *api.Status, e emit) {
			for reason, n := range s.Drops {
				e(float64(n), reason)
			}
		}),
}

var flows = []metric{
	gauge("flows", "Connections in the flow table.", nil, func(s *api.Status, e emit) { e(float64(s.Flows.Current)) }),
	gauge("flows_limit", "Connections that fit into the flow table.", nil, func(s *api.Status, e emit) { e(float64(s.Flows.Max)) }),
	gauge("flow_table_bytes", "Memory of the flow table.", nil, func(s *api.Status, e emit) { e(float64(s.Flows.MemoryBytes)) }),
	gauge("flows_by_state", "Connections by protocol and state.", []string{"state"}, func(s *api.Status, e emit) {
		for state, n := range s.Flows.ByState {
			e(float64(n), state)
		}
	}),
	counter("flows_created_total", "Connections entered into the table.", nil, func(s *api.Status, e emit) { e(float64(s.Flows.Created)) }),
	counter("flows_expired_total", "Connections that ended or aged out.", nil, func(s *api.Status, e emit) { e(float64(s.Flows.Expired)) }),
	counter("flows_evicted_total", "Half-open, ended and unproven connections that made room for new ones.", nil, func(s *api.Status, e emit) { e(float64(s.Flows.Evicted)) }),
	counter("flows_displaced_total", "Half-open flows, and UDP flows answered once, whose SNAT port another flow got.", nil, func(s *api.Status, e emit) { e(float64(s.Flows.Displaced)) }),
	counter("flows_adopted_total", "Connections taken over from the last process.", nil, func(s *api.Status, e emit) { e(float64(s.Flows.Adopted)) }),
	counter("flows_refused_total", "New connections refused for want of a SNAT port or of room.", []string{"reason"}, func(s *api.Status, e emit) {
		e(float64(s.Flows.NoPort), "no-port")
		e(float64(s.Flows.Full), "table-full")
	}),
}

func perWorkerReason(name, help string) metric {
	return counter(name, help, []string{"worker", "reason"}, func(s *api.Status, e emit) {
		for _, w := range s.Workers {
			for reason, n := range w.Drops {
				e(float64(n), itoa(w.ID), reason)
			}
		}
	})
}

func perWorker(name, help string, value func(*api.Worker) uint64) metric {
	return counter(name, help, byWorker, func(s *api.Status, e emit) {
		for i := range s.Workers {
			e(float64(value(&s.Workers[i])), itoa(s.Workers[i].ID))
		}
	})
}

func perSocket(name, help string, value func(*api.Socket) uint64) metric {
	return counter(name, help, byQueue, func(s *api.Status, e emit) {
		for i := range s.Interfaces {
			for j := range s.Interfaces[i].Sockets {
				x := &s.Interfaces[i].Sockets[j]
				e(float64(value(x)), s.Interfaces[i].Name, itoa(x.Queue))
			}
		}
	})
}
