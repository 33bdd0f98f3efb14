package conntrack

import (
	"testing"

	"github.com/weirlb/weir/conntrack/flowstate"
	"github.com/weirlb/weir/conntrack/tcp"
)

// Where no port is fresh, those of half-open flows pass on, and not those of connections
// that may be alive.
func TestAPortThatMayBeInUseIsTakenLast(t *testing.T) {
	const ports, silent = 128, 2 * flowstate.DeadTicks
	tab := openHeap(t, Config{MaxFlows: 1 << 12, Workers: 1, MaxEndpoints: 8})
	w := tab.Worker(0)
	w.Online()
	flow := func(i int, tick uint32) *NewFlow {
		f := natFlow(i)
		f.PortHi, f.Tick = f.PortLo+ports-1, tick
		return f
	}
	var doubted []Ref
	for i := range ports {
		if i%8 == 0 {
			mustCreate(t, w, flow(i, silent))
			continue
		}
		r := mustCreate(t, w, flow(i, 1))
		talk(t, tab, r, 1, handshakeDone...)
		c := tab.Conn(r)
		c.state = flowstate.Watched(c.state | flowstate.Unconfirmed)
		doubted = append(doubted, r)
	}
	for i := range 200 {
		mustCreate(t, w, flow(1000+i, silent+uint32(i)/4))
		w.Quiesce()
	}
	dead := 0
	for _, r := range doubted {
		if tab.Conn(r).State() != flowstate.Established {
			dead++
		}
	}
	if dead != 0 {
		t.Errorf("%d of %d connections that may be alive have lost their ports", dead, len(doubted))
	}
	// Without half-open ones they give way.
	tab.Range(func(r Ref) bool {
		if tab.Conn(r).State() == flowstate.SynSent {
			tab.Conn(r).state = flowstate.Watched(uint32(flowstate.Established) | flowstate.Published)
		}
		return true
	})
	mustCreate(t, w, flow(2000, silent+100))
}

// Of a connection that was busy the exact number of its RST is not known. Most such RSTs
// are true: the connection counts as open no longer than one in CLOSE would be kept, and
// counts again once it is heard.
func TestAConnectionThatSeemsResetIsNotCounted(t *testing.T) {
	tab := openTest(t, Config{})
	w := tab.Worker(0)
	w.Online()
	f := natFlow(1)
	r := mustCreate(t, w, f)
	talk(t, tab, r, 1, handshakeDone...)
	tick := uint32(1 + TicksPerSecond)
	c := tab.Conn(r)
	talk(t, tab, r, tick, "> ACK", "< ACK")
	seq, ack := c.clientNext, c.endpointNext
	tick++
	tab.TrackTCP(r,
		&tcp.Segment{Flags: tcp.FlagACK, Seq: seq, Ack: ack, Length: 1000}, tick) // sampled
	tab.TrackTCP(r,
		&tcp.Segment{Flags: tcp.FlagACK, Seq: seq + 1000, Ack: ack, Length: 1000}, tick) // not sampled
	tab.TrackTCP(r, &tcp.Segment{Flags: tcp.FlagRST | tcp.FlagACK, Seq: seq + 2000, Ack: ack}, tick)
	if got := tab.ServiceOpen(f.ServiceID); got != 1 {
		t.Fatalf("%d are open just after the RST, want 1: it may have been forged", got)
	}
	age := func(seconds uint32) {
		for range seconds * TicksPerSecond {
			tick++
			for w.Age(tick) {
				w.Quiesce()
			}
			w.Quiesce()
		}
	}
	age(20)
	if got := tab.ServiceOpen(f.ServiceID); got != 0 {
		t.Errorf("%d are open 20 s after the RST, want 0", got)
	}
	if c.State() != flowstate.Established {
		t.Errorf("state %v, want it kept: the RST may have been forged", c.State())
	}
	tab.TrackTCP(r, &tcp.Segment{Flags: tcp.FlagACK, Seq: seq + 2000, Ack: ack, Length: 100}, tick)
	if got := tab.ServiceOpen(f.ServiceID); got != 1 {
		t.Errorf("%d are open once it is heard again, want 1", got)
	}
}
