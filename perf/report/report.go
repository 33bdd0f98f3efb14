// Package report turns measurements into medians with their spread,
// ratios, tables, JSON and charts.
package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// Workloads.
const (
	Established = "udp-established"
	New         = "udp-new"
	Connect     = "tcp-connect"
	Request     = "tcp-request"
	Bulk        = "tcp-bulk"
)

// Key names a measured figure.
type Key struct {
	Peer     string `json:"peer"`
	Workload string `json:"workload"`
	Setting  string `json:"setting"`         // of the testbed
	Flows    int    `json:"flows,omitempty"` // connections
	Detail   string `json:"detail,omitempty"`
}

// Turn is a measurement. A figure that does not apply is 0.
type Turn struct {
	Seconds    float64 // on the clock
	Packets    uint64  // that reached their end
	Lost       uint64  // that were sent and did not
	Bytes      uint64
	CPUSeconds float64 // of the LB core: user, system and softirq
	Other      float64 // CPU seconds of others on the LB core, not in CPUSeconds
	AllCPU     float64 // CPU seconds of client, node and endpoint together
	Steal      float64 // seconds that the hypervisor gave to someone else
	// LBBusy and LoadBusy are the share of the time, from 0 to 1, in which the load balancer had
	// its core, and clients and endpoints had theirs.
	LBBusy, LoadBusy float64
	PerSecond        float64 // connections or requests
	Gbps             float64
	P50us            float64
	P99us            float64
	Details          map[string]float64
}

// Result is the median of several turns.
type Result struct {
	Key
	Turns int `json:"turns"`
	// Mpps is millions of packets per second on the clock, those that
	// reached their end.
	Mpps float64 `json:"mpps"`
	// NsPerPacket is CPU time of the LB core per packet that was delivered.
	NsPerPacket float64 `json:"nsPerPacket"`
	PerSecond   float64 `json:"perSecond"`
	Gbps        float64 `json:"gbps"`
	P50us       float64 `json:"p50us"`
	P99us       float64 `json:"p99us"`
	CPUSeconds  float64 `json:"cpuSeconds"` // of the LB core in a turn
	// Min and Max are of the figure that ratios are made of: NsPerPacket,
	// PerSecond or Gbps.
	Min float64 `json:"min"`
	Max float64 `json:"max"`

	CPUSecondsPerMillion float64 `json:"cpuSecondsPerMillionPackets,omitempty"`
	CPUSecondsPerGB      float64 `json:"cpuSecondsPerGB,omitempty"` // of the LB core
	// AllCPUSecondsPerGB is of client, node and endpoint together: the sender's core forwards
	// pieces that are to be segmented.
	AllCPUSecondsPerGB float64 `json:"allCPUSecondsPerGB,omitempty"`
	LostPercent        float64 `json:"lostPercent"`
	OtherPercent       float64 `json:"otherPercent"` // of the LB core's time, most in any turn
	StealPercent       float64 `json:"stealPercent"`
	// LimitedBy says of a rate over TCP which core had no time left: see Limit.
	LimitedBy Limit `json:"limitedBy,omitempty"`
	// LBBusyPercent and LoadBusyPercent are the medians that it follows from.
	LBBusyPercent   float64            `json:"lbBusyPercent,omitempty"`
	LoadBusyPercent float64            `json:"loadBusyPercent,omitempty"`
	Details         map[string]float64 `json:"details,omitempty"`
}

// NsPerPacket is CPU time of the LB core per packet.
func (t Turn) NsPerPacket() float64 { return over(t.CPUSeconds*1e9, float64(t.Packets)) }

