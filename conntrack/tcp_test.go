package conntrack

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/weirlb/weir/conntrack/flowstate"
	"github.com/weirlb/weir/conntrack/tcp"
)

// talk sends packets written as "> SYN" (client) or "< SYN,ACK" (endpoint), with
// optional "seq N ack N len N ts N", and returns the last verdict. Numbers that are not
// given are the next ones, as the table knows them.
func talk(t testing.TB, tab *Table, r Ref, tick uint32, packets ...string) flowstate.Verdict {
	t.Helper()
	var v flowstate.Verdict
	for _, p := range packets {
		_, v = segment(t, tab, r, tick, p)
	}
	return v
}

// segment is talk of a packet, with what was followed.
func segment(t testing.TB, tab *Table, r Ref, tick uint32, p string) (tcp.Segment, flowstate.Verdict) {
	t.Helper()
	ref, flags := r, uint8(0)
	word := strings.Fields(p)
	if word[0] == "<" {
		ref = r.Other()
	}
	for _, f := range strings.Split(word[1], ",") {
		flag, ok := map[string]uint8{"SYN": tcp.FlagSYN, "ACK": tcp.FlagACK, "FIN": tcp.FlagFIN, "RST": tcp.FlagRST, "PSH": tcp.FlagPSH, "-": 0}[f]
		if !ok {
			t.Fatalf("packet %q", p)
		}
		flags |= flag
	}
	c := tab.Conn(ref)
	seq, ack, length := c.endpointNext, c.clientNext, uint32(0)
	if ref == r {
		seq, ack = ack, seq
	}
	if flags&tcp.FlagSYN != 0 {
		seq-- // the number before was a SYN's, if the table knows one
	}
	var options []byte
	for i := 2; i+1 < len(word); i += 2 {
		var n uint32
		fmt.Sscan(word[i+1], &n)
		switch word[i] {
		case "seq":
			seq = n
		case "ack":
			ack = n
		case "len":
			length = n
		case "ts":
			options = tsOption(n)
		}
	}
	g := tcp.Segment{Flags: flags, Seq: seq, Ack: ack, Length: length, Options: options}
	v := tab.TrackTCP(ref, &g, tick)
	return g, v
}

var handshakeDone = []string{"> SYN", "< SYN,ACK seq 6999", "> ACK"}

// oldFlow is natFlow with SYN number 99.
func oldFlow(i int) *NewFlow {
	f := natFlow(i)
	f.Seq = 99
	return f
}

