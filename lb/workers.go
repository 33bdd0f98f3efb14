package lb

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"runtime/pprof"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weirlb/weir/lb/ports"
	"github.com/weirlb/weir/lb/worker"
	"github.com/weirlb/weir/lb/xsk"
)

// endTime is the time in which workers must end before a restart, as the hold lasts not much
// longer, and at the end. A worker that is stalled never ends.
const endTime = 2 * time.Second

// ErrStalled is the error of Leave and Close when a worker does not end.
var ErrStalled = errors.New("a worker is stalled and does not end")

// framesPerPort is the number of frames that a port may hold for receiving. With half of
// it a worker that was kept from running lost packets.
const framesPerPort = 4096

// WorkerLabel is the label of profiles that has the ID of a worker.
const WorkerLabel = "worker"

// workers are the packet loops, and the ports as each of them has them. Calls that are about ports
// must not overlap.
type workers struct {
	list    []*worker.Worker
	ports   *ports.Ports
	memory  *xsk.Umem
	tick    func() uint32 // of the flow table
	running sync.WaitGroup
	works   atomic.Bool                  // they run
	logged  map[netip.AddrPort]time.Time // the last line about an endpoint
	log     *slog.Logger
}

// split is a worker's queue of an interface whose packets arrive by a veth pair: one socket
// receives, on the pair, and one sends, on the interface.
type split struct {
	*xsk.Socket // sends
	receive     *xsk.Socket
}

func (q split) Receive(out []xsk.Desc) int { return q.receive.Receive(out) }
func (q split) Pending() int               { return q.receive.Pending() }
func (q split) Fill(addrs []uint64) int    { return q.receive.Fill(addrs) }

// add adds a worker, with the ports and a part of the free frames. It returns the other frames.
func (ws *workers) add(w *worker.Worker, of int, free []uint64) []uint64 {
	w.SetDevices(ws.ports.Devices())
	share := ws.memory.Frames() / of
	for port := range ws.ports.Len() {
		w.SetPort(port, ws.portFor(port, w.ID()))
		receiving, sending := ws.held(port, w.ID())
		w.SetHeld(port, receiving, sending)
		share -= receiving + sending
	}
	if share = min(max(share, 0), len(free)); w.ID() == of-1 {
		share = len(free) // frames may have passed from worker to worker
	}
	for _, f := range free[:share] {
		w.AddFrame(f)
	}
	w.Refill() // here: a thread may first run after traffic is taken
	ws.list = append(ws.list, w)
	return free[share:]
}

// portFor is a port for a worker.
func (ws *workers) portFor(id, of int) worker.Port {
	v := ws.ports.View(id, of)
	p := worker.Port{
		Owner: int32(v.Owner), Interface: int32(v.RouteIndex), Metadata: v.Metadata,
		FullChecksums: v.ZeroCopy, Tag: v.Tag, Under: int32(v.VLANParent),
	}
	switch {
	case v.Receive != nil:
		p.Queue, p.Ring = split{Socket: v.Queue, receive: v.Receive}, framesPerPort
	case v.Queue != nil:
		p.Queue, p.Ring = v.Queue, framesPerPort
	}
	return p
}

// held is the number of frames that the kernel has through a worker's sockets of a port, which
// may be those of the last process.
func (ws *workers) held(id, of int) (receiving, sending int) {
	v := ws.ports.View(id, of)
	if v.Queue == nil {
		return 0, 0
	}
	receiving, sending = ws.memory.Held(v.Queue)
	if v.Receive != nil {
		receiving, _ = ws.memory.Held(v.Receive)
	}
	return receiving, sending
}

// queuesOf are the descriptors of a worker's queues.
func (ws *workers) queuesOf(id int) (list []int) {
	for _, s := range ws.ports.Sockets(id) {
		list = append(list, s.FD())
	}
	return list
}

// start starts the workers, which then serve what is published.
func (ws *workers) start() error {
	for _, w := range ws.list {
		ws.running.Add(1)
		var err error
		// The goroutine inherits the label, by which its stack is found.
		pprof.Do(context.Background(), pprof.Labels(WorkerLabel, strconv.Itoa(w.ID())), func(context.Context) {
			err = w.Start(ws.queuesOf(w.ID()), ws.log, ws.running.Done)
		})
		if err != nil {
			ws.running.Done()
			return fmt.Errorf("%w: %w", ports.ErrAttach, err)
		}
	}
	ws.works.Store(true)
	return nil
}

// stop has the workers end, and waits for no longer than endTime. A worker that is stalled never
// ends.
func (ws *workers) stop() (ended bool) {
	for _, w := range ws.list {
		w.Stop()
	}
	done := make(chan struct{})
	go func() { ws.running.Wait(); close(done) }()
	select {
	case <-done:
		return true
	case <-time.After(endTime):
		return false
	}
}

// quiesced reports whether every worker has carried out its last update.
func (ws *workers) quiesced() bool {
	for _, w := range ws.list {
		if !w.Updated() {
			return false
		}
	}
	return true
}

// update passes changed ports and freed frames on to the workers. Preconditions: quiesced.
func (ws *workers) update(u *ports.Update) {
	for _, w := range ws.list {
		id := w.ID()
		next := worker.PortUpdate{
			Queues: ws.queuesOf(id), Devices: ws.ports.Devices(), Frames: u.Frames[id],
		}
		for _, port := range u.Ports {
			next.Ports = append(next.Ports, worker.PortChange{ID: port, Port: ws.portFor(port, id)})
		}
		w.Update(&next)
	}
}

// StalledWorker is a worker that has not finished a round for some seconds.
type StalledWorker struct{ ID, CPU, Thread int }

// stalled are all workers that are stuck.
func (ws *workers) stalled() (list []StalledWorker) {
	if !ws.works.Load() {
		return nil
	}
	now := ws.tick()
	for _, w := range ws.list {
		if w.Stuck(now) {
			list = append(list, StalledWorker{w.ID(), w.CPU(), w.Thread()})
		}
	}
	return list
}

// reportExhaustion logs the endpoints that ran out of SNAT ports or cannot be reached in
// their mode, each at most once in ten seconds.
func (ws *workers) reportExhaustion() {
	now := time.Now()
	for _, w := range ws.list {
		w.ExhaustedEndpoints(func(endpoint netip.AddrPort, source netip.Addr) {
			if ws.mayLog(endpoint, now) {
				ws.log.Warn("SNAT ports exhausted: new flows to the endpoint are dropped; add snat.addresses",
					"endpoint", endpoint, "source", source)
			}
		})
		w.UnreachableEndpoints(func(endpoint netip.AddrPort, nextHop netip.Addr) {
			if ws.mayLog(endpoint, now) {
				ws.log.Warn("endpoint cannot be reached in the Service's forwarding mode, "+
					"its packets are dropped: l2dsr needs it on an attached interface's own network; use ipip or gue",
					"endpoint", endpoint, "nextHop", nextHop)
			}
		})
	}
}

// mayLog reports whether no line about the endpoint was logged in the last ten seconds.
func (ws *workers) mayLog(endpoint netip.AddrPort, now time.Time) bool {
	if now.Sub(ws.logged[endpoint]) < 10*time.Second {
		return false
	}
	if len(ws.logged) > 1024 {
		clear(ws.logged)
	}
	ws.logged[endpoint] = now
	return true
}