// Summarize takes the medians of turns. Precondition: there is a turn.
func Summarize(k Key, turns []Turn) Result {
	r := Result{Key: k, Turns: len(turns)}
	median := func(f func(Turn) float64) float64 { return Median(each(turns, f)) }
	most := func(f func(Turn) float64) float64 { return slices.Max(each(turns, f)) }
	r.Mpps = median(func(t Turn) float64 { return over(float64(t.Packets), t.Seconds) / 1e6 })
	r.NsPerPacket = median(Turn.NsPerPacket)
	r.PerSecond = median(func(t Turn) float64 { return t.PerSecond })
	r.Gbps = median(func(t Turn) float64 { return t.Gbps })
	r.P50us = median(func(t Turn) float64 { return t.P50us })
	r.P99us = median(func(t Turn) float64 { return t.P99us })
	r.CPUSeconds = median(func(t Turn) float64 { return t.CPUSeconds })
	r.CPUSecondsPerMillion = r.NsPerPacket / 1e3
	r.CPUSecondsPerGB = median(func(t Turn) float64 { return over(t.CPUSeconds*1e9, float64(t.Bytes)) })
	r.AllCPUSecondsPerGB = median(func(t Turn) float64 { return over(t.AllCPU*1e9, float64(t.Bytes)) })
	r.LostPercent = median(func(t Turn) float64 { return 100 * over(float64(t.Lost), float64(t.Lost+t.Packets)) })
	r.OtherPercent = most(func(t Turn) float64 { return 100 * over(t.Other, t.Seconds) })
	r.StealPercent = most(func(t Turn) float64 { return 100 * over(t.Steal, t.Seconds) })
	lb, load := median(func(t Turn) float64 { return t.LBBusy }), median(func(t Turn) float64 { return t.LoadBusy })
	r.LBBusyPercent, r.LoadBusyPercent = 100*lb, 100*load
	if lb > 0 || load > 0 {
		r.LimitedBy = limitOf(lb, load)
	}
	main := each(turns, func(t Turn) float64 { return mainOf(k.Workload, t.NsPerPacket(), t.PerSecond, t.Gbps) })
	r.Min, r.Max = slices.Min(main), slices.Max(main)
	for _, t := range turns {
		for name := range t.Details {
			if r.Details == nil {
				r.Details = map[string]float64{}
			}
			r.Details[name] = median(func(t Turn) float64 { return t.Details[name] })
		}
	}
	return r
}

// mainOf is the figure that ratios are made of.
func mainOf(workload string, ns, perSecond, gbps float64) float64 {
	switch workload {
	case Connect, Request:
		return perSecond
	case Bulk:
		return gbps
	}
	return ns
}

// Main is the figure that ratios are made of.
func (r Result) Main() float64 { return mainOf(r.Workload, r.NsPerPacket, r.PerSecond, r.Gbps) }

// Unit is that of Main.
func (r Result) Unit() string {
	switch r.Workload {
	case Connect, Request:
		return "per second"
	case Bulk:
		return "Gbit/s"
	}
	return "ns/packet"
}

// Ratio is how many times as good a is as b: less time per packet, or more per
// second.
func Ratio(a, b Result) float64 {
	if less := a.Workload == Established || a.Workload == New; less {
		return over(b.Main(), a.Main())
	}
	return over(a.Main(), b.Main())
}

// Ratios compares the peer named against every other, where they are Comparable, under the names of the
// JSON form: "udp-established weir/nftables". That name is of the first
// setting and of 100,000 flows, or else of the largest number; the others have
// flows and setting in their names.
func Ratios(results []Result, of string) map[string]float64 {
	out := map[string]float64{}
	first := map[string]Key{} // by plain name: the full key
	for _, a := range results {
		if a.Peer != of {
			continue
		}
		for _, b := range results {
			k := b.Key
			k.Peer = of
			if b.Peer == of || k != a.Key || !Comparable(a, b) {
				continue
			}
			plain := fmt.Sprintf("%s %s/%s", a.Workload, a.Peer, b.Peer)
			name := plain
			if a.Detail != "" {
				name += " " + a.Detail
			}
			if a.Flows > 0 {
				name += fmt.Sprintf(" %d flows", a.Flows)
			}
			if a.Setting != "" {
				name += " " + a.Setting
			}
			out[name] = Ratio(a, b)
			if was, ok := first[plain]; !ok || stands(a.Key, was) {
				first[plain] = a.Key
				out[plain] = Ratio(a, b)
			}
		}
	}
	return out
}

// stands says whether a is meant by the plain name rather than b.
func stands(a, b Key) bool {
	if a.Setting != b.Setting || a.Detail != b.Detail || b.Flows == 100000 {
		return false
	}
	return a.Flows == 100000 || a.Flows > b.Flows
}

// Median is the middle value, or the mean of the two in the middle.
func Median(v []float64) float64 {
	if len(v) == 0 {
		return math.NaN()
	}
	s := slices.Sorted(slices.Values(v))
	m := len(s) / 2
	if len(s)%2 == 1 {
		return s[m]
	}
	return (s[m-1] + s[m]) / 2
}

func each(turns []Turn, f func(Turn) float64) []float64 {
	out := make([]float64, len(turns))
	for i, t := range turns {
		out[i] = f(t)
	}
	return out
}

func over(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

// Sort orders results as they are shown: by workload and flows, then by the
// order of peers given.
func Sort(results []Result, peers []string) {
	workloads := []string{Established, New, Connect, Request, Bulk}
	slices.SortStableFunc(results, func(a, b Result) int {
		return cmp.Or(
			cmp.Compare(b.Setting, a.Setting), // threaded first
			cmp.Compare(slices.Index(workloads, a.Workload), slices.Index(workloads, b.Workload)),
			cmp.Compare(a.Detail, b.Detail),
			cmp.Compare(a.Flows, b.Flows),
			cmp.Compare(slices.Index(peers, a.Peer), slices.Index(peers, b.Peer)))
	})
}
