package conntrack

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/weirlb/weir/conntrack/flowstate"
	"github.com/weirlb/weir/conntrack/sctp"
)

// Tags of the association in these tests: a client's packets carry its endpoint's.
const (
	clientTag   = 0xc1
	endpointTag = 0xe1
	wrongTag    = 0xbad
)

// sctpStep is one packet of an association.
type sctpStep struct {
	forward bool
	p       sctp.Packet
}

var (
	sctpInit         = sctpStep{true, sctp.Packet{InitiateTag: clientTag, Chunks: sctp.Init}}
	sctpInitAck      = sctpStep{false, sctp.Packet{Tag: clientTag, Chunks: 1 << 2}}
	sctpEcho         = sctpStep{true, sctp.Packet{Tag: endpointTag, Chunks: sctp.CookieEcho | 1}}
	sctpAck          = sctpStep{false, sctp.Packet{Tag: clientTag, Chunks: sctp.CookieAck}}
	sctpData         = sctpStep{true, sctp.Packet{Tag: endpointTag, Chunks: 1}}
	sctpShutdown     = sctpStep{true, sctp.Packet{Tag: endpointTag, Chunks: sctp.Shutdown}}
	sctpShutdownAck  = sctpStep{false, sctp.Packet{Tag: clientTag, Chunks: sctp.ShutdownAck}}
	sctpComplete     = sctpStep{true, sctp.Packet{Tag: endpointTag, Chunks: sctp.ShutdownComplete}}
	sctpAbort        = sctpStep{true, sctp.Packet{Tag: endpointTag, Chunks: sctp.Abort}}
	sctpAbortBack    = sctpStep{false, sctp.Packet{Tag: clientTag, Chunks: sctp.Abort}}
	sctpAbortTurned  = sctpStep{true, sctp.Packet{Tag: clientTag, Chunks: sctp.Abort, Reflected: true}}
	sctpAbortForged  = sctpStep{true, sctp.Packet{Tag: wrongTag, Chunks: sctp.Abort}}
	sctpForgedInit   = sctpStep{true, sctp.Packet{InitiateTag: wrongTag, Chunks: sctp.Init}}
	sctpForgedTurned = sctpStep{true, sctp.Packet{Tag: wrongTag, Chunks: sctp.Abort, Reflected: true}}
)

func newAssociation(t testing.TB, mode Mode) (*Table, *Worker, Ref) {
	tab := openHeap(t, Config{MaxFlows: 1024, Workers: 1, MaxEndpoints: 8})
	w := tab.Worker(0)
	w.Online()
	r, o := w.Create(&NewFlow{Client: MakeKey(client(1), vip, ProtoSCTP), Endpoint: ep1, Mode: mode, SNAT: snat, PortLo: 2000, PortHi: 2010, Tick: 1})
	if o != Created {
		t.Fatalf("outcome %d", o)
	}
	return tab, w, r
}

func (s *sctpStep) track(tab *Table, r Ref, tick uint32) flowstate.Verdict {
	if !s.forward {
		r = r.Other()
	}
	return tab.TrackSCTP(r, &s.p, tick)
}

