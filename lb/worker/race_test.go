package worker

import (
	"context"
	"encoding/binary"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/weirlb/weir/conntrack"
	"github.com/weirlb/weir/lb/counter"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/lbtest"
	"github.com/weirlb/weir/lb/route"
	"github.com/weirlb/weir/lb/table"
	"github.com/weirlb/weir/lb/xsk"
	"github.com/weirlb/weir/perf/netlab/patience"
)

// An endpoint may go while a round is under way, whose snapshot still offers
// it, and by a clock that is ahead of the round's.
func TestAnEndpointThatGoesDuringARoundCostsOneFlow(t *testing.T) {
	for name, grace := range map[string]uint32{"without grace": 0, "with grace": 160} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.w.removed.graceTicks = grace
			b.give(portClient, request(false, header.ProtoUDP).build(t))
			b.w.beginRound()
			k := table.MakeKey(netip.AddrPortFrom(node4, 80), header.ProtoUDP)
			n := b.lb.tables.Load().Lookup(&k).Pool.Endpoints()[0].ID
			b.serve(netip.Addr{}, endpoint6)
			if since, gone := b.lb.tables.EndpointRemoved(n); !gone {
				t.Fatal("the endpoint is not gone")
			} else if grace > 0 {
				b.w.tick = since - 1
			}
			b.w.receive()
			b.w.endRound()
			if s := b.lb.flows.Stats(); s.Created != 1 {
				t.Errorf("%d flows made for one packet", s.Created)
			}
			if len(b.q[portServer].Out) != 1 {
				t.Errorf("%d packets sent (drops %v)", len(b.q[portServer].Out), b.drops())
			}
		})
	}
}

// claim stands in for a goroutine that has claimed the flow to end it, by the state word of
// conntrack.Conn, its first. It was then kept from taking the flow out of the index.
func (b *bench) claim(ref conntrack.Ref) (undo func()) {
	c := b.lb.flows.Conn(ref)
	b.lb.flows.Unsettle(ref)
	state := (*uint32)(unsafe.Pointer(c))
	was := atomic.SwapUint32(state, 0)
	return func() { atomic.StoreUint32(state, was) }
}

func TestAFlowThatIsBeingEndedIsNotWaitedFor(t *testing.T) {
	for _, proto := range []uint8{header.ProtoTCP, header.ProtoUDP} {
		b := newBench(t)
		f := request(false, proto).build(t)
		b.one(portClient, f, portServer)
		var ref conntrack.Ref
		b.lb.flows.Range(func(r conntrack.Ref) bool { ref = r; return true })
		undo := b.claim(ref)
		b.one(portClient, f, -1)
		if b.drops()["no-conntrack-entry"] != 1 {
			t.Errorf("protocol %d: drops %v", proto, b.drops())
		}
		undo()
		b.one(portClient, f, portServer)
		b.framesHome()
	}
}

// All datagrams of a batch leave the endpoint that is gone, not the first only.
func TestABatchLeavesAGoneEndpointAsOne(t *testing.T) {
	b := newBench(t)
	b.w.removed.graceTicks = 0
	f := request(false, header.ProtoUDP).build(t)
	b.one(portClient, f, portServer)
	other := netip.MustParseAddr("203.0.113.9") // a blackhole: nothing is sent there
	b.serve(other, endpoint6)
	for range 3 {
		b.give(portClient, f)
	}
	if got := b.round(); len(got[portServer]) != 0 {
		t.Errorf("%d packets went to the endpoint that is gone", len(got[portServer]))
	}
	b.framesHome()
}

func TestAWorkerThatHasEndedHoldsNothing(t *testing.T) {
	b := newBench(t)
	b.give(portClient, request(false, header.ProtoUDP).build(t))
	ended := make(chan struct{})
	go func() { b.w.run(); close(ended) }()
	for b.w.published.read().Values[counter.RxPackets] == 0 {
		time.Sleep(time.Millisecond)
	}
	b.w.sleeper.stop.Store(true)
	<-ended
	ctx, cancel := context.WithTimeout(context.Background(), patience.For(10*time.Second))
	defer cancel()
	if err := b.lb.flows.Synchronize(ctx); err != nil {
		t.Errorf("flows can not be freed after the worker has ended: %v", err)
	}
}