func TestTCPStatesFollowThePackets(t *testing.T) {
	open := strings.Join(handshakeDone, "; ")
	for _, c := range []struct {
		name, packets string
		state         flowstate.State
		verdict       flowstate.Verdict
	}{
		{"a SYN alone", "> SYN", flowstate.SynSent, flowstate.Pass},
		{"a SYN sent again", "> SYN; > SYN", flowstate.SynSent, flowstate.Pass},
		{"an ACK of the client's before the endpoint spoke", "> SYN; > ACK", flowstate.SynSent, flowstate.Pass},
		{"a challenge ACK of the endpoint's", "> SYN; < ACK", flowstate.SynSent, flowstate.Pass},
		{"SYN-ACK", "> SYN; < SYN,ACK", flowstate.SynRecv, flowstate.Pass},
		{"SYN-ACK from the client proves nothing", "> SYN; > SYN,ACK", flowstate.SynSent, flowstate.Pass},
		{"data from the endpoint before the handshake ends", "> SYN; < SYN,ACK; < PSH,ACK ack 99 len 9", flowstate.SynRecv, flowstate.Pass},
		{"handshake", open, flowstate.Established, flowstate.Pass},
		{"FIN instead of the last ACK", "> SYN; < SYN,ACK; > FIN,ACK", flowstate.FinWait, flowstate.Pass},
		{"a SYN in the middle", open + "; > SYN", flowstate.Established, flowstate.Pass},
		{"client closes", open + "; > FIN,ACK", flowstate.FinWait, flowstate.Pass},
		{"client closes, FIN sent again", open + "; > FIN,ACK; > FIN,ACK", flowstate.FinWait, flowstate.Pass},
		{"half closed by the client", open + "; > FIN,ACK; < ACK", flowstate.CloseWait, flowstate.Pass},
		{"half closed, data goes on", open + "; > FIN,ACK; < ACK; < PSH,ACK len 9; > ACK", flowstate.CloseWait, flowstate.Pass},
		{"a SYN while half closed", open + "; > FIN,ACK; < ACK; > SYN", flowstate.CloseWait, flowstate.Pass},
		{"half closed by the endpoint", open + "; < FIN,ACK; > ACK; > PSH,ACK len 9; < ACK", flowstate.CloseWait, flowstate.Pass},
		{"both closed, last ACK due", open + "; > FIN,ACK; < FIN,ACK", flowstate.LastAck, flowstate.Pass},
		{"closed by the client first", open + "; > FIN,ACK; < ACK; < FIN,ACK; > ACK", flowstate.TimeWait, flowstate.Pass},
		{"closed by the endpoint first", open + "; < FIN,ACK; > ACK; > FIN,ACK; < ACK", flowstate.TimeWait, flowstate.Pass},
		{"simultaneous close", open + "; < FIN,ACK; > FIN,ACK; > ACK; < ACK", flowstate.TimeWait, flowstate.Pass},
		{"simultaneous close, the client's FIN not yet acknowledged", open + "; > FIN,ACK seq 100; < FIN,ACK ack 100; > ACK seq 101", flowstate.LastAck, flowstate.Pass},
		{"last ACK sent again", open + "; < FIN,ACK; > FIN,ACK; < ACK; > ACK; < ACK", flowstate.TimeWait, flowstate.Pass},
		{"a SYN after that opens anew", open + "; < FIN,ACK; > FIN,ACK; < ACK; > SYN", flowstate.TimeWait, flowstate.Reopen},
		{"a SYN from the endpoint does not", open + "; < FIN,ACK; > FIN,ACK; < ACK; < SYN", flowstate.TimeWait, flowstate.Pass},
		{"a SYN while the last ACK is due", open + "; > FIN,ACK; < FIN,ACK; > SYN", flowstate.LastAck, flowstate.Pass},
		{"refused", "> SYN; < RST,ACK", flowstate.Close, flowstate.Pass},
		{"RST of the client near the SYN-ACK", "> SYN; < SYN,ACK seq 6999; > RST seq 103", flowstate.SynRecv, flowstate.Pass},
		{"RST of the endpoint near the SYN-ACK", "> SYN; < SYN,ACK seq 6999; < RST,ACK seq 5 ack 103", flowstate.SynRecv, flowstate.Pass},
		{"refused and tried again", "> SYN; < RST,ACK; > SYN", flowstate.SynSent, flowstate.Restart},
		{"reset by the client", open + "; > RST", flowstate.Close, flowstate.Pass},
		{"reset, the endpoint has not heard yet", open + "; > RST; < ACK len 5", flowstate.Close, flowstate.Pass},
		{"reset, overtaken data of the same side", open + "; > RST seq 100; > ACK seq 50 len 50", flowstate.Close, flowstate.Pass},
		{"RST with another number", open + "; > RST seq 101", flowstate.Established, flowstate.Pass},
		{"RST of the endpoint's with another number", open + "; < RST seq 7001", flowstate.Established, flowstate.Pass},
		{"RST with an ACK from nowhere", open + "; > RST,ACK ack 2000000000", flowstate.Established, flowstate.Pass},
		{"RST while half closed", open + "; > FIN,ACK; < ACK; < RST", flowstate.Close, flowstate.Pass},
		{"RST after the FIN that is on its way", open + "; > FIN,ACK; > RST seq 100", flowstate.Close, flowstate.Pass},
		{"RST in TIME_WAIT", open + "; < FIN,ACK; > FIN,ACK; < ACK; > RST", flowstate.TimeWait, flowstate.Pass},
		{"refusal of another SYN", "> SYN; < RST,ACK ack 77", flowstate.SynSent, flowstate.Pass},
		{"refusal without ACK", "> SYN; < RST", flowstate.SynSent, flowstate.Pass},
		{"SYN-ACK to another SYN", "> SYN; < SYN,ACK ack 77", flowstate.SynSent, flowstate.Pass},
		{"SYN-ACK to a second SYN of the client's", "> SYN; > SYN seq 700; < SYN,ACK ack 701", flowstate.SynRecv, flowstate.Pass},
		{"ACK of another SYN-ACK", "> SYN; < SYN,ACK seq 6999; > ACK ack 9999999", flowstate.SynRecv, flowstate.Pass},
		{"challenge ACK of an endpoint that lacks the ACK", "> SYN; < SYN,ACK seq 6999; > ACK seq 7 ack 9999999; < ACK", flowstate.SynRecv, flowstate.Pass},
		{"data of an endpoint that has the ACK", "> SYN; < SYN,ACK seq 6999; < ACK len 9", flowstate.Established, flowstate.Pass},
		{"reset, opened again in place", open + "; > RST; > SYN seq 500", flowstate.SynSent, flowstate.Restart},
		{"and answered", open + "; > RST; > SYN seq 500; < SYN,ACK seq 1 ack 501", flowstate.SynRecv, flowstate.Pass},
		{"and answered with a challenge ACK", open + "; > RST; > SYN seq 500; < ACK", flowstate.Established, flowstate.Pass},
		{"reset, opened again, and a SYN-ACK of the old connection", open + "; > RST; > SYN seq 500; < SYN,ACK seq 6999 ack 100; < SYN,ACK seq 1 ack 501", flowstate.SynRecv, flowstate.Pass},
		{"reset, opened again, answered after older data of the endpoint's", open + "; > RST; > SYN seq 500000000; < ACK len 9; < ACK len 9; < SYN,ACK seq 1 ack 500000001", flowstate.SynRecv, flowstate.Pass},
		{"FIN from nowhere", open + "; > FIN,ACK seq 2000000000 ack 9", flowstate.Established, flowstate.Pass},
		{"FIN that only an ACK from nowhere acknowledges", open + "; > FIN,ACK; < ACK seq 2000000000", flowstate.FinWait, flowstate.Pass},
		{"FIN that is not acknowledged by its number", open + "; > FIN,ACK seq 200; < ACK ack 100", flowstate.FinWait, flowstate.Pass},
		{"FIN beyond which its side goes on", open + "; > FIN,ACK; > ACK seq 101 len 5", flowstate.Established, flowstate.Pass},
		{"FIN without ACK", open + "; > FIN", flowstate.Established, flowstate.Pass},
		{"FIN with an ACK from nowhere", open + "; > FIN,ACK seq 100 ack 68664256", flowstate.Established, flowstate.Pass},
		{"FIN where its side sends data", open + "; < FIN,ACK seq 7004 len 1; > ACK ack 7000; < ACK seq 7000 len 6", flowstate.Established, flowstate.Pass},
		{"a packet without flags", open + "; > -", flowstate.Established, flowstate.Pass},
		{"SYN and RST", open + "; > SYN,RST", flowstate.Established, flowstate.Pass},
		{"FIN and RST", open + "; > FIN,RST", flowstate.Established, flowstate.Pass},
		{"SYN and FIN", open + "; > SYN,FIN", flowstate.Established, flowstate.Pass},
	} {
		t.Run(c.name, func(t *testing.T) { checkStates(t, c.packets, c.state, c.verdict) })
	}
}

