package demo

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/weirlb/weir/lb/counter"
)

// counts are the client's and Weir's counters at a moment, or between two.
type counts struct {
	clientSent, clientGot uint64 // packets on the client's interface
	weirGot               uint64 // packets that Weir's workers received
	repeated              uint64 // packets that the kernel forwarded by Weir's flow table
	refused               uint64 // RSTs and ICMP errors that Weir made itself
	drops                 map[string]uint64
	csumErrors            map[string]uint64 // per namespace
}

// csumCounters are the kernel's counters of packets with a wrong checksum.
var csumCounters = []string{"TcpInCsumErrors", "UdpInCsumErrors", "Udp6InCsumErrors", "IcmpInCsumErrors", "Icmp6InCsumErrors"}

func (s *site) count(ctx context.Context) (counts, error) {
	c := counts{csumErrors: make(map[string]uint64)}
	status, err := s.admin.Status(ctx)
	if err != nil {
		return c, fmt.Errorf("ask weir for its counters: %w", err)
	}
	for _, w := range status.Workers {
		c.weirGot += w.Counters[counter.RxPackets]
		c.refused += w.Counters[counter.Resets] + w.Counters[counter.ICMPErrors]
	}
	for _, i := range status.Interfaces {
		if i.Repeated != nil {
			c.repeated += i.Repeated.Packets
		}
	}
	c.drops = status.Drops
	link, err := s.lab.Client.Interface("eth0")
	if err != nil {
		return c, err
	}
	c.clientSent, c.clientGot = link.Attrs().Statistics.TxPackets, link.Attrs().Statistics.RxPackets
	for _, n := range s.lab.Namespaces() {
		counters, err := n.Counters()
		if err != nil {
			return c, err
		}
		for _, k := range csumCounters {
			c.csumErrors[n.Name()] += counters[k]
		}
	}
	return c, nil
}

func (c counts) sub(b counts) counts {
	c.clientSent -= b.clientSent
	c.clientGot -= b.clientGot
	c.weirGot -= b.weirGot
	c.repeated -= b.repeated
	c.refused -= b.refused
	c.drops = maps.Clone(c.drops)
	for k, v := range b.drops {
		if c.drops[k] -= v; c.drops[k] == 0 {
			delete(c.drops, k)
		}
	}
	return c
}

// settle returns the counts since before, once no counter moves any more: the last segments
// of closed connections are still in flight.
func (s *site) settle(ctx context.Context, before counts) (counts, error) {
	const still = 300 * time.Millisecond
	last := counts{}
	for range 20 {
		now, err := s.count(ctx)
		if err != nil {
			return now, err
		}
		if now.weirGot == last.weirGot && now.repeated == last.repeated && now.clientGot == last.clientGot {
			return now.sub(before), nil
		}
		last = now
		if err := wait(ctx, still); err != nil {
			return now, err
		}
	}
	return last.sub(before), nil
}

// through is the number of packets that the workers, or the kernel by their flow table, must have
// received if all packets of the client went through Weir: each request packet once, and each
// answer. Weir itself answers refused requests.
func (c counts) through() uint64 { return c.weirGot + c.repeated + c.refused }

// client is everything that the client counted.
func (c counts) client() uint64 { return c.clientSent + c.clientGot }

// faults compares the two. The client's counters also hold other packets: ARP, neighbor
// discovery and multicast reports.
func (c counts) faults() []string {
	var out []string
	slack := c.client()/200 + 100
	if c.through()+slack < c.client() {
		out = append(out, fmt.Sprintf("the client counted %d packets and Weir only %d of them: some went another way",
			c.client(), c.through()))
	}
	if c.through() > c.client()+slack {
		out = append(out, fmt.Sprintf("Weir counted %d packets and the client only %d: some were lost", c.through(), c.client()))
	}
	for _, n := range sortedKeys(c.csumErrors) {
		if v := c.csumErrors[n]; v > 0 {
			out = append(out, fmt.Sprintf("%d packets with a wrong checksum arrived in namespace %s", v, n))
		}
	}
	return out
}
