package lb

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/flowcache"
	"github.com/weirlb/weir/lb/ports"
	"github.com/weirlb/weir/lb/route"
	"github.com/weirlb/weir/lb/steer"
	"github.com/weirlb/weir/lb/table"
	"github.com/weirlb/weir/lb/warning"
)

// maxServices is the number of Services that the flow cache knows as gone. One with a greater
// number would end the cache.
const maxServices = 1 << 20

// openCache makes the memory that the kernel reads. Without it, also where the kernel lacks
// something, the packet loop forwards every packet.
func (l *LB) openCache() {
	if !l.cfg.FlowCache {
		l.noCache = errors.New("flowCache.mode is off")
		return
	}
	c, err := flowcache.New(flowcache.Config{
		PinDir: l.pinDir(), NextHops: route.DefaultMaxAdjacencies + 1,
		Endpoints: table.DefaultMaxEndpoints, Services: maxServices,
	})
	if err != nil {
		l.warnNoCache(err)
		return
	}
	l.cache = c
}

func (l *LB) warnNoCache(err error) {
	l.noCache = err
	l.warnings.Add(warning.PacketPath, "",
		"flow cache: the packet loop forwards packets of established flows, not the kernel: %v", err)
}

// conntrackMemory is the memory of the flow table, nil for a file. earlier, if not nil, is to
// be closed when the table is open.
func (l *LB) conntrackMemory() (m conntrack.Memory, earlier *flowcache.Earlier, err error) {
	if l.cache != nil {
		return l.cache, nil, nil
	}
	if earlier, err = flowcache.OpenEarlier(l.pinDir()); earlier != nil {
		m = earlier
	}
	return m, earlier, err
}

// shareTable gives the program in the kernel the flow table.
func (l *LB) shareTable() error {
	if l.cache == nil {
		return nil
	}
	if err := l.flows.Restoration().MemoryErr; err != nil {
		l.warnNoCache(err)
		err := l.cache.Close()
		l.cache = nil
		return err
	}
	return l.cache.SetTable(l.flows)
}

// loadSteering begins to load the steering program.
func (l *LB) loadSteering() (err error) {
	l.steer, err = steer.Load(steer.Config{
		Flows: l.flowMaps(), PinDir: l.pinDir(),
		TCX: slices.ContainsFunc(l.cfg.Interfaces, func(i ports.Interface) bool { return i.Hook == ports.HookTCX }),
	})
	return err
}

// flowMaps are the maps of the program in the kernel, nil without it.
func (l *LB) flowMaps() map[string]*ebpf.Map {
	if l.cache == nil {
		return nil
	}
	return l.cache.Maps()
}

// adjacencies is the memory of the next hops, nil for the watcher's own.
func (l *LB) adjacencies() []route.Adjacency {
	if l.cache == nil {
		return nil
	}
	return l.cache.Adjacencies()
}

// pinDir is where pins are.
func (l *LB) pinDir() string { return cmp.Or(l.cfg.PinDir, steer.DefaultPinDir) }

// awaitProgram waits until the kernel has verified the programs that the interfaces need.
func (l *LB) awaitProgram() error {
	if l.ports.AnyXDP() {
		if err := l.steer.Ready(); err != nil {
			return fmt.Errorf("%w: %w", ports.ErrAttach, err)
		}
		if l.noCache == nil {
			if err := l.steer.Repeats(); err != nil {
				l.warnNoCache(err) // the kernel cannot load the program that reads the flow table
			}
		}
	}
	l.cfg.Phases.End("program")
	return nil
}

// attach attaches the interfaces, and lets the kernel forward.
func (l *LB) attach() error {
	if l.noCache != nil {
		return l.ports.Attach()
	}
	err := errors.Join(
		l.cache.Alive(startTime), // until Run
		l.publishDevices(), l.ports.Attach(), l.publishDevices())
	l.cache.SetOn(true)
	return err
}

// startTime is the time that may pass between the attachment and Run.
const startTime = time.Minute

// publishDevices gives the program in the kernel the devices by which it may send, and the
// veth pairs by which packets reach the packet loop.
func (l *LB) publishDevices() error {
	if l.cache == nil {
		return nil
	}
	var by [flowcache.MaxPorts]ports.Device
	for _, d := range l.ports.Forwarding() {
		by[d.ID] = d
	}
	for id, d := range by {
		p := flowcache.Port{IfIndex: uint32(d.IfIndex), VLAN: flowcache.VLANTag(d.Tag)}
		if d.XDP {
			p.Flags |= flowcache.PortXDP
		}
		if d.XDPFrag {
			p.Flags |= flowcache.PortXDPFrag
		}
		if err := l.cache.SetPort(id, p); err != nil {
			return err
		}
		if err := l.cache.SetUp(id, uint32(d.Up)); err != nil {
			return err
		}
	}
	return nil
}

// runCache keeps the process alive for the program in the kernel.
func (l *LB) runCache(ctx context.Context) error {
	if l.cache == nil {
		<-ctx.Done()
		return nil
	}
	return l.cache.Run(ctx, func() bool { return l.StuckWorker() >= 0 })
}

// endpointRemoved sends the packets of an endpoint's flows to the packet loop, while the
// endpoint is not one of its Service port.
func (l *LB) endpointRemoved(number uint32, removed bool) {
	if l.cache != nil {
		l.cache.SetEndpointRemoved(number, removed)
	}
}

// withdrawals are Services that have lost a frontend. Packets of their flows go to the
// steering program, which knows the frontends, until no flow of a frontend that is gone can
// be forwarded by the kernel.
type withdrawals struct {
	since    time.Time
	services map[uint32]bool
}

// settleTime is the time after which no worker has a packet of a frontend that was withdrawn.
const settleTime = 5 * time.Second

// withdraw is called before frontends leave the steering program.
func (l *LB) withdraw(list []*table.FrontendEntry) {
	if l.cache == nil || len(list) == 0 {
		return
	}
	for _, f := range list {
		l.cache.SetServiceRemoved(f.ServiceID, true)
		l.withdrawn.services[f.ServiceID] = true
	}
	l.withdrawn.since = time.Now()
}

// settleWithdrawals has the flows of frontends that are gone wait for a packet of the client
// that reaches the packet loop. Then the other flows of their Services are the kernel's
// again.
func (l *LB) settleWithdrawals() {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := &l.withdrawn
	if len(w.services) == 0 || time.Since(w.since) < settleTime || l.StuckWorker() >= 0 {
		return
	}
	snapshot := l.tables.Load()
	l.flows.Range(func(ref conntrack.Ref) bool {
		c := l.flows.Conn(ref)
		if !w.services[atomic.LoadUint32(&c.ServiceID)] {
			return true
		}
		if k := table.DestinationKey(&l.flows.Entry(ref).Key.W); snapshot.Lookup(&k) == nil {
			l.flows.Unsettle(ref)
		}
		return true
	})
	for n := range w.services {
		l.cache.SetServiceRemoved(n, false)
	}
	clear(w.services)
}

// addRepeated adds to the interfaces the packets that the kernel has forwarded.
func (l *LB) addRepeated(s *Status) {
	if l.noCache != nil {
		return
	}
	counters, err := l.steer.Counters()
	if err != nil {
		return
	}
	for _, c := range counters {
		r, err := l.cache.Repeated(c.Slot)
		if err != nil {
			continue
		}
		for i := range s.Interfaces {
			if s.Interfaces[i].Index == c.IfIndex {
				s.Interfaces[i].Repeated = &ports.Repeated{
					Packets: r.Packets, Bytes: r.Bytes, Steered: c.Packets[steer.Redirected],
				}
			}
		}
	}
}