// checkStates has packets pass, and compares the state and the last verdict.
func checkStates(t *testing.T, packets string, state flowstate.State, verdict flowstate.Verdict) {
	t.Helper()
	tab := openHeap(t, Config{MaxFlows: 16, Workers: 1, MaxEndpoints: 8})
	w := tab.Worker(0)
	w.Online()
	r := mustCreate(t, w, oldFlow(1))
	v := talk(t, tab, r, 5, strings.Split(packets, ";")...)
	if got := tab.Conn(r).State(); got != state || v != verdict {
		t.Errorf("state %v, verdict %d; want %v, %d", got, v, state, verdict)
	}
}

// The endpoint lacks the client's last ACK, and the RST after it, and so sends its SYN-ACK
// again. That SYN-ACK hides no SYN of the client's next connection, although the old
// connection answers the first of them with a challenge ACK.
func TestSYNACKSentAgainDoesNotHideTheNextConnection(t *testing.T) {
	tab := openHeap(t, Config{MaxFlows: 16, Workers: 1, MaxEndpoints: 8})
	w := tab.Worker(0)
	w.Online()
	r := mustCreate(t, w, oldFlow(1))
	talk(t, tab, r, 1, handshakeDone...)
	talk(t, tab, r, 1, "> RST seq 100",
		"> SYN seq 500000000", "< SYN,ACK seq 6999 ack 100", "> RST seq 100",
		"> SYN seq 500000000", "< ACK seq 7000 ack 100",
		"< SYN,ACK seq 900000000 ack 500000001", "> RST seq 100", // the answer to the challenge ACK
		"> ACK seq 500000001 ack 900000001", "< ACK seq 900000001 ack 500000001")
	w.Offline()
	tab.Sweep(3600*TicksPerSecond, 16)
	if c := tab.Conn(r); c.State() != flowstate.Established || c.clientNext != 500000001 || c.endpointNext != 900000001 {
		t.Errorf("the next connection is %v, next numbers %d and %d", c.State(), c.clientNext, c.endpointNext)
	}
}