func TestSCTPStatesFollowThePackets(t *testing.T) {
	type steps []sctpStep
	open := steps{sctpInit, sctpInitAck, sctpEcho, sctpAck}
	and := func(s ...sctpStep) steps { return append(append(steps{}, open...), s...) }
	for _, c := range []struct {
		name    string
		steps   steps
		mode    Mode
		state   flowstate.State
		verdict flowstate.Verdict
	}{
		{"an INIT", steps{sctpInit}, ModeNAT, flowstate.SCTPInit, flowstate.Pass},
		{"its INIT ACK", steps{sctpInit, sctpInitAck}, ModeNAT, flowstate.SCTPInit, flowstate.Pass},
		{"COOKIE ECHO", steps{sctpInit, sctpInitAck, sctpEcho}, ModeNAT, flowstate.SCTPCookieEchoed, flowstate.Pass},
		{"COOKIE ECHO and more of the client's", steps{sctpInit, sctpEcho, sctpData}, ModeNAT, flowstate.SCTPCookieEchoed, flowstate.Pass},
		{"COOKIE ACK", open, ModeNAT, flowstate.SCTPEstablished, flowstate.Pass},
		{"the client begins again", steps{sctpInit, sctpEcho, sctpInit}, ModeNAT, flowstate.SCTPInit, flowstate.Pass},
		{"data", and(sctpData), ModeNAT, flowstate.SCTPEstablished, flowstate.Pass},
		{"SHUTDOWN", and(sctpShutdown), ModeNAT, flowstate.SCTPShutdown, flowstate.Pass},
		{"SHUTDOWN ACK", and(sctpShutdown, sctpShutdownAck), ModeNAT, flowstate.SCTPShutdown, flowstate.Pass},
		{"SHUTDOWN COMPLETE", and(sctpShutdown, sctpShutdownAck, sctpComplete), ModeNAT, flowstate.Close, flowstate.Pass},
		{"ABORT of the client", and(sctpAbort), ModeNAT, flowstate.Close, flowstate.Pass},
		{"ABORT of the endpoint", and(sctpAbortBack), ModeNAT, flowstate.Close, flowstate.Pass},
		{"ABORT with its own tag", and(sctpAbortTurned), ModeNAT, flowstate.Close, flowstate.Pass},
		{"an INIT refused", steps{sctpInit, sctpAbortBack}, ModeNAT, flowstate.Close, flowstate.Pass},
		{"a forged ABORT", and(sctpAbortForged), ModeNAT, flowstate.SCTPEstablished, flowstate.Pass},
		{"a forged INIT and its ABORT", and(sctpForgedInit, sctpForgedTurned), ModeNAT, flowstate.SCTPEstablished, flowstate.Pass},
		{"a forged COOKIE ECHO and its ABORT", and(sctpStep{true, sctp.Packet{Tag: wrongTag, Chunks: sctp.CookieEcho}}, sctpAbortForged), ModeNAT, flowstate.SCTPEstablished, flowstate.Pass},
		{"the client restarts", and(sctpForgedInit), ModeNAT, flowstate.SCTPEstablished, flowstate.Pass},
		{"INIT after the end", and(sctpAbort, sctpInit), ModeNAT, flowstate.Close, flowstate.Reopen},
		{"one way, the cookie is unanswered", steps{sctpInit, sctpEcho}, ModeL2DSR, flowstate.SCTPCookieEchoed, flowstate.Pass},
		{"one way, the client goes on", steps{sctpInit, sctpEcho, sctpData}, ModeL2DSR, flowstate.SCTPEstablished, flowstate.Pass},
		{"one way, from the middle", steps{sctpData}, ModeL2DSR, flowstate.SCTPEstablished, flowstate.Pass},
		{"one way, ABORT", steps{sctpInit, sctpEcho, sctpData, sctpAbort}, ModeL2DSR, flowstate.Close, flowstate.Pass},
	} {
		t.Run(c.name, func(t *testing.T) {
			tab, _, r := newAssociation(t, c.mode)
			v := flowstate.Pass
			for _, s := range c.steps {
				v = s.track(tab, r, 1)
			}
			if got := tab.Conn(r).State(); got != c.state || v != c.verdict {
				t.Fatalf("%v, verdict %d; want %v, verdict %d", got, v, c.state, c.verdict)
			}
		})
	}
}

// Packets of a sender that does not see the association's packets end it no earlier. An
// association that has ended does not come back.
func TestSCTPIsEndedByItsTagsAlone(t *testing.T) {
	all := []sctpStep{sctpInit, sctpInitAck, sctpEcho, sctpAck, sctpData, sctpShutdown, sctpShutdownAck, sctpComplete, sctpAbort, sctpAbortBack, sctpAbortTurned}
	rapid.Check(t, func(rt *rapid.T) {
		tab, w, r := newAssociation(t, ModeNAT)
		for _, s := range []sctpStep{sctpInit, sctpInitAck, sctpEcho, sctpAck} {
			s.track(tab, r, 1)
		}
		state, tick := flowstate.SCTPEstablished, uint32(1)
		for range rapid.IntRange(1, 30).Draw(rt, "packets") {
			tick++
			s := rapid.SampledFrom(all).Draw(rt, "packet")
			forged := rapid.Bool().Draw(rt, "forged") && s.forward
			if forged {
				s.p.Tag, s.p.InitiateTag = wrongTag, wrongTag
			}
			before := tab.Conn(r).LastSeen()
			v := s.track(tab, r, tick)
			switch {
			case state == flowstate.Close:
				if (v == flowstate.Reopen) != (s.p.Chunks == sctp.Init) || tab.Conn(r).LastSeen() != before {
					rt.Fatalf("verdict %d, seen %d after the end", v, tab.Conn(r).LastSeen())
				}
			case forged:
			case s.p.Has(sctp.Abort | sctp.ShutdownComplete):
				state = flowstate.Close
			case s.p.Has(sctp.Shutdown | sctp.ShutdownAck):
				state = flowstate.SCTPShutdown
			}
			if got := tab.Conn(r).State(); got != state {
				rt.Fatalf("%v, want %v", got, state)
			}
		}
		timeouts, _ := flowstate.Timeouts{}.Ticks()
		seen := tab.Conn(r).LastSeen()
		w.Quiesce()
		if n := tab.Sweep(seen+timeouts[state], 100); n != 0 {
			rt.Fatal("expired early")
		}
		if n := tab.Sweep(seen+timeouts[state]+1, 100); n != 1 {
			rt.Fatalf("%v does not expire after %d ticks", state, timeouts[state])
		}
	})
}

// Of associations of which only a client has been heard none keeps room from others.
func TestSCTPHandshakesAreHalfOpen(t *testing.T) {
	for state, want := range map[flowstate.State]bool{flowstate.SCTPInit: true, flowstate.SCTPCookieEchoed: true, flowstate.SCTPEstablished: false, flowstate.SCTPShutdown: false} {
		if state.HalfOpen() != want {
			t.Errorf("%v half open: %v", state, !want)
		}
	}
}

func TestTrackSCTPAllocatesNothing(t *testing.T) {
	tab, _, r := newAssociation(t, ModeNAT)
	if n := testing.AllocsPerRun(100, func() { sctpInit.track(tab, r, 1); sctpEcho.track(tab, r, 2); sctpAck.track(tab, r, 3) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
