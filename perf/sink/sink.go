// Package sink counts UDP packets where they arrive, without a socket: a
// program at an interface's TCX ingress hook (Linux 6.6) counts and drops
// them, or sends them back.
package sink

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/weirlb/weir/perf/netlab"
)

// Sink is a program that counts at an interface.
type Sink struct {
	objects sinkObjects
	link    link.Link
}

// Count is the traffic that has arrived.
type Count struct {
	Packets uint64
	Bytes   uint64 // of Ethernet frames, without the frame check sequence
}

// Sub is the growth since before.
func (c Count) Sub(before Count) Count {
	return Count{c.Packets - before.Packets, c.Bytes - before.Bytes}
}

// Attach begins to count at an interface. With reflect packets are sent back
// where they came from, addresses and ports swapped; otherwise they end.
func Attach(n *netlab.Namespace, ifname string, reflect bool) (_ *Sink, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("sink at %s/%s: %w", n.Name(), ifname, err)
		}
	}()
	dev, err := n.Interface(ifname)
	if err != nil {
		return nil, err
	}
	spec, err := loadSink()
	if err != nil {
		return nil, err
	}
	if reflect {
		if err := spec.Variables["reflect"].Set(uint32(1)); err != nil {
			return nil, err
		}
	}
	s := &Sink{}
	if err := spec.LoadAndAssign(&s.objects, nil); err != nil {
		return nil, err
	}
	err = n.Do(func() error {
		s.link, err = link.AttachTCX(link.TCXOptions{Interface: dev.Attrs().Index, Program: s.objects.Sink, Attach: ebpf.AttachTCXIngress})
		return err
	})
	if err != nil {
		return nil, errors.Join(err, s.objects.Close())
	}
	return s, nil
}

// Counts is the map of counts, for a generator that is paced by it.
func (s *Sink) Counts() *ebpf.Map { return s.objects.Counts }

// Read returns the count so far.
func (s *Sink) Read() (Count, error) {
	var perCPU []sinkCount
	if err := s.objects.Counts.Lookup(uint32(0), &perCPU); err != nil {
		return Count{}, fmt.Errorf("read the sink: %w", err)
	}
	var sum Count
	for _, c := range perCPU {
		sum.Packets += c.Packets
		sum.Bytes += c.Bytes
	}
	return sum, nil
}

// Sample is the Ethernet, IPv4 and UDP header of an arrived packet, a sample of 1 in
// 65,536.
func (s *Sink) Sample() ([]byte, error) {
	var v sinkSample
	if err := s.objects.Samples.Lookup(uint32(0), &v); err != nil {
		return nil, fmt.Errorf("read the sink's sample: %w", err)
	}
	return v.Header[:], nil
}

// Close detaches the program.
func (s *Sink) Close() error { return errors.Join(s.link.Close(), s.objects.Close()) }
