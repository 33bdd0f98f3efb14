package worker

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/weirlb/weir/lb/handoff"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/lb/lbtest"
	"github.com/weirlb/weir/lb/route"
	"github.com/weirlb/weir/lb/xsk"
)

// shaky is a queue whose kernel takes and gives as it likes: short writes, a
// full ring, a device that is down or gone, completions that dribble in.
type shaky struct {
	*lbtest.Memory
	rng  *rand.Rand
	down bool
}

func (s *shaky) some(n int) int { return s.rng.IntN(n + 1) }

func (s *shaky) Fill(addrs []uint64) int { return s.Memory.Fill(addrs[:s.some(len(addrs))]) }

func (s *shaky) Transmit(descs []xsk.Desc) int {
	if s.rng.IntN(8) == 0 {
		return 0
	}
	return s.Memory.Transmit(descs[:s.some(len(descs))])
}

func (s *shaky) Complete(out []uint64) int {
	if s.down {
		return 0
	}
	return s.Memory.Complete(out[:s.some(len(out))])
}

func (s *shaky) Kick() error {
	if s.down {
		return errors.New("network is down")
	}
	return s.Memory.Kick()
}

// account asserts that every frame is in exactly one place, and that what the
// workers believe of their ports is so.
func account(t testing.TB, l *control, workers []*bench) {
	t.Helper()
	seen := make([]string, l.memory.Frames())
	note := func(where string, port int, addrs ...uint64) {
		for _, a := range addrs {
			a /= xsk.FrameSize
			if seen[a] != "" {
				t.Fatalf("frame %d is in two places: %s, and %s (port %d)", a, seen[a], where, port)
			}
			seen[a] = where
		}
	}
	descs := func(where string, port int, list []xsk.Desc) {
		for _, d := range list {
			note(where, port, d.Addr)
		}
	}
	for _, b := range workers {
		note("free list", -1, b.w.free.addr...)
		for i, q := range b.q {
			p := &b.w.ports[i]
			descs("gathered to leave", i, p.tx[:p.txn])
			if q == nil {
				continue
			}
			note("fill ring", i, q.Empty...)
			descs("receive ring", i, q.In)
			note("being sent or on the completion ring", i, q.Done...)
			if p.filled != len(q.Empty)+len(q.In) || p.sending != len(q.Done) {
				t.Fatalf("worker %d believes of port %d: %d filled, %d sending; there are %d and %d",
					b.w.id, i, p.filled, p.sending, len(q.Empty)+len(q.In), len(q.Done))
			}
		}
		for _, h := range b.w.neighQueue {
			descs("held", -1, h.desc[:h.n])
		}
		for _, p := range b.w.links {
			if p == nil {
				continue
			}
			for s := range p.out.All {
				note("handed over", -1, s.Desc.Addr)
			}
		}
	}
	for f, where := range seen {
		if where == "" {
			t.Fatalf("frame %d is nowhere", f)
		}
	}
}

// chaos drives two workers at random.
type chaos struct {
	t       *testing.T
	rng     *rand.Rand
	workers []*bench
	queues  []*shaky
}

func newChaos(t *testing.T, seed uint64) *chaos {
	first, second := pair(t)
	c := &chaos{t: t, rng: rand.New(rand.NewPCG(seed, 1)), workers: []*bench{first, second}}
	for _, b := range c.workers {
		for i, q := range b.q {
			if q != nil {
				s := &shaky{Memory: q, rng: c.rng}
				b.w.ports[i].Queue = s
				c.queues = append(c.queues, s)
			}
		}
	}
	// Small, so that they wrap around and overflow.
	first.w.links[1].out, first.w.links[1].in = handoff.New(128), handoff.New(16)
	second.w.links[0].in, second.w.links[0].out = first.w.links[1].out, first.w.links[1].in
	for _, q := range first.q {
		q.Room = 100
	}
	return c
}

