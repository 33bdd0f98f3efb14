package e2e

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/weirlb/weir/lb/counter"
	"github.com/weirlb/weir/lb/header"
	"github.com/weirlb/weir/perf/netlab"
)

// Numbers of TestWireSYNFlood, and the environment variables that replace them.
var (
	floodSeconds     = fromEnv("WEIR_SYNFLOOD_SECONDS", 8)
	floodConnections = fromEnv("WEIR_SYNFLOOD_CONNECTIONS", 50)
	floodNew         = fromEnv("WEIR_SYNFLOOD_NEW", 25)
)

// floodTimes is the rate of forged SYNs as a multiple of the packets that honest clients send.
const floodTimes = 10

// SYNs from forged sources, ten times as many as honest clients send packets, to the Service
// of these clients: no connection is lost, and new ones succeed. The rate of established
// connections is printed: the flood, Weir and the endpoints share the CPUs.
func TestWireSYNFlood(t *testing.T) {
	f := ownFixture(t, options{services: []service{toAll}})
	bothFamilies(t, func(t *testing.T, six bool) {
		h := newHonest(t, f, six)
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		defer running.Wait()
		defer stop()
		h.run(ctx, &running)
		saidBy(t, h.talks, 5)
		calm := h.during(t, time.Duration(floodSeconds)*time.Second/2)

		flood := newSYNFlood(t, f, toAll.at(echoPort, six), floodTimes*calm.packets)
		flooding, end := context.WithCancel(ctx)
		running.Go(func() { flood.run(flooding) })
		before := f.newFlows(t)
		flooded := h.during(t, time.Duration(floodSeconds)*time.Second)
		end()
		saidBy(t, h.talks, 2)
		stop()
		running.Wait()

		passed := f.newFlows(t) - before
		t.Logf("calm: %.0f packets/s, %.0f exchanges/s; with %d SYNs, %.0f a second: %.0f exchanges/s, ratio %.2f; %d new connections, %d failed, the longest %v",
			calm.packets, calm.exchanges, flood.sent.Load(), float64(flood.sent.Load())/flooded.took.Seconds(), flooded.exchanges,
			flooded.exchanges/calm.exchanges, h.fresh.made, len(h.fresh.failed), h.fresh.longest.Round(time.Millisecond))
		if err := flood.err; err != nil {
			t.Error(err)
		}
		if sent := flood.sent.Load(); passed < sent/2 {
			t.Errorf("%d SYNs made %d flows: the flood did not reach Weir", sent, passed)
		}
		for _, k := range h.talks {
			if k.err != nil {
				t.Errorf("established connection %s: %v", k.name, k.err)
			}
		}
		if failed := len(h.fresh.failed); failed > 0 {
			t.Logf("a new connection that failed: %v", h.fresh.failed[0])
			if failed*20 > h.fresh.made {
				t.Errorf("%d of %d new connections failed", failed, h.fresh.made)
			}
		}
	})
}

// newFlows is the number of flows that Weir has made.
func (f *fixture) newFlows(t *testing.T) (n int64) {
	t.Helper()
	s, err := f.admin.Status(inTime(t, within))
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range s.Workers {
		n += int64(w.Counters[counter.NewFlows])
	}
	return n
}

// honest are clients with established connections and new ones.
type honest struct {
	f     *fixture
	six   bool
	talks []*talk
	fresh newcomers
}

func newHonest(t *testing.T, f *fixture, six bool) *honest {
	t.Helper()
	h := &honest{f: f, six: six}
	for range floodConnections {
		c, err := f.Client.DialContext(inTime(t, within), "tcp", toAll.at(echoPort, six).String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		h.talks = append(h.talks, &talk{conn: c, name: c.LocalAddr().String(), every: 100 * time.Millisecond})
	}
	return h
}

func (h *honest) run(ctx context.Context, running *sync.WaitGroup) {
	for _, k := range h.talks {
		running.Go(func() { k.run(ctx) })
	}
	running.Go(func() {
		var begun sync.WaitGroup
		defer begun.Wait()
		for ctx.Err() == nil {
			begun.Go(func() { h.fresh.one(h.f, toAll, h.six) })
			pauseFor(ctx, time.Second/time.Duration(floodNew))
		}
	})
}

// rates are what honest clients do in a time.
type rates struct {
	took               time.Duration
	packets, exchanges float64 // per second
}

func (h *honest) during(t *testing.T, d time.Duration) (r rates) {
	t.Helper()
	count := func() (packets, said float64) {
		l, err := h.f.Client.Interface("eth0")
		if err != nil {
			t.Fatal(err)
		}
		for _, k := range h.talks {
			said += float64(k.said.Load())
		}
		return float64(l.Attrs().Statistics.TxPackets), said
	}
	begun := time.Now()
	packets, said := count()
	time.Sleep(d)
	r.packets, r.exchanges = count()
	r.took = time.Since(begun)
	r.packets = (r.packets - packets) / r.took.Seconds()
	r.exchanges = (r.exchanges - said) / r.took.Seconds()
	return r
}

// synFlood sends SYNs from forged sources.
type synFlood struct {
	tap  *netlab.Tap
	to   netip.AddrPort
	macs [12]byte
	udp  bool    // datagrams in place of SYNs
	rate float64 // per second
	from func(*rand.Rand, bool) netip.Addr
	sent atomic.Int64
	err  error
}

func newSYNFlood(t *testing.T, f *fixture, to netip.AddrPort, rate float64) *synFlood {
	t.Helper()
	s := &synFlood{to: to, rate: rate, from: forgedSource}
	var err error
	if s.tap, err = netlab.NewTap(f.Client, "eth0"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.tap.Close() })
	copy(s.macs[:6], macOf(t, f.Edge.Edge))
	copy(s.macs[6:], macOf(t, f.Client))
	return s
}

