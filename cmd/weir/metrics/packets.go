package metrics

import (
	"slices"
	"strconv"
	"strings"

	"github.com/weirlb/weir/cmd/weir/api"
	"github.com/weirlb/weir/lb/counter"
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

// perRepeated is a metric of the interfaces with a flow cache.
func perRepeated(name, help string, value func(*api.Repeated) uint64) metric {
	return total(name, help, byDevice, func(s *api.Status, e emit) {
		for _, i := range onePerName(s) {
			if i.Repeated != nil {
				e(float64(value(i.Repeated)), i.Name)
			}
		}
	})
}

var devices = []metric{
	gauge("interface_info", "An attached interface with what the kernel granted; always 1.",
		[]string{"device", "mode", "driver", "hook", "tx_checksum", "pinned"},
		func(s *api.Status, e emit) {
			for _, i := range onePerName(s) {
				e(1, i.Name, i.Mode, i.Driver, i.Hook, i.TxChecksum, strconv.FormatBool(i.Pinned))
			}
		}),
	gauge("interface_attached", "1 while the interface's packets are taken, 0 before the first full view of Services and while the interface is absent, down or without carrier.", byDevice,
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
	perRepeated("interface_repeated_packets_total", "Packets that arrived on the interface and that the kernel forwarded by the flow table.",
		func(r *api.Repeated) uint64 { return r.Packets }),
	perRepeated("interface_repeated_bytes_total", "Bytes of these packets.",
		func(r *api.Repeated) uint64 { return r.Bytes }),
	perRepeated("interface_steered_packets_total", "Packets that arrived on the interface and that the kernel left to the packet loop.",
		func(r *api.Repeated) uint64 { return r.Steered }),
	total("interface_lost_packets_total", "Redirected packets that the kernel has lost: in the veth pair of hook tcx by which packets of the interface reach the packet loop (pair), and on leaving by the interface, of any sender (transmit).",
		[]string{"device", "cause"}, func(s *api.Status, e emit) {
			for _, i := range onePerName(s) {
				e(float64(i.Lost.Pair), i.Name, "pair")
				e(float64(i.Lost.Transmit), i.Name, "transmit")
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
	total("steering_packets_total", "Packets of the attached interfaces, by action of the XDP program.", []string{"action"},
		func(s *api.Status, e emit) {
			for action, n := range s.Steering {
				e(float64(n), action)
			}
		}),
}

var workers = slices.Concat(workerCounters(), []metric{
	perWorkerReason("worker_dropped_packets_total", "Packets dropped, by worker and reason; reasons that occurred."),
	total("denied_packets_total", "Packets dropped for a deny list.", []string{"list"},
		func(s *api.Status, e emit) {
			for _, l := range s.DenyLists {
				e(float64(l.Packets), l.Name)
			}
		}),
	gauge("deny_list_prefixes", "Prefixes of a deny list.", []string{"list"},
		func(s *api.Status, e emit) {
			for _, l := range s.DenyLists {
				e(float64(l.Prefixes), l.Name)
			}
		}),
	total("flow_records_total", "Starts and ends of connections that were recorded for flowLog.", nil,
		func(s *api.Status, e emit) {
			if l := s.FlowLog; l != nil {
				e(float64(l.Records))
			}
		}),
	total("flow_records_sent_total", "Records of connections that were sent, by the place that they go to, ipfix or file.", []string{"to"},
		func(s *api.Status, e emit) {
			eachFlowTarget(s, func(kind string, t *api.FlowLogTarget) { e(float64(t.Sent), kind) })
		}),
	total("flow_records_lost_total", "Records of connections that were lost: by the place that they could not be sent to, or worker, where there was no room.", []string{"to"},
		func(s *api.Status, e emit) {
			if s.FlowLog != nil {
				e(float64(s.FlowLog.Lost), "worker")
			}
			eachFlowTarget(s, func(kind string, t *api.FlowLogTarget) { e(float64(t.Lost), kind) })
		}),
	total("flow_log_skipped_connections_total", "Connections beyond flowLog.maxPerSecond, of which nothing is recorded.", nil,
		func(s *api.Status, e emit) {
			if l := s.FlowLog; l != nil {
				e(float64(l.Skipped))
			}
		}),
	total("dropped_packets_total", "Packets dropped, each under one reason.", []string{"reason"},
		func(s *api.Status, e emit) {
			for reason, n := range s.Drops {
				e(float64(n), reason)
			}
		}),
})

// eachFlowTarget calls f for the places of the flow log, of which there is one of a kind at most.
func eachFlowTarget(s *api.Status, f func(kind string, t *api.FlowLogTarget)) {
	if s.FlowLog == nil {
		return
	}
	for i := range s.FlowLog.Targets {
		t := &s.FlowLog.Targets[i]
		kind, _, _ := strings.Cut(t.Name, " ")
		f(kind, t)
	}
}

// workerCounters has a metric for every counter of a worker.
func workerCounters() []metric {
	var out []metric
	for c := range counter.Counters {
		kind, info := total, c.Info()
		if info.Gauge {
			kind = gauge
		}
		out = append(out, kind(info.Metric, info.Help, byWorker, func(s *api.Status, e emit) {
			for i := range s.Workers {
				w := &s.Workers[i]
				v := float64(w.Counters[c])
				if info.Nanoseconds {
					v /= 1e9
				}
				e(v, itoa(w.ID))
			}
		}))
	}
	return out
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
	total("flows_created_total", "Connections entered into the table.", nil, func(s *api.Status, e emit) { e(float64(s.Flows.Created)) }),
	total("flows_expired_total", "Connections that ended or aged out.", nil, func(s *api.Status, e emit) { e(float64(s.Flows.Expired)) }),
	total("flows_evicted_total", "Half-open, ended and unproven connections that made room for new ones.", nil, func(s *api.Status, e emit) { e(float64(s.Flows.Evicted)) }),
	total("flows_displaced_total", "Flows that had not ended and whose SNAT port another flow got, by class.", []string{"class"}, func(s *api.Status, e emit) {
		for class, n := range s.Flows.DisplacedBy {
			e(float64(n), class)
		}
	}),
	total("flows_adopted_total", "Connections taken over from the last process.", nil, func(s *api.Status, e emit) { e(float64(s.Flows.Adopted)) }),
	total("flows_refused_total", "New connections refused for want of a SNAT port or of room.", []string{"reason"}, func(s *api.Status, e emit) {
		e(float64(s.Flows.NoPort), "no-port")
		e(float64(s.Flows.Full), "table-full")
	}),
}

func perWorkerReason(name, help string) metric {
	return total(name, help, []string{"worker", "reason"}, func(s *api.Status, e emit) {
		for _, w := range s.Workers {
			for reason, n := range w.Drops {
				e(float64(n), itoa(w.ID), reason)
			}
		}
	})
}

func perSocket(name, help string, value func(*api.Socket) uint64) metric {
	return total(name, help, byQueue, func(s *api.Status, e emit) {
		for i := range s.Interfaces {
			for j := range s.Interfaces[i].Sockets {
				x := &s.Interfaces[i].Sockets[j]
				e(float64(value(x)), s.Interfaces[i].Name, itoa(x.Queue))
			}
		}
	})
}
