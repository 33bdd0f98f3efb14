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
					tab.TrackTCP(r, flags, seq, ack, n, nil, tick)
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