// A FIN that its receiver ignores stays in doubt, also if its alleged sender goes on just
// up to its number. If it is sent again the doubt ends: its receiver is gone.
func TestDoubtAboutAFINEndsWhenItIsSentAgain(t *testing.T) {
	const minute = 60 * TicksPerSecond
	for name, c := range map[string]struct {
		first, later []string
		forgotten    int
	}{
		"forged":     {[]string{"< FIN,ACK seq 7004 ack 100 len 11", "> ACK ack 7000"}, []string{"< ACK seq 7000 len 15", "> ACK ack 7015", "< ACK seq 7015"}, 0},
		"sent again": {[]string{"< FIN,ACK seq 7000 ack 100", "> ACK ack 7000 len 9"}, []string{"< FIN,ACK seq 7000 ack 100"}, 1},
	} {
		tab := openHeap(t, Config{MaxFlows: 16, Workers: 1, MaxEndpoints: 8})
		w := tab.Worker(0)
		w.Online()
		r := mustCreate(t, w, oldFlow(1))
		talk(t, tab, r, 1, handshakeDone...)
		talk(t, tab, r, 1, c.first...)
		talk(t, tab, r, 9, c.later...)
		w.Offline()
		if n := tab.Sweep(3*minute, 16); n != c.forgotten {
			t.Errorf("%s: %d forgotten after three minutes, want %d", name, n, c.forgotten)
		}
	}
}

// Where the endpoint's packets do not pass, the client's have to do.
func TestDSRFlowsFollowTheClient(t *testing.T) {
	tab := openHeap(t, Config{MaxFlows: 16, Workers: 1, MaxEndpoints: 8})
	w := tab.Worker(0)
	w.Online()
	f := natFlow(1)
	f.Mode = ModeIPIP
	r := mustCreate(t, w, f)
	for _, step := range []struct {
		packet string
		state  flowstate.State
	}{{"> SYN", flowstate.SynSent}, {"> ACK", flowstate.Established}, {"> FIN,ACK", flowstate.FinWait}, {"> ACK", flowstate.FinWait}, {"> RST", flowstate.Close}} {
		talk(t, tab, r, 1, step.packet)
		if got := tab.Conn(r).State(); got != step.state {
			t.Errorf("after %s: %v, want %v", step.packet, got, step.state)
		}
	}
	f = natFlow(4)
	f.Mode = ModeIPIP
	r = mustCreate(t, w, f)
	talk(t, tab, r, 1, "> SYN", "> ACK", "> FIN,ACK")
	if v := talk(t, tab, r, 1, "> SYN seq 900"); v != flowstate.Restart || tab.Conn(r).State() != flowstate.SynSent {
		t.Errorf("a SYN after the client's FIN: verdict %d", v)
	}
	f = natFlow(2)
	f.Mode, f.Established = ModeL2DSR, true
	if r := mustCreate(t, w, f); tab.Conn(r).State() != flowstate.Established {
		t.Errorf("a connection taken up in the middle is %v", tab.Conn(r).State())
	}
	f = natFlow(3)
	f.Mode, f.Client = ModeL2DSR, MakeKey(client(3), vip, ProtoUDP)
	r = mustCreate(t, w, f)
	tab.TrackUDP(r, 10)
	if got := tab.Conn(r).State(); got != flowstate.Unreplied {
		t.Errorf("UDP is %v at first", got)
	}
	tab.TrackUDP(r, 40)
	if got := tab.Conn(r).State(); got != flowstate.Stream {
		t.Errorf("UDP that goes on is %v", got)
	}
}

// Its endpoint may have closed or reset it long ago, unheard.
func TestDSRFlowsAreForgottenAfterTwoHours(t *testing.T) {
	const hour = 3600 * TicksPerSecond
	tab := openHeap(t, Config{MaxFlows: 16, Workers: 1, MaxEndpoints: 8})
	w := tab.Worker(0)
	w.Online()
	for i, mode := range []Mode{ModeNAT, ModeGUE} {
		f := natFlow(i)
		f.Mode = mode
		r := mustCreate(t, w, f)
		talk(t, tab, r, 1, "> SYN", "< SYN,ACK", "> ACK")
	}
	w.Offline()
	if n := tab.Sweep(2*hour, 16); n != 0 {
		t.Errorf("%d forgotten after two hours", n)
	}
	if n := tab.Sweep(2*hour+hour/10, 16); n != 1 {
		t.Errorf("%d forgotten after two hours and six minutes, want the one-way flow", n)
	}
}

