package worker

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/weirlb/weir/lb/header"
)

// datagrams are honest clients of a UDP Service with one endpoint, and an attacker who forges
// datagrams. No packet of a forged flow differs from those of honest flows: what limits him is
// that he pays for each with one of his packets, and that the answers go to others.
type datagrams struct {
	b       *bench
	rng     *rand.Rand
	tick    uint32
	ports   int                       // of all sources
	attack  attack                    //
	budget  float64                   // forged packets that are left in this tick
	flows   map[netip.AddrPort]*talk  // by client
	owner   map[netip.AddrPort]*talk  // by SNAT source
	due     map[uint32][]*talk        // the clients that send in a tick
	answers map[uint32][]answerToTalk // of the endpoint, by the tick in which it sends them
	next    uint32

	honest    []*talk
	displaced int // flows that lost their port within ten seconds of their last datagram
	lost      int // of these, while a port was free
	wrong     int // answers to honest clients that came to another client
}

// attack is what an attacker does with a flow after its first datagram.
type attack struct {
	perSecond float64
	every     uint32 // ticks between two datagrams of a flow
	repeats   int    // datagrams after the first
	answers   int    // of the endpoint to each; 0: it refuses to answer
	apart     uint32 // ticks between two of these answers
}

func (a attack) String() string {
	return fmt.Sprintf("%d repeats, %d ticks apart, %d answers, %d ticks apart", a.repeats, a.every, a.answers, a.apart)
}

// talk is a flow as its client sees it.
type talk struct {
	addr     netip.AddrPort
	forged   bool
	used     uint32 // the tick of its last datagram
	says     int    // datagrams still to be sent
	every    uint32
	answers  int
	apart    uint32
	delay    uint32 // of the first answer
	answered bool   // the first datagram
	source   netip.AddrPort
}

type answerToTalk struct {
	of   *talk
	from netip.AddrPort // the SNAT source to which the endpoint sends it
}

// silentTicks is the silence after which a flow may lose its port.
const silentTicks = 10 * secondTicks

func newDatagrams(t *testing.T, seed uint64, a attack, ports int, sources ...netip.Addr) *datagrams {
	d := &datagrams{b: newBench(t), rng: rand.New(rand.NewPCG(seed, 2)), attack: a, ports: ports * max(1, len(sources)),
		flows: map[netip.AddrPort]*talk{}, owner: map[netip.AddrPort]*talk{}, due: map[uint32][]*talk{}, answers: map[uint32][]answerToTalk{}}
	d.b.fewPorts(ports, sources...)
	d.b.round()
	d.tick = d.b.w.tick
	return d
}

// begin adds a client that sends in this tick.
func (d *datagrams) begin(c *talk, forged bool) *talk {
	c.addr, c.forged = floodAddr(d.next), forged
	d.next++
	d.flows[c.addr] = c
	d.due[d.tick] = append(d.due[d.tick], c)
	return c
}

// beginHonest adds a client: most ask once, some go on for a while, a few for good. The endpoint
// takes up to four seconds for the answer.
func (d *datagrams) beginHonest() {
	c := &talk{says: 1, every: 2 * secondTicks, answers: 1, delay: d.rng.Uint32N(4 * secondTicks)}
	switch n := d.rng.IntN(100); {
	case n < 2:
		c.says, c.every = 1<<20, 1+d.rng.Uint32N(9*secondTicks)
	case n < 20:
		c.says = 5
	}
	d.honest = append(d.honest, d.begin(c, false))
}

// step is one tick.
func (d *datagrams) step(honest int) {
	d.tick++
	d.b.w.tick = d.tick
	for range honest {
		d.beginHonest()
	}
	now := d.due[d.tick]
	d.budget += d.attack.perSecond / secondTicks
	for _, c := range now {
		if !c.forged {
			d.send(c)
		}
	}
	for _, c := range now {
		if c.forged {
			d.sendForged(c)
		}
	}
	for d.budget >= 1 {
		d.sendForged(d.begin(&talk{forged: true, says: 1 + d.attack.repeats, every: d.attack.every,
			answers: d.attack.answers, apart: d.attack.apart}, true))
	}
	delete(d.due, d.tick)
	for _, a := range d.answers[d.tick] {
		g := segment{src: ap(endpoint4, 8080), dst: a.from, proto: header.ProtoUDP, length: 20}
		d.b.give(portServer, g.frame(d.b.t, macServer, macWeirB))
		d.receive(a, d.b.roundAtTheSameTime())
	}
	delete(d.answers, d.tick)
	d.b.roundAtTheSameTime()
}

// sendForged sends a datagram of the attacker's if he has one left, else as soon as he has.
func (d *datagrams) sendForged(c *talk) {
	if d.budget < 1 {
		d.due[d.tick+1] = append(d.due[d.tick+1], c)
		return
	}
	d.budget--
	d.send(c)
}

func (d *datagrams) send(c *talk) {
	g := segment{src: c.addr, dst: floodTo, proto: header.ProtoUDP, length: 20}
	d.b.give(portClient, g.frame(d.b.t, macClient, macWeir))
	if c.says--; c.says > 0 {
		d.due[d.tick+c.every] = append(d.due[d.tick+c.every], c)
	}
	for _, f := range d.b.roundAtTheSameTime()[portServer] {
		d.arrived(c, parseSegment(f).src)
	}
}