// endless receives the same packet from ever other ports, and sends at once.
type endless struct {
	lbtest.Memory
	area  []byte
	frame []byte
	port  uint16
}

func (e *endless) Receive(out []xsk.Desc) int {
	n := 0
	for n < min(len(out), len(e.Empty), 16) {
		a := e.Empty[len(e.Empty)-1] + xsk.Headroom
		e.Empty = e.Empty[:len(e.Empty)-1]
		copy(e.area[a:], e.frame)
		e.port = e.port%200 + 1
		binary.BigEndian.PutUint16(e.area[a+34:], 1000+e.port)
		out[n] = xsk.Desc{Addr: a, Len: uint32(len(e.frame))}
		n++
	}
	e.Out = e.Out[:0]
	return n
}

// Everything that control goroutines change while workers run; run with -race.
func TestWorkersRunWhileEverythingChanges(t *testing.T) {
	first, second := pair(t)
	var sources []*endless
	var wg sync.WaitGroup
	for i, b := range []*bench{first, second} {
		f := request(false, header.ProtoUDP)
		f.noSum = true
		if i == 0 {
			f.proto, f.flags, f.noSum = header.ProtoTCP, header.SYN, false
		}
		p := &b.w.ports[portClient]
		q := &endless{area: b.w.area, frame: f.build(t)}
		p.Queue, sources = q, append(sources, q)
		b.w.removed.graceTicks = 0
		wg.Go(b.w.run)
	}
	l, workers := first.lb, []*Worker{first.w, second.w}
	for i := range 1000 {
		if i%2 == 0 {
			first.serve(endpoint4, endpoint6)
		} else {
			first.serve(narrow4, endpoint6)
		}
		l.node.Store(benchNode(61000, 61000+uint16(i%64)))
		l.router.SetState(portServer, endpoint4, []route.State{route.Valid, route.Resolving, route.Failed, route.Valid}[i%4])
		for _, w := range workers {
			w.exhausted.each(func(netip.AddrPort, netip.Addr) {})
			_ = w.published.read()
			_ = w.Stuck(l.flows.Tick())
		}
		l.flows.Sweep(l.flows.Tick(), 1<<14)
		l.flows.Range(func(r conntrack.Ref) bool { return i%16 != 0 || l.flows.Delete(r) })
	}
	// On a busy machine a worker may not have had its turn yet.
	for _, w := range workers {
		for {
			c := w.published.read()
			if c.Values[counter.RxPackets] > 0 && c.Values[counter.TxPackets]+c.Values[counter.Handoff] > 0 {
				break
			}
			l.router.SetState(portServer, endpoint4, route.Valid)
			first.serve(endpoint4, endpoint6)
			time.Sleep(time.Millisecond)
		}
	}
	for _, w := range workers {
		w.sleeper.stop.Store(true)
	}
	wg.Wait()
	// What is on its way between the workers arrives, and every frame is home.
	frames := len(sources[0].Empty) + len(sources[1].Empty)
	for range 100 {
		for _, w := range workers {
			w.receiveHandoffs()
			w.flush()
			w.complete()
			w.giveFramesBack()
		}
	}
	for _, w := range workers {
		c := w.published.read()
		if c.Values[counter.RxPackets] == 0 || c.Values[counter.TxPackets]+c.Values[counter.Handoff] == 0 {
			t.Errorf("worker %d: %+v", w.id, c)
		}
		frames += len(w.free.addr)
		for _, h := range w.neighQueue {
			frames += int(h.n)
		}
		frames += w.fragQueue.frames
	}
	for _, q := range first.q[portServer:] {
		frames += len(q.Empty) + len(q.Done)
	}
	if want := l.memory.Frames(); frames != want {
		t.Errorf("%d frames, want %d", frames, want)
	}
}
