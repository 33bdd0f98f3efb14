package conntrack

import (
	"fmt"
	"testing"
)

// A connection that is busy in both directions is followed at any rate: its end is seen,
// whether by FINs or by a RST.
func TestABusyConnectionsEndIsSeen(t *testing.T) {
	const length, unacknowledged = 1448, 1 << 20
	for _, mbit := range []uint32{100, 1_000, 10_000, 100_000} {
		for end, want := range map[string]State{"FIN": StateTimeWait, "RST": StateClose} {
			t.Run(fmt.Sprintf("%s/%dMbit", end, mbit), func(t *testing.T) {
				tab := openHeap(t, Config{MaxFlows: 64, Workers: 1, MaxEndpoints: 8})
				w := tab.Worker(0)
				w.Online()
				f := natFlow(1)
				f.Tick, f.Seq = 1, 1<<32-1<<20
				there := mustCreate(t, w, f)
				back, tick := there.Other(), f.Tick
				send := func(r Ref, flags uint8, seq, ack, n uint32) {
					tab.TrackTCP(r, &Segment{Flags: flags, Seq: seq, Ack: ack, Length: n}, tick)
				}
				client, endpoint := f.Seq+1, uint32(501)
				send(there, flagSYN, f.Seq, 0, 0)
				send(back, flagSYN|flagACK, 500, client, 0)
				send(there, flagACK, client, endpoint, 0)
				perTick := mbit * (1_000_000 / 8 / TicksPerSecond)
				tick += TicksPerSecond
				send(there, flagACK, client, endpoint, 0) // from now on it is sampled
				sent := uint32(0)
				for range 2 {
					tick++
					for range perTick / length {
						// What either end has sent is acknowledged a megabyte later.
						send(there, flagACK, client, endpoint-min(sent, unacknowledged), length)
						send(back, flagACK, endpoint, client-min(sent, unacknowledged), length)
						client, endpoint, sent = client+length, endpoint+length, sent+length
					}
				}
				if end == "RST" {
					send(back, flagACK, endpoint, client, 0)
					tick++
					send(there, flagACK, client, endpoint, 0)
					send(there, flagRST|flagACK, client, endpoint, 0)
				} else {
					send(there, flagFIN|flagACK, client, endpoint, 0)
					send(back, flagFIN|flagACK, endpoint, client+1, 0)
					send(there, flagACK, client+1, endpoint+1, 0)
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
			send(false, flagSYN|flagACK, y, x)
			send(true, flagACK, x, y+1)
		},
		"SYN, SYN-ACK and ACK": func(send func(bool, uint8, uint32, uint32)) {
			send(true, flagSYN, x-1, 0)
			send(false, flagSYN|flagACK, y, x)
			send(true, flagACK, x, y+1)
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
				tab.TrackTCP(to, &Segment{Flags: flags, Seq: seq, Ack: ack}, tick)
			}
			speak := func() {
				tick += TicksPerSecond / 2
				send(true, flagACK, client, endpoint)
				send(false, flagACK, endpoint, client)
			}
			send(true, flagSYN, 0, 0)
			send(false, flagSYN|flagACK, 500, 1)
			send(true, flagACK, 1, 501)
			speak()
			for range 20 {
				speak()
				for i := range uint32(64) {
					send(true, flagRST, i<<26, 0)
				}
				attack(send)
				speak()
				attack(send)
				send(true, flagRST, x, 0)
				send(false, flagRST, y+1, 0)
			}
			for range 20 {
				speak()
			}
			if c := tab.Conn(r); c.State() != StateEstablished || !c.Steady(0) || c.Idle(tick) != 0 {
				t.Errorf("state %v, on the fast path: %v, silent for %d ticks", c.State(), c.Steady(0), c.Idle(tick))
			}
		})
	}
}