func macOf(t *testing.T, n *netlab.Namespace) net.HardwareAddr {
	t.Helper()
	l, err := n.Interface("eth0")
	if err != nil {
		t.Fatal(err)
	}
	return l.Attrs().HardwareAddr
}

// run sends at the rate until ctx ends. It makes up for a pause of at most a tenth of a
// second.
func (s *synFlood) run(ctx context.Context) {
	rng := rand.New(rand.NewPCG(15, 4))
	last, due := time.Now(), 0.0
	for ctx.Err() == nil && s.err == nil {
		now := time.Now()
		due = min(due+s.rate*now.Sub(last).Seconds(), s.rate/10)
		for last = now; due >= 1 && s.err == nil; due-- {
			if s.err = s.tap.Send(s.packet(rng)); errors.Is(s.err, syscall.ENOBUFS) {
				s.err = nil // a full queue of the kernel's loses it on the way to Weir
				continue
			}
			s.sent.Add(1)
		}
		pauseFor(ctx, time.Millisecond)
	}
}

// forgedSource is an address of nobody's.
func forgedSource(rng *rand.Rand, six bool) netip.Addr {
	if !six {
		return netip.AddrFrom4([4]byte{44, byte(rng.Uint32()), byte(rng.Uint32()), byte(rng.Uint32())})
	}
	a := [16]byte{0x20, 0x01, 0x0d, 0xb8}
	binary.BigEndian.PutUint64(a[8:], rng.Uint64())
	return netip.AddrFrom16(a)
}

// packet is a SYN, or a datagram, from an address and port of nobody's.
func (s *synFlood) packet(rng *rand.Rand) []byte {
	var payload []byte
	proto, sum := byte(header.ProtoTCP), 16
	if s.udp {
		proto, sum = header.ProtoUDP, 6
		payload = []byte{0, 0, 0, 0, 0, 16, 0, 0, 'f', 'o', 'r', 'g', 'e', 'r', 'y', '.'}
	} else {
		payload = make([]byte, header.TCPLen+4)
		binary.BigEndian.PutUint32(payload[4:], rng.Uint32())
		payload[12], payload[13] = byte(len(payload))<<2, header.SYN
		binary.BigEndian.PutUint16(payload[14:], 64240)
		copy(payload[header.TCPLen:], []byte{2, 4, 5, 0xb4}) // MSS 1460
	}
	binary.BigEndian.PutUint16(payload[0:], uint16(1024+rng.IntN(64000)))
	binary.BigEndian.PutUint16(payload[2:], s.to.Port())
	from := s.from(rng, s.to.Addr().Is6())
	pseudo := append(append(from.AsSlice(), s.to.Addr().AsSlice()...), 0, proto, 0, byte(len(payload)))
	binary.LittleEndian.PutUint16(payload[sum:], header.Checksum(header.Sum(0, pseudo), payload))
	if s.to.Addr().Is6() {
		ip := []byte{0x60, 0, 0, 0, 0, byte(len(payload)), proto, 64}
		ip = append(append(ip, from.AsSlice()...), s.to.Addr().AsSlice()...)
		return append(append(append(s.macs[:12:12], 0x86, 0xdd), ip...), payload...)
	}
	ip := append([]byte{0x45, 0, 0, byte(20 + len(payload)), 0, 0, 0x40, 0, 64, proto, 0, 0}, from.AsSlice()...)
	ip = append(ip, s.to.Addr().AsSlice()...)
	binary.LittleEndian.PutUint16(ip[10:], header.Checksum(0, ip))
	return append(append(append(s.macs[:12:12], 0x08, 0x00), ip...), payload...)
}