func TestUDPIsAStreamOnceAnsweredAndGoingOn(t *testing.T) {
	tab := openHeap(t, Config{MaxFlows: 16, Workers: 1, MaxEndpoints: 8})
	w := tab.Worker(0)
	w.Online()
	f := natFlow(1)
	f.Client = MakeKey(client(1), vip, ProtoUDP)
	r := mustCreate(t, w, f)
	for _, step := range []struct {
		ref   Ref
		tick  uint32
		state flowstate.State
	}{
		{r, 1, flowstate.Unreplied}, {r, 2, flowstate.Unreplied}, {r.Other(), 3, flowstate.Replied}, {r, 4, flowstate.Replied},
		{r.Other(), 32, flowstate.Replied}, {r, 33, flowstate.Stream}, {r, 34, flowstate.Stream},
	} {
		tab.TrackUDP(step.ref, step.tick)
		if got := tab.Conn(r).State(); got != step.state || tab.Conn(r).LastSeen() != step.tick {
			t.Errorf("at %d: %v since %d, want %v", step.tick, got, tab.Conn(r).LastSeen(), step.state)
		}
	}
}

func TestTimestampOptionIsFoundAndBadOptionsAreNot(t *testing.T) {
	for _, c := range []struct {
		name    string
		options []byte
		ts      uint32
		ok      bool
	}{
		{"none", nil, 0, false},
		{"usual place", tsOption(0x01020304), 0x01020304, true},
		{"after MSS and SACK", append([]byte{2, 4, 5, 180, 4, 2}, tsOption(9)...), 9, true},
		{"end of list before it", append([]byte{0}, tsOption(9)...), 0, false},
		{"length 0", []byte{2, 0, 8, 10}, 0, false},
		{"length 1", []byte{2, 1, 8, 10}, 0, false},
		{"cut short", tsOption(9)[:11], 0, false},
		{"kind without length", []byte{1, 8}, 0, false},
		{"wrong length", []byte{8, 6, 0, 0, 0, 9, 1, 1, 1, 1}, 0, false},
	} {
		if ts, ok := tcp.Timestamp(c.options); ts != c.ts || ok != c.ok {
			t.Errorf("%s: %d, %v", c.name, ts, ok)
		}
	}
}

func FuzzTimestamp(f *testing.F) {
	f.Add(tsOption(1))
	f.Add([]byte{2, 4, 5, 180, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0, 1, 3, 3, 7})
	f.Add([]byte{8})
	f.Fuzz(func(t *testing.T, options []byte) { tcp.Timestamp(options) })
}

func TestAPacketOfADeletedConnectionIsToldSo(t *testing.T) {
	tab := openHeap(t, Config{MaxFlows: 16, Workers: 1, MaxEndpoints: 8})
	w := tab.Worker(0)
	w.Online()
	r := mustCreate(t, w, natFlow(1))
	w.Delete(r)
	if v := talk(t, tab, r, 1, "> SYN"); v != flowstate.Gone {
		t.Errorf("verdict %d", v)
	}
	tab.Conn(r).Touch(20)
	if a, b := tab.Conn(r).Idle(25), tab.Conn(r).Idle(19); a != 5 || b != 0 {
		t.Errorf("idle for %d and %d ticks", a, b)
	}
}

// The endpoint's FIN crossed the client's: both sides hold TIME_WAIT, so its
// port is not free for any SYN (RFC 9293, figure 13).
func TestSimultaneousCloseLeavesTheEndpointInTimeWait(t *testing.T) {
	for _, c := range []struct {
		name, packets string
		waits         bool
	}{
		{"crossing", "> FIN,ACK seq 100; < FIN,ACK ack 100; > ACK seq 101; < ACK ack 101", true},
		{"client first", "> FIN,ACK seq 100; < FIN,ACK ack 101; > ACK seq 101", false},
		{"endpoint first", "< FIN,ACK ack 100; > FIN,ACK seq 100; < ACK ack 101; > ACK seq 101", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			tab := openHeap(t, Config{MaxFlows: 16, Workers: 1, MaxEndpoints: 8})
			w := tab.Worker(0)
			w.Online()
			ref := mustCreate(t, w, oldFlow(1))
			talk(t, tab, ref, 5, append(slices.Clone(handshakeDone), strings.Split(c.packets, "; ")...)...)
			conn := tab.Conn(ref)
			if got := conn.State(); got != flowstate.TimeWait {
				t.Fatalf("state %v", got)
			}
			// An older sequence number, no timestamps.
			if got := (tcp.SYN{Seq: 50}).Accepts(conn.state, conn.clientNext, conn.extra); got == c.waits {
				t.Errorf("an old SYN is taken: %v", got)
			}
		})
	}
}
