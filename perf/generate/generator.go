// Package generate makes UDP packets in the kernel and sends them out of an
// interface, without a socket and without a compiler: a BPF program is run
// over and over by BPF_PROG_TEST_RUN with live frames (Linux 5.18).
package generate

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weirlb/weir/perf/netlab"
)

// FrameLen is the length of every packet: 64 bytes with the frame check
// sequence that a wire would add.
const FrameLen = 60

// Order is how flows follow each other.
type Order uint32

const (
	Random   Order = iota // uniformly, without end
	Sequence              // each once
	Round                 // in turn, without end
)

// Plan describes the packets to send.
type Plan struct {
	Order        Order
	First, Flows uint32     // flow numbers First to First+Flows-1
	Client       netip.Addr // of flow 0; IPv4, as all
	// Target is the frontend, or with Endpoints above 1 the first of so many
	// endpoints that are sent to directly.
	Target    netip.AddrPort
	Endpoints uint32
	// Window is the limit of packets in flight between generator and sink; 0: none.
	Window uint32
	// PerSecond is how many packets to send at most; 0: any number.
	PerSecond float64
}

// Generator sends by an interface.
type Generator struct {
	namespace *netlab.Namespace
	objects   generateObjects
	keep      link.Link
	plan      generatePlan
	cpu       int

	stop    atomic.Bool
	done    chan struct{}
	runErr  error
	running bool
}

// Config names the interface and the CPUs.
type Config struct {
	Namespace *netlab.Namespace
	Interface string
	To        net.HardwareAddr // the next hop
	CPU       int              // to run on
	Counts    *ebpf.Map        // of the sink at which packets end
	CountCPUs [2]int           // on which it may count
}

// spare is the pair of interfaces whose only purpose is to have the program
// attached: a run of a program that is attached nowhere makes the kernel patch its
// dispatcher at every call.
const spare = "spare0"

// New loads the program.
func New(c Config) (_ *Generator, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("generator: %w", err)
		}
	}()
	dev, err := c.Namespace.Interface(c.Interface)
	if err != nil {
		return nil, err
	}
	g := &Generator{namespace: c.Namespace, cpu: c.CPU}
	g.plan = generatePlan{
		Ifindex:     uint32(dev.Attrs().Index),
		Source:      [6]byte(dev.Attrs().HardwareAddr),
		Destination: [6]byte(c.To),
		Cpus:        [2]uint32{uint32(c.CountCPUs[0]), uint32(c.CountCPUs[1])},
	}
	spec, err := loadGenerate()
	if err != nil {
		return nil, err
	}
	options := &ebpf.CollectionOptions{MapReplacements: map[string]*ebpf.Map{generateMapCounts: c.Counts}}
	if err := spec.LoadAndAssign(&g.objects, options); err != nil {
		return nil, err
	}
	if err := g.attach(); err != nil {
		return nil, errors.Join(err, g.objects.Close())
	}
	return g, nil
}

func (g *Generator) attach() error {
	nl := g.namespace.Netlink()
	dev, err := nl.LinkByName(spare)
	if err != nil {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = spare
		veth := netlink.NewVeth(attrs)
		veth.PeerName = "spare1"
		if err := nl.LinkAdd(veth); err != nil {
			return fmt.Errorf("spare interface: %w", err)
		}
		if dev, err = nl.LinkByName(spare); err != nil {
			return err
		}
	}
	return g.namespace.Do(func() error {
		g.keep, err = link.AttachXDP(link.XDPOptions{Program: g.objects.Generate, Interface: dev.Attrs().Index, Flags: link.XDPDriverMode})
		return err
	})
}

// Start begins to send. Flows that were chosen at random go on from where they
// were.
func (g *Generator) Start(p Plan) error {
	if g.running {
		return errors.New("generator: it is running")
	}
	plan := g.plan
	plan.Order, plan.First, plan.Flows = uint32(p.Order), p.First, p.Flows
	plan.Client, plan.Target = word(p.Client), word(p.Target.Addr())
	plan.Port, plan.Endpoints, plan.Window = p.Target.Port(), max(1, p.Endpoints), p.Window
	if p.PerSecond > 0 {
		plan.Interval = uint64(1024 * 1e9 / p.PerSecond)
	}
	if err := g.begin(plan); err != nil {
		return fmt.Errorf("generator: %w", err)
	}
	g.stop.Store(false)
	g.done = make(chan struct{})
	g.running = true
	go g.run()
	return nil
}

// begin writes the plan and the state that goes with it.
func (g *Generator) begin(plan generatePlan) error {
	if err := g.objects.Plans.Put(uint32(0), plan); err != nil {
		return err
	}
	var was generateProgress
	if err := g.objects.States.Lookup(uint32(0), &was); err != nil {
		return err
	}
	counted, err := g.counted()
	if err != nil {
		return err
	}
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return err
	}
	// sent counts from 0, so the sink's earlier count is subtracted.
	state := generateProgress{Random: was.Random + 1, Start: uint64(now.Nano()), Forgiven: -counted, Moved: uint64(now.Nano())}
	return g.objects.States.Put(uint32(0), state)
}

func (g *Generator) counted() (uint64, error) {
	var perCPU []generateCount
	if err := g.objects.Counts.Lookup(uint32(0), &perCPU); err != nil {
		return 0, err
	}
	var sum uint64
	for _, cpu := range []uint32{g.plan.Cpus[0], g.plan.Cpus[1]} {
		if int(cpu) < len(perCPU) {
			sum += perCPU[cpu].Packets
		}
	}
	if g.plan.Cpus[0] == g.plan.Cpus[1] {
		sum /= 2
	}
	return sum, nil
}

// burst is how many times the program is run by one system call: some
// milliseconds.
const burst = 1 << 16

func (g *Generator) run() {
	defer close(g.done)
	g.runErr = g.namespace.Do(g.loop)
}

// loop runs the program until Stop, on the calling thread.
func (g *Generator) loop() error {
	var was, set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &was); err != nil {
		return err
	}
	set.Set(g.cpu)
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return err
	}
	frame := make([]byte, FrameLen)
	var err error
	for err == nil && !g.stop.Load() {
		_, err = g.objects.Generate.Run(&ebpf.RunOptions{Data: frame, Repeat: burst, Flags: unix.BPF_F_TEST_XDP_LIVE_FRAMES})
		if errors.Is(err, unix.EINTR) {
			err = nil
		}
	}
	// The thread is the runtime's again.
	return errors.Join(err, unix.SchedSetaffinity(0, &was))
}

// Stop ends sending and returns how many packets were sent since Start.
func (g *Generator) Stop() (uint64, error) {
	if !g.running {
		return 0, nil
	}
	g.stop.Store(true)
	<-g.done
	g.running = false
	sent, err := g.Sent()
	return sent, errors.Join(g.runErr, err)
}

// Done is closed when sending has ended, by Stop or by an error, which Stop
// returns.
func (g *Generator) Done() <-chan struct{} { return g.done }

// Sent is how many packets were sent since Start.
func (g *Generator) Sent() (uint64, error) {
	var s generateProgress
	if err := g.objects.States.Lookup(uint32(0), &s); err != nil {
		return 0, fmt.Errorf("generator: %w", err)
	}
	return s.Sent, nil
}

// Close stops sending and removes the program.
func (g *Generator) Close() error {
	_, err := g.Stop()
	return errors.Join(err, g.keep.Close(), g.objects.Close())
}

func word(a netip.Addr) uint32 {
	b := a.As4()
	return binary.BigEndian.Uint32(b[:])
}
