package steer

import (
	"errors"
	"fmt"
	"net"

	"github.com/cilium/ebpf"
)

const (
	// classifySlot is the slot of frames that Classify asks about: no interface gets it, so
	// that its counters are of no packet.
	classifySlot = guardSlot - 1
	// testInterface is the interface by which the kernel lets the packets of a test run
	// come: the loopback interface of the namespace.
	testInterface = 1
)

var errClassify = errors.New("the interfaces leave the program no slot for the question")

// Classify returns what the program says about a frame that comes by an attached interface:
// Redirected if it is Weir's. The program runs over the maps in use, in a slot of its own
// without sockets and counts, and the frame goes nowhere.
func (p *Program) Classify(ifindex int, frame []byte) (Verdict, error) {
	prog, err := p.programs.ask()
	if err != nil {
		return 0, fmt.Errorf("classify a frame: %w", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.slots > classifySlot {
		return 0, fmt.Errorf("classify a frame: %w", errClassify)
	}
	var in *Attachment
	for _, a := range p.attached {
		switch a.IfIndex {
		case testInterface:
			return 0, fmt.Errorf("classify a frame: %w", errClassify)
		case ifindex:
			in = a
		}
	}
	if in == nil {
		return 0, fmt.Errorf("classify a frame: interface %d is not attached", ifindex)
	}
	v, err := p.classify(prog, in, frame)
	if err != nil {
		return 0, fmt.Errorf("classify a frame: %w", err)
	}
	return v, nil
}

// classify runs the program for a frame that comes by interface in.
func (p *Program) classify(prog *ebpf.Program, in *Attachment, frame []byte) (v Verdict, err error) {
	defer func() {
		err = errors.Join(err, p.interfaces.setVLANs(testInterface, 0, in.vlans, nil), p.interfaces.remove(testInterface, 0))
	}()
	mac := in.mac
	if len(mac) != 6 { // of an interface of VLANs alone
		mac = make(net.HardwareAddr, 6)
	}
	if err := errors.Join(p.interfaces.setVLANs(testInterface, 0, nil, in.vlans),
		p.interfaces.set(testInterface, classifySlot, mac, flags(in.all, in.vlans))); err != nil {
		return 0, err
	}
	before, err := p.counters.slot(classifySlot)
	if err != nil {
		return 0, err
	}
	if _, err := prog.Run(&ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+64)}); err != nil {
		return 0, err
	}
	after, err := p.counters.slot(classifySlot)
	if err != nil {
		return 0, err
	}
	for v := range Verdicts {
		if after[v] == before[v] {
			continue
		}
		if v == PassNoSocket || v == Held { // as the slot has no socket
			return Redirected, nil
		}
		return v, nil
	}
	return 0, errors.New("the program has not counted the frame")
}