// packet is one of every sort, to an address that is served.
func (c *chaos) packet() []byte {
	p := request(c.rng.IntN(4) == 0, []uint8{header.ProtoTCP, header.ProtoUDP}[c.rng.IntN(2)])
	p.src = ap(p.src.Addr(), uint16(1024+c.rng.IntN(500)))
	p.partial = c.rng.IntN(3) == 0
	switch c.rng.IntN(10) {
	case 0:
		p.ttl = 1
	case 1:
		p.flags = header.ACK
	case 2:
		if p.src.Addr().Is4() {
			p.dst = ap(empty4, uint16(80+c.rng.IntN(3)))
		}
	case 3:
		p.payload = 1460
	}
	f := p.build(c.t)
	switch c.rng.IntN(12) {
	case 0:
		f = f[:c.rng.IntN(len(f))]
	case 1:
		f[12+c.rng.IntN(3)] ^= byte(c.rng.Uint32())
	}
	return f
}

func (c *chaos) receive() {
	b := c.workers[c.rng.IntN(2)]
	port := c.rng.IntN(3)
	if b.q[port] == nil {
		port = portClient
	}
	for range c.rng.IntN(64) {
		if len(b.q[port].Empty) < 8 {
			return // the kernel drops it
		}
		f := c.packet()
		if len(f) > 200 && c.rng.IntN(3) == 0 {
			b.giveBuffers(port, f, 60, 40, 30, 20)
		} else if len(f) > 100 && c.rng.IntN(3) == 0 {
			b.giveBuffers(port, f, 60)
		} else {
			b.give(port, f)
		}
	}
}

func (c *chaos) step() {
	switch c.rng.IntN(12) {
	case 0:
		q := c.queues[c.rng.IntN(len(c.queues))]
		q.down = !q.down
	case 1:
		l := c.workers[0].lb
		s := []route.State{route.Valid, route.Valid, route.Resolving, route.Failed}[c.rng.IntN(4)]
		if s == route.Failed { // of a request since the last packets came
			l.router.SetState(portServer, endpoint4, route.Resolving)
		}
		l.router.SetState(portServer, endpoint4, s)
	case 2, 3, 4, 5:
		c.receive()
	default:
		c.workers[c.rng.IntN(2)].w.Round()
	}
}

// TestEveryFrameIsInOnePlace: with packets of all sorts, full rings, short writes,
// interfaces that are down, rings that wrap around and hand-offs that find no room. It
// holds when the workers stop, too.
func TestEveryFrameIsInOnePlace(t *testing.T) {
	drops := map[string]uint64{}
	for seed := range uint64(6) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			c := newChaos(t, seed)
			l := c.workers[0].lb
			for range 1200 {
				c.step()
				account(t, l, c.workers)
			}
			for _, b := range c.workers {
				for reason, n := range b.drops() {
					drops[reason] += n
				}
			}
			c.comeHome()
		})
	}
	// Over all seeds: what a single seed meets depends on time, too.
	for _, reason := range []Drop{DropTxFull, DropHandoffFull, DropTooBig, DropTruncated, DropNeighbor} {
		if drops[reason.String()] == 0 {
			t.Errorf("%v did not happen: %v", reason, drops)
		}
	}
}

// comeHome lets everything end well: what was on its way is sent, and every
// worker has the frames back that it lent.
func (c *chaos) comeHome() {
	l := c.workers[0].lb
	l.router.SetState(portServer, endpoint4, route.Valid)
	for _, q := range c.queues {
		q.down, q.Room = false, 0
	}
	for range 300 {
		for _, b := range c.workers {
			b.w.Round()
		}
		account(c.t, l, c.workers)
	}
	for n, b := range c.workers {
		for i := range b.w.ports {
			if p := &b.w.ports[i]; p.txn+p.sending > 0 {
				c.t.Errorf("worker %d: %d + %d packets never left by port %d", n, p.txn, p.sending, i)
			}
		}
		for _, p := range b.w.links {
			if p != nil && (p.owed > 0 || !p.in.Empty()) {
				c.t.Errorf("worker %d owes %d frames", n, p.owed)
			}
		}
	}
}