// arrived notes that the endpoint got a datagram of c by a SNAT source, and has it answer.
func (d *datagrams) arrived(c *talk, source netip.AddrPort) {
	if was := d.owner[source]; was != nil && was != c && was.source == source && d.tick-was.used < silentTicks {
		d.displaced++
		if d.b.lb.flows.Flows() < d.ports {
			d.lost++
		}
	}
	d.owner[source], c.source, c.used = c, source, d.tick
	for n := range uint32(c.answers) {
		at := d.tick + c.delay + n*c.apart
		d.answers[at] = append(d.answers[at], answerToTalk{c, source})
	}
	c.delay = 0
}

func (d *datagrams) receive(a answerToTalk, left [3][][]byte) {
	for _, f := range left[portClient] {
		c := d.flows[parseSegment(f).dst]
		if c == a.of {
			c.answered = true
		} else if !a.of.forged {
			d.wrong++
		}
	}
}

// judge reports whether 95 % of the honest flows were served, and the rule of ten seconds held.
func (d *datagrams) judge(t *testing.T) {
	t.Helper()
	failed := 0
	for _, c := range d.honest {
		if !c.answered {
			failed++
		}
	}
	t.Logf("%d of %d fail, %d answers came to others, %d flows lost a port in use, of these %d needlessly; %+v; drops %v",
		failed, len(d.honest), d.wrong, d.displaced, d.lost, d.b.lb.flows.Stats(), d.b.drops())
	if failed*20 > len(d.honest) {
		t.Errorf("%d of %d honest flows are not served", failed, len(d.honest))
	}
	if d.displaced*50 > len(d.flows) {
		t.Errorf("%d of %d flows lost a port within ten seconds of use", d.displaced, len(d.flows))
	}
	if d.lost > 0 {
		t.Errorf("%d flows lost a port within ten seconds of use, while another was free", d.lost)
	}
	d.b.framesHome()
}

func (d *datagrams) run(seconds, honestPerTick int) {
	for range seconds * secondTicks {
		d.step(honestPerTick)
	}
	d.attack.perSecond = 0
	d.honest = d.honest[:max(0, len(d.honest)-1)]
	for range 4 * secondTicks {
		d.step(0)
	}
}

// attackOf draws an attack at random.
func attackOf(rng *rand.Rand) attack {
	pick := func(n ...int) int { return n[rng.IntN(len(n))] }
	return attack{
		perSecond: 100,
		every:     uint32(pick(1, 8, 15, 31, 34, 63, 65, 100, 158, 161, 400, 1000, 1900)),
		repeats:   pick(0, 1, 1, 2, 3, 4, 8, 1<<20),
		answers:   pick(0, 1, 1, 2, 5, 100),
		apart:     uint32(pick(1, 15, 33, 100, 158)),
	}
}

// A hundred forged datagrams in a second, repeated and answered as the attacker likes, keep no
// more than 5 % of honest flows from the only endpoint by the only SNAT source: each keeps a port
// from others for ten seconds, and so a thousand ports of 4,536. While a port is to be had, no
// flow loses one that was used within ten seconds. WEIR_FLOOD_MINUTES goes on with attacks at
// random (make flood MINUTES=10).
func TestFloodOfDatagramsLeavesHonestFlows(t *testing.T) {
	const ports = 4536
	seconds := 150
	attacks := []attack{
		{perSecond: 100, repeats: 1, every: 34, answers: 1},
		{perSecond: 100, repeats: 3, every: 64, answers: 1},
		{perSecond: 100, repeats: 1 << 20, every: 158, answers: 1},
		{perSecond: 100, answers: 30, apart: 100},
	}
	if testing.Short() {
		attacks = attacks[:1]
	}
	for i, a := range attacks {
		t.Run(a.String(), func(t *testing.T) {
			d := newDatagrams(t, uint64(i), a, ports, snat4)
			d.run(seconds, 10)
			d.judge(t)
		})
	}
	minutes, _ := strconv.Atoi(os.Getenv("WEIR_FLOOD_MINUTES"))
	until := time.Now().Add(time.Duration(minutes) * time.Minute)
	for seed := uint64(100); time.Now().Before(until) && !t.Failed(); seed++ {
		rng := rand.New(rand.NewPCG(seed, 3))
		a := attackOf(rng)
		t.Run(fmt.Sprintf("%d/%v", seed, a), func(t *testing.T) {
			d := newDatagrams(t, seed, a, ports, snat4)
			d.run(seconds, 1+rng.IntN(12)) // at most 292 flows per second, and those that go on
			d.judge(t)
		})
	}
}

// With two sources a flow in use keeps its port while the other source has one.
func TestFloodOfDatagramsTakesTheOtherSourceFirst(t *testing.T) {
	a := attack{perSecond: 40, repeats: 2, every: 34, answers: 1}
	d := newDatagrams(t, 1, a, 512, snat4, netip.MustParseAddr("10.1.0.2"))
	d.run(40, 3)
	d.judge(t)
}
