package conntrack

import (
	"fmt"
	"testing"

	"github.com/weirlb/weir/conntrack/flowstate"
	"github.com/weirlb/weir/conntrack/tcp"
)

// A connection that is busy in both directions is followed at any rate: its end is seen,
// whether by FINs or by a RST.
func TestABusyConnectionsEndIsSeen(t *testing.T) {
	const length, unacknowledged = 1448, 1 << 20
	for _, mbit := range []uint32{100, 1_000, 10_000, 100_000} {
		for end, want := range map[string]flowstate.State{"FIN": flowstate.TimeWait, "RST": flowstate.Close} {
			t.Run(fmt.Sprintf("%s/%dMbit", end, mbit), func(t *testing.T) {
				tab := openHeap(t, Config{MaxFlows: 64, Workers: 1, MaxEndpoints: 8})
				w := tab.Worker(0)
				w.Online()
				f := natFlow(1)
				f.Tick, f.Seq = 1, 1<<32-1<<20
				there := mustCreate(t, w, f)
				back, tick := there.Other(), f.Tick
				send := func(r Ref, flags uint8, seq, ack, n uint32) {
					tab.TrackTCP(r, &tcp.Segment{Flags: flags, Seq: seq, Ack: ack, Length: n}, tick)
				}
				client, endpoint := f.Seq+1, uint32(501)
				send(there, tcp.FlagSYN, f.Seq, 0, 0)
				send(back, tcp.FlagSYN|tcp.FlagACK, 500, client, 0)
				send(there, tcp.FlagACK, client, endpoint, 0)
				perTick := mbit * (1_000_000 / 8 / TicksPerSecond)
				tick += TicksPerSecond
				send(there, tcp.FlagACK, client, endpoint, 0) // from now on it is sampled
				sent := uint32(0)
				for range 2 {
					tick++
					for range perTick / length {
						// What either end has sent is acknowledged a megabyte later.
						send(there, tcp.FlagACK, client, endpoint-min(sent, unacknowledged), length)
						send(back, tcp.FlagACK, endpoint, client-min(sent, unacknowledged), length)
						client, endpoint, sent = client+length, endpoint+length, sent+length
					}
				}
				if end == "RST" {
					send(back, tcp.FlagACK, endpoint, client, 0)
					tick++
					send(there, tcp.FlagACK, client, endpoint, 0)
					send(there, tcp.FlagRST|tcp.FlagACK, client, endpoint, 0)
				} else {
					send(there, tcp.FlagFIN|tcp.FlagACK, client, endpoint, 0)
					send(back, tcp.FlagFIN|tcp.FlagACK, endpoint, client+1, 0)
					send(there, tcp.FlagACK, client+1, endpoint+1, 0)
				}
				if got := tab.Conn(there).State(); got != want {
					t.Errorf("state %v, want %v", got, want)
				}
			})
		}
	}
}

// Forged segments of both sides that agree with each other do not replace the numbers of
// a connection that goes on.
func TestForgedSidesThatAgreeDoNotReplaceAConnection(t *testing.T) {
	const x, y = 0x6000_0000, 0x7000_0000
	for name, attack := range map[string]func(send func(forward bool, flags uint8, seq, ack uint32)){
		"SYN-ACK and ACK": func(send func(bool, uint8, uint32, uint32)) {
			send(false, tcp.FlagSYN|tcp.FlagACK, y, x)
			send(true, tcp.FlagACK, x, y+1)
		},
		"SYN, SYN-ACK and ACK": func(send func(bool, uint8, uint32, uint32)) {
			send(true, tcp.FlagSYN, x-1, 0)
			send(false, tcp.FlagSYN|tcp.FlagACK, y, x)
			send(true, tcp.FlagACK, x, y+1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			tab := openHeap(t, Config{MaxFlows: 64, Workers: 1, MaxEndpoints: 8})
			w := tab.Worker(0)
			w.Online()
			r := mustCreate(t, w, natFlow(1))
			tick, client, endpoint := uint32(1), uint32(1), uint32(501)
			send := func(forward bool, flags uint8, seq, ack uint32) {
				to := r
				if !forward {
					to = r.Other()
				}
				tab.TrackTCP(to, &tcp.Segment{Flags: flags, Seq: seq, Ack: ack}, tick)
			}
			speak := func() {
				tick += TicksPerSecond / 2
				send(true, tcp.FlagACK, client, endpoint)
				send(false, tcp.FlagACK, endpoint, client)
			}
			send(true, tcp.FlagSYN, 0, 0)
			send(false, tcp.FlagSYN|tcp.FlagACK, 500, 1)
			send(true, tcp.FlagACK, 1, 501)
			speak()
			for range 20 {
				speak()
				for i := range uint32(64) {
					send(true, tcp.FlagRST, i<<26, 0)
				}
				attack(send)
				speak()
				attack(send)
				send(true, tcp.FlagRST, x, 0)
				send(false, tcp.FlagRST, y+1, 0)
			}
			for range 20 {
				speak()
			}
			if c := tab.Conn(r); c.State() != flowstate.Established || !c.Steady(0) || c.Idle(tick) != 0 {
				t.Errorf("state %v, on the fast path: %v, silent for %d ticks", c.State(), c.Steady(0), c.Idle(tick))
			}
		})
	}
}
